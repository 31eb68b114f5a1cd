"""Recognise quantised weights in a checkpoint's folder, and dequantise those whose scales transformers leaves out.

transformers acts on the methods that it lists, and only if config.json names one. Otherwise it reads the whole numbers or
the float8 of a weight as they are, and drops the scales beside it. Here a weight is its stored number times its scale, where
the names and shapes leave no doubt. Everything else is refused by the name of its quantisation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import configurations_within
from attnctl.models.huggingface.hub import import_extra, read_json
from attnctl.models.huggingface.stored_tensors import PLAIN_DTYPES, StoredTensor, StoredTensors
from attnctl.runtime.light_import import complete_torch

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from attnctl.text import Document

FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
DEQUANTISED = ("I8", "F8_E4M3", "F8_E5M2")  # the others are packed, or differ between libraries
SCALE_TYPES = (
    *PLAIN_DTYPES,
    "F8_E8M0",
)  # the last are powers of two; bytes that stand for such are not told from others
BLOCK = (128, 128)  # rows and columns of a block where no file says so: DeepSeek's, whose names the files follow

# files beside config.json that say how weights are quantised, newest first
FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
# the last part of the name of a scale beside `….weight` → the number that the scale is divided by. Its sources:
# weight_scale compressed-tensors, ModelOpt, vLLM; weight_scale_inv DeepSeek-V3, a factor in spite of its name;
# scale_weight ComfyUI; SCB bitsandbytes, the largest number of a row, which is stored as 127; scale DeepSeek-V4
SCALES = {"weight_scale": 1, "weight_scale_inv": 1, "scale_weight": 1, "qscale_weight": 1, "SCB": 127, "scale": 1}
# what may lie beside a scaled weight and changes no weight: scales of activations and of a cache, a mark of the format
NEUTRAL = re.compile(
    r"weight|bias|(input|output|activation|[qkv]|kv|prob)_scale(_inv)?|scale_(input|output)|input_zero_point|weight_format"
    r"|weight_shape|(input|output|weight|[qkv]_bmm)_quantizer"
)
# (last parts of names, quantisation): the tensors that a method saves in place of a weight, where its name is not given
LAYOUTS = (
    (("qweight", "qzeros", "g_idx"), "GPTQ"),
    (("qweight", "qzeros"), "GPTQ or AWQ"),
    (("W_q",), "HQQ"),
    (("_data", "_scale"), "quanto"),
    (("q_weight", "q_scale"), "EXL2"),
    (("trellis",), "EXL3"),
    (("weight_packed",), "compressed-tensors, packed"),
    (("quant_map", "absmax"), "bitsandbytes 4-bit"),
    (("SCB",), "bitsandbytes 8-bit"),
    (("codes", "codebooks"), "AQLM"),
    (("centroids", "indices"), "VPTQ"),
    (("weight_scale_2",), "NVFP4"),
    (("weight_scales",), "EETQ"),
    (("scales", "biases"), "MLX"),
    (("_weight_qdata",), "torchao"),
    (("qweight",), "a packed format"),
)
# the layouts whose weights stay in their places, as numbers with a scale
IN_PLACE = ("bitsandbytes 8-bit",)


@dataclass(frozen=True)
class Quantisation:
    """How a checkpoint's weights are quantised: `name` for sentences, and `settings` as its folder states them."""

    name: str
    settings: Document
    by_library: bool  # whether transformers acts on it

    @property
    def computing(self) -> str | None:
        """Return what bitsandbytes computes in, whatever the type of the network; None for other methods."""
        if self.settings.get("load_in_4bit"):
            return str(self.settings.get("bnb_4bit_compute_dtype", "float32")).removeprefix("torch.")
        return "8 bits" if self.settings.get("load_in_8bit") else None


def folder_quantisation(folder: Path, settings: Document, stored: StoredTensors) -> Quantisation | None:
    """Return how the weights in a folder are quantised, by its files and by its tensors; None for plain numbers."""
    in_config = next((part for part in _parts(settings, "quantization_config")), None)
    if in_config is not None and _library_acts_on(in_config):
        return Quantisation(_stated_name(in_config), in_config, by_library=True)
    layout = _layout_of_tensors(stored)
    stated = (
        in_config or next((part for part in _parts(settings, "compression_config")), None) or _stated_beside(folder)
    )
    # with a name alone the weights may be plain: a copy that was dequantised keeps its configuration
    if layout is None and not any(_is_quantised(tensor) for tensor in stored.tensors.values()):
        return None
    name = _stated_name(stated) if stated else layout or _types_of_weights(stored)
    if stated and layout and not _stated_method(stated):
        name = f"{layout} {name}"
    return Quantisation(name, stated or {}, by_library=False)


