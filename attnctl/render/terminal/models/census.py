"""A census in the terminal: a line a relation and direction, the best head beside the rules it should beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from attnctl.readings.census.census_table import ALL, FEWEST, CensusTable, HeadRow, Relation, Rule
from attnctl.readings.census.words import COREFERENCE, DOWN, TO_ANTECEDENT, UP
from attnctl.render.terminal.number_grid import DIM
from attnctl.text import visible_text

ARROWS = {UP: "→ head", DOWN: "→ dep"}
WIDTH = 80
NAME = 13  # cells of a relation's name
MOST_HEADS = 12  # that are listed as positional, or syntactic
BOLD = Style(bold=True)

NOTE = (
    "found: how often the word that gets most of a word's attention is the right one\n"
    "(sums to a word, means from it; special tokens and itself apart), in the head\n"
    "that does best on one half of the sentences, measured on the other. → head: a\n"
    "dependent looks at its head; → dep: a head at its dependent. Rules: the best\n"
    "fixed offset, the nearest word of the usual tag (< before, > behind), the first\n"
    "word. ✓ where the head's whole interval lies above every rule."
)
ABSENT = "  ·"


class CensusReport:
    """The census as a rich renderable, in 80 columns; `subtypes` adds a line for each of them, `fewest` is the least."""

    def __init__(self, census: CensusTable, subtypes: bool = False, fewest: int = FEWEST) -> None:
        self.census, self.subtypes, self.fewest = census, subtypes, fewest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Heading, relations, trees, heads, how to read it."""
        census = self.census
        heading = f"{visible_text(census.model)} on {visible_text(census.corpus)}: {_sentence_counts(census)}"
        yield from (Text(line, style=BOLD) for line in wrap(heading, WIDTH))
        yield Text("")
        listed = [relation for relation in census.relations if self._is_listed(relation)]
        if listed:
            yield Text(_relation_heading(census.untrained), style=DIM, no_wrap=True)
        for relation in listed:
            line = Text(_relation_line(relation, census.untrained), no_wrap=True)
            if relation.beats_rules:
                line.stylize(BOLD)
            yield line
        rare = sum(not relation.subtype for relation in census.relations) - sum(not one.subtype for one in listed)
        if rare:
            how = "--json has them all, --least 1 shows them" if self.fewest > 1 else "no cases in one of the halves"
            yield Text(f"{rare} rarer rows are left out ({how}).", style=DIM)
        yield Text("")
        yield from (Text(line) for said in _tree_lines(census) for line in wrap(said, WIDTH, subsequent_indent="    "))
        yield from (Text(line) for line in _census_heads(census))
        yield from (Text(line) for said in _remark_lines(census, listed) for line in wrap(said, WIDTH))
        yield Text("")
        yield Text(NOTE, style=DIM)

    def _is_listed(self, relation: Relation) -> bool:
        enough = relation.best is not None and relation.best.scored_on >= self.fewest
        return enough and (self.subtypes or not relation.subtype)


def _sentence_counts(census: CensusTable) -> str:
    said = f"{census.used:,} sentences, {census.words:,} words"
    return said if census.used == census.sentences_read else f"{said} (of {census.sentences_read:,} sentences)"


def _relation_heading(untrained: bool) -> str:
    before = " unt" if untrained else ""
    return f"{'relation':{NAME}} {'to its':6}  head found    95 %   offset  nearest    1st{before}   cases"


def _relation_line(relation: Relation, untrained: bool) -> str:
    best = relation.best
    assert best is not None
    rules = {rule.name: rule for rule in relation.rules}
    offset, nearest, first = (rules.get(name) for name in ("offset", "nearest", "first"))
    if relation.direction == TO_ANTECEDENT:  # a mention with the same words stands where the offset would
        offset = rules.get("form")
    low, high = (100 * end for end in best.interval)
    own = relation.relation.removeprefix(f"{COREFERENCE}:")
    name = set_cell_size(visible_text(("  " if relation.subtype else "") + own), NAME)
    before = relation.untrained
    cells = (
        name,
        f"{ARROWS.get(relation.direction, '→ ante'):6}",
        f"{best.layer}.{best.head}".rjust(5),
        f"{100 * best.accuracy:5.1f}",
        f"{low:.0f}–{high:.0f}".rjust(7),
        _offset_rule(offset),
        _nearest_rule(nearest),
        ABSENT if first is None else f"{100 * first.accuracy:3.0f}",
        "" if not untrained else ABSENT if before is None else f"{100 * before.accuracy:3.0f}",
        _case_count(relation.cases).rjust(7),
    )
    return " ".join(cell for cell in cells if cell) + (" ✓" if relation.beats_rules else "")


