"""Define `attnctl.AttentionLog`: measures of every head, such as its entropy, while a model trains."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attnctl.api.captures import Captured
from attnctl.api.capturing import capture
from attnctl.attention import Array
from attnctl.checks.argument_types import check_tensors, check_types, checked_selection
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import TrainerCallback, TrainerState

    from attnctl.text import Document
else:
    try:
        from transformers import TrainerCallback
    except ImportError:  # a training loop of one's own calls `measure`
        TrainerCallback = object

MARK = "attention"  # the names in the log begin with it


class AttentionLog(TrainerCallback):
    """Measure the attention of a model on fixed inputs, at regular steps of its training.

    It is a callback of transformers' Trainer. A training loop of one's own calls `log.measure(model, step)`, with any torch
    module.

    `inputs` are the arguments of the model (`tokenizer(texts, return_tensors="pt", padding=True)`), `every` is the
    number of steps between two measurements, `layer` selects layers (None: all). `history` holds one row for each head
    and measurement: step, kind, layer, head, `entropy` (nats, mean over the queries), `sink` (mean weight on the first
    token, over the queries after it) and `max_logit` (the largest scaled score of a query and a key that it sees; not
    for an architecture that shows only its weights). A logit above `logit_limit` gives a warning. `report` is called
    with each measurement as a flat mapping (`attention/0.3/entropy`: 1.2; of an encoder-decoder
    `attention/cross.0.3/entropy`), as `wandb.log` takes it; the Trainer's own log gets the numbers with its next line.

    >>> log = AttentionLog(inputs, every=50, logit_limit=100)  # doctest: +SKIP
    >>> Trainer(model, arguments, train_dataset=data, callbacks=[log]).train()  # doctest: +SKIP
    >>> log.history[-1]  # doctest: +SKIP
    {'step': 500, 'kind': 'self', 'layer': 5, 'head': 11, 'entropy': 1.31, 'sink': 0.64, 'max_logit': 14.2}
    """

    def __init__(
        self,
        inputs: Mapping[str, Array],
        *,
        every: int = 100,
        layer: int | Sequence[int] | None = None,
        report: Callable[[dict[str, float]], None] | None = None,
        logit_limit: float | None = None,
    ) -> None:
        check_types("AttentionLog", Mapping, inputs=inputs)
        check_types("AttentionLog", int, every=every)
        check_types("AttentionLog", int | float | None, logit_limit=logit_limit)
        check_tensors("AttentionLog", "inputs", inputs)
        layers = checked_selection("AttentionLog", "layer", layer)
        if report is not None and not callable(report):
            raise TypeError(f"AttentionLog(): report is a function, not {type(report).__name__}")
        if every < 1:
            raise UsageError(f"AttentionLog: every is 1 step or more, not {every}")
        self.inputs, self.every, self.layers, self.report = dict(inputs), every, layers, report
        self.logit_limit = logit_limit
        self.history: list[dict[str, float | str]] = []
        self._waiting: dict[str, float] = {}

    def on_train_begin(self, args: object, state: TrainerState, control: object, **arguments: Module) -> None:
        """Measure the model before the first step."""
        self.measure(arguments["model"], state.global_step)

    def on_step_end(self, args: object, state: TrainerState, control: object, **arguments: Module) -> None:
        """Measure the model after every `every` steps."""
        if state.global_step % self.every == 0:
            self.measure(arguments["model"], state.global_step)

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: Document | None = None, **_: object
    ) -> None:
        """Add the measurements since the last line to the Trainer's log."""
        for line in (logs, state.log_history[-1] if state.log_history else None):
            if line is not None:
                line.update(self._waiting)
        self._waiting = {}

    def measure(self, model: Module, step: int) -> None:
        """Measure every head now. The model is in evaluation mode meanwhile; afterwards each module has its old mode."""
        import torch

        network = getattr(model, "module", model)  # the network inside a wrapper for several devices
        device = next((part.device for part in network.parameters()), None)
        inputs = {name: value if device is None else value.to(device) for name, value in self.inputs.items()}
        trained = [module for module in network.modules() if module.training]  # others may be frozen in evaluation mode
        network.eval()
        try:
            with torch.no_grad(), capture(network, layer=self.layers, keep=("scaled_scores", "mask")) as calls:
                network(**inputs)
        finally:
            for module in trained:
                module.training = True
        numbers: dict[str, float] = {}
        for call in calls:
            key_mask, query_mask = masks_of_call(call, inputs)
            entropy, sink = head_measures(weights_of_seeing(call), key_mask, query_mask)
            logits = max_logits(call, key_mask if query_mask is None else query_mask)
            kind = "" if call.kind == "self" else f"{call.kind}."
            for index, head in enumerate(call.heads):
                row = {"entropy": float(entropy[index]), "sink": float(sink[index])}
                row |= {} if logits is None else {"max_logit": float(logits[index])}
                self.history.append({"step": step, "kind": call.kind, "layer": call.layer, "head": head, **row})
                numbers |= {f"{MARK}/{kind}{call.layer}.{head}/{name}": value for name, value in row.items()}
        self._warn_above_limit(step, numbers)
        self._waiting |= numbers
        if self.report is not None:
            self.report(numbers)

    def _warn_above_limit(self, step: int, numbers: Mapping[str, float]) -> None:
        """Warn if a logit is above the limit, and name the head with the largest one."""
        limit = math.inf if self.logit_limit is None else self.logit_limit
        above = {name: value for name, value in numbers.items() if name.endswith("/max_logit") and value > limit}
        if above:
            name, value = max(above.items(), key=lambda item: item[1])
            several = f", and {len(above)} heads are above it" if len(above) > 1 else ""
            where = name.split("/")[1]
            message = (
                f"step {step}: the largest logit of head {where} is {value:.4g}, above logit_limit={limit:g}{several}"
            )
            warnings.warn(message, stacklevel=3)


