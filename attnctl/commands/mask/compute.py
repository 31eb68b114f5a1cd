"""Run a model, read the mask of every layer from its calls of attention, and exchange its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.checks import limits
from attnctl.checks.argument_types import check_network
from attnctl.commands.mask.directions import is_causal_by_documentation
from attnctl.commands.mask.exchange import ALONE, CallMasks, Search, Seen
from attnctl.commands.mask.expected import (
    TRIGRAMS,
    Expectations,
    Reach,
    Text,
    pictures_of,
    reach_by_documentation,
    rule_of,
    with_prefix,
)
from attnctl.commands.mask.intervals import band, masks_of_rows
from attnctl.commands.mask.result import MaskCheck, MaskViolation
from attnctl.commands.mask.sets import Chain, exchanged_sets_of_chain, nearest, reached_by
from attnctl.errors import AttnctlError
from attnctl.models.exchange import Block, RunsBlocks, row_change, row_size, sets_of_rows
from attnctl.models.huggingface.attention_interface import uncompiled
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.exchanged_network import OF_LOSS, ExchangedNetwork
from attnctl.models.huggingface.token_batch import HIDING, other_ids, special_ids, visible_pairs_of_heads
from attnctl.runtime.arrays import Bools

if TYPE_CHECKING:
    from attnctl.text.tokens import Token

NO_TYPES = (
    "The batch has no token_type_ids, with which PaliGemma's processor marks picture and prompt: without them, kernels of "
    "transformers read it differently."
)


def mask(model: Any, *, segments: Any = None, expect: Any = None, **inputs: Any) -> MaskCheck:
    """Return the mask of every layer of a transformers model, and whether the model keeps to what is expected.

    `.holds` is True if every layer keeps to it, and None if nothing breaks it but some mask cannot be read; `.violations`
    are what breaks it, each with layer, query, key and change; `.groups` are the layers with the same mask, with a sentence
    and the matrix. `inputs` are the arguments of the model: input_ids, an attention_mask of two or four dimensions or a
    BlockMask, pixel_values. `segments` (batch, n) numbers packed documents. `expect` is causal, bidirectional, "prefix 16",
    "window 512", segments, or a table of 0 and 1 (n, n); by default what the configuration and the documentation of the
    family say. The model runs with its own kernel. Raises UsageError for an invalid batch.

    >>> found = attnctl.mask(model, **tokenizer("Alice will eat", return_tensors="pt"))  # doctest: +SKIP
    >>> assert not found.violations, found  # doctest: +SKIP
    """
    check_network("mask", model)
    return MaskSearch(uncompiled(model), inputs, segments, expect).measure()


class MaskSearch(Search):
    """A network of transformers with its inputs, checked."""

    def __init__(
        self, network: Any, inputs: Mapping[str, Any], segments: Any = None, expect: Any = None, name: str = "",
        tokens: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Check and lay out the inputs. Raises UsageError for inputs that do not fit each other or the network."""
        rule, batch = rule_of(expect), {name: value for name, value in inputs.items() if name not in OF_LOSS}
        self.engine = ExchangedNetwork(network, batch, name, segments=segments, why="mask exchanges them")
        self.kind, self.kernel, self.trusted = self.engine.kind, self.engine.kernel, self.engine.trusted
        self.attends, self.limit = self.engine.attends, self.engine.limit
        expectations = Expectations(
            is_causal_by_documentation(network), partial(reach_by_documentation, network), rule, self._texts()
        )
        super().__init__(self.engine.info, expectations, tokens)
        self.notes = self.engine.notes
        if self.kernel == "eager" and self.attends:  # scores, weights and a mask of every head, by the model itself
            pairs = max((text.real.size * text.n for text in self.expectations.texts.values()), default=0)
            need = 12.0 * (self.info.n_heads or 1) * pairs
            limits.check_memory(need, f"eager attention to {self.longest:,} tokens", "shorten the text")

    def _texts(self) -> dict[str, Text]:
        """Return the tokens of each kind of attention, as far as the inputs tell."""
        texts, engine = dict[str, Text](), self.engine
        entries, source = engine.entries, "encoder" if self.kind == "decoder" else "self"
        if engine.ids is not None:
            numbers, real = engine.segments()  # (batch, n) each
            several = bool(((numbers.diff() != 0) & real[:, 1:] & real[:, :-1]).any())
            ids, types = engine.ids.cpu().numpy(), entries.get("mm_token_type_ids", entries.get("token_type_ids"))
            types = None if types is None else types.cpu().numpy()
            text = Text(real.numpy(), numbers.numpy() if several else None, given=self._given_mask())
            text.pictures = pictures_of(engine.network, ids, types)
            texts[source] = with_prefix(engine.network, text, types)
            if types is None and engine.network.config.model_type == "paligemma":
                engine.notes.append(NO_TYPES)
        elif isinstance(rows := entries.get("inputs_embeds"), torch.Tensor):
            shown = entries.get("attention_mask", torch.ones(rows.shape[:2]))
            texts[source] = Text((shown.reshape(rows.shape[:2]) != 0).cpu().numpy())
        if (ids := entries.get("decoder_input_ids")) is not None:
            shown = entries.get("decoder_attention_mask", torch.ones_like(ids))
            texts["decoder"] = Text((shown != 0).cpu().numpy())
        return texts

    def _given_mask(self) -> CallMasks | None:
        """Return what the four-dimensional mask or the BlockMask of the batch lets through; None without one."""
        (batch, n), given = self.engine.ids.shape, self.engine.entries.get("attention_mask")
        if (block_mask := self.engine.block_mask) is not None:
            heads = int(block_mask.shape[1])
            return masks_of_heads(
                (n, n), partial(_rows_of_block_mask, block_mask, batch, heads, n, self.engine.ids.device)
            )
        if not isinstance(given, torch.Tensor) or given.ndim != 4:
            return None

        def rows(lo: int, hi: int) -> Array:
            part = given[:, :, lo:hi]
            return (part if part.dtype == torch.bool else part > HIDING).expand(batch, -1, -1, -1)

        return masks_of_heads((n, n), rows)

    # --- run ---

    def run(self) -> tuple[list[Block], Seen]:
        """Return the layers of the network after a run with its own kernel, and the masks of their calls of attention.

        Raises AttnctlError if the network fails on the inputs.
        """
        self.output, blocks = self.engine.record(self._shape)
        seen: dict[tuple[str, int], list[CallMasks]] = {}

        def see(site: Site, call: Call) -> None:
            made, calls = masks_of_call(call), seen.setdefault((site.kind, site.layer), [])
            if not any(_keys(made) == _keys(other) for other in calls):
                calls.append(made)

        output = self.engine.watch(see, lambda _: True, **self._mask_for_torch())
        if output is None:
            return blocks, {}
        if not self.trusted and self._is_near(output):
            self.trusted = True
        return blocks, seen

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which the network and its layers run."""
        return self.engine.running()

    def _shape(self, kind: str) -> tuple[int, ...] | None:
        text = self.expectations.texts.get(kind)
        return None if text is None else text.real.shape

    def _mask_for_torch(self) -> dict[str, Array]:
        """Return the BlockMask of the batch as a mask that torch's own kernel reads."""
        if self.engine.block_mask is None:
            return {}
        heads = self.expectations.texts["self"].given or ()
        given = np.stack(
            [[np.asarray(mask) for mask in rows] for rows in zip(*heads, strict=True)]
        )  # (batch, heads, n, n)
        name = next(name for name, value in self.engine.entries.items() if value is self.engine.block_mask)
        return {name: torch.as_tensor(given, device=self.engine.ids.device)}

    def _is_near(self, watched: Any) -> bool:
        """Return whether torch's own kernel, whose masks were read, gives the outputs of the model's kernel."""
        ours, theirs = self.engine.output_rows(watched), self.engine.output_rows(self.output)
        if ours is None or theirs is None:
            return False
        return bool((row_change(ours, theirs) / row_size(theirs)).nan_to_num(0.0).max() <= self.limit)

    # --- the model as a whole ---

    def broken_as_a_whole(self, blocks: list[Block]) -> tuple[MaskViolation, ...]:
        """Exchange tokens, and return the violations at the output that no layer's mask explains."""
        name = "decoder_input_ids" if self.kind == "decoder" else "input_ids"
        ids, text = self.engine.entries.get(name), self.expectations.texts.get(self.kind)
        base = self.engine.output_rows(self.output)
        if ids is None or text is None or base is None or self.engine.network.config.model_type in TRIGRAMS:
            return ()
        whole = WholeRuns(self, name, base, blocks)
        found = whole.rows_that_mix()
        chain = self.chain(blocks, text)
        if not found and chain is not None:
            found = whole.tokens_that_reach(chain)
        return tuple(found.values())


