"""One way through every command, whatever the source: a text, a trace in a file or a pipe, an overview, a matrix."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Refused, Run

TEXT = "one two three. four five six. seven eight nine. ten eleven twelve."
MODEL = ("--model", "random", "--heads", "2", "--layers", "2", "--causal", "--d-model", "16")


def grids(out: str) -> Any:
    """The numbers of a tab-separated grid; a hidden cell is 0."""
    return np.array([[float(cell or 0) for cell in line.split("\t")[4:]] for line in out.splitlines()[1:]])


@pytest.fixture
def sources(run: Run) -> list[tuple[tuple[str, ...], bytes]]:
    """The same attention as a text, a trace (.json, .npz, a pipe), a matrix: arguments and standard input."""
    run("explain", TEXT, *MODEL, "-o", "run.json")
    run("explain", TEXT, *MODEL, "-o", "run.npz")
    trace = run("explain", TEXT, *MODEL, "--json")
    weights = [[head["weights"] for head in layer["heads"]] for layer in trace.json["layers"]]
    np.save("w.npy", np.asarray(weights, np.float32))
    tokens = " ".join(token["text"] for token in trace.json["tokens"])
    piped = (("-",), trace.out.encode())
    return [
        ((TEXT, *MODEL), b""),
        (("run.json",), b""),
        (("run.npz",), b""),
        piped,
        (("w.npy", "--tokens", tokens), b""),
    ]


@pytest.mark.parametrize(
    "options",
    ["--layer 1 --head 0", "--rows 4-8 --columns 1-5", "--pool max", "--drop . --rows 2-11", "--measure rollout", "--words"],
)  # fmt: skip
def test_heatmap_reads_every_source_alike(options: str, run: Run, sources: Any) -> None:
    """Options that change the weights stand in tests/test_changes.py."""
    wanted = None
    for arguments, stdin in sources:
        result = run("heatmap", *arguments, *options.split(), stdin=stdin)
        assert result.code == 0, (arguments, result)
        wanted = grids(result.out) if wanted is None else wanted
        np.testing.assert_allclose(grids(result.out), wanted, rtol=1e-4, atol=1e-6, err_msg=str(arguments))


def test_heads_of_every_source_are_alike(run: Run, sources: Any) -> None:
    found = [run("heads", *arguments, "--json", stdin=stdin).json["heads"] for arguments, stdin in sources]
    for other in found[1:]:
        # a matrix says nothing of what was hidden
        masked = {"entropy_share", "next", "duplicate", "induction", "names"} if other is found[-1] else {"names"}
        masked |= {name for name in found[0][0] if "logit" in name} if other is found[-1] else set()  # nor of scores
        for one, two in zip(found[0], other, strict=True):
            for name in one.keys() - masked:
                assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5), name


def test_one_row_and_the_strongest_links_of_every_source(run: Run, sources: Any) -> None:
    rows, links = [], []
    for arguments, stdin in sources:
        shown = run("explain", *arguments, "--query", "seven", "--top", "3", "--head", "1", stdin=stdin, columns=120)
        assert shown.code == 0, shown
        rows.append([line.split()[:2] for line in shown.out.splitlines() if line.strip()[:2] == "0."])
        found = run("explain", *arguments, "--top", "2", "--json", stdin=stdin).json["heads"]
        links.append([[key for key, _ in query] for head in found for query in head["links"]])
    assert len(rows[0]) >= 3
    for row, link in zip(rows[1:], links[1:], strict=True):
        assert row[:3] == rows[0][:3]
        assert [at[:1] for at in link] == [at[:1] for at in links[0]]


def test_a_trace_is_walked_through_as_its_text_is(run: Run, sources: Any) -> None:
    direct = run("explain", TEXT, *MODEL, "--layer", "1", "--head", "0", "--query", "nine")
    again = run("explain", *sources[1][0], "--layer", "1", "--head", "0", "--query", "nine")
    assert again == direct and direct.code == 0


def test_an_overview_gives_what_it_holds(run: Run) -> None:
    text = " ".join(f"word{at % 40}" for at in range(600))
    run("explain", text, *MODEL, "--json", "--top", "3", "-o", "links.json")
    run("heads", text, *MODEL, "-o", "heads.json")
    fewer = run("explain", "links.json", "--json", "--top", "2", "--head", "1").json["heads"]
    assert len(fewer) == 2 and max(len(query) for head in fewer for query in head["links"]) == 2
    direct = run("heads", text, *MODEL, "--csv").out
    assert run("heads", "links.json", "--csv").out == run("heads", "heads.json", "--csv").out == direct


def test_compare_reads_the_weights_as_the_others_do(run: Run) -> None:
    plain = run("compare", "random", "dot", TEXT, "--json").json["layers"][0]["heads"][0]
    left = run("compare", "random", "dot", TEXT, "--drop", "first", "--renormalise", "--json").json
    rows = np.asarray(plain["a"])[:, 1:]
    np.testing.assert_allclose(left["layers"][0]["heads"][0]["a"], rows / rows.sum(-1, keepdims=True), rtol=1e-5)
    assert len(left["key_tokens"]) == len(left["tokens"]) - 1


LIMITED = """
import resource, sys
from attnctl.cli.app import run_command_line
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
for options in ("", "--rows 5029-5068 --columns 100-159"):
    sys.argv = ["attnctl", "heatmap", "big.npy", *options.split()]
    try:
        run_command_line()
    except SystemExit as end:
        assert not end.code, end.code
