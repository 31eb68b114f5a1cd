"""`attnctl ablate` over tiny checkpoints on disk: encoder-decoders, masked models, capped and post-norm ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")


from tests.conftest import Refused, Run, check_schema
from tests.tools import folders

TEXT = "Alice will eat"


def measured(run: Run, *args: str) -> Any:
    result = run("ablate", *args, "--json")
    assert result.code == 0, result.err
    assert check_schema(result.json) == "effects"
    return result.json


@pytest.mark.parametrize(
    ("case", "kind"), [("t5, bias", None), ("t5, bias", "encoder"), ("bart", None), ("bart", "decoder")]
)
def test_encoder_decoders(run: Run, tmp_path: Path, case: str, kind: str | None) -> None:
    """The target is what the decoder is to say; cross attention unless told otherwise."""
    folder = str(folders.write(tmp_path / "model", case))
    more = () if kind is None else ("--attention", kind)
    document = measured(run, TEXT, "--model", folder, "--target", " eat", *more)
    assert len(document["heads"]) == 8
    assert ("key_tokens" in document) == (kind is None)
    assert document["baseline"]["log_probability"] < 0
    assert any(head["log_probability"] for head in document["heads"])
    assert run("ablate", TEXT, "--model", folder, "--edges", *more).code == 0


@pytest.mark.parametrize("case", ["gpt2", "gemma2, soft cap and window", "gpt_oss, sinks", "olmo2, qk-norm", "phi3"])
def test_decoders(run: Run, tmp_path: Path, case: str) -> None:
    folder = str(folders.write(tmp_path / "model", case))
    document = measured(run, TEXT, "--model", folder, "--target", "at", "--against", " e")
    parts = document["contributions"]
    assert parts["sum"] == pytest.approx(parts["logit"], rel=1e-4, abs=1e-5)
    assert all("writes" in head for head in document["heads"])
    quick = measured(run, TEXT, "--model", folder, "--target", "at", "--approximate")
    assert quick["approximation"]["heads"] == 8
    assert len(quick["edges"]) == len(quick["tokens"])
    long = run("ablate", TEXT, "--model", folder, "--target", "atatat", "--json")
    assert "3 tokens" in long.err and "sums over them" in long.err


def test_a_model_of_states_alone(run: Run, room: Path) -> None:
    document = measured(run, TEXT, "--model", room / "bert")
    assert "target" not in document
    assert all(head["distance"] >= 0 for head in document["heads"])


def test_a_word_without_its_space_is_noted_where_the_other_is_likelier(run: Run, room: Path) -> None:
    asked = ("ablate", TEXT, "--model", room / "llama", "--layer", "0", "--json")
    said = [run(*asked, "--target", word) for word in ("e", " e")]
    plain, spaced = (result.json["baseline"]["logit"] for result in said)
    assert ("with the space before it" in said[0].err) == (spaced > plain)
    assert "with the space before it" not in said[1].err


def test_a_network_of_another_kind_has_no_head_off(refused: Refused, tmp_path: Path) -> None:
    outside = str(folders.write(tmp_path / "outside", "bloom, ALiBi"))
    assert "code of its own" in refused("ablate", TEXT, "--model", outside)
    assert "code of its own" in refused("explain", TEXT, "--model", outside, "--off", "0.0")
