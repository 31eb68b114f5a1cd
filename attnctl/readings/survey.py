"""Running a model over a long text and keeping an overview, facts of each head, links or single rows: no n × n weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import attention
from attnctl.arrays import as_numpy
from attnctl.attention import Array, Call
from attnctl.blockwise import Tick, measure, pool, positions
from attnctl.blockwise.rows import at_offset, exact_rows, top_links
from attnctl.errors import AttnctlError
from attnctl.readings.head_statistics import HeadStatistics, facts
from attnctl.readings.overview import Grid, Links, LongRow, Overview, Part
from attnctl.readings.record import Enough, Run, chosen
from attnctl.tokens import Token, checked

if TYPE_CHECKING:
    from attnctl.models import Model


@dataclass(frozen=True)
class Ask:
    """What to keep of a long text. `hidden` keys are masked away: each row shares its attention among the rest."""

    rows: tuple[Part, ...] = ()
    columns: tuple[Part, ...] = ()
    pool: str = "mean"
    hidden: tuple[int, ...] = ()
    facts: bool = False
    links: int = 0


def survey(
    model: Model,
    text: str,
    ask: Ask,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: tuple[Token, ...] | None = None,
    tick: Tick | None = None,
) -> Overview:
    """What was asked, for the layers and heads chosen (None: all). `tokens` are the text's own unless given.

    Raises AttnctlError for an empty text or a model that tells only its weights, UsageError for a selection not there.
    """
    given = _tokens(model, text) if tokens is None else tokens
    parts: dict[str, dict[tuple[int, int], Any]] = {"grid": {}, "links": {}}
    told: list[HeadStatistics] = []
    masks: dict[int, Any] = {}

    def visit(layer: int, call: Call, heads: Sequence[int], tick: Tick | None) -> None:
        call = _without(call, ask.hidden)
        if ask.rows:
            grids = pool(call, *_ranges(ask), ask.pool, tick)  # (heads, rows, columns)
            parts["grid"] |= {(layer, head): grid for head, grid in zip(heads, grids, strict=True)}
            if (mask := _seen(call, ask)) is not None:
                masks[layer] = mask
        if ask.facts:
            told.extend(facts(layer, call, heads, given, tick))
        if ask.links:
            keys, weights = top_links(call, ask.links)
            found = zip(heads, keys, weights, strict=True)
            parts["links"] |= {(layer, head): Links(*link) for head, *link in found}

    ran = _run(model, text, given, visit, layers, heads, tick)
    return Overview(
        text=text,
        tokens=ran.tokens,
        model=model.info,
        key_tokens=ran.key_tokens,
        grid=Grid(ask.pool, ask.rows, ask.columns, parts["grid"], masks) if ask.rows else None,
        facts=tuple(told),
        links=parts["links"],
        notes=ran.notes,
    )


def long_row(
    model: Model,
    text: str,
    query: int,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: tuple[Token, ...] | None = None,
    tick: Tick | None = None,
) -> LongRow:
    """The exact weights of one query, by its index, on every key; errors as of `survey`."""
    given = _tokens(model, text) if tokens is None else tokens
    found: dict[tuple[int, int], Any] = {}

    def visit(layer: int, call: Call, heads: Sequence[int], tick: Tick | None) -> None:
        rows = exact_rows(call, [query])[:, 0]  # (heads, n_k)
        found.update({(layer, head): row for head, row in zip(heads, rows, strict=True)})

    ran = _run(model, text, given, visit, layers, heads, tick)
    return LongRow(text, ran.tokens, ran.key_tokens or ran.tokens, model.info, query, found, ran.notes)


def exact_blocks(
    model: Model,
    text: str,
    blocks: Sequence[tuple[int, int, int, int]],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tick: Tick | None = None,
) -> dict[tuple[int, int], list[Any]]:
    """The exact weights of some blocks, each (first query, past, first key, past): (layer, head) → one (rows, keys) each.

    Errors as of `survey`.
    """
    found: dict[tuple[int, int], list[Any]] = {}

    def visit(layer: int, call: Call, heads: Sequence[int], tick: Tick | None) -> None:
        for a, b, c, d in blocks:
            rows = exact_rows(call, range(a, b))[..., c:d]  # (heads, rows, keys)
            for head, block in zip(heads, rows, strict=True):
                found.setdefault((layer, head), []).append(block)

    _run(model, text, _tokens(model, text), visit, layers, heads, tick)
    return found


def probe(
    model: Model,
    length: int = 100,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[tuple[int, int], tuple[float, float]]:
    """Induction and duplicate-token scores on random tokens said twice (Olsson et al. 2022): (layer, head) → (both).

    The mean weight, over the second half, on the token after the first copy, and on the first copy.
    """
    tokens = _twice(model, length, seed)
    at = np.arange(len(tokens) - length, len(tokens))
    found: dict[tuple[int, int], tuple[float, float]] = {}

    def visit(layer: int, call: Call, heads: Sequence[int], tick: Tick | None) -> None:
        lse = measure(call).logsumexp  # (heads, n)
        scores = [at_offset(call, lse, back)[:, at].mean(-1) for back in (1 - length, -length)]  # (heads,) each
        found.update({(layer, head): (float(a), float(b)) for head, a, b in zip(heads, *scores, strict=True)})

    _run(model, " ".join(token.text for token in tokens), tokens, visit, layers, heads, None)
    return found


# --- running -----------------------------------------------------------------------------------------------------


def _tokens(model: Model, text: str) -> tuple[Token, ...]:
    tokens = model.tokenize(checked(text))
    if not tokens:
        raise AttnctlError("the text has no tokens: give at least one word")
    return tokens


def _run(
    model: Model,
    text: str,
    tokens: tuple[Token, ...],
    visit: Any,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    tick: Tick | None,
) -> Run:
    """The tokens through the model, `visit` called with each chosen layer's call for the chosen heads alone."""
    info = model.info
    keep = set(chosen(layers, info.n_layers or 1, "layer", info.name))
    some = chosen(heads, info.n_heads or 1, "head", info.name)
    met = set()

    def seen(layer: int, call: Call) -> Array | None:
        if layer in keep:
            met.add(layer)
            narrow = call if len(some) == call.queries.shape[0] else attention.select(call, list(some))
            visit(layer, narrow, some, None if tick is None else lambda share: tick(share / len(keep)))
        if layer == max(keep):
            raise Enough
        return None  # the model goes on with a fused kernel

    ran = model.run(tokens, seen, text)
    if not met:
        raise AttnctlError(
            f"{info.name} hands over nothing but its finished weights, so a long text cannot be summed up without them: "
            "see attnctl heatmap on a short one"
        )
    return ran


