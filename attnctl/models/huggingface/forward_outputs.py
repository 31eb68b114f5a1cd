"""Show what a forward of a network puts out: the outputs of its attention's projections, and the logits at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array
from attnctl.models.huggingface.checkpoint import classes_of_network
from attnctl.models.huggingface.network import lacks_head
from attnctl.models.huggingface.optional_fields import config_value, output_value
from attnctl.models.huggingface.output_projections import output_projections

if TYPE_CHECKING:
    from attnctl.models.huggingface.checkpoint import Checkpoint


@contextmanager
def outputs_shown(
    model: Checkpoint, see_output: Callable[[Array], None], see_logits: Callable[[Array], None], most_bytes: int
) -> Iterator[None]:
    """Pass the output of each output projection to `see_output` within this context, and the logits to `see_logits`.

    The first are (n, d_out). The logits are those of labels, (1, labels), or of the last positions, as many as `most_bytes`
    hold in float32: (positions, vocabulary).
    """
    network, classifies = model.network, bool(classes_of_network(model.network))
    vocabulary = config_value(network.config.get_text_config(), "vocab_size") or 0
    positions = max(1, most_bytes // (4 * max(vocabulary, 1)))

    def end_projection(_: object, __: object, output: Any) -> None:
        rows = output[0] if isinstance(output, tuple | list) else output
        see_output(rows.detach().reshape(-1, rows.shape[-1]))  # (n, d_out)

    def ask_for_logits(_: object, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any] | None:
        return (args, keywords | {"logits_to_keep": positions}) if "logits_to_keep" in keywords else None

    def end_forward(_: object, __: object, output: Any) -> None:
        logits = output_value(output, "logits")
        if classifies and logits is not None and logits.ndim == 2:
            see_logits(logits[:1])  # (1, labels)
        elif logits is not None and logits.ndim == 3 and logits.shape[-1] >= vocabulary > 0:
            see_logits(logits[0, -positions:])  # (positions, vocabulary)

    with ExitStack() as stack:
        for site, projection in output_projections(network).values():
            if site.kind == model.kind:
                stack.callback(projection.register_forward_hook(end_projection).remove)
        if model.kind != "encoder" and not lacks_head(network):
            stack.callback(network.register_forward_pre_hook(ask_for_logits, with_kwargs=True).remove)
            stack.callback(network.register_forward_hook(end_forward).remove)
        yield
