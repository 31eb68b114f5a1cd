"""Read a network's weights from a checkpoint's folder, so that every tensor of its files is used, harmless, or named."""

from __future__ import annotations

import copy
import inspect
import logging
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import configurations_within
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.quantisation import (
    Quantisation,
    breaks_blocks,
    left_out,
    of_quantised_weights,
    scaled_tensors,
    without_library,
)
from attnctl.models.huggingface.stored_tensors import StoredTensor, StoredTensors
from attnctl.models.huggingface.unused_tensors import UnusedTensors, judge_unused, named
from attnctl.text import counted
from attnctl.trace.notes import Note

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

    from attnctl.text import Document

# settings that give a projection its bias, or queries and keys their norm, in every family that has them
SWITCHES = (
    "attention_bias", "qkv_bias", "attention_qkv_bias", "use_qkv_bias", "mlp_bias", "use_bias", "use_qk_norm", "qk_norm",
    "qk_layernorm",
)  # fmt: skip
# warnings of transformers about what attnctl says itself, or that change no number
SAID_ELSEWHERE = re.compile(r"LOAD REPORT|as a standalone, add|Unknown quantization type|FP8 .*dequantizing")
# a network of so many times the numbers of its files, and so many more, is not theirs: 4-bit weights are 8 to a number
TIMES_TOO_LARGE = 64
NUMBERS_TOO_MANY = 50_000_000


@dataclass(frozen=True)
class FileReport:
    """How the tensors of a checkpoint's files became the weights of its network."""

    n_tensors: int = 0
    quantised: str | None = None  # "modelopt FP8, dequantised"
    elsewhere: tuple[str, ...] = ()  # tensors that the network has no place for
    switched_on: tuple[str, ...] = ()  # settings that config.json lacks, for tensors of the file
    left_out: tuple[str, ...] = ()  # settings of config.json that its family does not know: "sliding_window 4096"
    warnings: tuple[str, ...] = ()  # of transformers

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return what a reader must know of the file."""
        notes = []
        if self.elsewhere:
            count = counted(len(self.elsewhere), "tensor")
            notes.append(f"its network has no place for {count} of its file: {named(self.elsewhere)}.")
        if self.switched_on:
            switches = ", ".join(self.switched_on)
            notes.append(f"its file has tensors for {switches}, which its config.json lacks: they are used.")
        if self.left_out:
            notes.append(
                f"its config.json says {named(self.left_out)}, which its architecture in transformers does not use."
            )
        notes += [f"transformers warns: {line}" for line in self.warnings]
        return tuple(Note(note, "doubt") for note in notes)


def file_report(network: PreTrainedModel) -> FileReport:
    """Return how a network's weights were read; an empty report for a network that attnctl did not open."""
    report = vars(network).get("attnctl_file")
    return report if isinstance(report, FileReport) else FileReport()


KNOWN_SHAPES = 8  # networks whose shapes are kept: a session opens the same folders again and again
# (class, settings) → name → shape of the parameters
_known_shapes: dict[tuple[object, str], dict[str, tuple[int, ...]]] = {}


