"""`attnctl batch`: what goes in, what comes out, and what is said about it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import attnctl
from attnctl.errors import AttnctlError
from attnctl.formats.documents.schemas import SCHEMAS
from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.formats.storage import from_json
from attnctl.source import record_trace
from tests.batching.test_resume import check_whole, manifest
from tests.conftest import Run


def write(path: Path, *lines: str | bytes) -> str:
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return str(path)


@pytest.fixture
def three(tmp_path: Path) -> str:
    return write(tmp_path / "three.txt", "Alice will eat pizza", "The cat sat.", "日本語 です")


def test_json_lines_to_stdout_are_those_of_explain(run: Run, three: str) -> None:
    result = run("batch", three, "--parameters", "--causal", "--seed", "4")
    assert result.code == 0 and result.err == ""
    for line, text in zip(result.out.splitlines(), Path(three).read_text().splitlines(), strict=True):
        assert line == run("explain", text, "--causal", "--seed", "4", "--json").out.strip()


def test_parameters_are_left_out_of_every_line_unless_asked_for(run: Run, three: str) -> None:
    heads = [json.loads(line)["layers"][0]["heads"][0] for line in run("batch", three).out.splitlines()]
    assert all("weights" in head and "W_Q" not in head for head in heads)


def test_a_trace_holds_the_steps_and_decimals_that_are_asked_for(run: Run, three: str, tmp_path: Path) -> None:
    whole = [json.loads(line) for line in run("batch", three).out.splitlines()]
    out = run("batch", three, "--steps", "weights", "--precision", "4").out.splitlines()
    kept = list(attnctl.batch([one["text"] for one in whole], steps=["weights"], precision=4))
    for line, before, trace in zip(out, whole, kept, strict=True):
        found = json.loads(line)
        jsonschema.validate(found, SCHEMAS["trace"]())
        assert {name for layer in found["layers"] for name in layer} == {"layer", "heads"} and "embeddings" not in found
        for layer, layer_before in zip(found["layers"], before["layers"], strict=True):
            for head, head_before in zip(layer["heads"], layer_before["heads"], strict=True):
                assert set(head) == {"head", "kv_head", "weights"}
                assert head["weights"] == [[round(x, 4) + 0.0 for x in row] for row in head_before["weights"]]
        assert trace_to_json(trace).decode() == line == trace_to_json(from_json(line.encode(), "it")).decode()
    asked = ("batch", three, "-o", str(tmp_path / "out"), "--format", "json,npz", "--steps", "weights")
    assert run(*asked, "--precision", "3").code == 0
    assert "differs in precision" in run(*asked).err and run(*asked, "--precision", "3").code == 0
    assert attnctl.load(next((tmp_path / "out").glob("*.npz"))).layers[0].scores is None
    with pytest.raises(AttnctlError, match="precision 10"):
        next(attnctl.batch(["a"], precision=10))


def test_lines_flow_as_they_come() -> None:
    command = [sys.executable, "-m", "attnctl", "batch", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flow:
        assert flow.stdin is not None and flow.stdout is not None
        for word in ("one", "two"):
            flow.stdin.write(f"{word} more\n".encode())
            flow.stdin.flush()
            assert json.loads(flow.stdout.readline())["text"] == f"{word} more"  # while the pipe is open
        flow.stdin.close()
    assert flow.returncode == 0


def test_a_folder_with_everything(run: Run, three: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("batch", three, "-o", out, "--format", "json, npz, png,svg,pdf", "--jobs", "1")
    assert (result.code, result.out) == (0, "")
    # a note may stand before it: not every machine has a font for every script of these sentences
    assert result.err.splitlines()[-1] == f"attnctl: 3 done: see {out}/manifest.jsonl"
    assert check_whole(out) == 3
    entry = manifest(out)[0]
    assert (entry["number"], entry["status"], entry["tokens"]) == (0, "done", 4)
    names = {file["file"] for file in entry["files"]}
    stem = "0000000-alice-will-eat-pizza"
    assert names == {f"{stem}.png", f"{stem}.svg", f"{stem}.pdf", f"{stem}.npz", "traces.jsonl"}
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert all((out / f"{stem}.{form}").read_bytes().startswith(start) for form, start in starts.items())
    lines = (out / "traces.jsonl").read_bytes().splitlines()
    assert trace_to_json(attnctl.load(out / f"{stem}.npz")) == lines[0]
    assert (out / "0000002.png").is_file()


def test_quiet_leaves_errors_alone(run: Run, tmp_path: Path) -> None:
    """Notes of a picture whose letters no font has, and the last line's count, were said all the same."""
    texts = write(tmp_path / "texts.txt", "Alice \ue000", "Bob")
    loud = run("batch", texts, "-o", str(tmp_path / "loud"), "--format", "png")
    assert loud.code == 0 and "no installed font" in loud.err and "2 done" in loud.err
    quiet = run("batch", texts, "-o", str(tmp_path / "quiet"), "--format", "png", "--quiet")
    assert quiet.code == 0 and quiet.err == ""
    bad = write(tmp_path / "bad.txt", "Bob", b"\xff")
    failed = run("batch", bad, "-o", str(tmp_path / "bad"), "--quiet")
    assert failed.code == 3 and len(failed.err.splitlines()) == 1


