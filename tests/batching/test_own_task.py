"""A task of a package's own over many texts: in memory, in processes, and in a folder in which a later run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

import attnctl
from attnctl.batching import (
    LOCAL,
    BatchFormat,
    Folder,
    Item,
    NamedFiles,
    Pending,
    Request,
    Result,
    Task,
    TextStream,
    chunks_of_items,
)
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.models import Model, open_model
from attnctl.text.tokens import split_words

TEXTS = ("Alice eats", "Bob", "a cat sat on a mat", "", "Carol reads books", "who knows")


class LargestWeights(Request):
    """The request for the largest weight of each layer, on a text's last word."""

    def task(self, model: Model | None = None) -> Task:
        return LargestWeightsTask(model)


class LargestWeightsTask(Task):
    def __init__(self, model: Model | None) -> None:
        self.opened = model

    @cached_property
    def model(self) -> Model:
        return self.opened or open_model("random", seed=7)

    def begin(self, item: Item) -> Pending:
        return Pending(item, self.model.tokenize(item.text), None)

    def results(self, pending: Sequence[Pending]) -> list[Result]:
        return [self.result(entry.item, entry) for entry in pending]

    def result(self, item: Item, entry: Pending) -> Result:
        largest: list[float] = []

        def visit(layer: LayerAttention) -> None:
            largest.append(float(layer.all_weights()[:, -1].max()))

        self.model.run(tuple(entry.tokens), visit, "")
        return Result(item, {"largest": (len(entry.tokens), largest)}, len(entry.tokens))


class Largest(BatchFormat):
    form = "largest"

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.whole = b""

    def add(self, made: object) -> None:
        self.lines.append(json.dumps(made).encode() + b"\n")

    def rest(self) -> NamedFiles:
        lines, self.lines = self.lines, []
        return [(self.name_of_part(".jsonl"), b"".join(lines))]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        self.whole = b"".join(parts)


def weights_of(text: str) -> list[float]:
    """Return the largest weight on the last word, by NumPy from the model's queries and keys."""
    (layer,) = attnctl.attend(text, "random", seed=7).layers
    assert layer.queries is not None and layer.keys is not None
    scores = np.asarray(layer.queries, np.float64) @ np.asarray(layer.keys, np.float64).transpose(0, 2, 1)
    scores = scores / np.sqrt(layer.keys.shape[-1])
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return [float(weights[:, -1].max())]


def test_a_task_gives_a_result_for_each_text_in_order_here_and_in_processes(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    stream = TextStream(str(tmp_path / "texts.txt"))
    for jobs, model in ((None, open_model("random", seed=7)), (2, open_model("random", seed=7))):
        chunks = chunks_of_items(stream, 2)
        results = [result for chunk in LOCAL.results(LargestWeights(), chunks, jobs, model) for result in chunk]
        texts = [text for text in TEXTS if text]
        assert [result.item.text for result in results if result.error is None] == texts
        for result in results:
            if result.error is None:
                count, largest = result.outputs["largest"]
                assert count == len(split_words(result.item.text))
                np.testing.assert_allclose(largest, weights_of(result.item.text), rtol=1e-5)


def test_a_folder_keeps_the_results_before_an_error_and_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(text for text in TEXTS if text) + "\n")
    model, heard = open_model("random", seed=7), list[str]()

    def results_of(items: Iterator[Item]) -> Iterator[list[Result]]:
        return LOCAL.results(LargestWeights(), chunks_of_items(items, 1), None, model)

    def run(fails_at: int) -> tuple[Folder, Largest]:
        largest = Largest()

        def hear(result: Result) -> None:
            if result.item.number == fails_at:
                raise AttnctlError("full")
            heard.append(result.item.text)

        request = {"input": [str(source)], "formats": ["largest"], "model": {"name": "random"}}
        with Folder(tmp_path / "out", request, ("largest",), [largest]) as folder:
            folder.fill(TextStream(str(source)), results_of, hear, lambda count: None)
        return folder, largest

    with pytest.raises(AttnctlError, match="full"):
        run(fails_at=2)
    folder, largest = run(fails_at=-1)
    assert folder.kept_before + folder.done == 5 and heard[-3:] == ["a cat sat on a mat", *TEXTS[4:]]
    counts = [json.loads(line)[0] for line in largest.whole.splitlines()]
    assert counts == [len(text.split()) for text in TEXTS if text]
