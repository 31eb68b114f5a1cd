"""Facts about the model that the numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from attnctl.text import counted, spoken_heads
from attnctl.version import __version__

if TYPE_CHECKING:
    from msgspec import Meta

    from attnctl.checks.document_fields import ALWAYS, Count, Positive, about


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
    def caps_scores(self) -> bool:
        """Return whether a score is more than multiplied by the scale: a soft cap."""
        return self.soft_cap is not None

    @property
    def citation(self) -> str:
        """Return the program, the model and its weights, for the metadata of a picture."""
        return f"attnctl {__version__}, {self.name}" + (f": {self.origin}" if self.origin else "")
