"""`attnctl batch`: what goes in, what comes out, and what is said about it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pexpect
import pytest

import attnctl
from attnctl.errors import AttnctlError
from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.formats.storage import from_json
from attnctl.models.builtin.weights import path_of
from attnctl.source import record_trace
from tests.batching.test_resume import check_whole, manifest
from tests.conftest import Result, Run, check_schema, spawned


def write(name: str, *lines: str | bytes) -> str:
    Path(name).write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return name


@pytest.fixture
def three(_here: None) -> str:
    return write("three.txt", "Alice will eat pizza", "The cat sat.", "日本語 です")


def test_json_lines_to_stdout_are_those_of_explain(run: Run, three: str) -> None:
    result = run("batch", three, "--steps", "all", "--causal", "--seed", "4")
    assert result.code == 0 and result.err == ""
    for number, text in enumerate(Path(three).read_text().splitlines()):
        alone = run("explain", text, "--causal", "--seed", "4", "--json").json
        line = result.out.splitlines()[number]
        assert alone["headline"] and json.loads(line) == alone | {"number": number}


def test_matrices_are_kept_where_they_are_asked_for(run: Run, three: str) -> None:
    """`--steps matrices` wrote traces without any matrix."""
    (line,) = run("batch", write("one.txt", "Alice eats"), "--steps", "matrices").out.splitlines()
    alone = run("explain", "Alice eats", "--json").json
    for layer, kept in zip(alone["layers"], json.loads(line)["layers"], strict=True):
        for head, kept_head in zip(layer["heads"], kept["heads"], strict=True):
            assert kept_head["W_Q"] == head["W_Q"] and "weights" not in kept_head


def test_a_trace_holds_the_steps_that_are_asked_for_unrounded(run: Run, three: str) -> None:
    whole = [json.loads(line) for line in run("batch", three).out.splitlines()]
    out = run("batch", three, "--steps", "weights").out.splitlines()
    kept = list(attnctl.batch([one["text"] for one in whole], steps=["weights"]))
    for line, before, trace in zip(out, whole, kept, strict=True):
        found = json.loads(line)
        assert check_schema(found) == "trace"
        assert {name for layer in found["layers"] for name in layer} == {"layer", "heads"} and "embeddings" not in found
        for layer, layer_before in zip(found["layers"], before["layers"], strict=True):
            for head, head_before in zip(layer["heads"], layer_before["heads"], strict=True):
                assert set(head) == {"head", "kv_head", "weights"} and "W_Q" not in head_before
                assert head["weights"] == head_before["weights"]
        assert trace_to_json(trace).decode() == line == trace_to_json(from_json(line.encode(), "it")).decode()
    asked = ("batch", three, "-o", "out", "--format", "json,npz", "--steps", "weights")
    assert run(*asked).code == 0
    assert "differs in steps" in run(*asked[:-2]).err and run(*asked).code == 0
    refused = run(*asked, "--precision", "3")
    assert refused.code == 2 and "no such option: --precision" in refused.err
    assert attnctl.load(next(Path("out").glob("*.npz"))).layers[0].scores is None


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


def test_quiet_leaves_errors_alone(run: Run) -> None:
    """Notes of a picture whose letters no font has, and the last line's count, were said all the same."""
    texts = write("texts.txt", "Alice \ue000", "Bob")
    loud = run("batch", texts, "-o", "loud", "--format", "png")
    assert loud.code == 0 and "no installed font" in loud.err and "2 done" in loud.err
    quiet = run("batch", texts, "-o", "quiet", "--format", "png", "--quiet")
    assert quiet.code == 0 and quiet.err == ""
    failed = run("batch", write("bad.txt", "Bob", b"\xff"), "-o", "bad", "--quiet")
    assert failed.code == 3 and len(failed.err.splitlines()) == 1


