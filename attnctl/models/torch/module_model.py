"""A torch module of the user's own as a model of a command: a text in, the attention of each layer out."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl.attention import Array
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.photographs import read_photograph
from attnctl.layer import LayerAttention, LayerTrace
from attnctl.layer.computed import share_of_sink
from attnctl.layer.interventions import Intervention
from attnctl.models.torch.fused import Steps
from attnctl.models.torch.intervention import apply_to_module
from attnctl.models.torch.module_answers import ModuleAnswer, check_names
from attnctl.models.torch.own_errors import own_error
from attnctl.models.torch.picture_tokens import grid_of_tokens, lines_of_transform, patches_in, tokens_of_grid
from attnctl.models.torch.tensors import ExtraKeys, Unnamed, unnamed_sentences
from attnctl.models.torch.watching import AnyCall, check_seen, watch_module
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.runtime.files import names_picture
from attnctl.source.model import Model, TextModel, check_text
from attnctl.text.tokens import Token, named_tokens, split_words
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import SCALED_NOTE, SINK_NOTE, Note
from attnctl.trace.run import Prediction, Run, StopForward
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch.nn import Module

    from attnctl.models.torch.sites import Place
    from attnctl.watched.measure import Watched

KEPT = frozenset(["queries", "keys", "values", "scores", "scaled_scores", "mask", "context"])
PREDICTED = 5  # words after the text
UNNAMED = "names no tokens: they have numbers, and no place in the text. A tokenizer in its place names them."


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a module is called with, and the tokens of the text; None: their number is known only once it ran.

    `photograph` is the picture that was named in place of a text.
    """

    args: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[Token, ...] | None = None
    photograph: Image | None = None

    def with_ids(self, ids: Sequence[int]) -> Inputs:
        """Return the inputs for other token ids: a mask, or the type of each token, is that of the first token for all."""
        known = tuple(self.args), dict(self.keywords)
        first = "input_ids" if "input_ids" in self.keywords else None
        args = tuple(torch.tensor([list(ids)]) if first is None and not i else part for i, part in enumerate(known[0]))
        keywords = {
            name: torch.tensor([list(ids)]) if name == first else _repeated(part, len(ids))
            for name, part in known[1].items()
        }
        return replace(self, args=args, keywords=keywords, tokens=None)

    @property
    def side(self) -> tuple[int, int] | None:
        """Return height and width of the picture that the module reads; None without one."""
        values = [value for value in (*self.args, *self.keywords.values()) if isinstance(value, torch.Tensor)]
        picture = next((value for value in values if value.ndim == 4), None)
        return None if picture is None else (int(picture.shape[2]), int(picture.shape[3]))


