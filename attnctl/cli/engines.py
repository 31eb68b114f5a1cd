"""Choose the engine that does the work of a command, by its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Context

from attnctl.cli.command_form import was_typed
from attnctl.cli.groups import EngineOptions
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.batching import Engine


def engine_of(context: Context, options: EngineOptions) -> Engine:
    """Return the engine: Ray if a cluster is named, or its option was typed. Raises UsageError for what is no address."""
    from attnctl.batching import Engine

    if options.ray not in (None, "auto", "local") and ":" not in options.ray:
        raise UsageError("it is auto, local, or HOST:PORT", option="ray", value=options.ray)
    of_ray = options.ray is not None or was_typed(context, "gpus_per_worker")
    return Engine(
        "ray" if of_ray else "local", None if options.ray == "local" else options.ray, options.gpus_per_worker
    )
