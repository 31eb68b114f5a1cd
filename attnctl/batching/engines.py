"""Who does the work: this process, or several; results come back in the order of the items either way.

What is read and what is written passes through the process that was started, so that the folder is the same as from one
machine; the workers need nothing but attnctl, and the model where the options say it is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl import light_import
from attnctl.batching.items import Item, Result
from attnctl.batching.work import Work, Worker
from attnctl.errors import AttnctlError, current_flags, in_one_line
from attnctl.interrupts import kept_from_children
from attnctl.models import Model

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from types import ModuleType


FEW = {True: 24, False: 1000}  # items, pictures or not, for which other processes are not worth their start
SHARED = 64  # items among which those of about one length are found, to share a pass through a checkpoint
LETTERS = 20_000  # of the texts in a chunk: what is made of them is held at once
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
END_SECONDS = 5.0  # in which processes that were told to end are waited for
WINDOW = 3  # chunks a worker that are begun and not yet written: what comes early waits for what is slow
IN_FLIGHT = 2  # chunks that a worker of a cluster has at a time: one in work, one on its way
TRIES = 3  # of a chunk whose workers die, before it is taken for the reason


class Engine(NamedTuple):
    """Who does the work on many texts: processes of this machine, or the workers of a Ray cluster."""

    engine: str = "local"
    address: str | None = None  # of a running cluster
    gpus_per_worker: float = 0.0

    def results(
        self, work: Any, chunks: Iterable[list[Item]], jobs: int | None, model: Model | None
    ) -> Iterator[list[Result]]:
        """The chunks' results in their order, by so many processes, or workers of the cluster (None: all it has)."""
        if self.engine == "ray":
            return run_on_cluster(work, chunks, address=self.address, workers=jobs, gpus=self.gpus_per_worker)
        if jobs and jobs > 1:
            return run_in_processes(work, chunks, jobs)
        return map(Worker(work, model, current_flags()).chunk_results, chunks)


LOCAL = Engine()


def results_of_items(
    work: Work, items: Iterable[Item], by: Engine, jobs: int | None, model: Model, *, flowing: bool, alone: bool
) -> Iterator[list[Result]]:
    """All of the work, in the order of the items, by so many processes or workers (None: as many as are of use).

    `flowing`: the items come when they come (a pipe), and each result is wanted as soon as it can be. `alone`: what flows
    line by line is seldom worth more processes.
    """
    size = SHARED if work.batch_size > 1 else 8 if work.draws_pictures else 32  # items that a worker has at a time
    few = FEW[work.draws_pictures]
    if by.engine == "ray":
        return by.results(work, chunks_of_items(items, size), jobs, model)
    if jobs is None:  # a checkpoint has threads, and may fill the memory
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        jobs = 1 if alone or model.info.kind == "checkpoint" else processors
    if flowing:
        return by.results(work, as_they_come(items, size), jobs, model)
    items = iter(items)
    head = list(islice(items, few)) if jobs > 1 else []
    jobs = jobs if len(head) == few else 1
    size = size if jobs > 1 or work.batch_size > 1 else 1 if work.draws_pictures else 16
    return by.results(work, chunks_of_items(chain(head, items), size), jobs, model)


def chunks_of_items(
    items: Iterable[Item], size: int, most_letters: int = LETTERS, first: int = 0
) -> Iterator[list[Item]]:
    """The items, `size` at a time, fewer where they are long, and `first` in the first chunk of all.

    The same in every run, wherever it begins.
    """
    chunk: list[Item] = []
    letters = 0
    for item in items:
        chunk.append(item)
        letters += len(item.text)
        if (item.number + 1) % size == 0 or item.number + 1 == first or letters > most_letters:
            yield chunk
            chunk, letters = [], 0
    if chunk:
        yield chunk


def as_they_come(items: Iterable[Item], most: int) -> Iterator[list[Item]]:
    """The items that are there, at most so many at a time; none, now and then, where none is there."""
    come: queue.Queue[Item | None | BaseException] = queue.Queue(4 * most)

    def read_chunks() -> None:
        try:
            for item in items:
                come.put(item)
            come.put(None)
        except BaseException as error:  # to be raised where the items are wanted
            come.put(error)

    # in this context, where messages name options as they do here
    threading.Thread(target=copy_context().run, args=(read_chunks,), daemon=True).start()
    while True:
        chunk: list[Item] = []
        try:
            while len(chunk) < most:
                item = come.get(timeout=0.0 if chunk else 0.2)
                if not isinstance(item, Item):
                    if chunk:
                        yield chunk
                    if item is not None:
                        raise item
                    return
                chunk.append(item)
        except queue.Empty:
            pass
        yield chunk


