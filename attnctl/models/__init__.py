"""Open the models that give the numbers, by their names: only the named model's file is imported.

A model cuts a text into tokens and runs it layer by layer; it gives each layer's attention to a visitor. What commands ask
of a model beside that is here, too: what its name stands for, a batch whose tokens are exchanged, a prediction that is
watched. None of them knows how a library's models work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from attnctl.checks import limits
from attnctl.checks.argument_types import (
    check_options,
    check_types,
    checked_selection,
    is_network,
    named_value,
    plain_number,
    require_type,
)
from attnctl.checks.model_options import (
    OPTION_TYPES,
    RANGES,
    ModelOptions,
    options_of_opener,
    with_model_options,
)
from attnctl.checks.own_functions import names_function
from attnctl.checks.selection import find_several
from attnctl.errors import UsageError, about_value, option_name
from attnctl.runtime.files import is_possible_name, open_regular
from attnctl.source import Changes, TextSource, TraceSource, record_trace
from attnctl.source.model import AnswersPrompts, Predicts
from attnctl.source.model import Model as Model
from attnctl.text import visible_text
from attnctl.text.tokens import checked_text
from attnctl.trace import Trace

if TYPE_CHECKING:
    from typing import TypeAlias

    from torch.nn import Module
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attnctl.attention import Array
    from attnctl.checks.model_options import OptionValues
    from attnctl.layer.interventions import Intervention
    from attnctl.models.builtin.weights import WeightFile
    from attnctl.models.exchange import ModuleBatch, NetworkBatch
    from attnctl.source import Prepared, Source
    from attnctl.trace import CheckFinding
    from attnctl.watched.measure import Watched

    ModelArgument: TypeAlias = str | os.PathLike[str] | Model | PreTrainedModel  # a model, or its name

DEFAULT = "demo"


BUILT_IN = {
    "demo": "attnctl.models.builtin.weights:open_demo",
    "demo-causal": "attnctl.models.builtin.weights:open_demo_causal",
    "random": "attnctl.models.builtin.random:open_random",
    "dot": "attnctl.models.builtin.random:open_dot",
}


@with_model_options
def open_model(name: str = DEFAULT, **options: Unpack[ModelOptions]) -> Model:
    """Return a model by its name in the registry or by its file; options as on the command line, None is the default.

    Raises UsageError if there is no such model, or an option does not belong to it; TypeError for a wrong type.
    """
    check_types("open_model", str, name=name)
    check_options("open_model", options, OPTION_TYPES)
    return open_named_model(name, **options)


def open_named_model(name: str = DEFAULT, **options: Unpack[ModelOptions]) -> Model:
    """Return what `open_model` returns; errors name the options of the command line."""
    require_type("open_model", "tokenizer", options.get("tokenizer"), str, os.PathLike, type(None))
    chosen: OptionValues = {key: plain_number(value) for key, value in options.items() if value is not None}
    predict, off = chosen.pop("predict", None), chosen.pop("off", None)
    if not is_possible_name(name):
        raise UsageError(f"no model {visible_text(name[:40])}: no file has such a name", value=name)
    if len(os.fsencode(name.rpartition("/")[2])) > limits.NAME_BYTES:
        raise UsageError(f"no model {name[:40]!r}…: no file has so long a name", value=name)
    if chosen.get("qkv") is not None:
        if name != DEFAULT:
            why = f"it cannot be combined with {option_name('qkv')}: Q, K and V come from the file"
            raise UsageError(why, option="model", value=name)
        module, attribute = "attnctl.models.builtin.matrix", "open_qkv"
    elif chosen.get("offset") is not None:
        why = f"has no effect here: queries and keys are the same tokens, use it with {option_name('qkv', 'FILE')}"
        raise UsageError(why, option="offset")
    elif name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
    elif Path(name).suffix.lower() in (".safetensors", ".npz") or _holds_a_run(Path(name)):
        module, attribute = "attnctl.models.builtin.weights", "open_weights"
        chosen["path"] = name
    elif names_function(name):
        module, attribute = "attnctl.models.torch.own_function", "open_function"
        chosen["name"] = name
    else:
        module, attribute = _checkpoint_opener(name)
        chosen["name"] = name
    for option in chosen.keys() & RANGES.keys():
        RANGES[option].check_value(option, chosen[option])
    opener = getattr(import_module(module), attribute)
    chosen = options_of_opener(chosen, attribute, name)
    with about_value(name):
        model: Model = opener(**chosen)
    if predict is not None:
        if not isinstance(model, Predicts) or not model.predicts_words:
            why = f"{model.info.name} has no unembedding, so it predicts no words"
            raise UsageError(why, option="predict", value=predict)
        model = replace(model, predict=predict)  # type: ignore[type-var]
    if off is None:
        return model
    from attnctl.watched.model import switch_heads_off

    return switch_heads_off(model, off)


def answering_model(model: Model, advice: str, answers: str = "answers no prompts") -> AnswersPrompts:
    """Return a model that answers prompts. Raises UsageError with the advice for any other."""
    if not isinstance(model, AnswersPrompts):
        raise UsageError(f"{model.info.name} {answers}: {advice}")
    return model


class NamedKind(NamedTuple):
    """What a name of a model stands for, before the model is opened."""

    name: str  # for sentences
    settings: Mapping[str, object] | None = None  # the configuration of a checkpoint; None: it is not that of one
    is_function: bool = False  # whether it is that of the user's own function

    def hears_speech(self) -> bool:
        """Return whether it is a checkpoint that writes down speech."""
        return (self.settings or {}).get("model_type") == "whisper"

    def writes_targets(self) -> bool:
        """Return whether it is an encoder-decoder."""
        return bool((self.settings or {}).get("is_encoder_decoder"))


def kind_of_name(name: str) -> NamedKind:
    """Return what the name of a model stands for, without opening it. Raises AttnctlError for a damaged checkpoint."""
    if names_function(name):
        return NamedKind(name, is_function=True)
    from attnctl.models.huggingface.hub import checkpoint_settings, is_checkpoint, short_name

    return NamedKind(short_name(name), checkpoint_settings(name) if is_checkpoint(name) else None)


def known_checkpoints() -> list[str]:
    """Return the short names of checkpoints, such as gpt2."""
    from attnctl.models.huggingface.hub import KNOWN

    return list(KNOWN)


def trained_weights(name: str) -> WeightFile | None:
    """Return the weights file of a model that attnctl trained, by its name, its file or its run; None for any other name.

    A file of W_Q, W_K and W_V by other means counts as one. Raises AttnctlError if the file is damaged.
    """
    from attnctl.models.builtin.weights import has_own_names, read_weights, trained_file

    path = trained_file(name)
    file = None if path is None else read_weights(path)
    return file if file is not None and has_own_names(file) else None


def findings_of(prepared: Prepared) -> list[CheckFinding]:
    """Return the results of the checks that recompute the weights of a text, a trace or a matrix by other means.

    Raises UsageError for an overview.
    """
    from attnctl.models import check

    return check.findings_of(prepared)


def watched_tensors(
    network: PreTrainedModel,
    inputs: Mapping[str, Array],
    query: int,
    base: Intervention,
    attention: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Watched:
    """Return a transformers network called with the tensors of one text, its prediction at `query` watched.

    `base` is changed in every run; `attention` is that of an encoder-decoder. Raises UsageError unless there is one text.
    """
    from attnctl.models.huggingface.watched_tensors import watch_tensors

    return watch_tensors(network, inputs, query, base, attention, tokenizer)


def network_batch(
    network: PreTrainedModel,
    batch: Mapping[str, object],
    name: str = "",
    *,
    segments: Any = None,
    tokens_only: bool = False,
    why: str,
) -> NetworkBatch:
    """Return a network with the arguments of its forward; with `tokens_only` it reads tokens, and is only its encoder.

    `why` says what the tokens are needed for. Raises UsageError for arguments that do not fit each other or the network.
    """
    from attnctl.models.huggingface.exchanged_network import ExchangedNetwork

    return ExchangedNetwork(network, batch, name, segments=segments, tokens_only=tokens_only, why=why)


def module_batch(
    module: Module,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    name: str = "",
    *,
    segments: Any = None,
    own: str = "",
) -> ModuleBatch:
    """Run a torch module once with its arguments, and return both; `own` is the user's function that made it.

    Raises UsageError for arguments that it does not take, AttnctlError if it is in training mode.
    """
    from attnctl.models.torch.exchanged_module import ExchangedModule

    return ExchangedModule(module, args, keywords, name, segments=segments, own=own)


def named_network(
    name: str, texts: Sequence[str] = (), dtype: str | None = None, device: str | None = None
) -> tuple[PreTrainedModel, str, dict[str, Any]]:
    """Return the network of a checkpoint alone, its name for sentences, and `texts` packed into one row of its tokens.

    Raises UsageError for an empty text, AttnctlError for a checkpoint that is missing or damaged.
    """
    from attnctl.models.huggingface.opening import open_network

    return open_network(name, texts, dtype or "auto", device or "auto")


@contextmanager
def networks_kept() -> Iterator[None]:
    """Keep the network of the last checkpoint in memory within the context, so that it is opened again at once."""
    from attnctl.models.huggingface import network

    network.loaded_networks = {}
    try:
        yield
    finally:
        network.loaded_networks = None


def _holds_a_run(path: Path) -> bool:
    """Return whether a folder is a run of `attnctl train`; a checkpoint's folder has a config.json."""
    return (path / "weights.safetensors").is_file() and not (path / "config.json").is_file()