def computed_in(quantisation: Quantisation, config: PreTrainedConfig, dtype: str) -> Quantisation:
    """Let bitsandbytes compute in the type that the user names: with 4-bit weights it takes that of its file otherwise."""
    if not quantisation.settings.get("load_in_4bit"):
        return quantisation
    settings = quantisation.settings | {"bnb_4bit_compute_dtype": dtype}
    for part in configurations_within(config):
        if getattr(part, "quantization_config", None):
            part.quantization_config = settings
    return replace(quantisation, settings=settings)


def _parts(settings: Document, key: str) -> list[Document]:
    text = settings.get("text_config")
    found = [part.get(key) for part in (settings, text if isinstance(text, dict) else {})]
    return [part for part in found if isinstance(part, dict) and part]


def _library_acts_on(stated: Document) -> bool:
    """Return whether transformers has a quantiser for these settings; without one it goes on as if there were none."""
    complete_torch()
    quantizers = import_extra("transformers.quantizers.auto")
    method = stated.get("quant_method")
    if stated.get("load_in_8bit") or stated.get("load_in_4bit"):
        return True
    return isinstance(method, str) and method in quantizers.AUTO_QUANTIZATION_CONFIG_MAPPING


def _stated_beside(folder: Path) -> Document | None:
    """Return the settings of a file beside config.json; None if there is none that can be read."""
    for name in FILES:
        if (folder / name).is_file():
            stated = read_json(folder / name)
            within = stated.get("quantization")
            return stated | within if isinstance(within, dict) else stated
    return None


def _stated_method(stated: Document) -> object:
    """Return the name of a method, or of the program that used it; None if settings do not give it."""
    producer = stated.get("producer")
    method = stated.get("quant_method") or (producer.get("name") if isinstance(producer, dict) else None)
    return "bitsandbytes" if stated.get("load_in_8bit") or stated.get("load_in_4bit") else method


def _stated_name(stated: Document) -> str:
    """Return the name that settings give their quantisation, with its algorithm or width."""
    method = _stated_method(stated)
    width = next((f"{stated[key]}-bit" for key in ("bits", "nbits", "w_bit", "num_bits") if stated.get(key)), "")
    if stated.get("load_in_4bit"):
        width = f"4-bit {stated.get('bnb_4bit_quant_type', '')}".strip()
    width = "8-bit" if stated.get("load_in_8bit") else width
    detail = stated.get("quant_algo") or width or stated.get("format") or ""
    return " ".join(str(part)[:40] for part in (method, detail) if part) or "a quantisation without a name"


def _layout_of_tensors(stored: StoredTensors) -> str | None:
    """Return the quantisation whose tensors lie in place of weights, or beside them; None for plain numbers."""
    packed = any(tensor.dtype in (*FLOAT8, *INTEGERS) and tensor.dtype != "I64" for tensor in stored.tensors.values())
    return layout_of(stored.tensors) if packed else None


def layout_of(names: Iterable[str]) -> str | None:
    """Return the quantisation that gives such names to its tensors, by their last parts; None for plain names."""
    ends = {re.split("[.:]", name)[-1] for name in names}
    if any(end.startswith("bitsandbytes__") for end in ends):
        return "bitsandbytes 4-bit"
    return next((layout for parts, layout in LAYOUTS if ends.issuperset(parts)), None)


def _is_weight(tensor: StoredTensor) -> bool:
    """Return whether a tensor is a matrix of weights by its name, rather than a mask, a counter or a table of positions."""
    return len(tensor.shape) >= 2 and re.search(r"(weight|_proj|\.(kernel|qdata))$", tensor.name) is not None


def _is_quantised(tensor: StoredTensor) -> bool:
    return tensor.dtype in (*FLOAT8, *INTEGERS) and _is_weight(tensor)


def _types_of_weights(stored: StoredTensors) -> str:
    types = sorted({tensor.dtype for tensor in stored.tensors.values() if _is_quantised(tensor)})
    return " and ".join("float8" if kind in FLOAT8 else kind.replace("I", "int").replace("U", "u") for kind in types)