def test_what_a_line_says_of_itself(run: Run, tmp_path: Path) -> None:
    lines = [
        {"text": "New York is big", "id": "ny", "tokens": ["New York", "is", "big"]},
        {"text": "a b c", "options": {"causal": True, "scale": "none", "query": "b"}},
        {"text": "a b c", "options": {"model": "/etc/passwd"}},
        {"text": "a b c", "options": {"casual": True}},
        {"text": "a b c", "options": {"layer": 3}},
        {"text": "a b c", "options": {"n_heads": "many"}},
    ]
    result = run("batch", write(tmp_path / "a.jsonl", *map(json.dumps, lines)), "--model", "random")
    assert result.code == 3
    first, second = map(json.loads, result.out.splitlines())
    assert [(t["text"], t["start"], t["end"]) for t in first["tokens"]] == [
        ("New York", 0, 8),
        ("is", 9, 11),
        ("big", 12, 15),
    ]
    assert second["model"]["causal"] is True and second["model"]["scale"] == 1.0 and second["layers"][0]["rows"] == [1]
    told = result.err.splitlines()
    assert told[0].startswith(
        f"attnctl: item 2 ({tmp_path}/a.jsonl, line 3): one text has no option 'model': it is layer,"
    )
    assert "no option 'casual'" in told[1]
    assert told[2].endswith("no layer 3 in random: it has layer 0 only")
    assert told[3].endswith("option 'n_heads' cannot be 'many'")


def test_traces_can_be_drawn_later(run: Run, three: str, tmp_path: Path) -> None:
    run("batch", three, "-o", tmp_path / "a", "--format", "json,svg", "--jobs", "1")
    result = run("batch", tmp_path / "a" / "traces.jsonl", "-o", tmp_path / "b", "--format", "svg", "--jobs", "1")
    assert result.code == 0, result.err
    for entry, again in zip(manifest(tmp_path / "a"), manifest(tmp_path / "b"), strict=True):
        assert entry["files"][0] == again["files"][0]


def test_one_bad_item_does_not_stop_the_rest(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "good", "", b"\xff", "far too many words", "good too")
    out = tmp_path / "out"
    result = run("batch", file, "-o", out, "--max-tokens", "3", "--jobs", "1")
    assert result.code == 3
    assert result.err.splitlines() == [
        f"attnctl: item 1 ({file}, line 2): the text is empty",
        f"attnctl: item 2 ({file}, line 3): it is not UTF-8: byte 0xff at offset 0",
        f"attnctl: item 3 ({file}, line 4): 4 tokens: more than --max-tokens 3",
        f"attnctl: 2 done, 3 failed: see {out}/manifest.jsonl",
    ]
    assert [entry["status"] for entry in manifest(out)] == ["done", "failed", "failed", "failed", "done"]
    assert manifest(out)[3]["error"] == "4 tokens: more than --max-tokens 3"
    again = run("batch", file, "-o", out, "--max-tokens", "3", "--jobs", "1")
    assert again.code == 3 and "0 done, 5 there before (3 of them failed)" in again.err


def test_strict_stops_at_the_first_bad_item(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "good", "", "good too")
    result = run("batch", file, "-o", tmp_path / "out", "--strict", "--jobs", "1")
    assert (result.code, result.err) == (1, f"attnctl: item 1 ({file}, line 2): the text is empty\n")
    assert check_whole(tmp_path / "out") == 1
    write(tmp_path / "a.txt", "good", "mended", "good too")
    result = run("batch", file, "-o", tmp_path / "out", "--strict", "--jobs", "1")
    assert result.code == 0 and "2 done, 1 there before" in result.err


def test_python_has_a_generator() -> None:
    came = []

    def texts() -> Any:
        for text in ("Alice eats", {"text": "Bob sleeps", "options": {"causal": True}}, "", "never"):
            came.append(text)
            yield text

    traces = attnctl.batch(texts(), model="random", n_heads=2, head=1)
    first = next(traces)
    assert came == ["Alice eats"], "it reads no further than it is asked to"
    assert trace_to_json(first) == trace_to_json(
        record_trace(attnctl.open_model("random", n_heads=2), "Alice eats", heads=[1])
    )
    assert next(traces).model.causal
    with pytest.raises(AttnctlError, match="text 2: the text is empty"):
        next(traces)