def _checkpoint_opener(name: str) -> tuple[str, str]:
    """Return module and function that open a checkpoint. Raises UsageError if `name` names no model."""
    from attnctl.models.huggingface.hub import KNOWN, is_checkpoint  # not needed for names of the registry

    if is_checkpoint(name):
        return "attnctl.models.huggingface.opening", "open_checkpoint"
    from attnctl.formats.validation import PICKLES, check_unpickled
    from attnctl.models.unread import check_runs

    check_runs(name)
    if name.lower().endswith(PICKLES) and Path(name).is_file():
        with open_regular(name) as file:
            check_unpickled(file.read(1000), name, named=True)
    from difflib import get_close_matches

    from attnctl.models.gguf.ollama import SCHEME, completions

    names = [*BUILT_IN, *KNOWN]
    bare_names = {stored.removeprefix(SCHEME).casefold(): stored for stored in completions()}
    near = next(iter(get_close_matches(name.casefold(), [*names, *bare_names], 1, 0.75)), None)
    near = bare_names.get(near, near) if near is not None else None
    meant = "it" if near is None else f"did you mean {near}? It"
    raise UsageError(
        f"no model {name!r}: {meant} is {', '.join(names)}, a weights file (.safetensors, .npz), or a "
        "checkpoint's folder, .gguf file, model of Ollama (ollama:NAME) or Hugging Face id (owner/name)",
        value=name,
    )