class WholeRuns:
    """Runs of the whole model with exchanged tokens, compared with its own output `base` (batch, n, …)."""

    def __init__(self, search: MaskSearch, name: str, base: Array, blocks: list[Block]) -> None:
        self.search, self.engine, self.name, self.base, self.blocks = search, search.engine, name, base, blocks
        self.size, self.limit = row_size(base), max(search.limit, 2 * search.floor)
        self.real = search.expectations.texts[search.kind].real
        self.others = {
            entry: other_ids(self.engine.whole, value)
            for entry, value in self.engine.entries.items()
            if entry in ("input_ids", "decoder_input_ids")
        }

    def _is_free(self, entry: str, real: Bools) -> Bools:
        """Return which tokens of an entry (batch, n) may be exchanged: not those with a meaning of their own."""
        ids, special = self.engine.entries[entry].cpu().numpy(), sorted(special_ids(self.engine.whole))
        free: Bools = ~np.isin(ids, special) | ~real
        return free & real if self.engine.ids is not None and "attention_mask" not in self.engine.entries else free

    def _changed(self, exchanged: Mapping[str, Bools]) -> tuple[Array, list[Block]]:
        """Return how far each output moves if some tokens of some entries are exchanged, (batch, n), and the layers run."""
        self.search.whole_runs += 1
        entries = {
            entry: torch.where(
                torch.as_tensor(chosen, device=self.base.device), self.others[entry], self.engine.entries[entry]
            )
            for entry, chosen in exchanged.items()
        }
        output, blocks = self.engine.record(self.search._shape, **entries)
        rows = self.engine.output_rows(output)
        return (row_change(self.base, rows) / self.size).cpu(), blocks

    def tokens_that_reach(self, chain: Chain) -> dict[int, MaskViolation]:
        """Return row → its output that a token moves, and that no chain of layers may carry it to."""
        found: dict[int, MaskViolation] = {}
        free, kind = self._is_free(self.name, self.real), self.search.kind
        for hidden in exchanged_sets_of_chain(chain):
            hidden &= free
            if not hidden.any():
                continue
            self.search.note_test("model", kind)
            change, blocks = self._changed({self.name: hidden})
            unaffected = ~torch.as_tensor(reached_by(hidden, chain))
            change = torch.where(unaffected, change.nan_to_num(0.0), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                if float(change[row, query]) > self.limit and row not in found and hidden[row].any():
                    found[row] = MaskViolation(
                        how="reaches", kind=kind, layer=self._first_moved(blocks, row, query), row=row,
                        query=query, key=nearest(hidden[row], query), change=float(change[row, query]),
                        expected="what its layers carry",
                    )  # fmt: skip
        return found

    def rows_that_mix(self) -> dict[int, MaskViolation]:
        """Return row → its output that another row of the batch moves."""
        found: dict[int, MaskViolation] = {}
        for chosen in sets_of_rows(len(self.real)):
            exchanged = {entry: self._is_free(entry, self._real_of(entry)) & chosen[:, None] for entry in self.others}
            if not any(some.any() for some in exchanged.values()):
                continue
            self.search.note_test("model-rows", self.search.kind)
            change, blocks = self._changed(exchanged)
            change = torch.where(torch.as_tensor(~chosen[:, None] & self.real), change.nan_to_num(0.0), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                if float(change[row, query]) > self.limit and row not in found:
                    found[row] = MaskViolation(
                        how="mixes", kind=self.search.kind, layer=self._first_moved(blocks, row, query), row=row,
                        query=query, other_row=int(chosen.argmax()), change=float(change[row, query]), expected=ALONE,
                    )  # fmt: skip
        return found

    def _real_of(self, entry: str) -> Bools:
        texts = self.search.expectations.texts
        return texts[{"decoder_input_ids": "decoder"}.get(entry, "encoder" if "encoder" in texts else "self")].real

    def _first_moved(self, changed: list[Block], row: int, query: int) -> int | None:
        """Return the first layer whose output at a query moves; None if it is outside of the layers."""
        kind = self.search.kind
        pairs = [pair for pair in zip(self.blocks, changed, strict=False) if pair[0].kind == kind]
        for before, after in pairs:
            if before.rows.shape != after.rows.shape or before.rows.shape[1] <= query:
                return None
            if self._moves(before.rows, after.rows, row, query):
                return None
            if self._moves(before.output, after.output, row, query):
                return before.layer
        return None

    def _moves(self, before: Array, after: Array, row: int, query: int) -> bool:
        return bool((row_change(before, after) / row_size(before))[row, query] > self.limit)


# --- masks ----------------------------------------------------------------------------------------------------------


def masks_of_call(call: Call) -> CallMasks:
    """Return what a call of attention lets through: for each head if they differ, and for each text of its batch."""
    batch = int(call.queries.shape[:-3].numel())
    if call.mask is None and call.bias is None:
        smallest, largest = attention.visible_gaps(call.causal, call.window)
        return ((band((call.n_q, call.n_k), largest, -smallest, call.first_position),) * batch,)

    def rows(lo: int, hi: int) -> Array:
        part = attention.select_call(call, rows=list(range(lo, hi)))
        return visible_pairs_of_heads(part).reshape(batch, -1, hi - lo, call.n_k)

    return masks_of_heads((call.n_q, call.n_k), rows)


def masks_of_heads(shape: tuple[int, int], rows: Callable[[int, int], Array]) -> CallMasks:
    """Return masks for each head, or one for all if they are alike, and in it for each row of the batch.

    `rows` returns the queries [lo, hi) as (batch, heads, hi - lo, n_k).
    """
    batch, heads = rows(0, 1).shape[:2]

    def flat(lo: int, hi: int) -> Bools:
        shown: Bools = rows(lo, hi).transpose(0, 1).reshape(heads * batch, hi - lo, shape[1]).cpu().numpy()
        return shown

    masks = masks_of_rows(shape, flat, heads * batch)
    of_heads = tuple(masks[first : first + batch] for first in range(0, len(masks), batch))
    alike = all(_keys(of_heads[:1]) == _keys((other,)) for other in of_heads[1:])
    return of_heads[:1] if alike else of_heads


def _keys(masks: CallMasks) -> list[list[bytes]]:
    return [[mask.key for mask in rows] for rows in masks]


def _rows_of_block_mask(
    block_mask: Any, batch: int, heads: int, n: int, device: torch.device, lo: int, hi: int
) -> Array:
    """Return which keys the queries [lo, hi) see by a BlockMask of FlexAttention → (batch, heads, hi - lo, n)."""
    from torch.nn.attention.flex_attention import create_mask

    def shifted(text: Array, head: Array, query: Array, key: Array) -> Array:
        return block_mask.mask_mod(text, head, query + lo, key)

    return create_mask(shifted, batch, heads, hi - lo, n, device=str(device))


class StackSearch(Search):
    """A built-in model with a text: its settings say what should be hidden."""

    kernel = "attnctl"

    def __init__(self, stack: RunsBlocks, tokens: Sequence[Token], expect: Any = None) -> None:
        """Lay out the text. Raises UsageError for a rule that is none, AttnctlError for a text without tokens."""
        if not tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        self.stack, self.text = stack, tokens

        def reach(kind: str, layer: int, causal: bool) -> Reach:
            return Reach(stack.window_of_layer(layer))

        texts = {"self": Text(np.ones((1, len(tokens)), np.bool_))}
        expectations = Expectations(bool(stack.info.causal), reach, rule_of(expect), texts)
        super().__init__(stack.info, expectations, tuple(token.text for token in tokens))

    def run(self) -> tuple[list[Block], Seen]:
        """Return the layers of the stack after a run, and the masks of their calls of attention."""
        blocks, seen = list[Block](), dict[tuple[str, int], list[CallMasks]]()
        for call, block in self.stack.blocks(self.text):
            seen["self", block.layer] = [masks_of_call(call)]
            blocks.append(block)
            del call  # the next layer needs the memory
        return blocks, seen
