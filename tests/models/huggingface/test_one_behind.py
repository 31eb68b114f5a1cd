"""Statistics of heads and pooled cells in a second thread, one layer behind the network: the same numbers, and its errors end the run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import attnctl
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, computed
from attnctl.models import open_model
from attnctl.models.huggingface import network
from attnctl.readings.heatmap import GridReading, OverviewReading
from attnctl.readings.overview import PooledGrid, TextPart
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.source import TextSource, prepare
from tests.models.huggingface.conftest import Shelf

TEXT = "at eat will at eat will pizza at"


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A network of any size runs on both threads."""
    monkeypatch.setattr(network, "SHORT", 0)
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


class Listening(HeadStatisticsReading):
    """Statistics that note their thread and its number of torch's threads, then call `then`."""

    def __init__(self, source: TextSource, then: Callable[[LayerAttention], None] = lambda layer: None) -> None:
        super().__init__(source.tokens)
        self.threads: list[tuple[bool, int]] = []
        self.then = then

    def take(self, layer: LayerAttention) -> None:
        self.threads.append((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        self.then(layer)
        super().take(layer)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("case", ["llama", "gpt2", "bert"])
def test_the_numbers_are_those_of_one_thread_to_the_bit(
    case: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TextSource(open_model(shelf(case)), TEXT)
    reading = Listening(source)
    behind = prepare(source).read(reading)
    assert set(reading.threads) == {(False, 1)}
    assert [head.values for head in attnctl.heads(TEXT, shelf(case))] == [head.values for head in behind]
    # in turn, and on one thread from the first layer on, as the network was beside the reading
    monkeypatch.setattr(HeadStatisticsReading, "may_lag", lambda *_: False)
    reading = Listening(source, lambda _: torch.set_num_threads(1))
    in_turn = prepare(source).read(reading)
    assert {here for here, _ in reading.threads} == {True}
    torch.set_num_threads(2)
    assert behind == in_turn


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("case", ["llama", "gpt2", "bert"])
def test_pooled_cells_are_those_of_one_thread_to_the_bit(
    case: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, in_main = TextSource(open_model(shelf(case)), TEXT), set[bool]()

    class ListeningToCells(GridReading):
        def take(self, layer: LayerAttention) -> None:
            in_main.add(threading.current_thread() is threading.main_thread())
            if threading.current_thread() is threading.main_thread():
                torch.set_num_threads(1)  # as the network had beside the reading
            super().take(layer)

    def cells(*, alone: bool = False) -> PooledGrid:
        in_main.clear()
        count = len(source.tokens)
        parts = [TextPart(str(start), ((start, min(start + 2, count)),)) for start in range(0, count, 2)]
        statistics = None if alone else HeadStatisticsReading(source.tokens)
        overview = prepare(source).read(OverviewReading(ListeningToCells(parts, parts), statistics))
        torch.set_num_threads(2)
        assert overview.grid is not None
        return overview.grid

    assert cells().weights and in_main == {True}  # of a short text: from steps, with whose context the network goes on
    monkeypatch.setattr(computed, "PLAIN", 0)
    assert cells(alone=True).weights and in_main == {True}  # they take too little for a thread of their own
    behind = cells()
    assert in_main == {False}
    monkeypatch.setattr(HeadStatisticsReading, "may_lag", lambda *_: False)
    in_turn = cells()
    assert in_main == {True} and behind.weights.keys() == in_turn.weights.keys()
    assert all((behind.weights[place] == cells_of_head).all() for place, cells_of_head in in_turn.weights.items())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [AttnctlError("not finite"), ZeroDivisionError("a fault")])
def test_an_error_of_the_reading_is_raised_as_it_is(error: Exception, failing: int, shelf: Shelf) -> None:
    """Also of the last layer, after which the network has ended."""

    def fail(layer: LayerAttention) -> None:
        if layer.layer == failing:
            raise error

    source = TextSource(open_model(shelf("llama")), TEXT)
    reading = Listening(source, fail)
    with pytest.raises(type(error)) as caught:
        prepare(source).read(reading)
    assert caught.value is error
    assert len(reading.threads) == failing + 1


@pytest.mark.usefixtures("two_threads")
def test_an_interrupt_ends_the_reading_within_a_layer(shelf: Shelf) -> None:
    ended = []

    def never_end(layer: LayerAttention) -> None:
        if layer.layer == 0:
            return
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        limit = time.monotonic() + 20
        try:
            while time.monotonic() < limit:
                time.sleep(0.001)
                assert layer.tick is not None
                layer.tick(0)
        except InterruptedError:
            ended.append(layer.layer)
            raise

    source = TextSource(open_model(shelf("llama")), TEXT)
    reading = Listening(source, never_end)
    with pytest.raises(KeyboardInterrupt):
        prepare(source).read(reading)
    assert ended == [1]


@pytest.mark.usefixtures("two_threads")
def test_a_measure_is_read_while_the_network_waits(shelf: Shelf) -> None:
    """The norm of a value asks the network for W_O."""
    from attnctl.source import Changes

    source = TextSource(open_model(shelf("llama")), TEXT)
    reading = Listening(source)
    prepare(source, Changes("value-norm")).read(reading)
    assert {here for here, _ in reading.threads} == {True}
