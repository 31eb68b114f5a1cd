"""Run a model, read the mask of every layer from its calls of attention, and exchange its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl.attention import Array, Call
from attnctl.checks import limits
from attnctl.checks.argument_types import check_module, is_network, uncompiled
from attnctl.commands.mask.call_masks import keys_of_masks, masks_of_call, masks_of_heads, rows_of_block_mask
from attnctl.commands.mask.exchange import CallMasks, Search, Seen
from attnctl.commands.mask.expected import Expectations, Text, rule_of
from attnctl.commands.mask.module import ModuleSearch
from attnctl.commands.mask.result import MaskCheck, MaskViolation
from attnctl.commands.mask.whole import WholeRuns
from attnctl.errors import AttnctlError
from attnctl.models import network_batch
from attnctl.models.exchange import HIDING, Block, Place, Reach, RunsBlocks, row_change, row_size
from attnctl.runtime.arrays import Bools

if TYPE_CHECKING:
    from attnctl.text.tokens import Token

NO_TYPES = (
    "The batch has no token_type_ids, with which PaliGemma's processor marks picture and prompt: without them, kernels of "
    "transformers read it differently."
)


def mask(model: Any, *args: Any, segments: Any = None, expect: Any = None, **inputs: Any) -> MaskCheck:
    """Return the mask of every layer of a model, and whether the model keeps to what is expected.

    `.holds` is True if every layer keeps to it, and None if nothing breaks it but some mask cannot be read; `.violations`
    are what breaks it, each with layer, query, key and change; `.groups` are the layers with the same mask, with a sentence
    and the matrix. `args` and `inputs` are the arguments of the model: input_ids, an attention_mask of two or four
    dimensions or a BlockMask, pixel_values. `segments` (batch, n) numbers packed documents, -1 is padding. `expect` is
    causal, bidirectional, "prefix 16", "window 512", "causal window 512", segments, "causal segments", or a table of 0 and
    1 (n, n). The model runs with its own kernel. Raises UsageError for an invalid batch.

    By default a transformers model is held against what its configuration and the documentation of its family say. Of any
    other torch module nothing says that: it is held against its own masks, padding is hidden, and `segments` are apart.

    >>> found = attnctl.mask(model, **tokenizer("Alice will eat", return_tensors="pt"))  # doctest: +SKIP
    >>> assert not found.violations, found  # doctest: +SKIP
    """
    check_module("mask", model)
    if not is_network(model):
        return ModuleSearch(model, args, inputs, segments, expect).measure()
    if args:
        raise TypeError("mask(): the arguments of a transformers model are given by name")
    return MaskSearch(uncompiled(model), inputs, segments, expect).measure()


class MaskSearch(Search):
    """A network of transformers with its inputs, checked."""

    def __init__(
        self, network: Any, inputs: Mapping[str, Any], segments: Any = None, expect: Any = None, name: str = "",
        tokens: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Check and lay out the inputs. Raises UsageError for inputs that do not fit each other or the network."""
        rule = rule_of(expect)
        self.engine = network_batch(network, inputs, name, segments=segments, why="mask exchanges them")
        self.kind, self.kernel, self.trusted = self.engine.kind, self.engine.kernel, self.engine.trusted
        self.attends, self.limit = self.engine.attends, self.engine.limit
        expectations = Expectations(
            self.engine.documented_direction(), self.engine.documented_reach, rule, self._texts()
        )
        super().__init__(self.engine, expectations, tokens)
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
            types = entries.get("mm_token_type_ids", entries.get("token_type_ids"))
            types = None if types is None else types.cpu().numpy()
            text = Text(real.numpy(), numbers.numpy() if several else None, given=self._given_mask())
            text.pictures = engine.documented_pictures(types)
            text.prefix, text.may_be_prefix = engine.documented_prefix(text.real, types)
            texts[source] = text
            if text.may_be_prefix:
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
                (n, n), partial(rows_of_block_mask, block_mask, batch, heads, n, self.engine.ids.device)
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

        def see(site: Place, call: Call) -> None:
            made, calls = masks_of_call(call), seen.setdefault((site.kind, site.layer), [])
            if not any(keys_of_masks(made) == keys_of_masks(other) for other in calls):
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
        if ids is None or text is None or base is None or self.engine.mixes_neighbours():
            return ()
        whole = WholeRuns(self, self.engine, name, base, blocks, self._run_with, self._real_of)
        found = whole.rows_that_mix()
        chain = self.chain(blocks, text)
        if not found and chain is not None:
            found = whole.tokens_that_reach(chain)
        return tuple(found.values())

    def _run_with(self, entries: Mapping[str, Array]) -> tuple[Any, list[Block]]:
        """Return the rows of an output, and the layers, with other tensors in place of some arguments."""
        output, blocks = self.engine.record(self._shape, **entries)
        return self.engine.output_rows(output), blocks

    def _real_of(self, entry: str) -> Bools:
        texts = self.expectations.texts
        return texts[{"decoder_input_ids": "decoder"}.get(entry, "encoder" if "encoder" in texts else "self")].real


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
        super().__init__(stack, expectations, tuple(token.text for token in tokens))

    def run(self) -> tuple[list[Block], Seen]:
        """Return the layers of the stack after a run, and the masks of their calls of attention."""
        blocks, seen = list[Block](), dict[tuple[str, int], list[CallMasks]]()
        for call, block in self.stack.blocks(self.text):
            seen["self", block.layer] = [masks_of_call(call)]
            blocks.append(block)
            del call  # the next layer needs the memory
        return blocks, seen
