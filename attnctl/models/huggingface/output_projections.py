"""Find the output projection of each module that attends, by its name; watch and change its input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torch.nn import Linear

from attnctl.attention import Array
from attnctl.models.huggingface.attention_sites import Site, attention_modules, is_differential, sites_of_modules
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.optional_fields import tensor_of
from attnctl.runtime.arrays import Floats, as_numpy

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


# names of parts of a module that change a context before its output projection
_BETWEEN = re.compile(r"gate|(^|\.)g_proj|(sub|out|output|o)_(layer)?norm")
OUTPUT_NAMES = ("o_proj", "o_proj.linear", "out_proj", "output.dense", "out_lin", "dense", "c_proj", "wo", "Wo", "o")


def output_projections(network: PreTrainedModel, own: bool = False) -> dict[int, tuple[Site, Module]]:
    """Return id of a module that attends → its site, and the output projection of its heads.

    The projection is a part of the module, or else of the module that contains it (`own`: never). Differential attention,
    whose heads are subtracted first, has none.
    """
    sites, projections = sites_of_modules(network), {}
    for name, module in attention_modules(network).items():
        holders = [module] if own or "." not in name else [module, network.get_submodule(name.rpartition(".")[0])]
        parts_by_name = [dict(holder.named_modules(remove_duplicate=False)) for holder in holders]
        parts = [inside[part_name] for inside in parts_by_name for part_name in OUTPUT_NAMES if part_name in inside]
        if parts and not is_differential(module):
            projection = min(parts, key=lambda part: tensor_of(part, "weight") is None)  # one may wrap another
            projections[id(module)] = sites[id(module)][0], projection
    return projections


@contextmanager
def projections_watched(
    network: PreTrainedModel, see: Callable[[Site, Array], Array | None], kind: str | None = None
) -> Iterator[frozenset[int]]:
    """Pass the input of each module's own output projection, (batch, n, heads · d_v), to `see` within this context.

    If `see` returns an array, the projection reads that instead. `kind` None: every kind of attention. Yields the ids of the
    modules whose projections are watched.
    """

    def begin_projection(site: Site, _: object, args: tuple[Array, ...]) -> tuple[Array, ...] | None:
        replacement = see(site, args[0])
        return None if replacement is None else (replacement, *args[1:])

    watched = {
        key: projection_site
        for key, projection_site in output_projections(network, own=True).items()
        if kind in (None, projection_site[0].kind)
    }
    with ExitStack() as stack:
        for site, projection in watched.values():
            stack.callback(projection.register_forward_pre_hook(partial(begin_projection, site)).remove)
        yield frozenset(watched)


def is_changed_between(module: Module, query_width: int) -> bool:
    """Return whether a gate or a norm is between a module's heads and its output projection, by the names of its parts.

    Also if the queries' projection is twice as wide as the queries: the second half is a gate (Qwen3-Next).
    """
    names = [name for name, _ in (*module.named_modules(), *module.named_parameters(recurse=False))]
    queries = dict(module.named_children()).get("q_proj")
    wide = isinstance(queries, Linear) and queries.out_features == 2 * query_width
    return wide or any(_BETWEEN.search(name) for name in names)


def projection_matrix(projection: Module, width: int) -> Floats | None:
    """Return W_O (width, d_out) of an output projection; None if it has no such matrix."""
    weight = tensor_of(projection, "weight")
    if weight is None or weight.ndim != 2 or not weight.is_floating_point():
        return None
    turned = type(projection).__name__ == "Conv1D"  # GPT-2's is transposed
    if weight.shape[0 if turned else 1] != width:
        return None
    if weight.is_meta:  # accelerate keeps it elsewhere until the projection runs
        with import_extra("accelerate.utils").align_module_device(projection, execution_device="cpu"):
            on_cpu: Array = projection.weight
            weight = on_cpu.detach().clone()
    matrix: Floats = as_numpy((weight if turned else weight.T).detach())
    return matrix
