"""A prompt and its answer in a decoder: the answer generated, measured, and measured again with parts of the prompt hidden.

The prompt is read in chunks through the key/value cache, logits are made for the answer alone, and a forward with a part
hidden begins behind that part: what stands before it is not computed again. Where every layer sees all that came before,
a part hidden from all that follows is a part whose tokens are left out while the others keep their positions: no mask is
needed, and the hidden tokens cost nothing. Nothing is ever n × n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl import attention
from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.interventions import Cut, Intervention, seen_keys
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.models.huggingface.network import device_of_inputs, end_ids, running_network
from attnctl.models.huggingface.readers.text import generate_greedily

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output
    from attnctl.models.huggingface.checkpoint import ModelInput


CHUNK = 512  # tokens of the prompt that are read at once
# layers of a cache that hold keys and values, those of another layer (Dummy) included
PLAIN_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")


def check_cache(network: PreTrainedModel) -> None:
    """Raise AttnctlError for a network whose cache, by its configuration, holds more than keys and values of tokens."""
    from transformers import DynamicCache

    layers = DynamicCache(config=network.config).layers
    own = getattr(network.config, "prompt_length", None)  # CPM-Ant reads so many tokens of its own before the text
    if own or any(type(layer).__name__ not in PLAIN_CACHES for layer in layers):
        raise AttnctlError(_no_cache(network))


def _no_cache(network: PreTrainedModel) -> str:
    name = type(network).__name__
    return f"{name} keeps no keys and values of every token alone, so its prompt cannot be read in parts"


def common_start(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass
class AnsweredPrompt:
    """A prompt's token ids, and those of the answer to it, in a network that continues texts.

    `after` is a prompt read before in the same network, unchanged since: what both begin with is not read again.
    """

    model: Checkpoint
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    states: list[tuple[Array, Array]] = field(default_factory=list)  # each layer's keys and values of the prompt
    forwards: int = 0
    after: InitVar[AnsweredPrompt | None] = None
    given: ModelInput | None = None  # what the model is given of the prompt where more than ids
    _leaves_out: bool | None = None  # hidden tokens may be left out of the forward; None: not tried yet
    _looks: AnswerLooks | None = None

    def __post_init__(self, after: AnsweredPrompt | None) -> None:
        continues = self.model.info.causal or (self.together and self.model.network.can_generate())
        if self.model.kind != "self" or not continues:
            raise UsageError(f"{self.model.info.name} does not continue texts, so it answers no prompt")
        self.read_prompt(after)

    @property
    def base(self) -> Intervention:
        """What is changed throughout: the heads that are off."""
        return self.model.intervention or Intervention()

    # --- the cache -----------------------------------------------------------------------------------------------

    def read_prompt(self, after: AnsweredPrompt | None = None) -> None:
        """Read the prompt but for its last token, behind what it shares with another; keep every layer's keys and values.

        Raises AttnctlError for a network whose cache holds something else (a state that cannot be cut).
        """
        check_cache(self.model.network)
        if self.sees_whole:
            cache = self._whole_cache()
        else:
            shared = common_start(self.prompt[:-1], after.prompt[:-1]) if after else 0
            cache = self._run_network(self.prompt[shared:-1], after.cache_of(shared) if after else None, 0)[0]
        layers = getattr(cache, "layers", None)
        kept = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers or ()]
        whole = len(self.prompt) - 1
        if whole and not all(k is not None and v is not None and k.shape[-2] == whole for k, v in kept):
            raise AttnctlError(_no_cache(self.model.network))
        self.states = [(k, v) for k, v in kept if k is not None and v is not None]

    @property
    def together(self) -> int:
        """How many tokens one forward reads, since they see each other ahead or a picture stands among them."""
        return 0 if self.given is None else self.given.together

    @property
    def sees_whole(self) -> bool:
        """Whether tokens of the prompt see its last one (PaliGemma), from which the answer is predicted."""
        return self.together == len(self.prompt)

    def _whole_cache(self) -> Cache:
        """A cache of the prompt but for its last token, which the others have seen.

        Raises AttnctlError where that token, read again behind it, would not see all of the prompt.
        """
        window = getattr(self.model.network.config.get_text_config(), "sliding_window", None)
        if window and window < len(self.prompt):
            raise AttnctlError(
                f"{self.model.info.name} has layers that see {window:,} tokens back, and its prompt, seen whole, has "
                f"{len(self.prompt):,}: where an answer came from is measured for prompts up to that"
            )
        cache: Any = self._run_network(self.prompt, None, 0)[0]
        cache.crop(-1)
        return cache  # type: ignore[no-any-return]

    def cache_of(self, first: int) -> Cache:
        """A cache that holds the prompt's tokens [0, first)."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(self.states if first else ()):
            cache.update(keys[:, :, :first], values[:, :, :first], layer)
        return cache

    def _run_network(
        self, ids: Sequence[int], cache: Cache | None, wanted: int, positions: Sequence[int] | None = None
    ) -> tuple[Output, Array | None]:
        """The network over `ids` behind a cache: the cache, and the last `wanted` tokens' logits (wanted, vocabulary).

        `positions` are the ids' own in the text; None: they follow the cache.
        """
        if cache is None:
            from transformers import DynamicCache

            cache = DynamicCache()
        network, logits = self.model.network, None
        edges = [*range(0, max(0, len(ids) - max(1, wanted)), CHUNK), max(0, len(ids) - max(1, wanted)), len(ids)]
        if self.together and not cache.get_seq_length():
            edges = sorted({0, *(max(edge, self.together) for edge in edges[1:])})
        with (
            running_network(network, len(ids), self.model.info.name),
            apply_interventions(network, [self.base], self.model.kind),
        ):
            for a, b in zip(edges, edges[1:], strict=False):
                if a == b:
                    continue
                given = torch.tensor([ids[a:b]], device=device_of_inputs(network))  # (1, chunk)
                keep = wanted if b == len(ids) and wanted else 1
                own: dict[str, Any] = {}
                if positions is not None:
                    own = {"position_ids": torch.tensor([positions[a:b]]).to(given.device)}
                elif self.together and not cache.get_seq_length():
                    assert self.given is not None
                    own = self.given.beside(b)
                output = network(input_ids=given, past_key_values=cache, use_cache=True, logits_to_keep=keep, **own)
                cache, logits = getattr(output, "past_key_values", None), output.logits[0]  # (keep, vocabulary)
                if cache is None:
                    raise AttnctlError(_no_cache(network))
        return cache, logits

    # --- the answer ----------------------------------------------------------------------------------------------

    def generate_answer(self, most: int) -> None:
        """Let the model answer greedily with at most `most` tokens, up to its own end. Raises AttnctlError for none.

        It is written behind the cache of the prompt; one whose tokens see each other ahead, or a picture, is read again.
        """
        network, ids = self.model.network, torch.tensor([self.prompt], device=device_of_inputs(self.model.network))
        if self.given is not None and self.together:
            inputs = dict(self.given.inputs)
        else:
            inputs = {"input_ids": ids, "past_key_values": self.cache_of(len(self.prompt) - 1), "use_cache": True}
            inputs["cache_implementation"] = None  # as it may be configured: it does not go with a cache that is given
        with (
            running_network(network, len(self.prompt), self.model.info.name),
            apply_interventions(network, [self.base], self.model.kind),
        ):
            made = generate_greedily(network, inputs, most)
        answer, ends = made[len(self.prompt) :][:most], set(end_ids(network))
        self.answer = tuple(takewhile(lambda token: token not in ends, answer))
        if not self.answer:
            raise AttnctlError(
                f"{self.model.info.name} answers this prompt with nothing: its first token ends the text"
            )

    def log_probabilities(self, hidden: Sequence[tuple[int, int]] = ()) -> Floats:
        """Log-probability of each answer token after those before it: (m,).

        `hidden` are stretches [a, b) of the prompt's tokens that nothing behind them can see.
        """
        self.forwards += bool(hidden)
        inner = hidden and all(b < len(self.prompt) for _, b in hidden)
        return self._logits_without(hidden) if inner and self.leaves_out() else self._masked(hidden)

    def leaves_out(self) -> bool:
        """Whether hidden tokens may be left out: the network sees all that came before, and takes positions as told.

        The one is seen in the answer's own attention, the other tried on a token that is hidden both ways.
        """
        if self._leaves_out is None:
            last = len(self.prompt) - 2
            self._leaves_out = last > 0 and not self.together and self.answer_looks().sees_all
            if self._leaves_out:
                try:
                    one, other = self._logits_without([(last, last + 1)]), self._masked([(last, last + 1)])
                    self._leaves_out = bool(np.allclose(one, other, rtol=1e-4, atol=1e-3))
                except AttnctlError:  # it takes no positions
                    self._leaves_out = False
        return self._leaves_out

    def _masked(self, hidden: Sequence[tuple[int, int]]) -> Floats:
        """The stretches hidden by a mask from all that follows: (m,)."""
        start = min([len(self.prompt) - 1, *(b for _, b in hidden)])
        cuts = tuple(Cut(tuple(range(a, b))) for a, b in hidden)
        if any(
            a < self.together for a, _ in hidden
        ):  # others lie between a region's rows, and may see it from before it
            start, cuts = 0, (Cut(tuple(key for cut in cuts for key in cut.keys), apart=True),)
        with apply_interventions(self.model.network, [Intervention(cuts=cuts)] if cuts else [], self.model.kind):
            if start < self.together and self.sees_whole:
                start, cache = len(self.prompt) - 1, self._whole_cache()
            else:
                cache = self.cache_of(start)
            ids = (*self.prompt[start:], *self.answer[:-1])
            _, logits = self._run_network(ids, cache, len(self.answer))
        return self._shares(logits)

    def _logits_without(self, hidden: Sequence[tuple[int, int]]) -> Floats:
        """The stretches' tokens left out, the others at their own positions: (m,)."""
        start = min(a for a, _ in hidden)
        whole = (*self.prompt, *self.answer[:-1])
        left_out = {at for a, b in hidden for at in range(a, b)}
        kept = [at for at in range(start, len(whole)) if at not in left_out]
        _, logits = self._run_network([whole[at] for at in kept], self.cache_of(start), len(self.answer), kept)
        return self._shares(logits)

    def _shares(self, logits: Array | None) -> Floats:
        """The answer tokens' log-probabilities by the logits of those before them: (m,)."""
        assert logits is not None
        shares = torch.log_softmax(logits.float(), -1)  # (m, vocabulary)
        found: Floats = as_numpy(shares[torch.arange(len(self.answer)), list(self.answer)])  # (m,)
        return found

    # --- where the answer looks ----------------------------------------------------------------------------------

    def answer_inputs(self) -> dict[str, Array]:
        """The network's inputs for the queries that the answer is predicted from, behind a cache of the prompt."""
        ids = (self.prompt[-1], *self.answer[:-1])
        given = torch.tensor([ids], device=device_of_inputs(self.model.network))  # (1, m)
        cache = self.cache_of(len(self.prompt) - 1)
        return {"input_ids": given, "past_key_values": cache, "use_cache": True, "logits_to_keep": len(ids)}

    def run_answer(self) -> None:
        """The network over the queries that the answer is predicted from: the prompt's last token, the answer's but one."""
        network = self.model.network
        with (
            running_network(network, len(self.answer), self.model.info.name),
            apply_interventions(network, [self.base], self.model.kind),
        ):
            network(**self.answer_inputs())

    def answer_looks(self) -> AnswerLooks:
        """Where the queries look that the answer is predicted from."""
        if self._looks is None:
            found = AnswerLooks({}, {})
            with watch_attention(self.model.network, found.keep_call):
                self.run_answer()
            self._looks = found
        return self._looks


@dataclass
class AnswerLooks:
    """Where the answer's queries look: of each layer the share of each key, and each head's strongest key."""

    masses: dict[int, Floats]  # layer → over all heads and queries: (n_k,)
    strongest: dict[int, Array]  # layer → the key that each head and query attends to most: (heads, m)
    sees_all: bool = True  # every query every key before it, at no other price than the scores

    def keep_call(self, site: Site, call: Call) -> Array | None:
        """Take what is kept of one layer."""
        weights = attention.run_call(call).weights[0]  # (heads, m, n_k)
        self.masses[site.layer] = as_numpy(weights.double().mean((0, 1)))  # (n_k,)
        self.strongest[site.layer] = as_numpy(weights.argmax(-1))  # (heads, m)
        n_q, n_k = weights.shape[-2:]
        every = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)  # (m, n_k)
        self.sees_all &= call.bias is None and bool((seen_keys(call).cpu() == every).all())
        return None

    def mass_of_keys(self) -> Floats:
        """The share of each key, over all heads, layers and queries: (n_k,)."""
        mean: Floats = np.mean(list(self.masses.values()), axis=0).astype(np.float32)  # (n_k,)
        return mean
