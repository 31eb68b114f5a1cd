"""One family in one mode: is what attnctl shows exactly what the model does, refused in a line, wrong, or an error?"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from attnctl.api.captures import Captured
from attnctl.api.capturing import capture
from attnctl.errors import AttnctlError, UsageError
from tests.tools.sweep.checkpoints import trace_of
from tests.tools.sweep.families import NEEDS, Family, build
from tests.tools.sweep.modes import Mode, NotMeantError, Run
from tests.tools.sweep.reference import PUT_OUT_OTHERWISE, Reference, recorded, softmaxes, true_weights

EXACT, REFUSED, WRONG, ERROR, UNBUILT = "exact", "refused", "wrong", "error", "not built"
CLOSE = {"float32": 1e-5, "bfloat16": 3e-2}  # how near weights are to eager's: some units in the last place
KINDS = {"self": "attentions", "encoder": "encoder_attentions", "decoder": "decoder_attentions"}
KINDS |= {"cross": "cross_attentions"}


@dataclass(frozen=True)
class Verdict:
    """How one family fared in one mode under one kernel."""

    family: Family
    mode: str
    kernel: str
    outcome: str
    why: str = ""


def verdicts(family: Family, modes: Sequence[Mode], seconds: int = 60) -> Iterator[Verdict]:
    """The verdict of each mode that applies; of each kernel that the family has."""
    try:
        with calm(seconds):
            kernels = ["eager", "sdpa"] if supports_fused(family) else ["eager"]
    except BaseException as error:
        yield from _unbuilt(family, "plain", "eager", error)
        return
    for mode in modes:
        try:
            with calm(seconds):
                reference = own(family, mode)
        except NotMeantError:
            continue
        except BaseException as error:
            yield from _unbuilt(family, mode.name, "eager", error)
            if mode.name == "plain":
                return
            continue
        for kernel in kernels:
            try:
                with calm(seconds):
                    if mode.commands:
                        traced(family, kernel)
                    else:
                        compare(family, mode, kernel, reference)
                yield Verdict(family, mode.name, kernel, EXACT)
            except (AttnctlError, UsageError) as error:
                yield Verdict(family, mode.name, kernel, REFUSED, str(error))
            except DiffersError as error:
                yield Verdict(family, mode.name, kernel, WRONG, str(error))
            except UnfitError as error:
                yield from _unbuilt(family, mode.name, kernel, error)
            except Exception as error:
                yield Verdict(family, mode.name, kernel, ERROR, f"{type(error).__name__}: {error}"[:300])


def _unbuilt(family: Family, mode: str, kernel: str, error: BaseException) -> Iterator[Verdict]:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    yield Verdict(family, mode, kernel, UNBUILT, f"{type(error).__name__}: {error}"[:200])


class DiffersError(Exception):
    """What attnctl shows is not what the model does."""


class UnfitError(Exception):
    """The model does not run so even without attnctl."""


@contextmanager
def calm(seconds: int) -> Iterator[None]:
    """Without gradients and warnings, and not for ever: `seconds` of work, however busy the machine is."""

    def over(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def supports_fused(family: Family) -> bool:
    """Whether the family runs on torch's fused kernel through transformers' interface."""
    model = build(family)
    return bool(type(model)._supports_sdpa) and follows(model)


def follows(model: Any) -> bool:
    """Whether every part that attends follows transformers' interface, by transformers' own account."""
    from transformers import PreTrainedModel

    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return all(type(part)._can_set_attn_implementation() for part in parts)


@dataclass(frozen=True)
class Own:
    """What the model computes under eager, and what it puts out, without attnctl."""

    answer: list[torch.Tensor]
    calls: list[Reference]
    put_out: dict[str, Any]  # kind → of each forward the weights of each layer, where nothing was recorded


def own(family: Family, mode: Mode) -> Own:
    """The model's own eager run. Raises what it raises."""
    alone = run_alone(family, mode, "eager")
    model, answer, calls = alone.model, alone.answer, alone.calls
    put_out: dict[str, Any] = {}
    if not calls:
        seen: list[Any] = []
        hook = model.register_forward_hook(lambda _, __, ___, output: seen.append(output), with_kwargs=True)
        asking = model.register_forward_pre_hook(
            lambda _, args, kwargs: (args, kwargs | {"output_attentions": True, "return_dict": True}), with_kwargs=True
        )
        try:
            with softmaxes(model) as found:
                mode.run(family, model)
            for output in seen:
                for kind, key in KINDS.items():
                    put_out.setdefault(kind, []).append(getattr(output, key, None) or ())
            if family.kind in PUT_OUT_OTHERWISE:
                put_out = true_weights(family.kind, found, put_out)
        except Exception:
            put_out = {}  # it cannot be asked
        hook.remove()
        asking.remove()
    return Own(answer, calls, {kind: parts for kind, parts in put_out.items() if any(parts)})


