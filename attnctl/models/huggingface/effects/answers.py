"""A prompt and its answer in a decoder: the answer generated, measured, and measured again with parts of the prompt hidden.

The prompt is read in chunks through the key/value cache, logits are made for the answer alone, and a forward with a part
hidden begins behind that part: what stands before it is not computed again. Nothing is ever n × n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attnctl import attention
from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.interventions import Cut, Intervention
from attnctl.models.huggingface.attention_interface import attending
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.effects.intervention import applied
from attnctl.models.huggingface.files.network import running

CHUNK = 512  # tokens of the prompt that are read at once


@dataclass
class AnsweredPrompt:
    """A prompt's token ids, and those of the answer to it, in a network that continues texts."""

    model: Checkpoint
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    states: list[tuple[Array, Array]] = field(default_factory=list)  # each layer's keys and values of the prompt
    forwards: int = 0

    def __post_init__(self) -> None:
        if self.model.kind != "self" or not self.model.info.causal:
            raise UsageError(f"{self.model.info.name} does not continue texts, so it answers no prompt")
        self.read()

    # --- the cache -----------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read the prompt but for its last token, and keep every layer's keys and values.

        Raises AttnctlError for a network whose cache holds something else (a state that cannot be cut).
        """
        cache = self._run(self.prompt[:-1], None, 0)[0]
        layers = getattr(cache, "layers", None)
        kept = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers or ()]
        whole = len(self.prompt) - 1
        if whole and not all(k is not None and v is not None and k.shape[-2] == whole for k, v in kept):
            name = type(self.model.network).__name__
            raise AttnctlError(f"{name} keeps no keys and values of every token, so its prompt cannot be read in parts")
        self.states = [(k, v) for k, v in kept if k is not None and v is not None]

    def cache_of(self, first: int) -> Any:
        """A cache that holds the prompt's tokens [0, first)."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(self.states if first else ()):
            cache.update(keys[:, :, :first], values[:, :, :first], layer)
        return cache

    def _run(self, ids: Sequence[int], cache: Any, wanted: int) -> tuple[Any, Array | None]:
        """The network over `ids` behind a cache: the cache, and the last `wanted` tokens' logits (wanted, vocabulary)."""
        if cache is None:
            from transformers import DynamicCache

            cache = DynamicCache()
        network, logits = self.model.network, None
        edges = [*range(0, max(0, len(ids) - max(1, wanted)), CHUNK), max(0, len(ids) - max(1, wanted)), len(ids)]
        with running(network, len(ids), self.model.info.name):
            for a, b in zip(edges, edges[1:], strict=False):
                if a == b:
                    continue
                given = torch.tensor([ids[a:b]], device=network.device)  # (1, chunk)
                keep = wanted if b == len(ids) and wanted else 1
                output = network(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=keep)
                cache, logits = output.past_key_values, output.logits[0]  # (keep, vocabulary)
        return cache, logits

    # --- the answer ----------------------------------------------------------------------------------------------

    def generate(self, most: int) -> None:
        """Let the model answer greedily with at most `most` tokens, up to its own end. Raises AttnctlError for none."""
        ends = self._ends()
        cache, ids = self.cache_of(len(self.prompt) - 1), [self.prompt[-1]]
        answer: list[int] = []
        while len(answer) < most:
            cache, logits = self._run(ids, cache, 1)
            assert logits is not None
            ids = [int(logits[-1].argmax())]
            if ids[0] in ends:
                break
            answer += ids
        if not answer:
            raise AttnctlError(
                f"{self.model.info.name} answers this prompt with nothing: its first token ends the text"
            )
        self.answer = tuple(answer)

    def _ends(self) -> set[int]:
        said = getattr(self.model.network, "generation_config", None)
        ends = getattr(said, "eos_token_id", None) or self.model.network.config.get_text_config().eos_token_id
        return set(ends) if isinstance(ends, list) else {ends}

    def log_probabilities(self, hidden: Sequence[tuple[int, int]] = ()) -> Floats:
        """Log-probability of each answer token after those before it: (m,).

        `hidden` are stretches [a, b) of the prompt's tokens that nothing behind them can see.
        """
        cuts = tuple(Cut(tuple(range(a, b))) for a, b in hidden)
        first = min([len(self.prompt) - 1, *(b for _, b in hidden)])
        ids = (*self.prompt[first:], *self.answer[:-1])
        with applied(self.model.network, [Intervention(cuts=cuts)] if cuts else []):
            _, logits = self._run(ids, self.cache_of(first), len(self.answer))
        self.forwards += bool(hidden)
        assert logits is not None
        shares = torch.log_softmax(logits.float(), -1)  # (m, vocabulary)
        found: Floats = as_numpy(shares[torch.arange(len(self.answer)), list(self.answer)])  # (m,)
        return found

    # --- where the answer looks ----------------------------------------------------------------------------------

    def looks(self) -> Looks:
        """The weights of the queries that the answer is predicted from: the prompt's last token, the answer's but one."""
        found: dict[int, Floats] = {}

        def visit(site: Site, call: Call) -> Array | None:
            found[site.layer] = as_numpy(attention.run(call).weights[0])  # (heads, m, n_k)
            return None

        ids = (self.prompt[-1], *self.answer[:-1])
        with attending(self.model.network, visit):
            self._run(ids, self.cache_of(len(self.prompt) - 1), len(ids))
        return Looks(found)


@dataclass(frozen=True)
class Looks:
    """Where the answer's queries look: layer → weights (heads, m, n_k)."""

    weights: dict[int, Floats]

    def mass(self) -> Floats:
        """The share of each key, over all heads, layers and queries: (n_k,)."""
        rows = [weights.mean((0, 1), dtype=np.float64) for weights in self.weights.values()]  # (n_k,) each
        mean: Floats = np.mean(rows, axis=0).astype(np.float32)  # (n_k,)
        return mean

    def strongest(self) -> dict[int, Any]:
        """Layer → the key that each head and query attends to most: (heads, m)."""
        return {layer: weights.argmax(-1) for layer, weights in self.weights.items()}
