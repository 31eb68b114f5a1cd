"""The result of a census, and its JSON: for each relation the best head, beside rules that need no attention."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Annotated, Any

import numpy as np
from msgspec import field as document_field

from attnctl.attention import Array
from attnctl.checks.document_fields import ALWAYS, Amount, Count, Counts, Index, Part, Portion, Share, about
from attnctl.formats import JsonDocument, ResultModel, document_read
from attnctl.readings import HeadNames, Names
from attnctl.runtime.files import parse_json, read_bytes
from attnctl.text import counted

ALL = "all"  # every relation but punctuation
LEGEND = "With a share: what the census found, and how often it was right there; nothing of this text."
FEWEST = 20  # cases; with fewer, nothing is said about a head
# new: mentions that are the first of their entity; outside: their antecedents stand before the window; unread: not read
MENTION_COUNTS = ("documents", "windows", "mentions", "new", "outside", "unread")
FOUND = "Cases in which a head finds the word: [[a count for each head] for each layer]; 0 for heads not in heads."


class Best(Part):
    """A head chosen on one half of the cases and scored on the other."""

    layer: Index
    head: Index
    chosen_on: Index
    scored_on: Index
    accuracy: Portion
    interval: Annotated[tuple[Portion, Portion], about("95 % (Wilson 1927).")]
    beats_rules: Annotated[bool | None, about("Whether its whole interval lies above every rule.")] = None


class Rule(Part, kw_only=True):
    """A rule that needs no attention: its accuracy on the half that heads are scored on."""

    offset: int | None = None
    tag: str | None = None
    side: Annotated[str | None, about("", enum=["before", "behind", "either"])] = None
    accuracy: Portion

    def sentence(self, name: str) -> str:
        """Return the rule of this name in a few words: "+1", "NOUN before", "head match"."""
        if self.offset is not None:
            return f"{self.offset:+d}"
        return name.replace("_", " ") if self.tag is None else f"{self.tag} {self.side}"


RULES = ("offset", "nearest", "head_match", "first")  # of mentions: nearest, head_match, first


class Relation(Part, eq=False, kw_only=True):
    """One relation in one direction: how often each head finds the word, and rules that need no attention."""

    relation: Annotated[str, about("The corpus's label; a label without a subtype counts all its subtypes.")]
    direction: Annotated[str, about("", enum=["dependent→head", "head→dependent", "mention→antecedent"])]
    cases: Index
    ahead: Annotated[
        Index, about("For a causal model: further pairs, no cases, whose word stands ahead, where no head can look.")
    ]
    correct: Annotated[Counts, about(FOUND)]
    subtype: bool = False
    best: Annotated[Best | None, about("Absent if either half has no cases.")] = None
    rules: Annotated[dict[str, Rule], about("", propertyNames={"enum": list(RULES)})]
    untrained: Annotated[Best | None, about("The untrained model's best head.")] = None

    @property
    def best_rule(self) -> str | None:
        """Return the name of the most accurate rule."""
        return max(self.rules, key=lambda name: self.rules[name].accuracy, default=None)

    @property
    def beats_rules(self) -> bool:
        """Return whether the best head's whole interval lies above every rule: it is better beyond chance."""
        rule = self.best_rule
        return self.best is not None and rule is not None and self.best.interval[0] > self.rules[rule].accuracy


class Positional(Part):
    """The offset at which a head looks most often (Voita et al. 2019)."""

    offset: int
    share: Portion


class Finding(Part):
    """A relation that a head finds (Voita et al. 2019)."""

    relation: str
    direction: str
    accuracy: Portion


class HeadRow(Part, kw_only=True):
    """One head over the whole corpus; masses are shares of a word's attention."""

    layer: Index
    head: Index
    entropy: Annotated[Amount, about("Mean entropy of a word's weights, nats.")]
    own: Annotated[Share, about("Mass on the word itself.")]
    special: Annotated[Share, about("Mass on tokens that belong to no word.")]
    distance: Annotated[Amount, about("Mean distance in words, weighted by the mass on other words.")]
    # Vig & Belinkov 2019
    dependency_mass: Annotated[
        Share, about("Share of the mass on other words that is on words joined by a dependency.")
    ]
    uuas: Portion | None = None
    positional: Positional | None = None
    syntactic: Annotated[
        tuple[Finding, ...],
        about("Relations for which its accuracy is 10 points above the best fixed offset (Voita et al. 2019)."),
    ]


class LayerRow(Part):
    """The heads of a layer together: masses and distances are over all their attention to other words."""

    layer: Index
    dependency_mass: Annotated[Share, about("Share of mass on words joined by a dependency (Vig & Belinkov 2019).")]
    distance: Annotated[Amount, about("Mean distance in words (Vig & Belinkov 2019).")]
    entropy: Annotated[Amount, about("Mean over heads, nats.")]
    uuas: Annotated[Portion, about("For the mean weights of the heads.")]


