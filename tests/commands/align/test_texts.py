"""`attnctl align` of texts: tiny random checkpoints, held against the eager attention of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from matplotlib.text import Text
from tokenizers import Tokenizer

import attnctl
from attnctl.commands.align.figure import links_drawing
from attnctl.commands.align.texts import head_score, ranked_heads
from attnctl.errors import UsageError
from attnctl.text.tokens import Token
from tests.conftest import Run, check_schema
from tests.tools import folders

SOURCE, TARGET = "will eat.", "das eat"
HEADS = ((1, 0), (0, 3))
NAMED = "1.0,0.3"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Encoder-decoders "t5", "bart" and "marian", and "bert" and "llama", which read one text."""
    folder = tmp_path_factory.mktemp("texts")
    for name, case in {"t5": "t5, bias", "bart": "bart", "marian": "marian", "bert": "bert", "llama": "llama"}.items():
        folders.write(folder / name, case, eos=name != "llama")
    return folder


def eager_weights(folder: Path, ids: list[int], decoder_ids: list[int] | None = None) -> np.ndarray:
    """Weights of transformers' own code (layers, heads, n_q, n_k): self-attention, or cross where there is a decoder's text."""
    kind = transformers.AutoConfig.from_pretrained(folder).architectures[0]
    network = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()
    given = {} if decoder_ids is None else {"decoder_input_ids": torch.tensor([decoder_ids])}
    with torch.no_grad():
        out = network(input_ids=torch.tensor([ids]), output_attentions=True, **given)
    found = out.attentions if decoder_ids is None else out.cross_attentions
    return torch.cat(found).numpy()


def start_of_decoder(folder: Path) -> int:
    return int(transformers.AutoConfig.from_pretrained(folder).decoder_start_token_id)


def mean_of_heads(weights: np.ndarray) -> np.ndarray:
    return np.mean([weights[place] for place in HEADS], axis=0)


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.shape == wanted.shape and float(np.abs(found - wanted).max()) < 1e-6


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_links_are_the_eager_cross_attention_of_each_tokens_own_row(place: Path, name: str) -> None:
    tokenizer = Tokenizer.from_file(str(place / name / "tokenizer.json"))
    source, target = (tokenizer.encode(text, add_special_tokens=False) for text in (SOURCE, TARGET))
    ids = [*source.ids, 2]  # its end is special
    weights = mean_of_heads(eager_weights(place / name, ids, [start_of_decoder(place / name), *target.ids]))[:, :-1]
    found = attnctl.align(SOURCE, place / name, target=TARGET, heads=NAMED)
    assert close(found.weights, weights[1:])
    assert not close(found.weights, weights[:-1])  # the rows that predict
    assert [token.id for token in found.sources] == source.ids and found.given and found.target == TARGET
    assert [link.source for link in found.links] == weights[1:].argmax(1).tolist()
    assert [link.weight for link in found.links] == pytest.approx(weights[1:].max(1).tolist(), abs=1e-6)
    assert [link.source_text for link in found.links] == [found.sources[link.source].text for link in found.links]
    assert "".join(link.text for link in found.links) == TARGET.replace(" ", "")


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_the_model_writes_the_target(place: Path, name: str, tmp_path: Path) -> None:
    place = shutil.copytree(place / name, tmp_path / name).parent
    settings = json.loads((place / name / "generation_config.json").read_text())
    (place / name / "generation_config.json").write_text(json.dumps(settings | {"max_new_tokens": 6}))
    tokenizer = Tokenizer.from_file(str(place / name / "tokenizer.json"))
    text = "The house is small"
    source = tokenizer.encode(text, add_special_tokens=False)
    ids, columns = [*source.ids, 2], [at for at, piece in enumerate(source.tokens) if piece != "Ġ"]
    kind = transformers.AutoConfig.from_pretrained(place / name).architectures[0]
    network = getattr(transformers, kind).from_pretrained(place / name).eval()
    written = network.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)))[0].tolist()
    kept = [at for at, number in enumerate(written) if number > 3]  # no special ones
    found = attnctl.align(text, place / name, heads=NAMED)
    assert ("The target is cut off" in found.notes[-1]) == (written[-1] > 3)
    assert not found.given and found.target == tokenizer.decode(written) and len(kept) > 1
    assert close(found.weights, mean_of_heads(eager_weights(place / name, ids, written))[np.ix_(kept, columns)])


