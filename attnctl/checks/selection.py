"""Read what a user selects: layers and heads, rows and columns, tokens. Every option has the same grammar.

    3 · -1 · 0-5 · 5- · 1,4,7 · all     indices: one, from the end, a range with its last, to the end, several, all
    23.3 · 23.0-3 · 23.* · 23.3,0.5     heads, each after its layer and a point
    eat · 3 · text:3 · eat,pizza        tokens: by text or index; text: before a text that looks like an index
    gave→Mary · 11>2                    an edge: a query and a key

Indices count from 0. An error names the option, its value and what exists: "layer=7: demo has layers 0 to 1".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from attnctl.errors import UsageError, option_name
from attnctl.text import spoken_range, visible_text

if TYPE_CHECKING:
    from attnctl.text.tokens import Token

Selection = str | int | Sequence[int] | None  # as a user writes it, or indices; None and "all": every one
Place = tuple[int, int]  # layer and head

INDICES = "it reads 3, 0-5, 1,4,7, -1 or all"
AS_TEXT = "text:"  # before a query that is the text of a token, though it looks like an index or a list

_INDEX = r"[+-]?[0-9]{1,18}"
_RANGE = r"[0-9]{1,18}-[0-9]{0,18}"
_ITEM = re.compile(rf"{_RANGE}|{_INDEX}")
_HEADS = re.compile(rf"({_RANGE}|{_INDEX})\.({_RANGE}|{_INDEX}|\*|all)")
_PIXEL = re.compile(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*")
_ARROW = re.compile(r"\s*(?:→|->|>)\s*")


# --- indices ----------------------------------------------------------------------------------------------------------


def selected_indices(
    selection: Selection, count: int, noun: str, of: str, option: str | None = None
) -> tuple[int, ...] | None:
    """Return the selected indices, from 0 to `count` - 1, in the user's order; None if all are selected.

    `noun` names the things that are counted, `of` names their owner. Raises UsageError if an index does not exist; the
    error names the `option`, by default `noun`.
    """
    if selection is None or (isinstance(selection, str) and selection.strip() == "all"):
        return None
    option, exist = option or noun, f"{of} has {spoken_range(noun, count)}"
    indices: list[int] = []
    if isinstance(selection, str):
        for item in selection.split(","):
            if (span := _range_of_item(item.strip(), count, option, exist)) is None:
                raise UsageError(_two_options(item, noun) or INDICES, option=option, value=selection)
            indices += span
        return tuple(dict.fromkeys(indices))
    for index in (selection,) if isinstance(selection, int) else selection:
        _check_index(index, count, option, exist, index)
        indices.append(index % count)
    return tuple(dict.fromkeys(indices))


def chosen_indices(selection: Selection, count: int, noun: str, of: str, option: str | None = None) -> tuple[int, ...]:
    """Return the selected indices, from 0 to `count` - 1; None selects all. Raises the errors of `selected_indices`."""
    indices = selected_indices(selection, count, noun, of, option)
    return tuple(range(count)) if indices is None else indices


def token_range(selection: str | None, count: int, option: str) -> tuple[int, int]:
    """Return the first token of a range, and one past its last; None selects all `count` tokens.

    Raises UsageError for anything but one range, and for a token that does not exist.
    """
    if selection is None or selection.strip() == "all":
        return 0, count
    span = _range_of_item(selection.strip(), count, option, f"the text has {spoken_range('token', count)}")
    if span is None:
        raise UsageError("it reads 3, 3000-3099 (the last one too), 3000-, -1 or all", option=option, value=selection)
    return span.start, span.stop


def _range_of_item(item: str, count: int, option: str, exist: str, written: str = "") -> range | None:
    """Return the indices that `3`, `-1`, `0-5` or `5-` selects from `count`; None if the item is of another form.

    Raises UsageError if the range goes down, or an index does not `exist`; the error shows `written`, by default the
    item.
    """
    if not _ITEM.fullmatch(item):
        return None
    start, dash, end = item.partition("-") if item[0].isdigit() else (item, "", "")
    first = int(start)
    if end and int(end) < first:
        raise UsageError(f"from {first} down to {int(end)} is not a range", option=option, value=written or item)
    last = int(end) if end else count - 1 if dash else first
    for index in (first, last):
        _check_index(index, count, option, exist, written or item)
    return range(first % count, last % count + 1)


def _check_index(index: int, count: int, option: str, exist: str, written: object) -> None:
    """Raise UsageError with the text `exist` if an index does not exist."""
    if not -count <= index < count:
        raise UsageError(exist, option=option, value=written)


def _two_options(item: str, noun: str) -> str | None:
    """Return how to write a head with its layer, such as 23.3, where the option takes heads alone; else None."""
    pair = re.fullmatch(r"\s*([0-9]{1,18})\.([0-9]{1,18})\s*", item)
    if noun != "head" or pair is None:
        return None
    return (
        f"head {pair[2]} of layer {pair[1]} is {option_name('layer', int(pair[1]))} {option_name('head', int(pair[2]))}"
    )


# --- heads of layers --------------------------------------------------------------------------------------------------


def selected_heads(
    selection: str | Iterable[Place], n_layers: int, n_heads: int, of: str, option: str, words: str = ""
) -> tuple[Place, ...]:
    """Return the selected (layer, head), in the user's order, from "23.3,0.5" or from such pairs.

    Raises UsageError for a head that does not exist, and for any other text; `words` describe what else the option
    takes.
    """
    layers = f"{of} has {spoken_range('layer', n_layers)}"
    heads = f"{of} has {spoken_range('head', n_heads)} in each layer"
    places: list[Place] = []
    if not isinstance(selection, str):
        for layer, head in selection:
            _check_index(layer, n_layers, option, layers, f"{layer}.{head}")
            _check_index(head, n_heads, option, heads, f"{layer}.{head}")
            places.append((layer % n_layers, head % n_heads))
        return tuple(dict.fromkeys(places))
    for part in (part.strip() for part in selection.split(",")):
        match = _HEADS.fullmatch(part)
        if match is None:
            raise UsageError(f"it is {words}heads as layer.head: 23.3,0.5", option=option, value=selection)
        layer_span = _range_of_item(match[1], n_layers, option, layers, part)
        head_span = _range_of_item("0-" if match[2] in ("*", "all") else match[2], n_heads, option, heads, part)
        places += [(layer, head) for layer in layer_span or () for head in head_span or ()]
    return tuple(dict.fromkeys(places))


def heads_by_layer(places: Iterable[Place]) -> dict[int, tuple[int, ...]]:
    """Return layer → its heads, both in rising order."""
    by_layer: dict[int, list[int]] = {}
    for layer, head in sorted(set(places)):
        by_layer.setdefault(layer, []).append(head)
    return {layer: tuple(heads) for layer, heads in by_layer.items()}


# --- tokens -----------------------------------------------------------------------------------------------------------


def find_token(tokens: Sequence[Token], query: str, option: str = "query") -> int:
    """Return the index of the only token that `query` names. Raises UsageError for several, and as `find_several` does."""
    indices = find_several(tokens, query, option)
    if len(indices) > 1:
        raise UsageError(f"it names {len(indices)} tokens, and one is needed here", option=option, value=query)
    return indices[0]


def find_several(tokens: Sequence[Token], query: str, option: str = "query") -> list[int]:
    """Return the indices of the tokens that `query` names, in its order: `eat`, `3`, `-1`, `text:3`, `eat,pizza`, `2-5`.

    A whole number is always an index, `text:…` always a text; in a picture `x,y` is the patch at that pixel. Raises
    UsageError if no token has the index or the text, or several tokens have the text.
    """
    if not query.strip():
        raise UsageError("is empty: name a token by its text or its index", option=option)
    if (pixel := _PIXEL.fullmatch(query)) and any(token.box for token in tokens):
        return [_patch_at_pixel(tokens, int(pixel[1]), int(pixel[2]), option)]
    named = any(token.text == query for token in tokens)
    if query.startswith(AS_TEXT) or (named and not is_index(query)):
        return [_token_of_text(tokens, query.removeprefix(AS_TEXT), option)]
    parts = [part.strip() for part in query.split(",") if part.strip()] if "," in query else []
    if parts:
        return list(dict.fromkeys(index for part in parts for index in find_several(tokens, part, option)))
    hint = f"; the token {query!r} is {AS_TEXT}{query}" if named else ""
    exist = f"the text has {spoken_range('token', len(tokens))}{hint}"
    span = _range_of_item(query.strip(), len(tokens), option, exist)
    return [_token_of_text(tokens, query, option)] if span is None else list(span)


def is_index(query: str) -> bool:
    """Return whether a query is the index of a token, rather than its text."""
    return re.fullmatch(_INDEX, query) is not None


def find_edge(queries: Sequence[Token], keys: Sequence[Token], edge: str) -> Place:
    """Return the query and the key of an edge such as "gave→Mary" or "11>2". Raises UsageError if one does not exist."""
    ends = _ARROW.split(edge)
    if len(ends) != 2 or not all(end.strip() for end in ends):
        raise UsageError('it reads QUERY→KEY, as "gave→Mary" or "11>2"', option="edge", value=edge)
    return find_token(queries, ends[0], "edge"), find_token(keys, ends[1], "edge")


def keys_left_out(keys: Sequence[Token], drop: Iterable[str]) -> tuple[int, ...]:
    """Return the indices of the keys to drop: "first", "special", a token's text (wherever it stands), or its index.

    Raises UsageError if no key has that name, or no key would remain.
    """
    out: set[int] = set()
    for name in drop:
        if name == "first":
            out.add(0)
        elif name == "special":
            special = {j for j, token in enumerate(keys) if token.special}
            if not special:
                raise UsageError("there is no special token to drop: name a token, its index, or first")
            out |= special
        else:
            text = name.removeprefix(AS_TEXT)
            everywhere = {j for j, token in enumerate(keys) if token.text == text}
            out |= {find_token(keys, name, "drop")} if is_index(name) or not everywhere else everywhere
    if len(out) >= len(keys):
        raise UsageError("dropping every key leaves nothing to show")
    return tuple(sorted(out))


def _patch_at_pixel(tokens: Sequence[Token], x: int, y: int, option: str) -> int:
    boxes = {index: token.box for index, token in enumerate(tokens) if token.box is not None}
    patches = {index: box for index, box in boxes.items() if tokens[index].is_patch}
    boxes = patches or boxes  # of a detector's queries alone, the object there
    hit = [index for index, box in boxes.items() if box[0] <= x < box[2] and box[1] <= y < box[3]]
    if hit:  # a tile's token before one of the whole picture, which is larger
        return min(hit, key=lambda index: (boxes[index][2] - boxes[index][0]) * (boxes[index][3] - boxes[index][1]))
    areas = []
    for picture in dict.fromkeys(tokens[index].picture for index in boxes):
        left, top, right, bottom = zip(
            *(box for index, box in boxes.items() if tokens[index].picture == picture), strict=True
        )
        name = "the picture" if picture is None else f"picture {picture}"
        areas.append(f"{min(left)},{min(top)} to {max(right) - 1},{max(bottom) - 1} of {name}")
    what = "patch" if patches else "object"
    raise UsageError(f"no {what} is there: the model sees {' and '.join(areas)}", option=option, value=f"{x},{y}")


def _token_of_text(tokens: Sequence[Token], text: str, option: str) -> int:
    matches = [index for index, token in enumerate(tokens) if token.text == text]
    if not matches:
        matches = [index for index, token in enumerate(tokens) if token.text.casefold() == text.casefold()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        places = ", ".join(str(index) for index in matches[:12]) + (", …" if len(matches) > 12 else "")
        raise UsageError(f"it stands at several places: name one by its index ({places})", option=option, value=text)
    texts = " ".join(visible_text(token.text) for token in tokens[:12]) + (" …" if len(tokens) > 12 else "")
    raise UsageError(f"no token has this text: the tokens are {texts}", option=option, value=text)
