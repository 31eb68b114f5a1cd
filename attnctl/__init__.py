"""attnctl: the command line for attention, and its Python API.

attend       the trace of a text: every step of its self-attention
batch        the traces of many texts, one after the other
capture      the traces of a transformers model of yours, while it runs
heads        what each head does over a text
spans        attention between the parts of a text
compare      two traces, or two models on a text, and their difference
view         the page of a text, as HTML
ablate       what each head or edge does for a prediction, heads taken away in turn
effects      the same of a transformers model of yours
intervene    heads ablated and edges cut in a transformers model of yours, while it runs
sources      which part of a prompt an answer came from
align        when each word of a speech was said, or what each token of a target was made from
leaks        whether a transformers model keeps the documents of a packed batch apart
evaluate     which words each head of a trained model finds
load         a trace or an overview from a file that `save` or a command wrote
open_model   a model by its name or file, for many texts
AttentionLog entropy and sink share of every head while a transformers Trainer trains
Trace        what attend, batch and load answer: tokens, layers, weights; .save(), .figure(), .to_json()
Overview     what is kept of a long text
AttnctlError what is raised where something cannot be, in one line
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnctl.batching import batch
    from attnctl.capturing import capture
    from attnctl.commands.ablate.compute import ablate
    from attnctl.commands.ablate.network import effects
    from attnctl.commands.align.compute import align
    from attnctl.commands.compare.compute import compare
    from attnctl.commands.evaluate.compute import evaluate
    from attnctl.commands.heads.compute import heads
    from attnctl.commands.leaks.compute import leaks
    from attnctl.commands.sources.compute import sources
    from attnctl.commands.view.compute import view
    from attnctl.errors import AttnctlError
    from attnctl.formats.storage import load
    from attnctl.intervening import intervene
    from attnctl.log import AttentionLog
    from attnctl.models import attend, open_model
    from attnctl.readings.overview import Overview
    from attnctl.text_parts import spans
    from attnctl.trace import Trace

__all__ = [
    "AttentionLog",
    "AttnctlError",
    "Overview",
    "Trace",
    "__version__",
    "ablate",
    "align",
    "attend",
    "batch",
    "capture",
    "compare",
    "effects",
    "evaluate",
    "heads",
    "intervene",
    "leaks",
    "load",
    "open_model",
    "sources",
    "spans",
    "view",
]

# the API costs an import only when it is used: `attnctl --version` needs none of it
_PUBLIC = {
    "AttentionLog": "attnctl.log",
    "AttnctlError": "attnctl.errors",
    "Overview": "attnctl.readings.overview",
    "Trace": "attnctl.trace",
    "attend": "attnctl.models",
    "batch": "attnctl.batching",
    "capture": "attnctl.capturing",
    "intervene": "attnctl.intervening",
    "load": "attnctl.formats.storage",
    "open_model": "attnctl.models",
    "spans": "attnctl.text_parts",
}


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        from attnctl.commands import COMMANDS  # which lists those of commands

        module = next((one.functions[name] for one in COMMANDS.values() if name in one.functions), None)
    if module is None:
        raise AttributeError(f"module 'attnctl' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return __all__


def call_named(target: str, /, *arguments: object, **options: object) -> Any:
    """Call the function that "module:function" names. Its errors are its own."""
    return find_named(target)(*arguments, **options)


def find_named(target: str) -> Any:
    """The attribute that "module:attribute" names, its module imported."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
