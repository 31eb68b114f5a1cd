"""The page, in a real browser: what it shows, what it answers, what it never does."""

from __future__ import annotations

import base64
import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import attnctl
from attnctl import attention
from attnctl.errors import AttnctlError
from attnctl.layer import LayerTrace
from attnctl.models import open_model
from attnctl.readings.comparison import compare_traces
from attnctl.render import forms
from attnctl.render.page.packing import coded_levels
from attnctl.render.page.trace_page import NAME_LETTERS, page_html, trace_names
from attnctl.source import TextSource, prepare, record_trace
from attnctl.source.links import survey_text
from attnctl.text import in_a_cell
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.steps import walk_steps
from attnctl.trace.subject import Subject
from tests.conftest import Run
from tests.render.page.conftest import Tab

TEXT = "Alice will eat pizza"


def trace_of(text: str = TEXT, **options: Any) -> Trace:
    return record_trace(open_model("random", **options), text)


def bare(weights: Any, tokens: list[Token], text: str = "", **more: Any) -> Trace:
    """A trace of weights alone."""
    layer = LayerTrace(0, (0,), (0,), weights=np.asarray(weights, np.float32)[None], **more)
    return Trace(Subject(text, tuple(tokens), ModelInfo("mine", "matrix", n_layers=1, n_heads=1)), (layer,))


# --- what it shows -----------------------------------------------------------------------------------------------


def test_it_shows_the_numbers_of_the_trace(tab: Tab) -> None:
    trace = trace_of('say "hi", <b> =co', causal=True)
    tab.open(trace, start={"query": 2, "key": 1})
    weights = trace.layers[0].weights
    labels = [token.text for token in trace.tokens]
    rows, columns, numbers = tab.copied()
    assert rows == columns == labels == tab.texts(".token")
    np.testing.assert_array_equal(numbers, np.where(trace.layers[0].mask, weights[0], np.nan))  # to the last bit
    assert f"{weights[0, 2, 1]:.4f}" in tab.text("#readout") and "sums to 1.0000" in tab.text("#readout")
    drawn = tab.drawing()
    assert drawn.count('url(#hatch)"') == 2 and ">masked<" in drawn  # the grid below its cells, and the legend


def test_the_steps_are_those_of_explain(tab: Tab) -> None:
    trace = trace_of(causal=True)
    i, j = 2, 1
    tab.open(trace, start={"query": i, "key": j})
    said = {step.name: step for step in walk_steps(trace)}
    shown = tab.texts("#arithmetic .step h3")
    assert shown == [said[name].title for name in ("projections", "scores", "scaled", "mask", "weights", "context")]
    assert said["scaled"].sentence in tab.text("#arithmetic")
    layer = trace.layers[0]
    minus = lambda x: f"{x:.2f}".replace("-", "−")  # noqa: E731
    assert tab.text('[data-step="scores"] .equation').endswith(f"= {minus(layer.scores[0, i, j])}")
    assert tab.text('[data-step="scaled"] .equation').endswith(f"/ √8 = {minus(layer.scaled_scores[0, i, j])}")
    cells = tab.texts('[data-step="context"] tr.total td')
    assert cells == [minus(x).replace("−0.00", "0.00") for x in layer.context[0, i]]


def test_what_a_learned_sink_takes_stands_in_the_row_and_its_softmax(tab: Tab) -> None:
    trace = trace_of(causal=True)
    (layer,) = trace.layers
    taken = np.full(layer.weights.shape[:2], 0.2, np.float32)  # (heads, n_q)
    sunk = replace(layer, weights=layer.weights * np.float32(0.8), sink_weights=taken)
    tab.open(replace(trace, layers=(sunk,)), start={"query": 2, "key": 1})
    assert tab.texts("#row tr.total td")[0] == "0.800" and tab.texts("#row tr:last-child td")[0] == "0.200"
    table = '[data-step="weights"] tbody tr'
    names, exps = tab.texts(f"{table} th"), [float(cell) for cell in tab.texts(f"{table} td:nth-child(3)")]
    assert names[-2:] == ["sink", "Σ"] and tab.texts(f"{table} td:nth-child(4)")[-2:] == ["0.200", "1.000"]
    assert exps[-2] == pytest.approx(0.2 * exps[-1], abs=0.01)  # the sink's exponential is its share of the sum
    tab.click("#renorm")
    tab.until(lambda: "sink" not in tab.text("#row"))


def test_slots_of_keys_stand_behind_a_text_that_reads_itself(tab: Tab) -> None:
    trace = trace_of(causal=True)
    (layer,) = trace.layers
    column = np.full((*layer.weights.shape[:2], 1), 0.25, np.float32)  # (heads, n_q, 1)
    weights = np.concatenate([layer.weights * np.float32(0.75), column], axis=-1)  # (heads, n_q, n_k)
    mask = np.concatenate([layer.mask, np.ones((len(trace.tokens), 1), bool)], axis=-1)  # (n_q, n_k)
    slotted = LayerTrace(layer.layer, layer.heads, layer.kv_heads, weights=weights, mask=mask)
    tab.open(
        replace(trace.about(key_tokens=(*trace.tokens, Token("0–1 compressed"))), layers=(slotted,)), start={"query": 0}
    )
    assert tab.text("#finding") == "Alice pays 75 % of its attention to itself and 25 % to 0–1 compressed."
    assert len(tab.texts(".sentence path")) == 1  # no arc to what is no word
    assert len(tab.texts("#direction input")) == 2
    tab.choose(direction="from", key=len(trace.tokens))  # the slot, which the sentence lacks
    assert tab.texts('.token[aria-pressed="true"]') == [] and tab.texts('.token[tabindex="0"]') == ["Alice"]