def test_words_sum_over_pieces_of_the_source_and_average_over_those_of_the_target(place: Path) -> None:
    pieces, words = (
        attnctl.align(SOURCE, place / "t5", target=TARGET, heads=NAMED, words=whole) for whole in (False, True)
    )
    assert [token.text for token in pieces.sources] == ["w", "i", "l", "l", "e", "at", "."]
    assert [token.text for token in words.sources] == ["will", "eat", "."]
    assert [link.text for link in words.links] == ["das", "eat"] and [link.text for link in pieces.links][3:] == [
        "e",
        "at",
    ]
    columns = np.stack([part.sum(1) for part in np.split(pieces.weights, [4, 6], axis=1)], axis=1)
    assert close(words.weights, np.stack([columns[:3].mean(0), columns[3:].mean(0)]))
    assert not any("stay pieces" in note for note in words.notes)


def test_the_bytes_of_a_character_are_one_word(place: Path) -> None:
    pieces, words = (
        attnctl.align("a 🍕", place / "t5", target="🍕 é", heads=NAMED, words=whole) for whole in (False, True)
    )
    assert [link.text for link in pieces.links] == ["🍕₁", "🍕₂", "🍕₃", "🍕₄", "é₁", "é₂"]
    assert [link.text for link in words.links] == ["🍕", "é"] and [token.text for token in words.sources] == ["a", "🍕"]
    tokenizer = Tokenizer.from_file(str(place / "t5" / "tokenizer.json"))
    source, target = (tokenizer.encode(text, add_special_tokens=False) for text in ("a 🍕", "🍕 é"))
    weights = mean_of_heads(
        eager_weights(place / "t5", [*source.ids, 2], [start_of_decoder(place / "t5"), *target.ids])
    )
    columns = np.stack([weights[1:, :-1][:, np.array(source.word_ids) == word].sum(1) for word in (0, 1)], axis=1)
    assert close(words.weights, np.stack([columns[np.array(target.word_ids) == word].mean(0) for word in (0, 1)]))


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_one_text_is_aligned_with_what_stands_before_its_last_mark(place: Path, name: str) -> None:
    text = "will >> eat >>at will"
    tokenizer = Tokenizer.from_file(str(place / name / "tokenizer.json"))
    encoded = tokenizer.encode(text)
    weights = mean_of_heads(eager_weights(place / name, encoded.ids))
    mark = text.rfind(">>")
    spans = list(enumerate(encoded.offsets))
    rows = [at for at, (start, end) in spans if mark + 2 <= start and text[start:end].strip()]
    columns = [at for at, (start, end) in spans if end <= mark and text[start:end].strip()]
    found = attnctl.align(text, place / name, heads=NAMED)
    assert close(found.weights, weights[np.ix_(rows, columns)])
    assert (found.text, found.target) == ("will >> eat ", "at will")
    shown = attnctl.attend(text, str(place / name))  # what explain and heatmap show
    assert close(
        found.weights, mean_of_heads(np.stack([layer.weights for layer in shown.layers]))[np.ix_(rows, columns)]
    )
    whole = attnctl.align(text, place / name, heads=NAMED, words=True)
    assert [link.text for link in whole.links] == ["at", "will"]


def test_the_score_of_a_head() -> None:
    assert head_score(np.eye(3, dtype=np.float32)) == 1
    assert head_score(np.array([[0.6, 0.1], [0.2, 0.0]], np.float32)) == pytest.approx(0.4 * 0.5)  # one source for both
    targets, sources = (tuple(Token(text) for text in texts) for texts in (["a", "."], ["b", ","]))
    sharp = np.array([[0.5, 0.0], [0.0, 0.1]], np.float32)
    ends = np.array([[0.1, 0.9], [0.0, 0.9]], np.float32)  # looks at punctuation
    found = ranked_heads({(0, 0): ends, (0, 1): sharp}, targets, sources)
    assert [(one.layer, one.head, round(one.score, 6)) for one in found] == [(0, 1, 0.5), (0, 0, 0.1)]
    assert ranked_heads({(0, 0): ends[1:, 1:]}, targets[1:], sources[1:])[0].score == pytest.approx(0.9)


