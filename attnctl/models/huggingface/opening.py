"""Open a checkpoint by its folder, GGUF file or hub id: find it, load it, and choose its reader."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.checks.argument_types import uncompiled
from attnctl.checks.model_options import instead_of
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.models.gguf.ollama import SCHEME
from attnctl.models.huggingface.attention_sites import merges_source
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.hub import (
    check_extra,
    find_checkpoint,
    import_extra,
    place_notes,
    read_json,
    short_name,
)
from attnctl.models.huggingface.library_tokenizer import LibraryTokenizer
from attnctl.models.huggingface.network import (
    agrees_on_direction,
    class_of,
    forced_first_id,
    load_network,
    network_info,
    origin_of,
    position_limit,
)
from attnctl.models.huggingface.opened import OpenedCheckpoint
from attnctl.models.huggingface.readers.detector import (
    DetectionTokensReader,
    DetectorReader,
    check_attends_to_map,
    is_detector,
)
from attnctl.models.huggingface.readers.picture_and_target import is_captioner, open_captioner
from attnctl.models.huggingface.readers.text import SourceTargetReader, TextReader
from attnctl.models.huggingface.readers.two_towers import TextTowerReader
from attnctl.models.huggingface.tokenizer import Pieces, open_pieces
from attnctl.readings.questions.head_roles import with_measured_roles
from attnctl.runtime.light_import import begin_torch, import_lightly
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attnctl.text import Document


# model types that read sounds
HEARING = (
    "whisper", "wav2vec2", "wav2vec2-conformer", "hubert", "wavlm", "unispeech", "unispeech-sat", "sew", "data2vec-audio",
    "audio-spectrogram-transformer",
)  # fmt: skip
KINDS = ("encoder", "decoder", "cross")
LIBRARIES_OF_TEXTS = ("mmap", "tokenizers")  # compiled modules that settings and tokenizers are read with
DTYPES = ("auto", "float32", "bfloat16", "float16")


class DecoderRequest(NamedTuple):
    """The options for an encoder-decoder: which attention is shown, the text of its decoder, and its language."""

    attention: str | None = None
    target: str | None = None
    generate: int | None = None
    target_language: str | None = None


def open_checkpoint(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    bos: bool | None = None,
    truncate: bool = False,
    image: str | None = None,
    text_pair: str | None = None,
    source_language: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    **decoder: Any,
) -> Checkpoint:
    """Open a checkpoint by its folder, GGUF file, Hugging Face id, or well-known name (minilm, smollm2, gpt2).

    `dtype` auto is float32 on the CPU, and the stored type on a GPU; `image` is the file of a picture that each text is
    read with; `text_pair` is a second text that is read after each text; `source_language` is the language of a text to
    translate; `tokenizer` is a tokenizer.json, or a tokenizer's folder, in place of the checkpoint's own; `decoder` are the
    fields of DecoderRequest. Raises UsageError for options that do not fit the checkpoint,
    and AttnctlError, in one line, for a checkpoint that is missing, damaged, pickled, or needs its own code.
    """
    if dtype not in DTYPES:
        raise UsageError(f"it is {', '.join(DTYPES)}", option="dtype", value=dtype)
    check_extra()
    folder = location = find_checkpoint(name)
    begin_torch(LIBRARIES_OF_TEXTS)  # beside the tokenizer
    settings, notes = _settings_of(folder, short_name(name))
    request = DecoderRequest(**decoder)
    opened = _Opened(
        short_name(name), folder, settings, _kind_of_model(settings, request, name), partial(origin_of, location, name),
        place_notes(name, location),
    )  # fmt: skip
    load = partial(load_network, folder, settings, dtype, device, opened.name)
    texts: Document = {"bos": bos is not None, "truncate": truncate, "generate": request.generate, "image": image}
    texts |= {"text_pair": text_pair, "source_language": source_language, "target_language": request.target_language}
    texts["tokenizer"] = tokenizer
    if (takes := _input_other_than_text(settings)) is not None:
        if is_detector(settings):
            texts["target"] = request.target
        for option in (option for option, value in texts.items() if value):
            does = "hears" if takes == "sound" else "reads pictures"
            raise UsageError(f"is for models of text, and {opened.name} {does}", option=option)
        return _open_sounds(opened, load(), request) if takes == "sound" else _open_pictures(opened, load())
    if image is not None and folder.is_file():
        raise UsageError(
            f"cannot be used with {opened.name}: a GGUF file of a language model reads texts", option="image"
        )
    if image is not None and (truncate or bos is not None):
        why = f"cannot be combined with {option_name('image')}: the checkpoint makes the prompt"
        raise UsageError(why, option="truncate" if truncate else "bos")
    pieces, more_notes = _open_tokenizer(opened, bos, truncate, tokenizer)
    if name.startswith(SCHEME):
        pieces = replace(pieces, wrapped_by="ollama run")
    pieces.set_languages(source_language, request.target_language)
    model = _open_texts(opened, load(), replace(pieces, names_target=request.target_language is not None), request)
    model = replace(model, notes=(*model.notes, *notes, *more_notes), file_facts=_facts_of(folder))
    if text_pair is not None:
        if image is not None:
            why = f"cannot be used with {opened.name}, which reads one text with a picture"
            raise UsageError(why, option="text_pair")
        model = model.with_text_pair(text_pair)
    if image is None:
        return model
    if isinstance(model.reader, TextTowerReader):
        return model.reader.beside_picture(model, image)
    from attnctl.models.huggingface.readers.picture_and_text import beside_picture

    return beside_picture(model, folder, image)


def open_network(
    name: str, texts: Sequence[str], dtype: str, device: str
) -> tuple[PreTrainedModel, str, dict[str, Any]]:
    """Return a checkpoint's network alone, its name for sentences, and `texts` packed into one row of its tokens.

    Raises UsageError for an empty text, AttnctlError for a checkpoint that is missing or damaged.
    """
    check_extra()
    folder, name = find_checkpoint(name), short_name(name)
    # a GGUF file holds its own settings
    settings: dict[str, Any] = {} if folder.is_file() else read_json(folder / "config.json")
    batch: dict[str, Any] = {}
    if texts:
        pieces = gguf_pieces(folder, name)[0] if folder.is_file() else open_pieces(folder, name)
        tokens = [[token.id for token in pieces.tokenize_text(text)] for text in texts]
        if [] in tokens:
            raise UsageError(f"text {tokens.index([])} of these is empty: give at least one word", option="pack")
        batch["input_ids"] = [list(chain(*tokens))]
        batch["position_ids"] = [[position for ids in tokens for position in range(len(ids))]]
    return load_network(folder, settings, dtype, device, name), name, batch


class _Opened(NamedTuple):
    """The facts about a checkpoint that are known before its weights are read."""

    name: str
    folder: Path
    settings: Document
    kind: str
    origin: Callable[[], Document]  # called after the weights were read: it computes their digest
    notes: tuple[str, ...]  # about the place of its files


def _open_sounds(opened: _Opened, network: PreTrainedModel, request: DecoderRequest) -> Checkpoint:
    from attnctl.models.huggingface.readers.sound import open_sound_reader

    pieces = open_pieces(opened.folder, opened.name) if opened.settings.get("is_encoder_decoder") else None
    reader = open_sound_reader(opened.folder, network, opened.name, opened.kind, pieces)
    info = network_info(network, opened.name, opened.kind)
    info = replace(info, causal=info.causal and opened.kind == "decoder", **opened.origin())
    return OpenedCheckpoint(info, network, reader, opened.kind, request.target, notes=opened.notes)


def _open_detector(opened: _Opened, network: PreTrainedModel) -> Checkpoint:
    from attnctl.models.huggingface.readers.picture import open_picture_reader

    check_attends_to_map(network, opened.name, opened.kind)
    info = replace(network_info(network, opened.name, opened.kind), causal=False, **opened.origin())
    reader = open_picture_reader(opened.folder, opened.name)
    reader = DetectorReader(reader.name, reader.processor)
    return OpenedCheckpoint(info, network, reader, opened.kind, notes=opened.notes)


def _open_pictures(opened: _Opened, network: PreTrainedModel) -> Checkpoint:
    from attnctl.models.huggingface.readers.picture import open_picture_reader

    if is_detector(opened.settings) and opened.settings.get("is_encoder_decoder"):
        return _open_detector(opened, network)
    within = "patch_size" not in opened.settings
    tower = getattr(network, "vision_model", network) if within else network
    info = replace(network_info(tower, opened.name, opened.kind), causal=False, **opened.origin())
    reader = open_picture_reader(opened.folder, opened.name)
    if is_detector(opened.settings):
        reader = DetectionTokensReader(reader.name, reader.processor)
    return OpenedCheckpoint(info, network, reader, "vision" if within else "self", notes=opened.notes)


def _settings_of(folder: Path, name: str) -> tuple[Document, tuple[str, ...]]:
    """Return the settings of a folder, or of a GGUF file under the same names, and notes about the file."""
    if not folder.is_file():
        return read_json(folder / "config.json"), ()
    from attnctl.models.gguf.opening import opened_gguf

    opened = opened_gguf(folder, name)
    return opened.configuration, opened.notes


def gguf_pieces(
    path: Path, name: str, *, bos: bool | None = None, truncate: bool = False
) -> tuple[Pieces, tuple[str, ...]]:
    """Return the tokenizer of a GGUF file, and notes about what is not known of it."""
    from attnctl.models.gguf.ollama_layout import open_gguf
    from attnctl.models.gguf.tokenizer import read_tokenizer

    made = read_tokenizer(open_gguf(path)[0].header, path.name)
    return Pieces(name, made.tokenizer, made.settings, bos=bos, truncate=truncate), made.notes


def _facts_of(folder: Path) -> dict[str, str]:
    """Return sentences about a GGUF file; {} for a folder."""
    if not folder.is_file():
        return {}
    from attnctl.models.gguf.facts import file_facts
    from attnctl.models.gguf.ollama_layout import open_gguf

    return file_facts(open_gguf(folder)[0])


def _open_tokenizer(
    opened: _Opened, bos: bool | None, truncate: bool, tokenizer: str | os.PathLike[str] | None
) -> tuple[Pieces, tuple[str, ...]]:
    """Open the tokenizer, with notes. Raises AttnctlError if there is none; for a network of pictures, say so."""
    if opened.folder.is_file() and tokenizer is None:
        return gguf_pieces(opened.folder, opened.name, bos=bos, truncate=truncate)
    try:
        return open_pieces(opened.folder, opened.name, bos=bos, truncate=truncate, tokenizer=tokenizer), ()
    except AttnctlError:
        model_class = import_lightly(lambda: class_of(import_extra("transformers"), opened.settings, opened.name))
        if model_class.main_input_name == "pixel_values":
            reason = f"{opened.name} reads pictures, and does not cut them into the patches of one grid"
            raise AttnctlError(f"{reason}: attnctl.capture records its attention") from None
        raise


def _open_texts(opened: _Opened, network: PreTrainedModel, pieces: Pieces, request: DecoderRequest) -> Checkpoint:
    """Open a checkpoint that reads texts; of two towers, open the one for texts.

    Raises AttnctlError if it has no layers, or reads something else.
    """
    name, kind = opened.name, opened.kind
    if request.target_language is None and kind != "self":
        pieces.force_language(forced_first_id(network))
    whole_network, network = network, getattr(network, "text_model", network) if _has_two_towers(network) else network
    n_layers = network_info(network, name, kind).n_layers
    if n_layers is not None and n_layers < 1:
        raise AttnctlError(f"{name} has no layers, by its config.json")
    captions = is_captioner(opened.settings)
    if network.main_input_name != "input_ids" and not captions:
        raise AttnctlError(_no_text_sentence(network, name))
    if kind == "cross" and merges_source(network):
        if request.attention is not None:
            decoder = option_name("attention", "decoder")
            why = f"{name} attends to its own tokens and to the source in one softmax: see {decoder}"
            raise UsageError(why, option="attention", value=kind)
        kind = "decoder"
    pieces = replace(pieces, limit=_token_limit(network, pieces.limit))
    reader: TextReader
    if captions:
        reader, network = open_captioner(opened.folder, network, name, pieces)
    elif whole_network is network:
        reader = _text_reader(kind, pieces)
    else:
        reader = TextTowerReader(pieces, whole_network, opened.folder)
    info = with_measured_roles(replace(network_info(network, name, kind), **opened.origin()))
    model = OpenedCheckpoint(info, network, reader, kind, request.target, request.generate or 0, notes=opened.notes)
    return _with_direction(model)


def _no_text_sentence(network: PreTrainedModel, name: str) -> str:
    """Return why a network that reads no text is not opened, and which part of it can be recorded."""
    reads = f"{name} reads {network.main_input_name.replace('_', ' ')}, not text"
    decoders = ("text_decoder", "decoder", "language_model", "qformer")
    part = next((part for part in decoders if hasattr(network, part)), None)
    if part is None:
        return reads
    return f"{reads}: in Python, attnctl.capture(model.{part}) records the attention of the part that writes"


def _text_reader(kind: str, pieces: Pieces) -> TextReader:
    return TextReader(pieces) if kind == "self" else SourceTargetReader(pieces)


def _input_other_than_text(settings: Document) -> str | None:
    """Return what a model reads in place of a text, "picture" or "sound"; None for a model that reads texts."""
    if settings.get("model_type") in HEARING:
        return "sound"
    # a model of text and pictures has patch_size in its vision_config; a classifier runs only that part
    architectures = settings.get("architectures") or []
    classifies = "vision_config" in settings and str(architectures[:1]).endswith("ForImageClassification']")
    return "picture" if "patch_size" in settings or classifies or is_detector(settings) else None


def _has_two_towers(network: PreTrainedModel) -> bool:
    """Return whether a network has a tower for texts and a tower for pictures, each with one vector as output (CLIP)."""
    return all(hasattr(network, part) for part in ("text_model", "vision_model", "logit_scale"))


def _kind_of_model(settings: Document, request: DecoderRequest, name: str) -> str:
    attention, target, generate, language = request
    is_encoder_decoder = bool(settings.get("is_encoder_decoder")) or is_captioner(settings)
    if is_encoder_decoder and target is not None and generate:
        conflict = f"{option_name('generate')}: the one gives the decoder's text, the other makes it"
        raise UsageError(f"cannot be combined with {conflict}", option="target")
    if settings.get("model_type") == "git" and is_captioner(settings):
        if attention is not None:
            raise UsageError(
                f"is for encoder-decoders, and {name} has one sequence", option="attention", value=attention
            )
        return "self"
    if attention is not None and attention not in KINDS:
        raise UsageError(f"it is {', '.join(KINDS)}", option="attention", value=attention)
    if not is_encoder_decoder:
        for option, value in (("attention", attention), ("target", target), ("target_language", language)):
            if value is not None:
                raise UsageError(f"is for encoder-decoders, and {name} is not one{instead_of(option)}", option=option)
        return "self"
    decoder_options = {"target": target, "generate": generate or None, "target_language": language}
    for option in (option for option, value in decoder_options.items() if value is not None):
        if attention == "encoder":
            raise UsageError(f"has no effect with {option_name('attention', attention)}", option=option)
        return attention or "cross"
    return attention or ("cross" if is_detector(settings) else "encoder")


def _token_limit(network: PreTrainedModel, tokenizer_limit: int | None = None) -> int | None:
    """Return how many tokens a network reads, by its positions and the tokenizer's limit; None: any number."""
    longest = position_limit(network)
    if longest is None or tokenizer_limit is None:
        return tokenizer_limit if longest is None else longest
    return min(tokenizer_limit, longest)