def test_the_page_reads_every_kind_of_source(tab: Tab) -> None:
    tab.open(bare([[0.25, 0.75], [1, 0]], [Token("a"), Token("b")]), start={"query": 0})
    assert tab.text("#finding") == "a pays 75 % of its attention to b and 25 % to itself."
    assert "logarithms of the weights" in tab.text("#softmax")
    tab.open(record_trace(open_model("random", n_heads=4), TEXT, heads=[1, 3], rows=[2]))
    assert tab.copied()[0] == ["eat"] and tab.picked()[3] in ("1", "3")
    assert tab.text('.token[aria-pressed="true"]') == "eat"
    tab.open(trace_of().about(key_tokens=tuple(Token(f"k{j}") for j in range(4))))
    assert tab.copied()[1] == ["k0", "k1", "k2", "k3"]
    tab.open(trace_of(rope_theta=10000.0, temperature=2.0, dropout=0.2, n_heads=4, n_kv_heads=2, n_layers=2))
    assert "rotary positions" in tab.texts("#arithmetic .step h3") and "÷" in tab.text("#softmax")


# --- what it answers ---------------------------------------------------------------------------------------------


def test_pointing_tells_and_clicking_chooses(tab: Tab) -> None:
    trace = trace_of()
    tab.open(trace, start={"query": 0, "key": 0})
    assert "url(#hatch)" not in tab.drawing()  # nothing is masked
    tab.point("#canvas rect", 2 * 4 + 1)  # the cells come row by row
    tab.says("#readout", f"{trace.layers[0].weights[0, 2, 1]:.4f}")
    assert tab.picked()[:2] == ["Alice", "Alice"]  # pointing is not choosing
    tab.point("#canvas rect", 2 * 4 + 1, click=True)
    tab.until(lambda: tab.picked()[:2] == ["eat", "will"])
    assert tab.text('.token[aria-pressed="true"]') == "eat" and "eat" in tab.text("#row h3")


def test_everything_answers_to_the_keyboard(tab: Tab) -> None:
    from selenium.webdriver.common.keys import Keys

    trace = trace_of(n_heads=4, n_layers=2, d_model=32, causal=True)
    tab.open(trace, start={"layer": 0, "head": 0, "query": 1, "key": 0})
    for key, said in (
        (Keys.ARROW_DOWN, "query eat, key Alice, weight"),
        (Keys.END, "query eat, key pizza, masked"),
        (Keys.ESCAPE, "No query chosen"),
        (Keys.ARROW_RIGHT, "query Alice, key Alice, weight 1"),
    ):
        tab.press("#grid", key)
        tab.says("#say", said)
    for key, chosen in ((Keys.ARROW_RIGHT, ["0", "1"]), (Keys.ARROW_DOWN, ["1", "1"])):
        tab.press('.head[aria-checked="true"]', key)
        tab.until(lambda chosen=chosen: tab.picked()[2:] == chosen)
        assert tab.js("return [document.activeElement.dataset.layer, document.activeElement.dataset.head]") == chosen
    tab.js("document.querySelector('.token[tabindex=\"0\"]').focus()")
    tab.press(".token:focus", Keys.ARROW_RIGHT)
    tab.until(lambda: tab.picked()[0] == "will")
    assert tab.js("return document.activeElement.textContent") == "will"
    # nothing that can be pressed is out of the keyboard's reach, except what the arrow keys of its group reach
    loose = tab.js(
        "return [...document.querySelectorAll('button, input, select, [tabindex]')].filter((node) => node.tabIndex < 0"
        " && !node.closest('.words, .heads') && node.offsetParent).length"
    )
    unnamed = tab.js(
        "return [...document.querySelectorAll('button, input, select')].filter((node) =>"
        " !(node.textContent.trim() || node.getAttribute('aria-label') || node.closest('label'))).length"
    )
    assert loose == unnamed == 0


def test_another_head_shows_its_own_numbers(tab: Tab) -> None:
    trace = trace_of(n_heads=3, n_layers=2, d_model=24)
    tab.open(trace)
    query, key, *_ = tab.picked()
    tab.click('.head[data-layer="1"][data-head="2"]')
    tab.says("#caption", "Layer 1, head 2")
    weights = trace.layers[1].weights
    np.testing.assert_array_equal(tab.numbers(), weights[2])
    assert tab.picked() == [query, key, "1", "2"]
    tab.pick("query", 3)
    strongest = int(weights[2, 3, :3].argmax())  # itself left aside
    tab.until(lambda: tab.picked() == [TEXT.split()[3], TEXT.split()[strongest], "1", "2"])
    assert tab.js("return getComputedStyle(document.querySelector('.sentence path')).fill") == "none"
    assert tab.driver.current_url.endswith(f"#layer=1&head=2&query=3&key={strongest}")


def test_the_link_keeps_the_choice(tab: Tab) -> None:
    trace = trace_of(n_heads=2, n_layers=2)
    tab.open(trace, fragment="#layer=1&head=1&query=3&key=0&colour=log&drop=first&renorm=true&direction=from")
    assert tab.picked()[2:] == ["1", "1"] and tab.picked()[0] == "pizza"
    assert tab.texts("label:has(input:checked)") == ["is looked at by", "log", "heat", "first", "rescale rows to 1",
                                                     "scaled, ÷ √4"]  # fmt: skip
    assert "key “Alice” (0) left out; rows rescaled to sum to 1; logarithmic colour" in tab.text("#caption")
    weights = trace.layers[1].weights
    rest = weights[1, :, 1:]
    np.testing.assert_allclose(tab.numbers(), rest / rest.sum(-1, keepdims=True), rtol=1e-6)
    tab.open(trace_of(), fragment="#layer=77&head=-1&query=99&colour=toString&map=plaid&key=x")  # passed over
    assert "Layer 0, head 0." in tab.text("#caption")
    assert tab.texts("label:has(input:checked)") == ["looks at", "linear", "heat", "nothing", "scaled, ÷ √8"]


