"""attnctl: the command line for attention, and its Python API.

attend       the trace of a text: every step of its self-attention
batch        the traces of many texts, one after the other
capture      the traces of any torch model of yours, while it runs
heads        what each head does over a text
spans        attention between the parts of a text
compare      two traces, or two models on a text, and their difference
drift        how far a quantised copy or a fine-tune moves every head of a model
view         the page of a text, as HTML
ablate       what each head or edge does for a prediction, heads taken away in turn
effects      the same of a transformers model of yours
intervene    heads ablated and edges cut in any torch model of yours, while it runs
sources      which part of a prompt an answer came from
align        when each word of a speech was said, or what each token of a target was made from
leaks        whether a transformers model keeps the documents of a packed batch apart
mask         what each layer of a transformers model may see, and whether it keeps to it
evaluate     which words each head of a trained model finds
load         a trace, or what any command wrote as JSON, from its file
open_model   a model by its name or file, for many texts
AttentionLog entropy, sink share and largest logit of every head while a model trains
Trace        what attend, batch and load answer: tokens, layers, weights; .save(), .figure(), .to_json()
Overview     what is kept of a long text
AttnctlError what is raised where something cannot be, in one line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names
from attnctl.registry import FUNCTIONS
from attnctl.version import __version__ as __version__

if TYPE_CHECKING:
    from attnctl.api.capturing import capture as capture
    from attnctl.api.intervening import intervene as intervene
    from attnctl.api.log import AttentionLog as AttentionLog
    from attnctl.api.text_parts import spans as spans
    from attnctl.batching.traces import batch as batch
    from attnctl.commands.ablate.compute import ablate as ablate
    from attnctl.commands.ablate.network import effects as effects
    from attnctl.commands.align.compute import align as align
    from attnctl.commands.compare.compute import compare as compare
    from attnctl.commands.drift.compute import drift as drift
    from attnctl.commands.evaluate.compute import evaluate as evaluate
    from attnctl.commands.heads.compute import heads as heads
    from attnctl.commands.leaks.compute import leaks as leaks
    from attnctl.commands.mask.compute import mask as mask
    from attnctl.commands.sources.compute import sources as sources
    from attnctl.commands.view.compute import view as view
    from attnctl.errors import AttnctlError as AttnctlError
    from attnctl.formats.storage import load as load
    from attnctl.models import attend as attend
    from attnctl.models import open_model as open_model
    from attnctl.readings.overview import Overview as Overview
    from attnctl.trace import Trace as Trace
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.api.capturing": "capture",
            "attnctl.api.intervening": "intervene",
            "attnctl.api.log": "AttentionLog",
            "attnctl.api.text_parts": "spans",
            "attnctl.batching.traces": "batch",
            "attnctl.errors": "AttnctlError",
            "attnctl.formats.storage": "load",
            "attnctl.models": "attend open_model",
            "attnctl.readings.overview": "Overview",
            "attnctl.trace": "Trace",
            "attnctl.version": "__version__",
        },
        FUNCTIONS,  # of the commands
    )
