"""A census in the terminal: a line a relation and direction, the best head beside the rules it should beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from rich.cells import set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from attnctl.readings.census.census_table import ALL, FEWEST, Best, CensusTable, HeadRow, Relation, Rule
from attnctl.readings.census.words import COREFERENCE, DOWN, TO_ANTECEDENT, UP
from attnctl.render.terminal.console import DIM, packed_lines, prose_lines
from attnctl.text import counted, number_list, visible_text

ARROWS = {UP: "→ head", DOWN: "→ dep"}
WIDTH = 80
LEAST_WIDTH = 40
NAME = 13  # cells of a relation's name
MOST_HEADS = 12  # that are listed as positional, or syntactic
BOLD = Style(bold=True)

NOTE = (
    "found: how often the word that gets most of a word's attention is the right one "
    "(sums to a word, means from it; special tokens and itself apart), in the head "
    "that does best on one half of the sentences, measured on the other. → head: a "
    "dependent looks at its head; → dep: a head at its dependent. Rules: the best "
    "fixed offset, the nearest word of the usual tag (< before, > behind), the first "
    "word. ✓ where the head's whole interval lies above every rule."
)
MENTION_NOTE = (
    "Of mentions, → ante: a mention looks at one before it, and it is of the same entity. Rules: the nearest mention, "
    "the nearest with the same head word (match), the first."
)
ABSENT = "·"

Cell = Callable[[Relation], str]
# heading, cells (negative: flush right), what stands there
RELATION_COLUMNS: tuple[tuple[str, int, Cell], ...] = (
    ("relation", NAME, lambda row: visible_text("  " * row.subtype + row.relation.removeprefix(f"{COREFERENCE}:"))),
    ("to its", 6, lambda row: ARROWS.get(row.direction, "→ ante")),
    ("head", -5, lambda row: "" if row.best is None else f"{row.best.layer}.{row.best.head}"),
    ("found", -5, lambda row: "" if row.best is None else f"{100 * row.best.accuracy:.1f}"),
    ("95 %", -7, lambda row: ABSENT if row.best is None else _interval_text(row.best)),
)
RULE_COLUMNS: tuple[tuple[str, int, Cell], ...] = (
    (" offset", 8, lambda row: _offset_rule(_rule_of(row, "offset"))),
    ("nearest", 11, lambda row: _nearest_rule(_rule_of(row, "nearest"))),
    ("1st", -3, lambda row: ABSENT if (rule := _rule_of(row, "first")) is None else f"{100 * rule.accuracy:.0f}"),
)
MATCH_COLUMN: tuple[str, int, Cell] = ("  match", 8, lambda row: _offset_rule(_rule_of(row, "head_match")))
BEST_RULE: tuple[str, int, Cell] = (
    "rule", -5, lambda row: ABSENT if row.best_rule is None else f"{100 * row.best_rule.accuracy:.1f}"
)  # fmt: skip
UNTRAINED: tuple[str, int, Cell] = (
    "unt", -3, lambda row: ABSENT if row.untrained is None else f"{100 * row.untrained.accuracy:.0f}"
)  # fmt: skip
CASES: tuple[str, int, Cell] = (
    "cases",
    -7,
    lambda row: f"{row.cases:,}" if row.cases < 1_000_000 else f"{row.cases / 1e6:,.1f} M",
)
LEFT_OUT_FOR_WIDTH = "left out for width: 95 %, offset, nearest, 1st, cases; rule is the best of the rules"


class CensusReport:
    """The census as a rich renderable, in 80 columns or fewer; `subtypes` adds a line for each, `fewest` is the least."""

    def __init__(self, census: CensusTable, subtypes: bool = False, fewest: int = FEWEST) -> None:
        self.census, self.subtypes, self.fewest = census, subtypes, fewest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Heading, relations, trees, heads, how to read it."""
        census, width = self.census, max(LEAST_WIDTH, min(WIDTH, options.max_width))
        heading = f"{visible_text(census.model)} on {visible_text(census.corpus)}: "
        heading += f"{counted(census.used, 'sentence')}, {counted(census.words, 'word')}"
        if census.used != census.sentences_read:
            heading += f" (of {counted(census.sentences_read, 'sentence')})"
        yield from prose_lines(heading, width, BOLD)
        yield Text("")
        listed = [relation for relation in census.relations if self._is_listed(relation)]
        mentions = [relation for relation in listed if relation.direction == TO_ANTECEDENT]
        yield from _relation_lines([row for row in listed if row not in mentions], census.untrained, width)
        rare = [one for one in census.relations if not one.subtype and one not in listed]
        if rare:
            scored = any(one.best is not None for one in rare)
            how = "--json has them all, --least 1 shows them" if scored else "no cases in one half of the sentences"
            rows, are = ("row", "is") if len(rare) == 1 else ("rows", "are")
            said = f"{len(rare)} rarer {rows} {are} left out ({how})."
            yield from prose_lines(said, width)
        yield Text("")
        if mentions:
            yield from _relation_lines(mentions, census.untrained, width)
            yield Text("")
        yield from (Text(line) for said in _tree_lines(census) for line in wrap(said, width, subsequent_indent="    "))
        yield from (Text(line) for line in _layer_lines(census, width))
        yield from (Text(line) for line in _census_heads(census, width))
        for said in _remark_lines(census, listed, width):
            yield from prose_lines(said, width, "")
        yield Text("")
        yield from prose_lines(NOTE, width)
        if mentions:
            yield from prose_lines(MENTION_NOTE, width)
        if width < WIDTH and listed:
            yield from prose_lines(LEFT_OUT_FOR_WIDTH, width)

    def _is_listed(self, relation: Relation) -> bool:
        """Whether it has a line: all relations together always, one of them from `fewest` scored cases on."""
        if relation.best is None or (relation.subtype and not self.subtypes):
            return False
        return relation.relation == ALL or relation.best.scored_on >= self.fewest


