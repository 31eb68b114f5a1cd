"""A model with some of its heads off in everything that it does: traces, heatmaps, predictions, generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array
from attnctl.errors import UsageError
from attnctl.interventions import Intervention, checked_heads, heads_off, spoken_heads
from attnctl.layer import LayerAttention, Run
from attnctl.readings.traces.trace import ModelInfo
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.models.huggingface.checks.module_outputs import ModuleOutputs, ShownLayer


class SwitchedOff:
    """Another model under an intervention; whatever else is asked of it is asked of that model."""

    def __init__(self, model: Any, intervention: Intervention) -> None:
        self.model, self.intervention = model, intervention
        self.info: ModelInfo = self._named_info(model.info)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling ask before there is a model
            raise AttributeError(name)
        return getattr(self.model, name)

    def with_target(self, target: str) -> SwitchedOff:
        """As of a checkpoint, the heads off."""
        return SwitchedOff(self.model.with_target(target), self.intervention)

    def tokenize(self, text: str) -> tuple[Token, ...]:
        """The tokens of a text; what is generated is generated with the heads off."""
        if self.info.kind != "checkpoint":
            return self.model.tokenize(text)  # type: ignore[no-any-return]
        with self._heads_off():
            return self.model.tokenize(text)  # type: ignore[no-any-return]

    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """The text through every layer, the heads off; `visit` sees what each head computes, which then goes nowhere."""
        if self.info.kind == "checkpoint":
            with self._heads_off():
                ran: Run = self.model.run(tokens, visit, text)
        else:
            from attnctl.models.builtin.intervention import changed_visit

            ran = self.model.run(tokens, changed_visit(visit, self.intervention), text)
        off = spoken_heads(self.intervention.heads)
        ran.model = None if ran.model is None else self._named_info(ran.model)
        ran.notes = (*ran.notes, f"Off (layer.head): {off}. What these heads compute is shown, and goes nowhere.")
        return ran

    def own_weights(self, tokens: Sequence[Token], text: str = "") -> dict[int, Array]:
        """As of a checkpoint, the heads off."""
        with self._heads_off():
            return self.model.own_weights(tokens, text)  # type: ignore[no-any-return]

    def layer_outputs(
        self, tokens: Sequence[Token], text: str, shown: Mapping[int, ShownLayer], own: ModuleOutputs | None = None
    ) -> ModuleOutputs:
        """As of a checkpoint, the heads off."""
        with self._heads_off():
            return self.model.layer_outputs(tokens, text, shown, own)  # type: ignore[no-any-return]

    def _heads_off(self) -> AbstractContextManager[None]:
        from attnctl.models.huggingface.effects.intervention import apply_interventions

        return apply_interventions(self.model.network, [self.intervention], self.model.kind)

    def _named_info(self, info: ModelInfo) -> ModelInfo:
        off = spoken_heads(self.intervention.heads)
        return replace(info, name=f"{info.name} without {off}", off=off)


def switch_heads_off(model: Any, off: str) -> SwitchedOff:
    """The model with the heads of `23.3,0.5` off. Raises UsageError for heads that are not there, or cannot be switched."""
    info = model.info
    if info.kind == "matrix":
        raise UsageError(f"--off: {info.name} has no heads to switch off: its numbers are given, not computed")
    if info.kind == "checkpoint":
        from attnctl.models.huggingface.effects.watched import check_switchable

        check_switchable(model.network)
    return SwitchedOff(model, Intervention(off_heads(info, off)))


def off_heads(info: ModelInfo, off: str) -> dict[int, tuple[int, ...]]:
    """Layer → heads that `off` names. Raises UsageError for one that is not there, and where nothing would be left."""
    n_layers, n_heads = info.n_layers or 1, info.n_heads or 1
    heads = checked_heads(heads_off(off), n_layers, n_heads, info.name, every_is_empty=True)
    if sum(map(len, heads.values())) >= n_layers * n_heads:
        raise UsageError(f"--off {off}: that is every head of {info.name}, and nothing is left to look at")
    return heads
