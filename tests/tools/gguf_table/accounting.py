"""Hold every setting of every architecture against llama.cpp: a file that attnctl opens is read as llama.cpp reads it.

    python -m tests.tools.gguf_table.accounting keys FOLDER     # here: writes settings.json
    python -m tests.tools.gguf_table.accounting answers FOLDER  # in an environment with xllamacpp
    python -m tests.tools.gguf_table.accounting compare FOLDER  # here

Each setting that the gguf library names is given another value in the first file of each architecture. Three outcomes are right:
attnctl refuses the file, llama.cpp refuses it, or the weights of both are equal. `compare` prints all others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.gguf_table.checkpoints import Row, rows

BOOLEANS = ("causal", "use_parallel_residual", "weights_norm", "finetuned", "swin_norm", "dt_b_c_rms")
NUMBERS = (
    "scale",
    "epsilon",
    "factor",
    "base",
    "softcapping",
    "clamp_kqv",
    "bias",
    "alpha",
    "multiplier",
    "scale_linear",
    "beta_fast",
    "beta_slow",
)
TEXTS = {"rope.scaling.type": ("none", "linear", "yarn", "longrope"), "tensor_data_layout": ("other",)}


def first_rows() -> dict[str, Row]:
    """Return the first row of each architecture."""
    chosen: dict[str, Row] = {}
    for row in rows():
        chosen.setdefault(row.architecture, row)
    return chosen


def library_keys() -> list[str]:
    """Return the names of all settings of an architecture in the gguf library, without the architecture."""
    from gguf.constants import Keys

    def names(kind: type) -> Iterator[str]:
        for value in vars(kind).values():
            if isinstance(value, str) and value.startswith("{arch}."):
                yield value.removeprefix("{arch}.")
            elif isinstance(value, type):
                yield from names(value)

    return sorted({key for key in names(Keys) if "{" not in key} | {"rope.scale_linear"})


def values_of(key: str, stated: Any) -> list[Any]:
    """Return other values for a setting."""
    if key in TEXTS:
        return [value for value in TEXTS[key] if value != stated]
    if isinstance(stated, bool) or key.endswith(BOOLEANS):
        return [not stated] if isinstance(stated, bool) else [True, False]
    if isinstance(stated, float) or key.endswith(NUMBERS):
        return [0.37 if not stated else stated * 1.7]
    return [2 if not stated else stated + 1] if not isinstance(stated, tuple) else []


def write_keys(folder: Path) -> None:
    """Write the settings and values to try for each architecture."""
    from attnctl.models.gguf.tensors import GgufFile

    trials: dict[str, Any] = {}
    for architecture, row in first_rows().items():
        path = folder / f"{row.name}.gguf"
        if not path.with_suffix(".npz").exists():
            continue
        metadata = GgufFile.open(path).metadata
        pairs = [
            (key, value) for key in library_keys() for value in values_of(key, metadata.get(f"{architecture}.{key}"))
        ]
        combined = [{"rope.scaling.type": kind, "rope.scaling.factor": 3.0} for kind in ("linear", "yarn")]
        trials[architecture] = {"file": path.name, "trials": [*({key: value} for key, value in pairs), *combined]}
    (folder / "settings.json").write_text(json.dumps(trials))


def answer(folder: Path, architecture: str, begin: int) -> None:
    """Print llama.cpp's answer to each trial of an architecture, from the number `begin` on."""
    from tests.tools.llamacpp import LlamaCpp

    entry = json.loads((folder / "settings.json").read_text())[architecture]
    usual = np.load((folder / entry["file"]).with_suffix(".npz"))
    for number, trial in list(enumerate(entry["trials"]))[begin:]:
        print(number, "begins", flush=True)
        settings = {f"{architecture}.{key}": value for key, value in trial.items()}
        try:
            answer = LlamaCpp(folder / entry["file"], settings=settings).run(usual["ids"].tolist())
        except ValueError:
            print(number, "refused", flush=True)
            continue
        moved = any(
            array.shape != usual[f"weights_{layer}"].shape
            or float(np.abs(array - usual[f"weights_{layer}"]).max()) > 1e-6
            for layer, array in answer.weights.items()
        )
        if moved:
            np.savez(
                folder / "accounting" / f"{architecture}-{number}.npz",
                **{f"weights_{k}": v for k, v in answer.weights.items()},
            )
        print(number, "moved" if moved else "equal", flush=True)


