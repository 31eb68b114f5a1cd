"""run.json: what a batch was asked for, so that going on with something else is refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError, UsageError
from attnctl.files import said_plainly, write_whole
from attnctl.text import as_json

if TYPE_CHECKING:
    from attnctl.text import Document

RUN = "run.json"
SCHEMA = "attnctl.batch/1"
WEIGHTS = (".safetensors", ".npz", ".gguf")


def check_run(folder: Path, said: Document, *, is_new: bool) -> None:
    """Hold `said`, what is asked for now, against the folder's run.json; a new folder gets one.

    Raises AttnctlError where it is damaged, UsageError where the folder holds a batch of something else.
    """
    import orjson

    from attnctl import __version__

    run = folder / RUN
    said = orjson.loads(as_json(said))
    weights = fingerprint_model(said["model"].get("name"))
    if not run.exists():
        if not is_new:
            raise UsageError(f"{folder} has a manifest but no run.json: give a new folder")
        document = {"schema": SCHEMA, "attnctl": __version__, "said": said, "weights": weights}
        write_whole(run, orjson.dumps(orjson.loads(as_json(document)), option=orjson.OPT_INDENT_2) + b"\n")
        return
    try:
        before = orjson.loads(run.read_bytes())
    except orjson.JSONDecodeError:
        before = None
    theirs = before.get("said") if isinstance(before, dict) else None
    if not isinstance(before, dict) or not isinstance(theirs, dict) or not isinstance(theirs.get("input", []), list):
        raise AttnctlError(f"{run} is damaged: give a new folder")
    theirs = said | theirs  # older runs do not say all
    if before.get("schema") != SCHEMA:
        raise AttnctlError(f"{run} has schema {before.get('schema')!r}; this attnctl writes {SCHEMA!r}")
    if theirs["input"] != said["input"]:
        paths = (os.path.normpath(folder / str(path)) if path != "-" else "standard input" for path in theirs["input"])
        raise UsageError(f"{folder} holds results of {', '.join(paths)}: give a new folder, or --replace")
    if theirs != said:
        names = sorted(name for name in theirs if theirs[name] != said.get(name))
        raise UsageError(f"{folder} holds a batch that differs in {', '.join(names)}: give a new folder, or --replace")
    if before.get("weights", weights) != weights:
        raise UsageError(f"{folder} holds a batch with other files of the model: give a new folder, or --replace")


def input_paths(paths: Iterable[str], folder: str | Path) -> list[str]:
    """The files of an input as they are seen from the folder of its results; "-" for standard input."""
    return [
        path if path == "-" else os.path.relpath(os.path.realpath(path), os.path.realpath(folder)) for path in paths
    ]


def fingerprint_model(name: str | None) -> str | None:
    """A hash of names, sizes and times of the files that a model is read from; None where its name is no path."""
    from attnctl.models import REGISTRY
    from attnctl.models.huggingface.files.hub import KNOWN

    if name is None or name in REGISTRY or name in KNOWN or not (path := Path(name)).exists():
        return None
    with said_plainly("read", path):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        kept = [
            (file.name, (stat := file.stat()).st_size, stat.st_mtime_ns)
            for file in files
            if (file.suffix.lower() in WEIGHTS or file.name in ("config.json", "tokenizer.json")) and file.is_file()
        ]
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]
