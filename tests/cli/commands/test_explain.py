"""`attnctl explain` from outside: the numbers that it shows, options, pipes, files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest

from attnctl.render.forms import token_label
from tests.conftest import Refused, Run, process, spawned
from tests.tools.screen import cells, marked, rows_below, told

TEXT = "Alice will eat pizza"


def test_several_queries_are_kept_in_the_order_that_is_asked_for(run: Run) -> None:
    narrow = run("explain", TEXT, "--model", "random", "-q", "2,text:Alice", "--steps", "weights", "--json").json
    assert narrow["layers"][0]["rows"] == [2, 0]
    rows = run("explain", "one two three four five " * 120, "-m", "random", "-q", "100,3", "--json").out.splitlines()
    assert [json.loads(row)["heads"][0]["query"] for row in rows] == [100, 3]


def test_json_is_one_valid_line(run: Run) -> None:
    result = run("explain", TEXT, "--model", "random", "--json", "--heads", "2")
    assert result.out.count("\n") == 1 and result.err == ""
    jsonschema_rs.validate(json.loads(run("schema").out), result.json)
    asked = "--model random --json --heads 2 --head 1 --query eat --steps weights"
    narrow = run("explain", TEXT, *asked.split()).json
    (head,) = narrow["layers"][0]["heads"]
    assert set(head) == {"head", "kv_head", "weights"} and head["head"] == 1
    assert narrow["layers"][0]["rows"] == [2]
    assert head["weights"] == [result.json["layers"][0]["heads"][1]["weights"][2]]


def test_text_from_stdin_and_files(run: Run, refused: Refused) -> None:
    direct = run("explain", TEXT, "--json").out
    Path("t.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())  # with a byte-order mark
    for source in (["-"], ["--file", "t.txt"], ["--file", "-"]):
        assert run("explain", *source, "--json", stdin=TEXT.encode()).out == direct
    assert "UTF-8" in refused("explain", "\udcff\udcfe", "--model", "random")
    assert "standard input is not UTF-8" in refused("explain", "-", stdin=b"\xc3")


def test_a_full_disk_leaves_nothing() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    result = process("explain", TEXT, "--model", "random", "-o", "/dev/full", "--json")
    assert result.returncode != 0 and b"Traceback" not in result.stderr
    command = f"{sys.executable} -m attnctl explain '{TEXT}' --json > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"no space left" in done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    asked = f"explain '{TEXT} {TEXT} {TEXT}' --d-model 512 --model random --json"
    command = f"{sys.executable} -m attnctl {asked} | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert done.stdout == b'{"schema":' and done.stderr == b""


def test_color_only_where_it_belongs() -> None:
    plain = process("explain", TEXT, "--model", "random")
    assert b"\x1b" not in plain.stdout
    forced = process("explain", TEXT, "--model", "random", env=os.environ | {"FORCE_COLOR": "1"})
    assert b"\x1b[" in forced.stdout
    seen, silent = spawned("explain", "a b c"), spawned("explain", "a b c", NO_COLOR="1")
    assert "\x1b[3" in seen.read()
    told = silent.read()
    assert "\x1b[3" not in told and "\x1b[48" not in told


HEAVY = ("torch", "matplotlib", "transformers", "tokenizers", "pandas", "array_api_compat")
MODELS = ("attnctl.models.builtin.random", "attnctl.models.builtin.weights", "attnctl.models.huggingface.checkpoint")


@pytest.mark.parametrize(
    ("lines", "absent"),
    [
        ([["--help"]], ("numpy", "msgspec", "rich.markdown", "pygments", *HEAVY)),
        ([["explain", "--help"]], ("numpy", "msgspec", "markdown_it", "rich.traceback", *HEAVY)),
        ([["explain", TEXT]], ("msgspec", *HEAVY)),
        ([["explain", TEXT, "--json"]], ("rich", *HEAVY)),
        ([["schema"]], HEAVY),
        ([["heatmap", name, "-o", "a.png"] for name in ("t.json", "t.npz", "w.npy")],
         (*HEAVY[2:], "torch", "matplotlib.pyplot", *MODELS)),
    ],
    ids=str,
)  # fmt: skip
def test_what_stays_unimported(lines: list[list[str]], absent: tuple[str, ...], room: Path) -> None:
    """By any of the lines, which one process runs in turn."""
    code = (
        "import sys\n"
        "from attnctl.__main__ import main\n"
        f"for line in {lines!r}:\n"
        "    sys.argv = ['attnctl', *line]\n"
        "    try: main()\n"
        "    except SystemExit as stop: assert not stop.code, stop.code\n"
        f"    print([name for name in {absent!r} if name in sys.modules], line, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=room)
    (room / "a.png").unlink(missing_ok=True)
    assert done.returncode == 0 and done.stderr.count("[] ") == len(lines), done.stderr


SEVEN = "'Mary thanked Tom because he likes tea'"
KING = "'The king saw the queen and the prince' --drop king"
EVERY = "--heads 4 --kv-heads 2 --layers 2 --causal --rope-theta 10000 --dropout 0.1 --positions sinusoidal --temperature 2 --scale 0.3"
PARTS = ("queries", "keys", "values", "scores", "scaled_scores", "weights", "dropped_weights", "context")


@pytest.mark.parametrize(
    ("asked", "precision", "count"),
    [
        (f"'{TEXT}' -m dot --scale none", 3, 7),
        (f"'{TEXT}' -m random {EVERY} --window 3 --layer 1 --head 3 --seed 7", 3, 8),
        (f"'{TEXT}' -m random --causal --window 2 --temperature 0.5", 2, 7),
        (f"{SEVEN} --layer 0 --head 0", 2, 7),
        (f"{SEVEN} --layer 0 --head 1 --measure value-norm", 2, 1),
        (f"{SEVEN} --measure rollout", 2, 1),
        (f"{KING} --layer 1 --head 3", 2, 1),
        (f"{KING} --layer 0 --head 1 --renormalise", 3, 1),
        ("'tall pizzas' --tokenizer chars -m random --words", 2, 1),
        ("Alice -m random", 2, 7),
        ("t.json --layer 1 --head 0", 2, 7),
        ("w.npy --head 1", 2, 1),
        ("'w9 w17' -m llama --layer 1 --head 2", 2, 7),
        ("'w9 w17' -m bert --layer 0 --head 1", 2, 7),
    ],
)
def test_a_walk_shows_each_matrix_whole(
    asked: str, precision: int, count: int, run: Run, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns, its rows in the order of the tokens, its numbers rounded and its masked places as dots."""
    if "llama" in asked or "bert" in asked:
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    monkeypatch.chdir(room)
    words = [*shlex.split(asked), "--steps", "queries,keys,values,scores,scaled,mask,weights,dropout,context"]
    document = run("explain", *words, "--json").json
    screen = run("explain", *words, "--precision", str(precision), columns=200).out
    (layer,) = document["layers"]
    (head,) = layer["heads"]
    queries = [token_label(token["text"]) for token in document["tokens"]]
    keys = [token_label(token["text"]) for token in document.get("key_tokens", document["tokens"])]
    parts = [name for name in PARTS if name in head]
    assert len(parts) == count
    for name in parts:
        matrix, heading = head[name], list(map(str, range(len(head[name][0]))))
        if "weights" in name:
            sums = [[sum(row)] for row in matrix]
            seen = layer.get("mask", [[True] * len(keys)] * len(queries))
            masked = [[w if s else None for w, s in zip(*pair, strict=True)] for pair in zip(matrix, seen, strict=True)]
            matrix, heading = [a + b for a, b in zip(masked, sums, strict=True)], [*keys, "Σ"]
        elif "scores" in name:
            heading = keys
        wanted = [[label, *told(row, f".{precision}f")] for label, row in zip(queries, matrix, strict=True)]
        lines = cells(screen)
        assert any(lines[at] == heading and lines[at + 1 :][: len(wanted)] == wanted for at in range(len(lines))), (
            name,
            wanted,
        )


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ("--query because", ["because"]),
        ("-q eat,-1", ["eat", "pizza"]),
        ("-q 0 --layer 1 --head 2", ["Alice"]),
        ("-q -2 --drop first", ["eat"]),
    ],
)
def test_the_row_that_is_asked_for_is_marked_and_worked_out(asked: str, rows: list[str], run: Run) -> None:
    text = "Mary thanked Tom because he likes tea" if rows == ["because"] else TEXT
    screen = run("explain", text, *asked.split(), "--steps", "scores,weights,summary").out
    assert marked(screen) == rows
    worked = [line.strip().split()[0] for line in screen.splitlines() if line.endswith(":") or ": " in line]
    assert [word for word in rows if word in worked] == rows


