"""Hugging Face checkpoints: any architecture of transformers, read layer by layer through its own code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.files import names_sound
from attnctl.interventions import Intervention
from attnctl.layer import LayerAttention, layer_of_weights
from attnctl.layer.computed import ComputedLayer
from attnctl.models.builtin.stack import MOST_LIKELY, predicted_places
from attnctl.models.huggingface.network import device_of_inputs, running_network, version_notes
from attnctl.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Prediction, Run, StopForward

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output, Site
    from attnctl.models.huggingface.family_traits import Traits
    from attnctl.models.huggingface.tokenizer import Pieces


def classes_of_network(network: PreTrainedModel) -> Mapping[int, str]:
    """Return id → name of the classes, of which a network chooses one for the whole text or picture; else empty."""
    config: Any = network.config
    gives_class = re.search("For(Sequence|Image)Classification", type(network).__name__)
    one_of_several = config.num_labels > 1 and config.problem_type in (None, "single_label_classification")
    has_head = not getattr(network, "attnctl_headless", False)
    return config.id2label if gives_class and one_of_several and has_head else {}


def input_table(network: PreTrainedModel) -> Any:
    """Return the table of embeddings of a network's tokens; None for one without it (CANINE hashes characters)."""
    try:
        return network.get_input_embeddings()
    except NotImplementedError:
        return None


EMBEDDED = 4096  # tokens up to which the embeddings are kept


Method = TypeVar("Method", bound=Callable[..., Any])


def _with_heads_off(method: Method) -> Method:
    """Return a method of a checkpoint that runs with the heads off that are off."""

    @functools.wraps(method)
    def under_intervention(self: Checkpoint, *arguments: Any, **options: Any) -> Any:
        if self.intervention is None:
            return method(self, *arguments, **options)
        from attnctl.models.huggingface.intervention import apply_interventions

        with apply_interventions(self.network, [self.intervention], self.kind):
            return method(self, *arguments, **options)

    return cast(Method, under_intervention)


@dataclass(frozen=True)
class ModelInput:
    """What a network is called with for one text, and what its rows and columns stand for."""

    tokens: tuple[Token, ...]  # of the queries
    inputs: Mapping[str, Any]  # keywords of the network's forward
    key_tokens: tuple[Token, ...] | None = None  # of the keys, where these are not the tokens alone
    notes: tuple[str, ...] = ()
    source: tuple[Token, ...] | None = None  # what an encoder reads for the decoder whose tokens these are
    blanks: Sequence[int] = ()  # tokens that the network is to fill in
    classes: Mapping[int, str] | None = None  # those of this text; None: the network's own
    together: int = 0  # how many tokens one forward must read: up to the last one of a picture, or that is seen ahead
    type_behind: int = 0  # the token type of what follows these tokens

    @property
    def has_ids_alone(self) -> bool:
        """Whether every token is a row of the table of embeddings: no picture and no sound stands among them."""
        return not self.inputs.keys() - {"input_ids", "decoder_input_ids", "token_type_ids"}

    def followed_by(self, more: Sequence[int]) -> dict[str, Any]:
        """Return the inputs with these ids behind those that the network continues: the decoder's, or the text's."""
        name = "decoder_input_ids" if "decoder_input_ids" in self.inputs else "input_ids"
        if not more:
            return dict(self.inputs)
        ids = self.inputs[name]  # (1, n)
        longer = ids.new_tensor([[*ids[0].tolist(), *more]])  # (1, n + more)
        if name == "decoder_input_ids":
            return {**self.inputs, name: longer}
        return {name: longer, **self.beside(longer.shape[-1])}

    def beside(self, n: int) -> dict[str, Any]:
        """Return what the network is given beside the ids of a text's first `n` tokens, which may be more than it has."""
        from torch.nn.functional import pad

        shape, found = self.inputs["input_ids"].shape, {}
        for name, value in self.inputs.items():
            behind = self.type_behind if name == "token_type_ids" else 0
            if name != "input_ids":  # one number a token is cut or filled up
                found[name] = pad(value, (0, n - shape[1]), value=behind) if value.shape == shape else value
        return found