def test_what_a_line_says_of_itself(run: Run) -> None:
    lines = [
        {"text": "New York is big", "id": "ny", "tokens": ["New York", "is", "big"]},
        {"text": "a b c", "options": {"causal": True, "scale": "none", "query": "b"}},
        {"text": "a b c", "options": {"model": "/etc/passwd"}},
        {"text": "a b c", "options": {"casual": True}},
        {"text": "a b c", "options": {"layer": 3}},
        {"text": "a b c", "options": {"n_heads": "many"}},
    ]
    result = run("batch", write("a.jsonl", *map(json.dumps, lines)), "--model", "random")
    assert result.code == 3
    first, second, *failed = map(json.loads, result.out.splitlines())
    assert [line["number"] for line in failed] == [2, 3, 4, 5]
    assert [(t["text"], t["start"]) for t in first["tokens"]] == [("New York", 0), ("is", 9), ("big", 12)]
    assert second["model"]["causal"] is True and second["model"]["scale"] == 1.0 and second["layers"][0]["rows"] == [1]
    told = result.err.splitlines()
    assert told[0].startswith("attnctl: item 2 (a.jsonl, line 3): one text has no option 'model': it is layer,")
    assert "no option 'casual'" in told[1]
    assert told[2].endswith("--layer 3: random has layer 0 only")
    assert told[3].endswith("option 'n_heads' cannot be 'many'")


def test_one_bad_item_does_not_stop_the_rest(run: Run) -> None:
    file = write("a.txt", "good", "", b"\xff", "far too many words", "good too")
    asked = ("batch", file, "-o", "out", "--max-tokens", "3", "--jobs", "1")
    result = run(*asked)
    assert result.code == 3
    assert result.err.splitlines() == [
        "attnctl: item 1 (a.txt, line 2): the text is empty",
        "attnctl: item 2 (a.txt, line 3): it is not UTF-8: byte 0xff at offset 0",
        "attnctl: item 3 (a.txt, line 4): 4 tokens: more than --max-tokens 3",
        "attnctl: 2 done, 3 failed: see out/manifest.jsonl",
    ]
    assert [entry["status"] for entry in manifest(Path("out"))] == ["done", "failed", "failed", "failed", "done"]
    assert manifest(Path("out"))[3]["error"] == "4 tokens: more than --max-tokens 3"
    again = run(*asked)
    assert again.code == 3 and "0 done, 5 finished before (3 of them failed)" in again.err
    strict = (*asked[:3], "strict", *asked[4:], "--strict")
    result = run(*strict)
    assert (result.code, result.err) == (1, "attnctl: item 1 (a.txt, line 2): the text is empty\n")
    assert check_whole(Path("strict")) == 1
    piped = run("batch", file, "--strict")
    assert (piped.code, piped.out.count("\n"), piped.err) == (1, 1, result.err)
    write("a.txt", "good", "mended", "good too")
    result = run(*strict)
    assert result.code == 0 and "2 done, 1 finished before" in result.err


def test_python_has_a_generator() -> None:
    came = []

    def texts() -> Any:
        for text in ("Alice eats", {"text": "Bob sleeps", "options": {"causal": True}}, "", "never"):
            came.append(text)
            yield text

    traces = attnctl.batch(texts(), model="random", n_heads=2, head=1)
    first = next(traces)
    assert came == ["Alice eats"], "it reads no further than it is asked to"
    alone = record_trace(attnctl.open_model("random", n_heads=2), "Alice eats", heads=[1])
    assert trace_to_json(first) == trace_to_json(replace(alone, number=0))
    assert next(traces).model.causal
    with pytest.raises(AttnctlError, match="text 2: the text is empty"):
        next(traces)


def test_options_of_a_text_change_the_model_that_was_given() -> None:
    """A path is a name like any other; a model that is opened already is not another one for a text."""
    weights = path_of("demo-causal")
    own = {"text": "Alice eats", "options": {"temperature": 2.0}}
    by_path, alone = next(attnctl.batch([own], model=weights)), attnctl.attend("Alice eats", weights, temperature=2.0)
    assert trace_to_json(by_path) == trace_to_json(replace(alone, number=0)) and by_path.model.name == alone.model.name
    opened = attnctl.open_model("random")
    with pytest.raises(AttnctlError, match="text 0: the options of one text do not change random, which is opened"):
        next(attnctl.batch([own], model=opened))
    chosen = next(attnctl.batch([{"text": "Alice eats", "options": {"head": 0}}], model=opened))
    assert chosen.model.name == "random"


