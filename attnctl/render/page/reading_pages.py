"""Pages of readings: the sources of an answer (its prompt shaded by what matters), and a census."""

from __future__ import annotations

from typing import Any

from attnctl import __version__
from attnctl.formats.documents.census_json import census_document
from attnctl.readings.census.census_table import CensusTable, HeadRow, LayerRow, Trees
from attnctl.readings.effects.answer_sources import AnswerSources, PartSource
from attnctl.render.forms import Table
from attnctl.render.page.document import as_data, document_page, escaped_html, filled_template, page_colours
from attnctl.render.told.sources import parts_table, sources_sentences
from attnctl.text import counted, percent, probability_text, visible_text

HUES = 7  # colours of the page's style that can be told apart


def sources_page(found: AnswerSources) -> str:
    """One HTML file that needs no other. Every text of the prompt is escaped, its control characters made visible."""
    said = "".join(f"<p>{escaped_html(sentence)}</p>" for sentence in sources_sentences(found))
    notes = "".join(f"<p class=quiet>{escaped_html(note)}</p>" for note in found.notes)
    given = "The answer given" if found.given else "The answer"
    body = filled_template(
        "answer_sources.html",
        facts=f"{escaped_html(found.model.name)}, {len(found.parts)} parts of the prompt",
        answer=f"{given}: <b>“{escaped_html(found.answer.strip())}”</b> "
        f"probability {probability_text(found.log_probability)}",
        said=said + notes,
        parts=table_html(parts_table(found)),
        tokens=_answer_html(found),
        prompt=_shaded_prompt(found),
        data=as_data(page_colours()),
    )
    cited = f"attnctl {__version__}, {visible_text(found.model.name)}"
    scripts = ["dom.js", "colour.js", "answer_sources.js"]
    return document_page(body, ["page.css", "answer_sources.css"], scripts, "attnctl sources", cited)


def table_html(table: Table) -> str:
    """A table, each row numbered as a part; what a bar measures, and how much of it, is left to the page's script."""
    columns = [one for one in table.columns if not one.hidden and any(value is not None for value in one.values)]
    head = "".join("<th class=bar>" if one.kind == "bar" else f"<th>{one.heading}" for one in columns)
    rows = []
    for at in range(len(columns[0].values)):
        cells = ""
        for one in columns:
            value = one.values[at]
            text = "" if one.kind == "bar" else escaped_html(one.cell_text(value))
            if one.kind == "bar":
                cells += f"<td class=bar data-{'matters' if one.tone else 'looks'}={value or 0:.3f}>"
            else:
                cells += f"<th scope=row title='{text}'>{text}" if one.kind == "text" else f"<td>{text}"
        rows.append(f"<tr data-part={at}>{cells}")
    about = table.legend.replace("{}", "; ".join(one.about for one in columns if one.about))
    return (
        f"<div class=scroll><table class=rows><thead><tr>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<p class=lead>{escaped_html(about)}</p>"
    )


def _answer_html(found: AnswerSources) -> str:
    cells, hues = [], _hues(found)
    for token, first in zip(found.answer_tokens, found.first_sources(), strict=True):
        title = "no part" if first is None else escaped_html(found.parts[first].part.name)
        data = "" if first is None else f" data-first={first} data-hue={hues[first]} tabindex=0"
        cells.append(f"<span title='{title}'{data}>{escaped_html(token.text)}</span>")
    named = "".join(
        f"<li><i data-hue={hue}></i>{escaped_html(found.parts[first].part.name)}</li>" for first, hue in hues.items()
    )
    return f"<p class=tokens>{''.join(cells)}</p><ul class='small controls'>{named}</ul>"


def _hues(found: AnswerSources) -> dict[int, int]:
    """The colour of each part that is some answer token's first source, by its place; of very many the last share one."""
    firsts = dict.fromkeys(first for first in found.first_sources() if first is not None)
    return {first: min(hue, HUES - 1) for hue, first in enumerate(firsts)}


def _shaded_prompt(found: AnswerSources) -> str:
    hues = _hues(found)
    pieces, at = [], 0
    for number, one in sorted(enumerate(found.parts), key=lambda item: item[1].part.start):
        start, end = one.part.start, one.part.end
        hue = f" data-hue={hues[number]}" if number in hues else ""
        before, text = (escaped_html(found.prompt[first:past]) for first, past in ((at, start), (start, end)))
        pieces.append(f"{before}<span data-part={number}{hue} data-matters={_strength(found, one)}>{text}</span>")
        at = end
    return "".join([*pieces, escaped_html(found.prompt[at:])])