@dataclass(eq=False)
class ModuleModel(TextModel):
    """A module, and what turns a text into its inputs: a tokenizer, a function, or None.

    Its layers and heads are known, and in `info`, once it has read a text.
    """

    info: ModelInfo
    module: Module
    reader: Any
    name: str
    known: dict[str, tuple[Inputs, tuple[Token, ...], tuple[Token, ...] | None]] = field(default_factory=dict)

    @classmethod
    def of_parts(cls, module: Module, reader: Any, name: str) -> ModuleModel:
        """Return the model of what a function returned: a module, and a tokenizer, a function, or None."""
        info = ModelInfo(type(module).__name__, "module", source=name, dtype=_number_type(module))
        return cls(info, module, reader, name)

    def model_for(self, text: str) -> Model:
        """Return the model itself; it reads a picture if a function turns it into inputs, in place of a text.

        Raises UsageError for a picture and a tokenizer, or for a sound.
        """
        if not names_picture(text) or hasattr(self.reader, "encode") or self.reader is None:
            check_text(text, self.name, "return (module, transform of a picture)")
        if text.strip():
            self._read(text)  # its layers and heads are known from now on
        return self

    def tokenize(self, text: str, /) -> tuple[Token, ...]:
        """Return the tokens of a text; of a function that gives inputs, the module runs to tell how many there are."""
        return self._read(text)[1]

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return numbered keys if the module attends to another tensor than its queries come from; else None."""
        return self._read(text)[2]

    def inputs_of_text(self, text: str) -> Inputs:
        """Return what the module is called with for a text, and its tokens, if a tokenizer tells them."""
        return self._inputs_of(text)

    # --- changed ---

    @property
    def intervention(self) -> Intervention | None:
        """Return None: heads are off only while a prediction is watched."""
        return None

    def with_heads_off(self, heads: Mapping[int, tuple[int, ...]]) -> ModuleModel:
        """Raise UsageError unless there are none: in Python, `attnctl.intervene` switches them off."""
        if heads:
            raise UsageError(f"is not for {self.name}: in Python, attnctl.intervene switches heads off", option="off")
        return self

    def contexts_of_heads(self, text: str) -> dict[int, Array]:
        """Return layer → the context of each head at each position: (heads, n, d_v)."""
        contexts: dict[int, Array] = {}

        def see(place: Place, call: AnyCall) -> None:
            if place.kind == "self" and not place.recurrence:
                contexts[place.layer] = call.context()[0]

        self._forward(self._read(text)[0], _Seeing(see))
        return contexts

    def run_with_zeroed_values(self, *_: object, **__: object) -> Run:
        """Raise AttnctlError: the layers of a module are not run again."""
        raise AttnctlError(f"the layers of {self.name} cannot be run again with other values")

    def watch(self, text: str, query: str | None, base: Intervention) -> Watched:
        """Return the text with the prediction at `query` watched. Raises AttnctlError without logits for each token."""
        from attnctl.models.torch.module_watched import watch_module_text

        return watch_module_text(self, text, query, base)

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of a text, by the tokenizer."""
        return [int(token.id) for token in self._inputs_of(text).tokens or () if token.id is not None]

    def text_of_id(self, number: int) -> str:
        """Return the text of one id, by the tokenizer."""
        return str(self.reader.decode([number]))

    def text_of_ids(self, ids: Sequence[int]) -> str:
        """Return the text of some ids, by the tokenizer."""
        return str(self.reader.decode(list(ids)))

    def logits_under(self, intervention: Intervention, text: str) -> Array:
        """Return the logits (1, n, vocabulary) under an intervention.

        Raises AttnctlError if the module puts out none for each token, or has no tokenizer to name them.
        """
        inputs = self._read(text)[0]
        with apply_to_module(self.module, intervention, "self"):
            logits = _logits_of(self._forward(inputs, _Seeing(lambda *_: None)))
        n = len(inputs.tokens or ())
        if not hasattr(self.reader, "decode") or logits is None or logits.ndim != 3 or logits.shape[1] != n:
            raise AttnctlError(
                f"{self.name} puts out no logits for each token of a tokenizer: no prediction can be watched"
            )
        return logits

    @property
    def can_answer(self) -> bool:
        """Return whether a tokenizer turns text into ids, and back."""
        return hasattr(self.reader, "encode") and hasattr(self.reader, "decode")

    def answer_of(self, prompt: Sequence[int]) -> ModuleAnswer:
        """Return a prompt of ids whose answer is still to be generated."""
        return ModuleAnswer(self, tuple(prompt))

    def answering_without(self, heads: Mapping[int, tuple[int, ...]]) -> AbstractContextManager[object]:
        """Return a context in which these heads (layer → heads) are off in each answer."""
        return apply_to_module(self.module, Intervention(dict(heads)), "self")

    def logits_of_ids(self, ids: Sequence[int], see: Callable[[Place, AnyCall], None] | None = None) -> Array:
        """Return the logits (n, vocabulary) of token ids; `see` is called with the place and the call of each attention.

        Raises AttnctlError if the module puts out none for each token.
        """
        inputs = self._inputs_of(self.text_of_id(ids[0])).with_ids(ids)
        output = self._forward(inputs, _Seeing(see or (lambda *_: None)))
        logits = _logits_of(output)
        if logits is None or logits.ndim != 3 or logits.shape[1] != len(ids):
            raise AttnctlError(f"{self.name} puts out no logits for each token: it continues no text")
        return logits[0]

    def weights_under(self, intervention: Intervention, text: str, take: Callable[[int, Floats], None]) -> None:
        """Call `take` with each layer and its weights (heads, n, n) under an intervention."""

        def see(place: Place, call: AnyCall) -> None:
            if place.kind == "self" and not place.recurrence:
                check_names(place, call)
                take(place.layer, as_numpy(call.steps().weights[0].float()))

        with apply_to_module(self.module, intervention, "self"):
            self._forward(self._read(text)[0], _Seeing(see))

    # --- several texts ---

    def packed(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return a batch of one row that holds several texts, one after the other, with the number of each token's text.

        The positions start at 0 in each text, if the module takes position_ids. Raises UsageError without a tokenizer.
        """
        if not hasattr(self.reader, "encode"):
            raise UsageError(f"needs a tokenizer, and {self.name} returned none", option="pack")
        ids = [[token.id for token in self._inputs_of(text).tokens or ()] for text in texts]
        if [] in ids:
            raise UsageError(f"text {ids.index([])} of these is empty: give at least one word", option="pack")
        batch = {"input_ids": [list(chain(*ids))], "segments": [[n for n, part in enumerate(ids) for _ in part]]}
        if "position_ids" in inspect.signature(self.module.forward).parameters:
            batch["position_ids"] = [[place for part in ids for place in range(len(part))]]
        return batch

    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """Run the text through the module; `visit` receives each layer's attention of its main kind."""
        inputs, queries, keys = self._read(text)
        shapes = (len(queries), len(queries if keys is None else keys))
        seen = _Layers("self" if keys is None else "cross", shapes, visit)
        output = self._forward(inputs, seen)
        seen.notes += [Note(sentence, "input") for sentence in unnamed_sentences(seen.unnamed)]
        if inputs.tokens is None and inputs.photograph is None and all(token.start is None for token in queries):
            seen.notes.append(Note(f"The function that gives {self.info.name} its inputs {UNNAMED}", "input"))
        subject = Subject(text, tuple(tokens), self.info, keys, notes=tuple(seen.notes))
        return Run(subject, predictions=self._predictions(output, inputs))

    def _read(self, text: str) -> tuple[Inputs, tuple[Token, ...], tuple[Token, ...] | None]:
        """Return inputs, tokens and key tokens of a text. Raises AttnctlError if the module cannot be called with them."""
        if text not in self.known:
            inputs = self._inputs_of(text)
            if inputs.tokens == ():
                raise AttnctlError(
                    f"the tokenizer of {self.name} gives no tokens for this text: give at least one word"
                )
            queries, keys = inputs.tokens, None
            sizes = _Sizes()
            with sizes.of_convolutions(self.module):
                self._forward(inputs, sizes)
            n_q, n_k, kind = sizes.main
            unnamed = sizes.unnamed.get(kind, Unnamed())
            self.info = replace(self.info, n_layers=sizes.layers[kind], n_heads=sizes.heads[kind])
            if inputs.photograph is not None:
                queries = self._patches(inputs, sizes)
            elif queries is None or len(queries) != n_q or unnamed.queries:
                queries = _names("" if unnamed.queries else text, n_q)
            if kind == "cross":
                extra = sizes.extras.get(kind, ExtraKeys())
                names = (
                    [token.text for token in queries] if extra.beside_queries else map(str, range(n_k - extra.count))
                )
                keys = tuple(named_tokens(extra.names(list(names))))
                whole = inputs.tokens or ()
                keys = tuple(whole) if len(whole) == n_k and not unnamed.keys else keys
                if inputs.photograph is not None:
                    keys, queries = queries, _names(text, n_q)
            self.known.clear()
            self.known[text] = inputs, queries, keys
        return self.known[text]

    def _patches(self, inputs: Inputs, sizes: _Sizes) -> tuple[Token, ...]:
        """Return the tokens of a picture's keys, each patch with its box in the photograph.

        Raises AttnctlError if they are no grid, or of a part of the picture alone.
        """
        photograph, (_, n_k, kind) = inputs.photograph, sizes.main
        assert photograph is not None
        if kind in sizes.unnamed:
            raise AttnctlError(f"there is no map of the picture: {sizes.unnamed[kind].sentence([self.name])}")
        if sizes.texts[kind] > 1:
            raise AttnctlError(
                f"{self.name} attends within {sizes.texts[kind]} windows of the picture: there is no map of all of it; in "
                "Python, attnctl.capture shows each window as an item of the batch"
            )
        grid = grid_of_tokens(n_k, inputs.side, sizes.grids)
        if grid is None:
            raise AttnctlError(f"the {n_k} tokens of {self.name} are no grid of patches: their places are unknown")
        try:
            lines = lines_of_transform(self.reader, photograph)
        except AttnctlError:
            raise
        except Exception as error:
            raise own_error(self.name, error) from error
        return tokens_of_grid(n_k, grid, patches_in(photograph, grid, lines))

    def _inputs_of(self, text: str) -> Inputs:
        reader = self.reader
        if reader is None:
            raise UsageError(
                f"{self.name} returned a module alone, which reads no text: return (module, tokenizer), or (module, "
                "function from text to inputs)"
            )
        photograph = read_photograph(text).convert("RGB") if names_picture(text) else None
        try:
            if hasattr(reader, "encode"):
                return _tokenized(reader, text, self.module)
            given = reader(text if photograph is None else photograph)
        except Exception as error:
            raise own_error(self.name, error) from error
        if isinstance(given, Mapping):
            return Inputs(keywords=dict(given), photograph=photograph)
        args = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        if photograph is not None:  # a transform returns one picture
            args = tuple(part[None] if isinstance(part, torch.Tensor) and part.ndim == 3 else part for part in args)
        return Inputs(args, photograph=photograph)

    def _forward(self, inputs: Inputs, visitor: Any) -> Any:
        """Call the module, watched. Raises OwnCodeError for an exception in it, AttnctlError if no attention is seen."""
        output = None
        with torch.no_grad(), watch_module(self.module, visitor) as watched, suppress(StopForward):
            try:
                output = self.module(*inputs.args, **inputs.keywords)
            except AttnctlError:
                raise
            except Exception as error:
                raise own_error(self.name, error) from error
        sentence = check_seen(watched)
        if sentence and isinstance(visitor, _Layers):
            visitor.notes.append(Note(f"{sentence[0].upper()}{sentence[1:]}.", "unseen"))
        return output

    def _predictions(self, output: Any, inputs: Inputs) -> tuple[Prediction, ...]:
        """Return the likeliest words after the text, if the module gives logits of its tokenizer's vocabulary."""
        decode = getattr(self.reader, "decode", None)
        logits, n = _logits_of(output), len(inputs.tokens or ())
        if decode is None or logits is None or logits.ndim != 3 or logits.shape[1] != n or not n:
            return ()
        shares = torch.softmax(logits[0, -1].float(), -1)
        best = shares.topk(min(PREDICTED, len(shares)))
        found = []
        for share, number in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            with suppress(Exception):  # a number that the tokenizer does not know
                found.append(Prediction(n - 1, str(decode([number])), number, share, among=len(shares)))
        return tuple(found)


def _repeated(part: Any, count: int) -> Any:
    """Return a tensor (1, n) with its first number `count` times; anything else unchanged."""
    is_row = isinstance(part, torch.Tensor) and part.ndim == 2 and part.shape[0] == 1 and part.shape[1]
    return part[:, :1].repeat(1, count) if is_row else part


def _logits_of(output: Any) -> Array | None:
    """Return the logits of an output: its field of that name, the first of several, or itself; None for something else."""
    logits = getattr(output, "logits", output[0] if isinstance(output, tuple) and output else output)
    return logits if isinstance(logits, torch.Tensor) else None


@dataclass(eq=False)
class _Seeing:
    """A visitor that is a function."""

    look: Callable[[Place, AnyCall], None]

    def see(self, place: Place, call: AnyCall) -> None:
        self.look(place, call)


@dataclass(eq=False)
class _Sizes:
    """How many queries and keys the attention of each kind has."""

    by_kind: dict[str, tuple[int, int]] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)  # items of the batch
    grids: dict[tuple[int, int], None] = field(default_factory=dict)  # rows and columns that convolutions gave
    extras: dict[str, ExtraKeys] = field(default_factory=dict)
    unnamed: dict[str, Unnamed] = field(default_factory=dict)
    layers: dict[str, int] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)

    def see(self, place: Place, call: AnyCall) -> None:
        n_heads, n_q, n_k = call.shape
        self.layers[place.kind] = max(self.layers.get(place.kind, 0), place.layer + 1)
        self.heads[place.kind] = max(self.heads.get(place.kind, 0), n_heads)
        size = (n_q, n_k) if place.chunk is None else (place.chunk[1], n_k)
        if place.kind not in self.by_kind and call.extra is not None:
            self.extras[place.kind] = call.extra
        if place.kind not in self.by_kind and call.unnamed is not None:
            self.unnamed[place.kind] = call.unnamed
        self.by_kind.setdefault(place.kind, size)
        self.texts.setdefault(place.kind, math.prod(atom.size for atom in call.groups[0]))

    @contextmanager
    def of_convolutions(self, module: Module) -> Iterator[None]:
        """Note the sizes of what convolutions give, which cut a picture into patches, within this context."""

        def note(_: Module, __: object, output: Array) -> None:
            self.grids[int(output.shape[-2]), int(output.shape[-1])] = None

        with ExitStack() as stack:
            for part in module.modules():
                if isinstance(part, torch.nn.Conv2d):
                    stack.callback(part.register_forward_hook(note).remove)
            yield

    @property
    def main(self) -> tuple[int, int, str]:
        """Return queries, keys and kind of the attention that is shown: self, if there is any."""
        kind = "self" if "self" in self.by_kind else next(iter(self.by_kind))
        return *self.by_kind[kind], kind


