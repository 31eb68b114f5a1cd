"""Distribute the work on many texts: to this process, to several processes, or to the workers of a Ray cluster.

Input and output pass through the process that was started, so that the folder is the same as from one machine. The workers
need only attnctl, and the model at the path that the options name.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import chain, islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.batching.items import Item, Result
from attnctl.batching.passes import is_heavy
from attnctl.batching.work import Request, Work, Worker
from attnctl.errors import AttnctlError, current_flags, in_one_line, lossy_stderr
from attnctl.models import Model
from attnctl.runtime import core_count, light_import
from attnctl.runtime.interrupts import POSIX, kept_from_children

if TYPE_CHECKING:
    from types import ModuleType

    DoChunk = Callable[[list[Item]], list[Result]]  # the work of a worker

FEW = {True: 24, False: 1000}  # items, with pictures or without: for fewer, other processes are not worth their start
SHARED = 64  # items among which texts of similar length are chosen to share a pass through a checkpoint
LINES = 256  # the same of other models, whose results are lines of JSON: some 80 ms of work, lost if a run is killed
LETTERS = 20_000  # in the texts of a chunk: their results are in memory at the same time
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
END_SECONDS = 5.0  # to wait for processes that were told to end
WINDOW = 3  # begun but unwritten chunks for each worker: early results wait for slow ones
IN_FLIGHT = 2  # chunks that a worker of a cluster has at a time: one in work, one in transfer
TRIES = 3  # of a chunk whose workers die, before the chunk is taken as the cause


class Engine(NamedTuple):
    """Processes of this machine ("local"), or the workers of a Ray cluster ("ray")."""

    engine: str = "local"
    address: str | None = None  # of a running cluster
    gpus_per_worker: float = 0.0

    def results(
        self, work: Request, chunks: Iterable[list[Item]], jobs: int | None, model: Model | None
    ) -> Iterator[list[Result]]:
        """Yield the results of the chunks in order, by `jobs` processes or workers (None: all workers of the cluster)."""
        if self.engine == "ray":
            return run_on_cluster(work, chunks, address=self.address, workers=jobs, gpus=self.gpus_per_worker)
        if jobs and jobs > 1:
            return run_in_processes(work, chunks, jobs)
        return Worker(work, model, current_flags()).each(chunks)


LOCAL: Engine = Engine()


def results_of_items(
    work: Work, items: Iterable[Item], by: Engine, jobs: int | None, model: Model, *, flowing: bool, alone: bool
) -> Iterator[list[Result]]:
    """Yield the results of the items in order, by `jobs` processes or workers (None: a number that suits the work).

    `flowing`: the items come from a pipe, and each result is written as soon as possible. `alone`: use one process, since
    line-by-line input is seldom worth more.
    """
    size = _items_of_worker(work, several=True)
    few = FEW[work.draws_pictures]
    if by.engine == "ray":
        return by.results(work, chunks_of_items(items, size), jobs, model)
    if jobs is None:  # a checkpoint uses threads, and may fill the memory
        jobs = 1 if alone or is_heavy(model) else core_count()
    if flowing:
        return by.results(work, as_they_come(items, size), jobs, model)
    items = iter(items)
    head = list(islice(items, few)) if jobs > 1 else []
    jobs = jobs if len(head) == few else 1
    size = _items_of_worker(work, several=jobs > 1)
    return by.results(work, chunks_of_items(chain(head, items), size), jobs, model)


def _items_of_worker(work: Work, *, several: bool) -> int:
    """Return how many items a worker takes at a time; `several` workers put their results in order."""
    if work.batch_size > 1:
        return SHARED
    if work.formats == ("json",) and work.changes.is_empty:
        return LINES
    if work.draws_pictures:
        return 8 if several else 1
    return 32 if several else 16


def chunks_of_items(
    items: Iterable[Item], size: int, most_letters: int = LETTERS, first: int = 0
) -> Iterator[list[Item]]:
    """Yield the items in chunks of `size`, fewer if they are long; the first chunk has `first` items.

    The chunks are the same in every run, wherever it begins.
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


def as_they_come(items: Iterable[Item], limit: int) -> Iterator[list[Item]]:
    """Yield the items that have come, at most `limit` at a time; yield an empty list now and then while none comes."""
    arrived: queue.Queue[Item | None | BaseException] = queue.Queue(4 * limit)

    def read_chunks() -> None:
        try:
            for item in items:
                arrived.put(item)
            arrived.put(None)
        except BaseException as error:  # raised in the thread that needs the items
            arrived.put(error)

    # in this context, so that messages name options in the same way
    threading.Thread(target=copy_context().run, args=(read_chunks,), daemon=True).start()
    while True:
        chunk: list[Item] = []
        try:
            while len(chunk) < limit:
                item = arrived.get(timeout=0.0 if chunk else 0.2)
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


def results_in_order(chunks: Iterable[list[Item]], workers: Sequence[DoChunk], window: int) -> Iterator[list[Result]]:
    """Yield the results of the chunks in order: each chunk goes to the next free worker.

    A thread waits for each worker; a worker that has not started yet gets no chunk. At most `window` chunks are begun and
    not yet yielded.
    """
    free: queue.SimpleQueue[DoChunk] = queue.SimpleQueue()
    threads = ThreadPoolExecutor(len(workers))

    def give(worker: DoChunk, chunk: list[Item]) -> list[Result]:
        try:
            return worker(chunk)
        finally:
            free.put(worker)

    waiting: deque[Future[list[Result]]] = deque()
    try:
        for worker in workers:
            threads.submit(give, worker, [])
        for chunk in chunks:
            if chunk:
                waiting.append(threads.submit(lambda chunk: give(free.get(), chunk), chunk))
            while len(waiting) > window or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


