"""The built-in models: random, dot, weight files, Q K V given outright, bare matrices."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from attnctl.batching.passes import SharedPasses
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.models import open_model
from attnctl.models.builtin.stack import run_together, uniform_numbers
from attnctl.readings.trace_reading import TraceReading
from attnctl.source import ChangedReading, Prepared, TextSource, prepare
from attnctl.trace.run import StopForward
from tests.conftest import SAMPLES, attend

TEXT = "Alice will eat pizza"


def rng(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_word_has_the_same_embedding_in_every_sentence() -> None:
    a, b = attend("Alice will eat pizza"), attend("tomorrow pizza, said Alice")
    assert a.embeddings is not None and b.embeddings is not None
    np.testing.assert_array_equal(a.embeddings[0], b.embeddings[-1])
    np.testing.assert_array_equal(a.embeddings[3], b.embeddings[1])
    other = attend("Alice will eat pizza", seed=1).embeddings
    assert other is not None and not np.array_equal(a.embeddings, other)


def test_random_numbers_are_those_of_every_machine() -> None:
    """The bits themselves, so that a change of library or platform cannot pass unseen."""
    drawn = uniform_numbers("0/embedding/Alice", (1000,))
    assert hashlib.sha256(drawn.astype("<f4").tobytes()).hexdigest()[:16] == "8d7e94dede7892d7"


def test_heads_layers_and_sizes() -> None:
    trace = attend(TEXT, d_model=12, n_heads=4, n_kv_heads=2, n_layers=3, d_k=5)
    assert len(trace.layers) == 3
    layer = trace.layers[1]
    assert (layer.heads, layer.kv_heads) == ((0, 1, 2, 3), (0, 0, 1, 1))
    assert layer.queries.shape == (4, 4, 5) and layer.output.shape == (4, 12)  # type: ignore[union-attr]
    np.testing.assert_array_equal(layer.keys[0], layer.keys[1])  # type: ignore[index]
    np.testing.assert_allclose(layer.residual, layer.input + layer.output, atol=1e-6)  # type: ignore[operator]


def test_dropout_is_seeded_told_and_scales_what_it_keeps() -> None:
    layer = attend(TEXT * 5, dropout=0.4, seed=3).layers[0]
    assert layer.weights is not None and layer.dropped_weights is not None
    kept = layer.dropped_weights > 0
    assert 0.4 < kept.mean() < 0.8
    np.testing.assert_allclose(layer.dropped_weights[kept], layer.weights[kept] / 0.6, rtol=1e-6)
    np.testing.assert_allclose(layer.context, layer.dropped_weights @ layer.values, atol=1e-6)
    again = attend(TEXT * 5, dropout=0.4, seed=3).layers[0]
    np.testing.assert_array_equal(again.dropped_weights, layer.dropped_weights)
    for model in ("demo", "dot", "random"):  # of a model without a seed of its own, too
        told = json.loads(attend(TEXT, model, dropout=0.3, seed=7).to_json())["model"]
        assert (told["dropout"], told["seed"]) == (0.3, 7)
        assert json.loads(attend(TEXT, model, dropout=0.3).to_json())["model"]["seed"] == 0


def test_torch_gives_what_numpy_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {
        "n_heads": 4,
        "n_kv_heads": 2,
        "n_layers": 2,
        "causal": True,
        "rope_theta": 1e4,
        "dropout": 0.2,
    }
    on_numpy = attend(TEXT, **how)
    monkeypatch.setattr("attnctl.runtime.arrays.LONG", 1)  # every text counts as long: torch does the work
    on_torch = attend(TEXT, **how)
    for ours, theirs in zip(on_numpy.layers, on_torch.layers, strict=True):
        np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-6)
        np.testing.assert_allclose(ours.residual, theirs.residual, atol=1e-5)


def test_a_device_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(AttnctlError, match="^device='mps': torch sees no Metal device here"):
        attend(TEXT, device="mps")


def small(**more: np.ndarray) -> dict[str, np.ndarray]:
    return {"W_Q": rng(2, 6, 3), "W_K": rng(2, 6, 3, seed=1), "W_V": rng(2, 6, 4, seed=2)} | more


def test_npz_and_safetensors_and_flat_matrices_agree(tmp_path: Path) -> None:
    w = small(W_O=rng(8, 6), b_Q=rng(2, 3), b_O=rng(6), embedding=rng(5, 6))
    words = ["Alice", "will", "eat", "pizza", "[UNK]"]
    meta = {"unknown": "[UNK]", "causal": "true", "scale": "none"}
    np.savez(tmp_path / "w.npz", tokens=words, n_heads=2, **meta, **w)
    meta |= {"n_heads": "2", "tokens": json.dumps(words)}
    save_file(w, tmp_path / "w.safetensors", metadata=meta)
    flat = {name: w[name].transpose(1, 0, 2).reshape(6, -1).copy() for name in ("W_Q", "W_K", "W_V")}
    flat["b_Q"] = w["b_Q"].reshape(-1)
    save_file(w | flat, tmp_path / "flat.safetensors", metadata=meta)
    first, *others = (attend("Alice will eat Zara", str(path)) for path in sorted(tmp_path.iterdir()))
    assert first.model.causal and first.model.scale == 1.0 and first.model.n_heads == 2
    assert [t.unknown for t in first.tokens] == [False, False, False, True] and first.tokens[3].text == "Zara"
    for other in others:
        np.testing.assert_allclose(other.layers[0].output, first.layers[0].output, atol=1e-6)


def test_options_override_the_file(tmp_path: Path) -> None:
    save_file(small(), tmp_path / "w.safetensors", metadata={"causal": "true", "scale": "0.5"})
    trace = attend(TEXT, str(tmp_path / "w.safetensors"), causal=False, scale=2.0)
    assert trace.layers[0].mask is None and trace.model.scale == 2.0
    assert any("no embedding" in note for note in trace.notes)


def test_stacked_layers_add_to_the_residual_stream(tmp_path: Path) -> None:
    layers = {f"layers.{at}.{k}": v + at for at in range(2) for k, v in small(W_O=rng(8, 6)).items()}
    layers |= {"embedding": rng(3, 6), "positions": rng(4, 6)}
    save_file(layers, tmp_path / "w.safetensors", metadata={"tokens": json.dumps(["a", "b", "c"])})
    trace = attend("a b c", str(tmp_path / "w.safetensors"))
    np.testing.assert_allclose(trace.embeddings, rng(3, 6) + rng(4, 6)[:3], atol=1e-6)
    np.testing.assert_array_equal(trace.layers[1].input, trace.layers[0].residual)
    for text, says in (("a b c a b", "5 tokens, but w knows 4 positions"), ("a z", "'z' is not in the vocabulary")):
        with pytest.raises(AttnctlError, match=says):
            attend(text, str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"W_K": rng(2, 6, 5)}, r"W_Q \(2, 6, 3\) and W_K \(2, 6, 5\) do not fit"),
        ({"W_K": rng(3, 6, 3), "W_V": rng(3, 6, 3)}, "cannot share 3 key heads"),
        ({"W_O": rng(5, 6)}, r"W_V \(2, 6, 4\) and W_O \(5, 6\) do not fit: heads · d_v is 8 in one, and 5"),
        ({"b_Q": rng(7)}, r"b_Q has shape \(7,\): it is \(heads, d_k\)"),
        ({"b_Q": rng(8)}, r"W_Q \(2, 6, 3\) and b_Q \(8,\) do not fit: d_k is 3 in one, and 4 in the other"),
        ({"embedding": rng(9, 5)}, r"W_Q \(2, 6, 3\) and embedding \(9, 5\) do not fit: d_model is 6 in one, and 5"),
        ({"unembedding": rng(6)}, r"unembedding has shape \(6,\): it is \(d_model, words predicted\)"),
        ({"W_Q": rng(6)}, r"W_Q has shape \(6,\)"),
        ({"W_Q": np.full((2, 6, 3), np.nan, np.float32)}, "W_Q holds nan at"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tensors: dict[str, np.ndarray], says: str, tmp_path: Path) -> None:
    save_file(small() | tensors, tmp_path / "w.safetensors")
    with pytest.raises(AttnctlError, match=says):
        attend(TEXT, str(tmp_path / "w.safetensors"))


def test_embeddings_from_every_kind_of_file(tmp_path: Path) -> None:
    x = rng(4, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", embedding=x)
    (tmp_path / "x.csv").write_text("\n".join(",".join(map(repr, map(float, row))) for row in x))
    for path in list(tmp_path.iterdir()):
        np.testing.assert_array_equal(attend(TEXT, "dot", embeddings=str(path)).embeddings, x)
    (tmp_path / "bad.csv").write_text("1,2\n3,four\n")
    for name, says in (("x.npy", "4 rows, but the text has 2 tokens"), ("bad.csv", "row 1")):
        with pytest.raises(AttnctlError, match=says):
            attend("two words", "dot", embeddings=str(tmp_path / name))


def test_q_k_v_given_outright_start_at_the_scores(tmp_path: Path) -> None:
    q, k, v = rng(4, 3), rng(4, 3, seed=1), rng(4, 2, seed=2)
    np.savez(tmp_path / "m.npz", Q=q, K=k, V=v)
    trace = attend(TEXT, "demo", qkv=str(tmp_path / "m.npz"), causal=True)
    assert trace.embeddings is None and trace.model.kind == "matrix"
    np.testing.assert_allclose(trace.layers[0].scores[0], q @ k.T, atol=1e-6)  # type: ignore[index]
    with pytest.raises(
        UsageError, match="model='minilm': it cannot be combined with qkv=: Q, K and V come from the file"
    ):
        open_model("minilm", qkv=str(tmp_path / "m.npz"))
    np.savez(tmp_path / "bad.npz", Q=q, K=rng(4, 5), V=v)
    with pytest.raises(AttnctlError, match=r"Q \(4, 3\) and K \(4, 5\) do not fit"):
        attend(TEXT, "demo", qkv=str(tmp_path / "bad.npz"))


def test_the_journey_sample() -> None:
    by_csv = attend("Your journey starts with one step", "dot", embeddings=str(SAMPLES / "journey.csv"), scale=1.0)
    np.testing.assert_allclose(by_csv.layers[0].context[0, 1], [0.4419, 0.6515, 0.5683], atol=5e-5)  # type: ignore[index]


def test_predictions_where_they_are_asked_for() -> None:
    def predictions(text: str, model: str = "demo-causal", **how: Any) -> Any:
        return attend(text, model, **how).predictions

    after_eat = predictions(TEXT, predict="eat")
    blank = predictions("Alice will eat ____")  # a causal model has not seen what follows: the same words without it
    assert [p.text for p in blank] == [p.text for p in after_eat]
    np.testing.assert_allclose([p.probability for p in blank], [p.probability for p in after_eat], atol=1e-6)
    everywhere = predictions(TEXT, predict="all")
    for found, positions in ((predictions(TEXT), {3}), (after_eat, {2}), (everywhere, {0, 1, 2, 3})):
        assert {p.position for p in found} == positions
    assert not predictions(TEXT, "demo")  # nothing is left out that it could fill in
    assert {p.position for p in predictions("she drinks hot ____", "demo")} == {3}
    with pytest.raises(UsageError, match="no unembedding"):
        attend("a b", predict="a")


# --- texts of one length in one pass ---------------------------------------------------------------------------------

WORDS = "Alice will eat the pizza that Tom made while Zara"


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("options", [{"name": "demo"}, {"name": "demo-causal"}, {"name": "random", "n_heads": 2}])
def test_a_text_has_the_numbers_it_has_alone(options: dict[str, Any], length: int) -> None:
    model: Any = open_model(**options)
    texts = [" ".join(WORDS.split()[at : at + length]) for at in range(4)]
    together = [ChangedReading(Prepared(TextSource(model, text)), TraceReading()) for text in texts]
    runs = run_together(model, [model.tokenize(text) for text in texts], [one.take for one in together])
    for text, one, ran in zip(texts, together, runs, strict=True):
        alone = prepare(TextSource(model, text)).read(TraceReading())
        assert trace_to_json(one.value(ran)) == trace_to_json(alone)


def test_weights_of_texts_of_one_length_are_those_of_torchs_kernel() -> None:
    model: Any = open_model("random", n_heads=2)
    texts = [model.tokenize(text) for text in ("Alice eats pizza", "Tom likes tea")]
    taken: dict[int, np.ndarray] = {}
    model.shared_pass().weights(texts, taken.__setitem__)
    first = {name: torch.from_numpy(np.asarray(array)) for name, array in model.layers[0].items()}
    for tokens, weights in zip(texts, taken[0], strict=True):
        x = torch.from_numpy(model.input_rows(tokens))  # (n, d_model)
        queries, keys = (torch.einsum("nd,hdk->hnk", x, first[name]) for name in ("W_Q", "W_K"))
        each = torch.eye(len(tokens)).expand(2, -1, -1)  # the context of these values is the weights
        expected = torch.nn.functional.scaled_dot_product_attention(queries, keys, each)
        np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_a_text_that_wants_no_more_leaves_the_others_running() -> None:
    model: Any = open_model("demo")
    seen: list[tuple[int, int]] = []

    def visits(at: int) -> Any:
        def visit(layer: Any) -> None:
            seen.append((at, layer.layer))
            if at == 0:
                raise StopForward

        return visit

    tokens = [model.tokenize(text) for text in ("Alice eats pizza", "Tom likes ____")]
    runs = run_together(model, tokens, [visits(0), visits(1)])
    assert seen == [(0, 0), (1, 0), (1, 1)]
    assert not runs[0].predictions and runs[1].predictions


def test_numbers_too_large_are_refused_of_their_own_text_alone() -> None:
    plain: Any = open_model("demo")

    def embed(tokens: Any) -> Any:
        return plain.embed(tokens) * np.array([[1e30 if token.text == "Tom" else 1.0] for token in tokens], np.float32)

    model = replace(plain, embed=embed)
    sources = [TextSource(model, text) for text in ("Alice eats pizza", "Tom likes Alice", "Zara eats pizza")]
    together = [ChangedReading(Prepared(source), TraceReading()) for source in sources]
    refused: list[int] = []

    def visits(at: int) -> Any:
        def visit(layer: Any) -> None:
            try:
                together[at].take(layer)
            except AttnctlError as error:
                assert "the scores of layer 0 are too large for float32" in str(error)
                refused.append(at)
                raise StopForward from error

        return visit

    with np.errstate(all="ignore"):
        run_together(model, [source.tokens for source in sources], [visits(at) for at in range(3)])
    assert refused == [1]


def test_dropout_and_long_texts_run_alone() -> None:
    plain: Any = open_model("demo")
    short, long = ([plain.tokenize(" ".join(["eat"] * n))] * 2 for n in (5, 5000))
    for model, size in ((plain, 2), (open_model("random", dropout=0.1), 1), (open_model("demo", off="0.1"), 1)):
        assert SharedPasses(model, 2).next_size(short) == size
        assert SharedPasses(model, 2).next_size(long) == 1