@dataclass(eq=False)
class _Layers:
    """Hand the layers of one kind to a visitor, those that have the size of the first."""

    kind: str
    shape: tuple[int, int]
    visit: Callable[[LayerAttention], None]
    notes: list[str] = field(default_factory=list)
    unnamed: list[tuple[str, Unnamed | None]] = field(default_factory=list)  # module, why its tokens have no names
    parts: list[Steps] = field(default_factory=list)  # of an attention whose queries come in chunks

    def see(self, place: Place, call: AnyCall) -> None:
        steps = call.steps(KEPT)
        if place.chunk is not None:
            self.parts = [*self.parts, steps] if place.continues else [steps]
            if sum(place.chunk[:1]) + call.shape[1] < place.chunk[1]:
                return
            steps = _joined(self.parts)
        has_other_names = bool(self.unnamed) and call.unnamed != self.unnamed[0][1]
        has_other_size = tuple(steps.weights.shape[-2:]) != self.shape
        if place.kind != self.kind or has_other_size or has_other_names or place.recurrence:
            self.note(f"{place.kind} attention of {place.name or 'the root'} {tuple(steps.weights.shape)}")
            return
        note = SCALED_NOTE if call.is_scaled else SINK_NOTE
        if call.is_below and note not in self.notes:
            self.notes.append(note)
        self.unnamed.append((place.name, call.unnamed))
        self.visit(layer_of_steps(place.layer, steps, call.is_below))

    def note(self, what: str) -> None:
        self.notes.append(Note(f"Not shown: {what}, which has other tokens.", "unseen"))


