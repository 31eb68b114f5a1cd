"""Hugging Face checkpoints: any architecture of transformers, read layer by layer through its own code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.interventions import Intervention
from attnctl.layer import LayerAttention, layer_of_weights
from attnctl.layer.computed import ComputedLayer
from attnctl.models.builtin.stack import MOST_LIKELY, predicted_places
from attnctl.models.huggingface.attention_sites import merges_source
from attnctl.models.huggingface.network import device_of_inputs, end_ids, generation_setting, running_network
from attnctl.models.huggingface.tokenizer import Pieces, named_token
from attnctl.text import visible_text
from attnctl.tokens import Token, checked_text
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Note, Prediction, Run, StopForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output, Site
    from attnctl.models.huggingface.family_traits import Traits


# how a text is continued, whatever switches were saved in generation_config: greedily, and the ids alone come back
GREEDY = {
    "do_sample": False, "num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False,
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "output_logits": False,
}  # fmt: skip


def generated_tokens(model: Checkpoint, tokens: Sequence[Token], known: int) -> tuple[Token, ...]:
    """Greedy continuation through the key/value cache; `known` ids of what comes back are not new."""
    import torch

    count = model.generate or 16
    if not hasattr(model.network, "generate") or not model.network.can_generate():
        why = f"needs a network that continues texts, and {type(model.network).__name__} does not"
        raise UsageError(why, option="generate")
    limit = model.pieces.limit
    if limit is not None and model.kind == "self" and len(tokens) + count > limit:
        raise AttnctlError(
            f"{len(tokens):,} tokens and {count:,} new ones are more than {model.info.name} reads: {limit:,}"
        )
    ids, padding = model.token_ids(tokens), generation_setting(model.network, "pad_token_id")  # (1, n)
    start = () if model.kind == "self" else model.decoder_start()
    # a decoder that writes in a language begins with more than one token
    begun: dict[str, Any] = {"decoder_input_ids": model.token_ids(start)} if len(start) > 1 else {}
    if start and model.pieces.target_language is not None:
        begun["decoder_start_token_id"] = start[0].id
    with running_network(model.network, len(tokens), model.info.name):
        made = model.network.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **model.token_types(tokens),
            **model.inputs_beside(len(tokens)),
            **begun,
            max_new_tokens=count,
            **GREEDY,
            pad_token_id=padding if isinstance(padding, int) and padding >= 0 else 0,
        )[0].tolist()
    before = [token.id for token in tokens if token.id is not None] if model.kind == "self" else made[:known]
    return model.pieces.continued_tokens(before, made[known:])


def classes_of_network(network: PreTrainedModel) -> Mapping[int, str]:
    """Id → name of the classes of which a network gives the whole text or picture exactly one; empty where it does not."""
    config: Any = network.config
    gives_class = re.search("For(Sequence|Image)Classification", type(network).__name__)
    one_of_several = config.num_labels > 1 and config.problem_type in (None, "single_label_classification")
    has_head = not getattr(network, "attnctl_headless", False)
    return config.id2label if gives_class and one_of_several and has_head else {}


def input_table(network: PreTrainedModel) -> Any:
    """The embeddings of a network's tokens; None for one that has no such table (CANINE hashes characters)."""
    try:
        return network.get_input_embeddings()
    except NotImplementedError:
        return None


EMBEDDED = 4096  # tokens up to which the embeddings are kept


Method = TypeVar("Method", bound=Callable[..., Any])


