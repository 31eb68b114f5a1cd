"""Facts about the model that the numbers come from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from attnctl.checks.tolerances import DEFAULT_SCALE
from attnctl.text import counted, spoken_heads
from attnctl.version import __version__

if TYPE_CHECKING:
    from msgspec import Meta

    from attnctl.checks.document_fields import ALWAYS, Count, Positive, about


class Nature(NamedTuple):
    """What follows from the kind of a model."""

    is_network: bool = False  # a network of transformers, which runs its own code
    is_given: bool = False  # numbers from a file, without a model
    is_trained: bool = True  # its matrices were learned
    is_demo: bool = False  # a model that comes with attnctl
    has_matrices: bool = True  # if not, each row is its own query, key and value
    knows_layers: bool = True  # how many there are is known before it runs
    has_own_code: bool = False  # a module whose code may do anything to its scores
    scaled_by: str = "was asked for"  # who chose a scale other than the default

    @property
    def is_built_in(self) -> bool:
        """Return whether attnctl computes the layers."""
        return not (self.is_network or self.is_given)


_NATURES = {
    "demo": Nature(is_demo=True),
    "random": Nature(is_trained=False),
    "dot": Nature(is_trained=False, has_matrices=False),
    "weights": Nature(scaled_by="its file or an option sets"),
    "checkpoint": Nature(is_network=True, scaled_by="the model sets"),
    "matrix": Nature(is_given=True),
    "module": Nature(knows_layers=False, has_own_code=True),
}
_OTHER = Nature()


@dataclass(frozen=True)
class ModelInfo:
    """The model that the numbers come from. None: unknown to this source (a bare matrix has no d_model)."""

    name: str
    kind: Annotated[str, about("", enum=["demo", "random", "dot", "weights", "checkpoint", "matrix", "module"])]
    d_model: Count | None = None
    d_k: Count | None = None
    d_v: Count | None = None
    n_heads: Count | None = None
    n_kv_heads: Count | None = None
    n_layers: Count | None = None
    causal: bool | None = None
    scale: Annotated[float, about("The factor on the scores.")] | None = None
    soft_cap: Positive | None = None
    window: Count | None = None
    temperature: Positive | None = None
    dropout: Annotated[float, Meta(ge=0, lt=1)] | None = None
    positions: Annotated[str, about("", enum=["learned", "sinusoidal"])] | None = None
    rope_theta: float | None = None
    rope_pairs: Literal["half", "interleaved"] | None = None
    off: Mapping[int, tuple[int, ...]] | None = None  # layer → heads that are switched off
    final_norm: Annotated[bool, about("Whether a norm precedes the head; only for whole runs.")] | None = None
    finds: tuple[tuple[int, int, str], ...] | None = None  # (layer, head, role that was measured), most certain first
    source: Annotated[str, about("The origin of the name: a repository, a file, or the version of attnctl.")] | None = (
        None
    )
    revision: Annotated[str, about("The commit of a repository.")] | None = None
    sha256: Annotated[str, about("The digest of the weights file.", pattern="^[0-9a-f]{64}$")] | None = None
    quantised: Annotated[str, about("How most of the weights were stored.")] | None = None  # "Q4_1, dequantised"
    seed: Annotated[int | None, ALWAYS] = None  # None is a fact: no seed was used
    dtype: Annotated[str, ALWAYS] = "float32"
    device: Annotated[str, ALWAYS] = "cpu"

    @property
    def nature(self) -> Nature:
        """Return what follows from the kind: nothing else asks for the kind of a model whose numbers are stored."""
        return _NATURES.get(self.kind, _OTHER)

    @property
    def origin(self) -> str:
        """Return where the weights come from, as a line to cite; empty if only the name is known."""
        revision = f"revision {self.revision[:12]}" if self.revision else ""
        digest = f"sha256 {self.sha256[:12]}" if self.sha256 else ""
        return ", ".join(part for part in (self.source, self.quantised, revision, digest) if part)

    @property
    def card_name(self) -> str:
        """Return the name of the model in `attnctl model`, even if heads of it are off."""
        return self.name.removesuffix(f" without {spoken_heads(self.off)}") if self.off else self.name

    def with_origin_of(self, other: ModelInfo) -> ModelInfo:
        """Return these facts with the origin of `other`, which describes another part of the same checkpoint."""
        return replace(
            self, source=other.source, revision=other.revision, sha256=other.sha256, quantised=other.quantised
        )

    def with_heads_off(self, heads: Mapping[int, tuple[int, ...]]) -> ModelInfo:
        """Return the facts of the model with these heads off, and no others; its name says which."""
        name = f"{self.card_name} without {spoken_heads(heads)}" if heads else self.card_name
        return replace(self, name=name, off=heads or None)

    def heads_off_in(self, layer: int) -> tuple[int, ...]:
        """Return the heads of a layer that are switched off."""
        return (self.off or {}).get(layer, ())

    @property
    def settings(self) -> list[str]:
        """Return sizes, direction and seed in the form of a line about the model: "d_model 64", "causal"."""
        pairs = (("d_model", self.d_model), ("d_k", self.d_k), ("causal", self.causal or None), ("seed", self.seed))
        return [name if value is True else f"{name} {value}" for name, value in pairs if value is not None]

    def size_line(self) -> str:
        """Return name, layers and heads, the text of an opened model in Python."""
        counts = [counted(count, noun) for count, noun in ((self.n_layers, "layer"), (self.n_heads, "head")) if count]
        return f"{self.name}: {', '.join(counts)}"

    @property
    def has_default_scale(self) -> bool:
        """Return whether scores are divided by √d_k."""
        if self.scale is None or self.d_k is None:
            return False
        return math.isclose(self.scale, 1 / math.sqrt(self.d_k), rel_tol=DEFAULT_SCALE)

    def roles_of_heads(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """Return (layer, head) → the relations that it was measured to find, the surest first."""
        roles: dict[tuple[int, int], tuple[str, ...]] = {}
        for layer, head, relation in self.finds or ():
            roles[layer, head] = (*roles.get((layer, head), ()), relation)
        return roles

    @property
    def caps_scores(self) -> bool:
        """Return whether a score is more than multiplied by the scale: a soft cap."""
        return self.soft_cap is not None

    @property
    def citation(self) -> str:
        """Return the program, the model and its weights, for the metadata of a picture."""
        return f"attnctl {__version__}, {self.name}" + (f": {self.origin}" if self.origin else "")
