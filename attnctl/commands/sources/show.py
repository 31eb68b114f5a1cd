"""Show the sources of an answer as tables and sentences, and as a page with the prompt shaded by what matters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnctl import __version__
from attnctl.commands.sources.parts import NEGLIGIBLE, RESTS
from attnctl.commands.sources.result import AnswerSources, PartSource, probability_of_token
from attnctl.errors import option_name
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
from attnctl.text import percent, sentence_percent, shortened, visible_text, without_sign_of_zero

HERE = "attnctl.commands.sources"  # the package with the files of the page
HUES = 7  # distinct colours in the page's style


def sources_forms(sources: AnswerSources, costs: Sequence[float | None], top: int | None = None) -> Iterator[Form]:
    """Return the answer, its parts, and for each token of it the part it depends on; `top` None shows all parts."""
    yield Line(
        [
            "The answer given: " if sources.answer.given else "The answer: ",
            (f"“{visible_text(sources.answer.text.strip())}”", "bold"),
        ]
    )
    yield answer_probability(sources)
    if sources.rests is False:
        yield headline_of(sources)
    yield ""
    yield parts_table(sources, top)
    apart = [f"{name} {percent(value, 1)}" for name, value in sources.apart.items() if value >= 0.005]
    if apart:
        yield f"attention outside the parts: {', '.join(apart)}", "dim"
    yield ""
    sentences = sources_sentences(sources)
    yield from (Line(sentence, indent=2) for sentence in sentences[sources.rests is False :])
    firsts = [token.source for token in sources.answer.tokens]
    if len(sources.answer.tokens) > 1 and any(first is not None for first in firsts):
        names = ["none of them" if first is None else visible_text(sources.parts[first].name) for first in firsts]
        yield ""
        yield "each token of the answer, and the part whose loss costs it most", "dim"
        tokens = [visible_text(token.text) for token in sources.answer.tokens]
        columns = [
            Column("", tokens, "text"),
            Column("", names, "text", cut="end"),
            Column("", list(costs), format=nats_text),
        ]
        yield Table(columns, indent=2)


def parts_table(sources: AnswerSources, top: int | None = None) -> Table:
    """Return a table with a row for each part."""
    parts = sources.parts[:top]
    largest = max((part.looks for part in parts), default=0) or 1
    worst = max((abs(part.matters) for part in parts), default=0) or 1
    writes = [part.writes for part in parts]
    writes = [None] * len(parts) if None in writes else writes
    bars = [part.matters / worst if part.alone else 0.0 for part in parts]
    after = [_token_probability(sources, part.matters) if part.is_measured else ABSENT for part in parts]
    about_matters = (
        "matters: change of this log-probability if no token after the part can see it (nats; −0.69 halves p)"
    )
    if any(part.predicts_answer for part in parts):
        about_matters += "; *: not the whole effect of this part, since the answer is predicted from inside it"
    return Table(
        [
            Column("part", [visible_text(part.name) for part in parts], "text", cut="end"),
            Column("start", [part.start for part in parts], hidden=True),
            Column("end", [part.end for part in parts], hidden=True),
            Column(
                "looks", [part.looks for part in parts], "share",
                about="looks: share of the answer's attention, over all heads and layers",
            ),
            Column("", [part.looks / largest for part in parts], "bar", max_width=8, rank=0, name=""),
            Column(
                "relative", [part.relative for part in parts], format=lambda times: f"{times:.2f} ×", rank=2,
                about="relative: its share as the answer begins, divided by its share if a general description is asked for",
            ),
            Column(
                "writes", writes, format=nats_text, rank=2,
                about="writes: what the heads that read the part add directly to the answer's log-probability (nats)",
            ),
            Column("matters", [part.matters for part in parts], hidden=True),
            Column(
                "matters", [_matters_text(part) for part in parts], format=nats_text, name="", about=about_matters,
            ),
            Column("", bars, "bar", max_width=8, rank=0, tone="accent", name=""),
            Column(
                "removed", [part.removed for part in parts], format=nats_text, rank=1,
                about="removed: the same change if the prompt is rendered without the part",
            ),
            Column("alone", [str(part.alone).lower() for part in parts], hidden=True),
            Column("predicts_answer", [str(part.predicts_answer).lower() for part in parts], hidden=True),
            Column(
                "without it", after, rank=3, name="",
                about="without it: the probability of the answer, per token, without the part",
            ),
        ],
        legend="{}.",
    )  # fmt: skip


def _matters_text(part: PartSource) -> str:
    """Return the change without a part, with a mark if it cannot be measured whole."""
    return (nats_text(part.matters) if part.alone else "with others") + "*" * part.predicts_answer


def nats_text(value: float | str) -> str:
    """Return a change of a log-probability, or a τ, with its sign; a change that rounds to 0 has none."""
    return value if isinstance(value, str) else without_sign_of_zero(f"{value:+.2f}").replace("-", "−")


def _token_probability(sources: AnswerSources, change: float = 0.0) -> str:
    """Return the probability of the answer per token, after a change of its log-probability."""
    answer = sources.answer
    return sentence_percent(probability_of_token(answer.log_probability + change, len(answer.tokens)))


def answer_probability(sources: AnswerSources) -> str:
    """Return the probability of the answer per token, and in all: "probability 81 % per token, 15 % for all 9 tokens"."""
    answer, count = sources.answer, len(sources.answer.tokens)
    if count == 1:
        return f"probability {_token_probability(sources)}"
    total = sentence_percent(probability_of_token(answer.log_probability, 1))
    return f"probability {_token_probability(sources)} per token (geometric mean), {total} for all {count} tokens"


def headline_of(sources: AnswerSources) -> str:
    """Return the sentence that says what the answer rests on."""
    answer = _quoted_start(sources.answer.text, 30)
    each = "" if len(sources.answer.tokens) == 1 else " per token"

    def falls(change: float) -> str:
        before, after = _token_probability(sources), _token_probability(sources, change)
        return f"{answer} {'falls' if change < 0 else 'goes'} from {before} to {after}{each}"

    first = min((part for part in sources.parts if part.alone), key=lambda part: part.matters, default=None)
    if first is not None and first.matters <= -RESTS:
        return f"The answer rests on {_quoted_start(first.name)}: without it {falls(first.matters)}."
    predicting = _predicting_part(sources)
    if sources.rests is None and sources.together is not None and predicting is not None:
        return f"No part that can be hidden whole halves the probability of the answer. {_not_whole(predicting)}"
    if sources.rests is None:
        return (
            f"No part measured alone halves the probability of the answer: give {option_name('budget')} more forwards."
        )
    if sources.together is None:
        return "The answer rests on several parts together, which were measured in a group."
    if sources.rests:
        several = "several parts together" if predicting else "no single part, but on several together"
        return f"The answer rests on {several}: without all parts {falls(sources.together)}."
    return f"The answer does not rest on the prompt: without all of its parts {falls(sources.together)}."


def sources_sentences(sources: AnswerSources) -> list[str]:
    """Return sentences about what the answer rests on, a part with attention but no effect, and agreement."""
    sentences, measured = [headline_of(sources)], [part for part in sources.parts if part.alone]
    if not measured:
        return sentences
    first = measured[0]
    strongest = max(sources.parts, key=lambda part: part.looks)
    predicting = _predicting_part(sources)
    if predicting is not None and _not_whole(predicting) not in sentences[0]:
        sentences.append(_not_whole(predicting))
    little = abs(strongest.matters) < max(NEGLIGIBLE, 0.1 * abs(first.matters))
    if strongest is not first and little and not strongest.predicts_answer:
        sentences.append(
            f"{_quoted_start(strongest.name)} gets most attention ({percent(strongest.looks, 1)}), but does not matter."
        )
    against = [part for part in measured if part.matters > 0.5]
    if against:
        worst = max(against, key=lambda part: part.matters)
        after = _token_probability(sources, worst.matters)
        each = "" if len(sources.answer.tokens) == 1 else " per token"
        sentences.append(
            f"{_quoted_start(worst.name)} works against the answer: without it the answer rises to {after}{each}."
        )
    agreement = sources.agreement
    tau, writing = agreement.get("looks-matters"), agreement.get("writes-matters")
    if tau is not None and len(measured) == len(sources.parts):
        also = "" if writing is None else f", writing and mattering by {nats_text(writing)}"
        count = sum(part.is_measured for part in measured)
        over = f"{count} parts" if count == len(measured) else f"the {count} parts that can be hidden whole"
        sentences.append(f"Looking and mattering agree by Kendall's τ = {nats_text(tau)}{also}, over {over}.")
    return sentences


def _predicting_part(sources: AnswerSources) -> PartSource | None:
    """Return the part that holds the last token of the prompt; None if it lies in no part."""
    return next((part for part in sources.parts if part.predicts_answer), None)


def _not_whole(part: PartSource) -> str:
    return f"What {_quoted_start(part.name)} does cannot be measured whole: the answer is predicted from inside it."


def measured_in_part(sources: AnswerSources) -> list[str]:
    """Return the sentence about the part that predicts the answer, if there is one: it cannot be measured whole."""
    part = _predicting_part(sources)
    return [] if part is None else [_not_whole(part)]


def _quoted_start(text: str, limit: int = 40) -> str:
    return f"“{shortened(visible_text(' '.join(text.split())), limit, close=True)}”"


# --- the page ---


def sources_page(sources: AnswerSources) -> str:
    """Return one HTML page that needs no other file. The prompt's text is escaped; control characters are made visible."""
    sentences = "".join(f"<p>{escaped_html(sentence)}</p>" for sentence in sources_sentences(sources))
    notes = "".join(f"<p class=quiet>{escaped_html(note)}</p>" for note in sources.notes)
    label = "The answer given" if sources.answer.given else "The answer"
    body = filled_template(
        f"{HERE}:answer_sources.html",
        facts=f"{escaped_html(sources.model.name)}, {len(sources.parts)} parts of the prompt",
        answer=f"{label}: <b>“{escaped_html(sources.answer.text.strip())}”</b> {answer_probability(sources)}",
        said=sentences + notes,
        parts=table_html(parts_table(sources), "part"),
        tokens=_answer_html(sources),
        prompt=_shaded_prompt(sources),
        data=json_for_script(page_colours()),
    )
    cited = f"attnctl {__version__}, {visible_text(sources.model.name)}"
    scripts = ["dom.js", "colour.js", f"{HERE}:answer_sources.js"]
    return document_page(body, ["page.css", f"{HERE}:answer_sources.css"], scripts, "attnctl sources", cited)


