"""The page, in a real browser: what it shows, what it answers, what it never does."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.errors import AttnctlError
from attnctl.layer import LayerTrace
from attnctl.models import open_model
from attnctl.readings.traces.comparison import compare_traces
from attnctl.readings.traces.trace import ModelInfo, Trace
from attnctl.render.page import NAME_LETTERS, as_data, page_html, page_in_frame, trace_names
from attnctl.render.page.packing import coded_levels, packed_tokens, word_numbers
from attnctl.source import TextSource, record_trace
from attnctl.tokens import Token

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
in_browser = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium and chromedriver on this machine")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900",
)  # fmt: skip

TEXT = "Alice will eat pizza"


def trace_of(text: str = TEXT, **options: Any) -> Trace:
    return record_trace(open_model("random", **options), text)


class Tab:
    """A browser with a page in it, and what a reader does there."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder, self.count = driver, folder, 0

    def open(self, *traces: Trace, fragment: str = "", **options: Any) -> None:
        self.count += 1
        path = self.folder / f"page-{self.count}.html"
        exact = options.pop("exact", ())
        path.write_text(page_html(traces, exact=exact, **options), encoding="utf-8")
        self.go(path.as_uri() + fragment)

    def go(self, address: str) -> None:
        self.driver.get(address)
        self.wait("return document.documentElement.dataset.ready === 'true'")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str, seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not self.js(condition):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}\n{self.driver.get_log('browser')}"
            time.sleep(0.01)

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        return self.js("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector)

    def press(self, selector: str, key: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(key)

    def settled(self, condition: str) -> None:
        self.wait(f"return ({condition})")

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def tab(browser: Any, tmp_path: Path) -> Iterator[Tab]:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    browser.get_log("browser")
    tab = Tab(browser, tmp_path)
    yield tab
    assert tab.complaints() == []


def keys() -> Any:
    from selenium.webdriver.common.keys import Keys

    return Keys


# --- what it shows -----------------------------------------------------------------------------------------------


@in_browser
def test_it_shows_the_numbers_of_the_trace(tab: Tab) -> None:
    trace = trace_of(causal=True)
    tab.open(trace, start={"query": 2, "key": 1})
    weights = trace.layers[0].weights
    assert weights is not None
    row = tab.js("return Array.from(view.grid.w.slice(8, 12))")
    assert np.array_equal(np.float32(row), weights[0, 2])  # to the last bit
    assert f"{weights[0, 2, 1]:.4f}" in tab.text("#readout")
    assert "sums to 1.0000" in tab.text("#readout")
    assert tab.js("return Array.from(view.grid.hidden)") == [0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0]
    assert tab.texts(".token") == TEXT.split()


@in_browser
def test_masked_cells_are_hatched_and_zero_is_not(tab: Tab) -> None:
    tab.open(trace_of(causal=True), start={"query": 3, "key": 0})
    svg = tab.js("return svgText()")
    assert svg.count('url(#hatch)"') == 2  # the grid below its cells, and the legend
    assert svg.count("<rect") > 10 and ">masked<" in svg
    tab.open(trace_of())
    assert "url(#hatch)" not in tab.js("return svgText()")


@in_browser
def test_the_steps_are_those_of_explain(tab: Tab) -> None:
    from attnctl.steps import walk_steps

    trace = trace_of(causal=True)
    tab.open(trace)
    said = {step.name: step for step in walk_steps(trace)}
    shown = tab.texts("#arithmetic .step h3")
    assert shown == [said[name].title for name in ("projections", "scores", "scaled", "mask", "weights", "context")]
    assert said["scaled"].sentence in tab.text("#arithmetic")
    j = tab.js("return state.key")
    i = tab.js("return state.query")
    layer = trace.layers[0]
    assert layer.scores is not None and layer.scaled_scores is not None and layer.context is not None
    minus = lambda x: f"{x:.2f}".replace("-", "−")  # noqa: E731
    assert tab.text('[data-step="scores"] .equation').endswith(f"= {minus(layer.scores[0, i, j])}")
    assert tab.text('[data-step="scaled"] .equation').endswith(f"/ √8 = {minus(layer.scaled_scores[0, i, j])}")
    cells = tab.texts('[data-step="context"] tr.total td')
    assert cells == [minus(x).replace("−0.00", "0.00") for x in layer.context[0, i]]


def with_a_sink(trace: Trace) -> Trace:
    """The trace as a model with learned sinks would have it: a fifth of each row is taken."""
    (layer,) = trace.layers
    assert layer.weights is not None
    taken = np.full(layer.weights.shape[:2], 0.2, np.float32)  # (heads, n_q)
    return replace(trace, layers=(replace(layer, weights=layer.weights * np.float32(0.8), sink_weights=taken),))


@in_browser
def test_what_a_learned_sink_takes_stands_in_the_row_and_its_softmax(tab: Tab) -> None:
    tab.open(with_a_sink(trace_of(causal=True)), start={"query": 2, "key": 1})
    assert tab.texts("#row tr.total td")[0] == "0.800" and tab.texts("#row tr:last-child td")[0] == "0.200"
    table = '[data-step="weights"] tbody tr'
    names, exps = tab.texts(f"{table} th"), [float(cell) for cell in tab.texts(f"{table} td:nth-child(3)")]
    assert names[-2:] == ["sink", "Σ"] and tab.texts(f"{table} td:nth-child(4)")[-2:] == ["0.200", "1.000"]
    assert exps[-2] == pytest.approx(0.2 * exps[-1], abs=0.01)  # the sink's exponential is its share of the sum
    tab.js("document.querySelector('#options input[type=checkbox], input[type=checkbox]').click()")  # rescale rows to 1
    tab.settled("!document.querySelector('#row').textContent.includes('sink')")


@in_browser
def test_slots_of_keys_stand_behind_a_text_that_reads_itself(tab: Tab) -> None:
    trace = trace_of(causal=True)
    (layer,) = trace.layers
    assert layer.weights is not None and layer.mask is not None
    column = np.full((*layer.weights.shape[:2], 1), 0.25, np.float32)  # (heads, n_q, 1)
    weights = np.concatenate([layer.weights * np.float32(0.75), column], axis=-1)  # (heads, n_q, n_k)
    mask = np.concatenate([layer.mask, np.ones((len(trace.tokens), 1), bool)], axis=-1)  # (n_q, n_k)
    slotted = LayerTrace(layer.layer, layer.heads, layer.kv_heads, weights=weights, mask=mask)
    tab.open(replace(trace, layers=(slotted,), key_tokens=(*trace.tokens, Token("0–1 compressed"))), start={"query": 0})
    assert tab.text("#finding") == "Alice pays 75 % of its attention to itself and 25 % to 0–1 compressed."
    assert tab.js("return document.querySelectorAll('.sentence path').length") == 1  # no arc to what is no word
    assert tab.js("return document.querySelectorAll('#direction input').length") == 2
    tab.js(f"return choose({{ direction: 'from', key: {len(trace.tokens)} }})")  # the slot, which the sentence lacks
    assert tab.texts('.token[aria-pressed="true"]') == [] and tab.texts('.token[tabindex="0"]') == ["Alice"]


@in_browser
def test_the_page_reads_every_kind_of_source(tab: Tab) -> None:
    bare = Trace("a b", (Token("a"), Token("b")), ModelInfo("mine", "matrix", n_layers=1, n_heads=1),
                 (LayerTrace(0, (0,), (0,), weights=np.array([[[0.25, 0.75], [1, 0]]], np.float32)),))  # fmt: skip
    tab.open(bare)
    tab.js("return choose({ query: 0 })")
    assert tab.text("#finding") == "a pays 75 % of its attention to b and 25 % to itself."
    assert "logarithms of the weights" in tab.text("#softmax")
    full = trace_of()
    part = record_trace(open_model("random", n_heads=4), TEXT, heads=[1, 3], rows=[2])
    tab.open(part)
    assert tab.js("return [view.grid.nq, view.head.rows[0]]") == [1, 2]
    assert tab.js("return view.head.head") in (1, 3)
    assert tab.text('.token[aria-pressed="true"]') == "eat"
    crossed = replace(full, key_tokens=tuple(Token(f"k{j}") for j in range(4)))
    tab.open(crossed)
    assert tab.js("return view.grid.cols.map((col) => col.label)") == ["k0", "k1", "k2", "k3"]
    rope = trace_of(rope_theta=10000.0, temperature=2.0, dropout=0.2, n_heads=4, n_kv_heads=2, n_layers=2)
    tab.open(rope)
    assert "rotary positions" in tab.texts("#arithmetic .step h3")
    assert "÷" in tab.text("#softmax")


# --- what it answers ---------------------------------------------------------------------------------------------


@in_browser
def test_pointing_tells_and_clicking_chooses(tab: Tab) -> None:
    from selenium.webdriver import ActionChains

    trace = trace_of()
    tab.open(trace, start={"query": 0, "key": 0})
    weights = trace.layers[0].weights
    assert weights is not None
    box = tab.js("const b = layout.boxes[0]; return [b.x, b.y, b.cell, b.cellH, layout.width, layout.height]")
    canvas = tab.driver.find_element("id", "canvas")
    tab.js(
        "arguments[0].scrollIntoView({ block: 'center' })", canvas
    )  # offsets count from the middle of what is in view
    x = box[0] + 1.5 * box[2] - box[4] / 2
    y = box[1] + 2.5 * box[3] - box[5] / 2
    chain = ActionChains(tab.driver).move_to_element_with_offset(canvas, int(x), int(y))
    chain.perform()
    tab.settled(f"document.getElementById('readout').textContent.includes('{weights[0, 2, 1]:.4f}')")
    assert tab.js("return state.query") == 0  # pointing is not choosing
    ActionChains(tab.driver).click().perform()
    tab.settled("state.query === 2 && state.key === 1")
    assert tab.text('.token[aria-pressed="true"]') == "eat"
    assert "eat" in tab.text("#row h3")


@in_browser
def test_everything_answers_to_the_keyboard(tab: Tab) -> None:
    key = keys()
    tab.open(
        trace_of(n_heads=4, n_layers=2, d_model=32, causal=True), start={"layer": 0, "head": 0, "query": 1, "key": 0}
    )
    tab.press("#grid", key.ARROW_DOWN)
    tab.settled(
        "state.query === 2 && document.getElementById('say').textContent.startsWith('query eat, key Alice, weight')"
    )
    tab.press("#grid", key.END)
    tab.settled("state.key === 3 && document.getElementById('say').textContent.includes('masked')")
    tab.press("#grid", key.ESCAPE)
    tab.settled("state.query === null")
    tab.press("#grid", key.ARROW_RIGHT)
    tab.settled("state.query === 0 && state.key === 0")
    tab.press('.head[aria-checked="true"]', key.ARROW_RIGHT)
    tab.settled("state.head === 1 && document.activeElement.dataset.head === '1'")
    tab.press('.head[aria-checked="true"]', key.ARROW_DOWN)
    tab.settled("state.layer === 1")
    tab.js("document.querySelector('.token[tabindex=\"0\"]').focus()")
    tab.press(".token:focus", key.ARROW_RIGHT)
    tab.settled("state.query === 1 && document.activeElement.textContent === 'will'")
    # nothing that can be pressed is out of the keyboard's reach, except what the arrow keys of its group reach
    loose = tab.js(
        "return [...document.querySelectorAll('button, input, select, [tabindex]')].filter((node) => node.tabIndex < 0"
        " && !node.closest('.words, .heads') && node.offsetParent).length"
    )
    assert loose == 0
    unnamed = tab.js(
        "return [...document.querySelectorAll('button, input, select')].filter((node) =>"
        " !(node.textContent.trim() || node.getAttribute('aria-label') || node.closest('label'))).length"
    )
    assert unnamed == 0


@in_browser
def test_another_head_shows_its_own_numbers(tab: Tab) -> None:
    trace = trace_of(n_heads=3, n_layers=2, d_model=24)
    tab.open(trace)
    tab.driver.find_element("css selector", '.head[data-layer="1"][data-head="2"]').click()
    tab.settled("view.head.layer === 1 && view.head.head === 2")
    weights = trace.layers[1].weights
    assert weights is not None
    assert np.array_equal(np.float32(tab.js("return Array.from(view.grid.w)")), weights[2].ravel())
    named = "return ['query', 'key', 'layer', 'head'].map((name) => byId(`choose-${name}`).selectedOptions[0].label)"
    query, key = tab.js("return [state.query, state.key]")
    assert tab.js(named) == [TEXT.split()[query], TEXT.split()[key], "1", "2"]
    tab.js("const s = byId('choose-query'); s.value = 3; s.dispatchEvent(new Event('change'))")
    tab.settled("state.query === 3 && state.key === strongestKey(view.grid, 3)")
    assert tab.js("return getComputedStyle(document.querySelector('.sentence path')).fill") == "none"
    assert "Layer 1, head 2" in tab.text("#caption")
    assert tab.js("return location.hash").startswith("#layer=1&head=2")


@in_browser
def test_the_link_keeps_the_choice(tab: Tab) -> None:
    tab.open(
        trace_of(n_heads=2, n_layers=2),
        fragment="#layer=1&head=1&query=3&key=0&colour=log&drop=first&renorm=true&direction=from",
    )
    assert tab.js("return [state.layer, state.head, state.query, state.key]") == [1, 1, 3, 0]
    assert tab.js("return [state.colour, state.drop, state.renorm, state.direction]") == ["log", "first", True, "from"]
    assert "key “Alice” (0) left out; rows rescaled to sum to 1; logarithmic colour" in tab.text("#caption")
    assert tab.js("return view.grid.nk") == 3
    assert tab.js("return Array.from(view.grid.sums)") == [1, 1, 1, 1]
    tab.open(
        trace_of(), fragment="#layer=77&head=-1&query=99&colour=toString&map=plaid&key=x"
    )  # what is not there is passed over
    assert tab.js("return [state.layer, state.head, state.colour, state.map]") == [0, 0, "linear", "heat"]


@in_browser
def test_a_share_of_what_is_left_is_not_called_a_share_of_all(tab: Tab) -> None:
    tab.open(trace_of(), start={"query": 3, "key": 1})
    assert " of its attention to " in tab.text("#finding") and "the rest" not in tab.text("#finding")
    tab.js("choose({ drop: 'first' })")
    assert "the rest" not in tab.text(
        "#finding"
    )  # what the first key took is missing, and the others' shares are as before
    tab.js("choose({ renorm: true })")
    tab.wait("return document.querySelector('#finding').textContent.includes(' of the rest of its attention to ')")
    tab.js("choose({ direction: 'from' })")
    tab.wait("return document.querySelector('#finding').textContent.includes(' of the rest of the attention of ')")


@in_browser
def test_words_merge_and_special_tokens_go(tab: Tab) -> None:
    text = "unbelievable!"
    pieces = [
        ("[CLS]", 0, 0, True),
        ("un", 0, 2, False),
        ("believ", 2, 8, False),
        ("able", 8, 12, False),
        ("!", 12, 13, False),
    ]
    tokens = tuple(Token(t, k, a, b, s) for k, (t, a, b, s) in enumerate(pieces))
    assert word_numbers(tokens, text) == [0, 1, 1, 1, 2]
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (1, 5)).astype(np.float32)
    tab.open(Trace(text, tokens, ModelInfo("m", "matrix"), (LayerTrace(0, (0,), (0,), weights=weights),)))
    tab.js("choose({ words: 'merged', drop: 'special' })")
    tab.settled("view.grid.nk === 2")
    w = weights[0].astype(np.float64)
    expected = np.stack([w[0], w[1:4].mean(0), w[4]])[:, 1:]
    expected = np.stack([expected[:, :3].sum(1), expected[:, 3]], 1)
    assert np.allclose(np.reshape(tab.js("return Array.from(view.grid.w)"), (3, 2)), expected, atol=1e-6)
    assert "[CLS]" in tab.text("#caption") and "averaged over queries" in tab.text("#caption")


@in_browser
def test_a_rollout_is_no_attention_and_no_head_s(tab: Tab, run: Any, tmp_path: Path) -> None:
    assert run("view", TEXT, "--measure", "rollout", "-o", tmp_path / "rollout.html").code == 0
    tab.go((tmp_path / "rollout.html").as_uri())
    tab.js("choose({ query: 2, key: 2 })")
    assert tab.text("#weights-title") == "Rollout" and "Layer 1, all heads together." in tab.text("#caption")
    assert re.fullmatch(r"eat comes \d+ % from itself, \d+ % from \w+ and \d+ % from \w+\.", tab.text("#finding"))
    assert tab.js("return ['arithmetic', 'explorer'].every((name) => document.querySelector(`section.${name}`).hidden)")


@in_browser
def test_scores_are_no_shares_of_attention(tab: Tab, run: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", np.array([[3.0, -2, 0.5], [1, 2, 3], [-1, -4, 2]]))
    assert run("view", tmp_path / "scores.npy", "-o", tmp_path / "scores.html").code == 0
    tab.go((tmp_path / "scores.html").as_uri())
    tab.js("choose({ query: 1, key: 2 })")
    said = tab.text("#finding")
    assert said.startswith("The largest numbers of 1: 3.000 on 2, 2.000 on 1") and said.endswith("are these scores?")
    assert "%" not in said and tab.text("#weights-title") == "Numbers as given"


@in_browser
def test_a_guess_is_said_below_the_finding(tab: Tab) -> None:
    tab.open(attnctl.attend("The city where I was born is very far from here", model="demo"))
    assert tab.text("#finding").endswith("what its heads find here is a guess")
    tab.open(attnctl.attend("Mary thanked Tom", model="demo"))
    assert "guess" not in tab.text("#finding")


def test_line_ends_and_tabs_are_arrows_that_fonts_have() -> None:
    tokens = (Token("a", 0, 0, 1), Token("\n\t", 1, 1, 3), Token("\x1b", 2, 3, 4))
    assert packed_tokens(tokens, "a\n\t\x1b")["labels"] == ["a", "↵⇥", "␛"]


@in_browser
def test_the_softmax_explorer(tab: Tab) -> None:
    from attnctl import attention

    trace = trace_of()
    tab.open(trace, start={"query": 3, "key": 0})
    scores = np.array(tab.js("return explorer.scores"))
    assert trace.layers[0].scores is not None
    assert np.allclose(scores, trace.layers[0].scores[0, 3], atol=1e-6)
    move = "const s = document.querySelectorAll('.sliders input')[1]; s.value = 4; s.dispatchEvent(new Event('input'))"
    tab.js(move)
    scores[1] = 4
    shown = lambda: [float(x) for x in tab.texts('.sliders [data-is="weight"]')]  # noqa: E731
    assert np.allclose(shown(), attention.softmax(scores / np.sqrt(8)), atol=6e-4)
    assert tab.text("#one-more") == f"exp(0.35) = {np.exp(1 / np.sqrt(8)):.2f}"
    tab.js("document.getElementById('scaling').click()")
    assert np.allclose(shown(), attention.softmax(scores), atol=6e-4)
    assert tab.text("#one-more") == "e = 2.72"
    tab.js("const t = document.getElementById('temperature'); t.value = 1; t.dispatchEvent(new Event('input'))")
    assert np.allclose(shown(), attention.softmax(scores / 2), atol=6e-4)
    plain = [float(x.replace("−", "-")) for x in tab.texts('.sliders [data-is="plain"]')]
    assert np.allclose(plain, scores / scores.sum(), atol=6e-3)
    assert "takes" in tab.text("#remark")


@in_browser
def test_two_side_by_side_with_their_difference(tab: Tab) -> None:
    a, b = trace_of(), trace_of(seed=1)
    tab.open(a, b)
    assert tab.js("return view.panels.map((panel) => panel.title)") == ["A  seed 0", "B  seed 1", "B − A"]
    assert a.layers[0].weights is not None and b.layers[0].weights is not None
    difference = (b.layers[0].weights - a.layers[0].weights).ravel()
    assert np.allclose(tab.js("return Array.from(view.panels[2].grid.w)"), difference, atol=1e-7)
    tab.open(a, trace_of("Bob sleeps"))  # of another length: no difference to show
    assert tab.js("return view.panels.length") == 2


@in_browser
def test_two_texts_are_matched_by_their_words(tab: Tab) -> None:
    text = "start Alice will eat pizza"
    shifted = trace_of(text)
    special = replace(shifted.tokens[0], special=True)
    a, b = (
        replace(shifted, text=text, tokens=(special, *shifted.tokens[1:])),
        trace_of("Alice will eat soup", causal=True),
    )
    tab.open(a, b, start={"query": 3, "key": 1})
    assert a.layers[0].weights is not None and b.layers[0].weights is not None
    chosen = "return view.panels.map((panel) => [chosenRow(panel.grid), chosenCol(panel.grid)])"
    assert tab.js(chosen) == [[3, 1], [2, 0], [2, 0]]  # eat → Alice, whatever stands before them
    at = tab.js("return [view.head.layer, view.head.head]")
    ours, theirs = a.layers[at[0]].weights[at[1]], b.layers[at[0]].weights[at[1]]
    shown = np.reshape(tab.js("return Array.from(view.panels[2].grid.w)"), (4, 4))
    assert np.allclose(shown, theirs - ours[1:, 1:], atol=1e-6)
    hidden = np.reshape(tab.js("return Array.from(view.panels[2].grid.hidden)"), (4, 4))
    assert np.array_equal(hidden == 1, ~np.tri(4, dtype=bool))  # where only one of them may look
    assert "where both may look" in tab.text("#caption")
    assert all(tab.js("return [...document.querySelectorAll('.sentence svg')].map((svg) => svg.children.length)"))
    lines = tab.texts("#finding .line")
    assert len(lines) == 2 and lines[0].startswith("A eat pays ") and lines[1].startswith("B eat pays ")
    rows = dict(zip(tab.texts("#row tbody th"), tab.texts("#row tbody td:nth-child(4)"), strict=False))
    assert (
        rows["Alice"] == tab.js("return signed(arguments[0])", float(theirs[2, 0] - ours[3, 1]))
        and rows["start"] == "·"
    )
    tab.js("document.querySelectorAll('.sentence')[1].querySelectorAll('.token')[1].click()")
    tab.settled("state.of === 1 && state.query === 1")
    assert [row for row, _ in tab.js(chosen)][:2] == [2, 1]
    tab.js("document.querySelectorAll('.sentence')[0].querySelectorAll('.token')[0].click()")
    tab.settled("state.of === 0 && state.query === 0")
    assert tab.texts("#finding .line")[1] == "B has no such token."


@in_browser
def test_two_texts_open_where_they_differ_most(tab: Tab, run: Any, tmp_path: Path) -> None:
    page, texts = tmp_path / "two.html", ("The cat sat on the mat because it was warm.", "The dog sat on a mat.")
    assert run("view", *texts, "-o", page).code == 0
    tab.go(page.as_uri())
    assert "no such token" not in tab.text("#finding") and "the largest change of all" in tab.text("#caption")
    found = compare_traces(*(record_trace(open_model("demo"), text) for text in texts))
    layer, head, i, j = found.largest_difference()
    rows, columns = found.axis_labels()
    assert tab.js("return [state.layer, state.head]") == [layer, head]
    names = "return [grid.rows, grid.cols].map((groups) => groups.map(({ label }) => label))"
    assert tab.js(f"const {{ grid }} = view.panels[2]; {names}") == [rows, columns] and "the/a" in rows
    assert tab.js("const { grid } = view.panels[2]; return [chosenRow(grid), chosenCol(grid)]") == [i, j]
    sizes = tab.js("return [...document.querySelectorAll('.words')].map((node) => getComputedStyle(node).fontSize)")
    assert sizes[0] == sizes[1]
    tab.js("return choose({ query: 9, key: null })")  # warm, which the other lacks: no room is kept for its arcs
    assert tab.js("return document.querySelectorAll('.words.one-line').length") == 1


@in_browser
def test_two_long_captions_stay_within_the_page(tab: Tab) -> None:
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "the",
        "mat",
        "while",
        "the",
        "old",
        "dog",
        "slept",
        "by",
        "the",
        "fire",
        "all",
        "day",
        "long",
    ]
    tab.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    tab.open(trace_of(" ".join(words)), trace_of(" ".join(reversed(words))))
    assert tab.js("return document.documentElement.scrollWidth <= innerWidth")
    wide = (
        "return layout.boxes.every((b) => textWidth(cut(b.panel.title, b.room - 8, 14, true), 14, true) <= b.room - 8)"
    )
    assert tab.js(wide)
    facts = tab.texts("#facts .line")
    assert len(facts) == 2 and " beside " in facts[0]


@in_browser
def test_the_head_says_which_layers_of_how_many_are_shown(tab: Tab) -> None:
    from dataclasses import replace

    whole = attnctl.attend("a b c", model="random", n_layers=3, n_heads=2)
    tab.open(replace(whole, layers=whole.layers[1:2]))
    assert "layer 1 of 3" in tab.text("#facts").replace("\u00a0", " ")
    tab.open(replace(whole, layers=whole.layers[1:]))
    assert "2 of 3 layers" in tab.text("#facts").replace("\u00a0", " ")
    tab.open(whole)
    assert "3 layers" in tab.text("#facts").replace("\u00a0", " ")


@in_browser
def test_unknown_words_are_marked_and_explained(tab: Tab) -> None:
    tab.open(record_trace(open_model("demo"), "Alice will eat quinoa"))
    assert tab.texts(".token")[3] == "quinoa†"
    assert tab.texts("#finding .legend") == [
        "† not among the words the model knows: read by its shape, or as its unknown word"
    ]


@in_browser
def test_a_run_over_training_has_a_slider(tab: Tab) -> None:
    traces = [trace_of(seed=seed) for seed in range(3)]
    tab.open(*traces, labels=["step 0", "step 100", "step 200"], over_training=True)
    assert tab.text("#step-name") == "step 200"
    tab.js("const s = document.getElementById('step'); s.value = 0; s.dispatchEvent(new Event('input'))")
    tab.settled("state.step === 0 && view.head.trace === TRACES[0]")
    assert tab.text("#step-name") == "step 0" and "step=" not in tab.js("return location.hash")
    weights = traces[0].layers[0].weights
    assert weights is not None
    assert np.array_equal(np.float32(tab.js("return Array.from(view.grid.w)")), weights.ravel())


@in_browser
def test_what_is_seen_can_be_saved(tab: Tab, tmp_path: Path) -> None:
    import csv
    import io
    from xml.etree import ElementTree

    trace = trace_of('say "hi", <b> & co', causal=True)
    tab.open(trace)
    rows = list(csv.reader(io.StringIO(tab.js("return csvText()"))))
    labels = [token.text for token in trace.tokens]
    assert rows[0] == ["query", *labels] and [row[0] for row in rows[1:]] == labels
    assert trace.layers[0].weights is not None
    numbers = np.array([[float(cell or 0) for cell in row[1:]] for row in rows[1:]], np.float32)
    assert np.array_equal(numbers, trace.layers[0].weights[0])
    svg = ElementTree.fromstring(tab.js("return svgText()"))
    texts = [node.text for node in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert set(labels) <= set(texts)
    tab.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
        tab.driver.find_element("id", f"save-{kind}").click()
        end = time.monotonic() + 10
        while not (found := list(tmp_path.glob(f"*.{kind}"))):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert found[0].read_bytes().startswith(start) and found[0].name.startswith("say-hi-b-co-layer0-head0")


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
)


@in_browser
def test_texts_are_never_markup(tab: Tab) -> None:
    tokens = tuple(Token(text, special=at == 3) for at, text in enumerate(HOSTILE))
    n = len(tokens)
    weights = np.full((1, n, n), 1 / n, np.float32)
    info = ModelInfo("<b onclick=window.broken=1>", "matrix")
    trace = Trace("".join(HOSTILE), tokens, info, (LayerTrace(0, (0,), (0,), weights=weights),), notes=("<i>note</i>",))
    html = page_html([trace], labels=["<u>"], title=HOSTILE[0])
    path = tab.folder / "hostile.html"
    path.write_bytes(html.encode())  # no half pairs are left in it
    tab.go(path.as_uri())
    for token in range(n):
        tab.js(f"return choose({{ query: {token}, key: {n - 1 - token} }})")
        tab.js(f"hover = {{ i: {token}, j: 0, panel: view.panel }}; paint(); writeReadout()")
    assert tab.js("return window.broken === undefined")
    assert tab.js("return document.querySelectorAll('body img, body b[onclick], body u, body i:not(td i)').length") == 0
    assert tab.js("return document.scripts.length") == html.count("<script")
    assert tab.texts(".token")[0] == HOSTILE[0] and "<i>note</i>" in tab.text("#colophon")
    assert f"Made by attnctl {attnctl.__version__}, " in tab.text("#colophon")
    from xml.etree import ElementTree

    ElementTree.fromstring(tab.js("return svgText()"))
    assert json.loads(as_data({"text": HOSTILE[6]}))["text"] == HOSTILE[6]


@in_browser
def test_no_request_leaves_the_page(tab: Tab) -> None:
    tab.driver.get_log("performance")
    tab.open(trace_of(n_heads=2), trace_of(n_heads=2, seed=1))
    tab.js("choose({ head: 1 })")
    tab.settled("view.head.head === 1")
    asked = []
    for entry in tab.driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert asked and all(address.startswith(("file:", "data:", "blob:")) for address in asked), asked
    blocked = tab.driver.execute_async_script(
        "const done = arguments[0]; fetch('https://example.org/').then(() => done('sent'), () => done('refused'))"
    )
    assert blocked == "refused"
    assert tab.js("try { document.body.innerHTML = '<b>'; return 'set' } catch { return 'refused' }") == "refused"
    tab.driver.get_log("browser")  # the refusals are what was asked for


def test_the_file_names_no_other() -> None:
    html = page_html([trace_of()])
    addresses = {word for word in html.replace('"', " ").replace("'", " ").split() if "://" in word}
    assert addresses == {"http://www.w3.org/2000/svg", "xmlns=http://www.w3.org/2000/svg"} or all(
        "www.w3.org/2000/svg" in address for address in addresses
    )
    assert "default-src 'none'" in html and "unsafe" not in html


# --- how large, how soon -----------------------------------------------------------------------------------------


def large(n: int, layers: int, heads: int, spread: float) -> Trace:
    """A text of n tokens: weights of dense random scores, the hardest to pack."""
    rng = np.random.default_rng(0)
    parts = []
    for layer in range(layers):
        e = np.exp(spread * rng.standard_normal((heads, n, n), dtype=np.float32))
        parts.append(LayerTrace(layer, tuple(range(heads)), tuple(range(heads)), weights=e / e.sum(-1, keepdims=True)))
    tokens = tuple(Token(f"t{at}") for at in range(n))
    return Trace(" ".join(t.text for t in tokens), tokens, ModelInfo("large", "matrix"), tuple(parts))


@in_browser
def test_512_tokens_in_12_layers_of_12_heads_open_at_once(tab: Tab) -> None:
    trace = large(512, 12, 12, 1.0)
    html = page_html([trace])
    assert len(html) < 45_000_000
    path = tab.folder / "large.html"
    path.write_text(html)
    tab.go(path.as_uri())
    # generous, so that a busy machine does not fail: measured alone it takes about 1 s
    assert tab.js("return performance.now()") < 12_000
    tab.js("return choose({ layer: 7, head: 5 })")
    tab.settled("view.head.layer === 7")
    weights = trace.layers[7].weights
    levels = tab.js("return TRACES[0].levels")
    assert weights is not None and f"within √w / {levels}" in tab.text("#caption")
    seen = np.reshape(tab.js("return Array.from(view.head.weights.slice(0, 5120))"), (10, 512))
    true = weights[5, :10].astype(np.float64)
    assert (np.abs(seen - true) <= np.sqrt(true) / levels + 0.26 / levels**2).all()
    assert tab.js("return fixed(view.grid.sums[3], 4)") == "1.0000"  # sums are kept exactly


@pytest.mark.parametrize("levels", [255, 1023, 65535])
def test_codes_are_as_exact_as_they_say(levels: int) -> None:
    weights = np.random.default_rng(1).dirichlet(np.full(40, 0.2), 30).astype(np.float32)
    data = np.frombuffer(coded_levels(weights, levels), np.uint8).astype(np.int64)
    codes = data if levels < 256 else data[: weights.size] + 256 * data[weights.size :]
    back = weights.max() * (codes.reshape(weights.shape) / levels) ** 2
    assert (np.abs(back - weights) <= np.sqrt(weights) / levels + 0.26 / levels**2).all()


@in_browser
def test_a_long_text_is_an_overview_with_exact_blocks(tab: Tab) -> None:
    from attnctl.source import prepare
    from attnctl.source.cells import survey_text

    model = open_model("random", causal=True, n_heads=2, d_model=16)
    text = " ".join(f"w{at * 7919 % 97}" for at in range(700))
    overview, exact = survey_text(prepare(TextSource(model, text)))
    tab.open(overview, exact=exact)
    whole = record_trace(model, text).layers[0].weights
    assert whole is not None and overview.grid is not None
    head = tab.js("return view.head.head")
    pooled = np.reshape(tab.js("return Array.from(view.grid.w)"), tab.js("return [view.grid.nq, view.grid.nk]"))
    assert np.array_equal(np.float32(pooled), overview.grid.weights[0, head])
    assert np.allclose(tab.js("return Array.from(view.grid.sums)"), 1, atol=1e-5)
    i, j, w = tab.js("return view.head.links[0]")
    assert (i, j) == tuple(tab.js("return [state.query, state.key]")) and np.isclose(w, whole[head, i, j], rtol=1e-5)
    a, b, c, d = tab.js("const b = blockFor(view.head); return [...b.rows, ...b.keys]")
    assert a <= i < b and c <= j < d and tab.js("return view.panels[1].title").startswith(f"exact: queries {a}–{b - 1}")
    block = np.reshape(tab.js("return Array.from(view.panels[1].grid.w)"), (b - a, d - c))
    assert np.allclose(block, whole[head, a:b, c:d], rtol=1e-5, atol=1e-9)
    assert "share of its attention" in tab.text("#caption") and tab.texts("mark")[0] == text.split()[i]
    tab.driver.find_element("css selector", "#links tr:nth-child(2) button").click()
    tab.settled("state.query === view.head.links[1][0]")
    tab.press("#grid", keys().ARROW_DOWN)
    tab.settled("document.getElementById('say').textContent.includes('row sum 1.0000')")
    assert tab.js("return document.querySelector('section.arithmetic').hidden")


@in_browser
def test_an_exact_block_hatches_what_a_window_hides(tab: Tab) -> None:
    from attnctl.source import prepare
    from attnctl.source.cells import survey_text

    model, text = open_model("demo"), "the cat sat on the mat and the dog saw it there " * 60
    overview, exact = survey_text(prepare(TextSource(model, text), layer="0"))
    tab.open(overview, exact=exact)
    a, b, c, d = tab.js("const b = blockFor(view.head); return [...b.rows, ...b.keys]")
    hidden = np.reshape(tab.js("return Array.from(view.panels[1].grid.hidden)"), (b - a, d - c))
    mask = record_trace(model, text, layers=[0], heads=[0], rows=list(range(a, b))).layers[0].mask
    assert mask is not None and np.array_equal(hidden == 0, mask[:, c:d])
    assert 0 < hidden.sum() < hidden.size and tab.js("return svgText()").count("masked") == 2


@in_browser
@pytest.mark.parametrize("pool", ["mean", "max", "mass"])
def test_what_is_said_of_a_pooled_row_is_a_share_of_attention(tab: Tab, pool: str, run: Any, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(" ".join(f"w{at * 7919 % 97}" for at in range(600)))
    cells = tmp_path / "cells.json"
    chosen = ["--spans", "paragraphs"] if pool == "mass" else ["--pool", pool]
    given = ["--file", tmp_path / "long.txt", "--model", "random", "--causal", "--layer", "0", "--head", "0"]
    assert run("heatmap", *given, *chosen, "-o", cells).code == 0
    assert run("view", cells, "-o", tmp_path / "page.html").code == 0
    tab.go((tmp_path / "page.html").as_uri())
    tab.js("choose({ query: 0, key: 0 })")
    said = tab.text("#finding")
    if pool == "max":
        assert said.startswith("The largest weights of") and "1.00" in said and "%" not in said
    else:
        assert "pay 100 % of their attention to themselves" in said


@in_browser
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


@in_browser
def test_every_cell_of_a_saved_terminal_stands_at_its_column(tab: Tab, run: Any, tmp_path: Path) -> None:
    picture = tmp_path / "steps.svg"
    asked = ["--layer", "1", "--head", "1", "--steps", "weights"]
    assert run("explain", "dog القط 😀 猫 cat", *asked, "-o", picture).code == 0
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
        if re.fullmatch(r"\d\.\d\d", text):
            rows.setdefault(y, []).append(right / scale)
    grid, shares = ([row for row in rows.values() if len(row) == many] for many in (6, 3))
    assert len(grid) == len(shares) == 5
    assert np.ptp(grid, axis=0).max() < 4 and np.ptp(shares, axis=0).max() < 4  # of cells 12.2 wide


# --- light and dark, narrow, in a notebook -----------------------------------------------------------------------


@in_browser
@pytest.mark.parametrize("width", [340, 390, 800, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_at_any_width(tab: Tab, width: int, scheme: str) -> None:
    tab.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    size = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": width < 500}
    tab.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    tab.open(trace_of("The cat sat on the mat because it was warm", n_heads=4, n_layers=2, d_model=32))
    assert tab.js("return document.documentElement.scrollWidth") <= width
    paper = tab.js("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(253, 252, 249)") == (scheme == "light")


@in_browser
def test_ink_on_paper_can_be_read(tab: Tab) -> None:
    for scheme in ("light", "dark"):
        tab.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        tab.open(trace_of())
        forms = tab.js("return theme()")
        light = lambda name: _luminance(forms[name])  # noqa: B023, E731
        for name, least in (("ink", 7.0), ("quiet", 4.5), ("accent", 4.5)):
            high, low = max(light(name), light("paper")), min(light(name), light("paper"))
            assert (high + 0.05) / (low + 0.05) >= least, (scheme, name)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_heat_grows_evenly_darker_or_lighter() -> None:
    from attnctl.render import forms

    for stops, sign in (
        (forms.HEAT_ON_LIGHT, -1),
        (forms.HEAT_ON_DARK, 1),
        (forms.VIRIDIS, 1),
        (forms.CIVIDIS, 1),
    ):
        cube = np.cbrt([_luminance(stop) for stop in stops])  # near lightness as it is seen
        steps = sign * np.diff(cube)
        assert (steps > 0).all() and steps.max() < 2.2 * steps.min()


@in_browser
def test_the_heads_fit_the_paper_and_the_screen(tab: Tab) -> None:
    tab.open(trace_of("The cat sat on the mat", n_heads=8, n_layers=2, d_model=64))
    fits = "const h = document.querySelector('.heads'); return h.scrollWidth <= h.clientWidth"
    for printing in ("true", "false"):
        tab.js(f"paper({printing})")
        assert tab.js(fits), printing


@in_browser
def test_it_prints_on_white(tab: Tab) -> None:
    tab.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    tab.open(trace_of())
    tab.js("window.seen = []; addEventListener('beforeprint', () => setTimeout(() => seen.push(theme().paper)))")
    pdf = base64.b64decode(tab.driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") <= 4
    assert tab.js("return [theme().paper, document.documentElement.className]") == ["#14161a", ""]  # and back again
    tab.js("paper(true)")
    assert tab.js("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@in_browser
def test_a_notebook_shows_a_trace(tab: Tab) -> None:
    html = trace_of('a "quoted" <b>')._repr_html_()
    assert html.startswith("<iframe srcdoc=") and html.count("<iframe") == 1
    path = tab.folder / "notebook.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>notebook</title>{html}", encoding="utf-8")
    tab.driver.get(path.as_uri())
    tab.driver.switch_to.frame(0)
    tab.wait("return document.documentElement.dataset.ready === 'true'")
    assert tab.texts(".token") == ["a", '"', "quoted", '"', "<", "b", ">"]
    tab.js("return choose({ query: 1 })")
    tab.driver.switch_to.default_content()
    assert page_in_frame(attnctl.attend(TEXT, model="random")).endswith("</iframe>")


def test_a_notebook_is_not_flooded() -> None:
    assert "too many to show here" in large(200, 4, 30, 1.0)._repr_html_()
    assert "no weights" in Trace("a", (Token("a"),), ModelInfo("m", "matrix"), ())._repr_html_()


def test_a_trace_without_weights_is_refused() -> None:
    with pytest.raises(AttnctlError, match="no weights"):
        page_html([Trace("a", (Token("a"),), ModelInfo("m", "matrix"), (LayerTrace(0, (0,), (0,)),))])


def test_a_long_text_that_names_a_trace_is_cut_with_a_mark() -> None:
    traces = [attnctl.attend(text, model="random") for text in ("a b", "the cat " * 20)]
    short, long = trace_names(traces)
    assert short == "a b" and long.endswith("…") and len(long) <= NAME_LETTERS