def test_a_share_of_what_is_left_is_not_called_a_share_of_all(tab: Tab) -> None:
    tab.open(trace_of(), start={"query": 3, "key": 1})
    for chosen, said in (
        ({}, " of its attention to "),
        ({"drop": "first"}, " of its attention to "),  # the others' shares are as before
        ({"renorm": "true"}, " of the rest of its attention to "),
        ({"direction": "from"}, " of the rest of the attention of "),
    ):
        tab.choose(**chosen)
        assert said in tab.text("#finding")


def test_the_caption_tells_what_a_sink_is_until_it_is_left_out(tab: Tab) -> None:
    weights = np.full((6, 6), 0.05, np.float32)
    weights[:, 0] = 0.75
    tab.open(bare(weights, [Token(f"w{at}") for at in range(6)], "w0 w1 w2 w3 w4 w5"))
    assert "75 % goes to the first token, “w0”. To see past it: “Leave out: first” or “Colour: log”." in tab.text(
        "#caption"
    )
    tab.choose(colour="log")
    assert tab.text("#caption").endswith("To see past it: “Leave out: first”.")
    tab.choose(drop="first")
    assert "is a sink" not in tab.text("#caption") and "key “w0” (0) left out" in tab.text("#caption")
    tab.open(bare(np.full((6, 6), 1 / 6), [Token(f"w{at}") for at in range(6)]))
    assert "is a sink" not in tab.text("#caption")


def test_words_merge_and_special_tokens_go(tab: Tab) -> None:
    pieces = [("[CLS]", 0, 0, True), ("un", 0, 2, False), ("believ", 2, 8, False), ("able", 8, 12, False),
              ("!", 12, 13, False)]  # fmt: skip
    tokens = [Token(t, k, a, b, s) for k, (t, a, b, s) in enumerate(pieces)]
    w = np.random.default_rng(0).dirichlet(np.ones(5), 5)
    tab.open(bare(w, tokens, "unbelievable!"), fragment="#words=merged&drop=special")
    looking = np.stack([w[0], w[1:4].mean(0), w[4]])  # averaged over the pieces that look, summed over the others
    np.testing.assert_allclose(tab.numbers(), np.stack([looking[:, 1:4].sum(1), looking[:, 4]], 1), atol=1e-6)
    assert tab.copied()[1] == ["unbelievable", "!"]
    assert "[CLS]" in tab.text("#caption") and "averaged over queries" in tab.text("#caption")


def test_a_rollout_is_no_attention_and_no_head_s(tab: Tab) -> None:
    tab.view(TEXT, "--measure", "rollout")
    tab.choose(query=2, key=2)
    assert tab.text("#weights-title") == "Rollout" and "Layer 1, all heads together." in tab.text("#caption")
    assert re.fullmatch(r"eat comes \d+ % from itself, \d+ % from \w+ and \d+ % from \w+\.", tab.text("#finding"))
    assert tab.js("return ['arithmetic', 'explorer'].every((name) => document.querySelector(`section.${name}`).hidden)")


