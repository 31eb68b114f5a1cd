"""How far numbers may differ before attnctl reports it: each tolerance with its reason.

A tolerance by number type is relative to the largest number on either side, unless the line says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

# --- a row of weights ---------------------------------------------------------------------------------------------

WHOLE_ROW = 1e-3  # distance of a row's sum from 1: weights of three decimals pass; a larger gap is a sink
OWN_ROW = 2e-2  # the same, for a network's own weights in half precision
FLOAT_SUM = 1e-5  # distance of a row's sum from 1 by rounding in float32: a larger gap is a sink, or a coarser type
SAME_LOGIT = 4e-6  # relative distance of two logits whose order is rounding in float32
NEGATIVE = 1e-3  # distance below 0 or above 1 of a network's own weight: more is not a softmax

# --- a trace against its own arrays ---------------------------------------------------------------------------------

# two ways of computing an array differ by rounding, in the type that the model computes in
STORED = {"float64": 1e-6, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
CHECKED = 10  # factor for a check of a whole trace: errors of several steps add up
NOTED = 1e-3  # the smallest gap in a note: numbers rounded to three decimals pass
SUMS = 1e-2  # the smallest distance of a sum of weights from 1 in a note: half precision stays below it
HIDDEN = 1e-6  # the largest weight on a hidden key: a softmax gives it exactly 0
DEFAULT_SCALE = 1e-6  # relative distance within which a scale counts as 1 / √d_k: float32 resolves a tenth of this

# --- a checkpoint against what its network computes ------------------------------------------------------------------

# weights, and a context as a share of the largest value: kernels add in another order, half precision rounds each sum
KERNEL = {"float64": 1e-5, "float32": 1e-4, "bfloat16": 4e-2, "float16": 5e-3}
RESUMED = 1e-4  # a forward resumed in the middle against the whole one, as a share of the largest logit
NOTHING = 1e-30  # below this sum of a row, its shares have lost their digits

# --- a packed batch ------------------------------------------------------------------------------------------------

# change of outputs, relative to the largest, without a leak: with other tokens, experts group tokens otherwise
LEAK = {"float64": 1e-13, "float32": 4e-6, "bfloat16": 2e-2, "float16": 3e-3}


def tolerance(by_type: Mapping[str, float], dtype: object) -> float:
    """Return the tolerance of a number type, named as in NumPy or torch; a type without an entry has float32's."""
    return by_type.get(str(dtype).removeprefix("torch."), by_type["float32"])
