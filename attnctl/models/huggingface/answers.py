"""A prompt and its answer in a decoder: generate the answer, and measure it with parts of the prompt hidden.

The prompt is read in chunks through the key/value cache; logits are computed for the answer only. A forward with a hidden
part begins after that part: the tokens before it are not computed again. If every layer sees all earlier tokens, the
hidden tokens are left out and the others keep their positions: this needs no mask and no computation for the hidden
tokens. No array is n × n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer.interventions import Cut, Intervention, seen_keys
from attnctl.models.huggingface.attention_interface import may_run_at_once, watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.models.huggingface.network import device_of_inputs, end_ids, running_network
from attnctl.models.huggingface.optional_fields import cache_of_output, config_value, keys_and_values
from attnctl.models.huggingface.readers.text import generate_greedily
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.runtime.two_at_once import two_at_once
from attnctl.text.tokens import Token, ids_of

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from attnctl.blockwise import Tick
    from attnctl.models.huggingface.attention_sites import Keywords
    from attnctl.models.huggingface.checkpoint import ModelInput


CHUNK = 512  # tokens of the prompt per forward
# classes of cache layers that hold keys and values; a Dummy refers to another layer's
PLAIN_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")


def check_cache(network: PreTrainedModel) -> None:
    """Raise AttnctlError for a network whose cache, by its configuration, holds more than keys and values of tokens."""
    from transformers import DynamicCache

    layers = DynamicCache(config=network.config).layers
    # CPM-Ant reads this many tokens of its own before the text
    prompt_length = config_value(network.config, "prompt_length")
    if prompt_length or any(type(layer).__name__ not in PLAIN_CACHES for layer in layers):
        raise AttnctlError(_no_cache(network))


def _no_cache(network: PreTrainedModel) -> str:
    name = type(network).__name__
    return f"{name} does not cache only keys and values of each token, so its prompt cannot be read in parts"


def common_start(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens both sequences begin with."""
    return next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@dataclass
