"""`attnctl view` from outside: what it reads, where it writes, what it refuses."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.formats.storage import save_value
from attnctl.models import attend, open_model
from attnctl.readings.traces.trace import Trace
from attnctl.source import TextSource, prepare
from attnctl.source.cells import survey_text
from tests.conftest import Refused, Result, Run

TEXT = "Alice will eat pizza"


def data(html: str) -> Any:
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])


@pytest.fixture
def trace() -> Trace:
    return attend(TEXT, model="random", n_heads=4, n_layers=2, d_model=32)


def viewed(run: Run, folder: Path, *arguments: str, **more: Any) -> Any:
    result = run("view", *arguments, "--no-open", "-o", str(folder / "page.html"), **more)
    assert (result.code, result.out, result.err) == (0, f"{folder / 'page.html'}\n", "")
    return data((folder / "page.html").read_text())


def test_a_text_becomes_one_file(run: Run, tmp_path: Path) -> None:
    page = viewed(run, tmp_path, TEXT, "--model", "random", "--causal", "--query", "eat")
    assert page["mode"] == "one" and page["traces"][0]["tokens"]["labels"] == TEXT.split()
    assert page["start"]["query"] == 2 and page["traces"][0]["model"]["causal"]
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_traces_matrices_and_pipes(run: Run, trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "run.json")
    trace.save(tmp_path / "run.npz")
    np.save(tmp_path / "mine.npy", np.full((3, 3), 1 / 3, np.float32))
    for name in ("run.json", "run.npz"):
        page = viewed(run, tmp_path, str(tmp_path / name))
        assert [len(layer["heads"]) for layer in page["traces"][0]["layers"]] == [4, 4]
    assert viewed(run, tmp_path, "-", stdin=trace_to_json(trace))["traces"][0]["label"] == "random"
    page = viewed(run, tmp_path, str(tmp_path / "mine.npy"), "--tokens", "a b c")
    assert page["traces"][0]["tokens"]["labels"] == ["a", "b", "c"] and page["traces"][0]["facts"].startswith(
        "mine · 3"
    )


def test_layers_and_heads_narrow_it(run: Run, trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "run.json")
    for source in ([str(tmp_path / "run.json")], [TEXT, "--model", "random", "--heads", "4", "--layers", "2"]):
        page = viewed(run, tmp_path, *source, "--layer", "1", "--head", "1,3")
        (layer,) = page["traces"][0]["layers"]
        assert layer["layer"] == 1 and [head["head"] for head in layer["heads"]] == [1, 3]


def test_two_side_by_side(run: Run, trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "run.json")
    page = viewed(run, tmp_path, str(tmp_path / "run.json"), "Bob will eat pizza", "--model", "dot")
    assert page["mode"] == "compare" and [t["label"] for t in page["traces"]] == ["random", "dot"]
    page = viewed(run, tmp_path, "random", "dot", TEXT)
    assert [t["label"] for t in page["traces"]] == ["random", "dot"]


def test_a_run_at_every_step(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (0, 10, 100000):
        made = folder / f"step-{step:06d}.safetensors"
        made.write_bytes((files("attnctl.models.builtin") / "demo.safetensors").read_bytes())
    (folder / "metrics.jsonl").write_text('{"step": 10, "loss": 2.5}\n{"step": 0, "loss": null}\n')
    page = viewed(run, tmp_path, TEXT, "--run", str(folder))
    assert page["mode"] == "steps"
    assert [t["label"] for t in page["traces"]] == ["step 0", "step 10, loss 2.50", "step 100,000"]


def test_a_user_s_own_model_stands_back_where_models_are_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused as if --model had been typed."""
    (tmp_path / "run").mkdir()
    for step in (0, 10):
        made = tmp_path / "run" / f"step-{step:06d}.safetensors"
        made.write_bytes((files("attnctl.models.builtin") / "demo.safetensors").read_bytes())
    monkeypatch.setenv("ATTNCTL_MODEL", "dot")
    for command in (
        ("heatmap", TEXT, "--run", str(tmp_path / "run"), "-o", str(tmp_path / "a.svg")),
        ("heatmap", TEXT, "--run", str(tmp_path / "run"), "-o", str(tmp_path / "a.html")),
        ("view", TEXT, "--run", str(tmp_path / "run"), "-o", str(tmp_path / "b.html"), "--no-open"),
        ("view", "demo", "random", TEXT, "-o", str(tmp_path / "c.html"), "--no-open"),
        ("compare", "demo", "random", TEXT),
    ):
        assert run(*command).code == 0, command
    for name in ("a", "b"):
        traces = data((tmp_path / f"{name}.html").read_text())["traces"]
        assert {one["model"]["name"] for one in traces} == {"step-000000", "step-000010"}