def write_answers(folder: Path) -> None:
    """Write llama.cpp's answers, in processes of their own: an assertion of ggml ends one."""
    (folder / "accounting").mkdir(exist_ok=True)
    results: dict[str, dict[str, str]] = {}
    for architecture, entry in json.loads((folder / "settings.json").read_text()).items():
        found: dict[str, str] = {}
        while len(found) < len(entry["trials"]):
            command = [sys.executable, "-m", __spec__.name, "answer", str(folder), architecture, str(len(found))]
            lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
            for line in lines:
                number, outcome = line.split()
                found[number] = "ended" if outcome == "begins" else outcome
            if not lines:
                raise RuntimeError(f"no answer for {architecture}")
        results[architecture] = found
        print(architecture, {kind: list(found.values()).count(kind) for kind in set(found.values())}, flush=True)
        (folder / "accounting.json").write_text(json.dumps(results))


def compare(folder: Path, words: list[str]) -> None:
    """Print each trial that attnctl opens and that llama.cpp answers otherwise."""
    import torch

    from attnctl.errors import AttnctlError
    from attnctl.models.gguf.opening import load_network_of, opened_file
    from attnctl.models.gguf.tensors import GgufFile

    answers = json.loads((folder / "accounting.json").read_text())
    for architecture, entry in json.loads((folder / "settings.json").read_text()).items():
        if architecture not in answers or (words and architecture not in words):
            continue
        path, counts = folder / entry["file"], {"refused": 0, "equal": 0, "llama.cpp refuses": 0, "OTHER": 0}
        usual = np.load(path.with_suffix(".npz"))
        for number, trial in enumerate(entry["trials"]):
            outcome = answers[architecture][str(number)]
            file = GgufFile.open(path)
            changed = {f"{architecture}.{key}": value for key, value in trial.items()}
            file = replace(file, header=replace(file.header, entries=file.header.entries | changed))
            try:
                opened = opened_file(file, path.name)
                if outcome in ("refused", "ended"):
                    counts["llama.cpp refuses"] += 1
                    continue
                network = load_network_of(opened, torch.float32, "cpu")
            except AttnctlError:
                counts["refused"] += 1
                continue
            except Exception as error:
                counts["refused"] += 1
                print("an error of transformers:", architecture, trial, outcome, str(error)[:160].replace("\n", " "))
                continue
            network.set_attn_implementation("eager")
            with torch.no_grad():
                ours = network(torch.tensor(usual["ids"])[None], output_attentions=True).attentions
            theirs = np.load(folder / "accounting" / f"{architecture}-{number}.npz") if outcome == "moved" else usual
            layers = sorted((name for name in theirs if name.startswith("weights_")), key=lambda name: int(name[8:]))
            seen = [array for array in ours if array is not None]
            worst = max(
                float(np.abs(array[0, :, :, : theirs[name].shape[-1]].numpy() - theirs[name]).max())
                for array, name in list(zip(seen, layers, strict=True))[:4]
            )
            kind = "equal" if worst < 4e-3 else "OTHER"
            counts[kind] += 1
            if kind == "OTHER":
                print("OTHER", architecture, trial, outcome, f"{worst:.1e}", flush=True)
        print(architecture, counts, flush=True)


if __name__ == "__main__":
    step, place = sys.argv[1], Path(sys.argv[2])
    if step == "keys":
        write_keys(place)
    elif step == "answers":
        write_answers(place)
    elif step == "answer":
        answer(place, sys.argv[3], int(sys.argv[4]))
    else:
        compare(place, sys.argv[3:])