class BestLayer(Part):
    """The layer whose mean weights give the best trees."""

    layer: Index
    accuracy: Portion


class Trees(Part, eq=False, kw_only=True):
    """How well maximum spanning trees of the attention match the corpus (undirected, without punctuation)."""

    edges: Index
    right_branching: Annotated[Portion, about("On the half that heads are scored on.")]
    correct: Annotated[Counts, about(FOUND)]
    best_head: Best | None = None
    best_layer: BestLayer | None = None
    untrained: Best | None = None


class SentencesRead(Part, kw_only=True):
    """How many sentences of the corpus were read and used, and how many were skipped for each reason."""

    read: Annotated[Index | None, ALWAYS] = None
    used: Index
    skipped: dict[str, Count]


class WordCounts(Part):
    """The words used (words that share a token count as one), and the dependencies inside a token, which no head shows."""

    used: Index
    dependencies_within: Index


class CensusTable(JsonDocument, kw_only=True, eq=False, tag="attnctl.census/1"):
    """Which words each head finds in a corpus of parsed sentences, for every relation and direction.

    The best head is chosen on one half of the sentences. It is scored on the other half, as are the rules beside it.
    """

    model: str
    corpus: str
    causal: bool
    sentences: SentencesRead
    words: WordCounts
    relations: tuple[Relation, ...]
    trees: Trees = document_field(name="uuas")
    layers: tuple[LayerRow, ...]  # only layers that attend: a hybrid's other layers are absent
    heads: tuple[HeadRow, ...]  # likewise
    untrained: bool = document_field(name="compared_with_untrained")
    mentions: Annotated[
        dict[str, Index],
        about(
            "For coreference, documents are read in windows. new: first mentions of an entity; outside: mentions whose "
            "antecedents stand before the window; unread: mentions in sentences that are too long.",
            propertyNames={"enum": list(MENTION_COUNTS)},
            required=list(MENTION_COUNTS),
        ),
    ] = document_field(default_factory=dict)
    info: ResultModel | None = document_field(name="model_info", default=None)

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each relation, direction, layer and head: the rows of the CSV of `attnctl evaluate`."""
        records: list[dict[str, Any]] = list(resolve_name("attnctl.commands.evaluate.show:census_rows")(self))
        return records

    def __repr__(self) -> str:
        counts = ((self.sentences.used, "sentence"), (self.words.used, "word"), (len(self.relations), "relation"))
        return f"CensusTable of {self.corpus} by {self.model}: {', '.join(counted(*count) for count in counts)}"

    @property
    def head_grid(self) -> tuple[int, int]:
        """Return the numbers of layers and heads."""
        layers, heads = self.trees.correct.shape
        return int(layers), int(heads)

    @property
    def attends(self) -> Array:
        """Return which heads exist, (layers, heads); a layer may have no attention, or fewer heads."""
        attending = {(head.layer, head.head) for head in self.heads}
        layers, heads = self.head_grid
        return np.array([[(layer, head) in attending for head in range(heads)] for layer in range(layers)], bool)

    def head_names(self) -> HeadNames:
        """Return names for heads: the relations that each finds best, and better than every rule."""
        names: Names = {}
        for relation in self.relations:
            best = relation.best
            if best is not None and relation.beats_rules and not relation.subtype and relation.relation != ALL:
                name = f"{relation.relation} {relation.direction} {100 * best.accuracy:.0f}%"
                names[best.layer, best.head] = (*names.get((best.layer, best.head), ()), name)
        return HeadNames(self.model, self.head_grid, names, LEGEND)


def read_census(path: str) -> CensusTable:
    """Return the census in a file that `evaluate` wrote. Raises AttnctlError for another file or a damaged one."""
    source = "standard input" if path == "-" else path
    with document_read(CensusTable, parse_json(read_bytes(path), source), source, "a census", "damaged") as census:
        return census


# --- of the bundled corpus ---


class RelationDocument(JsonDocument, kw_only=True, tag="attnctl.relation/1"):
    """How often one head finds the word that a relation of the bundled corpus joins; `evaluate` writes one on each line.

    Numbers are shares of links for which the head finds the right word.
    """

    model: str
    relation: str
    layer: Index
    head: Annotated[Index, about("The head that did best on the validation sentences.")]
    validation: Annotated[Portion, about("Share of links whose word the head finds, on those sentences.")]
    held_out: Annotated[Portion, about("On sentences whose subject-verb-object combination was not in training.")]
    unseen: Annotated[Portion, about("On sentences whose names and nouns were not in training, either.")]
    by_hand: Annotated[Portion | None, about("On sentences that were marked by hand.")]
    untrained: Annotated[Portion | None, about("The best head of the same network before training.")]
    offset: Annotated[int, about("The fixed offset that fits the validation sentences best.")]
    by_offset: Portion
    by_nearest: Annotated[Portion, about("The nearest word of the right kind.")]
    by_first: Portion
    links: Annotated[Index, about("In the held-out sentences.")]
    links_by_hand: Index
    goal: Portion | None