def _without(call: Call, hidden: Sequence[int]) -> Call:
    """The call with some keys hidden from every query."""
    if not hidden:
        return call
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    kept: Any = np.ones(n_k, bool)
    kept[list(hidden)] = False
    if isinstance(call.queries, np.ndarray):
        mask: Any = np.broadcast_to(kept, (n_q, n_k))
    else:
        import torch

        mask = torch.as_tensor(kept, device=call.queries.device).expand(n_q, n_k)
    return replace(call, mask=mask if call.mask is None else call.mask & mask)


def _twice(model: Model, length: int, seed: int) -> tuple[Token, ...]:
    """Random tokens of the model's vocabulary, said twice, after what the model begins every text with."""
    rng = np.random.default_rng(seed)
    pieces: Any = getattr(model, "pieces", None)
    if pieces is not None:
        added = set(pieces.tokenizer.get_added_tokens_decoder())
        ids = [at for at in range(pieces.tokenizer.get_vocab_size()) if at not in added]
        first = [token for token in model.tokenize("a")[:1] if token.special]
        names = {at: pieces.tokenizer.id_to_token(at) or str(at) for at in ids}
    else:
        words: Sequence[str] = [word for word in getattr(model, "vocabulary", ()) if word.isalpha()]
        words = words if len(words) > 1 else [f"word{at}" for at in range(10 * length)]
        known = {word: at for at, word in enumerate(getattr(model, "vocabulary", ()))}
        names, first = {known.get(word, at): word for at, word in enumerate(words)}, []
        ids = list(names)
    drawn = rng.choice(ids, length, replace=len(ids) < length).tolist()
    return (*first, *(Token(names[at], at) for at in 2 * drawn))


# --- what is kept ------------------------------------------------------------------------------------------------


def _ranges(ask: Ask) -> tuple[list[Any], list[Any]]:
    return [part.ranges for part in ask.rows], [part.ranges for part in ask.columns]


def _seen(call: Call, ask: Ask) -> Any:
    """Whether any query of a row part may see any key of a column part (rows, columns); None where all may."""
    ends = [
        np.array([(part.ranges[0][0], part.ranges[-1][1] - 1) for part in parts]) for parts in (ask.rows, ask.columns)
    ]
    place = positions(call)[ends[0]]  # (rows, 2)
    ahead = place[:, None, 1] - ends[1][None, :, 0]  # (rows, columns), the widest gap
    behind = place[:, None, 0] - ends[1][None, :, 1]  # the narrowest
    seen = ahead >= 0 if call.causal else np.ones(ahead.shape, bool)
    if call.window is not None:
        seen &= (behind < call.window) & (ahead > -call.window)
    if call.mask is not None:
        mask = as_numpy(call.mask)
        some = [mask[a:b].any(0) for part in ask.rows for a, b in [(part.ranges[0][0], part.ranges[-1][1])]]
        by_row = np.stack(some) if len(mask) > 1 else np.repeat(mask, len(ask.rows), 0)  # (rows, n_k)
        spans = [part.ranges for part in ask.columns]
        seen &= np.stack([np.any([by_row[:, a:b].any(1) for a, b in span], axis=0) for span in spans], 1)
    return None if seen.all() else seen
