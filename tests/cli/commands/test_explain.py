"""`attnctl explain` from outside: options, pipes, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.conftest import SAMPLES, Refused, Run, process, spawned

TEXT = "Alice will eat pizza"


def test_several_queries_are_kept_in_the_order_that_is_asked_for(run: Run) -> None:
    narrow = run("explain", TEXT, "--model", "random", "-q", "2,text:Alice", "--steps", "weights", "--json").json
    assert narrow["layers"][0]["rows"] == [2, 0]
    rows = run("explain", "one two three four five " * 120, "-m", "random", "-q", "100,3", "--json").out.splitlines()
    assert [json.loads(row)["heads"][0]["query"] for row in rows] == [100, 3]


def test_json_is_one_valid_line(run: Run) -> None:
    result = run("explain", TEXT, "--model", "random", "--json", "--heads", "2")
    assert result.out.count("\n") == 1 and result.err == ""
    jsonschema.validate(result.json, json.loads(run("schema").out))
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
    seen, silent = spawned("explain", "a b c", PAGER="cat"), spawned("explain", "a b c", PAGER="cat", NO_COLOR="1")
    assert "\x1b[3" in seen.read()
    told = silent.read()
    assert "\x1b[3" not in told and "\x1b[48" not in told


def test_samples_are_explained(run: Run) -> None:
    asked = ("--model", SAMPLES / "journey.safetensors", "--query", "journey", "--precision", "4")
    shown = run("explain", "Your journey starts with one step", *asked)
    assert "1.8524" in shown.out and "0.2264" in shown.out and "0.8210" in shown.out


HEAVY = ("torch", "matplotlib", "transformers", "tokenizers", "pandas", "array_api_compat")
MODELS = ("attnctl.models.builtin.random", "attnctl.models.builtin.weights", "attnctl.models.huggingface.checkpoint")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ("numpy", "rich", "msgspec", *HEAVY)),
        (["explain", "--help"], ("numpy", "rich", "msgspec", *HEAVY)),
        (["explain", TEXT], ("msgspec", *HEAVY)),
        (["explain", TEXT, "--json"], ("rich", *HEAVY)),
        (["schema"], HEAVY),
        *((["heatmap", name, "-o", "a.png"], (*HEAVY[2:], "torch", "matplotlib.pyplot", *MODELS))
          for name in ("t.json", "t.npz", "w.npy")),
    ],
    ids=str,
)  # fmt: skip
def test_what_stays_unimported(arguments: list[str], absent: tuple[str, ...], room: Path) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['attnctl', *{arguments!r}]\n"
        "from attnctl.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        f"print([name for name in {absent!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=room)
    (room / "a.png").unlink(missing_ok=True)
    assert done.returncode == 0 and done.stderr.strip() == "[]", done.stderr


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