"""


def test_a_matrix_larger_than_the_memory_is_drawn() -> None:
    n = 12_000  # 576 MB, of which most is a hole in the file, in a process that may have 537 MB
    whole = np.lib.format.open_memmap("big.npy", "w+", np.float32, (n, n))
    whole[5029:5069, 100] = 0.5
    whole.flush()
    command = [sys.executable, "-c", LIMITED]
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines(keepends=True)
    found, part = (grids("".join(some)) for some in (lines[:257], lines[257:]))
    assert found.shape == (256, 256) and found.max() == pytest.approx(0.5 / 47 * 40 / 47, rel=1e-4)
    assert np.unravel_index(found.argmax(), found.shape) == (5029 // 47, 100 // 47)
    assert part.shape == (40, 60)
    np.testing.assert_allclose(part[:, 0], 0.5)


def test_a_large_matrix_has_heads_and_rescaled_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("w.npy", np.random.default_rng(0).dirichlet(np.ones(40), size=(2, 40)).astype(np.float32))
    commands = (
        "heads w.npy --csv",
        "heatmap w.npy --drop 3 --renormalise",
        "explain w.npy --top 3 --json",
        "explain w.npy --query 7 --top 3",
    )
    plain = [run(*command.split()) for command in commands]
    monkeypatch.setattr("attnctl.inputs.MAPPED_BYTES", 100)
    assert [run(*command.split()) for command in commands] == plain and all(result.code == 0 for result in plain)


def test_a_damaged_large_matrix_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.inputs.MAPPED_BYTES", 100)
    weights = np.full((40, 40), 1 / 40, np.float32)
    np.save("w.npy", weights)
    Path("short.npy").write_bytes(Path("w.npy").read_bytes()[:-8])
    Path("none.npy").write_bytes(b"\x93NUMPY" + bytes(200))
    weights[3, 5] = np.nan
    np.save("nan.npy", weights)
    assert "ends before its 40×40 numbers do" in refused("heatmap", "short.npy")
    assert "not a sound .npy file" in refused("heatmap", "none.npy")
    assert "every number must be finite" in refused("heatmap", "nan.npy")


def test_a_file_is_what_it_holds_whatever_it_is_called(run: Run, room: Path) -> None:
    held = {"table": b"1,0,0\n0,1,0\n0,0,1\n"}
    np.savez("w.npz", weights=np.eye(3, dtype=np.float32))
    held |= {name: (room / name).read_bytes() for name in ("w.npy", "t.json", "t.npz")}
    held["w.npz"] = Path("w.npz").read_bytes()
    for suffix in ("", ".npy", ".npz", ".txt", ".csv", ".dat", ".json"):
        for name, data in held.items():
            if name == "table" and suffix in ("", ".txt", ".json", ".dat"):
                continue  # words and numbers may be a text
            Path(f"lying{suffix}").write_bytes(data)
            shown = run("heatmap", f"./lying{suffix}")
            assert shown.code == 0 and shown.out.startswith("layer\thead"), (name, suffix, shown.err)
    parts = {name: np.ones((2, 3), np.float32) for name in "QKV"}
    np.savez("it.npz", **parts)
    Path("it.npz").rename("w.csv")
    save_file(parts, "w.npz")
    for name in ("w.csv", "w.npz"):
        assert run("explain", "two words", "--qkv", name, "--json").code == 0


def test_rows_given_outright_need_no_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    np.savez("rows.npz", **{name: rng.normal(size=(3, 4)) for name in "QKV"})
    bare, named = (run("explain", *text, "--qkv", "rows.npz", "--json").json for text in ((), ("a b c",)))
    assert [token["text"] for token in bare["tokens"]] == ["0", "1", "2"] and bare["layers"] == named["layers"]
    monkeypatch.setenv("ATTNCTL_MODEL", "random")
    monkeypatch.setenv("ATTNCTL_N_LAYERS", "2")
    assert run("explain", "--qkv", "rows.npz", "--json").json["model"] == bare["model"]
    made = run("shell", "a b c", "--model", "random", stdin=b"explain --qkv rows.npz --json\n")
    assert made.json["layers"] == bare["layers"]


@pytest.mark.parametrize(
    "table", [";,1,0\na,0.5,0.5\n", "a,1,0\n;,0.5,0.5\n", '";",1,0\n"\t",0.5,0.5\n', ";\t1\t0\na,b\t0.5\t0.5\n"]
)
def test_a_token_of_a_matrix_may_be_a_mark_between_cells(run: Run, table: str) -> None:
    Path("mine.csv").write_text(table)
    for source, stdin in (("mine.csv", b""), ("-", table.encode())):
        np.testing.assert_array_equal(grids(run("heatmap", source, stdin=stdin).out), [[1, 0], [0.5, 0.5]])


def test_a_trace_in_utf_16_is_read_as_shells_of_windows_write_it(run: Run) -> None:
    told = run("explain", "either/or", "--model", "random", "--json")
    Path("t.json").write_bytes(told.out.encode("utf-16"))
    shown = run("heatmap", "t.json")
    assert shown.code == 0 and shown.out == run("heatmap", "-", stdin=told.out.encode()).out


def named_axes(run: Run, *args: str) -> tuple[list[str], list[str]]:
    """The names of rows and columns in the trace of bare weights, which heatmap draws too."""
    trace, drawn = run("explain", *args, "--json"), run("heatmap", *args)
    rows = [token["text"] for token in trace.json["tokens"]]
    columns = [token["text"] for token in trace.json.get("key_tokens", trace.json["tokens"])]
    header, *lines = [line.split("\t") for line in drawn.out.splitlines()]
    assert [line[3] for line in lines] == rows
    assert header[4:] == [f"{at}:{name}" for at, name in enumerate(columns)]
    return rows, columns


def test_a_matrix_has_names_for_rows_and_for_columns(run: Run) -> None:
    """The words of a translation stand in rows, those of its source in columns, in a square as well."""
    wide, square = np.full((2, 3), 1 / 3), np.eye(3)
    en, fr = ["the", "black", "cat"], ["le", "chat", "noir"]
    for grid in (wide, square):
        rows = en[: len(grid)]
        names = ("--tokens", " ".join(rows), "--key-tokens", " ".join(fr))
        np.save("w.npy", grid)
        np.savez("w.npz", weights=grid, tokens=rows, key_tokens=fr)
        lines = [",".join([name, *map(str, line)]) for name, line in zip(rows, grid, strict=True)]
        Path("w.csv").write_text("\n".join([",".join(["", *fr]), *lines]))
        for args in (["w.npy", *names], ["w.npz"], ["w.csv"]):
            assert named_axes(run, *args) == (rows, fr), args
        assert named_axes(run, "w.csv", "--key-tokens", '["a", "b c", "d"]') == (rows, ["a", "b c", "d"])
        assert named_axes(run, "w.csv", "--tokens", " ".join("xyz"[: len(grid)])) == (list("xyz"[: len(grid)]), fr)
    np.save("w.npy", wide)
    assert named_axes(run, "w.npy", "--tokens", "le chat noir") == (["0", "1"], fr)
    Path("w.csv").write_text("a,b\n0.5,0.5\n0.1,0.9\n")  # one list for the two axes of a square
    assert named_axes(run, "w.csv") == (["a", "b"], ["a", "b"])
    assert named_axes(run, "w.csv", "--tokens", "c d") == (["c", "d"], ["c", "d"])


def test_columns_are_named_in_every_form(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("w.csv").write_text(",le,chat,noir\nthe,0.7,0.2,0.1\nblack,0.1,0.1,0.8\ncat,0.05,0.9,0.05\n")
    for command, out in (("heatmap", "w.svg"), ("view", "w.html"), ("heatmap", "w.json")):
        assert run(command, "w.csv", "-o", out).code == 0
        written = Path(out).read_text()
        assert all(word in written for word in ("the", "black", "cat", "le", "chat", "noir")), out
    monkeypatch.setattr("attnctl.inputs.MAPPED_BYTES", 0)  # as a large file, whose rows are read when they are needed
    np.save("w.npy", np.eye(3))
    assert named_axes(run, "w.npy", "--tokens", "the black cat", "--key-tokens", "le chat noir")[1][0] == "le"


def test_the_attentions_of_transformers_are_read_stacked(run: Run, refused: Refused, monkeypatch: Any) -> None:
    """np.stack(out.attentions) has an axis for the texts of the batch: one text is no axis."""
    rng = np.random.default_rng(0)
    stacked = rng.dirichlet(np.ones(4), (3, 1, 2, 4)).astype(np.float32)  # (layers, 1, heads, n, n)
    np.save("w.npy", stacked)
    np.savez("w.npz", attentions=stacked)
    np.save("two.npy", np.repeat(stacked, 2, 1))
    choice = ("--layer", "2", "--head", "1")
    for mapped in (1 << 20, 0):
        monkeypatch.setattr("attnctl.inputs.MAPPED_BYTES", mapped)
        for name in ("w.npy", "w.npz"):
            np.testing.assert_allclose(grids(run("heatmap", name, *choice).out), stacked[2, 0, 1], rtol=1e-5)
        said = refused("heatmap", "two.npy")
        assert "(layers, batch, heads, n, n) = (3, 2, 2, 4, 4)" in said and "array[:, 0]" in said


@pytest.mark.parametrize("kind", ["stacked", "a tuple", "of old", "queries, keys and values"])
def test_the_line_that_converts_a_file_of_torch_does_it(kind: str, run: Run, refused: Refused) -> None:
    torch = pytest.importorskip("torch")
    layers = torch.softmax(torch.randn(2, 1, 3, 4, 4, generator=torch.manual_seed(0)), -1)
    name = "it's$HOME.pt"
    if kind == "queries, keys and values":
        torch.save({part: layers[0, 0, :, :, :2].clone() for part in "QKV"}, name)
        arguments, choice = ["a b c d", "--qkv"], ["--head", "1"]
        rows = layers[0, 0, 1, :, :2]
        wanted = torch.softmax(rows @ rows.T / 2**0.5, -1)
    else:
        value = {"stacked": layers.requires_grad_(), "a tuple": tuple(layers.half())}.get(kind, layers.detach())
        torch.save(value, name, _use_new_zipfile_serialization=kind != "of old")
        arguments, choice = [], ["--layer", "1", "--head", "2"]
        wanted = layers.detach()[1, 0, 2]
    line = refused("heatmap", *arguments, name).partition("convert it: python ")[2]
    shell = [
        "sh",
        "-c",
        f"printf '%s\\0' {line}",
    ]  # which says what a shell makes of it; another Python would import torch
    option, program, end = subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split("\0")
    assert (option, end) == ("-c", "")
    exec(program, {})
    made = f"{name[:-3]}{'.safetensors' if arguments else '.npy'}"
    np.testing.assert_allclose(grids(run("heatmap", *arguments, made, *choice).out), wanted, atol=1e-3)


def test_a_pickle_is_refused_wherever_numbers_are_read(refused: Refused, run: Run) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.eye(2), "w.pt")
    Path("w.pkl").write_bytes(pickle.dumps(np.eye(2)))
    for name, remedy in (("w.pt", "torch.load("), ("w.pkl", "numpy.save"), ("./w.pt", "torch.load(")):
        for line in ([name], ["a b", "-m", "dot", "--embeddings", name], ["a b", "--qkv", name], ["a b", "-m", name]):
            said = refused("heatmap", *line)
            assert "is pickled, which attnctl never reads" in said and remedy in said, line
        assert "never reads" in refused("compare", name, name) and "never reads" in refused("view", name, "-o", "-")
        assert "never reads" in refused("heatmap", "-", stdin=Path(name).read_bytes())
    assert "is a file of numbers" in refused("ablate", "w.pt", code=2)
    assert "cannot read none.pt" in refused("heatmap", "none.pt")


def test_what_attnctl_wrote_is_no_text_of_file(
    run: Run, refused: Refused, sources: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace behind --file was read as a text of thousands of tokens, and the note said that it is no trace."""
    trace = Path("run.json").read_bytes()
    Path("sorted.json").write_text(json.dumps(json.loads(trace), sort_keys=True, indent=1))
    Path("two.jsonl").write_bytes(trace.strip() + b"\n" + trace)
    Path("card.json").write_text(run("model", "demo", "--json").out)
    run("heatmap", TEXT, *MODEL, "-o", "overview.json")
    for name, words in {
        "run.json": "run.json is a trace, not a text: attnctl explain run.json reads it",
        "sorted.json": "attnctl explain sorted.json reads it",
        "two.jsonl": "attnctl explain two.jsonl reads it",
        "run.npz": "run.npz is a file of numbers, not a text: attnctl explain run.npz reads it",
        "w.npy": "attnctl explain w.npy reads it",
        "overview.json": "overview.json is an overview, not a text: attnctl heatmap overview.json reads it",
        "card.json": "card.json is a document of attnctl (attnctl.card/1), not a text: attnctl.load",
    }.items():
        for command in ("explain", "heads", "ablate"):
            assert words in refused(command, "--file", name, code=2), (command, name)
        if name not in ("two.jsonl", "card.json"):  # the command that the line names reads it
            assert run("heatmap" if name == "overview.json" else "explain", name).code == 0
    for command, argument in (("explain", ("--file", "-")), ("ablate", ("-",))):
        line = refused(command, *argument, stdin=trace, code=2)
        assert "standard input is a trace, not a text: attnctl explain - reads it" in line
    monkeypatch.setattr("attnctl.checks.limits.TEXT_BYTES", len(trace) - 1)
    assert "run.json is a trace" in refused("explain", "--file", "run.json", code=2)


def test_a_trace_with_sorted_keys_is_that_trace(run: Run, sources: Any) -> None:
    """Its weights were read as bare ones, with rows named after whole tokens: "{'end': 3, …"."""
    piped = json.dumps(json.loads(Path("run.json").read_bytes()), sort_keys=True).encode()
    Path("sorted.json").write_bytes(piped)
    wanted = run("explain", "run.json", "--csv").out
    assert run("explain", "sorted.json", "--csv").out == run("explain", "-", "--csv", stdin=piped).out == wanted


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": {"type": "object"}, "text": "Alice"}',
        '{"text": "{\\"schema\\": \\"attnctl.trace/1\\"}"}',
        "PK means foot",
    ],
)
def test_other_json_is_a_text_of_file(text: str, run: Run) -> None:
    Path("other.json").write_text(text)
    assert run("explain", "--file", "other.json", "--model", "random", "--json").json["text"] == text