def test_a_bar_on_a_terminal() -> None:
    child = spawned("batch", write("a.txt", *["Alice will eat pizza"] * 1000), "-o", "out", "--jobs", "1", columns=100)
    child.expect(r"[\d,]+ done, [\d,.]+ a second")
    child.expect("1,000 done: see")
    child.expect(pexpect.EOF)


@pytest.mark.parametrize("name", ["doc-7", 7])
def test_an_id_comes_out_of_every_format_as_it_went_in(run: Run, name: str | int) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    file, out = write("in.jsonl", json.dumps({"text": "Alice eats", "id": name})), Path("out")
    asked = ("--format", "json, npz,parquet,png,svg,pdf", "--jobs", "1")
    assert run("batch", file, "-o", out, *asked) == Result(0, "", f"attnctl: 1 done: see {out}/manifest.jsonl\n")
    assert check_whole(out) == 1
    (line,) = (out / "traces.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == name
    assert check_schema(json.loads(line)) == "trace"
    archive = attnctl.load(out / f"0000000-{name}.npz")
    assert archive.id == name and archive.to_json() == line
    assert {row["id"] for row in pq.read_table(out / "traces.parquet").to_pylist()} == {str(name)}
    for picture in (out / f"0000000-{name}.{form}" for form in ("png", "svg", "pdf")):
        assert f"; text {name}".encode() in picture.read_bytes(), picture
    (entry,) = manifest(out)
    assert (entry["id"], entry["number"], entry["status"], entry["tokens"]) == (name, 0, "done", 2)
    assert {file["file"] for file in entry["files"]} >= {f"0000000-{name}.png", "traces.jsonl"}
    again = run("batch", out / "traces.jsonl")  # a trace of a batch is read with its id, and drawn as its text was
    assert json.loads(again.out)["id"] == name
    assert run("batch", out / "traces.jsonl", "-o", "again", "--format", "svg", "--jobs", "1").code == 0
    drawn = f"0000000-{name}.svg"
    assert Path("again", drawn).read_bytes() == (out / drawn).read_bytes()
    assert [trace.id for trace in attnctl.batch([{"text": "Bob sleeps", "id": name}])] == [name]


def test_words_and_measures_are_those_of_the_other_commands(run: Run) -> None:
    text, model = "unbelievable pizza", ("--model", "random", "--tokenizer", "chars", "--heads", "2", "--layers", "2")
    file = write("in.txt", text)
    for asked in (
        ["--measure", "value-norm"],
        ["--words", "--measure", "rollout"],
        ["--words", "--measure", "value-zeroing"],
    ):
        ours = json.loads(run("batch", file, *model, *asked).out)
        assert check_schema(ours) == "trace"
        weights = [head["weights"] for layer in ours["layers"] for head in layer["heads"]]
        assert len(ours["tokens"]) == (2 if "--words" in asked else len(text))  # the space joins its neighbour
        assert len(weights) == (1 if "rollout" in asked else 2 if "value-zeroing" in asked else 4)
        alone = run("explain", text, *model, *asked, "--json").json
        assert weights[-1] == alone["layers"][-1]["heads"][-1]["weights"]
    trace = write("trace.jsonl", run("explain", text, *model, "--json").out.strip())
    refused = run("batch", trace, "--measure", "value-zeroing")
    assert refused.code == 3 and "give the text and its model, not random" in refused.err


def test_a_long_text_that_a_few_cells_drown_is_drawn_on_a_logarithmic_scale(run: Run) -> None:
    file = write("in.txt", " ".join(f"w{at % 7}" for at in range(600)))
    how = ("--format", "png", "--model", "random", "--scale", "4", "--causal", "--jobs", "1")
    pictures = []
    for option in ((), ("--log",), ("--no-log",)):
        assert run("batch", file, "-o", "out", "--replace", *how, *option).code == 0
        (picture,) = Path("out").glob("*.png")
        pictures.append(picture.read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]
