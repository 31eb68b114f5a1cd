"""Two texts that a checkpoint reads together, held against transformers: `model(**tokenizer(a, b))`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnctl
from attnctl.errors import UsageError
from tests.conftest import Refused, Run
from tests.tools import architectures as zoo

FIRST, SECOND = "is the cat red", "the cat sat on a mat"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*FIRST.split(), *SECOND.split(), "dog"})]
BIG_BIRD = {word: at for at, word in enumerate(["<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])}
SIZES = {"vocab_size": len(WORDS), "pad_token_id": 0}
SPECIAL = {"bos_token": "[CLS]", "eos_token": "[SEP]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
# family → network, settings of its configuration, tokenizer
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "bert": ("BertForMaskedLM", zoo.TINY, lambda: transformers.BertTokenizer(vocab=_numbered())),
    "roberta": (
        "RobertaModel",
        zoo.TINY | {"max_position_embeddings": 66, "type_vocab_size": 1},
        lambda: transformers.RobertaTokenizer(vocab=_byte_level(), merges=[]),
    ),
    "funnel": (
        "FunnelModel",
        {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [2], "num_decoder_layers": 1},
        lambda: transformers.FunnelTokenizer(
            vocab=_numbered({"<cls>": 2, "<sep>": 3, "<unk>": 1, "<pad>": 0}),
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        ),
    ),
    "big_bird": (
        "BigBirdModel",
        zoo.TINY | {"attention_type": "original_full"},
        lambda: transformers.BigBirdTokenizer(vocab=[(word, 0.0) for word in _numbered(BIG_BIRD)]),
    ),
}


def _numbered(named: dict[str, int] | None = None) -> dict[str, int]:
    numbered = {word: at for at, word in enumerate(WORDS)}
    return numbered if named is None else named | {word: at for word, at in numbered.items() if at > 3}


def _byte_level() -> dict[str, int]:
    from tokenizers.pre_tokenizers import ByteLevel

    named = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet())]
    return {piece: at for at, piece in enumerate(named)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint of a family, its token types as large as its words."""
    root = tmp_path_factory.mktemp("pairs")

    def of(family: str) -> Path:
        path = root / family
        if not path.exists():
            name, settings, make = FAMILIES[family]
            tokenizer = make()
            network_class = getattr(transformers, name)
            torch.manual_seed(0)
            config = network_class.config_class(**settings | {"vocab_size": len(tokenizer), "pad_token_id": 0})
            network = network_class(config).eval()
            with torch.no_grad():
                for parameter in network.parameters():
                    if parameter.ndim > 1:
                        parameter.normal_(0, 0.3)
            network.save_pretrained(path)
            tokenizer.save_pretrained(path)
        return path

    return of


def eager(path: Path, *texts: str) -> tuple[list[int], np.ndarray]:
    """Ids and weights (layers, heads, n, n) by transformers."""
    given = transformers.AutoTokenizer.from_pretrained(path)(*texts, return_tensors="pt")
    kind = json.loads((path / "config.json").read_text())["architectures"][0]
    network = getattr(transformers, kind).from_pretrained(path, attn_implementation="eager").eval()
    with torch.no_grad():
        out = network(**given, output_attentions=True)
    return given["input_ids"][0].tolist(), torch.cat(out.attentions).numpy()


def weights_of(trace: attnctl.Trace) -> np.ndarray:
    return np.stack([layer.weights for layer in trace.layers])


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_pair_is_read_as_the_tokenizer_joins_it(folder: Callable[[str], Path], family: str) -> None:
    path = folder(family)
    ids, weights = eager(path, FIRST, SECOND)
    trace = attnctl.attend(FIRST, path, text_pair=SECOND)
    assert [token.id for token in trace.tokens] == ids
    np.testing.assert_allclose(weights_of(trace), weights, atol=1e-5)
    assert trace.text == f"{FIRST}\n\n{SECOND}"
    placed = [token for token in trace.tokens if not token.special and token.end > token.start]
    assert len(placed) > 8 and placed[0].start == 0 and placed[-1].end == len(trace.text)
    for token in placed:
        assert token.text == trace.text[token.start : token.end].strip()


def test_token_types_of_one_text_are_the_tokenizers(folder: Callable[[str], Path]) -> None:
    """Funnel's tokenizer gives <cls> a token type of its own."""
    path = folder("funnel")
    tokens = attnctl.attend(FIRST, path).tokens
    given = transformers.AutoTokenizer.from_pretrained(path)(FIRST)
    assert [token.type for token in tokens] == given["token_type_ids"] and tokens[0].type == 2


def test_a_tokenizer_without_token_types_is_noted(folder: Callable[[str], Path]) -> None:
    path = folder("big_bird")
    trace = attnctl.attend(FIRST, path, text_pair=SECOND)
    np.testing.assert_allclose(weights_of(trace), eager(path, FIRST, SECOND)[1], atol=1e-5)
    assert any("gives no token types" in note for note in trace.notes)
    assert not any("gives no token types" in note for note in attnctl.attend(FIRST, path).notes)


