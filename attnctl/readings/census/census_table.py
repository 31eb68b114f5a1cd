"""What a census says: for each relation and direction the best head, beside rules that need no attention."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attnctl.attention import Array
from attnctl.readings.traces.trace import ModelInfo
from attnctl.text import counted

ALL = "all"  # every relation but punctuation
FEWEST = 20  # cases below which nothing is said of a head


@dataclass(frozen=True)
class Best:
    """A head chosen on one half of the cases and scored on the other."""

    layer: int
    head: int
    chosen_on: int
    scored_on: int
    accuracy: float
    interval: tuple[float, float]  # 95 % (Wilson 1927)


@dataclass(frozen=True)
class Rule:
    """What a rule that needs no attention finds: its accuracy on the half that heads are scored on."""

    name: str  # offset, nearest, first; of mentions: nearest, head_match, first
    accuracy: float
    offset: int | None = None
    tag: str | None = None
    side: str | None = None  # one of SIDES

    def __str__(self) -> str:
        if self.offset is not None:
            return f"{self.offset:+d}"
        return self.name.replace("_", " ") if self.tag is None else f"{self.tag} {self.side}"


@dataclass(frozen=True, eq=False)
class Relation:
    """One relation in one direction."""

    relation: str
    direction: str
    cases: int
    correct: Array  # (layers, heads): cases in which the head finds the word
    ahead: int  # of a causal model: beside the cases, those whose word stands ahead, where no head can look
    best: Best | None  # None where either half has no cases
    rules: tuple[Rule, ...] = ()
    untrained: Best | None = None  # the untrained model's best head
    subtype: bool = False
    best_offset: float = 0.0  # share of all cases at their most frequent offset

    @property
    def best_rule(self) -> Rule | None:
        """The rule that does best."""
        return max(self.rules, key=lambda rule: rule.accuracy, default=None)

    @property
    def beats_rules(self) -> bool:
        """Whether the best head is better than every rule, beyond chance: its whole interval lies above."""
        rule = self.best_rule
        return self.best is not None and rule is not None and self.best.interval[0] > rule.accuracy


@dataclass(frozen=True)
class HeadRow:
    """One head over the whole corpus; masses are shares of a word's attention, `entropy` is in nats, `distance` in words."""

    layer: int
    head: int
    entropy: float
    own: float
    special: float
    distance: float
    dependency_mass: (
        float  # of what goes to other words, the share on words joined by a dependency (Vig & Belinkov 2019)
    )
    uuas: float | None
    positional: tuple[int, float] | None = None  # offset, share (Voita et al. 2019)
    syntactic: tuple[tuple[str, str, float], ...] = ()  # relation, direction, accuracy (Voita et al. 2019)


@dataclass(frozen=True)
class LayerRow:
    """The heads of a layer together: masses and distances are those of all their attention to other words."""

    layer: int
    dependency_mass: float  # share on words joined by a dependency (Vig & Belinkov 2019)
    distance: float  # words (Vig & Belinkov 2019)
    entropy: float  # nats, the mean over heads


@dataclass(frozen=True, eq=False)
class Trees:
    """Undirected attachment of maximum spanning trees, punctuation left out."""

    edges: int
    right_branching: float  # on the half that is scored
    best_head: Best | None
    best_layer: tuple[int, float] | None  # of the layers' mean weights
    correct: Array  # (layers, heads): edges found
    layers: tuple[float, ...]
    untrained: Best | None = None


@dataclass(frozen=True, eq=False)
class CensusTable:
    """All that a census says of a model and a corpus."""

    model: str
    corpus: str
    causal: bool
    used: int
    skipped: dict[str, int]
    words: int  # units: words, those that share a piece taken together
    within: int  # dependencies inside of a unit, no head can show them
    relations: tuple[Relation, ...]
    trees: Trees
    heads: tuple[HeadRow, ...]  # those that attend: of a hybrid's other layers there are none
    layers: tuple[LayerRow, ...]  # likewise
    untrained: bool = False
    mentions: dict[str, int] = field(default_factory=dict)  # MENTION_COUNTS, where documents were read in windows
    info: ModelInfo | None = None  # of the model, for whoever cites the census

    def __repr__(self) -> str:
        held = ((self.used, "sentence"), (self.words, "word"), (len(self.relations), "relation"))
        return f"CensusTable of {self.corpus} by {self.model}: {', '.join(counted(*one) for one in held)}"

    @property
    def head_grid(self) -> tuple[int, int]:
        """Layers, heads."""
        layers, heads = self.trees.correct.shape
        return int(layers), int(heads)

    @property
    def attends(self) -> Array:
        """Which heads there are, (layers, heads): the others are of layers that hold no attention, or fewer heads."""
        there = {(head.layer, head.head) for head in self.heads}
        layers, heads = self.head_grid
        return np.array([[(layer, head) in there for head in range(heads)] for layer in range(layers)], bool)

    @property
    def sentences_read(self) -> int:
        """Sentences in the corpus."""
        return self.used + sum(self.skipped.values())


def head_names(census: CensusTable) -> dict[tuple[int, int], tuple[str, ...]]:
    """What heads may be called: after the relations that they are best at, and better than every rule; (layer, head) →."""
    names: dict[tuple[int, int], tuple[str, ...]] = {}
    for relation in census.relations:
        if relation.best is not None and relation.beats_rules and not relation.subtype and relation.relation != ALL:
            at = relation.best.layer, relation.best.head
            name = f"{relation.relation} {relation.direction} {100 * relation.best.accuracy:.0f}%"
            names[at] = (*names.get(at, ()), name)
    return names
