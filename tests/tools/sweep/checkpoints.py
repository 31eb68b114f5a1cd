"""A family as attnctl's commands see it: a checkpoint with a tokenizer, recorded as a trace, and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from attnctl.errors import AttnctlError
from attnctl.formats.storage import from_json
from attnctl.models.check import check_attention
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.network import network_info
from attnctl.models.huggingface.opened import OpenedCheckpoint
from attnctl.models.huggingface.readers.text import SourceTargetReader, TextReader
from attnctl.models.huggingface.tokenizer import Pieces
from attnctl.source import record_trace
from attnctl.trace.consistency import findings_of_trace
from tests.tools.sweep.families import Family, build
from tests.tools.sweep.modes import N, ids

WORDS = {f"w{number}": number for number in range(128)}
TEXT = " ".join(f"w{number}" for number in ids(1, N)[0].tolist())


def opened(family: Family, network: Any, kind: str) -> Checkpoint:
    """The network as a checkpoint that reads words of a tiny vocabulary."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="w4"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    target = "w5 w6 w7" if kind in ("decoder", "cross") else None
    name = family.kind
    pieces = Pieces(name, tokenizer, {})
    reader = TextReader(pieces) if kind == "self" else SourceTargetReader(pieces)
    return OpenedCheckpoint(network_info(network, name, kind), network, reader, kind, target)


def tokenizer() -> tokenizers.Tokenizer:
    """Words of a tiny vocabulary, with the special tokens that most families want."""
    special = ["<pad>", "<s>", "</s>", "<mask>", "<unk>"]
    words = {f"w{number}": number for number in range(len(special), 128)} | {
        name: at for at, name in enumerate(special)
    }
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(special[:4])
    return made


def saved(family: Family, folder: Path, **settings: Any) -> Path:
    """The family's network as a checkpoint in a folder, as a user has one; with these settings in its configuration."""
    network = build(family)
    if settings:
        config_class = type(network.config)
        network = type(network)(config_class.from_dict(network.config.to_dict() | settings))
    network.config.architectures = [type(network).__name__]
    network.config.dtype = network.dtype
    network.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def recorded_and_checked(family: Family, network: Any, kind: str) -> str | None:
    """What is wrong with the trace of one kind of attention, or None. Raises AttnctlError where it is refused."""
    model = opened(family, network, kind)
    trace = record_trace(model, TEXT)
    if not trace.layers:
        return f"an empty {kind} trace"
    shapes = {layer.layer: layer.weights.shape[-2:] for layer in trace.layers if layer.weights is not None}
    own, contexts = model.own_attention(trace.tokens, trace.text, shapes)
    for layer in trace.layers:
        if layer.weights is None or layer.layer not in own:
            if model.puts_out_weights:
                continue  # where its code multiplies them is not seen
            if layer.layer in contexts and layer.weights is not None:  # a module in blocks, which keeps no weights
                gap = float(np.abs(layer.weights @ layer.values - contexts[layer.layer]).max())
                if gap > 1e-4:
                    return f"{kind} layer {layer.layer}: context off by {gap:.1e}"
                continue
            return f"{kind} layer {layer.layer}: eager tells of no such layer"
        ours, theirs = layer.weights, own[layer.layer]
        if ours.shape != theirs.shape:
            return f"{kind} layer {layer.layer}: {ours.shape} for {theirs.shape}"
        if (ours.sum(-1) < theirs.sum(-1) - 0.01).any():  # without a sink's share
            ours, theirs = (w / np.maximum(w.sum(-1, keepdims=True), 1e-12) for w in (ours, theirs))
        if (gap := float(np.abs(ours - theirs).max())) > 1e-4:
            return f"{kind} layer {layer.layer}: weights off by {gap:.1e}"
    false = [finding for finding in check_attention(model, TEXT) if finding.holds is False]
    if false:
        return f"check finds {kind} {false[0].sentence}: {false[0].result}"
    if (again := from_json(trace.to_json())).notes != trace.notes:
        return f"{kind}: read again, {again.notes[-1]}"
    false = [finding for finding in findings_of_trace(again) if finding.holds is False]
    return f"check of the {kind} file finds {false[0].sentence}: {false[0].result}" if false else None


def kinds_of(network: Any) -> tuple[str, ...]:
    """The kinds of attention that a checkpoint of this network can be asked for."""
    return ("encoder", "decoder", "cross") if network.config.is_encoder_decoder else ("self",)


def trace_of(family: Family, network: Any) -> str | None:
    """The same for every kind. Raises AttnctlError where all of them are refused."""
    refused: list[AttnctlError] = []
    kinds = kinds_of(network)
    for kind in kinds:
        try:
            if (what := recorded_and_checked(family, network, kind)) is not None:
                return what
        except AttnctlError as error:
            refused.append(error)
    if len(refused) == len(kinds):
        raise refused[0]
    return None