def test_steps_are_those_asked_for_in_their_order(run: Run) -> None:
    names = ("tokens", "embeddings", "queries", "rope", "scores", "scaled", "mask", "weights", "context", "output")
    titles = {"queries": "queries, keys, values", "rope": "rotary positions", "scaled": "scaled scores"}
    for asked in (sorted(names), ["weights", "scores", "tokens"], ["context"]):
        screen = run("explain", TEXT, "--steps", ",".join(asked), "--layer", "0", "--head", "0").out
        places = {name: re.search(rf"^ *\d+  {titles.get(name, name)}(  |$)", screen, re.M) for name in names}
        starts = [place.start() for place in places.values() if place]
        assert starts == sorted(starts) and {name for name in names if places[name]} == set(asked)


@pytest.mark.parametrize(
    ("asked", "at"),
    [
        (SEVEN, 4),
        ("'the cat the dog the cow'", 2),
        ("'a b' -m dot --scale 30", 0),
        (f"'{TEXT}' -m random --temperature 0.5", 1),
    ],
)
def test_the_arithmetic_of_a_row_is_right(asked: str, at: int, run: Run) -> None:
    """Products, exponentials, shares and the weighted values, each worked out here from the JSON's matrices."""
    words = shlex.split(f"{asked} --layer 0 --head 0")
    screen = run("explain", *words, "-q", str(at), "--steps", "scores,scaled,weights,context", columns=200).out
    document = run("explain", *words, "--json").json
    layer = document["layers"][0]
    head, names = layer["heads"][0], [token["text"] for token in document["tokens"]]
    labels = [f"{name} ({j})" if names.count(name) > 1 else name for j, name in enumerate(names)]
    seen = [j for j in range(len(names)) if layer.get("mask", [[True] * len(names)] * len(names))[at][j]]
    for j in seen:
        score = re.escape(told([np.dot(head["queries"][at], head["keys"][j])])[0])
        assert re.search(rf"^ *{re.escape(labels[j])} .*= +{score}$", screen, re.M), (labels[j], score)
    scaled = np.array(head["scaled_scores"][at])[seen] / (0.5 if "--temperature" in asked else 1)
    raised = np.exp(scaled - (scaled.max() if scaled.max() > 9 else 0))
    shares = raised / raised.sum()
    lines = cells(screen)
    for j, *numbers in zip(seen, scaled, raised, shares, strict=True):
        assert [labels[j], *told(numbers)] in lines
    assert ["Σ", *told([raised.sum(), 1])] in lines
    values = np.array(head["values"])
    gathered = [[f"{w:.2f} × {labels[j]}", *told(w * values[j])] for j, w in zip(seen, shares, strict=True)]
    assert [line for line in lines if " × " in line[0] and line in gathered] == gathered
    assert ["Σ context", *told(shares @ values[seen])] in lines