def test_heads_are_found_or_given(place: Path) -> None:
    auto = attnctl.align(SOURCE, place / "t5", target=TARGET)
    scores = [one.score for one in auto.found_heads]
    assert auto.chosen == "auto" and len(scores) == 8 and scores == sorted(scores, reverse=True)
    assert [(one.layer, one.head) for one in auto.heads] == [(one.layer, one.head) for one in auto.found_heads[:6]]
    each = [attnctl.align(SOURCE, place / "t5", target=TARGET, heads=f"{one.layer}.{one.head}") for one in auto.heads]
    assert close(auto.weights, np.mean([one.weights for one in each], axis=0))
    assert each[0].chosen == "given" and [one.score for one in each[0].found_heads] == scores
    assert repr(auto) == "AlignedText of 'das eat': 5 links, t5"


def test_forms_of_aligned_texts(place: Path, tmp_path: Path, run: Run) -> None:
    how = ("align", SOURCE, "--model", str(place / "t5"), "--target", "<b> eat", "--words", "--heads", NAMED)
    rows = [line.split("\t") for line in run(*how).out.splitlines()]
    assert rows[0] == ["target", "source", "weight"] and [row[0] for row in rows[1:]] == ["<", "b", ">", "eat"]
    document = run(*how, "--json").json
    assert check_schema(document) == "text-alignment"
    assert (document["text"], document["target"], document["given"]) == (SOURCE, "<b> eat", True)
    assert [link["source_text"] for link in document["links"]] == [row[1] for row in rows[1:]]
    assert np.array(document["weights"]).max(axis=1) == pytest.approx([float(row[2]) for row in rows[1:]], abs=1e-6)
    assert document["heads"] == [{"layer": 1, "head": 0}, {"layer": 0, "head": 3}] and document["chosen"] == "given"
    for suffix in ("json", "png", "svg", "pdf"):
        assert run(*how, "-o", str(tmp_path / f"a.{suffix}")).code == 0
        assert (tmp_path / f"a.{suffix}").stat().st_size > 50
    labels = [
        text.get_text() for text in links_drawing(attnctl.align(SOURCE, how[3], target="das")).figure.findobj(Text)
    ]
    assert {"target", "source", "weight", "w", "i", "l", "e", "at", "d", "a", "s"} <= set(labels)
    file = tmp_path / "text.txt"
    file.write_text(SOURCE)
    assert run("align", "--file", str(file), *how[2:]).out == run(*how).out


def test_options_of_speech_are_refused_in_python(place: Path) -> None:
    """Others stand in tests/refusals.txt, where the command line refuses them as Python does."""
    with pytest.raises(UsageError, match="^language cannot be combined with texts"):
        attnctl.align("a", place / "t5", language="en")
    with pytest.raises(UsageError, match="^words cannot be combined with speech"):
        attnctl.align("a.wav", place / "t5", words=True)


def test_a_start_token_takes_what_no_token_needs(run: Run, place: Path) -> None:
    """The weights are those of transformers on the ids with the model's start token before them; it is no source."""
    folder, text = place / "llama", "will eat. >> das eat"
    encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False)
    start = int(transformers.AutoConfig.from_pretrained(folder).bos_token_id)
    weights = mean_of_heads(eager_weights(folder, [start, *encoded.ids]))
    ends = [
        (index, b)
        for index, ((_, b), piece) in enumerate(zip(encoded.offsets, encoded.tokens, strict=True))
        if piece != "Ġ"
    ]
    rows = [index + 1 for index, b in ends if b > text.index(">>") + 2]
    found = attnctl.align(text, folder, heads=NAMED, bos=True)
    assert close(found.weights[:, 0], weights[rows, 1]) and not found.sinks and found.sources[0].id == encoded.ids[0]
    written = json.loads(run("align", text, "--model", folder, "--heads", NAMED, "--bos", "--json").out)
    assert close(np.array(written["weights"], np.float32), found.weights)
    without = attnctl.align(text, folder, heads=NAMED, bos=False)
    assert without.sinks == (0,) and not close(without.weights[:, 0], found.weights[:, 0])
    with pytest.raises(TypeError, match="bos is for the name of a model"):
        attnctl.align(text, attnctl.open_model(str(folder)), bos=True)


def test_a_target_that_the_model_does_not_reach_is_said_to_be_cut_off(place: Path, tmp_path: Path) -> None:
    """It was said to have no tokens."""
    folder = shutil.copytree(place / "bert", tmp_path / "short")
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}])
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 6, "do_lower_case": False}))
    with pytest.raises(UsageError, match="short reads 6 tokens of the text, and none of them is in the target"):
        attnctl.align("will eat will eat will eat >> das eat", folder)
    with pytest.raises(UsageError, match="the target has no tokens: give at least one word"):
        attnctl.align("will >> ", place / "bert")
