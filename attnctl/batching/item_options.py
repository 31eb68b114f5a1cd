"""What one text of a batch may say for itself: layers, heads, a query, and how its model attends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnctl.batching.items import Item
from attnctl.errors import UsageError
from attnctl.selection import chosen_indices, parse_selection

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues

NUMBER = (int, float)
CHOICES = {"layer": (str, int, list), "head": (str, int, list), "query": (str, int), "title": (str,)}
WORDS = {"word": (str,), "against": (str,)}  # what --format effects watches
# what an item may say for itself of a model: how it attends, but not where numbers are read from
OWN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("d_model", "d_k", "n_heads", "n_kv_heads", "n_layers", "seed", "window"), (int,)),
    **dict.fromkeys(("causal", "output_projection", "no_scale", "rope"), (bool,)),
    **dict.fromkeys(("temperature", "dropout", "rope_theta"), NUMBER),
    **dict.fromkeys(("positions", "rope_pairs", "target"), (str,)),
    "scale": (str, *NUMBER),
}


def item_indices(spec: Any, count: int | None, what: str, of: str) -> list[int] | None:
    """A selection as the command line writes it, or a number, or a list of them."""
    if spec is None or spec == "all":
        return None
    if isinstance(spec, str):
        return parse_selection(spec, count or 1, what, of)
    several = [spec] if isinstance(spec, int) else spec
    if not isinstance(several, list) or not all(isinstance(index, int) for index in several):
        raise UsageError(f'"{what}" is a number, a list of numbers, or a selection like "0-5"')
    return list(chosen_indices(several, count or 1, what, of))


def item_options(item: Item) -> OptionValues:
    """What an item says of its model. Raises UsageError for an option that it cannot have, or a value of another kind."""
    own = {}
    for name, value in item.options.items():
        known = name.replace("-", "_")
        kinds = OWN.get(known) or CHOICES.get(known) or WORDS.get(known)
        if kinds is None:
            raise UsageError(f"one text has no option {name!r}: it is {', '.join((*CHOICES, *WORDS, *OWN))}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UsageError(f"option {name!r} cannot be {str(value)[:40]!r}")
        if known in OWN:
            own[known] = value
    return own