@pytest.mark.parametrize(
    ("text", "model"), [(TEXT, "demo"), ("Hello", "demo"), (TEXT, "demo-causal"), (TEXT, "random")]
)
def test_the_summary_tells_the_largest_weights_of_each_row(text: str, model: str, run: Run) -> None:
    words = (text, "--model", model, "--layer", "0", "--head", "0")
    screen = run("explain", *words, "--steps", "summary", columns=200).out
    document = run("explain", *words, "--json").json
    shares = {tuple(re.findall(r"\d+(?= %)", line)) for line in screen.splitlines()}
    for row in document["layers"][0]["heads"][0]["weights"]:
        largest = [f"{100 * weight:.0f}" for weight in sorted(row, reverse=True)]
        assert any(found == tuple(largest[: len(found)]) for found in shares if found), largest


def test_tokens_are_numbered_and_unknown_ones_marked(run: Run) -> None:
    words = ("the cat the 猫 xyzzy", "--steps", "tokens")
    found = run("explain", *words)
    ids = [token["id"] for token in run("explain", *words, "--json").json["tokens"]]
    labels = ["the", "cat", "the", "猫†", "xyzzy†"]
    wanted = [[str(at), label, str(id_)] for at, (label, id_) in enumerate(zip(labels, ids, strict=True))]
    assert rows_below(found.out, ["index", "token", "id"]) == wanted and ids[3] == ids[4] and ids[0] == ids[2]
    assert "(†): 猫, xyzzy" in found.err


