"""A census against plain loops, against chance, and against what was planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnctl.commands.evaluate.counting import Census
from attnctl.commands.evaluate.result import CensusTable
from attnctl.commands.evaluate.tally import (
    CensusTally,
    best_of,
    pack_tally,
    table_of_tally,
    tally_of_skip,
    unpack_tally,
    wilson_interval,
)
from attnctl.commands.evaluate.words import DOWN, UP, align_words
from attnctl.formats.conllu import BadSentenceError, Mention, ParsedSentence
from attnctl.text.tokens import Token
from tests.tools.census_reference import counts as reference_counts

LAYERS, HEADS = 2, 3
TAGS = ("NOUN", "VERB", "ADJ", "PUNCT")


def sentence(draw: np.random.Generator, n: int) -> ParsedSentence:
    """A random tree over n words of three letters."""
    words = ["".join(draw.choice(list("abcdef"), 3)) for _ in range(n)]
    order = draw.permutation(n)
    heads = [-1] * n
    for at in range(1, n):
        heads[order[at]] = int(order[draw.integers(at)])
    names = tuple("root" if head < 0 else str(draw.choice(["nsubj", "nsubj:pass", "obj", "punct"])) for head in heads)
    spans = tuple((4 * at, 4 * at + 3) for at in range(n))
    tags = tuple(str(draw.choice(TAGS)) for _ in words)
    return ParsedSentence(" ".join(words), spans, tuple(words), tags, tuple(heads), names)


def pieces(draw: np.random.Generator, text: str) -> tuple[Token, ...]:
    """Tokens that split some words and join others, with a special one at each end."""
    cuts = sorted({0, len(text), *draw.choice(len(text), len(text) // 3, replace=False).tolist()})
    inside = [Token(text[a:b], 1, a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    return (Token("[CLS]", 0, 0, 0, True), *inside, Token("[SEP]", 0, len(text), len(text), True))


def weights(draw: np.random.Generator, n: int) -> np.ndarray:
    raw = draw.random((LAYERS, HEADS, n, n)) ** 4
    return (raw / raw.sum(-1, keepdims=True)).astype(np.float32)


def test_counts_are_those_of_plain_loops_however_sentences_are_batched() -> None:
    draw = np.random.default_rng(0)
    sentences = [sentence(draw, int(n)) for n in draw.integers(2, 9, 25)]
    tokens = [pieces(draw, one.text) for one in sentences]
    attention = [weights(draw, len(own)) for own in tokens]
    found = iter(zip(attention, tokens, strict=True))

    def attend(text: str) -> tuple[Any, list[tuple[int, int]]]:
        own, said = next(found)
        return own.astype(float).tolist(), [(token.start or 0, token.end or 0) for token in said]

    plain = [{"text": s.text, "spans": s.spans, "heads": s.heads, "names": s.relations} for s in sentences]
    right, cases = reference_counts(plain, attend)
    assert sum(cases.values()) > 100
    for together in (1, 7):
        tally = CensusTally((LAYERS, HEADS))
        for start in range(0, 25, together):
            part = slice(start, start + together)
            own = [align_words(s, t) for s, t in zip(sentences[part], tokens[part], strict=True)]
            census = Census(own, (LAYERS, HEADS))
            n = max(len(t) for t in tokens[part])
            padded = np.zeros((len(own), LAYERS, HEADS, n, n), np.float32)
            for b, w in enumerate(attention[part]):
                padded[b, ..., : w.shape[-1], : w.shape[-1]] = w
            for layer in range(LAYERS):
                census.count_layer(layer, padded[:, layer])
            for counts in census.tallies():
                tally.merge_tally(counts)
        assert {key: int(own.count_by_half.sum()) for key, own in tally.cases().items()} == dict(cases)
        for (name, way), own in tally.cases().items():
            wanted = [[right[name, way, layer, head] for head in range(HEADS)] for layer in range(LAYERS)]
            assert own.right.sum(0).tolist() == wanted, (name, way)


def counted(sentences: list[ParsedSentence], attend: Any, **how: Any) -> CensusTally:
    """A tally of sentences whose words are their tokens; `attend(sentence)` answers (layers, heads, n, n)."""
    tally = CensusTally((LAYERS, HEADS))
    for one in sentences:
        tokens = tuple(Token(form, 1, *span) for form, span in zip(one.forms, one.spans, strict=True))
        own = align_words(one, tokens, **how)
        census = Census([own], (LAYERS, HEADS))
        for layer, given in enumerate(attend(one)):
            census.count_layer(layer, given[None])
        tally.merge_tally(census.tallies()[0])
    return tally


def planted(one: ParsedSentence) -> np.ndarray:
    """Head 1.2 looks at each word's head; the others a place on."""
    n = len(one.forms)
    given = np.full((LAYERS, HEADS, n, n), 0.01, np.float32)
    for word, head in enumerate(one.heads):
        given[1, 2, word, head if head >= 0 else word] = 1.0
        given[:, :2, word, (word + 1) % n] = 1.0
        given[0, 2, word, word] = 1.0
    return given


