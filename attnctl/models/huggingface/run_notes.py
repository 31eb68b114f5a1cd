"""What the calls of one run tell of the model beside its weights: sizes, scale, direction, and what a reader must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from attnctl.arrays import Floats
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_sites import Site, unseen_sentence
from attnctl.readings.traces.trace import SINK_NOTE, ModelInfo
from attnctl.text import visible_text
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.family_traits import FamilyTraits


@dataclass
class RunNotes:
    """Collects what each call of one run tells; `info` and `notes` say it at the end."""

    architecture: str
    padded: bool = False  # the masks hide padding too, and do not tell who looks ahead
    layers: set[int] = field(default_factory=set)
    sizes: set[tuple[int, int, int, int]] = field(default_factory=set)  # heads, key/value heads, d_k, d_v
    scales: set[float] = field(default_factory=set)
    sinks: bool = False
    causal: bool | None = None
    traits: FamilyTraits | None = None

    def note_call(self, site: Site, call: Call) -> None:
        """Note one call. Raises AttnctlError for a layer that attends a second time in one forward."""
        if site.layer in self.layers:
            raise AttnctlError(
                f"{self.architecture} attends several times in what it calls layer {site.layer}, and a trace holds one "
                "attention a layer: attnctl.capture keeps them all"
            )
        if self.causal is None and not self.padded:
            self.causal = hides_future(call)
        self.layers.add(site.layer)
        self.sizes.add((call.queries.shape[-3], call.keys.shape[-3], call.queries.shape[-1], call.values.shape[-1]))
        self.scales.add(call.effective_scale)
        self.sinks |= call.sinks is not None

    def described_model(self, info: ModelInfo, whole: bool) -> ModelInfo:
        """The model's description, with what the calls said; what differs from layer to layer is not given.

        Of a `whole` run it is known whether a norm follows the last layer.
        """
        info = replace(info, final_norm=self.traits.final_norm if whole and self.traits is not None else None)
        if not self.sizes:
            return replace(info, scale=None)
        heads, kv_heads, d_k, d_v = (set(column) for column in zip(*self.sizes, strict=True))
        return replace(
            info,
            n_heads=info.n_heads if len(heads) > 1 else heads.pop(),
            n_kv_heads=None if len(kv_heads) > 1 else kv_heads.pop(),
            d_k=None if len(d_k) > 1 else d_k.pop(),
            d_v=None if len(d_v) > 1 else d_v.pop(),
            scale=next(iter(self.scales)) if len(self.scales) == 1 else None,
            causal=info.causal if self.causal is None else self.causal,
        )

    def reader_notes(self, silent: dict[Site, str], gates: Mapping[int, Floats]) -> tuple[str, ...]:
        """What a reader must know of the run, `silent` being who attended in code of its own, `gates` as of `Run`."""
        told = unseen_sentence(silent)
        notes = [f"{told[0].upper()}{told[1:]}."] if told else []
        if self.sinks:
            notes.append(SINK_NOTE)
        notes += () if self.traits is None else self.traits.trait_notes(gates)
        return tuple(notes)


def hides_future(call: Call) -> bool | None:
    """Whether no query of a call may look at a later key; None where its only query cannot tell."""
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    if n_q == 1 or n_q != n_k:
        return None
    if call.causal or call.mask is None:
        return call.causal
    mask: Array = call.mask[0] if call.mask.ndim == 3 else call.mask  # (n_q, n_k)
    return not bool(mask.triu(1).any())


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