# --- scales ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaledTensor(StoredTensor):
    """A weight that is read as its stored numbers times `scale`."""

    scale: StoredTensor
    divisor: int
    block: tuple[int, int]

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        scale = self.scale.values.float() / self.divisor
        return self.values.float() * spread(scale, self.shape, self.block)

    def get_dtype(self) -> str:
        """Return the type of the product."""
        return "F32"


def scale_of(tensor: StoredTensor, stored: StoredTensors) -> tuple[StoredTensor, int] | None:
    """Return the scale that lies beside a weight in its file, with its divisor; None if there is none."""
    base = tensor.name.removesuffix("weight")
    names = {f"{base}{end}": divisor for end, divisor in SCALES.items()} if tensor.name.endswith(".weight") else {}
    names |= {f"{tensor.name}_scale": 1, f"{tensor.name}_scale_inv": 1}
    return next(((stored.tensors[name], by) for name, by in names.items() if name in stored.tensors), None)


def scaled_tensors(stored: StoredTensors, quantisation: Quantisation, name: str) -> Mapping[str, StoredTensor]:
    """Return the tensors of the network, with every quantised weight as its numbers times its scale.

    Raises AttnctlError that names the quantisation if the meaning of a tensor is not certain.
    """

    def refusal(tensor: StoredTensor, why: str) -> AttnctlError:
        return refused(quantisation, name, f"{tensor.name} {why}")

    layout = _layout_of_tensors(stored)
    if layout is not None and layout not in IN_PLACE:
        raise refused(quantisation, name, "its weights are packed")
    scaled, used = dict[str, StoredTensor](), set[str]()
    beside = _names_beside(stored)
    block = _stated_block(quantisation.settings)
    for tensor in stored.tensors.values():
        if not _is_quantised(tensor):
            continue
        scale = scale_of(tensor, stored)
        if scale is None:
            if tensor.dtype in FLOAT8:  # float8 without a scale is a number as it is
                continue
            raise refusal(tensor, f"holds {tensor.dtype} without a scale that attnctl knows")
        if tensor.dtype not in DEQUANTISED or (tensor.dtype == "I8" and "FP8" in quantisation.name.upper()):
            raise refusal(tensor, f"holds packed numbers ({tensor.dtype})")
        base = tensor.name.rpartition(".")[0]
        others = beside[base] - {scale[0].name.rpartition(".")[2]}
        doubtful = sorted(part for part in others if NEUTRAL.fullmatch(part) is None)
        if tensor.name.endswith(".weight") and doubtful:
            raise refusal(tensor, f"has {doubtful[0]} beside it, which changes it too")
        if scale[0].dtype not in SCALE_TYPES:
            raise refusal(tensor, f"has a scale of {scale[0].dtype}")
        if not scale_fits(scale[0].shape, tensor.shape, block):
            raise refusal(tensor, f"has the shape {tensor.shape}, and its scale {scale[0].shape}")
        if (form := stored.tensors.get(f"{base}.weight_format")) is not None and int(form.values.max()):
            raise refusal(tensor, "has its rows in the order of a GPU's tiles")
        scaled[tensor.name] = ScaledTensor(
            tensor.name, tensor.path, tensor.dtype, tensor.shape, scale=scale[0], divisor=scale[1], block=block
        )
        used |= {f"{base}.{part}" for part in others - {"weight", "bias"}} | {scale[0].name}
    return {key: scaled.get(key, tensor) for key, tensor in stored.tensors.items() if key not in used}


def refused(quantisation: Quantisation, name: str, why: str) -> AttnctlError:
    """Return the error for a checkpoint whose weights cannot be told: it names the quantisation, and what to do."""
    known = "" if quantisation.settings else ", and no quantization_config of its config.json says how"
    return AttnctlError(
        f"{name} is quantised by {quantisation.name}{known}, and transformers does not read that here ({why}): dequantise "
        "it with the library that made it, and save plain weights"
    )


def _names_beside(stored: StoredTensors) -> dict[str, set[str]]:
    """Return the names that end in each module: "layers.0.q_proj" → {"weight", "weight_scale"}."""
    beside = dict[str, set[str]]()
    for name in stored.tensors:
        module, _, last = name.rpartition(".")
        beside.setdefault(module, set()).add(last)
    return beside