@dataclass(frozen=True)
class Alone:
    """A run without attnctl: the model, which some change as they run, its answer, and its calls of attention."""

    model: Any
    answer: list[torch.Tensor]
    calls: list[Reference]


def run_alone(family: Family, mode: Mode, kernel: str) -> Alone:
    """The run of a mode; those that differ only in what is looked at share one."""
    return _run_alone(family, mode.run, kernel, mode.dtype, str(NEEDS.get(family.kind)))


@lru_cache(maxsize=4)  # the two kernels of a mode; those that run alike follow each other
def _run_alone(family: Family, run: Run, kernel: str, dtype: str, _: str) -> Alone:
    model = build(family, kernel, dtype)
    with recorded(model) as calls:
        answer = run(family, model)
    return Alone(model, answer, calls)


def compare(family: Family, mode: Mode, kernel: str, reference: Own) -> None:
    """Raise DiffersError where what is captured is not what the model does; AttnctlError where attnctl refuses."""
    try:
        alone = run_alone(family, mode, kernel)
    except Exception as error:
        raise UnfitError(f"{type(error).__name__}: {error}") from error
    model, limit = alone.model, CLOSE[mode.dtype]
    how: dict[str, Any] = {}
    if mode.narrow:
        with capture(model) as whole:
            mode.run(family, model)
        chosen = whole[0].layer if mode.stop else whole[-1].layer
        how = {
            "layer": [chosen],
            "head": [min(len(t.heads) for t in whole if t.layer == chosen) - 1],
            "stop": mode.stop,
        }
    left, after = True, None
    with capture(model, **how) as traces:
        after = mode.run(family, model)
        left = False
    whats = (
        [near(after, other, 10 * limit) for other in (alone.answer, reference.answer)] if after is not None else [None]
    )
    what = whats[0] if mode.dtype == "float32" or None not in whats else None  # in half precision, of either kernel
    if what is not None:
        raise DiffersError(f"the model's own answer changes by {what}")
    if not traces:
        raise DiffersError("nothing was captured, and nothing said")
    if mode.narrow:
        narrowed(traces, [t for t in whole if t.layer == chosen], left, limit)
    elif reference.calls:
        called(traces, reference.calls, alone.calls, limit, kernel == "sdpa" and mode.dtype != "float32")
    else:
        outputs(traces, reference.put_out, limit)


def traced(family: Family, kernel: str) -> None:
    """Raise DiffersError where a trace, as the commands make it, is not what the model does, or the check is not content."""
    if (what := trace_of(family, build(family, kernel))) is not None:
        raise DiffersError(what)


def near(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor], limit: float) -> str | None:
    """None where two answers are the same but for rounding; else by how much they are not."""
    for a, b in zip(some, others, strict=True):
        if a.shape != b.shape:
            return f"shape {tuple(a.shape)} for {tuple(b.shape)}"
        gap = (a.float() - b.float()).nan_to_num(0.0).abs().max()
        scale = b.float().nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1.0)
        if bool((a.isnan() != b.isnan()).any()) or float(gap / scale) > limit:
            return f"{float(gap):.1e}"
    return None