def test_a_users_own_colour_map_stands_back_for_a_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNCTL_CMAP", "magma")
    assert run("heatmap", TEXT, "--model", "random", "-o", str(tmp_path / "a.html")).code == 0


def test_python_s_page_is_the_command_s(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def same(more: tuple[str, ...], **options: Any) -> Any:
        page = tmp_path / "page.html"
        assert run("view", TEXT, *more, "--no-open", "-o", str(page)).code == 0
        html = attnctl.view(TEXT, **options)
        assert html == page.read_text(), more
        return data(html)

    chosen = same(
        ("--layer", "0", "--head", "1", "--query", "eat", "--drop", "first", "--renormalise", "--log", "--words"),
        layer=0,
        head=1,
        query="eat",
        drop="first",
        renormalise=True,
        log=True,
        words=True,
    )
    assert chosen["start"]["query"] == 2 and chosen["start"]["words"] == "merged"
    shaded = same(("--effects", "--target", "pizza"), effects=True, target="pizza")
    assert shaded["effects"]["target"]["text"].strip() == "pizza"
    monkeypatch.setattr("attnctl.limits.PAGE_WEIGHTS", 10)
    assert "overview" in same(("--model", "random"), model="random")["traces"][0]
    with pytest.raises(attnctl.AttnctlError, match="drop first second does not go with a page"):
        attnctl.view(TEXT, drop=["first", "second"])


def test_a_heatmap_can_be_a_page(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "grid.html"
    arguments = ("--log", "--drop", "first", "--renormalise", "--cmap", "cividis")
    assert run("heatmap", TEXT, "--model", "random", *arguments, "-o", str(path)) == Result(0, "", "")
    assert data(path.read_text())["start"] == {"drop": "first", "renorm": True, "colour": "log", "map": "cividis"}


def test_without_a_name_it_goes_to_a_temporary_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    result = run("view", TEXT, "--model", "random")
    path = Path(result.out.strip())
    assert path.name == "alice-will-eat-pizza.html" and path.read_text().startswith("<!doctype html>")
    assert result.err == f"attnctl: note: no browser was found here: open {path} in one\n"


def test_it_opens_a_browser_where_there_is_one(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    target = tmp_path / "a b.html"
    assert run("view", TEXT, "--model", "random", "-o", str(target)) == Result(0, f"{target}\n", "")
    assert opened == [target.as_uri()]
    assert run("view", TEXT, "--model", "random", "-o", "-").out.startswith("<!doctype html>")
    assert len(opened) == 1


def test_a_long_text_is_pooled(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.limits.PAGE_WEIGHTS", 10_000)
    monkeypatch.setattr("attnctl.source.cells.SIZE", 16)
    (tmp_path / "long.txt").write_text("Alice will eat pizza. " * 40)
    page = viewed(
        run, tmp_path, "--file", str(tmp_path / "long.txt"), "--model", "random", "--heads", "2", "--head", "1"
    )
    (trace,) = page["traces"]
    assert len(trace["tokens"]["labels"]) == 200 and len(trace["overview"]["rows"]) == 16
    (head,) = trace["layers"][0]["heads"]
    assert head["head"] == 1 and len(head["links"]) == 14 and head["blocks"]


def test_a_long_text_from_a_pipe_is_pooled(
    run: Run, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnctl.limits.PAGE_WEIGHTS", 10_000)
    text = b"Alice will eat pizza. " * 40
    page = viewed(run, tmp_path, "-", "--model", "random", "--heads", "2", "--log", stdin=text)
    assert len(page["traces"][0]["tokens"]["labels"]) == 200 and page["traces"][0]["overview"]
    assert page["start"] == {"colour": "log"}
    for option in (["--drop", "first"], ["--renormalise"], ["--words"], ["--measure", "value-norm"]):
        assert f"{option[0]} needs every weight" in refused(
            "view", "-", "--model", "random", *option, stdin=text, code=2
        )


def test_an_overview_file_is_shown(run: Run, tmp_path: Path) -> None:
    model = open_model("random", n_heads=2)
    text = "Alice will eat pizza. " * 20
    overview, _ = survey_text(prepare(TextSource(model, text)))
    save_value(overview, tmp_path / "map.json")
    page = viewed(run, tmp_path, str(tmp_path / "map.json"))
    (shown,) = page["traces"]
    assert len(shown["overview"]["rows"]) == len(overview.grid.rows) and shown["layers"][0]["heads"][1]["links"]
    assert viewed(run, tmp_path, "-", stdin=(tmp_path / "map.json").read_bytes())["traces"] == page["traces"]


def test_too_much_for_a_page_is_said_before(
    run: Run, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnctl.limits.PAGE_NUMBERS", 15)
    target = tmp_path / "page.html"
    said = refused("view", TEXT, "--model", "random", "--no-open", "-o", str(target), code=1)
    assert "16 weights are too many" in said and not target.exists()
