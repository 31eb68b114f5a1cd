"""Pages of readings: the sources of an answer (its prompt shaded by what matters), and a census."""

from __future__ import annotations

from html import escape
from typing import Any

from attnctl import __version__
from attnctl.formats.documents.census_json import census_document
from attnctl.readings.census.census_table import CensusTable
from attnctl.readings.effects.answer_sources import AnswerSources, PartSource
from attnctl.render.forms import Table
from attnctl.render.page.document import as_data, colour_maps, document_page, filled_template
from attnctl.render.told.sources import parts_table, sources_sentences
from attnctl.text import harmless_text, probability_text, visible_text

HUES = 7  # colours of the page's style that can be told apart


def sources_page(found: AnswerSources) -> str:
    """One HTML file that needs no other. Every text of the prompt is escaped, its control characters made visible."""
    said = "".join(f"<p>{_escaped_html(sentence)}</p>" for sentence in sources_sentences(found))
    notes = "".join(f"<p class=dim>{_escaped_html(note)}</p>" for note in found.notes)
    body = f"""<body>
<noscript><p>This page shades the prompt with JavaScript, which is switched off here.</p></noscript>
<h1>Where the answer came from</h1>
<p class=dim>{_escaped_html(found.model.name)}, {len(found.parts)} parts of the prompt</p>
<p class=answer>{"The answer given" if found.given else "The answer"}: <b>“{_escaped_html(found.answer.strip())}”</b>
probability {probability_text(found.log_probability)}</p>
{said}{notes}
<h2>The parts</h2>{table_html(parts_table(found))}
<h2>The answer, each token with the part whose loss costs it most</h2>{_answer_html(found)}
<h2>The prompt, shaded by what matters</h2><pre>{_shaded_prompt(found)}</pre>
"""
    cited = f"attnctl {__version__}, {visible_text(found.model.name)}"
    return document_page(body, ["answer_sources.css"], ["answer_sources.js"], "attnctl sources", cited)


def table_html(table: Table) -> str:
    """A table, each row numbered as a part; a bar is as long as its number, of which a positive one is `against`."""
    columns = [one for one in table.columns if not one.hidden and any(value is not None for value in one.values)]
    classes = [{"text": "name", "bar": "b"}.get(one.kind, "n") for one in columns]
    head = "".join(f"<th class={kind}>{one.heading}" for kind, one in zip(classes, columns, strict=True))
    rows = []
    for at in range(len(columns[0].values)):
        cells = ""
        for kind, one in zip(classes, columns, strict=True):
            value = one.values[at]
            text = _escaped_html("" if kind == "b" else one.cell_text(value))
            side = ("against" if value > 0 else "") if one.tone else "looks"
            bar = f"<span class='bar {side}' data-width='{6 * abs(value):.2f}'></span>" if kind == "b" else text
            title = f" title='{text}'" if kind == "name" else ""
            cells += f"<td class={kind}{title}>{bar}"
        rows.append(f"<tr data-part={at}>{cells}</tr>")
    about = table.legend.replace("{}", "; ".join(one.about for one in columns if one.about))
    return (
        f"<div class=scroll><table><tr>{head}</tr>{''.join(rows)}</table></div><p class=dim>{_escaped_html(about)}</p>"
    )


def _answer_html(found: AnswerSources) -> str:
    cells, hues = [], _hues(found)
    for token, first in zip(found.answer_tokens, found.first_sources(), strict=True):
        title = "no part" if first is None else _escaped_html(found.parts[first].part.name)
        data = "" if first is None else f" data-first={first} data-hue={hues[first]} tabindex=0"
        cells.append(f"<span title='{title}'{data}>{_escaped_html(token.text)}</span>")
    named = "".join(
        f"<li><i data-hue={hue}></i>{_escaped_html(found.parts[first].part.name)}</li>" for first, hue in hues.items()
    )
    return f"<p class=tokens>{''.join(cells)}</p><ul class=hues>{named}</ul>"


def _hues(found: AnswerSources) -> dict[int, int]:
    """The colour of each part that is some answer token's first source, by its place; of very many the last share one."""
    firsts = dict.fromkeys(first for first in found.first_sources() if first is not None)
    return {first: min(hue, HUES - 1) for hue, first in enumerate(firsts)}


def _shaded_prompt(found: AnswerSources) -> str:
    worst = max((abs(one.matters) for one in found.parts if one.alone), default=0) or 1
    hues = _hues(found)
    ordered = sorted(enumerate(found.parts), key=lambda item: item[1].part.start)
    pieces, at = [], 0
    for number, one in ordered:
        start, end = one.part.start, one.part.end
        pieces.append(f"<span class=dim>{_escaped_html(found.prompt[at:start])}</span>")
        hue = f" data-hue={hues[number]}" if number in hues else ""
        shade, text = _shade_of_part(one, worst), _escaped_html(found.prompt[start:end])
        pieces.append(f"<mark data-part={number}{hue} data-shade='{shade}'>{text}</mark>")
        at = end
    return "".join([*pieces, f"<span class=dim>{_escaped_html(found.prompt[at:])}</span>"])


def _shade_of_part(one: PartSource, worst: float) -> str:
    strength = 0.65 * abs(one.matters) / worst if one.alone else 0.0
    return f"{'for' if one.matters <= 0 else 'against'},{strength:.3f}"


def _escaped_html(text: str) -> str:
    return escape(harmless_text(text), quote=True)


def census_page(census: CensusTable) -> str:
    """The HTML: it needs nothing else, and connects nowhere."""
    document = _plain_lists(census_document(census)) | {"maps": colour_maps()["heat"]}
    for relation, said in zip(census.relations, document["relations"], strict=True):
        said["rule_texts"] = {rule.name: visible_text(str(rule)) for rule in relation.rules}
        said["relation"] = visible_text(said["relation"])
        said["best_rule"] = None if relation.best_rule is None else relation.best_rule.name
    for head in document["heads"]:
        for found in head["syntactic"]:
            found["relation"] = visible_text(found["relation"])
    document["model"], document["corpus"] = visible_text(census.model), visible_text(census.corpus)
    title = f"{document['model']} on {document['corpus']}"
    body = filled_template("census.html", data=as_data(document))
    cited = f"attnctl {__version__}, {title}"
    return document_page(body, ["page.css", "census.css"], ["census.js"], f"{title} · attnctl", cited)


def _plain_lists(value: object) -> Any:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {name: _plain_lists(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_lists(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value