def _case_count(cases: int) -> str:
    return f"{cases:,}" if cases < 1_000_000 else f"{cases / 1e6:,.1f} M"


def _offset_rule(rule: Rule | None) -> str:
    if rule is None:
        return " " * 8
    return f"{100 * rule.accuracy:5.1f}{'' if rule.offset is None else f' {rule.offset:+d}'}".ljust(8)


def _nearest_rule(rule: Rule | None) -> str:
    if rule is None:
        return f"{ABSENT:>5}".ljust(11)
    side = {"before": "<", "behind": ">"}.get(rule.side or "", "")
    tag = "" if rule.tag is None else visible_text(rule.tag)[:4]
    return f"{100 * rule.accuracy:5.1f} {set_cell_size(side + tag, 5)}"


def _tree_lines(census: CensusTable) -> Iterator[str]:
    trees = census.trees
    if trees.best_head is None or trees.best_layer is None:
        return
    low, high = (100 * end for end in trees.best_head.interval)
    line = (
        f"trees (UUAS): head {trees.best_head.layer}.{trees.best_head.head} {100 * trees.best_head.accuracy:.1f} "
        f"({low:.0f}–{high:.0f}), layer {trees.best_layer[0]} {100 * trees.best_layer[1]:.1f}, "
        f"right-branching {100 * trees.right_branching:.1f}"
    )
    yield line if trees.untrained is None else f"{line}, untrained {100 * trees.untrained.accuracy:.1f}"
    masses = [f"{100 * mass:.0f}" for mass in census.layer_mass]
    yield from _wrapped_lines("attention on dependencies by layer, %:", masses)


def _census_heads(census: CensusTable) -> Iterator[str]:
    positional = [f"{_head_address(h)} ({h.positional[0]:+d})" for h in census.heads if h.positional is not None]
    if positional:
        yield from _wrapped_lines("positional (90 % at one offset):", _first_heads(positional))
    syntactic = [f"{_head_address(head)} ({_strongest_finding(head)})" for head in census.heads if head.syntactic]
    if syntactic:
        yield from _wrapped_lines("syntactic (10 points above the best offset):", _first_heads(syntactic))


def _first_heads(heads: Sequence[str]) -> Sequence[str]:
    """Of very many heads the first."""
    return heads if len(heads) <= MOST_HEADS + 1 else [*heads[:MOST_HEADS], f"{len(heads) - MOST_HEADS} more"]


def _head_address(head: HeadRow) -> str:
    return f"{head.layer}.{head.head}"


def _strongest_finding(head: HeadRow) -> str:
    relation, direction, _ = max(head.syntactic, key=lambda found: found[2])
    more = len(head.syntactic) - 1
    return f"{visible_text(relation)} {ARROWS[direction]}" + (f", {more} more" if more else "")


def _remark_lines(census: CensusTable, listed: Sequence[Relation]) -> Iterator[str]:
    own = [relation for relation in listed if relation.relation != ALL]
    if own:
        losing = sum(not relation.beats_rules for relation in own)
        yield f"In {losing} of {len(own)} rows no head beats the best rule."
    ahead = sum(relation.ahead for relation in census.relations if relation.relation == ALL)
    if census.causal and ahead:
        yield f"The model is causal: in {ahead:,} cases the word stands ahead, where no head looks."
    if census.within:
        yield f"{census.within:,} dependencies lie within a word that the model cannot tell apart: left out."
    if any(relation.direction == TO_ANTECEDENT for relation in listed):
        yield "Of coreference the column offset is another rule: the nearest mention with the same head word."
    if census.mentions:
        yield _document_line(census.mentions)
    if census.skipped:
        yield from _wrapped_lines(
            "left out:", [f"{visible_text(reason)} {count:,}" for reason, count in census.skipped.items()]
        )


def _document_line(counts: dict[str, int]) -> str:
    """How documents were read for coreference, and which mentions are no cases."""
    said = (
        f"Coreference: {counts['documents']:,} documents were read in {counts['windows']:,} windows of neighbouring "
        f"sentences; of {counts['mentions']:,} mentions {counts['new']:,} are the first of their entity, and "
        f"{counts['outside']:,} have no antecedent in their window"
    )
    return f"{said}, {counts['unread']:,} were not read." if counts["unread"] else f"{said}."


def _wrapped_lines(start: str, parts: Sequence[str], width: int = WIDTH) -> Iterator[str]:
    """The parts behind a heading, in lines of at most `width` cells."""
    line = start
    for at, part in enumerate(parts):
        piece = part if at == len(parts) - 1 else f"{part},"
        if cell_len(line) + 1 + cell_len(piece) > width:
            yield line
            line = "   "
        line = f"{line} {piece}"
    yield line
