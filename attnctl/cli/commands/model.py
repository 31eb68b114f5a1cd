"""`attnctl model`: how large a model's attention is, from its configuration alone; the card of a trained one."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps, loads
from pathlib import Path
from shutil import get_terminal_size

from attnctl import __version__
from attnctl.cli.arguments import check_mode
from attnctl.cli.output import print_lines, put_json
from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.builtin.weights import BUNDLED, path_of, read_weights
from attnctl.models.huggingface.configured_sizes import known_configurations, model_sizes
from attnctl.models.huggingface.sizes import ModelSizes
from attnctl.render.terminal.model_tables import model_card, size_lines


def model_command(*, name: str | None, length: int | None, json: bool) -> None:
    """Say how large a model's attention is: heads, parameters, the n × n, the cache. No weights are read."""
    if name is not None and (path := _trained_file(name)) is not None:
        check_mode("model", "a trained model's card")
        _print_card(name, path, json)
        return
    if name is None:
        check_mode("model", "the list of models")
        width = max(map(len, known_configurations()))
        print_lines(*(f"{key:{width}}  {entry['title']}" for key, entry in known_configurations().items()))
        return
    found = model_sizes(name)
    n = length or found.context or 1024
    if json:
        _write_sizes(found, n)
        return
    print_lines(*size_lines(found, n, get_terminal_size((80, 24)).columns))


def _trained_file(name: str) -> Path | None:
    """The file of a bundled model, of a run, or of weights; None for anything else."""
    if name in BUNDLED:
        return path_of(name)
    path = Path(name) / "weights.safetensors" if Path(name).is_dir() else Path(name)
    return path if path.suffix == ".safetensors" and path.is_file() else None


def _print_card(name: str, path: Path, json: bool) -> None:
    file = read_weights(path)
    shapes = {key: list(tensor.shape) for key, tensor in file.tensors.items()}
    if json:
        told = {key: _metadata_entry(name, key, value) for key, value in file.metadata.items()}
        put_json({"name": name, "shapes": shapes, "metadata": told}, schema="card")
        return
    wide = get_terminal_size((120, 24)).columns
    print_lines(*model_card(name, file.metadata, shapes, path.stat().st_size, wide))


def _metadata_entry(name: str, key: str, value: str) -> object:
    """An entry of the metadata, the JSON in it read. Raises AttnctlError where it is damaged."""
    if key not in ("recipe", "figures", "tokens"):
        return value
    try:
        return loads(value)
    except (ValueError, RecursionError) as error:
        raise AttnctlError(f"the card of {name} is damaged: {key} is not JSON: {in_one_line(error)}") from error


def _write_sizes(found: ModelSizes, n: int) -> None:
    """One line of JSON: the sizes and what follows from them, bytes as integers."""
    opening = {"schema": "attnctl.sizes/1", "attnctl": __version__}
    told = opening | {key: value for key, value in asdict(found).items() if value not in (None, "", ())}
    if found.built:
        told["built"] = [asdict(group) | {"matrices": dict(group.matrices)} for group in found.built]
    follows = {
        "parameters": {"all": found.in_all()}
        | ({} if found.built else {"head": found.per_head(), "layer": found.per_layer()}),
        "embedding": found.embedding_parameters(),
        "cache_bytes_per_token": found.cache_per_token() if found.cache_told else None,
        "tokens": n,
        "cache_bytes": found.bytes_of_cache(n) if found.cache_told else None,
        "cross_cache_bytes": found.bytes_of_source(n) or None if found.cache_told else None,
        "grid_bytes": found.bytes_of_grid(n),
        "grids_bytes": found.bytes_of_grids(n),
        "unfactored_bytes": found.bytes_unfactored(n),
    }
    print_lines(dumps(told | {key: value for key, value in follows.items() if value is not None}))  # beyond 64 bits
