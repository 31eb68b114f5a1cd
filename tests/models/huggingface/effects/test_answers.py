"""Answers to prompts: exact through the cache, in chunks, and with parts of the prompt hidden."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnctl.errors import UsageError
from attnctl.models import open_model
from attnctl.models.huggingface import answers
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.models.huggingface.contributions import AttributedPrompt
from attnctl.models.huggingface.prompts import prompt_tokens
from attnctl.text.tokens import ids_of
from tests.models.huggingface.conftest import Shelf

TEXT = "[one] Paris is big.\n[two] Rome is old.\n[three] Oslo is cold.\n\nWhich is old?"


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, shelf: Shelf) -> Any:
    return open_model(shelf(request.param, max_position_embeddings=512))


def asked(model: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of the prompt and of its answer."""
    return ids_of(model.tokenize(TEXT)), ids_of(model.tokenize(" Rome"))


def plain(model: Any, hidden: list[tuple[int, int]], text: str = TEXT, window: int | None = None) -> np.ndarray:
    """The answer's log-probabilities by one forward of the network itself, a mask (n, n) hiding what is hidden."""
    prompt, answer = ids_of(model.tokenize(text)), ids_of(model.tokenize(" Rome"))
    ids = torch.tensor([[*prompt, *answer]])
    n = ids.shape[1]
    whole = torch.ones(n, n, dtype=torch.bool).tril()
    near = whole & ~whole.tril(-window) if window else whole
    for mask in (whole, near):
        for a, b in hidden:
            mask[b:, a:b] = False
        for row in range(n):
            mask[row, row] |= not mask[row].any()
    masks = {"full_attention": whole[None, None], "sliding_attention": near[None, None]}
    with torch.no_grad():
        logits = model.network(input_ids=ids, attention_mask=masks if window else whole[None, None]).logits[0]
    shares = torch.log_softmax(logits.float(), -1)
    return np.array([float(shares[len(prompt) - 1 + at, token]) for at, token in enumerate(answer)])


def test_an_answer_leaves_out_what_generation_config_suppresses(shelf: Shelf) -> None:
    """Held against `generate`, which reads the lists there."""
    model: Any = open_model(shelf("llama", max_position_embeddings=512))
    prompt = ids_of(model.tokenize(TEXT))

    def generated() -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        made = model.network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        return tuple(made[0, len(prompt) :].tolist())

    settings, plain = model.network.generation_config, generated()
    for lists in ({"suppress_tokens": [plain[0], plain[3]]}, {"begin_suppress_tokens": [plain[0]]}):
        settings.update(suppress_tokens=None, begin_suppress_tokens=None)
        settings.update(**lists)
        answered = AnsweredPrompt(model, prompt)
        answered.generate_answer(8)
        assert answered.answer == generated() != plain


HIDDEN: list[list[tuple[int, int]]] = [[], [(0, 5)], [(3, 6), (11, 12), (30, 40)]]


def test_a_window_sees_no_farther_where_tokens_are_hidden(shelf: Shelf) -> None:
    """Gemma 3: tokens left out would bring others into the window, so they are hidden by a mask."""
    made: Any = open_model(shelf("gemma3, window", max_position_embeddings=512))
    read = AnsweredPrompt(made, *asked(made))
    assert not read.leaves_out()
    for hidden in HIDDEN:
        wanted = plain(made, hidden, window=int(made.network.config.sliding_window))
        np.testing.assert_allclose(read.log_probabilities(hidden), wanted, atol=1e-5)


@pytest.mark.parametrize("chunk", [512, 7])
def test_log_probabilities_are_those_of_one_forward(model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "CHUNK", chunk)
    read = AnsweredPrompt(model, *asked(model))
    assert read.leaves_out()
    for hidden in HIDDEN:
        wanted = plain(model, hidden)
        for found in (read.log_probabilities(hidden), read._masked(hidden)):
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_heads_that_are_off_are_off_in_the_answer_too(shelf: Shelf) -> None:
    """Against a forward in which hooks zero a head's part of what the output projection is given."""
    folder = shelf("llama", max_position_embeddings=512)
    made, off = open_model(folder), open_model(folder, off="0.1,1.3")
    hidden, d_k = HIDDEN[-1], made.info.d_k
    whole = plain(made, hidden)

    def zero_head(_: Any, given: tuple[torch.Tensor], head: int) -> tuple[torch.Tensor]:
        rest = given[0].clone()
        rest[..., head * d_k : (head + 1) * d_k] = 0
        return (rest,)

    for layer, head in ((0, 1), (1, 3)):
        projection = made.network.model.layers[layer].self_attn.o_proj
        projection.register_forward_pre_hook(partial(zero_head, head=head))
    wanted = plain(made, hidden)
    read = AttributedPrompt(off, *asked(off))
    for found in (read.log_probabilities(hidden), read._masked(hidden)):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(wanted - whole).max() > 1e-3
    assert not read.writes_by_token()[1]