def _stated_block(settings: Document) -> tuple[int, int]:
    """Return rows and columns of a block as settings state them, somewhere within; else the usual."""
    for key in ("weight_block_size", "block_structure"):
        stated: Any = next(iter(_values_of(settings, key)), None)
        if isinstance(stated, str):
            stated = [int(side) for side in re.findall(r"\d+", stated)]
        if isinstance(stated, list) and len(stated) == 2 and all(isinstance(n, int) and n > 0 for n in stated):
            return stated[0], stated[1]
    return BLOCK


def _values_of(settings: object, key: str) -> list[Any]:
    if not isinstance(settings, dict):
        return []
    within = [value for part in settings.values() for value in _values_of(part, key)]
    return [settings[key], *within] if settings.get(key) else within


def scale_fits(scale: tuple[int, ...], shape: tuple[int, ...], block: tuple[int, int]) -> bool:
    """Return whether the meaning of a scale is certain: one for all, for each row, column or group, or for each block."""
    if all(side == 1 for side in scale):
        return True
    if len(scale) == 1:  # (rows,), and (experts,) of matrices in a stack
        return scale[0] == shape[0]
    if len(scale) != len(shape) or any(a not in (1, b) for a, b in zip(scale[:-2], shape[:-2], strict=True)):
        return False
    (rows, columns), (n_rows, n_columns) = scale[-2:], shape[-2:]
    if rows in (1, n_rows) and columns in (1, n_columns):
        return True
    if rows == n_rows and n_columns % columns == 0:  # groups within a row
        return True
    return (rows, columns) == (-(-n_rows // block[0]), -(-n_columns // block[1]))


def spread(scale: torch.Tensor, shape: tuple[int, ...], block: tuple[int, int]) -> torch.Tensor:
    """Return a scale that `scale_fits`, in a shape that multiplies a weight of `shape`."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.ndim == 1:
        return scale.reshape(-1, *[1] * (len(shape) - 1))  # (rows, 1)
    rows, columns = scale.shape[-2:]
    n_rows, n_columns = shape[-2:]
    if rows not in (1, n_rows):
        scale = scale.repeat_interleave(block[0], -2)[..., :n_rows, :]
    if columns not in (1, n_columns):
        width = n_columns // columns if rows == n_rows and n_columns % columns == 0 else block[1]
        scale = scale.repeat_interleave(width, -1)[..., :n_columns]
    return scale


def left_out(quantisation: Quantisation, unused: Iterable[str]) -> bool:
    """Return whether transformers, which acts on a quantisation, has left out scales of its weights."""
    ends = {name.rpartition(".")[2] for name in unused}
    scales = {end for end in ends if end in SCALES or re.search(r"_scale(_inv)?$", end)}
    return quantisation.by_library and any(NEUTRAL.fullmatch(end) is None for end in scales)


def of_quantised_weights(quantisation: Quantisation | None, unused: Iterable[str], stored: StoredTensors) -> set[str]:
    """Return the unused tensors that a quantiser of transformers knows and does not need: they lie beside its own."""
    if quantisation is None or not quantisation.by_library:
        return set()
    packed = {name.rpartition(".")[0] for name, tensor in stored.tensors.items() if tensor.dtype not in PLAIN_DTYPES}
    return {name for name in unused if name.rpartition(".")[0] in packed and not name.endswith(".bias")}


def breaks_blocks(quantisation: Quantisation, stored: StoredTensors) -> bool:
    """Return whether transformers would take blocks of another size than the file's, for float8 with a scale a block.

    It divides the rows of a weight by the rows of its scale (5.24), so that a last block that is smaller than the others
    moves all borders.
    """
    if quantisation.settings.get("quant_method") != "fp8":
        return False
    block = _stated_block(quantisation.settings)
    for tensor in stored.tensors.values():
        scale = scale_of(tensor, stored) if tensor.dtype in FLOAT8 and len(tensor.shape) >= 2 else None
        if scale is None or len(scale[0].shape) != len(tensor.shape):
            continue
        fits = scale_fits(scale[0].shape, tensor.shape, block)
        sides = zip(scale[0].shape[-2:], tensor.shape[-2:], block, strict=True)
        if fits and any(parts not in (1, side) and side % size for parts, side, size in sides):
            return True
    return False


def without_library(quantisation: Quantisation) -> Quantisation:
    """Return the quantisation as one that attnctl dequantises."""
    return replace(quantisation, by_library=False)
