"""A prompt answered with its documents in several orders: the same answer, measured in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnctl.models.huggingface.text.chat import Prompt
from attnctl.models.huggingface.text.prompts import SourceSearch
from attnctl.readings.effects.document_orders import (
    DocumentOrders,
    OrderSources,
    drawn_orders,
    movable_documents,
    prompt_in_order,
)


@dataclass
class PermutedSearch:
    """The prompt of a search with its documents in `count` orders, the given one first.

    Raises UsageError for a prompt of fewer than two documents, or more orders than there are.
    """

    given: SourceSearch
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        text, parts = self.given.prompt.text, self.given.parts
        self.documents = movable_documents(text, parts)
        orders = drawn_orders(len(self.documents), self.count, self.seed)
        self.prompts = [prompt_in_order(text, parts, self.documents, order) for order in orders]
        self.found: list[OrderSources] = []

    def measure_orders(self) -> Iterator[int]:
        """Measure the orders behind the given one, which is measured already; yields how many forwards were made of each."""
        self._keep_order(self.given, self.prompts[0].owners)
        for prompt in self.prompts[1:]:
            whole = Prompt(prompt.text, self.given.prompt.spans)
            search = replace(self.given, prompt=whole, spans=prompt.spans, known_answer=self.given.read.answer)
            yield from search.measure_all()
            self._keep_order(search, prompt.owners)

    def _keep_order(self, search: SourceSearch, owners: tuple[int, ...]) -> None:
        sources = search.found_so_far()
        if len(sources.parts) == len(owners):  # of an order that was not measured whole nothing is said
            self.found.append(OrderSources(owners, sources))

    def orders_so_far(self) -> DocumentOrders:
        """What is known of the orders that were measured whole."""
        return DocumentOrders(self.documents, tuple(self.found), self.seed)
