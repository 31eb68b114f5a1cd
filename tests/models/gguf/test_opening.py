"""A GGUF file is opened where it lies: nothing of it is copied, what it is is said, and commands of checkpoints read it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.models import attend, open_model
from attnctl.models.huggingface.token_batch import special_ids
from tests.conftest import Run
from tests.tools import folders
from tests.tools.gguf_table import small

gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers")


LLAMA = "llama--biases--linear-scaling"
TEXT = "the hand"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder as the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "attnctl"


def written(path: Path, name: str = LLAMA) -> Path:
    return small.write_file(path, small.headers()[name])


def test_nothing_of_a_file_is_kept_in_the_cache(tmp_path: Path, cache: Path, capsys: Any) -> None:
    path = written(tmp_path / "tiny.gguf")
    trace = attend(TEXT, str(path))
    assert capsys.readouterr().err == ""
    info = trace.model
    assert (info.name, info.n_kv_heads, info.source) == ("tiny", 2, "tiny.gguf")
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    kept = [entry for entry in cache.rglob("*") if entry.is_file()]
    assert sum(entry.stat().st_size for entry in kept) < 1000 and not (cache / "gguf").exists()


def test_copies_of_earlier_versions_leave_the_cache_and_nothing_else_does(tmp_path: Path, cache: Path) -> None:
    """They were converted with settings left out. An empty or damaged name names the cache itself, or another folder."""
    copies = cache / "gguf"
    for name in ("m-0123456789ab", "other-0123456789ab", "kept"):
        (copies / name).mkdir(parents=True)
        (copies / name / "model.safetensors").write_bytes(b"large")
    (cache / "dear-0123456789ab").mkdir()
    (copies / "fingerprint.place").write_text("m-0123456789ab\n/home/m.gguf")
    damaged = (b"", b"\xff", b"..", b"../dear-0123456789ab", b"x", b"/", b"a/b-0123456789ab", b"\0" * 12)
    for number, content in enumerate(damaged):
        (copies / f"{number}.place").write_bytes(content)
    attend(TEXT, str(written(tmp_path / "tiny.gguf")))
    assert sorted(entry.name for entry in copies.iterdir()) == ["kept", "other-0123456789ab"]
    assert (cache / "dear-0123456789ab").exists()


def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:3000])
    with pytest.raises(AttnctlError, match=r"cannot read .*tiny\.gguf"):
        open_model(str(path))
    other = tmp_path / "other.gguf"
    other.write_bytes(data.replace(b"blk.0.attn_k.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(AttnctlError, match=r"attnctl does not use its tensor blk\.0\.attn_x\.weight"):
        open_model(str(other))


def quantised_copy(folder: Path, checkpoint: Path) -> Path:
    """Write a Llama folder as GGUF, its matrices in Q8_0: rows of Q and K in llama.cpp's order, by LlamaModel.permute."""
    from safetensors.numpy import load_file

    settings = json.loads((checkpoint / "config.json").read_text())
    arrays = load_file(checkpoint / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, settings["num_hidden_layers"])
    writer = gguf.GGUFWriter(folder / "copy.gguf", "llama")
    facts = {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings"}
    facts |= {"embedding_length": "hidden_size", "feed_forward_length": "intermediate_size"}
    facts |= {
        "head_count": "num_attention_heads",
        "head_count_kv": "num_key_value_heads",
        "layer_norm_rms_eps": "rms_norm_eps",
    }
    for key, name in facts.items():
        getattr(writer, f"add_{key}")(settings[name])
    writer.add_rope_freq_base(settings["rope_parameters"]["rope_theta"])
    pieces = [*folders.VOCABULARY, *(f"<extra{number}>" for number in range(10))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in folders.SPECIAL else 1 for piece in pieces])
    writer.add_token_merges(["Ġ e", "a t"])
    heads = {"q_proj": settings["num_attention_heads"], "k_proj": settings["num_key_value_heads"]}
    for name, array in arrays.items():
        count = next((heads[part] for part in heads if part in name), 0)
        if count:
            array = array.reshape(count, 2, array.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(array.shape)
        theirs, kind = names.get_name(name, (".weight",)), gguf.GGMLQuantizationType.Q8_0
        if array.ndim == 2 and "token_embd" not in theirs:
            writer.add_tensor(theirs, gguf.quantize(array.astype(np.float32), kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "copy.gguf"


def test_a_quantised_copy_is_compared_with_the_folder_it_was_made_from(run: Run, tmp_path: Path) -> None:
    """The right weights of the folder are those of transformers; eight bits move them a little."""
    checkpoint = folders.write(tmp_path / "llama", "llama", hidden_size=64, intermediate_size=64, num_hidden_layers=2)
    copy = quantised_copy(tmp_path, checkpoint)
    ours, theirs = attend("at the end", str(copy)), attend("at the end", str(checkpoint))
    assert [token.id for token in ours.tokens] == [token.id for token in theirs.tokens]
    gaps = [
        float(np.abs(a.weights - b.weights).max())
        for a, b in zip(ours.layers, theirs.layers, strict=True)
        if a.weights is not None and b.weights is not None
    ]
    assert len(gaps) == 2 and 0 < max(gaps) < 0.05
    drift = run("drift", str(checkpoint), str(copy), "at the end")
    assert drift.code == 0 and "llama" in drift.out and "copy" in drift.out
    card = run("model", str(copy))
    assert "Q, K, V and O are stored as: Q, K, V, O Q8_0" in card.out
    assert "this reading, against llama.cpp: max |Δ weight| " in " ".join(card.out.split())


def test_the_check_says_what_the_file_is(run: Run, tmp_path: Path) -> None:
    checked = run("check", TEXT, "--model", str(written(tmp_path / "tiny.gguf")))
    lines = [" ".join(line.split()) for line in checked.out.splitlines()]
    assert checked.code == 0 and "· Q, K, V and O are stored as Q, K, V, O F32" in lines
    (held,) = [line for line in lines if line.startswith("· this reading, against llama.cpp")]
    assert held.endswith("random llama files in float32 (llama.cpp b11549)")


def test_leaks_reads_a_gguf_file(run: Run, tmp_path: Path) -> None:
    """A model that sees one row after another as one text leaks: llama.cpp's files know no segments."""
    result = run("leaks", "--pack", "the hand", "the sand", "--model", str(written(tmp_path / "tiny.gguf")))
    assert result.code in (0, 4) and "tiny" in result.out


def test_facts_name_the_layers_that_are_stored_otherwise() -> None:
    """As in Q4_K_M, where half of the layers have V in six bits."""
    from types import SimpleNamespace

    from attnctl.models.gguf.facts import held_to, stored_parts

    kinds = {0: "Q6_K", 1: "Q4_K", 2: "Q6_K"}
    tensors = {
        f"blk.{layer}.attn_{part}.weight": SimpleNamespace(kind=kind if part == "v" else "Q4_K")
        for layer, kind in kinds.items()
        for part in ("q", "k", "v", "output")
    }
    file: Any = SimpleNamespace(tensors=tensors, metadata={"general.architecture": "rwkv7"})
    assert stored_parts(file) == "Q, K, O Q4_K, V Q6_K in layers 0, 2; Q, K, V, O Q4_K in layers 1"
    assert held_to(file) == "no file of the architecture rwkv7 was compared"


def test_named_tokens_are_special_to_the_network(tmp_path: Path, cache: Path) -> None:
    """No segment of `leaks` is exchanged for one of them; the unknown one was left out."""
    header = small.headers()[LLAMA]
    settings = header["settings"] | {"tokenizer.ggml.padding_token_id": 7, "tokenizer.ggml.unknown_token_id": 8}
    path = small.write_file(tmp_path / "tiny.gguf", {**header, "settings": settings})
    network: Any = open_model(str(path)).network  # type: ignore[union-attr]
    assert special_ids(network) >= {7, 8}