def _with_heads_off(method: Method) -> Method:
    """A method of a checkpoint, while it runs the heads that are off are off."""

    @functools.wraps(method)
    def under_intervention(self: Checkpoint, *arguments: Any, **options: Any) -> Any:
        if self.intervention is None:
            return method(self, *arguments, **options)
        from attnctl.models.huggingface.intervention import apply_interventions

        with apply_interventions(self.network, [self.intervention], self.kind):
            return method(self, *arguments, **options)

    return cast(Method, under_intervention)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint opened: its tokenizer, its weights, and which of its attentions is read.

    `kind` is self, or for encoder-decoders encoder, decoder or cross. `target` is the decoder's text, `generate` how many
    tokens are added greedily before the attention over all of them is read.
    """

    info: ModelInfo
    network: PreTrainedModel
    pieces: Pieces
    kind: str
    target: str | None = None
    generate: int = 0
    predict: str | None = None  # as of Stack
    intervention: Intervention | None = None  # as of Stack

    def __repr__(self) -> str:
        return f"Checkpoint {self.info.size_line()}, {self.kind} attention"

    def with_target(self, target: str) -> Checkpoint:
        """The same with another text of its decoder. Raises UsageError where that is not read, or generated."""
        if self.kind not in ("decoder", "cross"):
            raise UsageError(
                f"a target is for decoder and cross attention, and {self.info.name} shows {self.kind} attention"
            )
        if self.generate:
            raise UsageError(f"a target does not go with {option_name('generate')}, which makes it")
        return replace(self, target=target)

    def of_text(self, text: str) -> Checkpoint:
        """The checkpoint as it reads `text`: itself, but where a picture belongs to it."""
        return self

    def text_as_read(self, text: str) -> str:
        """The text in which the tokens have their places: `text`, and where the model reads a pair its second text."""
        return self.pieces.joined_text(text)

    def with_text_pair(self, text_pair: str) -> Checkpoint:
        """The same, reading `text_pair` behind each text. Raises UsageError where texts are not read."""
        if type(self).tokenize is not Checkpoint.tokenize:
            why = f"does not go with {self.info.name}, which reads one text, with a picture or a sound beside it"
            raise UsageError(why, option="text_pair")
        if not text_pair.strip():
            raise UsageError("is empty: it is the second of two texts", option="text_pair")
        return replace(self, pieces=replace(self.pieces, text_pair=checked_text(text_pair)))

    def input_notes(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """What a reader must know of the network's inputs: a separator within the text, inputs that nobody gives."""
        config: Any = self.network.config
        one_type = self.pieces.text_pair is not None and getattr(config, "type_vocab_size", 0) > 1
        one_type = one_type and "token_type_ids" in self.forward_keywords and all(one.type is None for one in tokens)
        lacking = f"The tokenizer of {self.info.name} gives no token types, by which its network tells two texts apart."
        return (
            *(() if self.info.causal else self.pieces.separator_notes(tokens)),
            *self.pieces.place_notes(tokens),
            *((Note(lacking, "input"),) if one_type else ()),
            *default_input_notes(self.network, self.forward_keywords - set(self.inputs_beside(len(tokens)))),
        )

    def inputs_beside(self, n: int) -> dict[str, object]:
        """What the network is given beside the ids of `n` tokens: nothing, but where a picture stands among them."""
        return {}

    def read_together(self, tokens: Sequence[Token]) -> int:
        """Return how many of a prompt's tokens one forward must read: none, but where a picture stands among them."""
        return 0

    def inputs_of_tokens(self, tokens: Sequence[Token]) -> dict[str, object]:
        """What the network is given of a text or picture: the ids of its tokens, and what goes beside them."""
        return {"input_ids": self.token_ids(tokens), **self.token_types(tokens), **self.inputs_beside(len(tokens))}

    def token_types(self, tokens: Sequence[Token]) -> dict[str, object]:
        """The token types of tokens, where their tokenizer tells them apart and the network reads them: (1, n)."""
        import torch

        if "token_type_ids" not in self.forward_keywords or not any(token.type for token in tokens):
            return {}
        return {"token_type_ids": torch.tensor([[token.type or 0 for token in tokens]], device=self.network.device)}

    @property
    def classes(self) -> Mapping[int, str]:
        """The classes of which the network gives the whole text or picture one, by id; empty where it gives none."""
        return classes_of_network(self.network)

    @_with_heads_off
    def tokenize(self, text: str) -> tuple[Token, ...]:
        """The tokens that ask: of the text, generated ones at their end, or of the target for decoder and cross."""
        if self.kind in ("decoder", "cross"):
            return self._decoder_tokens(self.pieces.tokenize_text(text))
        tokens = self.pieces.tokenize_text(text)
        if self.generate and self.kind == "self":
            tokens = (*tokens, *generated_tokens(self, tokens, len(tokens)))
        return tokens

    @_with_heads_off
    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """The tokens through the network; `visit` sees each layer's attention, without the batch.

        Where `visit` raises StopForward, the network is left, and predicts nothing.
        Raises AttnctlError where the architecture hands over what attnctl does not know.
        """
        from attnctl.models.huggingface.attention_call import call_of_text, check_finite
        from attnctl.models.huggingface.attention_sites import may_repeat_layers
        from attnctl.models.huggingface.family_traits import Traits

        self.check_tokens(tokens)
        self = self.of_text(text)
        source = self.source_tokens(text)
        ran = Run(tuple(tokens), key_tokens=self.tokens_of_keys(tokens, text))
        inputs = self._forward_inputs(tokens, source)
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
            only_text = not self.inputs_beside(len(tokens))  # what stands in a picture's places is not of the table
            table: Any = input_table(self.network) if only_text else None
            if len(tokens) <= EMBEDDED and hasattr(table, "num_embeddings"):
                ids = inputs["decoder_input_ids" if source is not None else "input_ids"]
                ran.embeddings = as_numpy(table(ids)[0])  # (n, d_model)
        ran.gates = traits.gates_of_text(0, len(tokens))
        self.told_by_run(ran, traits, silent, output, source=source, weights=weights)
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

    def source_tokens(self, text: str) -> tuple[Token, ...] | None:
        """The tokens that an encoder reads for the decoder whose attention is read; None where an encoder's is, or self."""
        return self.pieces.tokenize_text(text) if self.kind in ("decoder", "cross") else None

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """What the keys stand for where these are not the `tokens` alone: another text's, or that beside them."""
        if self.kind == "cross":
            return self.pieces.tokenize_text(text)
        if self.kind == "decoder" and merges_source(self.network):
            return (*tokens, *self.pieces.tokenize_text(text))
        return None

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

    def told_by_run(
        self,
        ran: Run,
        traits: Traits,
        silent: dict[Site, str],
        output: Output,
        *,
        source: Sequence[Token] | None = None,
        weights: dict[int, Array] | None = None,
    ) -> None:
        """What a run tells beside its attention: the model's description, predictions, notes."""
        ran.model = traits.described_model(self.info, output is not None)
        if weights:
            square = [w for w in weights.values() if w.shape[-1] == w.shape[-2] > 1]
            ahead = any(np.triu(np.abs(w[0]), 1).any() for w in square)
            heads = {len(part) for part in weights.values()}  # ConvBERT has fewer than its configuration says
            ran.model = replace(ran.model, causal=bool(square) and not ahead)
            if heads != {ran.model.n_heads} and len(heads) == 1:
                ran.model = replace(ran.model, n_heads=heads.pop(), n_kv_heads=None)
        ran.predictions = self._predicted_tokens(ran.tokens, output, bool(ran.model.causal))
        ran.notes = self.text_notes(ran.tokens, source, bool(weights)) + traits.reader_notes(silent, ran.gates)
        if self.intervention is not None:
            ran.notes += (self.intervention.note,)

    def text_notes(self, tokens: Sequence[Token], source: Sequence[Token] | None, bare: bool) -> tuple[str, ...]:
        """What a reader must know of the tokens: as of the function of that name."""
        return text_notes(self, tokens, source, bare)

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

        self = self.of_text(text)
        source = self.source_tokens(text)
        inputs = self._forward_inputs(tokens, source)
        weights: dict[int, Array] = {}
        contexts: dict[int, Array] = {}

        def keep_own(site: Site, context: Array, own: Array | None) -> None:
            contexts[site.layer] = as_numpy(context[0].transpose(0, 1))  # (heads, n_q, d_v)
            if own is not None:
                weights[site.layer] = as_numpy(own[0])  # (heads, n_q, n_k)

        total = len(tokens) + len(source or ())
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
        limit = self.pieces.limit
        if limit is not None and len(tokens) > limit:
            raise AttnctlError(f"{len(tokens):,} tokens are more than {self.info.name} reads: {limit:,}")
        rows = getattr(input_table(self.network), "num_embeddings", None)
        for token in tokens:
            if rows is not None and token.id is not None and token.id >= rows:
                raise AttnctlError(
                    f"the tokenizer of {self.info.name} gives {token.text!r} the id {token.id:,}, but its network has "
                    f"embeddings for {rows:,} ids: they do not belong together"
                )

    def _forward_inputs(self, tokens: Sequence[Token], source: Sequence[Token] | None) -> dict[str, object]:
        """What the network is called with; the logits of the last token are all that is read of a decoder's."""
        inputs = self.inputs_of_tokens(tokens if source is None else source)
        if source is not None:
            inputs["decoder_input_ids"] = self.token_ids(tokens)
        elif self.kind == "encoder":  # the decoder must be given something; its attention is not read
            inputs["decoder_input_ids"] = self.token_ids(self.decoder_start())
        if "logits_to_keep" in self.forward_keywords and self.predict is None and not self.mask_positions(tokens):
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

    def decoder_start(self) -> tuple[Token, ...]:
        """The tokens that a decoder begins with: its start, and what `generate` puts next, a language or a forced token."""
        if self.pieces.target_language is not None:
            tokens = self._shifted_target(self.pieces.tokenize_target(""))
            return tokens[:-1] if len(tokens) > 1 and self._ends_text(tokens[-1]) else tokens
        forced = getattr(getattr(self.network, "generation_config", None), "forced_bos_token_id", None)
        return (self._start_token(), *(self._named_token(number) for number in (forced,) if number is not None))

    def _start_token(self) -> Token:
        """Return the token that `generate` begins a decoder's text with."""
        return self._named_token(self.decoder_start_id)

    def _named_token(self, number: int) -> Token:
        return Token(self.pieces.tokenizer.id_to_token(number) or str(number), number, special=True)

    def _ends_text(self, token: Token) -> bool:
        return token.id in end_ids(self.network)

    @property
    def decoder_start_id(self) -> int:
        """The id that `generate` begins a decoder's text with; without one the tokenizer's first, or 0."""
        # generate falls back to generation_config's bos_token_id before it looks at config.json
        parts = (getattr(self.network, "generation_config", None), self.network.config)
        names = ("decoder_start_token_id", "bos_token_id")
        stated = [i for part in parts for name in names if (i := getattr(part, name, None)) is not None]
        first = next(iter(stated), self.pieces.bos_id or 0)
        number = first[0] if isinstance(first, list) and first else first  # a list has one for each text of a batch
        if not isinstance(number, int) or not 0 <= number < 2**31:
            raise AttnctlError(
                f"{self.info.name} begins its decoder's text with {str(first)[:40]!r}, which is no token's id: see "
                "decoder_start_token_id in its generation_config.json and config.json"
            )
        return number

    def _decoder_tokens(self, source: Sequence[Token]) -> tuple[Token, ...]:
        """The decoder's tokens: its start, and the target, or what the model itself says of the text.

        They have no place in the text, which is the source's.
        """
        if self.target is None:
            start = self.decoder_start()
            return (*start, *generated_tokens(self, source, len(start)))
        tokens = self._shifted_target(self.pieces.tokenize_target(self.target))
        start = self.decoder_start()
        known = len(start) if [token.id for token in tokens[: len(start)]] == [token.id for token in start] else 1
        return (*start, *(replace(token, start=None, end=None, word=None) for token in tokens[known:]))

    def _shifted_target(self, labels: tuple[Token, ...]) -> tuple[Token, ...]:
        """The tokens that a decoder reads to predict `labels`: as its network shifts them, less the end of the text."""
        ended = (
            bool(labels) and labels[-1].special and (labels[-1].start == labels[-1].end or self._ends_text(labels[-1]))
        )
        rest = labels[:-1] if ended else labels
        if ended and not self._ends_text(labels[-1]) and self._begins_with_last(labels):
            return (
                replace(labels[-1], start=None, end=None, word=None),
                *rest,
            )  # mBART: a target ends with its language
        return (self._start_token(), *rest)

    def _begins_with_last(self, labels: Sequence[Token]) -> bool:
        """Whether the network's own shift of labels puts the last one first."""
        import inspect
        import sys

        shift = getattr(sys.modules[type(self.network).__module__], "shift_tokens_right", None)
        if shift is None:
            return False
        config = self.network.config
        given = (self.token_ids(labels), config.pad_token_id, getattr(config, "decoder_start_token_id", None))
        shifted = shift(*given[: len(inspect.signature(shift).parameters)])  # (1, n)
        return bool(shifted[0, 0] == labels[-1].id)

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

    def mask_positions(self, tokens: Sequence[Token]) -> list[int]:
        """Where the model is asked to fill in: its mask tokens."""
        mask = named_token(self.pieces.settings, "mask_token")
        return [at for at, token in enumerate(tokens) if mask and token.special and token.text == mask]

    def _predicted_tokens(self, tokens: Sequence[Token], output: Output, causal: bool) -> tuple[Prediction, ...]:
        """The likeliest tokens after the last one of a decoder, or at the blanks of an encoder; the likeliest classes."""
        import torch

        logits = getattr(output, "logits_per_image" if self.kind == "vision" else "logits", None)
        if logits is not None and self.classes:
            shares = logits[0].float().softmax(-1)  # (classes,)
            values, ids = shares.topk(min(MOST_LIKELY, len(shares)))
            at = len(tokens) - 1 if causal else 0
            likeliest = zip(values.tolist(), ids.tolist(), strict=True)
            return tuple(Prediction(at, str(self.classes[i]), i, share, True) for share, i in likeliest)
        vocabulary = getattr(self.network.config.get_text_config(), "vocab_size", 0)
        if logits is None or logits.ndim != 3 or logits.shape[-1] < vocabulary or self.kind in ("encoder", "cross"):
            return ()
        causal = self.kind == "decoder" or causal
        if getattr(self.network, "attnctl_headless", False) or not bool(torch.isfinite(logits).all()):
            return ()  # of weights that are not in the file, or are no numbers
        found = []
        for at in predicted_places(tokens, self.predict, self.mask_positions(tokens), causal):
            share = torch.softmax(logits[0, at - len(tokens)].float(), -1)  # (vocabulary,)
            values, ids = share.topk(MOST_LIKELY)
            for value, number in zip(values.tolist(), ids.tolist(), strict=True):
                text = self.pieces.tokenizer.decode([number], skip_special_tokens=False)
                found.append(Prediction(at, text.strip() or text, number, value))
        return tuple(found)


