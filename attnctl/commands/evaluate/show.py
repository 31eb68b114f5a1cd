"""Show a census as tables, a picture, a page and files: for each relation the best head, beside the rules it should beat."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl import __version__
from attnctl.attention import Array
from attnctl.commands.evaluate.result import (
    ALL,
    FEWEST,
    Best,
    CensusTable,
    HeadRow,
    Relation,
    Rule,
    Trees,
)
from attnctl.commands.evaluate.words import COREFERENCE, DOWN, TO_ANTECEDENT, UP
from attnctl.formats import PLAIN, Look, figure_bytes, json_object, write_json
from attnctl.render import (
    ABSENT,
    Column,
    Form,
    Line,
    Table,
    document_page,
    escaped_html,
    filled_template,
    json_for_script,
    page_colours,
    table_html,
)
from attnctl.runtime.files import need_pyarrow
from attnctl.text import counted, csv_table, number_list, percent, visible_text

if TYPE_CHECKING:
    from attnctl.render import Drawing
    from attnctl.runtime.arrays import Ints
    from attnctl.source import Say
    from attnctl.text import Document

ARROWS = {UP: "→ head", DOWN: "→ dep"}
MOST_HEADS = 12  # heads in the list of positional heads, and of syntactic heads

NOTE = (
    "found: how often the word that gets most of a word's attention is the right one "
    "(sums to a word, means from it; without special tokens and the word itself), in the "
    "head that does best on one half of the sentences, measured on the other. → head: a "
    "dependent looks at its head; → dep: a head looks at its dependent. Rules: the best "
    "fixed offset, the nearest word of the usual tag (< before, > behind), the first "
    "word; rule: the best of them. ✓: the head's whole interval lies above every rule."
)
MENTION_NOTE = (
    "→ ante: a mention looks at an earlier mention of the same entity. Rules: the nearest mention, the nearest with the "
    "same head word (match), the first."
)


def census_forms(census: CensusTable, subtypes: bool = False, least: int = FEWEST) -> Iterator[Form]:
    """Return the heading, the tables of relations, trees, layers and heads, and how to read them.

    `subtypes` adds a row for each subtype; rows with fewer than `least` scored cases are left out.
    """
    yield census_heading(census), "bold"
    yield ""
    scored_rows = [row for row in census.relations if row.best is not None and (subtypes or not row.subtype)]
    listed = [
        row for row in scored_rows if row.relation == ALL or (row.best is not None and row.best.scored_on >= least)
    ]
    mentions = [relation for relation in listed if relation.direction == TO_ANTECEDENT]
    if dependencies := [relation for relation in listed if relation not in mentions]:
        yield _relation_table(dependencies, "relation")
    if rare := [relation for relation in census.relations if not relation.subtype and relation not in listed]:
        scored = any(relation.best is not None for relation in rare)
        how = "--json has them all, --least 1 shows them" if scored else "no cases in one half of the sentences"
        rows, are = ("row", "is") if len(rare) == 1 else ("rows", "are")
        if listed or scored:
            yield f"{len(rare)} rarer {rows} {are} left out ({how}).", "dim"
        else:
            yield (
                "No relation can be measured: a head is chosen on one half of the sentences and measured on the other, "
                "and the sentences are too few for that."
            )
    yield ""
    if mentions:
        yield _relation_table(mentions, "mention")
        yield ""
    if trees := trees_text(census.trees):
        yield Line(f"trees (UUAS): {trees}", hanging=4)
    yield from _layer_lines(census)
    yield from _head_lines(census)
    yield from _remark_lines(census, listed)
    yield ""
    if listed:
        yield NOTE, "dim"
    if mentions:
        yield MENTION_NOTE, "dim"


def _relation_table(rows: Sequence[Relation], name: str) -> Table:
    """Return a table of relations, all of one kind: a row for each."""
    labels = [(row, row.relation.removeprefix(f"{COREFERENCE}:")) for row in rows]
    rules, cases = [row.rules for row in rows], [row.cases for row in rows]
    best = [row.best for row in rows]
    return Table(
        [
            Column(name, [visible_text("  " * row.subtype + label) for row, label in labels], "text", cut="end"),
            Column("to its", [ARROWS.get(row.direction, "→ ante") for row in rows], "text"),
            Column("head", [head and f"{head.layer}.{head.head}" for head in best]),
            Column("found", [head and 100 * head.accuracy for head in best], format=".1f"),
            Column("95 %", [head and _interval_text(head) for head in best], rank=4),
            Column("rule", [row.best_rule and 100 * row.rules[row.best_rule].accuracy for row in rows], format=".1f"),
            Column("", ["✓" * row.beats_rules for row in rows], "text", joined=True),
            Column("offset", [_rule_text(by.get("offset")) for by in rules], "text", rank=3),
            Column("match", [_rule_text(by.get("head_match")) for by in rules], "text", rank=3),
            Column("nearest", [_rule_text(by.get("nearest")) for by in rules], "text", rank=2),
            Column(
                "1st", [by["first"].accuracy * 100 if "first" in by else None for by in rules], format=".0f", rank=0
            ),
            Column("unt", [row.untrained and 100 * row.untrained.accuracy for row in rows], format=".0f", rank=5),
            Column("cases", [count if count < 1_000_000 else f"{count / 1e6:,.1f} M" for count in cases], rank=1),
        ],
        strong=[row.beats_rules for row in rows],
        gap=1,
    )


def _interval_text(best: Best) -> str:
    low, high = (100 * end for end in best.interval)
    return f"{low:.0f}–{high:.0f}"


def _rule_text(rule: Rule | None) -> str | None:
    """Return a rule's accuracy and its offset or tag: 42.4 +1, or 45.8 >NOUN."""
    if rule is None:
        return None
    name = {"before": "<", "behind": ">"}.get(rule.side or "", "") + visible_text(rule.tag or " ")[:4].strip("␣")
    return f"{100 * rule.accuracy:5.1f} {name if rule.offset is None else f'{rule.offset:+d}'}".rstrip()


