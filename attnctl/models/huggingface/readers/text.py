"""Readers of texts: one text, a pair of texts, and the source and target of an encoder-decoder."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.models.huggingface.attention_sites import merges_source
from attnctl.models.huggingface.checkpoint import ModelInput, Reader
from attnctl.models.huggingface.network import (
    end_ids,
    forced_first_id,
    generation_setting,
    position_limit,
    running_network,
)
from attnctl.models.huggingface.optional_fields import config_value, generation_config
from attnctl.models.huggingface.prompts import bare_text_notes
from attnctl.models.huggingface.tokenizer import Pieces
from attnctl.source.model import check_text
from attnctl.text import visible_text
from attnctl.text.tokens import Token, checked_text
from attnctl.trace.notes import Note

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Keywords
    from attnctl.models.huggingface.checkpoint import Checkpoint


# generate one text without chance, and return only ids, whatever generation_config says
ONE_TEXT = {
    "do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False,
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "output_logits": False,
}  # fmt: skip
GREEDY = ONE_TEXT | {"num_beams": 1}


@dataclass(frozen=True)
class TextReader(Reader):
    """The reader of a text, and of a second text after it if the tokenizer has a `text_pair`."""

    tokenizer: Pieces
    shares_passes: ClassVar[bool] = True

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the text, and the tokens that the model generates after it."""
        return self._continued(model, self.pieces.tokenize_text(text))

    def listed_tokens(self, model: Checkpoint, text: str, names: Sequence[str]) -> tuple[Token, ...]:
        """Return the tokens of these names of the vocabulary, and the tokens that the model generates after them."""
        return self._continued(model, self.pieces.listed_tokens(text, names))

    def _continued(self, model: Checkpoint, tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        """Return tokens, and the tokens that the model generates after them."""
        return (*tokens, *generated_tokens(model, text_inputs(model, tokens))) if model.generate else tokens

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the ids of the tokens, and their types if the tokenizer gives types."""
        model.check_tokens(tokens)
        inputs = text_inputs(model, tokens)
        notes = [*self.pieces.beginning_notes(tokens, bool(model.info.causal)), *input_notes(model, tokens, inputs)]
        notes += self.pieces.sentence_notes(text)
        notes += self.pieces.dropped_notes(text, tokens[: len(tokens) - (model.generate or 0)])
        notes += [*self.pieces.truncation_notes(text, tokens), *bare_text_notes(self.pieces, text)]
        notes += [*continuation_notes(model, tokens), *table_notes(model)]
        return ModelInput(tokens, inputs, notes=tuple(notes), blanks=self.pieces.mask_positions(tokens))

    def text_as_read(self, text: str) -> str:
        """Return the text that the tokens' positions refer to: both texts if a pair is read."""
        return self.pieces.joined_text(text)

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return the model. Raises UsageError if `text` is the file of a picture or a sound."""
        beside = config_value(model.network.config, "vision_config") is not None  # a vision-language model
        instead = f'ask about it: "…" {option_name("image", text)}' if beside else "name a vision model"
        check_text(text, model.info.name, instead)
        return model

    def with_text_pair(self, model: Checkpoint, text_pair: str) -> Reader:
        """Return the reader of `text_pair` after each text. Raises UsageError if `text_pair` is empty."""
        if not text_pair.strip():
            raise UsageError("is empty: it is the second of two texts", option="text_pair")
        return replace(self, tokenizer=replace(self.tokenizer, text_pair=checked_text(text_pair)))


@dataclass(frozen=True)
class SourceTargetReader(TextReader):
    """The reader of an encoder-decoder: the source, and for decoder and cross attention a given or generated target."""

    shares_passes: ClassVar[bool] = False

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the source for encoder attention, else the tokens of the decoder.

        The decoder's tokens have no position in the text: the text is the source.
        """
        source = self.pieces.tokenize_text(text)
        if model.kind == "encoder":
            return source
        start = self.decoder_start(model, text)
        if model.target is None:
            return (*start, *written_tokens(model, text_inputs(model, source), start))
        tokens = self._shifted_target(model, self.pieces.tokenize_target(model.target))
        n_start = len(start) if [token.id for token in tokens[: len(start)]] == [token.id for token in start] else 1
        return (*start, *(replace(token, start=None, end=None, word=None) for token in tokens[n_start:]))

    def listed_tokens(self, model: Checkpoint, text: str, names: Sequence[str]) -> tuple[Token, ...]:
        """Return the tokens of these names for encoder attention. Raises UsageError for the attention of the decoder."""
        if model.kind == "encoder":
            return self.pieces.listed_tokens(text, names)
        return Reader.listed_tokens(self, model, text, names)

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the ids of the source and of the decoder; for encoder attention, only the decoder's start."""
        if model.kind == "encoder":
            model_input = super().read(model, text, tokens)
            start = model.token_ids(self.decoder_start(model, text))
            return replace(model_input, inputs={**model_input.inputs, "decoder_input_ids": start}, blanks=())
        model.check_tokens(tokens)
        source = self.pieces.tokenize_text(text)
        inputs = text_inputs(model, source)
        notes = [*self.pieces.beginning_notes(source, bool(model.info.causal)), *input_notes(model, source, inputs)]
        notes += [*self.pieces.sentence_notes(text), *self.pieces.truncation_notes(text, source)]
        notes += self.pieces.dropped_notes(text, source)
        if model.target is None and len(tokens) > len(self.decoder_start(model, text)):
            notes.append(written_note(model, tokens))
        notes += [*self.pieces.language_notes(model.target is not None), *table_notes(model)]
        inputs |= {"decoder_input_ids": model.token_ids(tokens)}
        keys = self.key_tokens(model, text, tokens)
        blanks = self.pieces.mask_positions(tokens)
        return ModelInput(tokens, inputs, keys, tuple(notes), source, blanks)

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return the tokens of the source for cross attention, and both if one softmax covers source and target."""
        if model.kind == "cross":
            return self.pieces.tokenize_text(text)
        if model.kind == "decoder" and merges_source(model.network):
            return (*tokens, *self.pieces.tokenize_text(text))
        return None

    def decoder_start(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the decoder's first token, and the language or forced token that `generate` puts after it."""
        if self.pieces.target_language is not None:
            tokens = self._shifted_target(model, self.pieces.tokenize_target(""))
            return tokens[:-1] if len(tokens) > 1 and _ends_text(model, tokens[-1]) else tokens
        ids = (decoder_start_id(model), forced_first_id(model.network))
        return tuple(self.pieces.named_id(number) for number in ids if number is not None)

    def _shifted_target(self, model: Checkpoint, labels: tuple[Token, ...]) -> tuple[Token, ...]:
        """Return the tokens that a decoder reads to predict `labels`: shifted as in its network, without the end token."""
        last = labels[-1] if labels else None
        ended = last is not None and last.special and (last.start == last.end or _ends_text(model, last))
        body = labels[:-1] if ended else labels
        if ended and last and not _ends_text(model, last) and self._begins_with_last(model, labels):
            return (replace(last, start=None, end=None, word=None), *body)  # mBART: a target ends with its language
        return (self.pieces.named_id(decoder_start_id(model)), *body)

    def _begins_with_last(self, model: Checkpoint, labels: Sequence[Token]) -> bool:
        """Return whether the network's function that shifts labels puts the last one first."""
        shift = getattr(sys.modules[type(model.network).__module__], "shift_tokens_right", None)
        if shift is None:
            return False
        config = model.network.config
        arguments = (model.token_ids(labels), config.pad_token_id, config_value(config, "decoder_start_token_id"))
        shifted = shift(*arguments[: len(inspect.signature(shift).parameters)])  # (1, n)
        return bool(shifted[0, 0] == labels[-1].id)


def _ends_text(model: Checkpoint, token: Token) -> bool:
    return token.id in end_ids(model.network)


def decoder_start_id(model: Checkpoint) -> int:
    """Return the id that `generate` begins a decoder's text with; if it has no such id, the tokenizer's first id, or 0."""
    # generate uses generation_config's bos_token_id before config.json
    first = generation_setting(model.network, "decoder_start_token_id", "bos_token_id")
    first = model.pieces.bos_id or 0 if first is None else first
    number = first[0] if isinstance(first, list) and first else first  # a list has one id per text of a batch
    if not isinstance(number, int) or not 0 <= number < 2**31:
        raise AttnctlError(
            f"{model.info.name} begins its decoder's text with {str(first)[:40]!r}, which is not the id of a token: see "
            "decoder_start_token_id in its generation_config.json and config.json"
        )
    return number


def text_inputs(model: Checkpoint, tokens: Sequence[Token]) -> Keywords:
    """Return the ids of a text's tokens, and their types if the network and the tokenizer have any: (1, n) each."""
    inputs = {"input_ids": model.token_ids(tokens)}
    if "token_type_ids" in model.forward_keywords and any(token.type for token in tokens):
        inputs["token_type_ids"] = inputs["input_ids"].new_tensor([[token.type or 0 for token in tokens]])
    return inputs


def generated_tokens(model: Checkpoint, inputs: Keywords) -> tuple[Token, ...]:
    """Return the tokens that the network generates greedily after the text of `inputs`.

    Raises UsageError if the network writes no text; AttnctlError if the result would be longer than it can read.
    """
    network, ids, count = model.network, inputs["input_ids"].tolist()[0], model.generate
    check_writes(network)
    n, limit = len(ids), model.pieces.limit
    if limit is not None and n + count > limit:
        raise AttnctlError(f"{n:,} tokens and {count:,} new ones are more than {model.info.name} reads: {limit:,}")
    with running_network(network, n, model.info.name, several=count > 1):
        ids_with_new = generate_greedily(network, inputs, count)
    return model.pieces.continued_tokens(ids, ids_with_new[n:])


def check_writes(network: PreTrainedModel) -> None:
    """Raise UsageError if a network writes no text."""
    if not network.can_generate():
        why = f"needs a network that continues texts, and {type(network).__name__} does not"
        raise UsageError(why, option="generate")


def written_tokens(model: Checkpoint, inputs: Keywords, start: Sequence[Token]) -> tuple[Token, ...]:
    """Return the tokens that an encoder-decoder writes after the `start` of its decoder, as its own `generate` does.

    Its generation_config decides the length, the beams and the penalties, but nothing is drawn by chance. `model.generate`
    is the largest number of new tokens; 0: as generation_config says. Raises UsageError if the network writes no text.
    """
    network = model.network
    check_writes(network)
    options: dict[str, Any] = {"pad_token_id": padding_id(network), **ONE_TEXT}
    if model.generate:
        options["max_new_tokens"] = model.generate + len(start) - 1
    elif (longest := _longest_written(network)) is not None:
        options |= {"max_length": longest, "max_new_tokens": None}
    if len(start) == 2:  # a decoder that writes in a language
        options["forced_bos_token_id"] = start[1].id
    elif len(start) > 2:
        options["decoder_input_ids"] = model.token_ids(start)
    if model.pieces.target_language is not None:
        options["decoder_start_token_id"] = start[0].id
    if (ids := inputs.get("input_ids")) is not None:
        options["attention_mask"] = ids.new_ones(ids.shape)
    n = len(start) if ids is None else ids.shape[-1]
    with running_network(network, n, model.info.name):
        written: list[int] = network.generate(**inputs, **options)[0].tolist()  # type: ignore[operator]
    return model.pieces.continued_tokens(written[: len(start)], written[len(start) :])


def _longest_written(network: PreTrainedModel) -> int | None:
    """Return how many tokens the decoder's positions allow if generation_config asks for more; else None."""
    longest, config = position_limit(network), generation_config(network)
    if longest is None or config is None:
        return None
    new, whole = config_value(config, "max_new_tokens"), config_value(config, "max_length")
    asked = whole if new is None else new + 1
    return longest if isinstance(asked, int) and asked > longest else None


def written_note(model: Checkpoint, tokens: Sequence[Token]) -> str:
    """Return the note about a decoder's tokens that the model wrote."""
    written = [token for token in tokens if not token.special]
    spelled = f" (“{_spelled_tokens(model, written)}”)" if written else ""
    beams, chance = (generation_setting(model.network, name) for name in ("num_beams", "do_sample"))
    how = f"the likeliest text of {beams} beams" if isinstance(beams, int) and beams > 1 else "the likeliest each time"
    drawn = ", although its generation_config draws them by chance" if chance else ""
    return f"The decoder's tokens are the model's own{spelled}, {how}{drawn}; {option_name('target')} gives others."


def generate_greedily(network: PreTrainedModel, inputs: Keywords, count: int) -> list[int]:
    """Return the ids of a text and of at most `count` new tokens, as `generate` writes them for these inputs."""
    ids = inputs["input_ids"]
    options = {"attention_mask": ids.new_ones(ids.shape), "max_new_tokens": count, "pad_token_id": padding_id(network)}
    generated: list[int] = network.generate(**inputs, **options, **GREEDY)[0].tolist()  # type: ignore[operator]
    return generated


def padding_id(network: PreTrainedModel) -> int:
    """Return the id of padding for `generate`, which pads nothing in one text, but asks for it."""
    padding = generation_setting(network, "pad_token_id")
    return padding if isinstance(padding, int) and padding >= 0 else 0


# --- what a reader must know of a text -------------------------------------------------------------------------------


def input_notes(model: Checkpoint, tokens: Sequence[Token], inputs: Keywords) -> tuple[str, ...]:
    """Return the notes about a network's inputs: a separator within the text, and inputs that a text does not give."""
    config = model.network.config
    pieces, keywords = model.pieces, model.forward_keywords
    one_type = pieces.text_pair is not None and (config_value(config, "type_vocab_size") or 0) > 1
    one_type = one_type and "token_type_ids" in keywords and all(token.type is None for token in tokens)
    lacking = f"The tokenizer of {model.info.name} gives no token types, by which its network tells two texts apart."
    return (
        *(() if model.info.causal else pieces.separator_notes(tokens)),
        *pieces.place_notes(tokens),
        *((Note(lacking, "input"),) if one_type else ()),
        *default_input_notes(model.network, keywords - (inputs.keys() - {"token_type_ids"})),
    )


# inputs with a value per token that a network sets to a default if they are missing
_VALUE_OF_TOKEN = re.compile(r"bbox|langs|global_attention_mask|\w+_ids|\w+_seq")
# for these inputs the default is right, or a text has nothing that they describe
_RIGHT_BY_DEFAULT = re.compile(
    r"(position|token_type|mm_token_type|moe_mm_token_type|mc_token|speaker)_ids|\w*input_ids|"
    r"(decoder|entity|image|video|audio|visual|vision|aspect_ratio)_\w+"
)


def default_input_notes(network: PreTrainedModel, not_given: Iterable[str]) -> tuple[str, ...]:
    """Return a note about inputs that affect the result and are `not_given` (boxes, languages); () if there are none."""
    config = network.config
    names = {n for n in not_given if _VALUE_OF_TOKEN.fullmatch(n) and not _RIGHT_BY_DEFAULT.fullmatch(n)}
    if (config_value(config, "n_langs") or 1) < 2:  # XLM
        names -= {"langs"}
    if config_value(config, "use_task_id") is False:  # ERNIE
        names -= {"task_type_ids"}
    if isinstance(config_value(config, "type_vocab_sizes"), list):  # TAPAS: seven token types per token
        names |= {"token_type_ids"} & set(not_given)
    if not names:
        return ()
    sentence = (
        f"{type(network).__name__} also reads {', '.join(sorted(names))}, which a text does not contain: every token has "
        "the default. In your own code attnctl.capture records a run that has them."
    )
    return (Note(sentence, "input"),)


def continuation_notes(model: Checkpoint, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return a note about the last tokens if the model generated them; else ()."""
    new = [token for token in tokens[-model.generate :] if token.start is None] if model.generate else []
    if not new or model.kind != "self":
        return ()
    last = f"last {len(new)} tokens are" if len(new) > 1 else "last token is"
    return (f"The {last} the model's own, the likeliest each time: “{_spelled_tokens(model, new)}”",)


def table_notes(model: Checkpoint) -> tuple[str, ...]:
    """Return a note if the network has embeddings for many more tokens than the tokenizer has; else ()."""
    rows = model.embedding_rows
    return () if rows is None else model.pieces.size_notes(rows)


def _spelled_tokens(model: Checkpoint, tokens: Sequence[Token]) -> str:
    """Return the text of these tokens, safe to print in a terminal."""
    ids = [token.id or 0 for token in tokens]
    return visible_text(model.pieces.tokenizer.decode(ids, skip_special_tokens=False).strip())