# --- what a reader must know of a text -------------------------------------------------------------------------------


def nothing_seen_sentence(name: str, kind: str, silent: dict[Site, str]) -> str:
    """Why nothing of a kind of attention was seen."""
    what = "attention" if kind == "self" else f"{kind} attention"
    if silent:
        other = f": see {option_name('attention', 'decoder')}, or cross" if kind == "encoder" else ""
        return (
            f"{name} has no {what} that can be shown: {next(iter(silent.values()))} attends in code of its own{other}"
        )
    return f"{name} has no softmax {what} that it tells of: there are no weights to show"


# inputs of a value for each token, for which a network puts one value where they are not given
_VALUE_OF_TOKEN = re.compile(r"bbox|langs|global_attention_mask|\w+_ids|\w+_seq")
# of these the default is the right one, or the text has none of what they tell of
_RIGHT_BY_DEFAULT = re.compile(
    r"(position|token_type|mm_token_type|moe_mm_token_type|mc_token|speaker)_ids|\w*input_ids|"
    r"(decoder|entity|image|video|audio|visual|vision|aspect_ratio)_\w+"
)


def default_input_notes(network: PreTrainedModel, not_given: Iterable[str]) -> tuple[str, ...]:
    """What a reader must know of inputs that affect the result and are `not_given` (boxes, languages): one note, or none."""
    config: Any = network.config
    names = {n for n in not_given if _VALUE_OF_TOKEN.fullmatch(n) and not _RIGHT_BY_DEFAULT.fullmatch(n)}
    if getattr(config, "n_langs", 1) < 2:  # XLM
        names -= {"langs"}
    if not getattr(config, "use_task_id", True):  # ERNIE
        names -= {"task_type_ids"}
    if isinstance(getattr(config, "type_vocab_sizes", None), list):  # TAPAS: seven token types a token
        names |= {"token_type_ids"} & set(not_given)
    if not names:
        return ()
    said = (
        f"{type(network).__name__} also reads {', '.join(sorted(names))}, which a text does not tell: every token has its "
        "default. In your own code attnctl.capture records a run that has them."
    )
    return (Note(said, "input"),)