def _relation_lines(rows: Sequence[Relation], untrained: bool, width: int) -> Iterator[Text]:
    """A heading and a line a relation, all of one kind; in few columns the best rule stands for all of them."""
    if not rows:
        return
    mentions = rows[0].direction == TO_ANTECEDENT
    if width < WIDTH:
        columns = [*RELATION_COLUMNS[:-1], BEST_RULE]
    else:
        rules = (MATCH_COLUMN, *RULE_COLUMNS[1:]) if mentions else RULE_COLUMNS
        columns = [*RELATION_COLUMNS, *rules, *([UNTRAINED] if untrained else []), CASES]
    headings = [("mention" if mentions and name == "relation" else name, wide) for name, wide, _ in columns]
    yield Text(" ".join(_padded(*heading) for heading in headings), style=DIM, no_wrap=True)
    for row in rows:
        line = " ".join(_padded(cell(row), wide) for _, wide, cell in columns)
        yield Text(f"{line} ✓" if row.beats_rules else line, style=BOLD if row.beats_rules else "", no_wrap=True)


def _padded(text: str, wide: int) -> str:
    return set_cell_size(text, wide) if wide > 0 else text.rjust(-wide)


def _interval_text(best: Best) -> str:
    low, high = (100 * end for end in best.interval)
    return f"{low:.0f}–{high:.0f}"


def _rule_of(row: Relation, name: str) -> Rule | None:
    return next((rule for rule in row.rules if rule.name == name), None)


def _offset_rule(rule: Rule | None) -> str:
    if rule is None:
        return f"{ABSENT:>5}"
    return f"{100 * rule.accuracy:5.1f}{'' if rule.offset is None else f' {rule.offset:+d}'}"


def _nearest_rule(rule: Rule | None) -> str:
    if rule is None:
        return f"{ABSENT:>5}"
    side = {"before": "<", "behind": ">"}.get(rule.side or "", "")
    tag = "" if rule.tag is None else visible_text(rule.tag)[:4]
    return f"{100 * rule.accuracy:5.1f} {set_cell_size(side + tag, 5)}"


def _tree_lines(census: CensusTable) -> Iterator[str]:
    trees = census.trees
    if trees.best_head is None or trees.best_layer is None:
        return
    line = (
        f"trees (UUAS): head {trees.best_head.layer}.{trees.best_head.head} {100 * trees.best_head.accuracy:.1f} "
        f"({_interval_text(trees.best_head)}), layer {trees.best_layer[0]} {100 * trees.best_layer[1]:.1f}, "
        f"right-branching {100 * trees.right_branching:.1f}"
    )
    yield line if trees.untrained is None else f"{line}, untrained {100 * trees.untrained.accuracy:.1f}"


