"""The sources of an answer as tables and sentences, and as a page: the prompt shaded by what matters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnctl import __version__
from attnctl.commands.sources.parts import NEGLIGIBLE
from attnctl.commands.sources.result import AnswerSources
from attnctl.errors import option_name
from attnctl.render.forms import ABSENT, Column, Form, Line, Table
from attnctl.render.page import as_data, document_page, escaped_html, filled_template, page_colours
from attnctl.render.page.reading_pages import table_html
from attnctl.text import percent, probability_text, shortened, visible_text

HERE = "attnctl.commands.sources"  # with the files of the page
HUES = 7  # colours of the page's style that can be told apart


def sources_forms(found: AnswerSources, costs: Sequence[float | None], top: int | None = None) -> Iterator[Form]:
    """The answer, its parts, and what each token of it rests on, which is lost without it; `top` None is all parts."""
    yield Line(
        [
            "The answer given: " if found.answer.given else "The answer: ",
            (f"“{visible_text(found.answer.text.strip())}”", "bold"),
            f"  probability {probability_text(found.answer.log_probability)}",
        ]
    )
    yield ""
    yield parts_table(found, top)
    apart = [f"{name} {percent(value, 1)}" for name, value in found.apart.items() if value >= 0.005]
    if apart:
        yield f"looked at beside the parts: {', '.join(apart)}", "dim"
    yield ""
    yield from (Line(sentence, indent=2) for sentence in sources_sentences(found))
    firsts = [token.source for token in found.answer.tokens]
    if len(found.answer.tokens) > 1 and any(at is not None for at in firsts):
        names = ["none of them" if first is None else visible_text(found.parts[first].name) for first in firsts]
        yield ""
        yield "each token of the answer, and the part whose loss costs it most", "dim"
        tokens = [visible_text(token.text) for token in found.answer.tokens]
        columns = [
            Column("", tokens, "text"),
            Column("", names, "text", cut="end"),
            Column("", list(costs), format=nats_text),
        ]
        yield Table(columns, indent=2)


def parts_table(found: AnswerSources, top: int | None = None) -> Table:
    """A row a part."""
    parts = found.parts[:top]
    most = max((part.looks for part in parts), default=0) or 1
    worst = max((abs(part.matters) for part in parts), default=0) or 1
    total = found.answer.log_probability
    writes = [part.writes for part in parts]
    writes = [None] * len(parts) if None in writes else writes
    bars = [part.matters / worst if part.alone else 0.0 for part in parts]
    after = [probability_text(total + part.matters) if part.alone else ABSENT for part in parts]
    return Table(
        [
            Column("part", [visible_text(part.name) for part in parts], "text", cut="end"),
            Column("start", [part.start for part in parts], hidden=True),
            Column("end", [part.end for part in parts], hidden=True),
            Column(
                "looks", [part.looks for part in parts], "share",
                about="looks: share of the answer's attention, over all heads and layers",
            ),
            Column("", [part.looks / most for part in parts], "bar", max_width=8, rank=0, name=""),
            Column(
                "relative", [part.relative for part in parts], format=lambda times: f"{times:.2f} ×", rank=2,
                about="relative: its share as the answer begins, over that where a general description is asked for",
            ),
            Column(
                "writes", writes, format=nats_text, rank=2,
                about="writes: what the heads that read the part add to the answer's log-probability directly (nats)",
            ),
            Column("matters", [part.matters for part in parts], hidden=True),
            Column(
                "matters", [part.matters if part.alone else "with others" for part in parts], format=nats_text, name="",
                about="matters: change of that log-probability where nothing behind the part sees it (nats; −0.69 halves p)",
            ),
            Column("", bars, "bar", max_width=8, rank=0, tone="accent", name=""),
            Column(
                "removed", [part.removed for part in parts], format=nats_text, rank=1,
                about="removed: the same where the prompt is rendered without the part",
            ),
            Column("alone", [str(part.alone).lower() for part in parts], hidden=True),
            Column(
                "without it", after, rank=3, name="",
                about="without it: the probability of the answer that is left",
            ),
        ],
        legend="{}.",
    )  # fmt: skip


def nats_text(value: float | str) -> str:
    """A change of a log-probability, with its sign."""
    return value if isinstance(value, str) else f"{value:+.2f}".replace("-", "−")


def sources_sentences(found: AnswerSources) -> list[str]:
    """What the table comes to: the part that the answer rests on, the part that is looked at for nothing, agreement."""
    measured = [part for part in found.parts if part.alone]
    if not measured:
        return [f"No part was measured alone: give {option_name('budget')} more forwards."]
    first, before = measured[0], probability_text(found.answer.log_probability)
    said = []
    if first.matters < -NEGLIGIBLE:
        after = probability_text(found.answer.log_probability + first.matters)
        said.append(
            f"The answer rests on {_quoted_start(first.name)}: without it {_quoted_start(found.answer.text, 30)} "
            f"falls from {before} to {after}."
        )
    else:
        said.append("The answer rests on no single part: without any one of them it is about as likely.")
    most = max(found.parts, key=lambda part: part.looks)
    if most is not first and abs(most.matters) < max(NEGLIGIBLE, 0.1 * abs(first.matters)):
        said.append(f"{_quoted_start(most.name)} is looked at most ({percent(most.looks, 1)}), and does not matter.")
    against = [part for part in measured if part.matters > 0.5]
    if against:
        worst = max(against, key=lambda part: part.matters)
        after = probability_text(found.answer.log_probability + worst.matters)
        said.append(f"{_quoted_start(worst.name)} speaks against it: without it the answer would rise to {after}.")
    agreement = found.agreement
    tau, writing = agreement.get("looks-matters"), agreement.get("writes-matters")
    if tau is not None and len(measured) == len(found.parts):
        also = "" if writing is None else f", writing and mattering by {writing:+.2f}"
        said.append(f"Looking and mattering agree by Kendall's τ = {tau:+.2f}{also}, over {len(found.parts)} parts.")
    return said


def _quoted_start(text: str, most: int = 40) -> str:
    return f"“{shortened(visible_text(' '.join(text.split())), most, close=True)}”"


# --- the page ---


def sources_page(found: AnswerSources) -> str:
    """One HTML file that needs no other. Every text of the prompt is escaped, its control characters made visible."""
    said = "".join(f"<p>{escaped_html(sentence)}</p>" for sentence in sources_sentences(found))
    notes = "".join(f"<p class=quiet>{escaped_html(note)}</p>" for note in found.notes)
    given = "The answer given" if found.answer.given else "The answer"
    body = filled_template(
        f"{HERE}:answer_sources.html",
        facts=f"{escaped_html(found.model.name)}, {len(found.parts)} parts of the prompt",
        answer=f"{given}: <b>“{escaped_html(found.answer.text.strip())}”</b> "
        f"probability {probability_text(found.answer.log_probability)}",
        said=said + notes,
        parts=table_html(parts_table(found), "part"),
        tokens=_answer_html(found),
        prompt=_shaded_prompt(found),
        data=as_data(page_colours()),
    )
    cited = f"attnctl {__version__}, {visible_text(found.model.name)}"
    scripts = ["dom.js", "colour.js", f"{HERE}:answer_sources.js"]
    return document_page(body, ["page.css", f"{HERE}:answer_sources.css"], scripts, "attnctl sources", cited)


def _answer_html(found: AnswerSources) -> str:
    cells, hues = [], _hues(found)
    for token in found.answer.tokens:
        first = token.source
        title = "no part" if first is None else escaped_html(found.parts[first].name)
        data = "" if first is None else f" data-first={first} data-hue={hues[first]} tabindex=0"
        cells.append(f"<span title='{title}'{data}>{escaped_html(token.text)}</span>")
    named = "".join(
        f"<li><i data-hue={hue}></i>{escaped_html(found.parts[first].name)}</li>" for first, hue in hues.items()
    )
    return f"<p class=tokens>{''.join(cells)}</p><ul class='small controls'>{named}</ul>"


def _hues(found: AnswerSources) -> dict[int, int]:
    """The colour of each part that is some answer token's first source, by its place; of very many the last share one."""
    firsts = dict.fromkeys(token.source for token in found.answer.tokens if token.source is not None)
    return {first: min(hue, HUES - 1) for hue, first in enumerate(firsts)}


def _shaded_prompt(found: AnswerSources) -> str:
    """The prompt; each part's `matters`, from -1 (for the answer) to 1 (against it), is 1 where it matters most."""
    hues, pieces, at = _hues(found), [], 0
    worst = max((abs(one.matters) for one in found.parts if one.alone), default=0) or 1
    for number, one in sorted(enumerate(found.parts), key=lambda item: item[1].start or 0):
        if (start := one.start) is None or (end := one.end) is None:
            continue  # a region of a picture
        hue = f" data-hue={hues[number]}" if number in hues else ""
        strength = one.matters / worst if one.alone else 0
        before, text = (escaped_html(found.prompt[first:past]) for first, past in ((at, start), (start, end)))
        pieces.append(f"{before}<span data-part={number}{hue} data-matters={strength:.3f}>{text}</span>")
        at = end
    return "".join([*pieces, escaped_html(found.prompt[at:])])