def text_notes(
    model: Checkpoint, tokens: Sequence[Token], source: Sequence[Token] | None, bare: bool
) -> tuple[str, ...]:
    """What a reader must know of the tokens: how they begin, which are the model's own, and `bare` weights."""
    read = tokens if source is None else source
    notes: list[str] = [*model.pieces.beginning_notes(read, bool(model.info.causal)), *model.input_notes(read)]
    new = [token for token in tokens[-model.generate :] if token.start is None] if model.generate else []
    if new and model.kind == "self":
        last = f"last {len(new)} tokens are" if len(new) > 1 else "last token is"
        notes.append(f"The {last} the model's own, the likeliest each time: “{_spelled_tokens(model, new)}”")
    elif source is not None and model.target is None:
        own = [token for token in tokens if not token.special]
        said = f" (“{_spelled_tokens(model, own)}”)" if own else ""
        notes.append(
            f"The decoder's tokens are the model's own{said}, the likeliest each time; the option target gives others."
        )
    notes += () if source is None else model.pieces.language_notes(model.target is not None)
    rows = getattr(input_table(model.network), "num_embeddings", None)
    notes += () if rows is None else model.pieces.size_notes(rows)
    if bare:
        notes.append(
            f"{type(model.network).__name__} computes its attention in code of its own: only the weights can be shown, "
            "not the queries, keys, values and scores."
        )
    return tuple(notes)


def _spelled_tokens(model: Checkpoint, tokens: Sequence[Token]) -> str:
    """The text that tokens spell, safe in a terminal."""
    return visible_text(
        model.pieces.tokenizer.decode([token.id or 0 for token in tokens], skip_special_tokens=False).strip()
    )


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