def test_token_types_change_the_weights(folder: Callable[[str], Path]) -> None:
    path = folder("bert")
    joined = attnctl.attend(f"{FIRST} [SEP] {SECOND}", path)
    pair = attnctl.attend(FIRST, path, text_pair=SECOND)
    assert [token.id for token in joined.tokens] == [token.id for token in pair.tokens]
    assert np.abs(weights_of(joined) - weights_of(pair)).max() > 0.05
    assert [token.type for token in pair.tokens] == [0] * 6 + [1] * 7
    assert any("The text holds [SEP]" in note for note in joined.notes)
    assert not any("text_pair" in note for note in pair.notes)


def test_a_network_of_ones_own_reads_a_pair(folder: Callable[[str], Path]) -> None:
    path = folder("bert")
    network = transformers.BertForMaskedLM.from_pretrained(path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    trace = attnctl.attend(FIRST, network, tokenizer=tokenizer, text_pair=SECOND)
    np.testing.assert_allclose(weights_of(trace), eager(path, FIRST, SECOND)[1], atol=1e-5)
    with pytest.raises(UsageError, match="needs a tokenizer of transformers"):
        attnctl.attend(FIRST, network, tokenizer=tokenizer.backend_tokenizer, text_pair=SECOND)


@pytest.mark.parametrize("command", ["explain", "heatmap", "heads", "view", "compare", "ablate"])
def test_every_command_reads_pairs(folder: Callable[[str], Path], run: Run, tmp_path: Path, command: str) -> None:
    path, pair = folder("bert"), ("--text-pair", SECOND)
    if command == "view":
        page = tmp_path / "page.html"
        assert run("view", FIRST, "--model", path, *pair, "-o", page, "--no-open").code == 0
        assert "cat sat" in page.read_text() or '"sat"' in page.read_text()
        return
    texts = (path, path, FIRST) if command == "compare" else (FIRST, "--model", path)
    found = run(command, *texts, *pair, *(("-o", tmp_path / "map.json") if command == "heatmap" else ("--json",)))
    assert found.code == 0, found.err
    document = json.loads((tmp_path / "map.json").read_text()) if command == "heatmap" else found.json
    names = [token if isinstance(token, str) else token["text"] for token in document["tokens"]]
    assert names == ["[CLS]", *FIRST.split(), "[SEP]", *SECOND.split(), "[SEP]"]


def test_a_check_recomputes_a_pair(folder: Callable[[str], Path], run: Run) -> None:
    found = run("check", FIRST, "--model", folder("bert"), "--text-pair", SECOND)
    assert found.code == 0 and "✗" not in found.out


def test_parts_and_words_of_a_pair(folder: Callable[[str], Path]) -> None:
    path = folder("bert")
    parts = attnctl.spans(FIRST, "paragraphs", model=path, text_pair=SECOND)
    assert [part.name for part in parts.grid.rows] == [f"0 {FIRST}", f"1 {SECOND}", "(special)"]
    assert len(attnctl.heads(FIRST, path, text_pair=SECOND, words=True)) == 8


def test_ablate_cuts_the_parts_of_a_pair(folder: Callable[[str], Path], run: Run) -> None:
    how = ("--model", folder("bert"), "--text-pair", "the [MASK] sat", "--spans", "paragraphs")
    found = run("ablate", FIRST, *how, "--json").json
    assert sorted(part["name"] for part in found["spans"]) == [f"0 {FIRST}", "1 the [MASK] sat"]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_batch_reads_a_column_of_second_texts(
    folder: Callable[[str], Path], run: Run, tmp_path: Path, form: str
) -> None:
    path, rows = folder("bert"), [(FIRST, SECOND), ("the dog", ""), ("a cat", "the mat")]
    file = tmp_path / f"pairs.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps({"text": a, "text_pair": b or None}) + "\n" for a, b in rows))
    elif form == "csv":
        file.write_text("text,text_pair\n" + "".join(f"{a},{b}\n" for a, b in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": [a for a, _ in rows], "text_pair": [b for _, b in rows]}), file)
    found = run("batch", file, "--model", path)
    assert found.code == 0, found.err
    for line, (first, second) in zip(found.out.splitlines(), rows, strict=True):
        document = json.loads(line)
        ids, weights = eager(path, first, *([second] if second else []))
        assert [token["id"] for token in document["tokens"]] == ids
        ours = [[head["weights"] for head in layer["heads"]] for layer in document["layers"]]
        np.testing.assert_allclose(ours, weights, atol=1e-5)


def test_pairs_are_refused_where_one_text_is_read(folder: Callable[[str], Path], refused: Refused, run: Run) -> None:
    path = folder("bert")
    assert refused("explain", "a", "--text-pair", "b", code=2) == "--text-pair cannot be combined with --model demo"
    said = refused("explain", "a", "--model", path, "--text-pair", " ", code=2)
    assert said == "--text-pair is empty: it is the second of two texts"
    with pytest.raises(UsageError, match="^text_pair is for checkpoints: demo reads one text"):
        attnctl.attend("a", attnctl.open_model("demo"), text_pair="b")
    with pytest.raises(TypeError, match="text_pair needs a text"):
        attnctl.compare(attnctl.attend("a"), attnctl.attend("a"), text_pair="b")
    batch = run("batch", "-", "--model", "demo", stdin=b'{"text": "a", "text_pair": "b"}\n')
    assert batch.code == 3 and "reads one text" in batch.err
