"""Hugging Face checkpoints: any architecture of transformers, read layer by layer through its own code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

import numpy as np

from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer import LayerAttention, layer_of_weights
from attnctl.layer.computed import ComputedLayer
from attnctl.layer.interventions import Intervention
from attnctl.models.builtin.stack import MOST_LIKELY, predicted_places
from attnctl.models.huggingface.loading import file_report
from attnctl.models.huggingface.network import (
    adds_alibi_in_mask,
    device_of_inputs,
    lacks_head,
    running_network,
    version_notes,
)
from attnctl.models.huggingface.optional_fields import config_value, output_value
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.runtime.files import names_sound
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Prediction, Run, StopForward
from attnctl.trace.subject import Subject
from attnctl.watched.effects import LogitScale

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch.nn import Embedding
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Keywords, Output, Site
    from attnctl.models.huggingface.family_traits import Traits
    from attnctl.models.huggingface.tokenizer import Pieces


def classes_of_network(network: PreTrainedModel) -> Mapping[int, str]:
    """Return id → name of the classes, if the network chooses one class for a whole text or picture; else {}."""
    return labels_of_network(network) if scale_of_labels(network) == "softmax" else {}


def labels_of_network(network: PreTrainedModel) -> Mapping[int, str]:
    """Return id → name of what a network puts out for a whole text or picture: classes, labels, numbers; else {}."""
    config: Any = network.config
    return config.id2label if is_classifier(network) and not lacks_head(network) else {}


def is_classifier(network: PreTrainedModel) -> bool:
    """Return whether a network is made to put out labels for a whole text or picture."""
    return re.search("For(Sequence|Image)Classification", type(network).__name__) is not None


def scale_of_labels(network: PreTrainedModel) -> LogitScale:
    """Return how a network's logits become probabilities, as in its loss: regression has none."""
    config: Any = network.config
    if is_classifier(network) and (config.num_labels == 1 or config.problem_type == "regression"):
        return "number"
    return "sigmoid" if is_classifier(network) and config.problem_type == "multi_label_classification" else "softmax"


def input_table(network: PreTrainedModel) -> Embedding | None:
    """Return the table of token embeddings of a network; None if it has none (CANINE hashes characters)."""
    from torch.nn import Embedding

    try:
        table = network.get_input_embeddings()
    except NotImplementedError:
        return None
    return table if isinstance(table, Embedding) else None