def test_a_planted_head_is_found_and_its_tree_is_the_gold_one() -> None:
    draw = np.random.default_rng(1)
    sentences = [sentence(draw, 8) for _ in range(60)]
    said = table_of_tally(counted(sentences, planted), "planted", "random trees")
    up = next(r for r in said.relations if (r.relation, r.direction) == ("nsubj", UP))
    assert up.best is not None and (up.best.layer, up.best.head, up.best.accuracy) == (1, 2, 1.0)
    assert up.beats_rules and up.cases == up.correct[1, 2]
    assert said.trees.best_head is not None and said.trees.best_head.accuracy == 1.0
    assert said.trees.edges == said.trees.correct[1, 2] and said.trees.right_branching < 0.5
    assert any("nsubj dependent→head 100%" in name for name in said.head_names().by_head[1, 2])
    assert [(h.layer, h.head) for h in said.heads if h.syntactic] == [(1, 2)]
    head = said.heads[1 * HEADS + 2]
    assert head.own < 0.2 < head.dependency_mass
    all_up = next(r for r in said.relations if r.relation == "all")
    assert all_up.cases == sum(
        r.cases for r in said.relations if r.direction == UP and not r.subtype and r.relation in ("nsubj", "obj")
    )


def test_random_attention_is_at_chance() -> None:
    draw = np.random.default_rng(2)
    n = 8
    sentences = [sentence(draw, n) for _ in range(150)]
    tally = counted(sentences, lambda one: weights(draw, n))
    for own in tally.cases().values():
        rate = own.right.sum(0) / own.count_by_half.sum()
        spread = 5 * np.sqrt(1 / (n - 1) / own.count_by_half.sum())
        assert np.abs(rate - 1 / (n - 1)).max() < spread
    said = table_of_tally(tally, "random", "random trees")
    assert all(r.best is not None and abs(r.best.accuracy - 1 / (n - 1)) < 0.1 for r in said.relations if r.cases > 300)


def test_rules_are_chosen_on_one_half_and_scored_on_the_other() -> None:
    spans = ((0, 1), (2, 3), (4, 5), (6, 7))
    one = ParsedSentence(
        "a b c d", spans, tuple("abcd"), ("DET", "NOUN", "VERB", "NOUN"), (1, 2, -1, 2), ("det", "nsubj", "root", "obj")
    )
    tally = counted([replace(one, half=half) for half in ("choose", "score", "score")], planted)
    said = table_of_tally(tally, "m", "c")
    det = next(r for r in said.relations if (r.relation, r.direction) == ("det", UP))
    rules = det.rules
    assert (rules["offset"].offset, rules["offset"].accuracy) == (1, 1.0)
    assert (rules["nearest"].tag, rules["nearest"].side, rules["nearest"].accuracy) == ("NOUN", "behind", 1.0)
    assert rules["first"].accuracy == 0.0
    assert det.best is not None and (det.best.chosen_on, det.best.scored_on) == (1, 2)
    down = next(r for r in said.relations if (r.relation, r.direction) == ("det", DOWN))
    assert down.rules["first"].accuracy == 1.0
    assert not det.beats_rules  # no head can do better than a rule that is always right


def test_a_mention_looks_among_the_mentions_before_it() -> None:
    spans = tuple((2 * at, 2 * at + 1) for at in range(4))
    mentions = (Mention("x", 0, 0, 0), Mention("y", 1, 1, 1), Mention("x", 3, 3, 3))
    one = ParsedSentence(
        "a b c d", spans, ("He", "b", "c", "he"), ("",) * 4, (2, 2, -1, 2), ("nsubj", "obj", "root", "dep"), mentions
    )
    given = np.zeros((LAYERS, HEADS, 4, 4), np.float32)
    given[:, :, 3] = (0.2, 0.1, 0.7, 0.0)  # most on a word that is no mention, then on the right one
    given[1, 1, 3] = (0.1, 0.2, 0.7, 0.0)
    said = table_of_tally(counted([replace(one, half=half) for half in ("choose", "score")], lambda _: given), "m", "c")
    row, kind = said.relations[-2:]
    assert (row.relation, row.direction, row.cases) == ("coreference", "mention→antecedent", 2)
    assert (kind.relation, kind.subtype, kind.cases) == ("coreference:nominal", True, 2)
    assert row.correct.tolist() == [[2, 2, 2], [2, 0, 2]]
    assert {name: rule.accuracy for name, rule in row.rules.items()} == {
        "nearest": 0.0,
        "head_match": 1.0,
        "first": 1.0,
    }


