"""The steps that --steps names, and why a run lacks one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.readings.traces.trace import Trace

# why a run may lack a step, and what makes one
_WHY = {
    "embeddings": "the source keeps none",
    "input": "only layers after the first have one, where the source keeps it",
    "matrices": "the source keeps none",
    "queries": "the source holds no queries and keys",
    "keys": "the source holds no queries and keys",
    "values": "the source holds no values",
    "rope": "no rotary positions here: --rope turns queries and keys of random and dot",
    "scores": "the source holds weights alone",
    "scaled": "the source holds weights alone",
    "mask": "nothing is masked: --causal or --window masks",
    "weights": "the source holds none",
    "difference": "no differential attention here",
    "gate": "no gate on the output of heads here",
    "dropout": "no weight is dropped: --dropout 0.1 drops some",
    "context": "the source holds no values",
    "output": "one head without W_O: its context is the output",
    "residual": "the source adds no residual stream",
    "prediction": "no words are predicted here: --predict TOKEN, for a model that can",
    "summary": "the source holds no weights",
}


def check_steps(trace: Trace, names: Sequence[str]) -> list[str]:
    """Notes on the named steps that a run lacks. Raises UsageError where it has none of them."""
    from attnctl.steps import walk_steps

    lacking = [name for name in names if not any(walk_steps(trace, None, [name]))]
    said = [f"no {name} step: {_WHY.get(name, 'this run has none')}" for name in lacking]
    if len(lacking) == len(names):
        raise UsageError(f"--steps {','.join(names)}: {said[0]}")
    return said