# --- processes of this machine ------------------------------------------------------------------------------------


def run_in_processes(work: Request, chunks: Iterable[list[Item]], jobs: int) -> Iterator[list[Result]]:
    """Yield the results of the chunks in order, by `jobs` processes, each with its own model.

    Raises AttnctlError if a process was killed.
    """
    workers: list[WorkerProcess] = []
    try:
        for _ in range(jobs):
            workers.append(WorkerProcess(work))
        yield from results_in_order(chunks, [worker.chunk_results for worker in workers], WINDOW * jobs)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(END_SECONDS)


class WorkerProcess:
    """A process with a `Worker` that receives chunks and sends back their results."""

    def __init__(self, work: Request) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, worker_pipe = context.Pipe()
        self.process = context.Process(target=_answer_chunks, args=(worker_pipe, work, current_flags()), daemon=True)
        if POSIX:
            resource_tracker.ensure_running()  # starting it unblocks the signals that are blocked below
        with kept_from_children(), _one_thread_each():
            self.process.start()
        worker_pipe.close()  # so that the pipe ends with the process

    def chunk_results(self, chunk: list[Item]) -> list[Result]:
        """Return the results of a chunk. Raises the error of the worker, and AttnctlError if the process was killed."""
        try:
            self._pipe.send(chunk)
            answer: list[Result] | Exception = self._pipe.recv()
        except (EOFError, OSError):
            advice = "run the same again to go on, perhaps with fewer jobs"
            raise AttnctlError(f"a worker process was killed (out of memory?): {advice}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextlib.contextmanager
def _one_thread_each() -> Iterator[None]:
    """Give one thread to each process that starts within this context: there are as many processes as cores."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name in THREADS:
            del os.environ[name]
        os.environ.update({name: before[name] for name in THREADS if name in before})


def _answer_chunks(pipe: Connection, work: Request, flags: Mapping[str, str] | None) -> None:
    """Send back the results of each chunk, in a new process. It ignores Ctrl-C, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    light_import.alone = True
    lossy_stderr()
    worker = Worker(work, flags=flags)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            chunk = pipe.recv()
            try:
                answer: list[Result] | Exception = worker.chunk_results(chunk)
            except Exception as error:
                answer = error
            pipe.send(answer)


# --- a cluster ------------------------------------------------------------------------------------------------------


def run_on_cluster(
    work: Request,
    chunks: Iterable[list[Item]],
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus: float = 0,
) -> Iterator[list[Result]]:
    """Yield the results of the chunks in order.

    `address` is that of a running cluster, "auto" if this machine belongs to one, None to start one here. `workers` is the
    largest number of actors (None: one for each GPU they need, or for each core). A worker that dies is started again, and
    its chunk is run again. Raises AttnctlError if there is no cluster, or if it lacks what the workers need.
    """
    ray = _import_ray(address)
    started = not ray.is_initialized()
    target: dict[str, object] = {"address": address} if address else {"include_dashboard": False}
    try:
        if started:
            ray.init(log_to_driver=False, logging_level="error", **target)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AttnctlError(f"no Ray cluster at {address or 'all'}: {in_one_line(error)}") from error
    try:
        yield from _results_of_actors(ray, work, chunks, workers, gpus)
    except ray.exceptions.RayError as error:
        raise AttnctlError(f"the Ray cluster gave up: {str(error).strip().splitlines()[-1][:200]}") from error
    finally:
        if started:
            ray.shutdown()


def _import_ray(address: str | None = None) -> ModuleType:
    """Return the module ray, without its messages. Raises AttnctlError if it is not installed."""
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
        raise AttnctlError("it needs Ray: pip install 'attnctl[ray]'", option="ray", value=address or "local") from None
    library: ModuleType = ray  # untyped if Ray is not installed
    return library


def _results_of_actors(
    ray: ModuleType, work: Request, chunks: Iterable[list[Item]], workers: int | None, gpus: float
) -> Iterator[list[Result]]:
    """Yield the results of the chunks in order, by actors that each hold a `Worker`."""
    resources = ray.cluster_resources()
    have = resources.get("GPU", 0.0) / gpus if gpus else resources.get("CPU", 0.0)
    if have < 1:
        raise AttnctlError(f"the Ray cluster has {resources.get('GPU', 0):g} GPUs, and a worker asks for {gpus:g}")
    options = {"num_cpus": 0 if gpus else 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": TRIES}
    actors = [
        ray.remote(**options)(Worker).remote(work, flags=current_flags()) for _ in range(workers or max(1, int(have)))
    ]

    def call_of(actor: Any) -> DoChunk:
        return lambda chunk: ray.get(actor.chunk_results.remote(chunk))

    try:
        yield from results_in_order(chunks, [call_of(actor) for actor in actors * IN_FLIGHT], WINDOW * len(actors))
    finally:
        for actor in actors:
            ray.kill(actor)
