"""Search the masks of any torch module: read them from its own calls of attention, and exchange its tokens.

Nothing documents what a user's own module should see. Without a rule it is held against its own masks: what they hide must
not reach its outputs, padding is hidden, and documents are apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnctl.attention import Array
from attnctl.commands.mask.call_masks import keys_of_masks, masks_of_heads
from attnctl.commands.mask.exchange import CallMasks, Search, Seen
from attnctl.commands.mask.expected import Expectations, Expected, Text, hidden_padding, rule_of
from attnctl.commands.mask.intervals import IntervalMask, band, same
from attnctl.commands.mask.result import MaskViolation
from attnctl.commands.mask.sets import Chain
from attnctl.commands.mask.whole import WholeRuns
from attnctl.errors import AttnctlError
from attnctl.models import module_batch
from attnctl.models.exchange import Attended, Block, Reach

OWN = "No rule says what {name} should see, so it is held against its own masks: expect “causal”, “bidirectional”, …"
OTHER_SIZE = "Its layers attend to {n} tokens, and its text has {given}: padding and documents are not placed in them."


@dataclass
class ModuleExpectations(Expectations):
    """What the self-attention of a module should let through: by the user's rule, or by the masks that it made itself."""

    seen: dict[tuple[str, int], list[CallMasks]] = field(default_factory=dict)

    def of_layer(
        self, kind: str, layer: int, n_q: int, n_k: int, attends: bool = True, head: int | None = None
    ) -> Expected | None:
        """Return what a layer may let through; None for cross attention, whose source may be anything."""
        text = self.texts.get("self")
        if kind != "self" or n_q != n_k or text is None:
            return None
        if self.rule is not None:
            expected = super().of_layer(kind, layer, n_q, n_k, attends, head)
            if expected is None or expected.must is None or self.rule.kind not in ("window", "segments"):
                return expected
            causal = band((n_q, n_k), np.inf, 0)  # nobody said whether the future is hidden: either is right
            return expected._replace(must=tuple(must & causal for must in expected.must))
        calls = self.seen.get((kind, layer))
        if not calls:
            return None
        made = _joined([call if head is None else (call[head if len(call) > 1 else 0],) for call in calls])
        keys = text if text.real.shape == (len(made), n_k) else Text(np.ones((len(made), n_k), np.bool_))
        words = "its own mask"
        if keys.segments is not None:
            words += ", segments apart"
            made = [mask & same(numbers) for mask, numbers in zip(made, keys.segments, strict=True)]
        return hidden_padding(made, False, keys, keys, words)


def _joined(calls: Sequence[CallMasks]) -> list[IntervalMask]:
    """Return what any head of some calls lets through, for each text of the batch."""
    joined = list(calls[0][0])
    for heads in calls:
        for masks in heads:
            joined = [mask | other for mask, other in zip(joined, masks, strict=True)]
    return joined


class ModuleSearch(Search):
    """A torch module with its arguments."""

    def __init__(
        self, module: Any, args: Sequence[Any], inputs: Mapping[str, Any], segments: Any = None, expect: Any = None,
        name: str = "", tokens: tuple[str, ...] = (), own: str = "",
    ) -> None:  # fmt: skip
        """Check the arguments, and run the module once. Raises UsageError for arguments that it does not take."""
        rule = rule_of(expect)
        self.engine = module_batch(module, args, inputs, name, segments=segments, own=own)
        self.attends, self.limit, self.kernel = self.engine.attends, self.engine.limit, self.engine.kernel
        if not self.attends and rule is None:
            raise AttnctlError(self.engine.nothing_seen())
        texts = {"self": self._text()}
        self.seen: dict[tuple[str, int], list[CallMasks]] = {}
        self.order: list[tuple[str, int]] = []
        expectations = ModuleExpectations(False, lambda *_: Reach(exact=False), rule, texts, self.seen)
        super().__init__(self.engine, expectations, tokens)
        self.notes = self.engine.notes
        if rule is None:
            self.notes.append(OWN.format(name=self.engine.name))

    def _text(self) -> Text:
        """Return the tokens that the layers attend to: those of the text, or without one as many as most layers have."""
        engine = self.engine
        most = next(iter(engine.sizes), None)
        if engine.shape is not None and (engine.shape in engine.sizes or most is None):
            numbers, real = engine.segments()
            return Text(real.numpy(), numbers.numpy() if engine.has_segments else None)
        if most is None:
            raise AttnctlError(
                f"no layer of {engine.name} attends from tokens to the same tokens, and no argument holds any"
            )
        if engine.shape is not None:
            engine.notes.append(OTHER_SIZE.format(n=most[1], given=engine.shape[1]))
        return Text(np.ones(most, np.bool_))

    def run(self) -> tuple[list[Block], Seen]:
        """Return the layers of the module after a run, and the masks of its attentions."""
        seen = self.seen

        def take(attended: Attended) -> None:
            visible = attended.visible

            def rows(lo: int, hi: int) -> Array:
                return visible[:, :, lo:hi]

            place = attended.place
            made = masks_of_heads((visible.shape[2], visible.shape[3]), rows)
            calls = seen.setdefault((place.kind, place.layer), [])
            self.order.append((place.kind, place.layer))
            if not any(keys_of_masks(made) == keys_of_masks(other) for other in calls):
                calls.append(made)

        self.engine.watch(take)
        self.output, blocks = self.engine.record()
        return blocks, seen

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which the module and its layers run."""
        return self.engine.running()

    def chain(self, blocks: list[Block], text: Text) -> Chain | None:
        """Return what each attention in turn may let through, for each text; None if one has other tokens, or is unread."""
        if self.engine.problems:
            return None
        made = []
        for kind, layer in self.order or [("self", 0)]:
            expected = self.expectations.of_layer(kind, layer, text.n, text.n, bool(self.order))
            if expected is None or len(expected.may) != len(text.real):
                return None
            made.append(expected.may)
        return made

    def broken_as_a_whole(self, blocks: list[Block]) -> tuple[MaskViolation, ...]:
        """Exchange tokens, and return the violations at the output that no layer's mask explains."""
        engine, text = self.engine, self.expectations.texts["self"]
        base = engine.output_rows(self.output)
        is_aligned = base is not None and engine.shape == text.real.shape
        base = engine.output_texts(self.output) if base is None else base
        if base is None or not engine.text_entries or engine.shape is None:
            return ()
        _, real = engine.segments()
        whole = WholeRuns(self, engine, engine.text_entries[0], base, blocks, self._run_with, lambda _: real.numpy())
        found = whole.rows_that_mix()
        chain = self.chain(blocks, text) if is_aligned else None
        if not found and chain is not None:
            found = whole.tokens_that_reach(chain)
        return tuple(found.values())

    def _run_with(self, entries: Mapping[str, Array]) -> tuple[Any, list[Block]]:
        """Return the rows of an output, and the layers, with another tensor in place of an argument."""
        output, blocks = self.engine.record(**entries)
        rows = self.engine.output_rows(output)
        return self.engine.output_texts(output) if rows is None else rows, blocks
