"""The same work on a Ray cluster, through Ray Data: a pool of actors, each with a model of its own. Needs ray[data].

What is read and what is written passes through the process that was started, so that the folder is the same as from one
machine; the workers need nothing but attnctl, and the model where the options say it is.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from attnctl.batching.items import Item
from attnctl.batching.work import Result, Work, Worker
from attnctl.errors import AttnctlError, in_one_line

TOGETHER = 64  # chunks in one block of Ray's object store


class Actor:
    """What each of the pool's processes is: a worker that is handed chunks."""

    def __init__(self, work: Work, worker: type[Worker] = Worker) -> None:
        self.worker = worker(work)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """The results of some chunks, as bytes like the chunks themselves."""
        done = [pickle.dumps(self.worker.results(pickle.loads(chunk))) for chunk in rows["chunk"]]
        return {"done": done}


def cluster(
    work: Work,
    chunks: Iterable[list[Item]],
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus: float = 0,
    worker: type[Worker] = Worker,
) -> Iterator[list[Result]]:
    """The chunks' results, in their order.

    `address` is that of a running cluster, "auto" where this machine belongs to one, None to start one here. `workers` is
    how many actors there are at most (None: one a GPU they need, or one a core). A worker that dies is started again, and
    its chunk done again. Raises AttnctlError where there is no cluster, or not what the workers need.
    """
    ray = _ray()
    started = not ray.is_initialized()
    here: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        if started:
            ray.init(log_to_driver=False, logging_level="error", **here)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AttnctlError(f"no Ray cluster at {address or 'all'}: {in_one_line(error)}") from error
    try:
        yield from _results(ray, work, chunks, workers, gpus, worker)
    except ray.exceptions.RayError as error:
        raise AttnctlError(f"the Ray cluster gave up: {str(error).strip().splitlines()[-1][:200]}") from error
    finally:
        if started:
            ray.shutdown()


def _ray() -> Any:
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
        import ray.data
    except ImportError:
        raise AttnctlError("--engine ray needs Ray: pip install 'attnctl[ray]'") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


def _results(
    ray: Any, work: Work, chunks: Iterable[list[Item]], workers: int | None, gpus: float, worker: type[Worker]
) -> Iterator[list[Result]]:
    import pyarrow as pa

    there = ray.cluster_resources()
    have = there.get("GPU", 0.0) / gpus if gpus else there.get("CPU", 0.0)
    if have < 1:
        raise AttnctlError(f"the Ray cluster has {there.get('GPU', 0):g} GPUs, and a worker asks for {gpus:g}")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    chunks = iter(chunks)
    blocks = []
    while block := [pickle.dumps(chunk) for chunk in islice(chunks, TOGETHER)]:
        blocks.append(ray.put(pa.table({"chunk": pa.array(block, pa.large_binary())})))
    if not blocks:
        return
    done = ray.data.from_arrow_refs(blocks).map_batches(
        Actor,
        fn_constructor_args=(work, worker),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers or max(1, int(have))),
        num_cpus=0 if gpus else 1,
        num_gpus=gpus,
    )
    for row in done.iter_rows():
        yield pickle.loads(row["done"])
