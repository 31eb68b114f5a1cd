"""`attnctl leaks`: what it writes, and its exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from attnctl.cli.app import run_command
from tests.conftest import Run, check_schema
from tests.tools.screen import rows_below

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
from safetensors.numpy import save_file

IDS, PLACES = np.arange(20, 31)[None], np.array([[*range(4), *range(7)]])
BATCH = {"input_ids": IDS, "position_ids": PLACES}
ONES = np.ones_like(IDS)


@pytest.fixture
def model(room: Path) -> str:
    return str(room / "llama")


def test_every_kind_of_file_tells_the_same(run: Run, model: str) -> None:
    for batch, code in ((BATCH, 0), (BATCH | {"attention_mask": ONES}, 4)):
        save_file(batch, "a.safetensors")
        np.savez("a.npz", **batch)
        Path("a.json").write_text(json.dumps({name: array.tolist() for name, array in batch.items()}))
        told = [run("leaks", f"a.{kind}", "--model", model, "--json") for kind in ("safetensors", "npz", "json")]
        assert {(one.code, one.out) for one in told} == {(code, told[0].out)}
        assert check_schema(told[0].json) == "leaks"
        assert [pair["state"] for pair in told[0].json["pairs"]].count("leak") == bool(code)


def test_segments_and_expectations(run: Run, model: str) -> None:
    owners = [[0] * 4 + [1] * 7]
    Path("a.json").write_text(json.dumps({"input_ids": IDS.tolist(), "segments": owners}))
    Path("seen.csv").write_text("1,0\n1,1\n")
    Path("seen.json").write_text("[[1, 0], [1, 1]]")
    codes = {
        expect: run("leaks", "a.json", "--model", model, "--expect", expect).code
        for expect in ("segments", "causal", "prefix 2", "seen.csv", "seen.json")
    }
    assert codes == {"segments": 4, "causal": 0, "prefix 2": 4, "seen.csv": 0, "seen.json": 0}


@pytest.mark.parametrize("kind", ["png", "svg", "txt", "html", "json"])
def test_a_file_of_each_kind_is_written(kind: str, run: Run, model: str, room: Path) -> None:
    made = run("leaks", str(room / "packed.json"), "--model", model, "-o", f"a.{kind}")
    assert made.code == 4 and made.out == "" and Path(f"a.{kind}").stat().st_size > 500


def test_packed_texts(run: Run, model: str, room: Path) -> None:
    made = run("leaks", "Alice will eat", "Bob likes tea", "a b", "--pack", "--model", model)
    assert made.code == 0 and "3 segments, expected apart: all are apart" in made.out
    assert made.err.startswith("attnctl: note: Measured with use_cache=False")
    assert run("leaks", "Alice will eat", "Bob likes tea", "--pack", "--model", str(room / "t5")).code == 4


def test_what_fills_the_memory_is_no_leak(run: Run, model: str, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("attnctl.commands.leaks.compute.NetworkLeaks.outputs", full)
    made = run("leaks", str(room / "packed.json"), "--model", model)
    assert made.code == 1 and made.err == "attnctl: not enough memory: ask for less\n"


@pytest.mark.parametrize(
    ("asked", "leaks", "cause"),
    [
        (("packed.json", "-m", "llama"), [(1, 0)], "position_ids restart, but with a 2-D attention_mask"),
        (
            ("Alice will eat", "pizza at", "--pack", "-m", "bert"),
            [(0, 1), (1, 0)],
            "this model makes no mask from position_ids",
        ),
        (("padded.json", "-m", "llama"), [], ""),
    ],
)
def test_the_three_tables_hold_the_numbers_of_the_pairs(
    asked: tuple[str, ...],
    leaks: list[tuple[int, int]],
    cause: str,
    run: Run,
    room: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(room)
    made, document = run("leaks", *asked, columns=100), run("leaks", *asked, "--json").json
    assert made.code == (4 if leaks else 0)
    pairs = {(pair["query"], pair["key"]): pair for pair in document["pairs"]}
    assert [at for at, pair in pairs.items() if pair["state"] == "leak"] == leaks
    for name, key in (("may:", "visible"), ("does:", "largest"), ("matters:", "change")):
        heading = ["looks ↓ at →", "0", "1"] if leaks else ["looks ↓ at →", "0.0", "0.padding"]
        for query, line in enumerate(rows_below(made.out.partition(name)[2], heading)[: 2 if leaks else 1]):
            for k, cell in enumerate(line[1:]):
                pair = pairs.get((query, k), {})
                number = pair.get(key, 0)
                number = max(number) if isinstance(number, list) else number
                own = key == "change" and query == k and "bert" in asked
                assert cell == ("·" if own else f"{number:.2f}" if number else "0"), (name, query, k)
    told = " ".join(made.out.split())
    for query, key in leaks:
        pair = pairs[query, key]
        assert f"Segment {query} sees segment {key} from layer {pair['first_layer']} on, up to {100 * pair['largest']:.1f} % of a token's weight (layer {pair['layer']}, head {pair['head']})" in told  # fmt: skip
    assert cause in told and ("all are apart" in told) == (not leaks)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device to write to")
def test_a_full_disk_is_no_leak(
    model: str, room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json to a full disk had the exit code of a leak."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", full)
        assert run_command(["leaks", str(room / "packed.json"), "--model", model, "--json", "--quiet"]) == 1
    assert capsys.readouterr().err == "attnctl: cannot write the output: no space left on device\n"
