"""Unusual families as users have them, a folder with weights and a tokenizer, through the commands. 25 s."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import attnctl
from attnctl.formats.census_table import read_census
from attnctl.readings.heatmap import SINK_TAKES_PART, of_overview
from attnctl.source.cells import read_heatmap
from tests.conftest import Result
from tests.tools.sweep.checkpoints import saved
from tests.tools.sweep.families import Family

Run = Callable[..., Result]
Shelf = Callable[[str], str]

TEXT = "w10 w33 w71 w20 w10 w45 w90 w12 w33"
CORPUS = """\
1\tw10\tw10\tPRON\t_\t_\t2\tnsubj\t_\t_
2\tw33\tw33\tVERB\t_\t_\t0\troot\t_\t_
3\tw71\tw71\tDET\t_\t_\t4\tdet\t_\t_
4\tw20\tw20\tNOUN\t_\t_\t2\tobj\t_\t_

"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    root = tmp_path_factory.mktemp("families")

    def folder(name: str) -> str:
        path: Path = root / name.replace(" ", "-")
        return str(path if path.exists() else saved(Family(*name.rsplit(" ", 1)), path))

    return folder


def test_learned_sinks_in_a_batch(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    """The sinks are parameters: what is worked out of a call after its run asks for no gradients of them."""
    (tmp_path / "texts.txt").write_text(f"{TEXT}\nw10 w33\nw50 w51 w52\n")
    result = run("batch", tmp_path / "texts.txt", "--model", shelf("mimo_v2_flash causal"))
    assert (result.code, len(result.out.splitlines())) == (0, 3), result.err


@pytest.mark.parametrize("args", [("ablate",), ("ablate", "--edges"), ("explain", "--steps", "contributions")])
def test_keys_that_later_layers_share_are_computed_again(run: Run, shelf: Shelf, args: tuple[str, ...]) -> None:
    """Gemma 4: a forward from the middle would lack them."""
    result = run(*args[:1], TEXT, *args[1:], "--model", shelf("gemma4_text causal"))
    assert result.code == 0 and "w33" in result.out, result.err


def test_a_learned_sink_is_said_beside_its_grid(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    model = ("--model", shelf("gpt_oss causal"))
    trace = attnctl.load(run("explain", TEXT, *model, "-o", tmp_path / "run.npz") and tmp_path / "run.npz")
    assert SINK_TAKES_PART in read_heatmap(trace).said
    assert SINK_TAKES_PART not in read_heatmap(trace, renormalise=True).said
    cells = attnctl.load(run("heatmap", TEXT, *model, "-o", tmp_path / "cells.json") and tmp_path / "cells.json")
    assert SINK_TAKES_PART in of_overview(cells).said


def test_layers_without_attention_are_not_promised(run: Run, shelf: Shelf) -> None:
    """Of Qwen 3 Next's two layers one attends: there is no other to ask for."""
    result = run("explain", TEXT, "--model", shelf("qwen3_next causal"))
    assert "more heads: --head all" in result.out and "more layer" not in result.out


def test_the_difference_of_two_maps_hides_what_its_queries_may_not_see(run: Run, shelf: Shelf) -> None:
    result = run("explain", "w10 w33 w71", "--model", shelf("diffllama causal"), "--steps", "difference")
    rows = [line.split() for line in result.out.splitlines() if line.split()[:1] == ["w10"]]
    assert [row[2:] for row in rows if len(row) == 4][0] == ["·", "·"]


def test_compressed_slots_are_no_words(run: Run, refused: Callable[..., str], shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "corpus.conllu").write_text(CORPUS)
    result = run("evaluate", tmp_path / "corpus.conllu", "--model", shelf("deepseek_v4 causal"))
    assert result.code == 0 and "not read" not in result.err, result.err
    said = refused("explain", TEXT, "--measure", "rollout", "--model", shelf("deepseek_v4 causal"), code=2)
    assert "it has keys besides its tokens" in said


def test_a_text_with_compressed_slots_reads_itself_all_the_same(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    model = ("--model", shelf("deepseek_v4 causal"))
    told = run("explain", TEXT, *model, "--layer", "1", "--head", "2").out
    assert "w10 (0) pays" in told and "to itself" in told and "0–7 compressed" in told
    one = attnctl.load(run("explain", TEXT, *model, "-o", tmp_path / "run.json") and tmp_path / "run.json")
    assert isinstance(one, attnctl.Trace) and one.key_tokens is not None and one.reads_itself


def test_a_decoder_that_reads_itself_and_the_source_in_one_softmax(
    run: Run, refused: Callable[..., str], shelf: Shelf
) -> None:
    """T5Gemma 2 has no cross attention of its own: what asks for it is answered by the decoder's."""
    model = ("--model", shelf("t5gemma2 seq2seq"))
    for args in (("ablate", TEXT), ("ablate", TEXT, "--edges"), ("explain", TEXT, "--generate", "2")):
        assert run(*args, *model).code == 0
    assert "in one softmax: see --attention decoder" in refused("explain", TEXT, "--attention", "cross", *model, code=2)


@pytest.mark.parametrize(
    "family", ["reformer causal", "cpmant causal"]
)  # hidden states; tokens of its own before the text
def test_a_network_without_a_cache_of_keys(refused: Callable[..., str], shelf: Shelf, family: str) -> None:
    said: Any = refused("sources", "w10 w33.\n\nw71 w20", "--answer", "w12", "--model", shelf(family))
    assert "keeps no keys and values of every token alone" in said


def test_a_model_of_several_inputs_generates(run: Run, shelf: Shelf) -> None:
    """Gemma 3 names its padding token in the part of its configuration that is about text."""
    result = run("explain", TEXT, "--generate", "2", "--model", shelf("gemma3 causal"), "--json")
    assert result.code == 0 and len(result.json["tokens"]) == len(TEXT.split()) + 2, result.err


@pytest.mark.parametrize(
    ("family", "causal"), [("bigbird_pegasus causal", True), ("bloom base", True), ("roformer causal", False)]
)
def test_who_looks_ahead_is_read_off_a_run(run: Run, shelf: Shelf, tmp_path: Path, family: str, causal: bool) -> None:
    """Their modules and configurations do not say so, or say otherwise than their masks are: a census asks beforehand."""
    (tmp_path / "corpus.conllu").write_text(CORPUS)
    census = run("evaluate", tmp_path / "corpus.conllu", "--model", shelf(family), "--json").json
    assert census["causal"] is causal
    told = next(one for one in census["relations"] if (one["relation"], one["direction"]) == ("all", "dependent→head"))
    assert (told["cases"], told["ahead"]) == ((1, 2) if causal else (3, 0))


def test_heads_are_as_many_as_attend(run: Run, shelf: Shelf) -> None:
    """ConvBERT gives half of its heads to a convolution: rollout is of all that attend, and asks for no other choice."""
    result = run("explain", TEXT, "--model", shelf("convbert masked"), "--measure", "rollout")
    assert result.code == 0, result.err
    assert run("explain", TEXT, "--model", shelf("convbert masked"), "--json").json["model"]["n_heads"] == 2


def test_a_census_has_no_heads_in_layers_without_attention(run: Run, shelf: Shelf, tmp_path: Path) -> None:
    """Jamba attends in layers 1 and 3: of the others there are no shares of 0 %."""
    (tmp_path / "corpus.conllu").write_text(CORPUS * 2)
    model = shelf("jamba causal")
    told = run("evaluate", tmp_path / "corpus.conllu", "--model", model).out
    assert "Layers 0, 2 have no attention (·)." in told and "entropy by layer, nats: ·, 0." in told
    found = run("evaluate", tmp_path / "corpus.conllu", "--model", model, "--json").json
    assert {head["layer"] for head in found["heads"]} == {layer["layer"] for layer in found["layers"]} == {1, 3}
    assert all(relation.get("best", {"layer": 1})["layer"] in (1, 3) for relation in found["relations"])
    (tmp_path / "census.json").write_text(json.dumps(found))
    again = read_census(str(tmp_path / "census.json"))
    assert [row.layer for row in again.layers] == [1, 3] and again.attends.any(axis=1).tolist() == [False, True] * 2


def test_layers_of_other_numbers_of_heads(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    """Laguna says how many for each layer: every command knows the layer with the most."""
    family = Family("laguna", "causal")
    model = saved(family, tmp_path / "laguna", num_attention_heads_per_layer=[4, 8])
    (tmp_path / "corpus.conllu").write_text(CORPUS)
    census = run("evaluate", tmp_path / "corpus.conllu", "--model", model, "--json").json
    assert len(census["heads"]) == 12
    entropy = np.mean([head["entropy"] for head in census["heads"] if head["layer"] == 0])
    assert census["layers"][0]["entropy"] == pytest.approx(entropy)
    found = run("explain", TEXT, "--model", model, "--layer", "1", "--head", "7", "--json").json
    assert found["layers"][0]["heads"][0]["head"] == 7
    assert "head 7 of layer 0 is not in this trace: it holds 0, 1, 2, 3" in refused(
        "explain", TEXT, "--model", model, "--layer", "0", "--head", "7"
    )
    assert run("explain", TEXT, "--model", model, "--measure", "rollout").code == 0
    told = run("model", model).out
    assert "0: 4 heads, 2 of keys" in told and "1: 8 heads, 2 of keys" in told