def test_options_of_a_text_change_the_model_that_was_given(tmp_path: Path) -> None:
    """A path is a name like any other; a model that is opened already is not another one for a text."""
    weights = tmp_path / "own.safetensors"
    weights.write_bytes((Path(attnctl.__file__).parent / "models/builtin/demo-causal.safetensors").read_bytes())
    own = {"text": "Alice eats", "options": {"temperature": 2.0}}
    by_path, alone = next(attnctl.batch([own], model=weights)), attnctl.attend("Alice eats", weights, temperature=2.0)
    assert trace_to_json(by_path) == trace_to_json(alone) and by_path.model.name == alone.model.name
    opened = attnctl.open_model("random")
    with pytest.raises(AttnctlError, match="text 0: the options of one text do not change random, which is opened"):
        next(attnctl.batch([own], model=opened))
    chosen = next(attnctl.batch([{"text": "Alice eats", "options": {"head": 0}}], model=opened))
    assert chosen.model.name == "random"


def test_a_bar_on_a_terminal(three: str, tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    file = write(tmp_path / "a.txt", *["Alice will eat pizza"] * 3000)
    command = ["-m", "attnctl", "batch", file, "-o", str(tmp_path / "out"), "--jobs", "1"]
    child = pexpect.spawn(sys.executable, command, dimensions=(24, 100), timeout=30, encoding="utf-8")
    child.expect(r"[\d,]+ done · [\d,.…]+ a second")
    child.expect("3,000 done: see")
    child.expect(pexpect.EOF)


@pytest.mark.parametrize("name", ["doc-7", 7])
def test_an_id_comes_out_of_every_format_as_it_went_in(run: Run, tmp_path: Path, name: str | int) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "Alice eats", "id": name}) + "\n")
    out = tmp_path / "out"
    formats = "json,npz,parquet,png,svg,pdf,contact-sheet"
    assert run("batch", tmp_path / "in.jsonl", "-o", out, "--format", formats, "--jobs", "1").code == 0
    (line,) = (out / "traces.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == name
    jsonschema.validate(json.loads(line), SCHEMAS["trace"]())
    (archive,) = out.glob("*.npz")
    assert attnctl.load(archive).id == name and archive.stem == f"0000000-{name}"
    assert {row["id"] for row in pq.read_table(out / "traces.parquet").to_pylist()} == {str(name)}
    for picture in (out / f"0000000-{name}.{form}" for form in ("png", "svg", "pdf")):
        assert f"; text {name}".encode() in picture.read_bytes(), picture
    (entry,) = (json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines())
    assert entry["id"] == name
    again = run("batch", out / "traces.jsonl")  # a trace of a batch is read with its id
    assert json.loads(again.out)["id"] == name
    assert [trace.id for trace in attnctl.batch([{"text": "Bob sleeps", "id": name}])] == [name]


def test_words_and_measures_are_those_of_the_other_commands(run: Run, tmp_path: Path) -> None:
    text, model = "unbelievable pizza", ("--model", "random", "--tokenizer", "chars", "--heads", "2", "--layers", "2")
    (tmp_path / "in.txt").write_text(text + "\n")
    for asked in (
        ["--words"],
        ["--measure", "value-norm"],
        ["--measure", "rollout"],
        ["--words", "--measure", "rollout"],
        ["--measure", "value-zeroing"],
        ["--words", "--measure", "value-zeroing"],
    ):
        ours = json.loads(run("batch", tmp_path / "in.txt", *model, *asked).out)
        jsonschema.validate(ours, SCHEMAS["trace"]())
        weights = [head["weights"] for layer in ours["layers"] for head in layer["heads"]]
        assert len(ours["tokens"]) == (3 if "--words" in asked else len(text))  # two words, and the space
        assert len(weights) == (1 if "rollout" in asked else 2 if "value-zeroing" in asked else 4)
        alone = run("explain", text, *model, *asked, "--json").json
        assert weights[-1] == alone["layers"][-1]["heads"][-1]["weights"]
    (tmp_path / "trace.jsonl").write_text(run("explain", text, *model, "--json").out)
    refused = run("batch", tmp_path / "trace.jsonl", "--measure", "value-zeroing")
    assert refused.code == 3 and "give the text and its model, not random" in refused.err


def test_a_long_text_that_a_few_cells_drown_is_drawn_on_a_logarithmic_scale(run: Run, tmp_path: Path) -> None:
    text = " ".join(f"w{at % 7}" for at in range(600))
    (tmp_path / "in.txt").write_text(text + "\n")
    how = ("--format", "png", "--model", "random", "--scale", "4", "--causal", "--jobs", "1")
    pictures = {}
    for name, option in (("own", ()), ("log", ("--log",)), ("linear", ("--no-log",))):
        assert run("batch", tmp_path / "in.txt", "-o", tmp_path / name, *how, *option).code == 0
        (picture,) = (tmp_path / name).glob("*.png")
        pictures[name] = picture.read_bytes()
    assert pictures["own"] == pictures["log"] != pictures["linear"]
