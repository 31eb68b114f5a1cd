"""Every option of the commands that show weights, on every kind of source: it changes what is written, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from attnctl.cli.command import Command

Run = Callable[..., Any]

TEXT = "Alice will eat pizza\n\nBob likes tea"
OTHER = "Alice will eat soup\n\nBob likes tea"
MODEL = {"--model": "random", "--layers": "2", "--heads": "2", "--d-model": "8", "--tokenizer": "words"}
VALUES = {
    "tokens": "a b c d e f g", "layer": "0", "head": "0", "query": "2", "steps": "weights", "precision": "4", "top": "1",
    "spans": "paragraphs", "chat": "chat.json", "model": "dot", "tokenizer": "chars", "embeddings": "rows.npy",
    "qkv": "rows.npy", "d_model": "12", "d_k": "3", "heads": "4", "kv_heads": "1", "layers": "3", "predict": "1",
    "off": "0.1", "seed": "3", "window": "2", "scale": "0.3", "temperature": "2", "positions": "sinusoidal",
    "rope_theta": "100", "rope_pairs": "interleaved", "dropout": "0.5", "attention": "cross", "target": "x",
    "generate": "2", "dtype": "bfloat16", "device": "cpu", "drop": "first", "measure": "value-norm", "cmap": "magma",
    "size": "3x3", "dpi": "50", "title": "hello", "font_size": "4", "vmin": "0.1", "vmax": "0.4", "rows": "0-2",
    "columns": "0-2", "pool": "max", "by": "first", "run": "nowhere", "census": "none.json",
}  # fmt: skip
# what is asked for is what there is anyway
RESTATED = {
    "--device": "the CPU is where short texts are computed",
    "--no-causal": "random weights see both sides",
    "--output-projection": "with two heads there is one",
    "--words": "its tokens are words",
    "--renormalise": "its rows sum to 1",
    "--no-log": "its colours are linear",
    "--values": "its numbers stand in the cells",
    "--no-values": "so few pixels have no room for them",
    "--pool": "its cells are single tokens, or were pooled before",
    "--steps": "a matrix has weights alone",
    "--tokens": "statistics of heads name no token",
}


class Shown(NamedTuple):
    """A command, a source, and where it writes."""

    command: str
    source: str
    output: str | None = None


CASES = (
    *(
        Shown(command, source)
        for command in ("explain", "heatmap", "heads")
        for source in ("text", "run.json", "w.npy")
    ),
    *(Shown("view", source, "page.html") for source in ("text", "run.json", "grid.json")),
    *(Shown("heatmap", source, "map.png") for source in ("text", "grid.json")),
    Shown("heads", "text", "heads.png"),
    Shown("explain", "links.json"),
    Shown("explain", "text", "trace.json"),
    Shown("heatmap", "grid.json"),
    Shown("heatmap", "text", "cells.json"),
    Shown("compare", "text"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng(0)
    weights = rng.random((7, 7))
    np.save(path / "w.npy", weights / weights.sum(-1, keepdims=True))
    np.save(path / "rows.npy", rng.normal(size=(7, 8)).astype(np.float32))
    (path / "chat.json").write_text(json.dumps([{"role": "user", "content": "hi"}]))
    (path / "long.txt").write_text("\n\n".join(" ".join(f"w{(at + k) % 37}" for at in range(60)) for k in range(9)))
    return path


def arguments(shown: Shown, option: str | None = None) -> list[str]:
    """The command's arguments; those of the model without the one that `option` takes the place of."""
    output = [] if shown.output is None else ["-o", shown.output]
    if shown.output is not None and shown.output.endswith(".png") and shown.command != "heads":
        output += ["--layer", "-1", "--head", "1"]  # a small picture
    more = {"view": ["--no-open"], "compare": ["--layer", "1"]}.get(shown.command, [])
    if shown.source != "text":
        return [shown.command, shown.source, *output, *more]
    left = {} if option in ("--model", "--qkv") else {name: value for name, value in MODEL.items() if name != option}
    texts = [TEXT, OTHER] if shown.command == "compare" else [TEXT]
    return [shown.command, *texts, *(part for pair in left.items() for part in pair), *output, *more]


@pytest.mark.parametrize("shown", CASES, ids=lambda shown: "-".join(part or "pipe" for part in shown))
def test_every_option_is_honoured_or_refused(
    shown: Shown, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    model = ["--model", "random", "--layers", "2", "--heads", "2", "--d-model", "8"]
    for name, made in (("run.json", ["explain", TEXT]), ("links.json", ["explain", "--file", "long.txt"]),
                       ("grid.json", ["heatmap", "--file", "long.txt"])):  # fmt: skip
        if name == shown.source and not Path(name).exists():
            assert run(*made, *model, "-o", name).code == 0

    def written(*more: str) -> tuple[int, str, bytes]:
        target = Path(shown.output or "none")
        target.unlink(missing_ok=True)
        done = run(*arguments(shown, more[0] if more else None), *more)
        if done.code != 0:
            assert done.code in (1, 2) and done.err.count("attnctl: ") == 1, (more, done)
        return done.code, done.out, target.read_bytes() if target.exists() else b""

    code, *plain = written()
    assert code == 0
    dropped = []
    command = Command(shown.command)
    numbers = {name for name, option in command.options.items() if option.range}
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name in (
            "help",
            "quiet",
            "no_pager",
            "no_open",
            "output",
            "file",
        ):
            continue
        value = [] if parameter.is_flag else [VALUES.get(parameter.name, "1" if parameter.name in numbers else "x")]
        for option in [next(name for name in parameter.opts if name.startswith("--")), *parameter.secondary_opts]:
            code, *found = written(option, *value)
            if code == 0 and found == plain and option not in RESTATED and shown.output != f"trace.{option[2:]}":
                dropped.append(option)
    same = {"--layer", "--head"} if shown.source == "w.npy" else set()  # it has one of each
    assert set(dropped) <= same
