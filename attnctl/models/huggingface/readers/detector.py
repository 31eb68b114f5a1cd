"""The reader of pictures for detectors (DETR and its kin, YOLOS): each query is an object that the network looks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.formats.photographs import read_photograph
from attnctl.models.huggingface.attention_sites import attention_sites
from attnctl.models.huggingface.checkpoint import ModelInput
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.network import device_of_inputs, quiet_library, running_network
from attnctl.models.huggingface.readers.picture import PictureReader, boxes_of_grid
from attnctl.runtime.files import names_picture
from attnctl.text.tokens import Token
from attnctl.trace.notes import Note

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch.nn import Module
    from transformers import PreTrainedModel

    from attnctl.attention import Array
    from attnctl.models.huggingface.attention_sites import Keywords, Output
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.text import Document

SURE = 0.5  # a box with this score or more is shown: the threshold of post_process_object_detection by default
MOST_UNSURE = 6  # boxes that are shown if no box is SURE
KINDS = ("cross", "encoder", "decoder")


class Finding(NamedTuple):
    """What a detector's query found: its likeliest label, how sure it is of it, and the box in pixels."""

    label: str
    score: float
    box: tuple[int, int, int, int]


class Seen(NamedTuple):
    """A picture in a detector: the network's inputs, the cells of its map of features, and what each query found."""

    inputs: Keywords
    cells: tuple[Token, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class DetectorReader(PictureReader):
    """The reader of pictures for DETR and its kin: the encoder reads a map of features, the decoder looks for objects.

    The queries are the decoder's object queries, for encoder attention the cells of the map.
    """

    _last: dict[str, Seen] = field(default_factory=dict, init=False, repr=False, compare=False)
    takes: ClassVar[str] = "picture"

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return a token for each object query, with the label, the box and the score of what it found; of an encoder cells.

        Raises AttnctlError if the file is not a picture.
        """
        seen = self._seen(model, text)
        if model.kind == "encoder":
            return self._checked_cells(model, seen)
        tokens = tokens_of_findings(seen.findings)
        # queries that look at each other have no place in the picture
        return tokens if model.kind == "cross" else tuple(replace(token, box=None) for token in tokens)

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the network's inputs for the picture file `text`."""
        seen = self._seen(model, text)
        cells = self._checked_cells(model, seen) if model.kind == "cross" else None
        notes = () if model.kind == "encoder" else notes_on_findings(seen.findings)
        return ModelInput(tokens, seen.inputs, cells, notes, None if model.kind == "encoder" else seen.cells)

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return the cells of the map of features for cross attention; None otherwise: the keys are the tokens."""
        return self._checked_cells(model, self._seen(model, text)) if model.kind == "cross" else None

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return the model. Raises AttnctlError if `text` is no picture's file."""
        if not names_picture(text):
            raise AttnctlError(
                f"no picture {text[:80]!r}: {model.info.name} reads pictures, so give a file's name (photo.jpg)"
            )
        return model

    def _checked_cells(self, model: Checkpoint, seen: Seen) -> tuple[Token, ...]:
        if not seen.cells:
            raise AttnctlError(
                f"the map of features of {model.info.name} is not known: its places in the picture are not"
            )
        return seen.cells

    def _seen(self, model: Checkpoint, path: str) -> Seen:
        """Return what the network makes of the picture in a file, which it runs on once."""
        if path not in self._last:
            photograph = read_photograph(path)
            inputs = self._inputs(model, photograph)
            sides = tuple(inputs["pixel_values"].shape[-2:])  # (height, width)
            with running_network(model.network, math.prod(sides) // 1024, model.info.name), _map_watched(model) as maps:
                output = model.network(**inputs)
            cells: list[Token] = []
            if maps:
                grid = maps[-1]
                steps = [_stride(side, count) for side, count in zip(sides, grid, strict=True)]
                covered = (grid[0] * steps[0], grid[1] * steps[1])
                cells = boxes_of_grid(photograph, grid, sides, partial(self.processed, model), covered)
            self._last.clear()
            self._last[path] = Seen(inputs, tuple(cells), findings(model, self.processor, output, photograph))
        return self._last[path]

    def _inputs(self, model: Checkpoint, photograph: Image) -> Keywords:
        """Return the picture as the processor prepares it, with the mask of its padding if it has any."""
        values = self.processed(model, photograph)
        with quiet_library():
            mask = self.processor(photograph, return_tensors="pt").get("pixel_mask")
        if mask is None or bool(mask.all()):
            return {"pixel_values": values}
        return {"pixel_values": values, "pixel_mask": mask.to(device_of_inputs(model.network))}


def _stride(side: int, count: int) -> int:
    """Return how many pixels of a side a cell of its map covers: a power of two, since each stage halves the map."""
    return 1 << max(0, round(math.log2(side / count)))


@contextmanager
def _map_watched(model: Checkpoint) -> Iterator[list[tuple[int, int]]]:
    """Record the shape (rows, columns) of the map of features whose cells the first attention reads, while this is open."""
    shapes: list[tuple[int, int]] = []
    maps: list[tuple[int, int]] = []

    def see_map(_: Module, __: object, output: object) -> None:
        if not maps and getattr(output, "ndim", 0) == 4:
            shapes.append((int(output.shape[2]), int(output.shape[3])))  # type: ignore[attr-defined]

    def see_cells(_: Module, arguments: tuple[Array, ...], keywords: Keywords) -> None:
        states = arguments[0] if arguments else keywords.get("hidden_states")
        if not maps and states is not None and states.ndim == 3:
            maps.extend([shape for shape in shapes if math.prod(shape) == states.shape[1]][-1:])

    torch = import_extra("torch")
    first = next(iter(attention_sites(model.network, "encoder").values()), None)
    convolutions = [part for part in model.network.modules() if isinstance(part, torch.nn.Conv2d)]
    handles = [part.register_forward_hook(see_map) for part in convolutions]
    if first is not None:
        handles.append(first.register_forward_pre_hook(see_cells, with_kwargs=True))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


# --- what the queries found ---


def findings(model: Checkpoint, processor: Any, output: Output, photograph: Image) -> tuple[Finding, ...]:
    """Return what each query found, as the checkpoint's own processor reads the network's output.

    The processor names no queries: a result belongs to the query that has its box and its score.
    """
    torch, transforms = import_extra("torch"), import_extra("transformers.image_transforms")
    size = torch.tensor([photograph.width, photograph.height] * 2)
    boxes = transforms.center_to_corners_format(output.pred_boxes[0].float().cpu()) * size  # (queries, 4)
    logits, (width, height) = output.logits[0].float().cpu(), photograph.size
    scales = (logits.softmax(-1), logits.sigmoid())  # (queries, labels) each
    try:
        with quiet_library():
            result = processor.post_process_object_detection(output, threshold=-1.0, target_sizes=[(height, width)])[0]
    except Exception as error:  # each family's processor raises its own errors
        raise AttnctlError(f"the processor of {model.info.name} fails on its boxes: {in_one_line(error)}") from error
    scores, labels, corners = (result[name].float().cpu() for name in ("scores", "labels", "boxes"))
    in_order = corners.shape == boxes.shape and torch.allclose(corners, boxes, atol=0.01)  # a result for each query
    best: dict[int, Finding] = {}
    names: Any = model.network.config.id2label or {}
    for number, (score, label, box) in enumerate(zip(scores, labels.long(), corners, strict=True)):
        gaps = [(scale[:, label] - score).abs() for scale in scales]  # of each query
        apart = (boxes - box).abs().amax(-1) + min(gaps, key=lambda gap: float(gap.min()))  # (queries,)
        query = number if in_order else int(apart.argmin())
        if query not in best or best[query].score < float(score):
            name = str(names.get(int(label), int(label)))
            best[query] = Finding(name, float(score), _whole_box(box.tolist(), width, height))
    nothing = Finding("", 0.0, (0, 0, width, height))
    return tuple(best.get(query, nothing) for query in range(len(boxes)))


def _whole_box(box: Sequence[float], width: int, height: int) -> tuple[int, int, int, int]:
    """Return a box in whole pixels within the picture, at least one of them on each side."""
    left, top = (min(max(0, round(edge)), side - 1) for edge, side in zip(box[:2], (width, height), strict=True))
    return left, top, min(max(left + 1, round(box[2])), width), min(max(top + 1, round(box[3])), height)


def tokens_of_findings(found: Sequence[Finding]) -> tuple[Token, ...]:
    """Return a token for each query: a detected object has its label, its box and its score, another query its number.

    Without a sure box, the MOST_UNSURE likeliest count as detected. Several objects of one label are numbered, the surest
    first.
    """
    order = sorted((query for query, entry in enumerate(found) if entry.label), key=lambda query: -found[query].score)
    shown = [query for query in order if found[query].score >= SURE] or order[:MOST_UNSURE]
    names: dict[int, str] = {}
    counts: dict[str, int] = {}
    for query in shown:
        label = found[query].label
        counts[label] = counts.get(label, 0) + 1
        names[query] = label if counts[label] == 1 else f"{label} {counts[label]}"
    return tuple(
        Token(names[query], box=entry.box, score=entry.score)
        if query in names
        else Token(f"query{query}", special=True, score=entry.score)
        for query, entry in enumerate(found)
    )


def notes_on_findings(found: Sequence[Finding]) -> tuple[Note, ...]:
    """Return a note if no box is sure; else ()."""
    highest = max((entry.score for entry in found), default=0.0)
    if highest >= SURE or not found:
        return ()
    shown = f"shown are the {min(MOST_UNSURE, len(found))} that score highest, {100 * highest:.0f} % at most"
    sentence = f"No box has a score of {100 * SURE:.0f} % or more: {shown}."
    return (Note(sentence, "input"),)


@dataclass(frozen=True)
class DetectionTokensReader(PictureReader):
    """The reader of pictures for YOLOS: patches, and after them detection tokens that each look for an object."""

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the picture; a detection token has the label, the box and the score of what it found."""
        tokens = super().tokenize(model, text)
        photograph = read_photograph(text)
        values = self.processed(model, photograph)
        with running_network(model.network, len(tokens), model.info.name):
            output = model.network(pixel_values=values)
        found = tokens_of_findings(findings(model, self.processor, output, photograph))
        return (*tokens[: len(tokens) - len(found)], *found)


# --- which checkpoints are detectors ---


def is_detector(settings: Document) -> bool:
    """Return whether the configuration is that of a network that finds objects in a picture, without a text."""
    names = settings.get("architectures") or []
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    return name.endswith(("ForObjectDetection", "DetrForSegmentation")) and "text_config" not in settings


def check_attends_to_map(network: PreTrainedModel, name: str, kind: str) -> None:
    """Raise UsageError if this attention of a detector samples points, which are no map of tokens."""
    if kind not in KINDS or not _samples_points(network, kind):
        return
    others = [option_name("attention", other) for other in KINDS if not _samples_points(network, other)]
    why = (
        f"{name} samples a few points of the picture for each query there (deformable attention), which are no map of "
        f"tokens: see {' or '.join(others)}"
    )
    raise UsageError(why, option="attention", value=kind)


def _samples_points(network: PreTrainedModel, kind: str) -> bool:
    modules = attention_sites(network, kind).values()
    return not modules or any("DeformableAttention" in type(module).__name__ for module in modules)
