"""Find the size of a model's attention by its name, from its configuration alone: no weights are read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from attnctl.commands.model.result import AttentionGroup, Card, Parameters, Sizes
from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models import BUILT_IN, known_checkpoints
from attnctl.models.configurations import sizes_of_checkpoint, sizes_of_settings
from attnctl.models.sizes import ModelSizes
from attnctl.text import Document, for_pasting


@cache
def known_configurations() -> dict[str, Document]:
    """Return the configurations that come with attnctl, by name.

    Each was compared with another source in November 2026. transformers' defaults: GPT-2 small, BERT base, RoBERTa,
    GPT-NeoX, Gemma 2 2B, gpt-oss 120B. The files of packages: all-MiniLM-L6-v2, SmolLM2. LitGPT's `config.py`: Falcon,
    Phi, Llama, Mixtral, Qwen, Gemma 2, OLMo 2. Google's gemma_pytorch: Gemma 3. DeepSeek's `config_671B.json`: DeepSeek-V3.
    nanoGPT: the other GPT-2s. Google's BERT README: BERT large. Copies of config.json: T5, BLOOM, Mistral, gpt-oss 20B, and
    the window of Phi-3. Brown et al. 2020, table 2.1: GPT-3.
    """
    table: dict[str, Document] = json.loads(files("attnctl.commands.model").joinpath("known.json").read_text("utf-8"))
    return table


def model_sizes(name: str) -> ModelSizes:
    """Return the sizes of a model by a known name, a hub id, a checkpoint's folder or its GGUF file.

    Raises UsageError if there is no such model, AttnctlError if its configuration lacks a size.
    """
    table = known_configurations()
    by_id = {str(entry.get("hub_id", "")).lower(): key for key, entry in table.items()}
    key = name.lower() if name.lower() in table else by_id.get(name.lower())
    if key is not None and not Path(name).exists():
        settings = {key_name: value for key_name, value in table[key].items() if key_name not in ("title", "hub_id")}
        return sizes_of_settings(settings, str(table[key]["title"]), "a configuration that comes with attnctl")
    if (sizes := sizes_of_checkpoint(name)) is not None:
        return sizes
    if name in BUILT_IN or (Path(name).suffix.lower() in (".safetensors", ".npz") and Path(name).exists()):
        hint_text = f"attnctl explain --model {for_pasting(name)} shows all there is"
        raise UsageError(f"{name} has no configuration to read: {hint_text}", value=name)
    if Path(name).exists():
        raise UsageError(
            f"{name} is not a model: it is a known name, a checkpoint's folder or .gguf file, or owner/name"
        )
    near = difflib.get_close_matches(name.lower(), [*table, *known_checkpoints()], n=1)
    hint = (
        f"did you mean {near[0]}?" if near else "`attnctl model` lists the known ones, or give a folder, or owner/name"
    )
    raise UsageError(f"no model {name!r}: {hint}", value=name)


def sizes_document(sizes: ModelSizes, n: int) -> Sizes:
    """Return the sizes as a document, with the memory for a text of n tokens; bytes may need more than 64 bits."""
    main, cross = sizes.main_layers, sizes.cache_bytes(n, of_source=True)
    groups = (
        AttentionGroup(**vars(part) | {"layers": len(part.layers), "matrices": dict(part.matrices)})
        for part in sizes.groups
    )
    return Sizes(
        name=sizes.name,
        architecture=sizes.architecture,
        layers=sizes.layers,
        heads=main.heads,
        kv_heads=main.kv_heads,
        d_k=main.d_k,
        d_v=main.d_v,
        d_model=sizes.d_model,
        vocabulary=sizes.vocabulary,
        context=sizes.context,
        window=sizes.window,
        source=sizes.source or None,
        file_facts=dict(sizes.file_facts) or None,
        built=sizes.built,
        groups=tuple(groups),
        cache=sizes.cache,
        parameters=Parameters(all=sizes.in_all(), layer=sizes.per_layer(), head=sizes.per_head()),
        embedding=sizes.embedding,
        cache_bytes_per_token=sizes.cache_bytes(1),
        tokens=n,
        cache_bytes=sizes.cache_bytes(n),
        cross_cache_bytes=cross or None,
        grid_bytes=sizes.bytes_of_grid(n),
        grids_bytes=sizes.bytes_of_grids(n),
        unfactored_bytes=sizes.bytes_unfactored(n),
    )


def model_card(name: str, shapes: Mapping[str, Sequence[int]], metadata: Mapping[str, str]) -> Card:
    """Return the card of a trained model: the shapes of its tensors, and its metadata with the JSON in it parsed.

    Raises AttnctlError if the JSON is damaged.
    """
    entries: Document = dict(metadata)
    for key in {"recipe", "figures", "tokens"} & set(entries):
        try:
            entries[key] = json.loads(entries[key])
        except (ValueError, RecursionError) as error:
            raise AttnctlError(f"the card of {name} is damaged: {key} is not JSON: {in_one_line(error)}") from error
    return Card(name=name, shapes={key: tuple(shape) for key, shape in shapes.items()}, metadata=entries)
