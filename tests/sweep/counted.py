"""Do the parameters that `attnctl model` tells equal those of the built network? `python -m tests.sweep.counted` writes the list.

attnctl/models/huggingface/files/counted.json names the families of which they do, in every head that can be built.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import attnctl.models.huggingface.files.sizes as module
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import attention_modules
from attnctl.models.huggingface.files.sizes import of_configuration
from tests.sweep.families import Family, build, families

OTHER_INPUT = re.compile(r"vision|visual|image|audio|speech", re.IGNORECASE)  # encoders of other inputs are not counted
NO_MATRIX = re.compile(r"norm|bias", re.IGNORECASE)
LIST = Path(module.__file__).parent / "counted.json"


def built(model: Any) -> int:
    """Parameters of every attention module of a network, its biases and norms left out; shared ones once for each layer."""
    count = 0
    for name, part in attention_modules(model).items():
        if OTHER_INPUT.search(name):
            continue
        beside = getattr(model.get_submodule(name.rpartition(".")[0]) if "." in name else model, "output", None)
        parts = [part, beside.dense] if hasattr(beside, "dense") else [part]  # BERT's W_O stands beside
        for one in parts:
            count += sum(p.numel() for n, p in one.named_parameters() if p.ndim == 2 and not NO_MATRIX.search(n))
    return count


def agrees(family: Family) -> bool | None:
    """Whether the parameters told equal those built; None where the family cannot be built, or nothing is told."""
    try:
        with torch.device("meta"):
            model = build(family)
    except Exception:
        try:
            model = build(family)
        except Exception:
            return None
    try:
        told = of_configuration(model.config.to_dict(), family.kind, "")
    except AttnctlError:
        return None
    return sum(told.in_all().values()) == built(model)


def counted(every: Iterable[Family]) -> list[str]:
    """The families, by model_type, of which every head agrees; of those that read and write, the whole is what counts."""
    found: dict[str, list[bool]] = {}
    kinds = [family for family in every if family.head != "base"]
    two = {family.kind for family in kinds if family.head == "seq2seq"}
    for family in kinds:
        if family.kind in two and family.head != "seq2seq":
            continue
        if (does := agrees(family)) is not None:
            found.setdefault(family.kind, []).append(does)
    return sorted(kind for kind, does in found.items() if all(does))


if __name__ == "__main__":
    names = ", ".join(json.dumps(kind) for kind in counted(families()))
    LIST.write_text("[\n" + textwrap.fill(names, 118, break_on_hyphens=False) + "\n]\n", "utf-8")
