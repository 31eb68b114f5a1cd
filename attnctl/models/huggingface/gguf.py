"""Dequantise GGUF files once into a folder of safetensors in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, in_one_line, print_progress
from attnctl.files import lock_file, write_whole
from attnctl.interrupts import removed_at_end, tidied_up
from attnctl.light_import import complete_torch
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.network import check_complete, file_fingerprint, lacks_head, stored_text

if TYPE_CHECKING:
    from filelock import BaseFileLock

# content of a .place file: the name of the folder, and the path of the GGUF file
PLACE = r"[^/\\\0\n]*-[0-9a-f]{12}(\n[^\0]*)?"
TEMPORARY = ".converting-"  # prefix of an unfinished folder
PART = re.compile(r"\..+\.place\.[0-9a-f]{8}\.part")
YOUNG_SECONDS = 60
BIG = 10**9  # from this many parameters on, the cache holds half precision


def dequantised_folder(path: Path) -> Path:
    """Return the folder that holds `path` dequantised; make it if it does not exist.

    Raises AttnctlError if the file is damaged or of an architecture unknown to transformers, if the disk is too small, or if
    the user's cache cannot be written.
    """
    try:
        return _cached_folder(path)
    except OSError as error:
        if not str(error.filename).startswith(str(cache_folder().parent)):
            raise
        reason = (error.strerror or str(error)).lower()
        raise AttnctlError(
            f"{path.name} is kept dequantised in {cache_folder()}, which cannot be used ({reason}): set XDG_CACHE_HOME to "
            "a folder of yours"
        ) from error


def _cached_folder(path: Path) -> Path:
    name_file = cache_folder() / f"{file_fingerprint(path)}.place"  # contains the name of this file's folder
    stored = stored_text(name_file, PLACE)
    name = None if stored is None else stored.partition("\n")[0]
    if name is None:  # named by content, so that the same file at two paths is stored once
        with path.open("rb") as file:
            name = f"{path.stem}-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"
    target = cache_folder() / name
    if not (target / "config.json").is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)  # remains of a damaged folder
        temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=target.parent))
        lock: BaseFileLock | None = None
        with suppress(AttnctlError):  # on a file system without locks nothing of another process is removed
            lock = lock_file(temporary)  # held as long as this process lives
        _remove_orphans(target.parent)
        with tidied_up(), removed_at_end(temporary):
            try:
                _convert_file(path, temporary)
                if not target.exists():  # another process may have been faster
                    temporary.rename(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
                if lock is not None:
                    _release(lock)
    if stored is None:
        write_whole(name_file, f"{target.name}\n{os.path.realpath(path)}".encode(errors="surrogateescape"))
    return target


def _remove_orphans(folder: Path) -> None:
    """Remove folders that nobody will read again, gigabytes each: of deleted or changed files, and of killed processes.

    An unfinished folder is removed if its lock is free; a very new one may not have its lock yet. If the folder of a GGUF
    file does not exist, its disk may be unmounted, so its files stay.
    """
    stored = {place: (stored_text(place, PLACE) or "").partition("\n") for place in folder.glob("*.place")}
    gone_files = [place for place, (_, _, source) in stored.items() if source and _is_gone(Path(source), place.stem)]
    used_names = {name for place, (name, *_) in stored.items() if place not in gone_files}
    for place in gone_files:
        place.unlink(missing_ok=True)
        if (name := stored[place][0]) not in used_names:
            shutil.rmtree(folder / name, ignore_errors=True)
    for path in folder.glob(f"{TEMPORARY}*"):
        with suppress(OSError, AttnctlError):
            if path.is_dir() and time.time() - path.stat().st_mtime > YOUNG_SECONDS:
                lock = lock_file(path)  # raises if its process is alive
                shutil.rmtree(path, ignore_errors=True)
                _release(lock)
    for path in folder.glob(".*.part"):
        with suppress(OSError):
            if PART.fullmatch(path.name) and time.time() - path.stat().st_mtime > YOUNG_SECONDS:
                path.unlink()


def _is_gone(source: Path, fingerprint: str) -> bool:
    """Return whether a file was removed from its folder, or has changed."""
    try:
        return source.parent.is_dir() and (not source.exists() or file_fingerprint(source) != fingerprint)
    except (OSError, ValueError):
        return False


def _release(lock: BaseFileLock) -> None:
    lock.release()
    with suppress(OSError):
        Path(lock.lock_file).unlink()


def cache_folder() -> Path:
    """Return the folder of dequantised files."""
    from platformdirs import user_cache_path

    return user_cache_path("attnctl") / "gguf"


def _convert_file(path: Path, folder: Path) -> None:
    for module in ("torch", "accelerate", "gguf"):
        import_extra(module)
    transformers = import_extra("transformers")
    import torch

    complete_torch()
    with _parse_once() as reader, _conversion_bar(path):
        try:
            parsed = reader(path)
            for name, field in parsed.fields.items():  # do not build layers without tensors
                if name.endswith(".block_count") and not 0 < int(field.contents()) <= len(parsed.tensors):
                    has = f"says {name} {field.contents()}, and holds {len(parsed.tensors):,} tensors"
                    raise AttnctlError(f"{path.name} {has}")
            count = sum(int(tensor.n_elements) for tensor in parsed.tensors)
            dtype = torch.float16 if count > BIG else torch.float32
            _check_space(path, folder, count * dtype.itemsize)
            options = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
            quantised = transformers.GgufConfig(dequantize=True)
            model, loading_info = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent, dtype=dtype, quantization_config=quantised, output_loading_info=True, **options
            )
            check_complete(model, loading_info, path.name)
            if lacks_head(model):
                raise AttnctlError(f"{path.name} lacks the weights of its head: its file is incomplete")
            model.save_pretrained(folder)
            transformers.AutoTokenizer.from_pretrained(path.parent, **options).save_pretrained(folder)
        except AttnctlError:
            raise
        except Exception as error:  # a damaged file raises many kinds of errors
            raise AttnctlError(f"cannot read {path}: {in_one_line(error)}") from error


def _check_space(path: Path, folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > 0.9 * free:
        raise AttnctlError(
            f"{path.name} takes {size / 1e9:.1f} GB dequantised, and {folder.parent} has {free / 1e9:.1f} GB left: make "
            "room, or set XDG_CACHE_HOME to a larger disk"
        )


@contextmanager
def _parse_once() -> Iterator[Any]:
    """Parse the metadata of each file once within this context: transformers asks for it three times, seconds each."""
    import gguf

    plain = gguf.GGUFReader
    once = functools.cache(plain)
    reader = lambda name, *_: once(str(name))  # noqa: E731
    setattr(gguf, "GGUFReader", reader)  # noqa: B010
    try:
        yield reader
    finally:
        setattr(gguf, "GGUFReader", plain)  # noqa: B010


@contextmanager
def _conversion_bar(path: Path) -> Iterator[None]:
    """Show the library's own progress bars on a terminal, and one line in a pipe."""
    print_progress(f"dequantising {path.name} (once; kept in {cache_folder()})")
    logging = import_extra("transformers.utils.logging")
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
