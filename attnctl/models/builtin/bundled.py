"""The two models that ship with the package: trained by its own `attnctl train`, on its own grammar."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from attnctl.models.builtin.stack import Stack
from attnctl.models.builtin.weights import open_weights

BUNDLED = ("demo", "demo-causal")


def path_of(name: str) -> Path:
    """Where the bundled weights of `name` lie."""
    return Path(str(files("attnctl.models.builtin"))) / f"{name}.safetensors"


def open_demo(**options: Any) -> Stack:
    """`demo`: masked words, each word seeing all others."""
    return open_weights(path=str(path_of("demo")), name="demo", kind="demo", **options)


def open_demo_causal(**options: Any) -> Stack:
    """`demo-causal`: the next word, each word seeing those before it."""
    return open_weights(path=str(path_of("demo-causal")), name="demo-causal", kind="demo", **options)
