"""`capture(grad=True)` against autograd through transformers' own eager attention."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

import attnctl
from attnctl.api.captures import Captures
from attnctl.api.capturing import capture
from attnctl.errors import AttnctlError, UsageError
from tests.tools import architectures as zoo

FIELDS = {"self": "attentions", "encoder": "encoder_attentions", "decoder": "decoder_attentions"}
FIELDS |= {"cross": "cross_attentions"}
CASES = ["bert", "gpt2", "llama", "gemma2, soft cap and window", "t5, bias", "vit", "albert, one layer shared"]
CASES += ["deepseek_v3, d_k is not d_v", "modernbert, window", "t5gemma, two halves", "bloom, ALiBi", "deberta"]
SINGLE = ["gpt_oss, sinks"]  # its experts do not run in double precision
DROPOUT = {
    "bert": {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.2},
    "gpt2": {"attn_pdrop": 0.3},
    "llama": {"attention_dropout": 0.3},
    "t5, bias": {"dropout_rate": 0.2},
}


def run(case: str, kernel: str, how: dict[str, Any] | None = None, **settings: Any) -> tuple[Any, torch.Tensor, Any]:
    """Return a model after `backward` of a loss on its output and its weights, the output, and the weights.

    `how` are arguments of capture; None is the model without attnctl, with the weights that it puts out. Settings make it
    train.
    """
    model = zoo.build(case, kernel, **settings).train(bool(settings))
    model = model if case in SINGLE else model.double()
    inputs = {
        name: value.double() if value.is_floating_point() and case not in SINGLE else value
        for name, value in zoo.inputs(case).items()
    }
    weights: dict[tuple[str, int], torch.Tensor]
    torch.manual_seed(3)
    if how is None:
        output = model(**inputs, output_attentions=True)
        put_out = {kind: output.get(name) or () for kind, name in FIELDS.items()}
        weights = {(kind, layer): part for kind, parts in put_out.items() for layer, part in enumerate(parts)}
        for part in weights.values():
            part.retain_grad()
    else:
        with capture(model, grad=True, **how) as traces:
            output = model(**inputs)
        weights = {(call.kind, call.layer): call.weights for call in traces}
    logits = output.logits if hasattr(output, "logits") else output[0]
    loss = logits.square().mean()
    if not settings:  # eager puts out the weights after dropout
        loss = loss + sum(part[..., :1, :1, :].square().sum() for part in weights.values())
    loss.backward()
    return model, logits, weights


def check_near(ours: torch.Tensor, eager: torch.Tensor) -> None:
    """Compare with the largest number: some families compute their softmax in float32 also in double precision."""
    ours, eager = ours.detach(), eager.detach()
    assert ours.shape == eager.shape
    assert float((ours - eager).abs().max()) <= 1e-5 * max(1.0, float(eager.abs().max()))


def check_same(ours: tuple[Any, Any, Any], eager: tuple[Any, Any, Any]) -> None:
    """Compare outputs, and gradients of parameters; those of weights that both have whole."""
    check_near(ours[1], eager[1])
    for (name, one), other in zip(ours[0].named_parameters(), eager[0].parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            check_near(one.grad, other.grad)
    for place, weights in ours[2].items():
        theirs = eager[2][place]
        if weights.shape == theirs.shape:
            check_near(weights.grad, theirs.grad)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("case", [*CASES, *SINGLE])
def test_gradients_are_those_of_eager(case: str, kernel: str) -> None:
    ours = run(case, "eager" if case in zoo.OUTSIDE else kernel, {})
    assert all(bool(weights.grad.abs().max() > 0) for weights in ours[2].values())
    check_same(ours, run(case, "eager"))


@pytest.mark.parametrize("case", ["llama", "t5, bias"])
def test_some_heads_and_rows_have_their_part_of_the_gradients(case: str) -> None:
    eager = run(case, "eager")
    ours = run(case, "sdpa", {"head": [0, 2], "rows": [0, -1]})
    check_near(ours[1], eager[1])
    for place, weights in ours[2].items():
        theirs = eager[2][place].grad[:, [0, 2]][:, :, [0, -1]]
        check_near(weights.grad, theirs)
    check_same((ours[0], ours[1], {}), eager)
    (alone,) = run("llama", "sdpa", {"layer": -1})[2]
    assert alone == ("self", 1)


@pytest.mark.parametrize("how", [{}, {"head": 1, "rows": 0}], ids=["all", "one row"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("case", DROPOUT)
def test_dropout_follows_the_weights_as_in_eager(case: str, kernel: str, how: dict[str, Any]) -> None:
    ours = run(case, kernel, how, **DROPOUT[case])
    check_same((ours[0], ours[1], {}), run(case, "eager", **DROPOUT[case]))
    for weights in ours[2].values():  # before dropout
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def with_checkpoints(model: Any) -> AbstractContextManager[None]:
    model.train().gradient_checkpointing_enable()
    return nullcontext()


def with_dropout(model: Any) -> AbstractContextManager[None]:
    model.train().config.attention_dropout = 0.5
    return nullcontext()


REFUSED: list[tuple[str, dict[str, Any], Callable[[Any], AbstractContextManager[None]], str]] = [
    ("llama", {}, lambda model: torch.no_grad(), "runs without gradients"),
    ("llama", {}, lambda model: torch.inference_mode(), "runs without gradients"),
    ("llama", {}, with_checkpoints, r"call model\.gradient_checkpointing_disable\(\)"),
    ("llama", {}, lambda model: capture(model, grad=True, head=0), "two contexts of capture"),
    ("bloom, ALiBi", {"head": 0}, lambda model: nullcontext(), "head cannot be combined with grad=True"),
    ("bloom, ALiBi", {"rows": 0}, lambda model: nullcontext(), "rows cannot be combined with grad=True"),
    ("bloom, ALiBi", {}, lambda model: torch.no_grad(), "runs without gradients"),
    ("bloom, ALiBi", {}, with_dropout, "in training mode, where dropout changes the weights"),
    ("bloom, ALiBi", {}, lambda model: model.requires_grad_(False) and nullcontext(), "its parameters are frozen"),
]


@pytest.mark.parametrize(("case", "how", "surround", "says"), REFUSED)
def test_where_it_cannot_be_exact_it_is_refused(case: str, how: dict[str, Any], surround: Any, says: str) -> None:
    model = zoo.build(case, "eager" if case in zoo.OUTSIDE else "sdpa")
    with pytest.raises((AttnctlError, UsageError), match=says), surround(model), capture(model, grad=True, **how):
        model(**zoo.inputs(case))


def test_a_frozen_model_gives_gradient_times_attention() -> None:
    model, inputs = zoo.build("llama").requires_grad_(False), zoo.inputs("llama")
    with capture(model, grad=True) as traces:
        model(**inputs).logits.square().mean().backward()
    trained = zoo.build("llama", "eager")
    output = trained(**inputs, output_attentions=True)
    for weights in output.attentions:
        weights.retain_grad()
    output.logits.square().mean().backward()
    for call, weights in zip(traces, output.attentions, strict=True):
        torch.testing.assert_close(call.weights.grad, weights.grad)


def test_a_compiled_model_and_autocast() -> None:
    inputs = zoo.inputs("llama")
    gradients = []
    for prepare in (lambda model: model, lambda model: torch.compile(model, backend="eager")):
        model = zoo.build("llama")
        with capture(model, grad=True, keep=()) as traces:
            prepare(model)(**inputs).logits.square().mean().backward()
        gradients.append((traces[0].weights.grad, model.lm_head.weight.grad))
    torch.testing.assert_close(*gradients)
    halves = []
    for look in (nullcontext, lambda model: capture(model, grad=True)):
        model = zoo.build("llama", "eager")
        with torch.autocast("cpu", torch.bfloat16), look(model):
            logits = model(**inputs).logits
        logits.float().square().mean().backward()
        halves.append((logits.detach(), *(part.grad for part in model.parameters())))
    for own, ours in zip(*halves, strict=True):
        assert float((own - ours).float().abs().max()) <= 0.03 * float(own.float().abs().max())


def test_what_a_context_around_it_changes_stays_changed() -> None:
    inputs = zoo.inputs("llama")
    answers = []
    for look in (nullcontext, lambda model: capture(model, grad=True, head=1)):
        model = zoo.build("llama")
        with attnctl.intervene(model, {0: [1]}, edges=[(5, 2)]), look(model) as traces, capture(model) as plain:
            answers.append(model(**inputs).logits)
    torch.testing.assert_close(*answers)
    assert isinstance(traces, Captures) and traces[0].weights[0, 0, 5, 2] == 0
    assert not any(call.weights.requires_grad or call.queries.requires_grad for call in plain)
    answers[1].square().mean().backward()
    assert traces[0].weights.grad.abs().max() == 0 < traces[1].weights.grad.abs().max()  # head 1 of layer 0 is off
    assert traces[0].trace().layers[0].weights.shape == traces[0].weights.shape[1:]


def test_the_example_of_the_docstring_trains() -> None:
    source = f"{capture.__doc__}".partition("with `grad`")[0] + f"{capture.__doc__}".partition("token before:")[2]
    example = doctest.DocTestParser().get_doctest(source, {"attnctl": attnctl}, "capture", None, 0)
    names: dict[str, Any] = example.globs
    torch.manual_seed(0)
    assert doctest.DocTestRunner().run(example, clear_globs=False).failed == 0
    assert names["loss"].item() < 1