def _joined(parts: Sequence[Steps]) -> Steps:
    arrays: dict[str, Array | None] = {"keys": parts[0].keys, "values": parts[0].values}
    for name in ("weights", "queries", "scores", "scaled_scores", "context"):
        pieces = [getattr(part, name) for part in parts]
        arrays[name] = None if any(piece is None for piece in pieces) else torch.cat(pieces, 2)
    return Steps(**arrays)


def layer_of_steps(layer: int, steps: Steps, has_sink: bool = False) -> LayerTrace:
    """Return the first text of a call as a layer of a trace."""
    arrays: dict[str, Any] = {}
    for name, array in steps._asdict().items():
        if array is not None and name != "mask":
            part = as_numpy(array[0].float())
            if name in ("weights", "context") or np.isfinite(part).all():
                arrays[name] = part
    weights = arrays["weights"] = arrays["weights"].copy()  # (heads, n_q, n_k)
    mask = None if steps.mask is None else steps.mask[0].cpu().numpy().astype(bool)
    missing = np.isnan(weights).all(-1)  # (heads, n_q): rows in which the model gave NaN
    if missing.any():
        weights[missing] = 0.0
        if "context" in arrays:
            arrays["context"] = np.where(missing[..., None], np.float32(0), arrays["context"])
        mask = (np.ones(weights.shape[1:], bool) if mask is None else mask) & ~missing.all(0)[:, None]
    if mask is not None:
        arrays["mask"] = np.broadcast_to(mask, weights.shape[1:])
    if has_sink:
        arrays["sink_weights"] = share_of_sink(weights)
    heads = tuple(range(len(weights)))
    return LayerTrace(layer, heads, heads, **arrays)