def run_in_processes(work: Any, chunks: Iterable[list[Item]], jobs: int) -> Iterator[list[Result]]:
    """Yield the results of the chunks in their order; `jobs` processes, each with a model of its own, do the work.

    Raises AttnctlError if a process was killed.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    free: queue.SimpleQueue[Connection] = queue.SimpleQueue()  # to processes that wait for a chunk
    pool = ThreadPoolExecutor(jobs)
    try:
        with _one_thread_each(), kept_from_children():
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve_chunks, args=(theirs, work, current_flags()), daemon=True)
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
                processes.append(process)
                free.put(ours)
        yield from _in_order(lambda chunk: pool.submit(_have_done, free, chunk), chunks, WINDOW * jobs)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(END_SECONDS)
            process.kill()


def _have_done(free: queue.SimpleQueue[Connection], chunk: list[Item]) -> list[Result]:
    """Return the results of a chunk from a process that is free. Raises what it raised, AttnctlError if it was killed."""
    connection = free.get()
    try:
        connection.send(chunk)
        results: list[Result] | Exception = connection.recv()
    except (EOFError, OSError):
        advice = "run the same again to go on, perhaps with fewer jobs"
        raise AttnctlError(f"a worker process was killed (out of memory?): {advice}") from None
    finally:
        free.put(connection)
    if isinstance(results, Exception):
        raise results
    return results


def _serve_chunks(connection: Connection, work: Any, flags: Mapping[str, str] | None) -> None:
    """Do the chunks that come through a pipe, leave Ctrl-C to the parent, and go when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    light_import.alone = True
    worker: Worker | None = None
    with contextlib.suppress(EOFError):  # the parent is gone
        while True:
            chunk: list[Item] = connection.recv()
            try:
                worker = worker or Worker(work, flags=flags)
                connection.send(worker.chunk_results(chunk))
            except Exception as error:
                connection.send(error)


def _in_order(submit: Callable[[list[Item]], Future[Any]], chunks: Iterable[list[Item]], most: int) -> Iterator[Any]:
    """What becomes of the chunks, in their order; at most so many are begun before the first of them is yielded."""
    waiting: deque[Future[Any]] = deque()
    for chunk in chunks:
        if chunk:
            waiting.append(submit(chunk))
        while len(waiting) > most or (waiting and waiting[0].done()):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """As many processes as cores leave each one thread."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name in THREADS:
            del os.environ[name]
        os.environ.update({name: before[name] for name in THREADS if name in before})


def run_on_cluster(
    work: Any,
    chunks: Iterable[list[Item]],
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus: float = 0,
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
        yield from _results_of_actors(ray, work, chunks, workers, gpus)
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
        raise AttnctlError("it needs Ray: pip install 'attnctl[ray]'", option="engine", value="ray") from None
    library: ModuleType = ray  # of no type where Ray is not installed
    return library


def _results_of_actors(
    ray: ModuleType, work: Any, chunks: Iterable[list[Item]], workers: int | None, gpus: float
) -> Iterator[list[Result]]:
    """The chunks' results in their order; an actor that is not there yet is given none, a free one the next."""
    there = ray.cluster_resources()
    have = there.get("GPU", 0.0) / gpus if gpus else there.get("CPU", 0.0)
    if have < 1:
        raise AttnctlError(f"the Ray cluster has {there.get('GPU', 0):g} GPUs, and a worker asks for {gpus:g}")
    options = {"num_cpus": 0 if gpus else 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": TRIES}
    actors = [
        ray.remote(**options)(Worker).remote(work, flags=current_flags()) for _ in range(workers or max(1, int(have)))
    ]
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()  # actors, each once for every chunk that it can be given

    def wait_for(actor: Any, chunk: list[Item]) -> Any:
        """A reference to the results of a chunk, once they are there."""
        reference = actor.chunk_results.remote(chunk)
        ray.wait([reference])
        free.put(actor)
        return reference

    pool = ThreadPoolExecutor(IN_FLIGHT * len(actors))

    def submit(chunk: list[Item]) -> Future[Any]:
        return pool.submit(lambda: wait_for(free.get(), chunk))

    try:
        for actor in actors * IN_FLIGHT:
            pool.submit(wait_for, actor, [])
        yield from map(ray.get, _in_order(submit, chunks, WINDOW * len(actors)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for actor in actors:
            ray.kill(actor)