def _list_line(start: str, parts: Sequence[str]) -> Line:
    """Return a line of parts with commas behind their heading."""
    return Line([*start.split(), *(f"{part}," for part in parts[:-1]), *parts[-1:]], hanging=4, between=" ")


def census_heading(census: CensusTable) -> str:
    """Return a line with the model, the corpus, and how much of it was read."""
    heading = f"{visible_text(census.model)} on {visible_text(census.corpus)}: "
    read = census.sentences.used + sum(census.sentences.skipped.values())
    heading += f"{counted(census.sentences.used, 'sentence')}, {counted(census.words.used, 'word')}"
    return heading + f" (of {counted(read, 'sentence')})" * (census.sentences.used != read)


def left_out(census: CensusTable) -> list[str]:
    """Return why sentences were left out, with the number for each reason."""
    return [f"{visible_text(reason)} {count:,}" for reason, count in census.sentences.skipped.items()]


def positional_heads(census: CensusTable) -> list[str]:
    """Return the heads that look at one offset, each with its offset."""
    return [f"{h.layer}.{h.head} ({h.positional.offset:+d})" for h in census.heads if h.positional is not None]


def trees_text(trees: Trees) -> str:
    """Return how well spanning trees do, in percent; "" if the corpus has no edges to compare them with."""
    if trees.best_head is None or trees.best_layer is None:
        return ""
    text = (
        f"head {trees.best_head.layer}.{trees.best_head.head} {100 * trees.best_head.accuracy:.1f} "
        f"({_interval_text(trees.best_head)}), layer {trees.best_layer.layer} {100 * trees.best_layer.accuracy:.1f}, "
        f"right-branching {100 * trees.right_branching:.1f}"
    )
    return text + ("" if trees.untrained is None else f", untrained {100 * trees.untrained.accuracy:.1f}")


def layers_table(census: CensusTable) -> Table:
    """Return a table of what the heads of each layer do together."""
    rows = census.layers
    return Table(
        [
            Column("layer", [row.layer for row in rows]),
            Column("on dependencies %", [100 * row.dependency_mass for row in rows], format=".1f"),
            Column("mean distance", [row.distance for row in rows], format=".2f"),
            Column("entropy, nats", [row.entropy for row in rows], format=".2f"),
            Column("UUAS %", [100 * row.uuas for row in rows], format=".1f"),
        ]
    )


def _layer_lines(census: CensusTable) -> Iterator[Form]:
    """Return lines about what the heads of each layer do together."""
    if not census.sentences.used:
        return
    rows = {row.layer: row for row in census.layers}
    every = [rows.get(layer) for layer in range(census.head_grid[0])]
    yield _list_line(
        "attention on dependencies by layer, %:",
        [f"{100 * row.dependency_mass:.0f}" if row else ABSENT for row in every],
    )
    yield _list_line("mean distance by layer, words:", [f"{row.distance:.1f}" if row else ABSENT for row in every])
    yield _list_line("entropy by layer, nats:", [f"{row.entropy:.1f}" if row else ABSENT for row in every])


