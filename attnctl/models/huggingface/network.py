"""Open the network of a checkpoint, describe its settings for a trace, and find where its weights come from."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl.checks import limits
from attnctl.errors import AttnctlError, error_place, in_one_line, option_name
from attnctl.models.gguf.ollama import SCHEME
from attnctl.models.huggingface.attention_sites import configurations_within, layer_count, reads_text, shares_modules
from attnctl.models.huggingface.folders import moved_by_mlx, stacked_by_mlx
from attnctl.models.huggingface.hub import INDEX, SINGLE, import_extra, known_checkpoint, stored_files
from attnctl.models.huggingface.loading import Loading, file_report
from attnctl.models.huggingface.optional_fields import config_value, generation_config
from attnctl.models.huggingface.quantisation import Quantisation, computed_in, folder_quantisation, refused
from attnctl.models.huggingface.stored_tensors import stored_tensors
from attnctl.models.huggingface.unused_tensors import UnusedTensors, named
from attnctl.readings.questions.head_roles import measured_checkpoints
from attnctl.runtime import light_import
from attnctl.runtime.arrays import one_thread
from attnctl.runtime.files import state_of_files, write_whole
from attnctl.runtime.light_import import import_lightly
from attnctl.runtime.shared_changes import shared_change
from attnctl.text import counted
from attnctl.trace.model_info import ModelInfo

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

    from attnctl.text import Document


SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})(/|$)")
# general.file_type of a GGUF file → the format of most of its weights; other types are named by their number
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
}  # fmt: skip
PLAIN = ("F32", "F16", "BF16")
# the version of transformers that every family was last checked with: the newest in the extra `test`
NEWEST_CHECKED = (5, 24)


def version_notes() -> tuple[str, ...]:
    """Return a note if transformers is newer than the last version that every family was checked with; else ()."""
    version: str = import_extra("transformers").__version__
    if tuple(map(int, re.findall(r"\d+", version)[:2])) <= NEWEST_CHECKED:
        return ()
    checked = ".".join(map(str, NEWEST_CHECKED))
    return (
        f"transformers {version} is newer than {checked}, the last one that attnctl was checked with: explain with "
        f"{option_name('check', True)} holds the weights against the model's own.",
    )


def origin_of(path: Path, name: str = "") -> Document:
    """Return `source`, `revision`, `sha256` and `quantised` of a checkpoint's folder or GGUF file, as far as known.

    A snapshot in the hub's cache is named by its repository and commit; anything else by its name and the digest of its
    weights, which is computed once and stored in the user's cache. A well-known `name` gives the repository of a folder.
    """
    weights = sorted(path.glob("*.safetensors"))
    if snapshot := SNAPSHOT.search(path.as_posix()):
        source = f"{snapshot['owner']}/{snapshot['name']}"
        is_measured = any(source == checkpoint.source for checkpoint in measured_checkpoints().values())
        digest = (
            digest_of(weights[0]) if is_measured and len(weights) == 1 else {}
        )  # the roles are those of these weights
        return {"source": source, "revision": snapshot["revision"]} | digest
    if path.is_file():
        return {"source": name if name.startswith(SCHEME) else path.name} | digest_of(path) | quantisation_of(path)
    known = known_checkpoint(name)
    source = path.name if known is None else known.hub_id
    return {"source": source} | (digest_of(weights[0]) if len(weights) == 1 else {})


def quantisation_of(path: Path) -> dict[str, str]:
    """Return `quantised`: the format of most weights of a GGUF file; {} for plain numbers."""
    file = cached_fact(path, "quantised")
    stored = stored_text(file, r"([A-Z0-9_]+|type [0-9]+)?")
    if stored is None:
        from attnctl.models.gguf.header import read_header

        kind = read_header(path).entries.get("general.file_type")
        stored = FILE_TYPES.get(kind, f"type {kind}") if isinstance(kind, int) else ""
        store_text(file, stored)
    return {} if stored in ("", *PLAIN) else {"quantised": f"{stored}, dequantised"}


def digest_of(path: Path) -> dict[str, str]:
    """Return `sha256` of a file, in hexadecimal digits; {} for a file larger than `limits.DIGEST_BYTES`."""
    if path.stat().st_size > limits.DIGEST_BYTES:
        return {}
    stored_file = cached_fact(path, "sha256")
    if (stored_digest := stored_text(stored_file, "[0-9a-f]{64}")) is not None:
        return {"sha256": stored_digest}
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    store_text(stored_file, digest)
    return {"sha256": digest}


def cached_fact(path: Path, fact: str) -> Path:
    """Return the path in the user's cache of a fact about this version of a file; `fact` is its suffix."""
    from platformdirs import user_cache_path

    return user_cache_path("attnctl") / "origins" / f"{file_fingerprint(path)}.{fact}"


