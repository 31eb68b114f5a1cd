"""Watch a text in a built-in model whose attention is changed: its prediction under each of many interventions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnctl import attention
from attnctl.attention import Call
from attnctl.checks.selection import find_token
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer.computed import ComputedLayer
from attnctl.layer.interventions import Intervention
from attnctl.models.builtin.stack import Stack, changed_visit
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.text.tokens import is_blank
from attnctl.watched.effects import ContributionPart, Contributions, Word, summed_contributions
from attnctl.watched.measure import FirstOrder, WatchedText


@dataclass(kw_only=True)
class WatchedStack(WatchedText):
    """A text in a stack; the prediction at `query` is watched, if the stack has an unembedding."""

    model: Stack

    @property
    def predicts_words(self) -> bool:
        """Return whether it has an unembedding."""
        return self.model.unembedding is not None

    def target_word(self, text: str) -> Word:
        """Return the target that a text names. Raises UsageError if the vocabulary lacks it, or it is not one word."""
        words = self.model.tokenize(text) if text.strip() else ()
        if len(words) != 1:
            raise UsageError(f"give one word of the vocabulary of {self.info.name}", option="target", value=text)
        vocabulary = [str(word) for word in self.model.vocabulary]
        for name in (words[0].text, words[0].text.lower()):
            if name in vocabulary:
                return Word(name, vocabulary.index(name))
        raise UsageError(f"the vocabulary of {self.info.name} has no such word", option="target", value=text)

    def word_of_id(self, number: int) -> str:
        """Return the word of one id of the vocabulary."""
        return str(self.model.vocabulary[number])

    def query_weights(self) -> dict[int, Floats]:
        """Return layer → weights of the watched query: (heads, n)."""
        return {layer.layer: layer.rows_of([self.query])[:, 0] for layer in self._base_layers}

    def outcomes(
        self, interventions: Sequence[Intervention], continuation: tuple[int, ...] = (), batch_size: int | None = None
    ) -> Iterator[Floats]:
        """Yield logits at the watched position (1, 1, vocabulary), or final states (1, n, d_model), by intervention."""
        for intervention in interventions:
            final = self._final_state(intervention)  # (n, d_model)
            if self.model.unembedding is None:
                yield final[None]
            else:
                yield self.model.logits(final[self.query])[None, None]

    @cached_property
    def _base_layers(self) -> list[ComputedLayer]:
        """Return every layer as it runs under the base."""
        return self._changed_layers(self.base)

    def _final_state(self, intervention: Intervention) -> Floats:
        """Return the state after the last layer: (n, d_model)."""
        layers = self._base_layers if intervention is self.base else self._changed_layers(intervention)
        final: Floats = as_numpy(layers[-1].forward.rows_after)  # (n, d_model)
        return final

    def _changed_layers(self, intervention: Intervention) -> list[ComputedLayer]:
        """Return every layer as it runs under an intervention."""
        layers: list[ComputedLayer] = []
        self.model.run(self.tokens, changed_visit(layers.append, intervention), self.text)
        return layers

    def gradients(self, target: Word, against: Word | None) -> FirstOrder:
        """Raise UsageError: built-in models are small enough to be ablated exactly."""
        why = f"is for checkpoints: {self.info.name} is small enough to be exact"
        raise UsageError(why, option="approximate")

    def contributions(self, target: Word, against: Word | None) -> tuple[Contributions, tuple[str, ...]]:
        """Return the logit as a sum of the embedding, every head by source token, and biases; no notes."""
        u = self.model.unembedding
        if u is None or not self.model.residual:
            raise AttnctlError(f"{self.info.name} has no residual stream from which words are predicted")
        direction = u[:, target.id] - (u[:, against.id] if against is not None else 0)  # (d_model,)
        embedded = self.model.input_rows(self.tokens)  # (n, d_model)
        parts = [ContributionPart(part="embedding", value=float(embedded[self.query] @ direction))]
        for layer in self._base_layers:
            parameters = self.model.layers[layer.layer]
            parts += _written_parts(layer.layer, layer.forward.call, parameters, direction, self.query, self.base)
            if "b_O" in parameters:
                parts.append(
                    ContributionPart(part="bias", layer=layer.layer, value=float(parameters["b_O"] @ direction))
                )
        logit = float(self._final_state(self.base)[self.query] @ direction)
        return summed_contributions(logit, parts), ()


def _written_parts(
    layer: int, call: Call, parameters: dict[str, Floats], direction: Floats, query: int, base: Intervention
) -> Iterator[ContributionPart]:
    """Yield what each head of a layer writes along a direction, by source token."""
    steps = attention.run_call(attention.select_call(call, None, [query]))
    weights = as_numpy(steps.weights if steps.dropped is None else steps.dropped)[:, 0]  # (heads, n)
    n_heads = weights.shape[0]
    values = as_numpy(attention.share_heads(call.values, n_heads))  # (heads, n, d_v)
    d_v = values.shape[-1]
    off = base.heads.get(layer, ())
    for head in range(n_heads):
        span = slice(head * d_v, (head + 1) * d_v)
        way = parameters["W_O"][span] @ direction if "W_O" in parameters else direction[span]  # (d_v,)
        keys = weights[head] * (values[head] @ way) * (head not in off)  # (n,)
        yield ContributionPart(part="head", layer=layer, head=head, value=float(keys.sum()), keys=tuple(keys.tolist()))


def watch_stack(model: Stack, text: str, query: str | None, base: Intervention) -> WatchedStack:
    """Return the text, cut into tokens, with the watched position: `query`, the blank, or the last token.

    Raises UsageError for a query that does not exist, AttnctlError for a text without tokens.
    """
    tokens = model.tokenize(text)
    if not tokens:
        raise AttnctlError("the text has no tokens: give at least one word")
    blanks = [position for position, token in enumerate(tokens) if is_blank(token.text)]
    if query is None and len(blanks) > 1:
        places = ", ".join(map(str, blanks))
        raise UsageError(f"the text has {len(blanks)} blanks: name one with {option_name('query')} ({places})")
    position = find_token(tokens, query) if query is not None else blanks[0] if blanks else len(tokens) - 1
    if model.info.causal and is_blank(tokens[position].text) and position:
        position -= 1  # a causal model says what follows, so it fills a blank from the word before it
    return WatchedStack(model.info, text, tokens, position, base, notes=model.notes, model=model)