def _head_lines(census: CensusTable) -> Iterator[Form]:
    syntactic = []
    for head in census.heads:
        if head.syntactic:
            best, more = max(head.syntactic, key=lambda finding: finding.accuracy), len(head.syntactic) - 1
            finding = f"{visible_text(best.relation)} {ARROWS[best.direction]}{f', {more} more' * bool(more)}"
            syntactic.append(f"{head.layer}.{head.head} ({finding})")
    for start, heads in (
        ("positional (90 % at one offset):", positional_heads(census)),
        ("syntactic (10 points above the best offset):", syntactic),
    ):
        if len(heads) > MOST_HEADS + 1:
            heads = [*heads[:MOST_HEADS], f"{len(heads) - MOST_HEADS} more"]
        if heads:
            yield _list_line(start, heads)


def _remark_lines(census: CensusTable, listed: Sequence[Relation]) -> Iterator[Form]:
    single = [relation for relation in listed if relation.relation != ALL]
    if single:
        losing = sum(not relation.beats_rules for relation in single)
        yield f"In {losing} of {len(single)} rows of relations no head's interval lies above every rule (✓)."
    without = sorted(set(range(census.head_grid[0])) - {row.layer for row in census.layers})
    if without and census.sentences.used:
        has = "Layer {} has" if len(without) == 1 else "Layers {} have"
        yield f"{has.format(number_list(without))} no attention ({ABSENT})."
    ahead = sum(relation.ahead for relation in census.relations if relation.relation == ALL)
    if ahead:
        yield f"The model is causal: {ahead:,} words that stand ahead are not cases, neither of heads nor of rules."
    if within := census.words.dependencies_within:
        lie = "dependency lies" if within == 1 else "dependencies lie"
        yield f"{within:,} {lie} within a word that the model cannot tell apart: left out."
    if census.mentions:
        yield _document_line(census.mentions)
    if census.sentences.skipped:
        yield _list_line("left out:", left_out(census))


def _document_line(counts: dict[str, int]) -> str:
    """Return a sentence on how documents were read for coreference, and which mentions do not count as cases."""
    text = (
        f"Coreference: {counts['documents']:,} documents were read in {counts['windows']:,} windows of neighbouring "
        f"sentences; of {counts['mentions']:,} mentions {counts['new']:,} are the first of their entity, and "
        f"{counts['outside']:,} have no antecedent in their window"
    )
    return f"{text}, {counts['unread']:,} were not read." if counts["unread"] else f"{text}."


# --- as a picture ------------------------------------------------------------

MOST_MAPS = 24  # maps of relations in a picture
ACROSS = 4
WAYS = {UP: "→ its head", DOWN: "→ its dependents", TO_ANTECEDENT: "→ antecedent"}
READ = "how often a head's largest weight is on the right word; a ring around the best head"
Map = tuple[str, Array, tuple[int, int] | None]  # name in two lines, shares (layers, heads), the best head


def census_drawing(census: CensusTable, look: Look = PLAIN) -> Drawing:
    """Draw maps of the relations with most cases, and a map of the trees, all on one scale from 0 to 1."""
    from matplotlib.colors import Normalize

    from attnctl.render import Panel, Panels, Scale, colour_map, drawing_of

    maps = _relation_maps(census)
    layers, heads = census.head_grid
    panels = tuple(
        Panel(*divmod(index, ACROSS), name, np.where(census.attends, share, 0), census.attends, ring=best)
        for index, (name, share, best) in enumerate(maps)
    )
    heading = f"{visible_text(census.model)} on {visible_text(census.corpus)}: {census.sentences.used:,} sentences"
    picture = Panels(
        panels=panels,
        rows=tuple(map(str, range(layers))),
        columns=tuple(map(str, range(heads))),
        scales=(Scale(Normalize(0, 1), colour_map(look.cmap), "share of cases"),),
        title=heading if look.title is None else visible_text(look.title),
        notes=(*(maps[0][0].split("\n") if len(maps) == 1 else ()), READ),
        axes=("layer", "head"),
        hidden="no attention",
        cited=f"attnctl {__version__}, {census.model} on {census.corpus}",
    )
    return drawing_of(picture, look)