def names_model(name: str) -> bool:
    """Return whether an argument is the name of a model, or its file or folder, rather than a text or a trace."""
    try:
        is_folder = Path(name).is_dir()
    except (OSError, ValueError):  # too long for a name, or with a null in it
        is_folder = False
    from attnctl.models.gguf.ollama import SCHEME
    from attnctl.models.huggingface.hub import KNOWN

    if name in BUILT_IN or name in KNOWN or is_folder or name.startswith(SCHEME):
        return True
    return name.lower().endswith((".safetensors", ".gguf"))


@with_model_options
def attend(
    text: str,
    model: ModelArgument = DEFAULT,
    *,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    query: int | str | None = None,
    **options: Unpack[ModelOptions],
) -> Trace:
    """Return a Trace of self-attention over `text`, with every step.

    `model` is a name or path, a model that `open_model` opened, or a transformers model with its `tokenizer`; the other
    options are those of the command line. `layer`, `head` and `query` select what is kept, as there.

    >>> attend("Alice will eat pizza", model="random").layers[0].weights.shape
    (1, 4, 4)
    >>> attend("Alice will eat pizza", model="random", n_heads=2, head=1, query="eat").layers[0].weights.shape
    (1, 1, 4)

    Raises AttnctlError for what the command line would refuse, TypeError for an argument of a wrong type.
    """
    check_types("attend", str, text=text)
    check_types("attend", int | str | None, query=query)
    layers, heads = checked_selection("attend", "layer", layer), checked_selection("attend", "head", head)
    opened = opened_model("attend", model, options)
    rows = None if query is None else find_several(opened.tokenize(checked_text(text)), str(query))
    return record_trace(opened, text, layers=layers, heads=heads, rows=rows)


def opened_model(function: str, model: ModelArgument, options: ModelOptions) -> Model:
    """Return the model that a function's arguments name: opened by name, wrapped, or unchanged.

    Raises TypeError, naming the argument, for anything but a model, for an option of a wrong type, and for options of an
    opened model.
    """
    check_options(function, options, OPTION_TYPES)
    if isinstance(model, (str, os.PathLike)):
        return open_named_model(os.fspath(model), **options)
    chosen: OptionValues = {name: value for name, value in options.items() if value is not None}
    text_pair = chosen.pop("text_pair", None)  # a setting of the text, not of the model
    opened: object = model
    if is_network(model):
        from attnctl.models.huggingface.opening import wrap_network

        opened = wrap_network(model, chosen.pop("tokenizer", None))
    for name in chosen:
        raise TypeError(f"{function}(): {name} is for the name of a model, and this model is already opened")
    if not isinstance(opened, Model):
        expected = "a name, a path, an opened model or a transformers model"
        raise TypeError(f"{function}(): model is {expected}, not {named_value(model)}")
    return opened if text_pair is None else opened.with_text_pair(text_pair)


# --- the arguments of Python functions ---

Selection = int | Sequence[int] | None


def source_of_argument(function: str, text: str | Trace, model: ModelArgument, options: ModelOptions) -> Source:
    """Return the source of a text or a trace.

    Raises TypeError with the function's name for anything else, and for a model or its options beside a trace.
    """
    if isinstance(text, Trace):
        named = {} if isinstance(model, str) and model == DEFAULT else {"model": model}
        for name, value in (named | options).items():
            if value is not None:
                raise TypeError(f"{function}(): {name} is for a text, and this trace is computed already")
        return TraceSource(text)
    if text is None:
        raise TypeError(f"{function}(): text is a str or a Trace, not None")
    require_type(function, "text", text, str)
    return TextSource(opened_model(function, model, options), text)


def selected_places(
    function: str, layer: Selection, head: Selection
) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    """Return the named layers and heads; None for all. Raises TypeError with the function's name if they are not numbers."""
    return checked_selection(function, "layer", layer), checked_selection(function, "head", head)


def changes_of_arguments(
    function: str, measure: str | None, words: bool, renormalise: bool, drop: str | Sequence[str] | None
) -> Changes:
    """Return the changes of the weights. Raises TypeError with the function and the argument for another type."""
    check_types(function, str | None, measure=measure)
    check_types(function, bool, words=words, renormalise=renormalise)
    check_types(function, str | list | tuple | None, drop=drop)
    for key in drop or ():
        require_type(function, "each of drop", key, str)
    return Changes(measure, words, renormalise, drop)
