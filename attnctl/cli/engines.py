"""Choose the engine that does the work of a command, by its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Context

from attnctl.cli.command_form import refuse_unused, was_typed
from attnctl.cli.groups import EngineOptions

if TYPE_CHECKING:
    from attnctl.batching import Engine


OF_RAY = ("address", "gpus_per_worker")


def engine_of(context: Context, options: EngineOptions) -> Engine:
    """Return the engine: Ray if its options were typed. Raises UsageError for those beside `--engine local`."""
    from attnctl.batching import Engine

    if options.engine == "local" and was_typed(context, "engine"):
        refuse_unused(context, *OF_RAY, because="use it with --engine ray")
    of_ray = any(was_typed(context, name) for name in OF_RAY)
    return Engine("ray" if of_ray else options.engine, options.address, options.gpus_per_worker)