def called(traces: list[Captured], eager: list[Reference], alone: list[Reference], limit: float, rounds: bool) -> None:
    """Each captured call against the model's own, in order.

    Its weights against those of eager, where transformers' own two kernels agree; its context against the kernel's own,
    or against eager's where the kernel `rounds` otherwise, as in half precision.
    """
    alone = joined(alone)
    eager = joined(eager)
    if len(traces) != len(alone):
        raise DiffersError(f"{len(traces)} calls captured, {len(alone)} made")
    where = [(t.kind, t.layer, t.step, t.name, t.recurrence) for t in traces]
    if len(set(where)) != len(where):
        twice = next(one for one in where if where.count(one) > 1)
        raise DiffersError(f"two calls under one name: {twice}")
    for at, (trace, made) in enumerate(zip(traces, alone, strict=True)):
        name = f"{trace.kind} layer {trace.layer} ({made.names[0]})"
        if trace.name not in made.names:
            raise DiffersError(f"{name}: captured as {trace.name}")
        numbers = {number for n in made.names for number in digits(n)}
        if numbers and trace.layer not in numbers and "_groups." not in made.names[0]:
            raise DiffersError(f"{name}: the model counts it as {sorted(numbers)}")
        shown = (
            trace.weights.new_ones(1, dtype=torch.bool) if trace.mask is None else trace.mask.any(-1)
        )  # (batch, n_q)
        shown = shown.expand(trace.weights.shape[0], trace.weights.shape[2])
        if made.weights is None and agrees(eager, at, made, shown, limit):
            made = replace(eager[at], context=eager[at].context if rounds else made.context)
        if made.weights is not None:
            ours, theirs = trace.weights, made.weights
            if bool((ours.float().sum(-1) < theirs.float().sum(-1) - 0.01).any()):  # without the sink's share
                ours, theirs = ours / ours.sum(-1, keepdim=True), theirs / theirs.sum(-1, keepdim=True)
            same(ours.transpose(1, 2)[shown], theirs.transpose(1, 2)[shown], limit, f"{name}: weights")
        if trace.values is not None:
            context = (trace.weights.float() @ trace.values.float()).transpose(1, 2)  # (batch, n_q, heads, d_v)
            same(context[shown], made.context.float()[shown], 10 * limit, f"{name}: weights @ values")


def joined(calls: list[Reference]) -> list[Reference]:
    """Differential attention's two calls of a module, each to a half of the values, as one."""
    found: list[Reference] = []
    for call in calls:
        if call.half and found and found[-1].half and found[-1].names == call.names:
            context = torch.cat([found[-1].context, call.context], dim=-1)
            found[-1] = replace(call, context=context, half=False)
        else:
            found.append(call)
    return found


def agrees(eager: list[Reference], at: int, made: Reference, shown: torch.Tensor, limit: float) -> bool:
    """Whether eager made the same call here, and made the same of it."""
    if at >= len(eager) or eager[at].names != made.names or eager[at].context.shape != made.context.shape:
        return False
    return near([eager[at].context[shown]], [made.context[shown]], 100 * limit) is None


def digits(name: str) -> list[int]:
    """The numbers in a module's name."""
    return [int(part) for part in name.split(".") if part.isdigit()]


def narrowed(traces: list[Captured], whole: list[Captured], left: bool, limit: float) -> None:
    """One head of one layer against the same of all."""
    if len(traces) != len(whole):
        raise DiffersError(f"{len(traces)} calls of the layer captured, {len(whole)} were there")
    for one, every in zip(traces, whole, strict=True):
        same(one.weights, every.weights[:, list(one.heads)], 10 * limit, f"layer {one.layer} alone: weights")


def outputs(traces: list[Captured], put_out: dict[str, Any], limit: float) -> None:
    """Weights of an architecture outside the interface against those that it puts out."""
    if not put_out:
        raise DiffersError("weights were captured of a model that puts out none")
    for trace in traces:
        theirs = put_out[trace.kind][trace.step][trace.layer]
        same(trace.weights, theirs, limit, f"{trace.kind} layer {trace.layer}: weights")
        sums = trace.weights.float().sum(-1)
        if bool((trace.weights < -1e-6).any()) or bool((sums > 1.01 + limit).any()):
            raise DiffersError(f"{trace.kind} layer {trace.layer}: no weights, rows sum to {float(sums.max()):.2f}")


def same(ours: torch.Tensor, theirs: torch.Tensor, limit: float, what: str) -> None:
    if ours.shape != theirs.shape:
        raise DiffersError(f"{what} have shape {tuple(ours.shape)}, not {tuple(theirs.shape)}")
    scale = theirs.float().nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1.0) if theirs.numel() else 1.0
    gap = float(((ours.float() - theirs.float()).nan_to_num(0.0).abs().max() / scale) if ours.numel() else 0.0)
    if gap > limit:
        raise DiffersError(f"{what} off by {gap:.1e}")