def file_fingerprint(path: Path) -> str:
    """Return a fingerprint of a file's path, size and time of change."""
    stat = path.stat()
    return hashlib.sha256(f"{os.path.realpath(path)}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:12]


def stored_text(path: Path, pattern: str) -> str | None:
    """Return the stored text of a file if it matches the expression `pattern`; None if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size < 1000:
            text = path.read_text(encoding="utf-8")
            return text if re.fullmatch(pattern, text) else None
    return None


def store_text(path: Path, text: str) -> None:
    """Write a text to the user's cache if that is possible."""
    with contextlib.suppress(OSError, AttnctlError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())


SHORT = 2e10  # below this parameters × tokens, one thread is enough, and steadier on a busy machine


# (folder, its files, dtype, device) → network, in a session that keeps them; None: nothing is kept
loaded_networks: dict[object, PreTrainedModel] | None = None


def load_network(folder: Path, settings: Document, dtype: str, device: str, name: str) -> PreTrainedModel:
    """Return the network in a folder or a GGUF file, of the class that its configuration names; its weights are mapped."""
    if loaded_networks is None:
        return _load(folder, settings, dtype, device, name)
    place = (folder.resolve(), state_of_files(folder), dtype, device)
    if place not in loaded_networks:
        loaded_networks.clear()  # two networks may not fit into memory
        loaded_networks[place] = _load(folder, settings, dtype, device, name)
    return loaded_networks[place]


def _load(folder: Path, settings: Document, dtype: str, device: str, name: str) -> PreTrainedModel:
    import_extra("torch")
    if folder.is_file():
        from attnctl.models.gguf.opening import load_gguf

        with quiet_library():
            return load_gguf(folder, name, dtype, device)
    transformers = import_extra("transformers")
    import torch

    from attnctl.runtime.arrays import torch_device

    stored = stored_tensors(folder, name)
    if not settings.get("transformers_weights") and not any((folder / file).exists() for file in (SINGLE, INDEX)):
        file = next(path.name for path in stored_files(folder))
        raise AttnctlError(f"cannot read {name}: its weights are in {file}, and transformers reads {SINGLE}: rename it")
    check_layer_count(settings, len(stored.tensors), name)
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else torch_device(device)
    number_type: str | torch.dtype = dtype if dtype == "auto" else getattr(torch, dtype)
    if dtype == "auto" and place == "cpu":
        number_type = torch.float32
    quantisation = folder_quantisation(folder, settings, stored)

    def build_network() -> tuple[PreTrainedModel, Document, UnusedTensors]:
        model_class = class_of(transformers, settings, name)
        config = configuration_of(model_class, folder)
        stated = quantisation
        if stated is not None and dtype != "auto":
            stated = computed_in(stated, config, dtype)
        loading = Loading(model_class, config, folder, settings, stored, stated, number_type, name)
        loading.check_sizes()
        return loading.read()

    with quiet_library(), redirect_stdout(sys.stderr) if light_import.alone else nullcontext():  # banners of libraries
        try:
            network, loading_info, unused = import_lightly(build_network)
        except (AttnctlError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a damaged checkpoint fails in many ways
            reason = _unknown_rope(error, transformers) or in_one_line(error)
            raise AttnctlError(f"cannot read {name}: {reason}") from error
    check_complete(network, loading_info, name, quantisation)
    check_used(unused, name)
    return network.to(place).eval()  # type: ignore[no-any-return, arg-type]


def _unknown_rope(error: Exception, transformers: Any) -> str | None:
    """Return what is wrong if transformers looked up a kind of rotary positions that it does not have, else None."""
    kinds = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    if not isinstance(error, KeyError) or not error.args or not isinstance(kind := error.args[0], str):
        return None
    frames = [frame.line or "" for frame in traceback.extract_tb(error.__traceback__)]
    if not any("ROPE_INIT_FUNCTIONS[" in line for line in frames):
        return None
    known = ", ".join(sorted({"default", *kinds}))
    return f"its config.json says the rotary positions are {kind[:40]!r}, and transformers has {known}"


# saved settings that change no weight; output_attentions raises an error with a fused kernel
SAVED_SWITCHES = {
    "output_attentions": False, "output_hidden_states": False, "return_dict": True, "chunk_size_feed_forward": 0,
}  # fmt: skip


def configuration_of(model_class: Any, folder: Path) -> PreTrainedConfig:
    """Return the configuration in a folder for a class of model, with its saved switches reset."""
    # eager, whatever the file says: output_attentions works with no other, and the kernel is chosen later
    config = model_class.config_class.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
    for part in configurations_within(config):
        for name, usual in SAVED_SWITCHES.items():
            if hasattr(part, name):
                setattr(part, name, usual)
    return config  # type: ignore[no-any-return]


def check_complete(
    network: PreTrainedModel, loading_info: Document, name: str, quantisation: Quantisation | None = None
) -> None:
    """Raise AttnctlError for weights that are missing in the file or have another shape: they would be random.

    A missing pooler is ignored: it is never run. If the head is missing, nothing is predicted.
    """
    mismatched = sorted(loading_info["mismatched_keys"])
    if mismatched and all(moved_by_mlx(tuple(theirs), tuple(ours)) for _, theirs, ours in mismatched):
        key, theirs, ours = mismatched[0]
        # mlx-lm changes more in such families, as by 1 + weight of a norm: moving the axes back would read them wrongly
        raise AttnctlError(
            f"{name} holds weights as MLX lays them out ({key} is {tuple(theirs)} in its file and {tuple(ours)} in "
            "transformers), and mlx-lm changes other weights of such a model, too: give the folder that mlx-lm made it from"
        )
    for key, theirs, ours in mismatched:
        shapes = f"{key} is {tuple(theirs)} in its file and {tuple(ours)} by its config.json"
        if quantisation is not None:
            raise refused(quantisation, name, shapes)
        raise AttnctlError(f"cannot read {name}: {shapes}")
    prefix = network.base_model_prefix + "."
    lacking = sorted(key for key in loading_info["missing_keys"] if "pooler" not in key)
    lacking_inside = [key for key in lacking if network.base_model is network or key.startswith(prefix)]
    if lacking_inside:
        first, unused = lacking_inside[0], loading_info["unexpected_keys"]
        if quantisation is not None:
            raise refused(quantisation, name, f"no {first} in its file")
        renamed = next((key for key in unused if WRAPPERS.sub("", key) == first or key.endswith(f".{first}")), None)
        if renamed is not None:  # saved from within torch.compile's or DistributedDataParallel's wrapper
            raise AttnctlError(
                f"{name} has other names for its weights ({renamed} for {first}): rename them in its file"
            )
        if stacked := stacked_by_mlx(sorted(unused)):
            raise AttnctlError(f"{name} holds {stacked}")
        raise AttnctlError(f"{name} lacks {len(lacking_inside)} of its weights, {first} first: its file is incomplete")
    network.attnctl_headless = bool(lacking)  # type: ignore[assignment]  # read by `lacks_head`


def check_used(unused: UnusedTensors, name: str) -> None:
    """Raise AttnctlError for tensors of the file that would change the attention, and that the network has no place for."""
    if not unused.needed:
        return
    what = (
        f"{name} has {counted(len(unused.needed), 'tensor')} that would change its attention and that its network lacks"
    )
    remedy = (
        "merge the adapter into its weights (PEFT: merge_and_unload), and save them"
        if unused.is_adapter
        else "its config.json, or its architecture there, is not that of its weights"
    )
    raise AttnctlError(f"{what} ({named(unused.needed)}): {remedy}")


# parts of names that torch's wrappers of a module add, anywhere in a name
WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")


def lacks_head(network: PreTrainedModel) -> bool:
    """Return whether the weights of a network's head are missing in its file, so that its predictions are random."""
    return bool(vars(network).get("attnctl_headless"))


def class_of(transformers: ModuleType, settings: Document, name: str) -> Any:
    """Return the class that a configuration names; only the module of that class is imported."""
    names = settings.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(entry, str) and entry for entry in names):
        raise AttnctlError(f"{name}: config.json says architectures {str(names)[:80]!r}, which is not a list of names")
    if not names:
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

        class_name = MODEL_MAPPING_NAMES.get(str(settings.get("model_type", "")))
        names = [class_name if isinstance(class_name, str) else class_name[0]] if class_name else []
    model_class = getattr(transformers, names[0], None) if names else None
    model_type = settings.get("model_type")
    # a known name for the checkpoint's own code
    if settings.get("auto_map") and model_type not in transformers.CONFIG_MAPPING:
        model_class, names = None, [str(model_type)[:80]] if model_type else names
    if not hasattr(model_class, "_can_set_attn_implementation"):  # not a model class
        architecture = names[0] if names else settings.get("model_type") or "an architecture that it does not name"
        code_note = ", and attnctl never runs code that comes with a checkpoint" if settings.get("auto_map") else ""
        raise AttnctlError(
            f"{name} is {architecture}, which transformers {transformers.__version__} does not know{code_note}"
        )
    return model_class


def _directed_modules(network: PreTrainedModel) -> list[Any]:
    """Return the modules that read the text and say whether they are causal."""
    return [m for n, m in network.named_modules() if isinstance(getattr(m, "is_causal", None), bool) and reads_text(n)]


def agrees_on_direction(network: PreTrainedModel) -> bool:
    """Return whether all modules of a network agree on whether they look ahead, and its masks follow them.

    A class that supports only eager makes its own masks, whatever its modules say (the decoder of BigBird-Pegasus).
    """
    directions = {module.is_causal for module in _directed_modules(network)}
    return len(directions) == 1 and bool(type(network)._supports_sdpa)


def network_info(network: PreTrainedModel, name: str, kind: str) -> ModelInfo:
    """Return the description of a network's attention that is known before a run."""
    decoder = kind in ("decoder", "cross")
    config = network.config
    if kind != "self":  # some have a configuration for each half
        halves = ("text_config", "vision_config") if config.model_type == "pix2struct" else ("decoder", "encoder")
        config = config_value(config, halves[0] if decoder else halves[1]) or config
    if kind == "self" or config is not network.config:
        config = config.get_text_config()
    heads_name = "decoder_attention_heads" if decoder else "encoder_attention_heads"
    stated: Any = config_value(config, heads_name, "num_attention_heads", "num_heads") or _largest_head_count(config)
    # Swin: one number per stage
    heads: int | None = max(stated) if isinstance(stated, list | tuple) and stated else stated
    heads_per_layer = config_value(config, "num_attention_heads_per_layer")  # Laguna
    heads = (
        max([heads or 0, *heads_per_layer]) if isinstance(heads_per_layer, list | tuple) and heads_per_layer else heads
    )
    layers = config_value(config, "decoder_layers" if decoder else "encoder_layers", "num_hidden_layers", "num_layers")
    if decoder:
        layers = config_value(config, "num_decoder_layers") or layers
    if kind == "self" and shares_modules(network):
        layers = layer_count(network, kind)
    d_model = config_value(config, "hidden_size", "d_model")
    module = next(iter(_directed_modules(network)), None)
    causal = kind == "decoder" if kind != "self" else bool(module.is_causal) if module else network.can_generate()
    scaling = getattr(module, "scaling", None) if kind == "self" else None
    d_k = config_value(config, "qk_head_dim", "head_dim", "d_kv") or (d_model // heads if d_model and heads else None)
    return ModelInfo(
        name,
        "checkpoint",
        d_model=d_model,
        d_k=d_k,
        d_v=config_value(config, "v_head_dim") or d_k,
        n_heads=heads,
        n_kv_heads=config_value(config, "num_key_value_heads") or heads,
        n_layers=layers,
        causal=causal,
        scale=float(scaling) if isinstance(scaling, int | float) else None,
        soft_cap=config_value(config, "attn_logit_softcapping"),
        rope_theta=(config_value(config, "rope_parameters") or {}).get("rope_theta"),
        quantised=file_report(network).quantised,
        dtype=str(network.dtype).removeprefix("torch."),
        device=str(device_of_inputs(network)),
    )


def _largest_head_count(config: PreTrainedConfig) -> int | None:
    """Return the largest number of heads of a layer, for a configuration with settings per layer; else None."""
    try:
        parts = config_value(config, "per_layer_config") or {}
        layer_configs = list(parts.values() if isinstance(parts, dict) else parts)
    except AttributeError:  # transformers raises for its length if a configuration counts no layers (Perceiver)
        return None
    return max(
        (value for part in layer_configs if (value := config_value(part, "num_attention_heads")) is not None),
        default=None,
    )


def generation_setting(network: PreTrainedModel, *names: str) -> Any:
    """Return the first of these settings, from generation_config, which `generate` uses, or the configuration; else None.

    The two files may disagree, for example if fine-tuning changed one of them.
    """
    own = generation_config(network)
    stated = None if own is None else config_value(own, *names)
    for config in (network.config, network.config.get_text_config()):
        stated = config_value(config, *names) if stated is None else stated
    return stated


def forced_first_id(network: PreTrainedModel) -> int | None:
    """Return the id that `generate` puts after a decoder's start, such as a language; it does not read config.json."""
    own = generation_config(network)
    return None if own is None else config_value(own, "forced_bos_token_id")


def end_ids(network: PreTrainedModel) -> tuple[int, ...]:
    """Return the ids of the tokens that end a text, the usual one first; () if the checkpoint names none."""
    ends = generation_setting(network, "eos_token_id")
    return () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,)


# --- while a network runs ------------------------------------------------------------------------------------------


@contextmanager
def running_network(network: PreTrainedModel, n: int, name: str, *, several: bool = False) -> Iterator[None]:
    """Run the network over n tokens within this context: without gradients and warnings; its errors are one line.

    `several` says that more forwards follow the first one.
    """
    import torch

    from attnctl.models.gguf.matrices import expect_forwards

    if several:
        expect_forwards(network)

    short = sum(p.numel() for p in network.parameters()) * n < SHORT
    with torch.inference_mode(), one_thread(short), quiet_library(), bias_added_once(network):
        try:
            yield
        except (AttnctlError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if _comes_from_reading(error):
                raise
            reason = f"{type(error).__name__}: {in_one_line(error)}"
            raise AttnctlError(f"{name} fails on this text, in {error_place(error)}: {reason}") from error


@contextmanager
def bias_added_once(network: PreTrainedModel) -> Iterator[None]:
    """Keep Falcon's eager attention from adding ALiBi twice within this context.

    transformers 5.24 puts ALiBi into the mask for every kernel, and under eager adds it to the scores as well. Its fused
    kernel, the default, adds it once, as the models were trained.
    """

    def leave_to_mask(_: object, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        bias, mask = keywords.get("alibi"), keywords.get("attention_mask")
        if bias is not None and mask is not None and bool((mask > 0).any()):  # what hides keys is never above 0
            keywords = keywords | {"alibi": bias * 0}
        return args, keywords

    with ExitStack() as stack:
        for part in network.modules() if adds_alibi_in_mask(network) else ():
            if type(part).__name__ == "FalconAttention":
                hook = part.register_forward_pre_hook(leave_to_mask, prepend=True, with_kwargs=True)
                stack.callback(hook.remove)
        yield


def adds_alibi_in_mask(network: PreTrainedModel) -> bool:
    """Return whether a network is a Falcon with ALiBi (falcon-rw-1b)."""
    return network.config.model_type == "falcon" and bool(network.config.alibi)


def device_of_inputs(network: PreTrainedModel) -> torch.device:
    """Return the device of a network's inputs: where it computes, even if accelerate keeps its weights elsewhere."""
    if network.device.type != "meta":
        return network.device
    hooks = (getattr(part, "_hf_hook", None) for part in network.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    import torch

    return torch.device(next((device for device in devices if device is not None), "cpu"))


# parts of attnctl that read layers during a run
READS = ("readings", "measures", "source", "batching", "cli", "render")


def _comes_from_reading(error: BaseException) -> bool:
    """Return whether an error comes from code that reads layers: from the last part of attnctl in its traceback."""
    package = Path(__file__).parents[2]
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    parts = [file.relative_to(package).parts[0] for file in files if file.is_relative_to(package)]
    return bool(parts) and parts[-1] in READS


def quiet_library() -> AbstractContextManager[None]:
    """Silence the progress bars, hints and warnings of transformers within this context, in every thread."""
    return shared_change("quiet library", _silence_library)


def _silence_library(stack: ExitStack) -> None:
    library = import_extra("transformers.utils.logging")
    logger = library.get_logger("transformers")
    # its handlers, not its level: a new level empties the caches of all loggers, a thousand in transformers
    for handler in tuple(logger.handlers):
        stack.callback(handler.setLevel, handler.level)
        handler.setLevel(max(handler.level, logging.ERROR))
    stack.callback(setattr, logger, "propagate", logger.propagate)
    logger.propagate = False
    if library.is_progress_bar_enabled():
        stack.callback(library.enable_progress_bar)
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")
    library.disable_progress_bar()


LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")


def check_layer_count(settings: dict[str, object], count: int, name: str) -> None:
    """Raise AttnctlError if the settings ask for more layers than there are tensors: each would be built."""
    text = settings.get("text_config")
    for part in (settings, text if isinstance(text, dict) else {}):
        for field in LAYERS:
            layers = part.get(field)
            if isinstance(layers, int) and layers > max(count, limits.LAYERS_BUILT):
                raise AttnctlError(
                    f"{name}: config.json says {field} {str(layers)[:40]}, its files hold {count:,} tensors"
                )


def position_limit(network: PreTrainedModel) -> int | None:
    """Return how many tokens the positions of a network allow; None: any number, or its configuration does not say."""
    config = network.config
    stated = config_value(config.get_text_config(), "max_position_embeddings")
    if not isinstance(stated, int) or stated < 1 or config.model_type == "t5":
        return None
    return usable_positions(network, stated)


def usable_positions(network: PreTrainedModel, longest: int | None) -> int | None:
    """Return how many tokens a table of `longest` positions allows: RoBERTa's begin after the padding token's id."""
    for name, part in network.named_modules():
        padding = getattr(part, "padding_idx", None)
        if longest is not None and isinstance(padding, int) and name.endswith("position_embeddings"):
            ahead = 1 if network.config.model_type == "prophetnet" else 0  # it looks one position ahead
            return max(longest - padding - 1 - ahead, 1)
    return longest
