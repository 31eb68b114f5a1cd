"""A prompt and its answer in a module of the user's own, which continues texts token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.models.torch.sites import Place
from attnctl.models.torch.watching import AnyCall
from attnctl.runtime.arrays import Floats, as_numpy


class ContinuesIds(Protocol):
    """A module with a tokenizer, called with token ids."""

    name: str
    reader: Any

    def logits_of_ids(self, ids: Sequence[int], see: Any = None) -> Array:
        """Return the logits (n, vocabulary) of token ids; `see` is called with the place and the call of each attention."""


@dataclass(eq=False)
class ModuleAnswer:
    """The token ids of a prompt and of its answer. Every token is a forward of the whole text: a module has no cache."""

    model: ContinuesIds
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    masses: dict[int, Floats] = field(default_factory=dict)  # layer → mean over heads and queries: (n_k,)
    strongest: dict[int, Array] = field(default_factory=dict)  # layer → the largest key of each head, query: (heads, m)

    def generate(self, count: int) -> None:
        """Continue the prompt greedily, with at most `count` tokens, up to the tokenizer's `eos_token_id`."""
        end, answer = getattr(self.model.reader, "eos_token_id", None), list[int]()
        while len(answer) < count:
            likeliest = int(self.model.logits_of_ids((*self.prompt, *answer))[-1].argmax())
            if likeliest == end:
                break
            answer.append(likeliest)
        self.answer = tuple(answer)

    def answer_looks(self) -> ModuleAnswer:
        """Return itself, with `masses` and `strongest` of the queries that predict the answer.

        Raises AttnctlError for a layer whose queries or keys are not the tokens.
        """
        ids = (*self.prompt, *self.answer[:-1])

        def see(place: Place, call: AnyCall) -> None:
            if place.kind != "self" or place.recurrence:
                return
            check_names(place, call)
            weights = call.steps().weights[0]  # (heads, n, n)
            if weights.shape[-2:] != (len(ids), len(ids)):
                raise AttnctlError(
                    f"layer {place.layer} of {self.model.name} attends with {weights.shape[-2]} queries to "
                    f"{weights.shape[-1]} keys, and the text has {len(ids)} tokens"
                )
            rows = weights[:, len(self.prompt) - 1 :]  # (heads, m, n)
            self.masses[place.layer] = as_numpy(rows.double().mean((0, 1)))
            self.strongest[place.layer] = as_numpy(rows.argmax(-1))

        self.model.logits_of_ids(ids, see)
        return self

    def mass_of_keys(self) -> Floats:
        """Return the mean weight of each key, over all heads, layers and queries: (n_k,)."""
        mean: Floats = np.mean(list(self.masses.values()), axis=0).astype(np.float32)
        return mean


def check_names(place: Place, call: AnyCall) -> None:
    """Raise AttnctlError for an attention whose queries or keys are not the tokens of the text in order."""
    if call.unnamed is not None:
        raise AttnctlError(f"layer {place.layer} cannot be read token by token. {call.unnamed.sentence([place.name])}")
