"""Files of models that attnctl does not run: what each is, and the line of Python that hands over its attention or weights.

Of an ONNX graph the nodes are read, so that the line names its own outputs: protobuf's fields, and no weights.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.runtime.files import open_regular, parse_json, read_bytes
from attnctl.text import counted, for_pasting, shortened

# suffix → what the file is, and the line that writes its weights as a file that --model reads
WEIGHTS = {
    ".h5": ("weights of Keras", 'numpy.savez("w.npz", **{w.path: w.numpy() for w in model.weights})'),
    ".hdf5": ("weights of Keras", 'numpy.savez("w.npz", **{w.path: w.numpy() for w in model.weights})'),
    ".keras": ("a model of Keras", 'numpy.savez("w.npz", **{w.path: w.numpy() for w in model.weights})'),
    ".msgpack": (
        "parameters of flax",
        'numpy.savez("w.npz", **flax.traverse_util.flatten_dict(flax.serialization.msgpack_restore(data), sep="/"))',
    ),
}
ONNX = ".onnx"
NAMED = 2  # names of outputs in the message


@dataclass(frozen=True)
class Graph:
    """What an ONNX graph says of its attention."""

    outputs: tuple[str, ...]
    softmaxes: tuple[str, ...]  # the outputs of Softmax nodes that another node reads
    attentions: int  # nodes Attention of the standard, which can have weights as a fourth output
    weights: tuple[str, ...]  # the fourth outputs of those in mode 3
    fused: int  # nodes of other domains with attention in their name


def checkpoint_around(name: str) -> str | None:
    """Return the folder of the checkpoint in which a file lies; None for any other name.

    A config.json that names no model, as a user may write it beside a module's weights, makes no checkpoint; a damaged
    one does, since the reader of the folder says what is wrong.
    """
    path, config = Path(name), Path(name).parent / "config.json"
    if not (path.is_file() and config.is_file()):
        return None
    with suppress(AttnctlError):
        settings = parse_json(read_bytes(config, limits.TEXT_BYTES), str(config))
        if isinstance(settings, dict) and not settings.keys() & {"model_type", "architectures", "auto_map"}:
            return None
    return str(path.parent)


def check_runs(name: str) -> None:
    """Raise AttnctlError, with the line that helps, for an existing file that is no model that attnctl runs.

    It holds a model of another form, or it is a part of a checkpoint, whose folder attnctl reads.
    """
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix not in (*WEIGHTS, ONNX) or not path.is_file():
        if (folder := checkpoint_around(name)) is not None:
            why = f"{name} is a file in the folder of a checkpoint: give the folder, {for_pasting(folder)}"
            raise UsageError(why, value=name)
        return
    if suffix != ONNX:
        what, line = WEIGHTS[suffix]
        read = f'data = open({str(path)!r}, "rb").read(); ' if suffix == ".msgpack" else ""
        raise AttnctlError(
            f"{name} holds {what}, which attnctl does not read; in Python, {read}{line} writes what it "
            f"reads with {option_name('model', 'w.npz')}"
        )
    raise AttnctlError(_of_graph(name, read_graph(name)))


def _of_graph(name: str, graph: Graph) -> str:
    """Return what the graph of a file hands out, what it could hand out, and what attnctl reads of it."""
    has = ", ".join(shortened(output, 40) for output in graph.outputs[:NAMED]) + ", …" * (len(graph.outputs) > NAMED)
    told = f"{name} is a graph of ONNX, which attnctl does not run; it reads the .npz of what a session returned"
    weights = [output for output in (*graph.weights, *graph.softmaxes) if output in graph.outputs]
    if weights:
        return f"{told}. Its {counted(len(weights), 'output')} with weights: {_ends(weights)}. {SAVED}"
    sources = []
    if graph.attentions:
        sources.append(f"{counted(graph.attentions, 'Attention node')} (qk_matmul_output, mode 3)")
    if graph.softmaxes:
        sources.append(f"{counted(len(graph.softmaxes), 'Softmax node')} ({_ends(graph.softmaxes)})")
    if sources:
        return (
            f"{told}. No weights are among its outputs ({has}), but it can hand out those of {' and of '.join(sources)}: "
            "attnctl docs my-checkpoint has the lines"
        )
    fused = f", and its {counted(graph.fused, 'node')} of fused attention give none" if graph.fused else ""
    return f"{told}. It has {counted(len(graph.outputs), 'output')} ({has}) and no weights{fused}: export it without fusing"


SAVED = (
    'Save them: numpy.savez("w.npz", **dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs))))'
)


def _ends(names: Sequence[str]) -> str:
    return shortened(names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}", 100)


def read_graph(path: str) -> Graph:
    """Return the outputs and the nodes of attention of an ONNX file. Raises AttnctlError if it is damaged."""
    try:
        with open_regular(path) as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))  # closed with the last part of it
        graph = next((part for number, part in _fields(data) if number == 7 and isinstance(part, memoryview)), None)
        if graph is None:
            raise ValueError("it holds no graph")
        return _graph_of(graph)
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        raise AttnctlError(f"{path} is not a sound ONNX file: {error}") from error


def _graph_of(graph: memoryview) -> Graph:
    outputs, softmaxes, weights, inputs = list[str](), list[str](), list[str](), set[str]()
    attentions = fused = 0
    for number, part in _fields(graph):
        if number == 12:  # an output of the graph: its name
            outputs += _fields_by_number(part).get(1, ())
        if number != 1:
            continue
        node = _fields_by_number(part)  # 1 inputs, 2 outputs, 4 its operator, 5 attributes, 7 its domain
        operator, domain = "".join(node.get(4, ())), "".join(node.get(7, ()))
        inputs |= set(node.get(1, ()))
        if operator == "Softmax":
            softmaxes += node[2]
        if operator == "Attention" and not domain:
            attentions += 1
            if "qk_matmul_output_mode=3" in node.get(5, ()):
                weights += node[2][3:]
        fused += "Attention" in operator and bool(domain)
    read = (name for name in softmaxes if name in inputs)
    return Graph(tuple(outputs), tuple(read), attentions, tuple(weights), fused)


def _fields_by_number(part: memoryview | int) -> dict[int, list[str]]:
    """Return the fields of a message that are texts; an attribute (5) as its name, and its whole number."""
    fields: dict[int, list[str]] = {}
    for number, value in _fields(part):
        if isinstance(value, memoryview) and number in (1, 2, 4, 7):
            fields.setdefault(number, []).append(bytes(value[:1000]).decode("utf-8", "replace"))
        elif isinstance(value, memoryview) and number == 5:
            of_attribute = dict(_fields(value))  # 1 its name, 3 its whole number
            name = of_attribute.get(1, b"")
            text = bytes(name).decode("utf-8", "replace")
            fields.setdefault(number, []).append(f"{text}={of_attribute.get(3, '')}")
    return fields


def _fields(data: memoryview | int) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the fields of a message in protobuf's wire format: number and value. Raises ValueError if it is cut."""
    if isinstance(data, int):
        raise ValueError("it is no protobuf message")
    place = 0
    while place < len(data):
        key, place = _whole_number(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _whole_number(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _whole_number(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("it is no protobuf message")
        if size > len(data) - place:
            raise ValueError("it is cut")
        yield key >> 3, data[place : place + size]
        place += size


def _whole_number(data: memoryview, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        number |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return number, place
    raise ValueError("it is no protobuf message")
