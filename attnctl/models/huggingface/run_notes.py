"""What a reader must know of a checkpoint's text: its tokens, what its keys stand for, and why nothing is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import Site
from attnctl.text import visible_text
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.models.huggingface.checkpoint import Checkpoint


def nothing_seen_sentence(name: str, kind: str, silent: dict[Site, str]) -> str:
    """Why nothing of a kind of attention was seen."""
    what = "attention" if kind == "self" else f"{kind} attention"
    if silent:
        other = ": see --attention decoder, or cross" if kind == "encoder" else ""
        return (
            f"{name} has no {what} that can be shown: {next(iter(silent.values()))} attends in code of its own{other}"
        )
    return f"{name} has no softmax {what} that it tells of: there are no weights to show"


def text_notes(
    model: Checkpoint, tokens: Sequence[Token], source: Sequence[Token] | None, bare: bool
) -> tuple[str, ...]:
    """What a reader must know of the tokens: how they begin, which are the model's own, and `bare` weights."""
    notes = list(model.pieces.beginning_notes(tokens if source is None else source, bool(model.info.causal)))
    new = [token for token in tokens if token.start is None]
    if new and model.kind == "self":
        last = f"last {len(new)} tokens are" if len(new) > 1 else "last token is"
        notes.append(f"The {last} the model's own, the likeliest each time: “{_spelled_tokens(model, new)}”")
    elif source is not None and model.target is None:
        own = [token for token in tokens if not token.special]
        said = f" (“{_spelled_tokens(model, own)}”)" if own else ""
        notes.append(f"The decoder's tokens are the model's own{said}, the likeliest each time: --target gives others.")
    rows = getattr(model.network.get_input_embeddings(), "num_embeddings", None)
    notes += () if rows is None else model.pieces.size_notes(rows)
    if bare:
        notes.append(
            f"{type(model.network).__name__} computes its attention in code of its own: only the weights can be shown, "
            "not the queries, keys, values and scores."
        )
    return tuple(notes)


def _spelled_tokens(model: Checkpoint, tokens: Sequence[Token]) -> str:
    """The text that tokens spell, safe in a terminal."""
    return visible_text(
        model.pieces.tokenizer.decode([token.id or 0 for token in tokens], skip_special_tokens=False).strip()
    )


def tokens_of_call_keys(
    n_k: int, tokens: Sequence[Token], source: Sequence[Token] | None, known: tuple[Token, ...] | None
) -> tuple[Token, ...] | None:
    """The tokens that n_k keys stand for; None: the queries' own. Raises AttnctlError where they stand for others."""
    if n_k == len(tokens if known is None else known):
        return known
    if source is not None and n_k == len(tokens) + len(source):  # decoder and cross attention in one
        return (*tokens, *source)
    raise AttnctlError(
        f"{n_k} keys for {len(tokens)} tokens: this architecture makes keys of its own, which have no tokens to stand for"
    )