def test_contributions_are_listed_by_size_with_what_each_token_gives(run: Run) -> None:
    text = "Alice will ____ pizza"
    screen = run("contributions", text, columns=120).out
    parts = run("contributions", text, "--json").json["contributions"]["parts"]
    heads = sorted((part for part in parts if "head" in part), key=lambda part: -abs(part["value"]))
    lines = rows_below(screen, ["strongest parts", "writes", "from"])[:10]
    wanted = [[f"head {part['head']} of layer {part['layer']}", f"{part['value']:+.3f}"] for part in heads[:10]]
    assert [line[:2] for line in lines] == wanted and "\n2 more parts write less" in screen
    for line in lines:
        given = [float(cell.rpartition(" ")[2]) for cell in line[2:]]
        assert given == sorted(given, key=lambda x: -abs(x)) and sum(given) == pytest.approx(float(line[1]), abs=0.03)


def test_a_query_whose_keys_are_all_left_out_looks_at_none(run: Run) -> None:
    """The table of its keys had no column, and ended in a traceback."""
    model = ("--model", "random", "--heads", "2", "--causal", "--drop", "first")
    alone = run(
        "explain", "Alice will eat pizza", *model, "--query", "Alice", "--top", "3", "--layer", "0", "--head", "0"
    )
    assert alone.code == 0 and "layer 0, head 0   looks at no key that is left" in alone.out
    assert "entropy" not in alone.out and "nan" not in alone.out
    both = run("explain", "Alice will eat pizza", *model, "--query", "Alice,eat", "--top", "3")
    assert both.code == 0 and both.out.count("looks at no key") == 2 and both.out.count("entropy") == 2


def test_steps_without_arrays_leave_no_empty_heads(run: Run, tmp_path: Path) -> None:
    """Whoever reads `layers` and `heads` meets only those with numbers; a trace without any is refused by other commands."""
    asked = ("explain", "a b c", "--model", "random", "--causal", "--json")
    assert run(*asked, "--steps", "summary").json["layers"] == []
    (layer,) = run(*asked, "--steps", "mask").json["layers"]
    assert layer["heads"] == [] and len(layer["mask"]) == 3
    (tmp_path / "t.json").write_text(run(*asked, "--steps", "summary").out)
    for command in ("heatmap", "heads", "explain"):
        refused = run(command, tmp_path / "t.json")
        assert refused.code == 1 and "this trace holds no weights" in refused.err


@pytest.mark.parametrize(
    ("chosen", "heads"),
    [("", 1), ("--head 3", 1), ("--layer all", 2), ("--head 0,3", 4), ("--query eat,pizza", 2), ("--head all", 12)],
)
def test_chosen_steps_are_those_of_one_head_unless_more_are_asked_for(chosen: str, heads: int, run: Run) -> None:
    """A head of layer 0 came first, and nothing said why."""
    words = ["--query", "eat", *shlex.split(chosen)]
    screen = run("explain", TEXT, *words, "--steps", "weights").out
    assert screen.count("── layer") == heads
    line = run("explain", TEXT, "--query", "eat", "--json").json["headline"]
    assert heads > 2 or "--head" in chosen or f"── layer {line['layer']}, head {line['head']}" in screen


def test_three_underscores_or_more_are_a_blank(run: Run) -> None:
    asked = [run("explain", f"Alice will eat {blank}", "--json").json for blank in ("____", "___", "_______", "__")]
    assert [[one["text"] for one in trace.get("predictions", [])] for trace in asked[1:3]] == [
        [one["text"] for one in asked[0]["predictions"]]
    ] * 2
    assert "predictions" not in asked[3] and asked[1]["tokens"][3]["text"] == "___"


def test_words_without_quotes_are_a_text_and_a_line_of_json_is_said(run: Run) -> None:
    assert run("explain", "Alice", "will", "eat", "--json").out == run("explain", "Alice will eat", "--json").out
    assert run("explain", "Alice will", "eat", "--json").out == run("explain", "Alice will eat", "--json").out
    line = b'{"text": "Alice will eat"}\n'
    for command in ("explain", "heatmap", "heads"):
        piped = run(command, "-", "--model", "random", stdin=line)
        assert piped.code == 0 and "the input is JSON but no trace" in piped.err and "attnctl batch" in piped.err
    assert run("explain", line.decode(), "--model", "random").err == ""
    assert run("explain", "-", "--model", "random", stdin=b"{Alice} eats").err == ""


@pytest.mark.parametrize("dtype", ["float32", "auto"])
@pytest.mark.parametrize("model", ["demo", "random", "dot"])
def test_built_in_models_take_the_type_that_they_compute_in(run: Run, model: str, dtype: str) -> None:
    usual = run("explain", "Alice will eat", "--model", model, "--json")
    assert usual.json["model"]["dtype"] == "float32"
    assert run("explain", "Alice will eat", "--model", model, "--dtype", dtype, "--json") == usual
