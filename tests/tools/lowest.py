"""Run attnctl with the lowest version of each package that pyproject.toml allows.

    python -m tests.tools.lowest             # in a new environment, which is removed; it takes minutes
    python -m tests.tools.lowest FOLDER      # keeps the environment in FOLDER, and uses it again

It installs the packages of `dependencies` and of the extras in EXTRAS, each pinned to its lower bound, and runs an
explanation, a picture, a batch, a conversation, and a checkpoint whose weights are held against eager attention. It ends
with 1 if a run fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("hf", "batch")
TORCH = "torch"  # installed first: other packages then take it as it is

# a Llama of two layers with random weights, a word tokenizer and a chat template
WRITE = """
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
torch.manual_seed(0)
sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
LlamaForCausalLM(LlamaConfig(vocab_size=8, max_position_embeddings=64, **sizes)).save_pretrained("llama")
words = Tokenizer(models.WordLevel({word: n for n, word in enumerate("? Alice will eat pizza user assistant :".split())}, "?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
tokenizer.chat_template = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}assistant :"
tokenizer.save_pretrained("llama")
open("in.txt", "w").write("Alice will eat\\nAlice will eat pizza\\n")
open("chat.json", "w").write('[{"role": "user", "content": "Alice will eat"}]')
"""
RUNS = (
    "explain 'Alice will eat pizza'",
    "heatmap 'Alice will eat pizza' -o map.png",
    "check 'Alice will eat pizza' --model llama",
    "heads --chat chat.json --model llama",
    "mask 'Alice will eat' --model llama",
    "batch in.txt --model llama -o out --format json,npz,parquet",
)


def lowest_versions() -> dict[str, str]:
    """Return the lower bound of each package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *(name for extra in EXTRAS for name in project["optional-dependencies"][extra])]
    bounds = (re.match(r"([\w-]+)>=([\w.]+)", requirement) for requirement in listed)
    return {match[1]: match[2] for match in bounds if match}


def run(*command: str | Path, folder: Path) -> None:
    """Run a command in a folder. Raises SystemExit if it fails."""
    print("+", *command, flush=True)
    variables = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if subprocess.run(command, cwd=folder, env=os.environ | variables).returncode:
        raise SystemExit(f"{' '.join(map(str, command))} fails")


def main(folder: Path) -> None:
    """Install the lowest versions into `folder`, and run attnctl with them."""
    python = folder / "venv" / "bin" / "python"
    versions = lowest_versions()
    pins = [f"{name}=={version}" for name, version in versions.items()]
    if not python.exists():
        venv.create(folder / "venv", with_pip=True)
    pip = (python, "-m", "pip", "install", "--quiet")
    run(*pip, f"{TORCH}=={versions[TORCH]}", folder=folder)
    run(*pip, *pins, folder=folder)
    run(python, "-W", "ignore", "-c", WRITE, folder=folder)
    for line in RUNS:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)]
        run(python, "-m", "attnctl", *words, folder=folder)
    print("works with", *pins)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as new:
            main(Path(new))
