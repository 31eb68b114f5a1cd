"""A built-in model as it is opened: a stack that can be watched, run layer by layer, and had as before its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attnctl.models.builtin.stack import Stack

if TYPE_CHECKING:
    from attnctl.attention import Call
    from attnctl.layer.interventions import Intervention
    from attnctl.models.builtin.watched import WatchedStack
    from attnctl.models.exchange import Block
    from attnctl.text.tokens import Token


class OpenedStack(Stack):
    """A stack with what is built on stacks."""

    def watch(self, text: str, query: str | None, base: Intervention) -> WatchedStack:
        """Return the text, cut into tokens, with the watched position: `query`, the blank, or the last token.

        Raises UsageError for a query that does not exist.
        """
        from attnctl.models.builtin.watched import watch_stack

        return watch_stack(self, text, query, base)

    def blocks(self, tokens: Sequence[Token]) -> Iterator[tuple[Call, Block]]:
        """Yield the call of attention of each layer over a text, and the layer as a block that can be run again."""
        from attnctl.models.builtin.exchanged_stack import blocks_of_stack

        return blocks_of_stack(self, tokens)

    def before_training(self, seed: int) -> Stack | None:
        """Return this network with the random parameters at the start of training; None if it predicts no words."""
        from attnctl.models.builtin.network import before_training

        return before_training(self, seed)
