"""Small GGUF files whose numbers follow from their names, for the tests: only llama.cpp's answers to them are stored.

    python -m tests.tools.gguf_table.small write FOLDER CHECKPOINTS  # here: headers.json of the tests, from the table's files
    python -m tests.tools.gguf_table.small answer FOLDER             # in an environment with xllamacpp: answers.npz

`write` takes the headers of files that llama.cpp's converter made; `write_file` fills their tensors.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TEXT = "the rain on the stone and the hand"
HERE = Path(__file__).parents[2] / "models" / "gguf"
HEADERS, ANSWERS = HERE / "small_headers.json", HERE / "small_answers.npz"
ROWS = (
    "llama--llama3", "llama--biases", "llama--mixtral", "qwen2--yarn", "qwen3moe--a-wide", "gemma--a-wide", "gemma3--a-wide",
    "phi2--a-quarter", "phi3--three", "phi3--longrope", "starcoder2--theta", "gpt2--100", "gptneox--in-series", "falcon--two",
    "bloom--6-heads", "olmo--clipped", "olmo2--olmo-3--windows--yarn", "granite--its-four", "granitemoe--a-shared",
    "command-r--its", "cohere2--theta", "smollm3--theta", "glm4--a-wide", "glm4moe--norms", "nemotron--a-quarter",
    "deepseek2--deepseek-v3--groups", "gpt-oss--yarn", "apertus--llama3", "ernie4-5-moe--six", "exaone4--llama3",
    "mistral3--a-wide", "hunyuan-dense--a-wide", "lfm2--two",
)  # fmt: skip


def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers of a tensor: uniform, from a generator that its name seeds; norms are around 1."""
    generator = random.Random(name)  # the same numbers in every version of Python
    count = int(np.prod(shape))
    values = np.array([generator.random() for _ in range(count)]).reshape(shape) * 2 - 1
    if name.startswith(("token_embd.", "position_embd.")):
        return (1.7 * values).astype(np.float32)
    if len(shape) > 1:
        gain = 4.0 if any(part in name for part in ("attn_q", "attn_k")) else 1.7
        return (values * gain / shape[-1] ** 0.5).astype(np.float32)
    return (0.5 * values + (name.endswith("norm.weight"))).astype(np.float32)


def write_file(path: Path, header: Mapping[str, Any]) -> Path:
    """Write the GGUF file of a header: its settings, its tensors, and a vocabulary of bytes."""
    import gguf

    architecture = header["settings"]["general.architecture"]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in header["settings"].items():
        if key != "general.architecture":
            writer.add_key_value(key, value, *_types(value))
    pieces = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece.startswith("<") and len(piece) > 1 else 1 for piece in pieces])
    writer.add_token_merges(["Ġ t", "h e", "Ġt he"])
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(True)
    for name, shape in header["tensors"].items():
        stored = header["stored"].get(name)
        array = numbers(name, tuple(shape)) if stored is None else np.array(stored, np.float32).reshape(shape)
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary() -> list[str]:
    """Return the tokens: bytes, three merges, and some special ones."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    other = iter(range(256, 512))
    pieces = ["<pad>", "<s>", "</s>", "<unk>", *(chr(byte if byte in kept else next(other)) for byte in range(256))]
    pieces += ["Ġt", "he", "Ġthe"]
    return [*pieces, *(f"<extra_{number}>" for number in range(320 - len(pieces)))]


def _types(value: Any) -> tuple[Any, ...]:
    from gguf.constants import GGUFValueType

    kinds = {
        bool: GGUFValueType.BOOL,
        int: GGUFValueType.UINT32,
        float: GGUFValueType.FLOAT32,
        str: GGUFValueType.STRING,
    }
    return (GGUFValueType.ARRAY, kinds[type(value[0])]) if isinstance(value, list) else (kinds[type(value)],)


def headers() -> dict[str, Any]:
    """Return the headers of the small files by name."""
    table: dict[str, Any] = json.loads(HEADERS.read_text(encoding="utf-8"))
    return table


def write_headers(folder: Path, checkpoints: Path) -> None:
    """Write the headers of the table's files that ROWS name, and the small files."""
    from attnctl.models.gguf.tensors import GgufFile
    from tests.tools.gguf_table.checkpoints import rows

    table: dict[str, Any] = {}
    for row in rows():
        name = row.name.replace("_", "-")
        if not any(name.startswith(begin) for begin in ROWS):
            continue
        file = GgufFile.open(checkpoints / f"{row.name}.gguf")
        kept = {
            key: value
            for key, value in file.metadata.items()
            if key == "general.architecture" or key.startswith((f"{row.architecture}.", "xielu."))
        }
        stored = {
            name: tensor.array().ravel().tolist() for name, tensor in file.tensors.items() if name.startswith("rope_")
        }
        shapes = {name: list(tensor.shape) for name, tensor in file.tensors.items()}
        table[row.name] = {
            "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in kept.items()},
            "tensors": shapes,
            "stored": stored,
        }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(header)}" for name, header in table.items())
    HEADERS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for name, header in table.items():
        write_file(folder / f"{name}.gguf", header)


def write_answers(folder: Path) -> None:
    """Write llama.cpp's weights of all small files."""
    from tests.tools.llamacpp import ask, isolated

    arrays: dict[str, Any] = {}
    for name in headers():
        (answer,) = isolated(ask, folder / f"{name}.gguf", [TEXT])
        n = len(answer.ids)
        arrays["ids"] = np.array(answer.ids)
        for layer, weights in answer.weights.items():
            if layer < 4:
                arrays[f"{name}/{layer}"] = weights[
                    :, np.tril_indices(n)[0], np.tril_indices(n)[1]
                ]  # (heads, n (n + 1) / 2)
        print(name, sorted(answer.weights), flush=True)
    np.savez_compressed(ANSWERS, **arrays)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_headers(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        write_answers(Path(sys.argv[2]))