@dataclass(frozen=True)
class Loading:
    """The network of a folder that is about to be read: its class, its configuration, and the tensors of its files."""

    model_class: Any
    config: PreTrainedConfig
    folder: Path
    settings: Document
    stored: StoredTensors
    quantisation: Quantisation | None
    dtype: str | torch.dtype
    name: str

    def check_sizes(self) -> None:
        """Raise AttnctlError if the network is far larger than its files, before any memory is taken for it."""
        try:
            sizes = self._laid_out(self.config)
        except Exception:  # reading it will raise the error, and say why
            return
        numbers = sum(map(prod, sizes.values()))
        packed = self.quantisation is not None and self.quantisation.by_library
        if numbers <= (TIMES_TOO_LARGE if packed else 4) * self.stored.n_numbers + NUMBERS_TOO_MANY:
            return
        others = {key: shape for key, shape in sizes.items() if self._stored_shape(key) not in (None, shape)}
        largest = max(others or sizes, key=lambda key: prod(sizes[key]))
        stored = self._stored_shape(largest)
        shapes = f"{largest} is {stored} in its file and {sizes[largest]} by its config.json"
        if stored is None:
            shapes = f"its files hold {self.stored.n_numbers:,} numbers, and its config.json asks for {numbers:,}"
            shapes += f", {largest} {sizes[largest]} first"
        raise AttnctlError(f"cannot read {self.name}: {shapes}")

    def _stored_shape(self, key: str) -> tuple[int, ...] | None:
        prefix = f"{self.model_class.base_model_prefix}."
        spellings = (key, prefix + key, key.removeprefix(prefix))
        return next((self.stored.tensors[name].shape for name in spellings if name in self.stored.tensors), None)

    def _laid_out(self, config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the parameters of the network for a configuration, without memory for them."""
        import torch

        key = (self.model_class, repr(config.to_dict()))
        if (shapes := _known_shapes.get(key)) is None:
            with torch.device("meta"):
                parameters = self.model_class(copy.deepcopy(config)).named_parameters()
            shapes = {name: tuple(part.shape) for name, part in parameters}
            if len(_known_shapes) >= KNOWN_SHAPES:
                _known_shapes.clear()
            _known_shapes[key] = shapes
        return dict(shapes)

    def read(self) -> tuple[PreTrainedModel, Document, UnusedTensors]:
        """Return the network, what transformers says of its loading, and the unused tensors.

        Quantised weights are dequantised by their scales where transformers would leave these out. Raises AttnctlError that
        names the quantisation if their meaning is not certain.
        """
        quantisation, stored = self.quantisation, self.stored
        config, weights = self.config, stored.tensors if stored.repeated else None
        with heard_warnings() as heard:
            if quantisation is not None and (not quantisation.by_library or breaks_blocks(quantisation, stored)):
                quantisation, weights = self._dequantised(quantisation)
            try:
                network, info = self._from_files(config, weights)
                by_scales = quantisation is not None and self._is_left_incomplete(quantisation, info)
            except Exception:  # a library is not installed, or needs a GPU: the scales may do without it
                if quantisation is None or not self._has_certain_scales(quantisation):
                    raise
                by_scales = True
            if quantisation is not None and by_scales:
                quantisation, weights = self._dequantised(quantisation)
                network, info = self._from_files(config, weights)
            surplus = info["unexpected_keys"] - of_quantised_weights(quantisation, info["unexpected_keys"], stored)
            unused = judge_unused(network, surplus, stored.tensors)
            switches = self._switches_for(unused.needed, network) if unused.needed else ()
            if switches:
                plain = {name for name, _ in network.named_parameters()}
                network, info = self._from_files(_switched_on(config, switches), weights)
                _zero_new_biases(network, info["missing_keys"], plain)
                unused = judge_unused(network, info["unexpected_keys"], stored.tensors)
        network.attnctl_file = FileReport(  # type: ignore[assignment]  # read by `file_report`
            len(stored.tensors),
            _quantised(quantisation, weights),
            unused.elsewhere,
            switches,
            left_out_settings(self.settings, config),
            tuple(heard),
        )
        return network, info, unused

    def _dequantised(self, quantisation: Quantisation) -> tuple[Quantisation, Mapping[str, StoredTensor]]:
        """Return the quantisation as one of ours, and the tensors times their scales; drop it from the configuration."""
        ours = without_library(quantisation) if quantisation.by_library else quantisation
        weights = scaled_tensors(self.stored, ours, self.name)
        for part in configurations_within(self.config):
            if hasattr(part, "quantization_config"):
                del part.quantization_config
        return ours, weights

    def _is_left_incomplete(self, quantisation: Quantisation, info: Document) -> bool:
        """Return whether transformers has left out scales, or weights that have certain scales."""
        if left_out(quantisation, info["unexpected_keys"]):
            return True
        return bool(info["missing_keys"]) and self._has_certain_scales(quantisation)

    def _has_certain_scales(self, quantisation: Quantisation) -> bool:
        """Return whether transformers acts on a quantisation whose weights all have a scale beside them instead."""
        try:
            weights = scaled_tensors(self.stored, without_library(quantisation), self.name)
        except AttnctlError:
            return False
        return quantisation.by_library and len(weights) < len(self.stored.tensors)

    def _from_files(
        self, config: PreTrainedConfig, weights: Mapping[str, StoredTensor] | None
    ) -> tuple[PreTrainedModel, Document]:
        """Read the network from its folder, or from these tensors of its files."""
        # our function wraps it later; models outside the interface use eager
        fused = self.model_class._can_set_attn_implementation() and self.model_class._supports_sdpa
        # two models in one: the class does not say what its decoder supports (TrOCR: eager)
        fused = fused and not all(isinstance(self.settings.get(half), dict) for half in ("encoder", "decoder"))
        # None: each part of the network uses what it supports (PaliGemma 2: eager for the text, fused for the picture; DETR:
        # a backbone without attention)
        in_parts = config.get_text_config() is not config or getattr(config, "backbone_config", None) is not None
        fused_kernel = None if in_parts else "sdpa"
        network, info = self.model_class.from_pretrained(
            self.folder if weights is None else None,
            config=config,
            state_dict=None if weights is None else dict(weights),
            dtype=self.dtype if weights is None or self.dtype != "auto" else _dtype_of(config, self.stored),
            attn_implementation=fused_kernel if fused else "eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        if weights is not None:  # what transformers reads from a folder beside the weights
            network.config.name_or_path = str(self.folder)
            if network.can_generate() and (self.folder / "generation_config.json").is_file():
                generation = import_extra("transformers").GenerationConfig
                network.generation_config = generation.from_pretrained(self.folder, local_files_only=True)
        return network, info

    def _switches_for(self, needed: Collection[str], network: PreTrainedModel) -> tuple[str, ...]:
        """Return the settings that make a place for every needed tensor; () if no settings do."""
        there = {name for name, _ in network.named_parameters()}
        chosen, placed = list[str](), set[str]()
        for switch in SWITCHES:
            if not any(getattr(part, switch, None) is False for part in configurations_within(self.config)):
                continue
            more = self._laid_out(_switched_on(self.config, [switch])).keys() - there
            if more.intersection(needed) and all(name in needed or name.endswith("bias") for name in more):
                chosen.append(switch)
                placed |= more
        return tuple(chosen) if placed.issuperset(needed) else ()


def _switched_on(config: PreTrainedConfig, switches: Collection[str]) -> PreTrainedConfig:
    """Return a copy of a configuration in which these settings are true, wherever it says false."""
    changed = copy.deepcopy(config)
    for part in configurations_within(changed):
        for switch in switches:
            if getattr(part, switch, None) is False:
                setattr(part, switch, True)
    return changed


def _zero_new_biases(network: PreTrainedModel, missing: set[str], plain: Collection[str]) -> None:
    """Set to zero, and take from the missing ones, the biases that a switch has added and the file does not hold."""
    import torch

    for name in [key for key in missing if key.endswith("bias") and key not in plain]:
        with torch.no_grad():
            network.get_parameter(name).zero_()
        missing.discard(name)


def _quantised(quantisation: Quantisation | None, weights: Mapping[str, StoredTensor] | None) -> str | None:
    """Return how most weights were stored, and how they are computed with."""
    if quantisation is None:
        return None
    if not quantisation.by_library:
        return f"{quantisation.name}, dequantised"
    computing = quantisation.computing
    return quantisation.name if computing is None else f"{quantisation.name}, computed in {computing}"


def _dtype_of(config: PreTrainedConfig, stored: StoredTensors) -> torch.dtype:
    """Return the number type of a network, by its configuration, or by the first tensor of plain numbers."""
    import torch

    stated: Any = getattr(config, "dtype", None)
    kinds = {"F64": torch.float64, "F16": torch.float16, "BF16": torch.bfloat16}
    stored_kind = next((kinds[t.dtype] for t in stored.tensors.values() if t.dtype in kinds), torch.float32)
    return stated if isinstance(stated, torch.dtype) else stored_kind


# settings that change attention in the families that have them → values that change nothing
ATTENTION_SETTINGS: dict[str, tuple[object, ...]] = {
    "sliding_window": (), "attention_window": (), "window_size": (), "attn_logit_softcapping": (0,), "attn_logit_cap": (0,),
    "query_pre_attn_scalar": (), "attention_multiplier": (1,), "use_qk_norm": (), "qk_norm": (), "qk_layernorm": (),
    "alibi": (), "use_alibi": (), "rope_scaling": ({},), "partial_rotary_factor": (1,), "rotary_pct": (1,),
    "no_rope_layers": (), "position_embedding_type": ("absolute",), "attention_sinks": (), "clip_qkv": (),
    "attention_chunk_size": (), "attn_temperature_tuning": (0,), "use_bidirectional_attention": (), "rope_interleave": (),
    "attn_logit_softcap": (0,), "attention_logit_cap": (0,), "qk_scale_factor": (1,), "qk_layer_norms": (), "qk_ln": (),
    "scale_attn_by_inverse_layer_idx": (), "sliding_window_size": (), "relative_attention": (), "use_logn_attn": (),
    "dual_chunk_attention_config": (),
}  # fmt: skip

# by model_type: settings that the family's configuration has and its network never reads → the value that it takes for all
# (transformers 5.24: its modeling_*.py do not name them)
UNREAD_SETTINGS: dict[str, dict[tuple[str, ...], object]] = {
    "mpt": {
        ("attn_config", "alibi"): True,
        ("attn_config", "alibi_bias_max"): 8,
        ("attn_config", "attn_type"): "multihead_attention",
        ("attn_config", "prefix_lm"): False,
    }
}


def left_out_settings(settings: Document, config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the settings of a config.json about attention that change nothing in its network: "alibi True"."""
    return (*_unknown_settings(settings, config), *_unread_settings(settings, config))


def _unread_settings(settings: Document, config: PreTrainedConfig) -> Iterator[str]:
    """Yield the settings of UNREAD_SETTINGS that a config.json gives another value."""
    for names, taken in UNREAD_SETTINGS.get(config.model_type, {}).items():
        value: object = settings
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if value not in (None, taken):
            yield f"{'.'.join(names)} {value}"


def _unknown_settings(settings: Document, config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the settings of a config.json about attention that no class of its configuration has."""
    parts = list(configurations_within(config))
    known = {"rope_scaling"} if any(hasattr(part, "rope_parameters") for part in parts) else set[str]()
    for part in parts:
        for origin in type(part).__mro__:
            known |= vars(origin).keys() | vars(origin).get("__annotations__", {}).keys()
            known |= (vars(origin).get("attribute_map") or {}).keys()
        known |= (getattr(part, "rope_parameters", None) or {}).keys()
    rope = settings.get("rope_parameters")
    if isinstance(rope, dict) and PARTIAL in rope:
        settings = {PARTIAL: rope[PARTIAL], **settings}
    if PARTIAL in settings and not any(map(_turns_a_part, parts)):
        known.discard(PARTIAL)
    stated = {key: settings[key] for key in ATTENTION_SETTINGS.keys() & settings.keys() - known}
    named_settings = {
        key: value for key, value in stated.items() if value not in (None, False, *ATTENTION_SETTINGS[key])
    }
    if not named_settings:
        return ()
    try:  # some are no fields: they are set when a configuration is made (ModernBERT's decoder)
        made = {name for part in parts for name in vars(type(part)())}
    except Exception:  # a class without defaults: what it sets cannot be told
        return ()
    return tuple(f"{key} {value}" for key, value in sorted(named_settings.items()) if key not in made)


PARTIAL = "partial_rotary_factor"


def _turns_a_part(config: PreTrainedConfig) -> bool:
    """Return whether a network reads its partial_rotary_factor: those with scaled positions do, else its family's code."""
    rope: Any = getattr(config, "rope_parameters", None) or {}
    kinds = [part.get("rope_type", "default") for part in (rope, *rope.values()) if isinstance(part, dict)]
    if any(kind != "default" for kind in kinds):
        return True
    folder = Path(inspect.getfile(type(config))).parent
    return any(PARTIAL in path.read_text(encoding="utf-8") for path in folder.glob("*.py"))


# --- warnings of transformers ------------------------------------------------------------------------------------


@contextmanager
def heard_warnings() -> Iterator[list[str]]:
    """Within this context, collect the warnings of transformers that are about the numbers, each once."""
    heard = list[str]()
    logger = logging.getLogger("transformers")

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(" ".join(record.getMessage().split()))

    handlers, level, ear = list(logger.handlers), logger.level, Ear(logging.WARNING)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        logger.handlers[:] = [ear]
        if silent := not logger.isEnabledFor(logging.WARNING):
            logger.setLevel(logging.WARNING)
        try:
            yield heard
        finally:
            logger.handlers[:] = handlers
            if silent:
                logger.setLevel(level)
            heard += [str(warning.message) for warning in warned if "transformers" in Path(warning.filename).parts]
            heard[:] = dict.fromkeys(line for line in heard if SAID_ELSEWHERE.search(line) is None)
