"""Make the configuration of transformers for a GGUF file."""

from __future__ import annotations

from typing import Any

from attnctl.errors import AttnctlError
from attnctl.models.gguf.families import Family, architectures, family_of
from attnctl.models.gguf.settings import Settings
from attnctl.models.gguf.tensors import GgufFile


def settings_and_family(file: GgufFile, name: str) -> tuple[Settings, Family]:
    """Return the settings of a file and how it is read. Raises AttnctlError for an architecture that is not read."""
    architecture = str(file.metadata.get("general.architecture", ""))
    settings = Settings(file, architecture, name)
    family = family_of(settings)
    if family is None:
        known = ", ".join(architectures())
        raise AttnctlError(
            f"{name} is of the architecture {architecture[:60] or 'without a name'}: attnctl reads {known}"
        )
    return settings, family


def configuration_fields(settings: Settings, family: Family) -> dict[str, Any]:
    """Return the fields of the configuration for a file. Raises AttnctlError for a setting that is not accounted for."""
    fields = dict(family.fixed)
    for key, name in family.keys.items():
        if key.endswith("_epsilon"):  # llama.cpp has no default for it
            fields[name] = settings.number(key)
        elif (value := settings.get(key)) is not None:
            fields[name] = value
    heads, kv_heads = settings.heads, settings.get("attention.head_count_kv")
    sizes = {"layers": settings.layers, "heads": heads, "kv_heads": heads if kv_heads is None else kv_heads}
    sizes["head_width"] = settings.head_width
    for what, usual in FIELDS.items():
        if name := family.field_of(what, usual):
            fields[name] = sizes[what]
    fields["vocab_size"] = _vocabulary(settings)
    if family.ties:
        fields[family.ties] = "output.weight" not in settings.file.tensors
    fields |= {name: True for end, name in family.biases.items() if settings.has_tensor(end)}
    for adjustment in family.adjustments:
        fields |= adjustment(settings)
    _check_widths(settings, family)
    settings.unread()  # raises for a setting that may have an effect
    return fields | {"architectures": [family.network]} | _special_ids(settings.file)


def file_notes(settings: Settings, fields: dict[str, Any]) -> tuple[str, ...]:
    """Return what is shown otherwise than the checkpoint behind a file has it, because llama.cpp computes it so."""
    notes = []
    for name, value in settings.unread().items():
        notes.append(f"The file says {name} {str(value)[:40]}. llama.cpp does not read it, and neither does attnctl.")
    blocks = {"gemma2": 46, "gemma3": 62}.get(settings.architecture)
    if blocks == settings.layers:
        notes.append(
            f"The scores are scaled by 1 / √{fields['query_pre_attn_scalar']}, embedding_length / head_count. llama.cpp "
            f"derives query_pre_attn_scalar from the {blocks} blocks; the file does not hold it."
        )
    rope = fields.get("rope_parameters") or {}
    if "rope_factors_long.weight" in settings.file.tensors:
        notes.append(
            f"Up to {rope['original_max_position_embeddings']:,} tokens the rotary positions have their short factors, "
            "beyond them the long ones (longrope). llama.cpp chooses by the length of its context (n_ctx), not of the text."
        )
    return tuple(notes)


FIELDS = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
}


def _vocabulary(settings: Settings) -> int:
    table = settings.file.tensors.get("token_embd.weight")
    if table is None:
        raise AttnctlError(f"{settings.name} lacks the tensor token_embd.weight: its file is incomplete")
    return table.shape[0]


def _check_widths(settings: Settings, family: Family) -> None:
    """Raise AttnctlError for widths of heads that the class of network cannot have."""
    derived = settings.width // max(settings.heads, 1)
    has_low_rank = settings.architecture == "deepseek2"
    if not family.field_of("head_width", "head_dim") and not has_low_rank and settings.head_width != derived:
        raise settings.refuse("attention.key_length", f"attnctl reads embedding_length / head_count, {derived}")
    if not has_low_rank and settings.whole("attention.value_length", settings.head_width) != settings.head_width:
        raise settings.refuse("attention.value_length", "attnctl reads the width of the keys")
    turns_all = "rope.dimension_count" in settings.used and not family.partial and not has_low_rank
    if turns_all and settings.whole("rope.dimension_count", settings.head_width) != settings.head_width:
        raise settings.refuse("rope.dimension_count", f"attnctl reads the width of a head, {settings.head_width}")


def _special_ids(file: GgufFile) -> dict[str, int | None]:
    """Return the ids of the special tokens."""
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id", "unknown": "unk_token_id"}
    ids = {field: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name, field in names.items()}
    return {field: value if isinstance(value, int) else None for field, value in ids.items()}