def test_scores_are_no_shares_of_attention(tab: Tab, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", np.array([[3.0, -2, 0.5], [1, 2, 3], [-1, -4, 2]]))
    tab.view(tmp_path / "scores.npy")
    tab.choose(query=1, key=2)
    said = tab.text("#finding")
    assert said.startswith("The largest numbers of 1: 3.000 on 2, 2.000 on 1") and said.endswith("are these scores?")
    assert "%" not in said and tab.text("#weights-title") == "Numbers as given"


def test_unknown_words_are_marked_and_a_guess_is_called_one(tab: Tab) -> None:
    tab.open(attnctl.attend("Bonjour tout le monde", model="demo"))
    assert "what its heads find here is a guess" in tab.text("#finding")
    tab.open(attnctl.attend("Alice will eat quinoa", model="demo"))
    assert "guess" not in tab.text("#finding") and tab.texts(".token")[3] == "quinoa†"
    legend = "† not among the words the model knows: read by its shape, or as its unknown word"
    assert tab.texts("#finding .legend") == [legend]
    tab.open(attnctl.attend("ذهب الولد", model="demo"))
    assert "of these 2 tokens (\u2068ذهب†\u2069, \u2068الولد†\u2069):" in tab.text("#finding")


def test_the_softmax_explorer(tab: Tab) -> None:
    trace = trace_of()
    tab.open(trace, start={"query": 3, "key": 0})
    scores = trace.layers[0].scores[0, 3].astype(float)
    shown = lambda what: [float(x.replace("−", "-")) for x in tab.texts(f".sliders [data-is={what}]")]  # noqa: E731
    np.testing.assert_allclose(shown("score"), scores, atol=6e-3)
    tab.slide(".sliders input", 4, at=1)
    scores[1] = 4
    np.testing.assert_allclose(shown("weight"), attention.softmax(scores / np.sqrt(8)), atol=6e-4)
    assert tab.text("#one-more") == f"exp(0.35) = {np.exp(1 / np.sqrt(8)):.2f}"
    tab.click("#scaling")
    np.testing.assert_allclose(shown("weight"), attention.softmax(scores), atol=6e-4)
    assert tab.text("#one-more") == "e = 2.72"
    tab.slide("#temperature", 1)
    np.testing.assert_allclose(shown("weight"), attention.softmax(scores / 2), atol=6e-4)
    np.testing.assert_allclose(shown("plain"), scores / scores.sum(), atol=6e-3)
    assert "takes" in tab.text("#remark")
    tab.click("#again")
    assert tab.text("#one-more").startswith("exp(0.35)")


# --- two of them -------------------------------------------------------------------------------------------------


def test_two_side_by_side_with_their_difference(tab: Tab) -> None:
    a, b = trace_of(), trace_of(seed=1)
    tab.open(a, b)
    titles = '#canvas text[font-size="14"][font-weight]'
    assert tab.texts(titles) == ["A  seed 0", "B  seed 1", "B − A"]
    np.testing.assert_array_equal(tab.numbers(), a.layers[0].weights[0])
    difference = b.layers[0].weights[0] - a.layers[0].weights[0]
    for query in range(4):
        tab.click(".token", query)
        tab.until(lambda query=query: tab.picked()[0] == TEXT.split()[query])
        changes = [float(cell.replace("−", "-")) for cell in tab.texts("#row tr[data-key] td:nth-child(4)")]
        np.testing.assert_allclose(changes, difference[query], atol=6e-4)
    tab.open(a, trace_of("Bob sleeps"))  # of another length: no difference to show
    assert len(tab.texts(titles)) == 2


def test_two_texts_are_matched_by_their_words(tab: Tab) -> None:
    text = "start Alice will eat pizza"
    shifted = trace_of(text)
    special = replace(shifted.tokens[0], special=True)
    a = shifted.about(text=text, tokens=(special, *shifted.tokens[1:]))
    b = trace_of("Alice will eat soup", causal=True)
    tab.open(a, b, start={"query": 3, "key": 1})
    pressed = lambda: tab.texts('.token[aria-pressed="true"]')  # noqa: E731
    assert pressed() == ["eat", "eat"]  # whatever stands before them
    assert "where both may look" in tab.text("#caption")
    assert all(tab.js("return [...document.querySelectorAll('.sentence svg')].map((svg) => svg.children.length)"))
    lines = tab.texts("#finding .line")
    assert len(lines) == 2 and lines[0].startswith("A eat pays ") and lines[1].startswith("B eat pays ")
    ours, theirs = a.layers[0].weights[0], b.layers[0].weights[0]
    rows = dict(zip(tab.texts("#row tr[data-key] th"), tab.texts("#row tr[data-key] td:nth-child(4)"), strict=True))
    assert float(rows["Alice"].replace("−", "-")) == pytest.approx(float(theirs[2, 0] - ours[3, 1]), abs=6e-4)
    assert rows["start"] == "·"
    drawn = tab.drawing()
    assert drawn.count(">masked<") == 2  # of B and of the difference, where only one of them may look
    tab.click(".sentence:nth-child(2) .token", 1)
    tab.until(lambda: pressed() == ["will", "will"])
    np.testing.assert_array_equal(tab.numbers(), np.where(b.layers[0].mask, theirs, np.nan))  # B is spoken of now
    tab.click(".sentence:nth-child(1) .token", 0)
    tab.until(lambda: pressed() == ["start"])
    assert tab.texts("#finding .line")[1] == "B has no such token."


def test_two_texts_open_where_they_differ_most(tab: Tab) -> None:
    texts = ("The cat sat on the mat because it was warm.", "The dog sat on a mat.")
    tab.view(*texts)
    assert "no such token" not in tab.text("#finding") and "the largest change of all" in tab.text("#caption")
    found = compare_traces(*(record_trace(open_model("demo"), text) for text in texts))
    layer, head, i, j = found.largest_difference()
    assert f"#layer={layer}&head={head}" in tab.driver.current_url or tab.picked()[2:] == [str(layer), str(head)]
    words = texts[0].replace(".", " .").split()
    assert tab.picked()[:2] == [words[found.aligned.queries[i][0]], words[found.aligned.keys[j][0]]]
    assert set(found.axis_labels()[0]) <= set(tab.texts("#canvas text")) and "the/a" in tab.texts("#canvas text")
    sizes = tab.js("return [...document.querySelectorAll('.words')].map((node) => getComputedStyle(node).fontSize)")
    assert sizes[0] == sizes[1]
    tab.click(".sentence:nth-child(1) .token", 9)  # warm, which the other lacks: no room is kept for its arcs
    tab.until(lambda: len(tab.texts(".words.one-line")) == 1)


def test_what_is_copied_is_harmless_in_a_terminal_and_a_spreadsheet(tab: Tab) -> None:
    names = ["=1+1", "+1", "-1", "@x", "＝1+1", "＋1", "－1", "＠x", "-", "a\x1b[2J", "\u202eb"]
    starts = np.cumsum([0, *(len(name) + 1 for name in names)])
    tokens = [Token(name, start=int(at), end=int(at) + len(name)) for name, at in zip(names, starts, strict=False)]
    tab.open(bare(np.full((11, 11), 1 / 11), tokens, " ".join(names)))
    rows, columns, _ = tab.copied()
    assert rows == columns == [in_a_cell(name) for name in names]
    assert rows[4] == "'＝1+1" and rows[8] == "-" and rows[9] == "a␛[2J"


@pytest.mark.parametrize("letter", ["m", "日", "🙂", "e\u0301"])
def test_a_word_of_thousands_of_letters_is_cut_in_few_steps(tab: Tab, letter: str) -> None:
    long = letter * 20_000
    tab.open(bare([[0.5, 0.5], [0.25, 0.75]], [Token("a", start=0, end=1), Token(long, start=2, end=2 + len(long))]))
    shown, fits, more, count = tab.js(
        """const measured = measurer.measureText.bind(measurer);
        let count = 0;
        measurer.measureText = (text) => { count += 1; return measured(text); };
        const shown = cut(arguments[0], 110, 13);
        const taken = count;
        const signs = Array.from(shown).length - 1;
        const wide = (text) => { measurer.font = `13px ${SANS}`; return measured(text).width; };
        const longer = Array.from(arguments[0]).slice(0, signs + 1).join("");
        return [shown, wide(shown) <= 110, wide(`${longer}…`) > 110, taken];""",
        long,
    )
    assert fits and more, shown  # no sign more has room
    assert count < 20
    names = tab.texts("#canvas text")
    assert any(name.startswith(letter) and name.endswith("…") for name in names) and max(map(len, names)) < 100


def test_two_long_captions_stay_within_the_page(tab: Tab) -> None:
    text = "the cat sat on the mat while the old dog slept by the fire all day long"
    tab.device(1280)
    tab.open(trace_of(text), trace_of(" ".join(reversed(text.split()))))
    assert tab.js("return document.documentElement.scrollWidth <= innerWidth")
    ends = tab.js(
        "return [...document.querySelectorAll('#canvas text[font-size=\"14\"][font-weight]')].map((node) => {"
        " const { left, right } = node.getBoundingClientRect(); return [left, right]; })"
    )
    assert len(ends) == 3 and all(right < left for (_, right), (left, _) in zip(ends, ends[1:], strict=False))
    facts = tab.texts("#facts .line")
    assert len(facts) == 2 and " beside " in facts[0]


def test_a_run_over_training_has_a_slider(tab: Tab) -> None:
    traces = [trace_of(seed=seed) for seed in range(3)]
    tab.open(*traces, labels=["step 0", "step 100", "step 200"], over_training=True)
    for step, at in (("step 200", 2), ("step 0", 0)):
        tab.slide("#step", at)
        tab.says("#step-name", step)
        weights = traces[at].layers[0].weights
        np.testing.assert_array_equal(tab.numbers(), weights[0])
    assert "step=" not in tab.driver.current_url


def test_what_is_seen_can_be_saved(tab: Tab, tmp_path: Path) -> None:
    trace = trace_of('say "hi", <b> & co', causal=True)
    tab.open(trace)
    tab.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
        tab.click(f"#save-{kind}")
        tab.until(lambda kind=kind: list(tmp_path.glob(f"*.{kind}")), kind)
        (found,) = tmp_path.glob(f"*.{kind}")
        assert found.read_bytes().startswith(start) and found.name.startswith("say-hi-b-co-layer0-head0")
    texts = [node.text for node in ElementTree.parse(found).iter("{http://www.w3.org/2000/svg}text")]
    assert {token.text for token in trace.tokens} <= set(texts)


# --- what it never does ------------------------------------------------------------------------------------------

HOSTILE = (
    "</script><script>window.broken=1</script>",
    "<img src=x onerror=window.broken=1>",
    "\"'`${window.broken=1}",
    "<!--<script>",
    "]]>",
    "a\u2028b\u2029c\u202ed\x00\x1b[31m",
    "half \ud800 pair",
    "${script} ${data} $$ &lt;b&gt; &amp;",
    "javascript:window.broken=1",
    "עברית 日本語 e\u0301 👩\u200d👧",
    "\n\t",
)


def test_texts_are_never_markup(tab: Tab) -> None:
    tokens = [Token(text, special=at == 3) for at, text in enumerate(HOSTILE)]
    n = len(tokens)
    trace = bare(np.full((n, n), 1 / n), tokens, "".join(HOSTILE))
    trace = trace.about(model=replace(trace.model, name="<b onclick=window.broken=1>"), notes=("<i>note</i>",))
    html = page_html([trace], labels=["<u>"], title=HOSTILE[0])
    tab.show(html)
    for token in range(n):
        tab.pick("key", n - 1 - token)
        tab.click(".token", token)
        if token % 3 == 0:
            tab.point("#canvas rect", token * n)
    assert tab.js("return window.broken === undefined")
    assert tab.texts("body img, body b[onclick], body u, body i:not(td i)") == []
    assert tab.js("return document.scripts.length") == html.count("<script")
    assert tab.texts(".token")[0] == HOSTILE[0] and "<i>note</i>" in tab.text("#colophon")
    assert tab.texts(".token")[-1] == "↵⇥" and "␛" in tab.texts(".token")[5]  # arrows, which fonts have
    assert f"Made by attnctl {attnctl.__version__}, " in tab.text("#colophon")
    ElementTree.fromstring(tab.drawing())


def test_no_request_leaves_the_page(tab: Tab) -> None:
    tab.asked()
    tab.open(trace_of(n_heads=2), trace_of(n_heads=2, seed=1))
    tab.click('.head[data-head="1"]')
    tab.says("#caption", "head 1")
    asked = tab.asked()
    assert asked and all(address.startswith(("file:", "data:", "blob:")) for address in asked), asked
    blocked = tab.driver.execute_async_script(
        "const done = arguments[0]; fetch('https://example.org/').then(() => done('sent'), () => done('refused'))"
    )
    assert blocked == "refused"
    assert tab.js("try { document.body.innerHTML = '<b>'; return 'set' } catch { return 'refused' }") == "refused"
    tab.driver.get_log("browser")  # the refusals are what was asked for


def test_the_file_names_no_other() -> None:
    html = page_html([trace_of()])
    addresses = {word for word in re.split(r"[\s\"']+", html) if "://" in word}
    assert all("www.w3.org/2000/svg" in address for address in addresses)
    assert "default-src 'none'" in html and "unsafe" not in html


# --- how large, how soon -----------------------------------------------------------------------------------------


def large(n: int, layers: int, heads: int, spread: float = 1.0) -> Trace:
    """A text of n tokens: weights of dense random scores, the hardest to pack."""
    rng = np.random.default_rng(0)
    parts = []
    for layer in range(layers):
        e = np.exp(spread * rng.standard_normal((heads, n, n), dtype=np.float32))
        parts.append(LayerTrace(layer, tuple(range(heads)), tuple(range(heads)), weights=e / e.sum(-1, keepdims=True)))
    tokens = tuple(Token(f"t{at}") for at in range(n))
    return Trace(Subject(" ".join(t.text for t in tokens), tokens, ModelInfo("large", "matrix")), tuple(parts))


def test_weights_that_are_too_large_for_a_page_are_stored_in_steps(tab: Tab) -> None:
    trace = large(96, 12, 12)
    html = page_html([trace], max_bytes=1_800_000)
    assert len(html) < 2_200_000
    tab.show(html)
    tab.click('.head[data-layer="7"][data-head="5"]')
    tab.says("#caption", "Layer 7, head 5")
    said = re.search(r"Stored in (\d+) steps: a weight w is within √w / \1\.", tab.text("#caption"))
    levels = int(said[1])
    true = trace.layers[7].weights[5].astype(np.float64)
    assert (np.abs(tab.numbers() - true) <= np.sqrt(true) / levels + 0.26 / levels**2).all()
    assert "sums to 1.0000" in tab.text("#readout")  # sums are kept exactly


@pytest.mark.parametrize("levels", [255, 1023, 65535])
def test_codes_are_as_exact_as_they_say(levels: int) -> None:
    weights = np.random.default_rng(1).dirichlet(np.full(40, 0.2), 30).astype(np.float32)
    data = np.frombuffer(coded_levels(weights, levels), np.uint8).astype(np.int64)
    codes = data if levels < 256 else data[: weights.size] + 256 * data[weights.size :]
    back = weights.max() * (codes.reshape(weights.shape) / levels) ** 2
    assert (np.abs(back - weights) <= np.sqrt(weights) / levels + 0.26 / levels**2).all()


def exact_block(tab: Tab) -> tuple[int, int, int, int]:
    """The queries a to b − 1 and the keys c to d − 1 of the exact block beside the overview."""
    said = re.search(r"exact: queries (\d+)–(\d+), keys (\d+)–(\d+)", " ".join(tab.texts("#canvas text")))
    assert said
    a, b, c, d = map(int, said.groups())
    return a, b + 1, c, d + 1


def point_at(tab: Tab, block: tuple[int, int, int, int], i: int, j: int) -> None:
    """Point at a query and a key of the exact block, which stands to the right of the overview."""
    a, b, c, d = block
    left, top, right, bottom = tab.js("""
        const area = document.getElementById("canvas").getBoundingClientRect();
        const title = [...document.querySelectorAll("#canvas text")].find((node) => node.textContent.startsWith("exact"));
        const cells = [...document.querySelectorAll("#canvas rect:not([fill=none]), #canvas image")]
            .map((node) => node.getBoundingClientRect())
            .filter(({ left, height }) => left > title.getBoundingClientRect().left && height > 14);
        const [x, y] = [(at) => (at - area.left) / area.width, (at) => (at - area.top) / area.height];
        const ends = (name) => cells.map((cell) => cell[name]);
        return [x(Math.min(...ends("left"))), y(Math.min(...ends("top"))),
                x(Math.max(...ends("right"))), y(Math.max(...ends("bottom")))];
    """)
    place = np.array([(j - c + 0.5) / (d - c), (i - a + 0.5) / (b - a)])
    across, down = np.array([left, top]) + place * [right - left, bottom - top]
    tab.point("#canvas", 0, across, down)


def test_a_long_text_is_an_overview_with_exact_blocks(tab: Tab) -> None:
    from selenium.webdriver.common.keys import Keys

    model = open_model("random", causal=True, n_heads=2, d_model=16)
    text = " ".join(f"w{at * 7919 % 97}" for at in range(520))
    overview, exact = survey_text(prepare(TextSource(model, text)))
    tab.open(overview, exact=exact)
    whole = record_trace(model, text).layers[0].weights
    head = int(tab.picked()[3])
    grid = overview.grid.weights[0, head]
    shown = tab.numbers()
    np.testing.assert_array_equal(shown[~np.isnan(shown)], grid[~np.isnan(shown)])
    i, j, weight = (re.search(r"[\d.]+$", cell)[0] for cell in tab.texts("#links tr.chosen > *"))  # type: ignore[index]
    i, j = int(i), int(j)
    assert float(weight) == pytest.approx(float(whole[head, i, j]), abs=6e-4)
    a, b, c, d = block = exact_block(tab)
    assert a <= i < b and c <= j < d
    for query, key in ((i, j), (b - 1, c), (b - 1, min(d, b) - 1)):
        point_at(tab, block, query, key)
        tab.says("#readout", f"{whole[head, query, key]:.4f}")
    assert "share of its attention" in tab.text("#caption") and tab.texts("mark")[0] == text.split()[i]
    (second,) = tab.texts("#links tr:nth-child(2) button")
    tab.click("#links tr:nth-child(2) button")
    tab.until(lambda: tab.texts("#links tr.chosen button") == [second])
    tab.press("#grid", Keys.ARROW_DOWN)
    tab.says("#say", "row sum 1.0000")
    assert tab.js("return document.querySelector('section.arithmetic').hidden")


def test_an_exact_block_hatches_what_a_window_hides(tab: Tab) -> None:
    model, text = open_model("demo"), "the cat sat on the mat and the dog saw it there " * 60
    overview, exact = survey_text(prepare(TextSource(model, text), layer="0"))
    tab.open(overview, exact=exact)
    a, b, c, d = block = exact_block(tab)
    mask = record_trace(model, text, layers=[0], heads=[0], rows=list(range(a, b))).layers[0].mask
    assert mask is not None and mask[:, c:d].any() and not mask[:, c:d].all()
    assert tab.drawing().count(">masked<") == 2
    for seen in (True, False):
        places = np.argwhere(mask[:, c:d] == seen)
        for i, j in (places[0], places[len(places) // 2], places[-1]):
            point_at(tab, block, a + i, c + j)
            tab.until(lambda seen=seen: ("masked" in tab.text("#readout")) != seen)


@pytest.mark.parametrize("pool", ["max", "mass"])
def test_what_is_said_of_a_pooled_row_is_a_share_of_attention(tab: Tab, pool: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(" ".join(f"w{at * 7919 % 97}" for at in range(600)))
    cells = tmp_path / "cells.json"
    chosen = ["--spans", "paragraphs"] if pool == "mass" else ["--pool", pool]
    given = ["--file", tmp_path / "long.txt", "--model", "random", "--causal", "--layer", "0", "--head", "0"]
    assert tab.run("heatmap", *given, *chosen, "-o", cells).code == 0
    tab.view(cells)
    tab.choose(query=0, key=0)
    said = tab.text("#finding")
    if pool == "max":
        assert said.startswith("The largest weights of") and "1.00" in said and "%" not in said
    else:
        assert "pay 100 % of their attention to themselves" in said


def test_nothing_unfinished_is_shown_before_the_first_drawing(tab: Tab) -> None:
    tab.open(trace_of())
    shown = "return document.querySelector('main').checkVisibility({ visibilityProperty: true })"
    said = "return getComputedStyle(document.querySelector('main'), '::before').content"
    assert tab.js(shown) and tab.js(said) == "none"
    tab.js("delete document.documentElement.dataset.ready")
    assert not tab.js(shown) and "Loading" in tab.js(said)
    tab.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        tab.driver.refresh()
        seen = tab.driver.find_element("css selector", "body").text
    finally:
        tab.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "JavaScript, which is switched off here" in seen and "These are the" not in seen


# --- a terminal as a picture -------------------------------------------------------------------------------------


def test_every_cell_of_a_saved_terminal_stands_at_its_column(tab: Tab, tmp_path: Path) -> None:
    picture = tmp_path / "steps.svg"
    asked = ["--layer", "1", "--head", "1", "--steps", "weights"]
    assert tab.run("explain", "dog القط 😀 猫 cat", *asked, "-o", picture).code == 0
    tab.driver.get(picture.as_uri())
    texts = tab.js(
        "return [...document.querySelectorAll('g[clip-path] text')].map((node) => "
        "[node.textContent, node.getBoundingClientRect().right, Number(node.getAttribute('y'))])"
    )
    frame = tab.js("return document.querySelector('svg > rect').getBoundingClientRect().right")
    assert max(right for _, right, _ in texts) < frame
    scale = frame / tab.js("return document.documentElement.viewBox.baseVal.width")
    rows: dict[float, list[float]] = {}
    for text, right, y in texts:
        if re.fullmatch(r"-?\d+\.\d\d", text.strip()):
            rows.setdefault(y, []).append(right / scale)
    grid, shares = ([row for row in rows.values() if len(row) == many] for many in (6, 3))
    assert len(grid) == len(shares) == 5
    assert np.ptp(grid, axis=0).max() < 4 and np.ptp(shares, axis=0).max() < 4  # of cells 12.2 wide


# --- light and dark, narrow, on paper, in a notebook -------------------------------------------------------------


def luminance(colour: str) -> float:
    """Of a colour as "#rrggbb" or "rgb(r, g, b)"."""
    if colour.startswith("#"):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    else:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_nothing_sticks_out_at_any_width_and_all_can_be_read(tab: Tab) -> None:
    trace = trace_of("The cat sat on the mat because it was warm", n_heads=4, n_layers=2, d_model=32)
    for width, scheme in ((340, "light"), (390, "dark"), (800, "dark"), (1280, "light")):
        tab.device(width, scheme, deviceScaleFactor=2, mobile=width < 500)
        tab.open(trace)
        assert tab.js("return document.documentElement.scrollWidth") <= width
        paper = tab.js("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(253, 252, 249)") == (scheme == "light")
        colours = tab.js(
            "return [document.body, document.getElementById('caption')].map((node) => getComputedStyle(node).color)"
            ".concat(document.querySelector('#canvas text[font-weight]').getAttribute('fill'))"  # of the chosen row
        )
        for colour, least in zip(colours, (7.0, 4.5, 4.5), strict=True):
            low, high = sorted((luminance(colour), luminance(paper)))
            assert (high + 0.05) / (low + 0.05) >= least, colour


def test_the_longest_words_are_cut_or_broken_within_the_page(tab: Tab) -> None:
    long = "Donaudampfschifffahrtsgesellschaftskapitänsmützenband", "antidisestablishmentarianism" * 2
    trace = trace_of(" ".join(long))
    for width in (390, 1280):
        tab.device(width, mobile=width < 500)
        for chosen in (0, 1):
            tab.open(trace, start={"query": chosen, "key": chosen})
            ends = tab.js(
                "return [...document.querySelectorAll('p b')].map((node) => node.getBoundingClientRect().right)"
            )
            assert ends and max(ends) <= width
            places = tab.js(
                "const grid = document.getElementById('canvas').getBoundingClientRect();"
                " return [...document.querySelectorAll('#canvas text')].map((node) => {"
                " const { left, right } = node.getBoundingClientRect();"
                " return [node.textContent, left - grid.left, grid.right - right]; })"
            )
            assert all(left >= 0 and right >= 0 for _, left, right in places), places


@pytest.mark.parametrize(
    ("stops", "sign"),
    [(forms.HEAT_ON_LIGHT, -1), (forms.HEAT_ON_DARK, 1), (forms.VIRIDIS, 1), (forms.CIVIDIS, 1)],
)
def test_the_heat_grows_evenly_darker_or_lighter(stops: Any, sign: int) -> None:
    cube = np.cbrt([luminance(stop) for stop in stops])  # near lightness as it is seen
    steps = sign * np.diff(cube)
    assert (steps > 0).all() and steps.max() < 2.2 * steps.min()


def test_on_paper_every_cell_holds_its_number(tab: Tab) -> None:
    trace = attnctl.attend("Mary thanked Tom because he likes tea with milk in the morning")
    line = trace.headline()
    tab.open(trace)
    cells = "[...document.querySelectorAll('.grid svg text')].filter((node) => /^[01]?\\.\\d\\d$/.test(node.textContent)).length"
    tab.js("window.dispatchEvent(new Event('beforeprint'))")
    assert line is not None and tab.js(f"return {cells}") == len(trace.tokens) ** 2 + 1  # and the end of the legend


def test_the_caption_says_what_the_head_usually_does(tab: Tab) -> None:
    tab.open(attnctl.attend(TEXT))
    tab.says("#caption", "Layer 1, head 0: usually links a verb to its subject. Rows")
    tab.pick("head", 1)
    tab.says("#caption", "head 1: usually links a word to its verb")
    tab.pick("layer", 0)
    tab.says("#caption", "Layer 0, head 1. Rows")
    tab.open(attnctl.attend("The doctor told the patient that she was late"))
    tab.says("#caption", "Unsure: “she” may stand for “doctor” as well.")


def test_it_prints_on_white_and_the_heads_fit_the_paper(tab: Tab) -> None:
    tab.device(1280, "dark")
    tab.open(trace_of("The cat sat on the mat", n_heads=8, n_layers=2, d_model=64))
    pdf = base64.b64decode(tab.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") <= 4
    paper = "return getComputedStyle(document.body).backgroundColor"
    fits = "const h = document.querySelector('.heads'); return h.scrollWidth <= h.clientWidth"
    assert tab.js(paper) == "rgb(20, 22, 26)"  # dark again
    for event, colour in (("beforeprint", "rgb(255, 255, 255)"), ("afterprint", "rgb(20, 22, 26)")):
        tab.js("dispatchEvent(new Event(arguments[0]))", event)
        assert tab.js(paper) == colour and tab.js(fits), event


def test_a_notebook_shows_a_trace(tab: Tab) -> None:
    html = trace_of('a "quoted" <b>')._repr_html_()
    assert html.startswith("<iframe srcdoc=") and html.count("<iframe") == 1 and html.endswith("</iframe>")
    path = tab.folder / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>notebook</title>{html}", encoding="utf-8")
    tab.driver.get(path.as_uri())
    tab.driver.switch_to.frame(0)
    tab.wait("return document.documentElement.dataset.ready === 'true'")
    assert tab.texts(".token") == ["a", '"', "quoted", '"', "<", "b", ">"]
    tab.click(".token", 1)
    tab.until(lambda: tab.picked()[0] == '"')
    tab.driver.switch_to.default_content()


def test_what_cannot_be_a_page_says_so() -> None:
    assert "too many to show here" in large(200, 4, 30)._repr_html_()
    assert "no weights" in Trace(Subject("a", (Token("a"),), ModelInfo("m", "matrix")), ())._repr_html_()
    with pytest.raises(AttnctlError, match="no weights"):
        page_html([Trace(Subject("a", (Token("a"),), ModelInfo("m", "matrix")), (LayerTrace(0, (0,), (0,)),))])


def test_a_long_text_that_names_a_trace_is_cut_with_a_mark() -> None:
    traces = [attnctl.attend(text, model="random") for text in ("a b", "the cat " * 20)]
    short, long = trace_names(traces)
    assert short == "a b" and long.endswith("…") and len(long) <= NAME_LETTERS


def test_traces_that_only_their_measure_tells_apart_are_named_by_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were A and B, before which the page puts A and B."""
    monkeypatch.chdir(tmp_path)
    for name, measure in (("w", "weights"), ("n", "value-norm")):
        run("explain", "a b", "--model", "random", "--measure", measure, "-o", f"{name}.json")
    weights, norms = (attnctl.load(f"{name}.json") for name in "wn")
    assert isinstance(weights, Trace) and isinstance(norms, Trace)
    assert trace_names([weights, norms]) == ["weights", "value norms"]
    assert trace_names([norms, norms]) == ["first", "second"]


def test_a_page_is_a_text_that_a_notebook_shows_in_a_frame() -> None:
    page = attnctl.view("Alice will eat pizza")
    assert isinstance(page, str) and page.startswith("<!doctype html>")
    frame = page._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts allow-downloads"' in frame
    assert html.unescape(frame.partition('srcdoc="')[2].partition('" sandbox')[0]) == page
