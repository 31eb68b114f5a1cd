"""Predict with a text in a transformers network under each of many interventions on its attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.checks.selection import find_token
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer.interventions import Intervention
from attnctl.models.huggingface.attention_call import check_finite
from attnctl.models.huggingface.attention_interface import may_run_at_once
from attnctl.models.huggingface.attention_sites import Site, model_follows_interface
from attnctl.models.huggingface.block_recorder import BlockRecorder, logits_of
from attnctl.models.huggingface.checkpoint import (
    Checkpoint,
    is_classifier,
    labels_of_network,
    other_keys_sentence,
    scale_of_labels,
)
from attnctl.models.huggingface.first_order import first_order_effects
from attnctl.models.huggingface.library_tokenizer import LibraryTokenizer
from attnctl.models.huggingface.network import lacks_head, running_network
from attnctl.models.huggingface.optional_fields import config_value, output_value
from attnctl.models.huggingface.readers.detector import DetectorReader
from attnctl.models.huggingface.tokenizer import unknown_piece
from attnctl.readings.picture_heat import cls_token
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.runtime.two_at_once import two_at_once
from attnctl.text import visible_text
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.watched.effects import Contributions, LogitScale, Word, spelled_word
from attnctl.watched.measure import FirstOrder

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.checkpoint import ModelInput

GATE_NOTE = (
    "A learned gate multiplies each head's output: what is replaced, and every mean, is the output after the gate."
)
TOKENS_AT_ONCE = 4096  # in all rows of a batch, by default


@dataclass
class WatchedNetwork:
    """A text in a network, and the watched prediction: the next token, the token at a mask, or the class of the input.

    `query` is the position of the prediction among `tokens` (for an encoder or a class, the token whose attention is shown);
    `tail` is the number of positions from the watched logits to the last.
    """

    network: PreTrainedModel
    info: ModelInfo
    kind: str
    text: str
    tokens: tuple[Token, ...]
    query: int
    tail: int
    inputs: Callable[[tuple[int, ...]], dict[str, object]]  # ids that continue the text → the network's inputs
    spell: Callable[[int], str]
    read: Callable[[str], Word]
    classes: Mapping[int, str]  # id → name of the classes, labels or numbers; {} if it predicts words or nothing
    base: Intervention = field(default_factory=Intervention)
    key_tokens: tuple[Token, ...] | None = None
    scale: LogitScale = "softmax"
    text_notes: tuple[str, ...] = ()
    forwards: dict[tuple[int, ...], BlockRecorder] = field(default_factory=dict)
    query_looks: dict[int, Floats] = field(default_factory=dict)  # layer → (heads, n_k), over the text alone

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the text, and one about a gate, if heads are replaced by something other than 0."""
        if self.base.how == "zero" or not self.forward(()).gated:
            return self.text_notes
        return (*self.text_notes, GATE_NOTE)

    @property
    def predicts_words(self) -> bool:
        """Return whether there are logits to read: a head for words or classes, with its weights in the file."""
        if self.classes:
            return True
        if lacks_head(self.network):
            return False
        logits = output_value(self.forward(()).result, "logits")
        vocabulary = config_value(self.network.config.get_text_config(), "vocab_size")
        return logits is not None and logits.ndim == 3 and vocabulary is not None and logits.shape[-1] >= vocabulary

    @property
    def predicts_classes(self) -> bool:
        """Return whether the logits belong to classes, labels or numbers, not to words."""
        return bool(self.classes)

    def target_word(self, text: str) -> Word:
        """Return the target that a text names. Raises UsageError for none, or if its tokens cannot be measured here."""
        if self.classes:
            return class_named(self.classes, text, self.info.name)
        word = self.read(text)
        if word.ids and self.kind == "self" and not self.info.causal:
            raise UsageError(
                f"it is {len(word.ids)} tokens of {self.info.name}, which fills in one: choose a word of one",
                option="target",
                value=text,
            )
        if word.ids and self.tail > 1:
            raise UsageError(
                f"it is {len(word.ids)} tokens, which are measured after the last one: leave {option_name('query')} out",
                option="target",
                value=text,
            )
        return word

    def word_of_id(self, number: int) -> str:
        """Return the text of one id of the vocabulary, or the name of a class."""
        return self.classes.get(number) or self.spell(number)

    def query_weights(self) -> dict[int, Floats]:
        """Return layer → weights of the watched query: (heads, n_k)."""
        self.forward(())
        return self.query_looks

    def outcomes(
        self, interventions: Sequence[Intervention], continuation: tuple[int, ...] = (), batch_size: int | None = None
    ) -> Iterator[Floats]:
        """Yield the outcomes of batches of interventions, two batches at once.

        An outcome is the logits from the watched position on, (rows, 1 + continuation, vocabulary), or the final states
        (rows, n, d_model).
        """
        forward, more = self.forward(continuation), len(continuation)
        n, words = len(self.tokens) + more, self.predicts_words

        def outcome(batch: list[Intervention]) -> Floats:
            if batch[0] is self.base:
                output = forward.result
            else:
                with running_network(self.network, n * len(batch), self.info.name):
                    output = forward.resume_from_change(batch)
            logits = logits_of(output)
            rows: Floats = as_numpy(self.watched_logits(logits, more) if words else logits)
            return rows

        batches = list(intervention_batches(interventions, batch_size or max(1, TOKENS_AT_ONCE // n)))
        at_once = len(batches) > 1 and may_run_at_once(self.network)
        return two_at_once(outcome, batches) if at_once else map(outcome, batches)

    def watched_logits(self, logits: Array, more: int) -> Array:
        """Return the logits from the watched position on, or of a choice among classes: (rows, 1 + more, vocabulary)."""
        if self.classes:
            return logits[:, None]  # (rows, 1, classes)
        first = logits.shape[1] - more - self.tail
        return logits[:, first : first + 1 + more]

    def forward(self, continuation: tuple[int, ...]) -> BlockRecorder:
        """Return the recorded forward over the text and the ids that continue it; it runs once."""
        if continuation not in self.forwards:
            forward = BlockRecorder(self.network, self.kind, self.base)
            with running_network(self.network, len(self.tokens) + len(continuation), self.info.name, several=True):
                forward.run(self.inputs(continuation), (lambda *_: None) if continuation else self._keep_look)
            self.forwards[continuation] = forward
        return self.forwards[continuation]

    def _keep_look(self, site: Site, call: Call) -> Array | None:
        """Keep the weights of the watched query."""
        if site.layer not in self.query_looks:
            layer, n_tokens = f"layer {site.layer} of {self.info.name}", len(self.key_tokens or self.tokens)
            check_finite(call, layer)
            row = attention.run_call(attention.select_call(call, None, [self.query])).weights  # (1, heads, 1, n_k)
            weights = as_numpy(row[0, :, 0])
            if weights.shape[-1] != n_tokens:
                raise AttnctlError(other_keys_sentence(layer, weights.shape[-1], n_tokens))
            self.query_looks[site.layer] = weights
        return None

    def gradients(self, target: Word, against: Word | None) -> FirstOrder:
        """Return the first-order effects of every head and every edge."""

        def run() -> Array:
            logits = logits_of(self.network(**self.inputs(target.all_ids[:-1])))  # (1, positions, vocabulary)
            return self.watched_logits(logits, len(target.all_ids) - 1)[0]

        running = running_network(self.network, len(self.tokens), self.info.name)
        with running, torch.inference_mode(False), torch.enable_grad():
            return first_order_effects(self.network, self.kind, self.base, self.query, run, target, against)

    def contributions(self, target: Word, against: Word | None) -> tuple[Contributions, tuple[str, ...]]:
        """Return the logit as a sum of contributions, and notes.

        Raises AttnctlError, naming the architecture, if the logit is not such a sum.
        """
        from attnctl.models.huggingface.contributions import TargetLogit, logit_as_sum

        name = type(self.network).__name__
        if self.classes or self.kind != "self" or not self.info.causal:
            why = "predicts classes" if self.classes else "is not a decoder alone"
            raise AttnctlError(f"{name} {why}: its logits are not taken apart into direct contributions")
        against_id = None if against is None else against.id
        with running_network(self.network, len(self.tokens), self.info.name):
            logit = TargetLogit(self.tail, self.query, target.id, against_id)
            return logit_as_sum(self.network, self.inputs(()), logit, self.base)


def intervention_batches(interventions: Sequence[Intervention], size: int) -> Iterator[list[Intervention]]:
    """Yield lists of at most `size` consecutive interventions that begin to change something in the same layer."""
    batch: list[Intervention] = []
    for intervention in interventions:
        if batch and (len(batch) == size or intervention.first_layer() != batch[0].first_layer()):
            yield batch
            batch = []
        batch.append(intervention)
    if batch:
        yield batch


def check_switchable(network: PreTrainedModel) -> None:
    """Raise AttnctlError if a network's attention cannot be changed from outside, or if its head is not in its file."""
    if not model_follows_interface(network):
        raise AttnctlError(
            f"{type(network).__name__} computes its attention in code of its own: its heads cannot be switched off"
        )
    if is_classifier(network) and lacks_head(network):
        why = "lacks the weights of its classes: what its heads do for it cannot be measured"
        raise AttnctlError(f"{type(network).__name__}'s prediction {why}")


# --- a text in a checkpoint --------------------------------------------------------------------------------------


def watch_network(model: Checkpoint, text: str, query: str | None, base: Intervention) -> WatchedNetwork:
    """Return the tokenised text with the watched position: `query`, the mask of a masked model, or the last token.

    For a picture, and for a classifier that is not causal, it is the first token (CLS). Raises AttnctlError for an
    architecture whose heads cannot be switched off, UsageError for an unknown query.
    """
    check_switchable(model.network)
    if isinstance(model.reader, DetectorReader):
        raise AttnctlError(
            f"{model.info.name} puts out labels with boxes, and no word or class of the whole picture to watch"
        )
    decoder = model.reader.decoder_start(model, text)
    tokens = decoder if model.kind in ("decoder", "cross") else model.tokenize(text)
    model_input = model.read(text, tokens)
    position = _watched_position(model, model_input, query)
    inputs = _source_as_read(model, model_input)
    return WatchedNetwork(
        network=model.network,
        info=model.info,
        kind=model.kind,
        text=model.text_as_read(text),
        tokens=tokens,
        query=position,
        tail=1 if decoder else len(tokens) - position,
        inputs=lambda continuation: _watched_inputs(model, inputs, continuation, position),
        spell=lambda number: spelled_id(model.pieces.tokenizer, number),
        read=lambda word: word_of(model.pieces.tokenizer, word, model.info.name, as_target=tokens is decoder),
        classes=labels_of_network(model.network) if model_input.classes is None else model_input.classes,
        scale=scale_of_labels(model.network),
        base=base,
        key_tokens=model.tokens_of_keys(tokens, text),
        text_notes=(*model_input.notes,),
    )


def _watched_position(model: Checkpoint, model_input: ModelInput, query: str | None) -> int:
    tokens = model_input.tokens
    if query is not None:
        return find_token(tokens, query)
    of_picture = tokens[-1].is_patch and all(token.is_patch or token.special for token in tokens)
    if (of_picture or is_classifier(model.network) or model_input.classes) and not model.info.causal:
        return cls_token(tokens)
    blanks = [] if model.info.causal or model.kind != "self" else model_input.blanks
    if len(blanks) > 1:
        places = ", ".join(map(str, blanks))
        raise UsageError(f"the text has {len(blanks)} masks: name one with {option_name('query')} ({places})")
    return blanks[0] if blanks else len(tokens) - 1


def _source_as_read(model: Checkpoint, model_input: ModelInput) -> ModelInput:
    """Return the input with the encoder's output in place of the source: no change in the decoder affects it."""
    if (
        model_input.source is None
        or "encoder_outputs" in model_input.inputs
        or "encoder_outputs" not in model.forward_keywords
    ):
        return model_input
    source = {name: value for name, value in model_input.inputs.items() if name != "decoder_input_ids"}
    with running_network(model.network, len(model_input.source), model.info.name):
        encoded = model.network.get_encoder()(**source)
    return replace(
        model_input, inputs={"encoder_outputs": encoded, "decoder_input_ids": model_input.inputs["decoder_input_ids"]}
    )


def _watched_inputs(
    model: Checkpoint, model_input: ModelInput, more: tuple[int, ...], position: int
) -> dict[str, object]:
    """Return the network's inputs for the text, or its decoder's start, followed by the ids `more`."""
    inputs = model_input.followed_by(more)
    if "decoder_input_ids" not in inputs:
        model.check_tokens((*model_input.tokens, *(Token("", number) for number in more)))
        if "logits_to_keep" in model.forward_keywords:
            inputs["logits_to_keep"] = len(model_input.tokens) + len(more) - position
    return inputs | ({"use_cache": False} if "use_cache" in model.forward_keywords else {})


def class_named(classes: Mapping[int, str], text: str, name: str) -> Word:
    """Return the class of this name: its label, one of its label's names ("tabby, tabby cat"), or its id.

    Raises UsageError if there is no such class, or several.
    """
    name_of_class = text.strip().strip("\0").casefold()
    by_label = {number for number, label in classes.items() if name_of_class == label.casefold()}
    by_part = {
        number for number, label in classes.items() if name_of_class in map(str.strip, label.casefold().split(","))
    }
    matches = sorted(by_label or by_part or {number for number in classes if name_of_class == str(number)})
    if len(matches) == 1:
        return Word(classes[matches[0]], matches[0], is_class=True)
    listed = ", ".join(f"{classes[number]} ({number})" for number in (matches or sorted(classes))[:4])
    problem = "several such classes" if matches else f"no such class among its {len(classes):,}"
    raise UsageError(f"{name} has {problem}: {visible_text(listed)}", option="target", value=text)


def spelled_id(tokenizer: Tokenizer | LibraryTokenizer, number: int) -> str:
    """Return the text of one id of a vocabulary."""
    return tokenizer.decode([number], skip_special_tokens=False) or tokenizer.id_to_token(number) or f"id {number}"


def word_of(tokenizer: Tokenizer | LibraryTokenizer, text: str, name: str, *, as_target: bool = False) -> Word:
    """Return the ids that spell a text, or with `as_target` a text of the decoder, as a word.

    Raises UsageError if the vocabulary does not contain it.
    """
    if not text.strip():
        raise UsageError("is empty: give a word, with the space before it if it has one", option="target")
    options: dict[str, Any] = {"as_target": as_target} if isinstance(tokenizer, LibraryTokenizer) else {}
    ids = tokenizer.encode(text, add_special_tokens=False, **options).ids
    unknown = unknown_piece(tokenizer)
    if not ids or (unknown is not None and tokenizer.token_to_id(unknown) in ids):
        raise UsageError(f"the vocabulary of {name} has no such word", option="target", value=text)
    return spelled_word(text, ids)