class AnsweredPrompt:
    """The token ids of a prompt and of its answer, in a network that continues texts.

    `after` is a prompt that the same network has read before, unchanged since: their common start is not read again.
    """

    model: Checkpoint
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    states: list[tuple[Array, Array]] = field(default_factory=list)  # each layer's keys and values of the prompt
    forwards: int = 0
    after: InitVar[AnsweredPrompt | None] = None
    model_input: ModelInput | None = None  # of the prompt, if it is more than ids
    tick: InitVar[Tick | None] = None  # receives the shares of the prompt that are read
    _leaves_out: bool | None = None  # hidden tokens may be left out of the forward; None: not tried yet
    _looks: AnswerLooks | None = None

    def __post_init__(self, after: AnsweredPrompt | None, tick: Tick | None) -> None:
        continues_texts = self.model.info.causal or (self.together and self.model.network.can_generate())
        if self.model.kind != "self" or not continues_texts:
            raise UsageError(f"{self.model.info.name} does not continue texts, so it answers no prompt")
        self.read_prompt(after, tick)

    def another(self, tokens: Sequence[Token], answer: Sequence[int] = ()) -> Self:
        """Read another prompt, except what both begin with."""
        return type(self)(self.model, ids_of(tokens), tuple(answer), after=self)

    @property
    def base(self) -> Intervention:
        """Return the intervention of every forward: the heads that are off."""
        return self.model.intervention or Intervention()

    # --- the cache -----------------------------------------------------------------------------------------------

    def read_prompt(self, after: AnsweredPrompt | None = None, tick: Tick | None = None) -> None:
        """Read the prompt without its last token, after what it shares with `after`; store every layer's keys and values.

        Raises AttnctlError for a network whose cache holds something else (a state that cannot be cut).
        """
        check_cache(self.model.network)
        if self.sees_whole:
            cache = self._whole_cache()
        else:
            shared = common_start(self.prompt[:-1], after.prompt[:-1]) if after else 0
            before = after.cache_of(shared) if after else None
            cache = self._run_network(self.prompt[shared:-1], before, 0, tick=tick)[0]
        states = keys_and_values(() if cache is None else cache.layers)
        n_read = len(self.prompt) - 1
        if n_read and not all(k is not None and v is not None and k.shape[-2] == n_read for k, v in states):
            raise AttnctlError(_no_cache(self.model.network))
        self.states = [(k, v) for k, v in states if k is not None and v is not None]

    @property
    def together(self) -> int:
        """Return how many tokens must be read in one forward, because they see each other or include a picture; else 0."""
        return 0 if self.model_input is None else self.model_input.together

    @property
    def sees_whole(self) -> bool:
        """Return whether all tokens of the prompt see its last token, from which the answer is predicted (PaliGemma)."""
        return self.together == len(self.prompt)

    def _whole_cache(self) -> Cache:
        """Return a cache of the prompt without its last token, computed with the last token visible.

        Raises AttnctlError if that last token, read again after the cache, would not see the whole prompt.
        """
        window = config_value(self.model.network.config.get_text_config(), "sliding_window")
        if window and window < len(self.prompt):
            raise AttnctlError(
                f"{self.model.info.name} has layers that see {window:,} tokens back, and its prompt, seen whole, has "
                f"{len(self.prompt):,}: the sources of an answer are measured for prompts up to that length"
            )
        cache = self._run_network(self.prompt, None, 0)[0]
        cache.crop(-1)
        return cache

    def cache_of(self, count: int) -> Cache:
        """Return a cache of the first `count` tokens of the prompt."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(self.states if count else ()):
            cache.update(keys[:, :, :count], values[:, :, :count], layer)
        return cache

    def _run_network(
        self,
        ids: Sequence[int],
        cache: Cache | None,
        n_logits: int,
        positions: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> tuple[Cache, Array | None]:
        """Run the network over `ids` after a cache; return the cache and the logits of the last `n_logits` tokens.

        The logits are (n_logits, vocabulary). `positions` are the positions of the ids in the text; None: they follow the
        cache. `tick` receives the share of the ids that each chunk holds.
        """
        if cache is None:
            from transformers import DynamicCache

            cache = DynamicCache()
        network, logits = self.model.network, None
        if self.together and not cache.get_seq_length():
            behind = max(0, len(ids) - max(1, n_logits))
            edges = sorted(
                {0, *(max(edge, self.together) for edge in (*range(CHUNK, behind, CHUNK), behind, len(ids)))}
            )
        else:  # the answer is in the last chunk: a forward for it alone reads all weights of the network for few tokens
            edges = [*range(0, max(1, len(ids) - n_logits), CHUNK), len(ids)]
        with (
            running_network(network, len(ids), self.model.info.name, several=True),
            apply_interventions(network, [self.base], self.model.kind),
        ):
            for a, b in zip(edges, edges[1:], strict=False):
                if a == b:
                    continue
                chunk = torch.tensor([ids[a:b]], device=device_of_inputs(network))  # (1, chunk)
                logits_to_keep = n_logits if b == len(ids) and n_logits else 1
                extra: Keywords = {}
                if positions is not None:
                    extra = {"position_ids": torch.tensor([positions[a:b]]).to(chunk.device)}
                elif self.together and not cache.get_seq_length():
                    assert self.model_input is not None
                    extra = self.model_input.other_inputs(b)
                output = network(
                    input_ids=chunk, past_key_values=cache, use_cache=True, logits_to_keep=logits_to_keep, **extra
                )
                if (cache := cache_of_output(output)) is None:
                    raise AttnctlError(_no_cache(network))
                logits = output.logits[0]  # (keep, vocabulary)
                if tick is not None:
                    tick((b - a) / len(ids))
        return cache, logits

    # --- the answer ----------------------------------------------------------------------------------------------

    def generate_answer(self, count: int) -> None:
        """Generate the answer greedily, with at most `count` tokens, up to the end token.

        The answer is generated after the cache of the prompt; a prompt with a picture, or whose tokens see each other, is
        read again. Raises AttnctlError for an empty answer.
        """
        network, ids = self.model.network, torch.tensor([self.prompt], device=device_of_inputs(self.model.network))
        if self.model_input is not None and self.together:
            inputs = dict(self.model_input.inputs)
        else:
            inputs = {"input_ids": ids, "past_key_values": self.cache_of(len(self.prompt) - 1), "use_cache": True}
            inputs["cache_implementation"] = None  # a configured cache class cannot be combined with this cache
        with (
            running_network(network, len(self.prompt), self.model.info.name),
            apply_interventions(network, [self.base], self.model.kind),
        ):
            generated = generate_greedily(network, inputs, count)
        answer, end_tokens = generated[len(self.prompt) :][:count], set(end_ids(network))
        self.answer = tuple(takewhile(lambda token: token not in end_tokens, answer))
        if not self.answer:
            raise AttnctlError(
                f"{self.model.info.name} answers this prompt with nothing: its first token ends the text"
            )

    def log_probabilities(self, hidden: Sequence[tuple[int, int]] = ()) -> Floats:
        """Return the log-probability of each answer token, given the tokens before it: (m,).

        `hidden` are ranges [a, b) of the prompt's tokens that later tokens cannot see.
        """
        self.forwards += bool(hidden)
        return self._log_probabilities(hidden)

    @property
    def at_once(self) -> int:
        """Return how many forwards `log_probabilities_of` runs at once: 1 or 2."""
        alone = torch.get_num_threads() < 2 or self.together or not may_run_at_once(self.model.network)
        return 1 if alone else 2

    def log_probabilities_of(self, groups: Sequence[Sequence[tuple[int, int]]]) -> Iterator[Floats]:
        """Yield `log_probabilities` with each of the groups hidden, in their order."""
        if self.at_once == 1 or len(groups) < 2:
            yield from map(self.log_probabilities, groups)
            return
        self.leaves_out()  # tried once, before two threads ask
        for shares in two_at_once(self._log_probabilities, groups):
            self.forwards += 1
            yield shares

    def _log_probabilities(self, hidden: Sequence[tuple[int, int]]) -> Floats:
        within_prompt = hidden and all(b < len(self.prompt) for _, b in hidden)
        return self._logits_without(hidden) if within_prompt and self.leaves_out() else self._masked(hidden)

    def leaves_out(self) -> bool:
        """Return whether hidden tokens may be left out: the network sees all earlier tokens, and uses given positions.

        The first is checked in the attention of the answer; the second by hiding one token both ways.
        """
        if self._leaves_out is None:
            last = len(self.prompt) - 2
            self._leaves_out = last > 0 and not self.together and self.answer_looks().sees_all
            if self._leaves_out:
                try:
                    without, masked = self._logits_without([(last, last + 1)]), self._masked([(last, last + 1)])
                    self._leaves_out = bool(np.allclose(without, masked, rtol=1e-4, atol=1e-3))
                except AttnctlError:  # the network takes no position_ids
                    self._leaves_out = False
        return self._leaves_out

    def _masked(self, hidden: Sequence[tuple[int, int]]) -> Floats:
        """Return the log-probabilities with a mask that hides the ranges from all later tokens: (m,)."""
        start = min([len(self.prompt) - 1, *(b for _, b in hidden)])
        cuts = tuple(Cut(tuple(range(a, b))) for a, b in hidden)
        # text or other regions between a region's rows come before its end
        if any(a < self.together for a, _ in hidden):
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
        """Return the log-probabilities with the hidden tokens left out and the others at their positions: (m,)."""
        start = min(a for a, _ in hidden)
        ids = (*self.prompt, *self.answer[:-1])
        left_out = {position for a, b in hidden for position in range(a, b)}
        positions = [position for position in range(start, len(ids)) if position not in left_out]
        _, logits = self._run_network(
            [ids[position] for position in positions], self.cache_of(start), len(self.answer), positions
        )
        return self._shares(logits)

    def _shares(self, logits: Array | None) -> Floats:
        """Return the log-probabilities of the answer tokens, from the logits of the tokens before them: (m,)."""
        assert logits is not None
        shares = torch.log_softmax(logits.float(), -1)  # (m, vocabulary)
        answer_shares: Floats = as_numpy(shares[torch.arange(len(self.answer)), list(self.answer)])  # (m,)
        return answer_shares

    # --- where the answer looks ----------------------------------------------------------------------------------

    def answer_inputs(self) -> dict[str, Array]:
        """Return the inputs for the queries that predict the answer, after a cache of the prompt."""
        ids = (self.prompt[-1], *self.answer[:-1])
        input_ids = torch.tensor([ids], device=device_of_inputs(self.model.network))  # (1, m)
        cache = self.cache_of(len(self.prompt) - 1)
        return {"input_ids": input_ids, "past_key_values": cache, "use_cache": True, "logits_to_keep": len(ids)}

    def run_answer(self) -> None:
        """Run the network over the queries that predict the answer: the prompt's last token, and the answer but its last."""
        network = self.model.network
        with (
            running_network(network, len(self.answer), self.model.info.name),
            apply_interventions(network, [self.base], self.model.kind),
        ):
            network(**self.answer_inputs())

    def answer_looks(self) -> AnswerLooks:
        """Return where the queries that predict the answer look."""
        if self._looks is None:
            looks = AnswerLooks({}, {})
            with watch_attention(self.model.network, looks.keep_call):
                self.run_answer()
            self._looks = looks
        return self._looks


@dataclass
class AnswerLooks:
    """Where the answer's queries look: for each layer the mean weight of each key, and each head's strongest key."""

    masses: dict[int, Floats]  # layer → mean over all heads and queries: (n_k,)
    strongest: dict[int, Array]  # layer → the key that each head and query attends to most: (heads, m)
    sees_all: bool = True  # every query sees every earlier key, without a bias on the scores

    def keep_call(self, site: Site, call: Call) -> Array | None:
        """Keep the mean weights and the strongest keys of one layer."""
        weights = attention.run_call(call).weights[0]  # (heads, m, n_k)
        self.masses[site.layer] = as_numpy(weights.double().mean((0, 1)))  # (n_k,)
        self.strongest[site.layer] = as_numpy(weights.argmax(-1))  # (heads, m)
        n_q, n_k = weights.shape[-2:]
        all_earlier = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)  # (m, n_k)
        self.sees_all &= call.bias is None and bool((seen_keys(call).cpu() == all_earlier).all())
        return None

    def mass_of_keys(self) -> Floats:
        """Return the mean weight of each key, over all heads, layers and queries: (n_k,)."""
        mean: Floats = np.mean(list(self.masses.values()), axis=0).astype(np.float32)  # (n_k,)
        return mean