def _relation_maps(census: CensusTable) -> list[Map]:
    listed = [
        relation
        for relation in census.relations
        if relation.best and relation.best.scored_on >= FEWEST and not relation.subtype
    ]
    names = list(dict.fromkeys(relation.relation for relation in listed))[: MOST_MAPS // 2]
    maps = [_relation_map(relation) for relation in listed if relation.relation in names]
    trees = census.trees
    if trees.edges and trees.best_head is not None:
        best = trees.best_head
        below = f"{best.layer}.{best.head}: {percent(best.accuracy)}; right-branch {percent(trees.right_branching)}"
        maps.append((f"spanning trees (UUAS)\n{below}", trees.correct / trees.edges, (best.layer, best.head)))
    return maps or [("no relation has enough cases", np.zeros(census.head_grid), None)]


def _relation_map(relation: Relation) -> Map:
    best, rule_name = relation.best, relation.best_rule
    assert best is not None
    below = f"{best.layer}.{best.head}: {percent(best.accuracy)}"
    if rule_name is not None:
        rule = relation.rules[rule_name]
        more = {"offset": f" {rule.sentence(rule_name)}", "nearest": f" {rule.tag or rule_name}"}
        rule_text = rule_name + more.get(rule_name, "")
        below += f"; {rule_text} {percent(rule.accuracy)}"
    name = "all relations" if relation.relation == ALL else visible_text(relation.relation)
    title = f"{name} {WAYS[relation.direction]}"
    return f"{title}\n{below}", relation.correct / relation.cases, (best.layer, best.head)


# --- as a page ------------------------------------------------------------

HERE = "attnctl.commands.evaluate"  # the package of the page's style, script and template


def census_page(census: CensusTable) -> str:
    """Return the census as one HTML page, which needs no other file and no connection."""
    relations = json_object(census)["relations"]
    for relation, row in zip(census.relations, relations, strict=True):
        row["rule_texts"] = {name: visible_text(rule.sentence(name)) for name, rule in relation.rules.items()}
        row["relation"] = visible_text(row["relation"])
        row["direction"] = _spaced(row["direction"])
        row["best_rule"] = relation.best_rule
    heads = [{"layer": head.layer, "head": head.head, "told": _head_told(head)} for head in census.heads]
    document = {"relations": relations, "heads": heads, "untrained": census.untrained} | page_colours()
    title = f"{visible_text(census.model)} on {visible_text(census.corpus)}"
    cited = f"attnctl {__version__}, {title}"
    syntactic = [f"{h.layer}.{h.head}: {_findings(h)}" for h in census.heads if h.syntactic]
    out, trees = left_out(census), trees_text(census.trees)
    parts = {
        "facts": census_heading(census) + (f"; left out: {', '.join(out)}" if out else ""),
        "trees": f"Maximum spanning trees, undirected attachment (UUAS, %): {trees or 'the corpus has no edges'}.",
        "positional": ", ".join(positional_heads(census)) or "none",
        "syntactic": "; ".join(syntactic) or "none",
        "cited": cited,
    }
    body = filled_template(
        f"{HERE}:census.html",
        data=json_for_script(document),
        layers=table_html(layers_table(census)),
        **{name: escaped_html(text) for name, text in parts.items()},
    )
    scripts = ["dom.js", "colour.js", f"{HERE}:census.js"]
    return document_page(body, ["page.css", f"{HERE}:census.css"], scripts, f"{title} · attnctl", cited)


def _spaced(direction: str) -> str:
    return direction.replace("→", " → ")


def _findings(head: HeadRow) -> str:
    return ", ".join(
        f"{visible_text(finding.relation)}, {_spaced(finding.direction)} ({percent(finding.accuracy)})"
        for finding in head.syntactic
    )


def _head_told(head: HeadRow) -> str:
    """Return a sentence about what a head does over the whole corpus."""
    text = (
        f"Over the whole corpus: entropy {head.entropy:.2f} nats, mean distance {head.distance:.1f} words, "
        f"{percent(head.own)} on the word itself, {percent(head.special)} on special tokens, "
        f"{percent(head.dependency_mass)} of the rest on words joined by a dependency"
    )
    text += "." if head.uuas is None else f", UUAS {percent(head.uuas, 1)}."
    if head.positional is not None:
        text += f" Positional: {percent(head.positional.share)} at {head.positional.offset:+d}."
    return text + (f" Syntactic: {_findings(head)}." if head.syntactic else "")


# --- as a table ---------------------------------------------------------------------------------------------------

# name and kind of each column: what each head finds, then what all heads of a relation and direction share
TEXT, WHOLE, REAL, TRUTH = "text", "whole", "real", "truth"
COLUMNS = {
    "relation": TEXT, "direction": TEXT, "layer": WHOLE, "head": WHOLE, "cases": WHOLE, "correct": WHOLE, "accuracy": REAL,
    "best": TRUTH, "best_scored_on": WHOLE, "best_accuracy": REAL, "best_low": REAL, "best_high": REAL, "beats_rules": TRUTH,
    "best_rule": TEXT, "best_rule_accuracy": REAL, "offset": WHOLE, "offset_accuracy": REAL, "nearest_tag": TEXT,
    "nearest_side": TEXT, "nearest_accuracy": REAL, "head_match_accuracy": REAL, "first_accuracy": REAL,
    "untrained_best": REAL,
}  # fmt: skip
UUAS = "(tree)"  # the relation of rows about the edges that each head's maximum spanning tree finds


def census_rows(census: CensusTable) -> Iterator[Document]:
    """Return a row for each relation, direction, layer and head; `best` says whether it is the chosen head."""
    for relation in census.relations:
        about = _best_columns(relation.best, relation.untrained) | _rule_columns(relation)
        yield from _head_rows(relation.relation, relation.direction, relation.cases, relation.correct, about)
    trees = census.trees
    about = _best_columns(trees.best_head, trees.untrained)
    about |= {"best_rule": "right-branching", "best_rule_accuracy": trees.right_branching}
    if trees.best_head is not None:
        about["beats_rules"] = trees.best_head.interval[0] > trees.right_branching
    yield from _head_rows(UUAS, "undirected", trees.edges, trees.correct, about)


def _head_rows(relation: str, direction: str, cases: int, correct: Ints, about: Document) -> Iterator[Document]:
    """Return a row for each head; `about` holds the columns that they share, its `best` the layer and head chosen."""
    for layer, heads in enumerate(correct.tolist()):
        for head, count in enumerate(heads):
            of_head = {"relation": relation, "direction": direction, "layer": layer, "head": head, "cases": cases}
            of_head |= {"correct": count, "accuracy": count / cases if cases else None}
            yield dict.fromkeys(COLUMNS) | about | of_head | {"best": about["best"] == (layer, head)}


def _best_columns(best: Best | None, untrained: Best | None) -> Document:
    """Return the columns about the chosen head: which it is, and how well it does on the other half."""
    about: Document = {"best": None, "untrained_best": None if untrained is None else untrained.accuracy}
    if best is not None:
        about |= {"best": (best.layer, best.head), "best_scored_on": best.scored_on, "best_accuracy": best.accuracy}
        about |= {"best_low": best.interval[0], "best_high": best.interval[1]}
    return about


def _rule_columns(relation: Relation) -> Document:
    """Return the columns about the rules beside a relation."""
    best = relation.best_rule
    about: Document = {} if relation.best is None else {"beats_rules": relation.beats_rules}
    about |= {} if best is None else {"best_rule": best, "best_rule_accuracy": relation.rules[best].accuracy}
    for name, rule in relation.rules.items():
        about[f"{name}_accuracy"] = rule.accuracy
        if rule.offset is not None:
            about["offset"] = rule.offset
        if rule.tag is not None:
            about |= {"nearest_tag": rule.tag, "nearest_side": rule.side}
    return about


def census_csv(census: CensusTable) -> bytes:
    """Return the table as CSV; a cell without a value is empty."""
    rows = ([row[name] for name in COLUMNS] for row in census_rows(census))
    return csv_table(COLUMNS, rows, digits=6).encode()


def census_parquet(census: CensusTable) -> bytes:
    """Return the table as Parquet. Raises AttnctlError if pyarrow is not installed."""
    need_pyarrow("Parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {TEXT: pa.string(), WHOLE: pa.int64(), REAL: pa.float64(), TRUTH: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(census_rows(census)), schema), out, compression="zstd")
    return out.getvalue()


# --- as a file ------------------------------------------------------------


def census_bytes(census: CensusTable, suffix: str, look: Look = PLAIN, say: Say | None = None) -> bytes:
    """Return a census as the bytes of a file that ends in `suffix`: .json, .csv, .parquet, .html, or a picture.

    `look` is that of a picture; `say` receives the notes on the picture.
    """
    if suffix == ".json":
        return write_json(census, "census") + b"\n"
    if suffix in (".csv", ".parquet"):
        return census_csv(census) if suffix == ".csv" else census_parquet(census)
    if suffix == ".html":
        return census_page(census).encode()
    drawing = census_drawing(census, look)
    if say is not None:
        say(drawing.notes)
    return figure_bytes(drawing.figure, suffix[1:])