def _layer_lines(census: CensusTable, width: int) -> Iterator[str]:
    """What the heads of each layer do together."""
    if not census.used:
        return
    rows = {row.layer: row for row in census.layers}
    every = [rows.get(layer) for layer in range(census.head_grid[0])]
    said = (
        (
            "attention on dependencies by layer, %:",
            [f"{100 * row.dependency_mass:.0f}" if row else ABSENT for row in every],
        ),
        ("mean distance by layer, words:", [f"{row.distance:.1f}" if row else ABSENT for row in every]),
        ("entropy by layer, nats:", [f"{row.entropy:.1f}" if row else ABSENT for row in every]),
    )
    for start, parts in said:
        yield from _wrapped_lines(start, parts, width)


def _census_heads(census: CensusTable, width: int) -> Iterator[str]:
    positional = [f"{h.layer}.{h.head} ({h.positional[0]:+d})" for h in census.heads if h.positional is not None]
    if positional:
        yield from _wrapped_lines("positional (90 % at one offset):", _first_heads(positional), width)
    syntactic = [f"{h.layer}.{h.head} ({_strongest_finding(h)})" for h in census.heads if h.syntactic]
    if syntactic:
        yield from _wrapped_lines("syntactic (10 points above the best offset):", _first_heads(syntactic), width)


def _first_heads(heads: Sequence[str]) -> Sequence[str]:
    """Of very many heads the first."""
    return heads if len(heads) <= MOST_HEADS + 1 else [*heads[:MOST_HEADS], f"{len(heads) - MOST_HEADS} more"]


def _strongest_finding(head: HeadRow) -> str:
    relation, direction, _ = max(head.syntactic, key=lambda found: found[2])
    more = len(head.syntactic) - 1
    return f"{visible_text(relation)} {ARROWS[direction]}" + (f", {more} more" if more else "")


def _remark_lines(census: CensusTable, listed: Sequence[Relation], width: int) -> Iterator[str]:
    own = [relation for relation in listed if relation.relation != ALL]
    if own:
        losing = sum(not relation.beats_rules for relation in own)
        yield f"In {losing} of {len(own)} rows of relations no head's interval lies above every rule (✓)."
    without = sorted(set(range(census.head_grid[0])) - {row.layer for row in census.layers})
    if without and census.used:
        has = "Layer {} has" if len(without) == 1 else "Layers {} have"
        yield f"{has.format(number_list(without))} no attention ({ABSENT})."
    ahead = sum(relation.ahead for relation in census.relations if relation.relation == ALL)
    if ahead:
        yield f"The model is causal: {ahead:,} words that stand ahead are no cases, neither of heads nor of rules."
    if census.within:
        lie = "dependency lies" if census.within == 1 else "dependencies lie"
        yield f"{census.within:,} {lie} within a word that the model cannot tell apart: left out."
    if census.mentions:
        yield _document_line(census.mentions)
    if census.skipped:
        reasons = [f"{visible_text(reason)} {count:,}" for reason, count in census.skipped.items()]
        yield from _wrapped_lines("left out:", reasons, width)


def _document_line(counts: dict[str, int]) -> str:
    """How documents were read for coreference, and which mentions are no cases."""
    said = (
        f"Coreference: {counts['documents']:,} documents were read in {counts['windows']:,} windows of neighbouring "
        f"sentences; of {counts['mentions']:,} mentions {counts['new']:,} are the first of their entity, and "
        f"{counts['outside']:,} have no antecedent in their window"
    )
    return f"{said}, {counts['unread']:,} were not read." if counts["unread"] else f"{said}."


def _wrapped_lines(start: str, parts: Sequence[str], width: int) -> list[str]:
    """The parts behind a heading, in lines of at most `width` cells."""
    *before, line = wrap(start, width)
    pieces = [*(f"{part}," for part in parts[:-1]), *parts[-1:]]
    return [*before, *packed_lines(line, pieces, width, " ", " " * 4)]