class Reader:
    """Turn what a user gives in a text's place into tokens, and these into what the network is called with."""

    takes: ClassVar[str] = "text"  # what a user gives: a text, a picture, a sound
    shares_passes: ClassVar[bool] = False  # whether several texts may be padded to one length
    tokenizer: Pieces | None
    name: str  # of the checkpoint

    @property
    def pieces(self) -> Pieces:
        """The tokenizer. Raises UsageError for a checkpoint that has none."""
        if self.tokenizer is None:
            does = "hears" if self.takes == "sound" else "reads pictures"
            raise UsageError(f"{self.name} {does}, and this takes a model of text")
        return self.tokenizer

    @property
    def photograph(self) -> Image | None:
        """The picture in which tokens have boxes, where it is not the text itself that names it."""
        return None

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens whose queries are read, generated ones included."""
        raise NotImplementedError

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return what the network is called with for these tokens of `text`. Raises AttnctlError where they do not fit."""
        raise NotImplementedError

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return the tokens of the keys where these are not the queries' own."""
        return None

    def decoder_start(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens that the decoder of an encoder-decoder begins with; () for other networks."""
        return ()

    def text_as_read(self, text: str) -> str:
        """Return the text in which the tokens have their places."""
        return text

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return what of the model reads `text`: itself, or its tower for pictures.

        Raises UsageError for a picture or a sound where none is read.
        """
        if names_sound(text) and self.takes != "sound":
            raise UsageError(f"{text} is a sound, and {model.info.name} reads no sound: name a model that hears")
        return model

    def with_text_pair(self, model: Checkpoint, text_pair: str) -> Reader:
        """Return the reader of two texts. Raises UsageError where one is read."""
        why = f"does not go with {model.info.name}, which reads one text, with a picture or a sound beside it"
        raise UsageError(why, option="text_pair")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: its weights, how it reads what a user gives it, and which of its attentions is read.

    `kind` is self, for encoder-decoders encoder, decoder or cross, for a picture beside captions vision. `target` is the
    decoder's text, `generate` how many tokens are added greedily before the attention over all of them is read.
    """

    info: ModelInfo
    network: PreTrainedModel
    reader: Reader
    kind: str
    target: str | None = None
    generate: int = 0
    predict: str | None = None  # as of Stack
    intervention: Intervention | None = None  # as of Stack

    def __repr__(self) -> str:
        return f"Checkpoint {self.info.size_line()}, {self.kind} attention"

    @property
    def pieces(self) -> Pieces:
        """The tokenizer. Raises UsageError for a checkpoint that is given pictures or sounds alone."""
        return self.reader.pieces

    @property
    def photograph(self) -> Image | None:
        """The picture beside which each text is read; None without one."""
        return self.reader.photograph

    @property
    def limit(self) -> int | None:
        """How many tokens the model reads; None: any number, or it is given pictures or sounds."""
        return None if self.reader.tokenizer is None else self.reader.tokenizer.limit

    @property
    def predicts_words(self) -> bool:
        """True: a run tells whether there is a head."""
        return True

    def with_target(self, target: str) -> Checkpoint:
        """Return the same with another text of its decoder. Raises UsageError where that is not read, or generated."""
        if self.kind not in ("decoder", "cross"):
            raise UsageError(
                f"a target is for decoder and cross attention, and {self.info.name} shows {self.kind} attention"
            )
        if self.generate:
            raise UsageError(f"a target does not go with {option_name('generate')}, which makes it")
        return replace(self, target=target)

    def with_text_pair(self, text_pair: str) -> Checkpoint:
        """Return the same, reading `text_pair` behind each text. Raises UsageError where texts are not read."""
        return replace(self, reader=self.reader.with_text_pair(self, text_pair))

    def model_for(self, text: str) -> Checkpoint:
        """Return what of the model reads `text`: itself, or its tower for pictures.

        Raises UsageError for a picture or a sound where a text is read.
        """
        return self.reader.model_for(self, text)

    def text_as_read(self, text: str) -> str:
        """Return the text in which the tokens have their places: `text`, and where the model reads a pair both."""
        return self.reader.text_as_read(text)

    @property
    def classes(self) -> Mapping[int, str]:
        """The classes by id, of which the network chooses one for the whole text or picture; else empty."""
        return classes_of_network(self.network)

    @_with_heads_off
    def tokenize(self, text: str) -> tuple[Token, ...]:
        """Return the tokens whose queries are read: generated ones at their end, or those of the decoder."""
        return self.reader.tokenize(self, text)

    def read(self, text: str, tokens: Sequence[Token]) -> ModelInput:
        """Return what the network is given for these tokens of `text`. Raises AttnctlError where it cannot read them."""
        return self.reader.read(self, text, tuple(tokens))

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return what the keys stand for where these are not the `tokens` alone, as in cross attention."""
        return self.reader.key_tokens(self, text, tokens)

    @_with_heads_off
    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """Run the tokens through the network; `visit` sees each layer's attention, without the batch.

        Where `visit` raises StopForward, the run ends, and predicts nothing.
        Raises AttnctlError where the architecture hands over what attnctl does not know.
        """
        from attnctl.models.huggingface.attention_call import call_of_text, check_finite
        from attnctl.models.huggingface.attention_sites import may_repeat_layers
        from attnctl.models.huggingface.family_traits import Traits

        given = self.read(text, tokens)
        source = given.source
        ran = Run(given.tokens, key_tokens=given.key_tokens)
        inputs = self._forward_inputs(given)
        traits = Traits(self.network, self.kind)
        to_its_end, seen_enough = may_repeat_layers(self.network, self.kind), False  # a second attention is refused

        def see_call_of_run(site: Site, call: Call) -> Array | None:
            output_matrix = traits.see_call(site, call)
            if call.n_q != len(tokens):
                raise AttnctlError(
                    f"layer {site.layer} of {self.info.name} has {call.n_q} queries for {len(tokens)} "
                    "tokens: this architecture has queries of its own, which have no tokens to stand for"
                )
            check_finite(call, f"layer {site.layer} of {self.info.name}")
            ran.key_tokens = tokens_of_call_keys(call.keys.shape[-2], tokens, source, ran.key_tokens)
            layer = ComputedLayer.of_call(site.layer, call_of_text(call), output_matrix=output_matrix)
            nonlocal seen_enough
            if not seen_enough:
                try:
                    visit(layer)
                except StopForward:
                    seen_enough = True
            if seen_enough and not to_its_end:
                raise StopForward
            context = layer.forward.context_so_far
            return None if context is None else context[None]

        with running_network(self.network, len(tokens) + len(source or ()), self.info.name):
            output, silent, weights = self._run_forward(inputs, see_call_of_run, traits)
            with suppress(StopForward):
                for number, stored in weights.items():
                    if stored.shape[1] != len(tokens):
                        why = "pools them" if stored.shape[1] < len(tokens) else "has others besides"
                        raise AttnctlError(
                            f"layer {number} of {self.info.name} has {stored.shape[1]} queries for {len(tokens)} tokens: "
                            f"this architecture {why}, and they have no tokens to stand for"
                        )
                    ran.key_tokens = tokens_of_call_keys(stored.shape[2], tokens, source, ran.key_tokens)
                    visit(layer_of_weights(number, stored))
            table: Any = input_table(self.network) if given.has_ids_alone else None
            if len(tokens) <= EMBEDDED and hasattr(table, "num_embeddings"):
                ids = inputs["input_ids" if source is None else "decoder_input_ids"]
                ran.embeddings = as_numpy(table(ids)[0])  # (n, d_model)
        ran.gates = traits.gates_of_text(0, len(tokens))
        self.finish_run(ran, given, traits, silent, output, weights)
        return ran

    def run_with_zeroed_values(
        self,
        tokens: Sequence[Token],
        take: Callable[[LayerAttention, Floats, Iterator[Floats]], None],
        text: str = "",
        layers: Sequence[int] | None = None,
    ) -> Run:
        """The tokens through the network; `take` sees each of `layers` (None: all) with what its block puts out, and that
        again with the value of one key after another zeroed in every head: (n, d_model), and (keys, n, d_model), some keys
        at a time.

        Raises AttnctlError for an architecture whose blocks do not come to the same when they are run again.
        """
        from attnctl.models.huggingface.block_recorder import BlockRecorder

        if self.puts_out_weights:
            name = type(self.network).__name__
            raise AttnctlError(
                f"{name} computes its attention in code of its own: its layers cannot be run again with other values"
            )
        blocks, seen = BlockRecorder(self.network, self.kind, self.intervention), list[LayerAttention]()
        with blocks.recording():
            run = self.run(tokens, seen.append, text)
        with running_network(self.network, len(tokens), self.info.name):
            for layer in seen:
                if layers is None or layer.layer in layers:
                    blocks.check_layer(layer)
                    take(layer, blocks.output_of_layer(layer), blocks.outputs_with_zeroed_values(layer))
        return run

    def _run_forward(
        self, inputs: dict[str, object], seen: Callable[[Site, Call], Array | None], traits: Traits
    ) -> tuple[Output, dict[Site, str], dict[int, Array]]:
        """One forward, its calls shown to `seen`: the output, if it came to an end, who attended unseen, and the weights
        of each layer where the network tells no more than those.
        """
        from attnctl.models.huggingface.attention_interface import WatchOptions, watch_attention
        from attnctl.models.huggingface.attention_sites import model_follows_interface

        if not model_follows_interface(self.network):
            with traits.watch():
                self._take_modules(inputs)
                output = self.network(**inputs, output_attentions=True)
            return output, {}, self._own_weights(output)
        output = None
        wanted = watch_attention(self.network, seen, self._of_own_kind, WatchOptions(after=traits.see_context))
        with suppress(StopForward), traits.watch(), wanted as session:  # traits see a module end before it is left
            output = self.network(**inputs)
        silent = {site: name for site, name in session.silent.items() if site.kind == self.kind}
        if not any(site.kind == self.kind for site in session.seen):
            raise AttnctlError(nothing_seen_sentence(type(self.network).__name__, self.kind, silent))
        return output, silent, {}

    def finish_run(
        self,
        ran: Run,
        given: ModelInput,
        traits: Traits,
        silent: dict[Site, str],
        output: Output,
        weights: dict[int, Array] | None = None,
    ) -> None:
        """Add to a run what it tells beside its attention: the model's description, predictions, notes."""
        ran.model = traits.described_model(self.info, output is not None)
        ran.notes = given.notes
        if weights:
            square = [w for w in weights.values() if w.shape[-1] == w.shape[-2] > 1]
            ahead = any(np.triu(np.abs(w[0]), 1).any() for w in square)
            heads = {len(part) for part in weights.values()}  # ConvBERT has fewer than its configuration says
            ran.model = replace(ran.model, causal=bool(square) and not ahead)
            if heads != {ran.model.n_heads} and len(heads) == 1:
                ran.model = replace(ran.model, n_heads=heads.pop(), n_kv_heads=None)
            ran.notes += (
                f"{type(self.network).__name__} computes its attention in code of its own: only the weights can be shown, "
                "not the queries, keys, values and scores.",
            )
        ran.predictions = self._predicted_tokens(given, output, bool(ran.model.causal))
        ran.notes += (*traits.reader_notes(silent, ran.gates), *version_notes())
        if self.intervention is not None:
            ran.notes += (self.intervention.note,)

    @_with_heads_off
    def own_attention(
        self, tokens: Sequence[Token], text: str, shapes: Mapping[int, tuple[int, ...]]
    ) -> tuple[dict[int, Array], dict[int, Array]]:
        """By the model's own eager functions: layer → weights (heads, n_q, n_k), layer → context (heads, n_q, d_v).

        Of a network outside the interface the weights that it multiplies its values with, where that is seen, by the
        `shapes` (n_q, n_k) of its layers, and no context. Memory grows with all of them.
        """
        from attnctl.models.huggingface.attention_interface import WatchOptions, attention_set_to, watch_attention
        from attnctl.models.huggingface.put_out import weights_multiplied

        given = self.read(text, tokens)
        inputs = self._forward_inputs(given)
        weights: dict[int, Array] = {}
        contexts: dict[int, Array] = {}

        def keep_own(site: Site, context: Array, own: Array | None) -> None:
            contexts[site.layer] = as_numpy(context[0].transpose(0, 1))  # (heads, n_q, d_v)
            if own is not None:
                weights[site.layer] = as_numpy(own[0])  # (heads, n_q, n_k)

        total = len(tokens) + len(given.source or ())
        with running_network(self.network, total, self.info.name), attention_set_to(self.network, "eager"):
            self._take_modules(inputs)
            own_code = self.puts_out_weights  # under eager, where GPT-2 may have code of its own
            if own_code:
                watched: Any = weights_multiplied(self.network, self.kind, shapes)
            else:
                watched = watch_attention(self.network, lambda *_: None, self._of_own_kind, WatchOptions(own=keep_own))
            with watched as found:
                self.network(**inputs)
        return (found, contexts) if own_code else (weights, contexts)

    @property
    def puts_out_weights(self) -> bool:
        """Whether the weights are those that the network itself puts out, in code of its own."""
        from attnctl.models.huggingface.attention_sites import model_follows_interface

        return not model_follows_interface(self.network)

    def check_tokens(self, tokens: Sequence[Token]) -> None:
        """Raise AttnctlError for no tokens, more than the network reads, or ids that it has no embeddings for."""
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
        """How many ids the network has embeddings for; None for one that has no table of them."""
        return getattr(input_table(self.network), "num_embeddings", None)

    def _forward_inputs(self, given: ModelInput) -> dict[str, Any]:
        """Return what the network is called with; of a decoder's logits only those of the last token are asked for."""
        inputs = dict(given.inputs)
        if "logits_to_keep" in self.forward_keywords and self.predict is None and not given.blanks:
            inputs["logits_to_keep"] = 1
        if "use_cache" in self.forward_keywords:
            inputs["use_cache"] = False
        return inputs

    @cached_property
    def forward_keywords(self) -> frozenset[str]:
        """The keywords of the network's forward; without logits_to_keep where more than logits would then be left out."""
        import inspect

        names = frozenset(inspect.signature(self.network.forward).parameters)
        shares = getattr(self.network.config.get_text_config(), "num_kv_shared_layers", None)
        classifies = (
            "ForSequenceClassification" in type(self.network).__name__
        )  # BioGPT's picks the last token afterwards
        return names - {"logits_to_keep"} if shares or classifies else names

    def _of_own_kind(self, site: Site) -> bool:
        """Whether a call of attention is of the kind that is shown: self, encoder, decoder or cross."""
        return site.kind == self.kind

    def token_ids(self, tokens: Sequence[Token]) -> Array:
        """The ids of tokens as the network takes them → (1, n), on its device."""
        import torch

        return torch.tensor([[token.id for token in tokens]], device=device_of_inputs(self.network))  # (1, n)

    def _take_modules(self, inputs: dict[str, object]) -> None:
        """Let BigBird take the other modules that it has for a short text, which are then to be listened to."""
        if getattr(self.network.base_model, "attention_type", None) == "block_sparse":
            self.network(**inputs)

    def _own_weights(self, output: Output) -> dict[int, Array]:
        from attnctl.models.huggingface.put_out import weights_put_out

        found = weights_put_out(self.network, output, self.kind, self.info.name)
        if not found:
            raise AttnctlError(nothing_seen_sentence(type(self.network).__name__, self.kind, {}))
        return {layer: as_numpy(part[0]) for layer, part in found.items()}  # (heads, n, n)

    def _predicted_tokens(self, given: ModelInput, output: Output, causal: bool) -> tuple[Prediction, ...]:
        """Return the likeliest tokens after the last one of a decoder, or at an encoder's blanks; the likeliest classes."""
        import torch

        tokens, classes = given.tokens, self.classes if given.classes is None else given.classes
        causal = causal or bool(given.together and self.network.can_generate())  # beside a picture that is seen ahead
        logits = getattr(output, "logits_per_image" if self.kind == "vision" else "logits", None)
        if logits is not None and classes:
            shares = logits[0].float().softmax(-1)  # (classes,)
            values, ids = shares.topk(min(MOST_LIKELY, len(shares)))
            at = len(tokens) - 1 if causal else 0
            likeliest = zip(values.tolist(), ids.tolist(), strict=True)
            return tuple(Prediction(at, str(classes[i]), i, share, True) for share, i in likeliest)
        vocabulary = getattr(self.network.config.get_text_config(), "vocab_size", 0)
        if logits is None or logits.ndim != 3 or logits.shape[-1] < vocabulary or self.kind in ("encoder", "cross"):
            return ()
        causal = self.kind == "decoder" or causal
        if getattr(self.network, "attnctl_headless", False) or not bool(torch.isfinite(logits).all()):
            return ()  # of weights that are not in the file, or are no numbers
        found = []
        for at in predicted_places(tokens, self.predict, given.blanks, causal):
            share = torch.softmax(logits[0, at - len(tokens)].float(), -1)  # (vocabulary,)
            values, ids = share.topk(MOST_LIKELY)
            for value, number in zip(values.tolist(), ids.tolist(), strict=True):
                text = self.pieces.tokenizer.decode([number], skip_special_tokens=False)
                found.append(Prediction(at, text.strip() or text, number, value))
        return tuple(found)


def nothing_seen_sentence(name: str, kind: str, silent: dict[Site, str]) -> str:
    """Why nothing of a kind of attention was seen."""
    what = "attention" if kind == "self" else f"{kind} attention"
    if silent:
        other = f": see {option_name('attention', 'decoder')}, or cross" if kind == "encoder" else ""
        return (
            f"{name} has no {what} that can be shown: {next(iter(silent.values()))} attends in code of its own{other}"
        )
    return f"{name} has no softmax {what} that it tells of: there are no weights to show"


def tokens_of_call_keys(
    n_k: int, tokens: Sequence[Token], source: Sequence[Token] | None, known: tuple[Token, ...] | None
) -> tuple[Token, ...] | None:
    """The tokens that n_k keys stand for; None: the queries' own. Raises AttnctlError where they stand for others."""
    if n_k == len(tokens if known is None else known):
        return known
    if source is not None and n_k == len(tokens) + len(source):  # decoder and cross attention in one
        return (*tokens, *source)
    raise AttnctlError(
        f"{n_k} keys for {len(tokens)} tokens: this architecture makes keys of its own, which have no tokens to stand for"
    )