def _strength(found: AnswerSources, one: PartSource) -> str:
    """How much a part matters beside the one that matters most, from -1 (for the answer) to 1 (against it)."""
    worst = max((abs(other.matters) for other in found.parts if other.alone), default=0) or 1
    return f"{one.matters / worst if one.alone else 0:.3f}"


def census_page(census: CensusTable) -> str:
    """The HTML: it needs nothing else, and connects nowhere."""
    relations = _plain_lists(census_document(census)["relations"])
    for relation, said in zip(census.relations, relations, strict=True):
        said["rule_texts"] = {name: visible_text(rule.sentence(name)) for name, rule in relation.rules.items()}
        said["relation"] = visible_text(said["relation"])
        said["direction"] = _spaced(said["direction"])
        said["best_rule"] = relation.best_rule
    heads = [{"layer": head.layer, "head": head.head, "told": _head_told(head)} for head in census.heads]
    document = {"relations": relations, "heads": heads, "untrained": census.untrained} | page_colours()
    title = f"{visible_text(census.model)} on {visible_text(census.corpus)}"
    cited = f"attnctl {__version__}, {title}"
    positional = [f"{h.layer}.{h.head} ({h.positional.offset:+d})" for h in census.heads if h.positional is not None]
    syntactic = [f"{h.layer}.{h.head}: {_findings(h)}" for h in census.heads if h.syntactic]
    parts = {
        "facts": f"{title}: {_census_facts(census)}",
        "trees": _trees_told(census.trees),
        "positional": ", ".join(positional) or "none",
        "syntactic": "; ".join(syntactic) or "none",
        "cited": cited,
    }
    body = filled_template(
        "census.html",
        data=as_data(document),
        layers="".join(_layer_cells(row) for row in census.layers),
        **{name: escaped_html(text) for name, text in parts.items()},
    )
    scripts = ["dom.js", "colour.js", "census.js"]
    return document_page(body, ["page.css", "census.css"], scripts, f"{title} · attnctl", cited)


def _spaced(direction: str) -> str:
    return direction.replace("→", " → ")


def _census_facts(census: CensusTable) -> str:
    out = ", ".join(f"{visible_text(reason)} {count:,}" for reason, count in census.skipped.items())
    left = f" (of {census.sentences_read:,}; left out: {out})" if out else ""
    return f"{counted(census.used, 'sentence')}, {counted(census.words, 'word')}{left}"


def _trees_told(trees: Trees) -> str:
    if trees.best_head is None or trees.best_layer is None:
        return "The corpus has no edges to compare trees with."
    found = [
        f"head {trees.best_head.layer}.{trees.best_head.head} {percent(trees.best_head.accuracy, 1)}",
        f"the mean of layer {trees.best_layer.layer} {percent(trees.best_layer.accuracy, 1)}",
        *([] if trees.untrained is None else [f"untrained {percent(trees.untrained.accuracy, 1)}"]),
        f"right-branching {percent(trees.right_branching, 1)}",
    ]
    return f"Maximum spanning trees, undirected attachment (UUAS): {', '.join(found)}."


def _findings(head: HeadRow) -> str:
    return ", ".join(
        f"{visible_text(one.relation)}, {_spaced(one.direction)} ({percent(one.accuracy)})" for one in head.syntactic
    )


def _head_told(head: HeadRow) -> str:
    """What a head does over the whole corpus, in words."""
    said = (
        f"Over the whole corpus: entropy {head.entropy:.2f} nats, mean distance {head.distance:.1f} words, "
        f"{percent(head.own)} on the word itself, {percent(head.special)} on special tokens, "
        f"{percent(head.dependency_mass)} of the rest on words joined by a dependency"
    )
    said += "." if head.uuas is None else f", UUAS {percent(head.uuas, 1)}."
    said += (
        ""
        if head.positional is None
        else f" Positional: {percent(head.positional.share)} at {head.positional.offset:+d}."
    )
    return said + (f" Syntactic: {_findings(head)}." if head.syntactic else "")


def _layer_cells(row: LayerRow) -> str:
    numbers = (
        row.layer,
        f"{100 * row.dependency_mass:.1f}",
        f"{row.distance:.2f}",
        f"{row.entropy:.2f}",
        f"{100 * row.uuas:.1f}",
    )
    return f"<tr>{''.join(f'<td>{number}' for number in numbers)}"


def _plain_lists(value: object) -> Any:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {name: _plain_lists(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_lists(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value