def eager_weights(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> Any:
    """What transformers' eager path says of prompt and answer: its output, with the weights of every layer."""
    model.network.set_attn_implementation("eager")
    with torch.no_grad():
        output = model.network(input_ids=torch.tensor([[*prompt, *answer]]), output_attentions=True)
    model.network.set_attn_implementation("sdpa")
    return output


def test_looks_are_the_eager_weights(model: Any) -> None:
    prompt, answer = asked(model)
    looks = AnsweredPrompt(model, prompt, answer).answer_looks()
    output = eager_weights(model, prompt, answer)
    for layer, weights in enumerate(output.attentions):
        wanted = weights[0, :, len(prompt) - 1 : -1, :-1].numpy()  # (heads, m, n_k)
        np.testing.assert_allclose(looks.masses[layer], wanted.mean((0, 1)), atol=1e-5)
        np.testing.assert_array_equal(looks.strongest[layer], wanted.argmax(-1))
    assert float(looks.mass_of_keys().sum()) == pytest.approx(1, abs=1e-4)


def test_writes_by_the_formula(shelf: Shelf) -> None:
    """Weights · values · W_O at the last norm's scale, along the answer's unembedding less the expected one, by hooks."""
    made: Any = open_model(shelf("llama", max_position_embeddings=512))
    prompt, answer = asked(made)
    network, rows = made.network, slice(len(prompt) - 1, -1)
    layers, kept = network.model.layers, {}
    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda m, a, out: kept.update({m: out[0]})) for layer in layers
    ]
    hooks += [network.model.norm.register_forward_hook(lambda m, a, out: kept.update(x=a[0][0], y=out[0]))]
    output = eager_weights(made, prompt, answer)
    for hook in hooks:
        hook.remove()
    chances = torch.softmax(output.logits[0, rows], -1)
    matrix = network.lm_head.weight
    ways = (matrix[list(answer)] - chances @ matrix) * (kept["y"] / kept["x"])[rows]  # (m, d_model)
    total = torch.zeros(len(prompt) + len(answer))
    for layer, weights in zip(layers, output.attentions, strict=True):
        heads, d_v = weights.shape[1], layer.self_attn.head_dim
        values = kept[layer.self_attn.v_proj].reshape(len(total), -1, d_v)  # (n, kv_heads, d_v)
        projection = layer.self_attn.o_proj.weight.reshape(-1, heads, d_v)
        for head in range(heads):
            worth = values[:, head * values.shape[1] // heads] @ (ways @ projection[:, head]).T  # (n, m)
            total += (weights[0, head, rows] * worth.T).sum(0)
    written, notes = AttributedPrompt(made, prompt, answer).writes_by_token()
    assert notes == ()
    np.testing.assert_allclose(written, total[:-1].detach().numpy(), atol=1e-5)


def test_the_generated_answer_is_that_of_the_network(model: Any) -> None:
    prompt = ids_of(model.tokenize(TEXT))
    read = AnsweredPrompt(model, prompt)
    read.generate_answer(6)
    with torch.no_grad():
        made = model.network.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0)
    wanted = made[0, len(prompt) :].tolist()
    assert list(read.answer) == [token for token in wanted if token != 2][: len(read.answer)]
    again = AnsweredPrompt(model, prompt, after=read)
    again.generate_answer(6)
    assert again.answer == read.answer


@pytest.mark.parametrize("shared", [0, 1, 20])
def test_a_prompt_behind_another_is_read_as_by_itself(model: Any, shared: int) -> None:
    prompt, answer = asked(model)
    other = AnsweredPrompt(model, (*prompt[:shared], *(9 + at % 7 for at in range(30))))
    alone, behind = AnsweredPrompt(model, prompt, answer), AnsweredPrompt(model, prompt, answer, after=other)
    for one, two in zip(alone.states, behind.states, strict=True):
        np.testing.assert_allclose(one[0], two[0], atol=1e-5)
        np.testing.assert_allclose(one[1], two[1], atol=1e-5)
    np.testing.assert_allclose(alone.log_probabilities(), behind.log_probabilities(), atol=1e-5)


def test_the_prompt_begins_once(chatty: Path) -> None:
    first, second, *_ = prompt_tokens(open_model(str(chatty)), "<s>a b")
    assert first.text == "<s>" != second.text


def test_a_model_that_continues_no_text_answers_nothing(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match="continue"):
        AnsweredPrompt(open_model(shelf("bert")), (1, 2))  # type: ignore[arg-type]


def memory_grown(folder: str) -> float:
    """Return by how many MB the most memory of this process grows while a long prompt is read."""
    import resource

    torch.set_num_threads(1)
    model: Any = open_model(folder)
    ids = tuple(range(5, 25)) * 100
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = AnsweredPrompt(model, ids, (7, 8, 9))
    read.log_probabilities([(100, 1000)])
    read.answer_looks()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork begins with the memory of now, and imports nothing again")
def test_nothing_is_n_by_n(shelf: Shelf) -> None:
    """2,000 tokens: one matrix of four heads would be 64 MB."""
    folder = shelf("llama", max_position_embeddings=8192)
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        assert pool.submit(memory_grown, folder).result() < 50
