"""Choose the engine that does the work of a command, by its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Context

from attnctl.cli.command import refuse_unused
from attnctl.cli.groups import EngineOptions

if TYPE_CHECKING:
    from attnctl.batching.engines import Engine


def engine_of(context: Context, options: EngineOptions) -> Engine:
    """Return the engine. Raises UsageError for options of Ray that were typed for the local one."""
    from attnctl.batching.engines import Engine

    if options.engine == "local":
        refuse_unused(context, "address", "gpus_per_worker", because="use it with --engine ray")
    return Engine(options.engine, options.address, options.gpus_per_worker)
