"""The scores by which indexers pick the keys that queries may see, as a network runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch.overrides import TorchFunctionMode

from attnctl.attention import Array
from attnctl.models.huggingface.attention_session import names_of_modules
from attnctl.models.huggingface.key_slots import KeySlots

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


class _TopK(TorchFunctionMode):
    """Keeps what each top-k was taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_of: list[Array] = []

    def __torch_function__(
        self,
        func: Callable[..., Array],
        types: object,
        args: tuple[Array, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Array:
        if getattr(func, "__name__", "") == "topk" and args:
            self.taken_of.append(args[0])
        return func(*args, **(kwargs or {}))


class IndexerScores:
    """The scores by which indexers pick the keys that queries may see (DeepSeek-V3.2), as a network runs.

    An indexer is a module whose class says so; its scores are what it takes the highest of. `scores` holds them by layer:
    (batch, n_q, n_k), hidden keys far below 0. Of an indexer that scores blocks of a query's keys (Qwen 4), `blocks` holds
    how many keys make one, and each key has the score of its block, or 0 after the last whole one.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        names = names_of_modules(network)
        self._indexers = [part for part in network.modules() if type(part).__name__.endswith("Indexer")]
        self._layers = {id(part): names[id(part)].site_of_occurrence(0).layer for part in self._indexers}
        self.scores: dict[int, Array] = {}
        self.blocks: dict[int, int] = {}
        self._not_shown: set[int] = set()
        self._modes: dict[int, _TopK] = {}

    @contextmanager
    def watch_indexers(self) -> Iterator[None]:
        """Within this, the scores are seen."""
        with ExitStack() as stack:
            for part in self._indexers:
                stack.callback(part.register_forward_pre_hook(self._begins).remove)
                stack.callback(part.register_forward_hook(self._leave_indexer, always_call=True).remove)
            yield

    def _begins(self, part: Module, _: object) -> None:
        self._modes[id(part)] = _TopK()
        self._modes[id(part)].__enter__()  # type: ignore[no-untyped-call]

    def _leave_indexer(self, part: Module, args: tuple[object, ...], __: object) -> None:
        mode = self._modes.pop(id(part), None)
        if mode is None:
            return
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        layer, size = self._layers[id(part)], getattr(part, "compress_ratio", None)
        if isinstance(size, int) and all(scores.ndim == 1 for scores in mode.taken_of):
            mask = next((one for one in args if isinstance(one, torch.Tensor) and one.ndim == 4), None)
            found = None if mask is None else scores_of_blocks(mask, mode.taken_of, size)
            if found is not None:
                self.scores[layer], self.blocks[layer] = found, size
        elif mode.taken_of:
            self.scores[layer] = mode.taken_of[-1]

    def scores_of_layer(self, layer: int, n_q: int, n_k: int, slots: KeySlots | None = None) -> Array | None:
        """The scores of a layer (n_q, n_k), 0 where a query may not look; None where there is none for each key.

        Of compressed slots, with a column for every key and slot of the text.
        """
        found = self._scores_of_keys(layer, n_q, n_k, slots)
        if found is None and layer in self.scores:
            self._not_shown.add(layer)
        return found

    def _scores_of_keys(self, layer: int, n_q: int, n_k: int, slots: KeySlots | None) -> Array | None:
        scores = self.scores.get(layer)
        if scores is None or scores.ndim < 2 or scores.shape[-2] != n_q or not scores.numel():
            return None
        found = scores.reshape(-1, n_q, scores.shape[-1])[0].float()  # (n_q, keys)
        found = torch.where(found > torch.finfo(torch.float32).min / 2, found, torch.zeros_like(found))
        if slots is not None and slots.every_span:
            return slots.widened_index(layer, found)
        return found if found.shape[-1] == n_k else None

    def score_notes(self) -> tuple[str, ...]:
        """What a reader of the scores must know of blocks, and of scores that are not shown, in sentences."""
        sizes = sorted(set(self.blocks.values()))
        apart = "Its scores are of blocks of keys, for groups of heads apart: what it picks is shown, and they are not."
        return (*((apart,) * bool(self._not_shown)), *map(_sentence_of_blocks, sizes))


def _sentence_of_blocks(size: int) -> str:
    return (
        f"It scores blocks of {size} keys: each key has its block's score, and those after the last whole block, which "
        "are always seen, have none (0)."
    )


def scores_of_blocks(mask: Array, taken_of: Sequence[Array], size: int) -> Array | None:
    """Scores (batch, n_q, n_k) of keys from those of blocks of `size` of the keys that a query may see.

    `mask` (batch, 1, n_q, n_k) says which these are; `taken_of` holds, query by query, the scores of the whole blocks
    (blocks,) of each that has any. None where their numbers do not fit.
    """
    shown = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]  # (batch, n_q, n_k)
    counts = shown.sum(-1) // size  # (batch, n_q)
    places = counts.nonzero().tolist()
    if [int(counts[item, query]) for item, query in places] != [len(scores) for scores in taken_of]:
        return None
    found = torch.zeros(shown.shape, device=shown.device)  # (batch, n_q, n_k)
    for (item, query), scores in zip(places, taken_of, strict=True):
        keys = shown[item, query].nonzero().flatten()[: size * len(scores)]  # (size · blocks,)
        found[item, query, keys] = scores.float().repeat_interleave(size)
    return found