EMBEDDED = 4096  # longest text, in tokens, of which a run keeps the embeddings
ALIBI_ONCE = (
    "The bias of distance (ALiBi) is added once, as the default kernel of transformers does: with output_attentions=True or "
    "under eager, its Falcon adds it twice, and computes other weights and logits."
)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _with_heads_off(
    method: Callable[Concatenate[Checkpoint, Parameters], Result],
) -> Callable[Concatenate[Checkpoint, Parameters], Result]:
    """Return a method of a checkpoint that runs with the checkpoint's intervention applied (heads off)."""

    @functools.wraps(method)
    def under_intervention(self: Checkpoint, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        if self.intervention is None:
            return method(self, *arguments, **options)
        from attnctl.models.huggingface.intervention import apply_interventions

        with apply_interventions(self.network, [self.intervention], self.kind):
            return method(self, *arguments, **options)

    return under_intervention


@dataclass(frozen=True)
class ModelInput:
    """The keyword arguments of a network's forward for one text, and the tokens of its rows and columns."""

    tokens: tuple[Token, ...]  # of the queries
    inputs: Keywords
    key_tokens: tuple[Token, ...] | None = None  # of the keys, if they are not the tokens of the queries
    notes: tuple[str, ...] = ()
    source: tuple[Token, ...] | None = None  # of the encoder, if `tokens` are the decoder's
    blanks: Sequence[int] = ()  # positions of the masks that the network fills in
    classes: Mapping[int, str] | None = None  # of this text; None: the classes of the network
    together: int = 0  # tokens that one forward must read: to the end of a picture or of a prefix that sees itself
    type_behind: int = 0  # the token type of tokens after these

    @property
    def has_only_ids(self) -> bool:
        """Return whether every token is a row of the embedding table: no picture and no sound is among them."""
        return not self.inputs.keys() - {"input_ids", "decoder_input_ids", "token_type_ids"}

    def followed_by(self, more: Sequence[int]) -> Keywords:
        """Return the inputs with the ids `more` appended to the decoder's ids; if there is no decoder, to the text's ids."""
        name = "decoder_input_ids" if "decoder_input_ids" in self.inputs else "input_ids"
        if not more:
            return dict(self.inputs)
        ids = self.inputs[name]  # (1, n)
        longer = ids.new_tensor([[*ids[0].tolist(), *more]])  # (1, n + more)
        if name == "decoder_input_ids":
            return {**self.inputs, name: longer}
        return {name: longer, **self.other_inputs(longer.shape[-1])}

    def other_inputs(self, n: int) -> Keywords:
        """Return the inputs other than the ids, cut or padded to a text of `n` tokens."""
        from torch.nn.functional import pad

        shape, inputs = self.inputs["input_ids"].shape, {}
        for name, value in self.inputs.items():
            fill = self.type_behind if name == "token_type_ids" else 0
            if name != "input_ids":  # an input with one number per token is cut or padded
                inputs[name] = pad(value, (0, n - shape[1]), value=fill) if value.shape == shape else value
        return inputs


class Reader:
    """Turn a user's text, picture or sound into tokens, and tokens into the inputs of the network."""

    takes: ClassVar[str] = "text"  # text, picture or sound
    shares_passes: ClassVar[bool] = False  # whether several texts may be padded to one length
    tokenizer: Pieces | None
    name: str  # of the checkpoint

    @property
    def pieces(self) -> Pieces:
        """Return the tokenizer. Raises UsageError if there is no tokenizer."""
        if self.tokenizer is None:
            does = "hears" if self.takes == "sound" else "reads pictures"
            raise UsageError(f"{self.name} {does}: this needs a model that reads texts")
        return self.tokenizer

    @property
    def photograph(self) -> Image | None:
        """Return the picture that the boxes of tokens refer to; None if the text itself names the picture."""
        return None

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the queries, generated tokens included."""
        raise NotImplementedError

    def listed_tokens(self, model: Checkpoint, text: str, names: Sequence[str]) -> tuple[Token, ...]:
        """Return the tokens of these names of the vocabulary. Raises UsageError if the queries are no tokens of a text."""
        raise UsageError(f"names the tokens of a text, and {model.info.name} reads no text alone", option="tokens")

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the network's inputs for these tokens of `text`. Raises AttnctlError if they do not fit."""
        raise NotImplementedError

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return the tokens of the keys; None if they are the tokens of the queries."""
        return None

    def decoder_start(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the first tokens of the decoder of an encoder-decoder; () for other networks."""
        return ()

    def text_as_read(self, text: str) -> str:
        """Return the text that the tokens' positions refer to."""
        return text

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return the part of the model that reads `text`: the model itself, or its tower for pictures.

        Raises UsageError for a picture or a sound if the model reads none.
        """
        if names_sound(text) and self.takes != "sound":
            raise UsageError(f"{text} is a sound, and {model.info.name} reads no sound: name a model that hears")
        return model

    def with_text_pair(self, model: Checkpoint, text_pair: str) -> Reader:
        """Return the reader of two texts. Raises UsageError if this reader takes only one."""
        why = f"cannot be used with {model.info.name}, which reads one text, or a picture or a sound"
        raise UsageError(why, option="text_pair")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: its network, its reader, and which of its attentions is shown.

    `kind` is self; encoder, decoder or cross for an encoder-decoder; vision for a picture with captions. `target` is the
    text of the decoder; `generate` is how many tokens are generated greedily before the attention is read.
    """

    info: ModelInfo
    network: PreTrainedModel
    reader: Reader
    kind: str
    target: str | None = None
    generate: int = 0
    predict: str | None = None  # as in Stack
    intervention: Intervention | None = None  # as in Stack
    notes: tuple[str, ...] = ()  # about the file, in every run
    file_facts: Mapping[str, str] = field(
        default_factory=dict
    )  # title → what the option check and a card say of a file

    def __repr__(self) -> str:
        return f"Checkpoint {self.info.size_line()}, {self.kind} attention"

    @property
    def pieces(self) -> Pieces:
        """Return the tokenizer. Raises UsageError for a checkpoint that reads only pictures or sounds."""
        return self.reader.pieces

    @property
    def photograph(self) -> Image | None:
        """Return the picture that is read with each text; None without a picture."""
        return self.reader.photograph

    @property
    def limit(self) -> int | None:
        """Return how many tokens the model can read; None if there is no limit, or if it reads pictures or sounds."""
        return None if self.reader.tokenizer is None else self.reader.tokenizer.limit

    @property
    def predicts_words(self) -> bool:
        """Return True: only a run shows whether the network has a head for words."""
        return True

    def predicted_positions(self, tokens: Sequence[Token], text: str, *, causal: bool) -> Sequence[int]:
        """Return the positions at which tokens are predicted: all if the model continues a text, else its blanks."""
        every = range(len(tokens))
        if self.kind in ("decoder", "cross") or causal:
            return every
        read = self.read(text, tokens)
        return every if read.together and self.network.can_generate() else read.blanks

    def with_target(self, target: str) -> Checkpoint:
        """Return this checkpoint with another target text. Raises UsageError if it reads no target, or generates it."""
        if self.kind not in ("decoder", "cross"):
            raise UsageError(
                f"a target is for decoder and cross attention, and {self.info.name} shows {self.kind} attention"
            )
        if self.generate:
            raise UsageError(f"a target cannot be combined with {option_name('generate')}, which generates it")
        return replace(self, target=target)

    def with_cross_attention(self) -> Checkpoint:
        """Return an encoder-decoder that shows cross attention, or the decoder's that holds it; others unchanged."""
        if self.kind != "encoder":
            return self
        from attnctl.models.huggingface.attention_sites import merges_source
        from attnctl.models.huggingface.network import network_info

        kind = "decoder" if merges_source(self.network) else "cross"
        info = network_info(self.network, self.info.name, kind).with_origin_of(self.info)
        return replace(self, kind=kind, info=replace(info, off=self.info.off))

    def contexts_of_heads(self, text: str) -> dict[int, Array]:
        """Return layer → the context of each head at each position, after a gate if there is one: (heads, n, d_v)."""
        from attnctl.models.huggingface.intervention import projected_contexts_kept

        contexts: dict[int, Array] = {}

        def visit(layer: LayerAttention) -> None:
            assert isinstance(layer, ComputedLayer)
            contexts[layer.layer] = layer.forward.context_of_heads

        with projected_contexts_kept(self.network, self.kind, contexts):
            self.run(self.tokenize(text), visit, text)
        return contexts

    @property
    def is_heavy(self) -> bool:
        """Return True: a forward uses every core."""
        return True

    def names_by_id(self) -> Mapping[int, str]:
        """Return id → name of the tokenizer's pieces, without those that were added to its vocabulary."""
        tokenizer = self.pieces.tokenizer
        added = set(tokenizer.get_added_tokens_decoder())
        ids = (number for number in range(tokenizer.get_vocab_size()) if number not in added)
        return {number: tokenizer.id_to_token(number) or str(number) for number in ids}

    @_with_heads_off
    def listed_tokens(self, text: str, names: Sequence[str]) -> tuple[Token, ...]:
        """Return the tokens of these names, with their places in the text, and with the generated tokens behind them.

        Raises AttnctlError for a name that is not one token, UsageError if the model reads no text alone.
        """
        return self.reader.listed_tokens(self, text, names)

    def with_text_pair(self, text_pair: str) -> Checkpoint:
        """Return this checkpoint with `text_pair` read after each text. Raises UsageError if it reads no texts."""
        return replace(self, reader=self.reader.with_text_pair(self, text_pair))

    def model_for(self, text: str) -> Checkpoint:
        """Return the part of the model that reads `text`: the model itself, or its tower for pictures.

        Raises UsageError for a picture or a sound if the model reads texts.
        """
        return self.reader.model_for(self, text)

    def text_as_read(self, text: str) -> str:
        """Return the text that the tokens' positions refer to: `text`, or both texts if the model reads a pair."""
        return self.reader.text_as_read(text)

    @property
    def classes(self) -> Mapping[int, str]:
        """Return the classes by id, if the network chooses one class for a whole text or picture; else {}."""
        return classes_of_network(self.network)

    @_with_heads_off
    def tokenize(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of the queries: of the text with the generated ones, or of the decoder."""
        return self.reader.tokenize(self, text)

    def read(self, text: str, tokens: Sequence[Token]) -> ModelInput:
        """Return the network's inputs for these tokens of `text`. Raises AttnctlError if the network cannot read them."""
        return self.reader.read(self, text, tuple(tokens))

    def inputs_of(self, text: str) -> tuple[Keywords, tuple[str, ...]]:
        """Return the network's inputs for a text, and the names of its tokens; no names for an encoder-decoder.

        Raises AttnctlError if the network cannot read the text.
        """
        tokens = self.tokenize(text)
        self.check_tokens(tokens)
        model_input = self.read(text, tokens)
        reads_two = self.network.config.is_encoder_decoder
        return model_input.inputs, () if reads_two else tuple(token.text for token in model_input.tokens)

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return the tokens of the keys; None if they are `tokens`. They differ in cross attention, for example."""
        return self.reader.key_tokens(self, text, tokens)

    @_with_heads_off
    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """Run the tokens through the network; call `visit` with the attention of each layer, without the batch axis.

        If `visit` raises StopForward, the run ends without a prediction. Raises AttnctlError if the architecture uses an
        attention that attnctl does not know.

        """
        from attnctl.models.huggingface.attention_call import call_of_text, check_finite
        from attnctl.models.huggingface.attention_sites import may_repeat_layers
        from attnctl.models.huggingface.family_traits import Traits

        model_input = self.read(text, tokens)
        source = model_input.source
        key_tokens, embeddings = model_input.key_tokens, None
        inputs = self._forward_inputs(model_input)
        traits = Traits(self.network, self.kind)
        runs_to_end, stopped = may_repeat_layers(self.network, self.kind), False  # to refuse a second attention
        own: tuple[Call, Array] | None = None  # the last call that the network computed itself, and its context

        def keep_own(site: Site, call: Call, context: Array, weights: Array | None) -> None:
            nonlocal own
            own = call, context[0].transpose(0, 1)  # (heads, n_q, d_v)

        def visit_call(site: Site, call: Call) -> Array | None:
            nonlocal stopped, key_tokens
            output_matrix = traits.see_call(site, call)
            name = f"layer {site.layer} of {self.info.name}"
            if call.n_q != len(tokens):
                raise AttnctlError(_other_queries_sentence(name, call.n_q, len(tokens)))
            check_finite(call, name)
            key_tokens = tokens_of_call_keys(call.keys.shape[-2], tokens, source, key_tokens, name)
            context = own[1] if own is not None and own[0] is call else None  # not after an intervention
            layer = ComputedLayer.of_call(
                site.layer, call_of_text(call), output_matrix=output_matrix, own_context=context
            )
            if not stopped:
                try:
                    visit(layer)
                except StopForward:
                    stopped = True
            if stopped and not runs_to_end:
                raise StopForward
            context = layer.forward.context_so_far
            return None if context is None else context[None]

        with running_network(self.network, len(tokens) + len(source or ()), self.info.name):
            output, silent, weights = self._run_forward(inputs, visit_call, keep_own, traits)
            with suppress(StopForward):
                for number, layer_weights in weights.items():
                    n_q, n_k = layer_weights.shape[1:]
                    name = f"layer {number} of {self.info.name}"
                    if n_q != len(tokens):
                        raise AttnctlError(_other_queries_sentence(name, n_q, len(tokens)))
                    key_tokens = tokens_of_call_keys(n_k, tokens, source, key_tokens, name)
                    visit(layer_of_weights(number, layer_weights))
            table = input_table(self.network) if model_input.has_only_ids else None
            if len(tokens) <= EMBEDDED and table is not None:
                ids = inputs["input_ids" if source is None else "decoder_input_ids"]
                embeddings = as_numpy(table(ids)[0])  # (n, d_model)
        subject = Subject(text, model_input.tokens, self.info, key_tokens)
        result = Run(subject, embeddings, gates=traits.gates_of_text(0, len(tokens)))
        self.finish_run(result, model_input, traits, silent, output, weights)
        return result

    def run_with_zeroed_values(
        self,
        tokens: Sequence[Token],
        take: Callable[[LayerAttention, Floats, Iterator[Floats]], None],
        text: str = "",
        layers: Sequence[int] | None = None,
    ) -> Run:
        """Run the tokens, and each block again with the value of one key after another set to zero in every head.

        Call `take` for each of `layers` (None: all) with its attention, the output of its block (n, d_model), and an
        iterator over the outputs with zeroed values (keys, n, d_model), a few keys at a time.

        Raises AttnctlError for an architecture whose blocks give another result when they are run again.
        """
        from attnctl.models.huggingface.block_recorder import BlockRecorder

        if self.puts_out_weights:
            name = type(self.network).__name__
            raise AttnctlError(
                f"{name} computes its attention in code of its own: its layers cannot be run again with other values"
            )
        blocks, layers_run = BlockRecorder(self.network, self.kind, self.intervention), list[LayerAttention]()
        with blocks.recording():
            run = self.run(tokens, layers_run.append, text)
        with running_network(self.network, len(tokens), self.info.name):
            for layer in layers_run:
                if layers is None or layer.layer in layers:
                    blocks.check_layer(layer)
                    take(layer, blocks.output_of_layer(layer), blocks.outputs_with_zeroed_values(layer))
        return run

    def _run_forward(
        self,
        inputs: dict[str, object],
        visit: Callable[[Site, Call], Array | None],
        keep_own: Callable[[Site, Call, Array, Array | None], None],
        traits: Traits,
    ) -> tuple[Output, dict[Site, str], dict[int, Array]]:
        """Run one forward and call `visit` with each call of attention, after `keep_own` with the network's own result.

        Return the output (None if `visit` stopped the forward), the modules that attend without the interface, and, for a
        network outside the interface, the weights of each layer.
        """
        from attnctl.models.huggingface.attention_interface import WatchOptions, watch_attention
        from attnctl.models.huggingface.attention_sites import model_follows_interface

        if not model_follows_interface(self.network):
            with traits.watch():
                self._replace_modules(inputs)
                output = self.network(**inputs, output_attentions=True)
            return output, {}, self._own_weights(output)
        output = None
        options = WatchOptions(own=keep_own, after=traits.see_context)
        watch = watch_attention(self.network, visit, self._of_own_kind, options)
        # traits are told the end of a module before StopForward
        with suppress(StopForward), traits.watch(), watch as session:
            output = self.network(**inputs)
        silent = {site: name for site, name in session.silent.items() if site.kind == self.kind}
        if not any(site.kind == self.kind for site in session.called):
            raise AttnctlError(nothing_seen_sentence(type(self.network).__name__, self.kind, silent))
        return output, silent, {}

    def finish_run(
        self,
        run: Run,
        model_input: ModelInput,
        traits: Traits,
        silent: dict[Site, str],
        output: Output,
        weights: dict[int, Array] | None = None,
    ) -> None:
        """Add to a run the description of the model, the predictions and the notes."""
        model = traits.described_model(self.info, output is not None)
        notes = model_input.notes
        if weights:
            square = [w for w in weights.values() if w.shape[-1] == w.shape[-2] > 1]
            ahead = any(np.triu(np.abs(w[0]), 1).any() for w in square)
            heads = {len(part) for part in weights.values()}  # ConvBERT has fewer than its configuration says
            model = replace(model, causal=bool(square) and not ahead)
            if heads != {model.n_heads} and len(heads) == 1:
                model = replace(model, n_heads=heads.pop(), n_kv_heads=None)
            notes += (
                f"{type(self.network).__name__} computes its attention in code of its own: only the weights can be shown, "
                "not the queries, keys, values and scores.",
            )
            if adds_alibi_in_mask(self.network):
                notes += (ALIBI_ONCE,)
        run.predictions = self._predicted_tokens(model_input, output, bool(model.causal))
        reported = (*self.notes, *file_report(self.network).notes)
        notes += (*traits.reader_notes(silent, run.gates), *reported, *version_notes())
        if self.intervention is not None:
            notes += (self.intervention.note,)
        run.subject = replace(run.subject, model=model, notes=notes)

    @_with_heads_off
    def own_attention(
        self, tokens: Sequence[Token], text: str, shapes: Mapping[int, tuple[int, ...]]
    ) -> tuple[dict[int, Array], dict[int, Array]]:
        """Return layer → weights (heads, n_q, n_k) and layer → context (heads, n_q, d_v) of the model's own eager functions.

        For a network outside the interface, return the weights that it multiplies its values with, found by the `shapes`
        (n_q, n_k) of its layers, and no contexts. Memory grows with all layers.
        """
        from attnctl.models.huggingface.attention_interface import WatchOptions, attention_set_to, watch_attention
        from attnctl.models.huggingface.put_out import weights_multiplied

        model_input = self.read(text, tokens)
        inputs = self._forward_inputs(model_input)
        weights: dict[int, Array] = {}
        contexts: dict[int, Array] = {}

        def keep_own(site: Site, call: Call, context: Array, layer_weights: Array | None) -> None:
            contexts[site.layer] = as_numpy(context[0].transpose(0, 1))  # (heads, n_q, d_v)
            if layer_weights is not None:
                weights[site.layer] = as_numpy(layer_weights[0])  # (heads, n_q, n_k)

        total = len(tokens) + len(model_input.source or ())
        with running_network(self.network, total, self.info.name), attention_set_to(self.network, "eager"):
            self._replace_modules(inputs)
            own_code = self.puts_out_weights  # under eager, where GPT-2 may have code of its own
            if own_code:
                watch: Any = weights_multiplied(self.network, self.kind, shapes)
            else:
                watch = watch_attention(self.network, lambda *_: None, self._of_own_kind, WatchOptions(own=keep_own))
            with watch as multiplied:
                self.network(**inputs)
        return (multiplied, contexts) if own_code else (weights, contexts)

    @property
    def puts_out_weights(self) -> bool:
        """Return whether the network computes attention in its own code, so that only the weights it returns are known."""
        from attnctl.models.huggingface.attention_sites import model_follows_interface

        return not model_follows_interface(self.network)

    def check_tokens(self, tokens: Sequence[Token]) -> None:
        """Raise AttnctlError for no tokens, for more than the network reads, or for ids without an embedding."""
        if not tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        if self.limit is not None and len(tokens) > self.limit:
            raise AttnctlError(f"{len(tokens):,} tokens are more than {self.info.name} reads: {self.limit:,}")
        rows = self.embedding_rows
        for token in tokens:
            if rows is not None and token.id is not None and token.id >= rows:
                raise AttnctlError(
                    f"the tokenizer of {self.info.name} gives {token.text!r} the id {token.id:,}, but its network has "
                    f"embeddings for {rows:,} ids: they do not belong together"
                )

    @property
    def embedding_rows(self) -> int | None:
        """Return how many ids the network has embeddings for; None if it has no embedding table."""
        table = input_table(self.network)
        return None if table is None else table.num_embeddings

    def _forward_inputs(self, model_input: ModelInput) -> Keywords:
        """Return the keyword arguments of the forward; if the last token's logits are enough, they ask for no others."""
        inputs = dict(model_input.inputs)
        if "logits_to_keep" in self.forward_keywords and self.predict is None and not model_input.blanks:
            inputs["logits_to_keep"] = 1
        if "use_cache" in self.forward_keywords:
            inputs["use_cache"] = False
        return inputs

    @cached_property
    def forward_keywords(self) -> frozenset[str]:
        """Return the keywords of the network's forward, without logits_to_keep if that would omit more than logits."""
        import inspect

        names = frozenset(inspect.signature(self.network.forward).parameters)
        shares = config_value(self.network.config.get_text_config(), "num_kv_shared_layers")
        # BioGPT's picks the last token after its head
        classifies = "ForSequenceClassification" in type(self.network).__name__
        return names - {"logits_to_keep"} if shares or classifies else names

    def _of_own_kind(self, site: Site) -> bool:
        """Return whether a call of attention is of the kind that is shown: self, encoder, decoder or cross."""
        return site.kind == self.kind

    def token_ids(self, tokens: Sequence[Token]) -> Array:
        """Return the ids of tokens as the network takes them: (1, n), on its device."""
        import torch

        return torch.tensor([[token.id for token in tokens]], device=device_of_inputs(self.network))  # (1, n)

    def _replace_modules(self, inputs: dict[str, object]) -> None:
        """Run BigBird once, so that it replaces its modules for a short text before they are watched."""
        if getattr(self.network.base_model, "attention_type", None) == "block_sparse":
            self.network(**inputs)

    def _own_weights(self, output: Output) -> dict[int, Array]:
        from attnctl.models.huggingface.put_out import weights_put_out

        weights = weights_put_out(self.network, output, self.kind, self.info.name)
        if not weights:
            raise AttnctlError(nothing_seen_sentence(type(self.network).__name__, self.kind, {}))
        return {layer: as_numpy(part[0]) for layer, part in weights.items()}  # (heads, n, n)

    def _predicted_tokens(self, model_input: ModelInput, output: Output, causal: bool) -> tuple[Prediction, ...]:
        """Return the likeliest classes, or tokens: after a decoder's last token, or at an encoder's masks."""
        import torch

        from attnctl.models.huggingface.attention_call import all_finite

        tokens, classes = model_input.tokens, self.classes if model_input.classes is None else model_input.classes
        # with a picture whose tokens see each other
        causal = causal or bool(model_input.together and self.network.can_generate())
        logits = output_value(output, "logits_per_image" if self.kind == "vision" else "logits")
        if logits is not None and classes:
            shares = logits[0].float().softmax(-1)  # (classes,)
            values, ids = shares.topk(min(MOST_LIKELY, len(shares)))
            position = len(tokens) - 1 if causal else 0
            likeliest = zip(values.tolist(), ids.tolist(), strict=True)
            return tuple(Prediction(position, str(classes[i]), i, share, True, len(shares)) for share, i in likeliest)
        vocabulary = config_value(self.network.config.get_text_config(), "vocab_size") or 0
        writes = self.reader.tokenizer is not None and self.kind not in ("encoder", "cross")
        if logits is None or logits.ndim != 3 or logits.shape[-1] < vocabulary or not writes:
            return ()
        causal = self.kind == "decoder" or causal
        if lacks_head(self.network) or not all_finite(logits):
            return ()  # the head is not in the file, or gives NaN
        predictions = []
        for position in predicted_places(tokens, self.predict, model_input.blanks, causal):
            share = torch.softmax(logits[0, position - len(tokens)].float(), -1)  # (vocabulary,)
            values, ids = share.topk(MOST_LIKELY)
            for value, number in zip(values.tolist(), ids.tolist(), strict=True):
                text = self.pieces.tokenizer.decode([number], skip_special_tokens=False)
                predictions.append(Prediction(position, text.strip() or text, number, value, among=len(share)))
        return tuple(predictions)


def nothing_seen_sentence(name: str, kind: str, silent: dict[Site, str]) -> str:
    """Return a sentence that says why no attention of this kind can be shown."""
    attention = "attention" if kind == "self" else f"{kind} attention"
    if silent:
        hint = f": see {option_name('attention', 'decoder')}, or cross" if kind == "encoder" else ""
        return f"{name} has no {attention} that can be shown: {next(iter(silent.values()))} attends in code of its own{hint}"
    return f"{name} has no softmax {attention} that attnctl can see: there are no weights to show"


def tokens_of_call_keys(
    n_k: int, tokens: Sequence[Token], source: Sequence[Token] | None, key_tokens: tuple[Token, ...] | None, layer: str
) -> tuple[Token, ...] | None:
    """Return the tokens of a layer's n_k keys; None if they are the tokens of the queries.

    Raises AttnctlError, naming the `layer` ("layer 2 of tiny-gpt"), for keys that belong to no token.
    """
    n_tokens = len(tokens if key_tokens is None else key_tokens)
    if n_k == n_tokens:
        return key_tokens
    if source is not None and n_k == len(tokens) + len(source):  # decoder and cross attention in one
        return (*tokens, *source)
    raise AttnctlError(other_keys_sentence(layer, n_k, n_tokens))


def other_keys_sentence(layer: str, n_k: int, n_tokens: int) -> str:
    """Return a sentence that says why a layer with n_k keys for n_tokens tokens cannot be shown, and what to do."""
    return (
        f"{layer} has {n_k} keys for {n_tokens} tokens: its architecture adds or merges keys, which belong to no token. "
        "A shorter text may have no such keys; in Python, attnctl.capture records them"
    )


def _other_queries_sentence(layer: str, n_q: int, n_tokens: int) -> str:
    """Return a sentence that says why a layer with n_q queries cannot be shown, and what to do."""
    verb = "pools" if n_q < n_tokens else "adds"
    return (
        f"{layer} has {n_q} queries for {n_tokens} tokens: its architecture {verb} queries, which belong to no token. "
        "In Python, attnctl.capture records them"
    )
