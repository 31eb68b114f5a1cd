"""Define `attnctl.AttentionLog`: entropy and sink share of every head, measured while a transformers Trainer trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from transformers import TrainerCallback

from attnctl.argument_types import check_tensors, check_types, checked_selection
from attnctl.attention import Array
from attnctl.capturing import capture
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainerState

    from attnctl.text import Document

MARK = "attention"  # the names in the log begin with it


class AttentionLog(TrainerCallback):
    """A callback of transformers' Trainer that measures attention on fixed inputs at regular steps.

    `inputs` are the arguments of the model (`tokenizer(texts, return_tensors="pt", padding=True)`), `every` is the
    number of steps between two measurements, `layer` selects layers (None: all). `history` holds one row for each head
    and measurement: step, layer, head, `entropy` (nats, mean over the queries) and `sink` (mean weight on the first
    token, over the queries after it). `report` is called with each measurement as a flat mapping
    (`attention/0.3/entropy`: 1.2), as `wandb.log` takes it; the Trainer's own log gets the numbers with its next line.

    >>> log = AttentionLog(inputs, every=50)  # doctest: +SKIP
    >>> Trainer(model, arguments, train_dataset=data, callbacks=[log]).train()  # doctest: +SKIP
    >>> log.history[-1]  # doctest: +SKIP
    {'step': 500, 'layer': 5, 'head': 11, 'entropy': 1.31, 'sink': 0.64}
    """

    def __init__(
        self,
        inputs: Mapping[str, Array],
        *,
        every: int = 100,
        layer: int | Sequence[int] | None = None,
        report: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        check_types("AttentionLog", Mapping, inputs=inputs)
        check_types("AttentionLog", int, every=every)
        check_tensors("AttentionLog", "inputs", inputs)
        layers = checked_selection("AttentionLog", "layer", layer)
        if report is not None and not callable(report):
            raise TypeError(f"AttentionLog(): report is a function, not {type(report).__name__}")
        if every < 1:
            raise UsageError(f"AttentionLog: every is 1 step or more, not {every}")
        self.inputs, self.every, self.layers, self.report = dict(inputs), every, layers, report
        self.history: list[dict[str, float]] = []
        self._waiting: dict[str, float] = {}

    def on_train_begin(self, args: object, state: TrainerState, control: object, **arguments: PreTrainedModel) -> None:
        """Measure the model before the first step."""
        self.measure(arguments["model"], state.global_step)

    def on_step_end(self, args: object, state: TrainerState, control: object, **arguments: PreTrainedModel) -> None:
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

    def measure(self, model: PreTrainedModel, step: int) -> None:
        """Measure every head now. The model is in evaluation mode meanwhile; afterwards each module has its old mode."""
        import torch

        network = getattr(model, "module", model)  # the network inside a wrapper for several devices
        inputs = {name: value.to(network.device) for name, value in self.inputs.items()}
        trained = [module for module in network.modules() if module.training]  # others may be frozen in evaluation mode
        network.eval()
        try:
            with torch.no_grad(), capture(network, layer=self.layers) as calls:
                network(**inputs)
        finally:
            for module in trained:
                module.training = True
        numbers: dict[str, float] = {}
        for call in calls:
            entropy, sink = head_measures(call.weights, inputs.get("attention_mask"))
            for index, head in enumerate(call.heads):
                row = {"entropy": float(entropy[index]), "sink": float(sink[index])}
                self.history.append({"step": step, "layer": call.layer, "head": head, **row})
                numbers |= {f"{MARK}/{call.layer}.{head}/{name}": value for name, value in row.items()}
        self._waiting |= numbers
        if self.report is not None:
            self.report(numbers)


def head_measures(weights: Array, attention_mask: Array | None = None) -> tuple[Array, Array]:
    """Return entropy and sink share of each head → (heads,) each, from weights (batch, heads, n_q, n_k).

    Both are means over the queries that are not padding. The sink is the first key that is not padding; its own query
    does not count for the sink share.
    """
    import torch

    batch, _, n_q, n_k = weights.shape
    weights = weights.float()
    is_token = torch.ones(batch, n_k, device=weights.device)  # (batch, n_k)
    if attention_mask is not None:
        is_token = attention_mask.float()
    queries = is_token[:, -n_q:]  # (batch, n_q)
    first = is_token.argmax(-1)  # (batch,)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)  # (batch, heads, n_q)
    on_first = weights[torch.arange(batch), :, :, first]  # (batch, heads, n_q)
    later = queries * (torch.arange(n_k - n_q, n_k, device=weights.device)[None] > first[:, None])  # (batch, n_q)
    return _mean_of_counted(entropy, queries), _mean_of_counted(on_first, later)


def _mean_of_counted(values: Array, counted: Array) -> Array:
    """Return the mean of values (batch, heads, n_q) over the queries that `counted` (batch, n_q) marks → (heads,)."""
    return (values * counted[:, None]).sum((0, 2)) / counted.sum().clamp_min(1)