def wrap_network(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
    """Return a checkpoint for `network` with `tokenizer`, which is of transformers or of the tokenizers library.

    Raises AttnctlError for a model in training mode, and if `tokenizer` is not a tokenizer.
    """
    from attnctl.models.huggingface.attention_interface import architecture_name, check_inference

    check_inference(network)
    network = _inner_model(network)
    name = network.config.name_or_path or architecture_name(network)
    name = name.rstrip("/").rpartition("/")[2]
    if tokenizer is None:
        raise AttnctlError(f"{name} is a transformers model: give its tokenizer, as tokenizer=…")
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerBase

    library = LibraryTokenizer(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerBase) else None
    special_tokens = {} if library is None else tokenizer.special_tokens_map
    settings = {key: str(token) for key, token in special_tokens.items() if isinstance(token, str | AddedToken)}
    limit = _token_limit(network)
    pieces = Pieces(
        name,
        _tokenizer_of_network(tokenizer, name),
        settings,
        limit,
        open_library=None if library is None else lambda: library,
    )
    kind = "encoder" if network.config.is_encoder_decoder else "self"
    return _with_direction(
        OpenedCheckpoint(network_info(network, name, kind), network, _text_reader(kind, pieces), kind)
    )


def _inner_model(network: PreTrainedModel) -> PreTrainedModel:
    """Return the model of transformers within a wrapper of torch.compile, or of PEFT, whose adapters are in the model.

    Raises AttnctlError for PEFT's learned prompts: no token of the text belongs to them.
    """
    inner: Any = uncompiled(network)
    if not hasattr(inner, "get_base_model"):
        return inner  # type: ignore[no-any-return]
    if getattr(getattr(inner, "active_peft_config", None), "is_prompt_learning", False):
        raise AttnctlError(
            f"{type(inner).__name__} puts learned prompts before the text, which belong to no token: record its "
            "attention with attnctl.capture"
        )
    return inner.get_base_model()  # type: ignore[no-any-return]


def _with_direction(model: Checkpoint) -> Checkpoint:
    """Return the checkpoint with `causal` set by a run of three tokens, if its modules do not say their direction."""
    if model.kind != "self" or agrees_on_direction(model.network):
        return model
    trial_model = replace(model, generate=0, reader=TextReader(replace(model.pieces, limit=None)))
    try:
        run = trial_model.run([Token(str(number), number) for number in (1, 2, 3)], lambda layer: None)
    except AttnctlError:  # a later run will raise the error
        return model
    causal = run.subject.model.causal
    return model if causal is None else replace(model, info=replace(model.info, causal=causal))


def _tokenizer_of_network(tokenizer: PreTrainedTokenizerBase, name: str) -> Any:
    """Return the tokenizer of the tokenizers library, in a copy without padding and truncation."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    if isinstance(tokenizer, PreTrainedTokenizerBase) and not tokenizer.is_fast:
        return LibraryTokenizer(tokenizer)  # written in Python
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        raise AttnctlError(
            f"the tokenizer of {name} is of type {type(tokenizer).__name__}: give one of transformers or of tokenizers"
        )
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