def _tokenized(reader: Any, text: str, module: Module) -> Inputs:
    """Return ids and tokens of a text by a tokenizer: of transformers, of tokenizers, or any with encode and decode."""
    if hasattr(reader, "convert_ids_to_tokens"):
        encoded = reader(text, return_tensors="pt")
        ids = encoded["input_ids"][0].tolist()
        names = [reader.decode([number]) for number in ids]
        takes = getattr(module.forward, "__code__", None)
        given = {
            key: value for key, value in encoded.items() if takes and key in takes.co_varnames[: takes.co_argcount]
        }
        tokens = _placed(names, ids, text)
        return (
            Inputs(keywords=given, tokens=tokens)
            if "input_ids" in given
            else Inputs((encoded["input_ids"],), {}, tokens)
        )
    encoded = reader.encode(text)
    ids = list(encoded.ids if hasattr(encoded, "ids") else encoded)
    given_ids = torch.tensor([ids], dtype=torch.long)
    if hasattr(encoded, "offsets"):
        places = zip(encoded.tokens, ids, encoded.offsets, strict=True)
        spans = tuple(Token(text[start:end] or name, number, start, end) for name, number, (start, end) in places)
        return Inputs((given_ids,), tokens=spans)
    decode = getattr(reader, "decode", None)
    names = [str(number) if decode is None else str(decode([number])) for number in ids]
    return Inputs((given_ids,), tokens=_placed(names, ids, text))


def _placed(names: Sequence[str], ids: Sequence[int], text: str) -> tuple[Token, ...]:
    """Return tokens with their places in the text, where their names are found one after the other."""
    tokens, end = [], 0
    for name, number in zip(names, ids, strict=True):
        start = text.find(name.strip(), end) if name.strip() else -1
        if start < 0:
            tokens.append(Token(name, number))
        else:
            end = start + len(name.strip())
            tokens.append(Token(name.strip(), number, start, end))
    return tuple(tokens)


def _names(text: str, count: int) -> tuple[Token, ...]:
    """Return the words of a text if there are as many; else numbers."""
    words = split_words(text)
    return tuple(words) if len(words) == count else tuple(Token(str(index)) for index in range(count))


def _number_type(module: Module) -> str:
    first = next(module.parameters(), None)
    return "float32" if first is None else str(first.dtype).removeprefix("torch.")
