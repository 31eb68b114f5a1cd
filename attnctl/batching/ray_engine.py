"""The same work on a Ray cluster: actors, each with a model of its own, and a bounded window of chunks in flight. Needs Ray.

What is read and what is written passes through the process that was started, so that the folder is the same as from one
machine; the workers need nothing but attnctl, and the model where the options say it is.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from attnctl.batching.items import Item
from attnctl.batching.work import Result, Worker
from attnctl.errors import AttnctlError, in_one_line

if TYPE_CHECKING:
    from types import ModuleType

    from attnctl.batching.engines import WorkerClass

IN_FLIGHT = 2  # chunks that an actor has at a time: one in work, one on its way
WINDOW = 4  # chunks an actor that are begun and not yet written: what comes early waits for what is slow
TRIES = 3  # of a chunk whose actors die, before it is taken for the reason


Handle = Any  # of an Actor in the cluster
Reference = Any  # to what an Actor will have answered


class Actor:
    """What each of the cluster's processes is: a worker that is handed chunks."""

    def __init__(self, work: Any, worker: WorkerClass = Worker) -> None:
        self.worker = worker(work)

    def answer_ready(self) -> None:
        """Answer once the model is open."""

    def chunk_results(self, chunk: list[Item]) -> list[Result]:
        """The results of a chunk."""
        return self.worker.chunk_results(chunk)


def run_on_cluster(
    work: Any,
    chunks: Iterable[list[Item]],
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus: float = 0,
    worker: WorkerClass = Worker,
) -> Iterator[list[Result]]:
    """The chunks' results, in their order.

    `address` is that of a running cluster, "auto" where this machine belongs to one, None to start one here. `workers` is
    how many actors there are at most (None: one a GPU they need, or one a core). A worker that dies is started again, and
    its chunk done again. Raises AttnctlError where there is no cluster, or not what the workers need.
    """
    ray = _import_ray()
    started = not ray.is_initialized()
    here: dict[str, object] = {"address": address} if address else {"include_dashboard": False}
    try:
        if started:
            ray.init(log_to_driver=False, logging_level="error", **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AttnctlError(f"no Ray cluster at {address or 'all'}: {in_one_line(error)}") from error
    try:
        yield from _results_in_order(ray, work, chunks, workers, gpus, worker)
    except ray.exceptions.RayError as error:
        raise AttnctlError(f"the Ray cluster gave up: {str(error).strip().splitlines()[-1][:200]}") from error
    finally:
        if started:
            ray.shutdown()


def _import_ray() -> ModuleType:
    """The library, without its messages. Raises AttnctlError where it is not installed."""
    quietly = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_BACKEND_LOG_LEVEL": "fatal",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    for name, value in quietly.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise AttnctlError("--engine ray needs Ray: pip install 'attnctl[ray]'") from None
    library: ModuleType = ray  # of no type where Ray is not installed
    return library


def _results_in_order(
    ray: ModuleType, work: Any, chunks: Iterable[list[Item]], workers: int | None, gpus: float, worker: WorkerClass
) -> Iterator[list[Result]]:
    there = ray.cluster_resources()
    have = there.get("GPU", 0.0) / gpus if gpus else there.get("CPU", 0.0)
    if have < 1:
        raise AttnctlError(f"the Ray cluster has {there.get('GPU', 0):g} GPUs, and a worker asks for {gpus:g}")
    options = {"num_cpus": 0 if gpus else 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": TRIES}
    kind = ray.remote(**options)(Actor)
    actors = [kind.remote(work, worker) for _ in range(workers or max(1, int(have)))]
    try:
        yield from _in_order(ray, actors, chunks)
    finally:
        for actor in actors:
            ray.kill(actor)


def _in_order(ray: ModuleType, actors: list[Handle], chunks: Iterable[list[Item]]) -> Iterator[list[Result]]:
    """The chunks' results in their order; an actor that is not there yet is given none, a free one the next.

    No more than WINDOW chunks an actor are read before the first of them is yielded.
    """
    # → actor, chunk's number
    busy = {actor.answer_ready.remote(): (actor, -1) for actor in actors for _ in range(IN_FLIGHT)}
    free: deque[Handle] = deque()
    done: dict[int, Reference] = {}  # number → reference to results that wait for those before them
    given = yielded = 0
    for chunk in chunks:
        while not free or given - yielded >= WINDOW * len(actors):
            _wait_for_actor(ray, busy, free, done)
            while yielded in done:
                yield ray.get(done.pop(yielded))
                yielded += 1
        actor = free.popleft()
        busy[actor.chunk_results.remote(chunk)] = actor, given
        given += 1
    while yielded < given:
        while yielded not in done:
            _wait_for_actor(ray, busy, free, done)
        yield ray.get(done.pop(yielded))
        yielded += 1


def _wait_for_actor(
    ray: ModuleType, busy: dict[Reference, tuple[Handle, int]], free: deque[Handle], done: dict[int, Reference]
) -> None:
    """Wait until an actor is free again."""
    (reference, *_), _ = ray.wait(list(busy), num_returns=1)
    actor, number = busy.pop(reference)
    free.append(actor)
    if number >= 0:
        done[number] = reference