def masks_of_call(call: Captured, inputs: Mapping[str, Array]) -> tuple[Array | None, Array | None]:
    """Return whether each key of a call is real, not padding (batch, n_k), and in cross attention each query (batch, n_q).

    None where all are. A mask of queries and keys (batch, 1, n_q, n_k) says nothing about padding.
    """
    import torch

    source, target = (
        mask if mask is not None and mask.ndim == 2 else None
        for mask in (inputs.get("attention_mask"), inputs.get("decoder_attention_mask"))
    )
    if call.kind == "cross":
        batch, _, n_q, _ = call.weights.shape
        return source, torch.ones(batch, n_q, device=call.weights.device) if target is None else target
    return {"self": source, "encoder": source, "decoder": target}.get(call.kind), None


def weights_of_seeing(call: Captured) -> Array:
    """Return the weights of a call (batch, heads, n_q, n_k), 0 in rows that see no key, where the model may give NaN."""
    if call.mask is None:
        return call.weights
    sees = (call.mask if call.mask.ndim == 2 else call.mask[:, None]).any(-1, keepdim=True)  # (…, n_q, 1)
    return call.weights.masked_fill(~sees, 0.0)


def max_logits(call: Captured, query_mask: Array | None = None) -> Array | None:
    """Return the largest logit of each head of a call → (heads,); None if its scores are unknown.

    A logit is the scaled score, with soft cap and bias, of a query and a key that it sees; a learned sink does not count.
    `query_mask` (batch, tokens) is 0 for the queries that are padding.
    """
    if call.scaled_scores is None:
        return None
    scores = call.scaled_scores.float()  # (batch, heads, n_q, n_k)
    if call.mask is not None:
        visible = call.mask if call.mask.ndim == 2 else call.mask[:, None]  # (n_q, n_k) or (batch, 1, n_q, n_k)
        scores = scores.masked_fill(~visible, -math.inf)
    if query_mask is not None:
        padding = query_mask[:, -scores.shape[-2] :] == 0  # (batch, n_q)
        scores = scores.masked_fill(padding[:, None, :, None], -math.inf)
    return scores.amax((0, 2, 3))  # (heads,)


def head_measures(
    weights: Array, attention_mask: Array | None = None, query_mask: Array | None = None
) -> tuple[Array, Array]:
    """Return entropy and sink share of each head → (heads,) each, from weights (batch, heads, n_q, n_k).

    Both are means over the queries that have weight on a key and are no padding, by `attention_mask` (batch, n_k); queries
    of another text have a `query_mask` (batch, n_q). NaN without such a query. The sink is the first key that is not
    padding; its own query does not count for the sink share.
    """
    import torch

    batch, _, n_q, n_k = weights.shape
    weights = weights.float()
    is_token = torch.ones(batch, n_k, device=weights.device)  # (batch, n_k)
    if attention_mask is not None:
        is_token = attention_mask.float()
    queries = is_token[:, -n_q:] if query_mask is None else query_mask.float()  # (batch, n_q)
    first = is_token.argmax(-1)  # (batch,)
    sees = weights.sum(-1) != 0  # (batch, heads, n_q)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)  # (batch, heads, n_q)
    on_first = weights[torch.arange(batch), :, :, first]  # (batch, heads, n_q)
    later = queries  # (batch, n_q)
    if query_mask is None:
        later = queries * (torch.arange(n_k - n_q, n_k, device=weights.device)[None] > first[:, None])
    return _mean_of_counted(entropy, queries, sees), _mean_of_counted(on_first, later, sees)


def _mean_of_counted(values: Array, counted: Array, sees: Array) -> Array:
    """Return the mean of values (batch, heads, n_q) → (heads,).

    A query counts if `counted` (batch, n_q) is not 0 for it, and `sees` (batch, heads, n_q) is true.
    """
    counts = sees & (counted != 0)[:, None]  # (batch, heads, n_q)
    return values.where(counts, 0.0).sum((0, 2)) / counts.sum((0, 2))