def test_relations_may_be_called_otherwise_and_punctuation_is_none_of_all() -> None:
    draw = np.random.default_rng(8)
    own = [sentence(draw, 6) for _ in range(30)]
    signs = [replace(one, tags=tuple("PUNCT" if r == "punct" else "X" for r in one.relations)) for one in own]
    rows = []
    for name in ("punct", "p"):
        tally = counted(signs, planted, renamed={"punct": name, "obj": "", "nsubj:pass": "nsubj"})
        assert {name for name, _ in tally.cases()} == {"nsubj", name}
        rows.append({r.relation: r.cases for r in table_of_tally(tally, "m", "c").relations})
    assert rows[0]["all"] == rows[1]["all"] == rows[0]["nsubj"] and rows[1]["p"] == rows[0]["punct"]


def test_a_head_that_sees_no_other_word_finds_none() -> None:
    one = ParsedSentence("a b", ((0, 1), (2, 3)), ("a", "b"), ("", ""), (1, -1), ("x", "root"))
    tally = counted([one], lambda _: np.tile(np.tril(np.ones((2, 2), np.float32)), (LAYERS, HEADS, 1, 1)))
    assert tally.cases()["x", UP].right.sum() == 0 and tally.cases()["x", DOWN].right.sum() == LAYERS * HEADS
    assert [r.ahead for r in table_of_tally(tally, "m", "c").relations] == [0] * 4


def test_of_a_causal_model_words_ahead_are_no_cases_of_heads_or_rules() -> None:
    """Each of two words is head of the other: what stands ahead would be found by the rule +1, and by no causal head."""
    one = ParsedSentence("a b c", ((0, 1), (2, 3), (4, 5)), tuple("abc"), ("X",) * 3, (1, -1, 1), ("x", "root", "x"))
    causal = np.tile(np.tril(np.ones((3, 3), np.float32), -1), (LAYERS, HEADS, 1, 1))
    halves = [replace(one, half=half) for half in ("choose", "score")]
    said = table_of_tally(counted(halves, lambda _: causal, causal=True), "m", "c", causal=True)
    up, down = (next(r for r in said.relations if (r.relation, r.direction) == ("x", way)) for way in (UP, DOWN))
    assert (up.cases, up.ahead, down.cases, down.ahead) == (2, 2, 2, 2)
    assert (up.rules["offset"].offset, up.rules["offset"].accuracy) == (-1, 1.0)
    assert up.best is not None and up.best.scored_on == 1
    more = replace(one, relations=("y", "root", "y"), heads=(1, -1, 1))
    several = [*halves, *(replace(more, half=half) for half in ("choose", "choose", "score"))]
    named = [r.relation for r in table_of_tally(counted(several, lambda _: causal, causal=True), "m", "c").relations]
    assert list(dict.fromkeys(named)) == ["all", "y", "x"]
    seen = table_of_tally(counted(halves, lambda _: causal), "m", "c")
    assert next(r for r in seen.relations if (r.relation, r.direction) == ("x", UP)).cases == 4


def test_a_word_without_a_token_is_named() -> None:
    one = ParsedSentence("a b", ((0, 1), (2, 3)), ("a", "b"), ("", ""), (1, -1), ("x", "root"))
    with pytest.raises(BadSentenceError, match="not aligned: the model has no token for 'b'"):
        align_words(one, [Token("a", 1, 0, 1), Token("[SEP]", 2, 3, 3, True)])


def test_tallies_add_up_and_travel() -> None:
    draw = np.random.default_rng(5)
    sentences = [sentence(draw, int(n)) for n in draw.integers(2, 9, 20)]
    whole = counted(sentences, planted)
    whole.merge_tally(tally_of_skip(whole.shape, "cycle: word 3 is"))
    parts = counted(sentences[:7], planted)
    parts.merge_tally(unpack_tally(pack_tally(counted(sentences[7:], planted))))
    parts.merge_tally(tally_of_skip(parts.shape, "cycle: word 9 is"))
    one, other = (table_of_tally(unpack_tally(pack_tally(tally)), "m", "c") for tally in (whole, parts))
    assert written(one) == written(other) and one.sentences.skipped == {"cycle": 1} and one.sentences.read == 21


def test_a_column_of_something_else_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr("attnctl.commands.evaluate.tally.MOST_LABELS", 6)
    draw = np.random.default_rng(6)
    sentences = [replace(sentence(draw, 5), relations=tuple(f"word{at}-{n}" for n in range(5))) for at in range(20)]
    tally = counted(sentences, planted)
    assert len(tally.cases()) <= 8 and tally.cases()["(other labels)", UP].count_by_half.sum() > 40
    other = counted(sentences[::-1], planted)
    other.merge_tally(tally)
    assert len(other.cases()) <= 14 and sum(own.count_by_half.sum() for own in other.cases().values()) == 2 * 20 * 4 * 2


def written(said: CensusTable) -> bytes:
    from attnctl.commands.evaluate.show import census_bytes

    return census_bytes(said, ".json")


def test_wilsons_interval() -> None:
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson_interval(0, 20)[0] == 0.0 and wilson_interval(20, 20)[1] == 1.0
    assert best_of(np.zeros((2, 1, 1), int), np.array([3, 0])) is None