def _answer_html(sources: AnswerSources) -> str:
    cells, hues = [], _hues(sources)
    for token in sources.answer.tokens:
        first = token.source
        title = "no part" if first is None else escaped_html(sources.parts[first].name)
        data = "" if first is None else f" data-first={first} data-hue={hues[first]} tabindex=0"
        cells.append(f"<span title='{title}'{data}>{escaped_html(token.text)}</span>")
    legend = "".join(
        f"<li><i data-hue={hue}></i>{escaped_html(sources.parts[first].name)}</li>" for first, hue in hues.items()
    )
    return f"<p class=tokens>{''.join(cells)}</p><ul class='small controls'>{legend}</ul>"


def _hues(sources: AnswerSources) -> dict[int, int]:
    """Return the colour of each part that is the first source of an answer token; beyond HUES parts share the last one."""
    firsts = dict.fromkeys(token.source for token in sources.answer.tokens if token.source is not None)
    return {first: min(hue, HUES - 1) for hue, first in enumerate(firsts)}


def _shaded_prompt(sources: AnswerSources) -> str:
    """Return the prompt as HTML, each part with its `matters`, from -1 (supports the answer) to 1 (works against it)."""
    hues, pieces, position = _hues(sources), [], 0
    worst = max((abs(part.matters) for part in sources.parts if part.alone), default=0) or 1
    for number, part in sorted(enumerate(sources.parts), key=lambda item: item[1].start or 0):
        if (start := part.start) is None or (end := part.end) is None:
            continue  # a region of a picture
        hue = f" data-hue={hues[number]}" if number in hues else ""
        strength = part.matters / worst if part.alone else 0
        before, text = (escaped_html(sources.prompt[first:past]) for first, past in ((position, start), (start, end)))
        pieces.append(f"{before}<span data-part={number}{hue} data-matters={strength:.3f}>{text}</span>")
        position = end
    return "".join([*pieces, escaped_html(sources.prompt[position:])])
