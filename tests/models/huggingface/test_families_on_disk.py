"""Unusual families as users have them, a folder with weights and a tokenizer, through the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnctl
from attnctl.readings.heatmap import SINK_TAKES_PART, labelled_grid
from attnctl.source.zoom import read_heatmap
from tests.conftest import Refused, Run
from tests.models.huggingface.conftest import Shelf

TEXT = "w10 w33 w71 w20 w10 w45 w90 w12 w33"
RUNS = {  # a command, its options, a family → why it failed once
    "batch mimo_v2_flash causal": "its sinks are parameters, and what is worked out of a call asked for gradients of them",
    "ablate gemma4_text causal": "later layers share keys, and a forward from the middle lacked them",
    "ablate --edges gemma4_text causal": "the same",
    "ablate --edges t5gemma2 seq2seq": "its decoder reads itself and the source in one softmax",
    "explain --generate 2 t5gemma2 seq2seq": "the same",
    "explain --generate 2 gemma3 causal": "its padding token is named in the part of its configuration that is about text",
    "explain --measure rollout convbert masked": "half of its heads are a convolution: rollout is of those that attend",
}


@pytest.mark.grid
@pytest.mark.parametrize("command", RUNS)
def test_a_command_runs(run: Run, shelf: Shelf, tmp_path: Path, command: str) -> None:
    name, *options, kind, head = command.split()
    (tmp_path / "texts.txt").write_text(f"{TEXT}\nw10 w33\nw50 w51 w52\n")
    result = run(name, tmp_path / "texts.txt" if name == "batch" else TEXT, *options, "-m", shelf(f"{kind} {head}"))
    assert result.code == 0 and ("w33" in result.out or head == "seq2seq"), result.err
    assert name != "batch" or len(result.out.splitlines()) == 3


def test_what_a_family_lacks_is_refused_by_name(refused: Refused, shelf: Shelf) -> None:
    crossed = refused("explain", TEXT, "--attention", "cross", "--model", shelf("t5gemma2 seq2seq"), code=2)
    assert "in one softmax: see --attention decoder" in crossed
    # hidden states; tokens of its own before the text; keys that hold several tokens
    for family in ("reformer causal", "cpmant causal", "deepseek_v4 causal"):
        said = refused("sources", "w10 w33.\n\nw71 w20", "--answer", "w12", "--model", shelf(family))
        assert "does not cache only keys and values of each token" in said


def test_a_learned_sink_is_said_beside_its_grid(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    model = ("--model", shelf("gpt_oss causal"))
    assert run("explain", TEXT, *model, "-o", tmp_path / "run.npz").code == 0
    trace = attnctl.load(tmp_path / "run.npz")
    assert SINK_TAKES_PART in read_heatmap(trace).remarks
    assert SINK_TAKES_PART not in read_heatmap(trace, renormalise=True).remarks
    assert run("heatmap", TEXT, *model, "-o", tmp_path / "cells.json").code == 0
    assert SINK_TAKES_PART in labelled_grid(attnctl.load(tmp_path / "cells.json")).remarks


def test_what_is_not_there_is_neither_promised_nor_shown(run: Run, shelf: Shelf) -> None:
    """Of Qwen 3 Next's two layers one attends: there is no other to ask for."""
    result = run("explain", TEXT, "--model", shelf("qwen3_next causal"), "--story")
    assert "more heads: --head all" in result.out and "more layer" not in result.out


def test_heads_are_as_many_as_attend(run: Run, refused: Refused, shelf: Shelf) -> None:
    """Laguna says how many for each layer, and every command knows the layer with the most; ConvBERT has half of its own."""
    assert run("explain", TEXT, "--model", shelf("convbert masked"), "--json").json["model"]["n_heads"] == 2
    model = ("--model", shelf("laguna causal", num_attention_heads_per_layer=[4, 8]))
    found = run("explain", TEXT, *model, "--layer", "1", "--head", "7", "--json").json
    assert found["layers"][0]["heads"][0]["head"] == 7
    said = refused("explain", TEXT, *model, "--layer", "0", "--head", "7")
    assert "head 7 of layer 0 is not there: it has 0, 1, 2, 3" in said
    assert run("explain", TEXT, *model, "--measure", "rollout").code == 0
    told = run("model", model[1]).out
    assert "0: 4 heads, 2 of keys" in told and "1: 8 heads, 2 of keys" in told
