"""What looks like attention and is none, and what is attention and cannot be shown: never silently."""

import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import attnctl
from attnctl.errors import UsageError
from tests.models.torch.no_attention import NAMED, SILENT, Nystroem, Online, OverFeaturesAndTokens, Retention
from tests.models.torch.test_written_by_hand import built, texts
from tests.models.torch.written_by_hand import D, Plain


def scripted_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v


def scripted_fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.softmax(q @ k.mT, -1) @ v


class OneHead(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.transpose(-2, -1), -1) @ x


class Beside(nn.Module):
    """A model that attends, with another part after it."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.attend, self.part = Plain(), part

    def forward(self, x):
        return self.part(x), self.attend(x)


@pytest.mark.parametrize("kind", SILENT)
def test_a_model_without_attention_is_an_error_that_says_what_was_looked_for(kind: type[nn.Module]) -> None:
    model = kind()
    with (
        pytest.raises(
            attnctl.AttnctlError, match=f"no attention of {kind.__name__} was seen.*scaled_dot_product_attention"
        ),
        attnctl.capture(model),
    ):
        model(texts())


@pytest.mark.parametrize("kind", SILENT)
def test_beside_attention_it_is_passed_over(kind: type[nn.Module]) -> None:
    model = Beside(kind()).eval()
    with attnctl.capture(model) as traces:
        model(texts())
    assert [call.name for call in traces] == ["attend"]
    assert not traces.unseen  # and no warning


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", NAMED)
def test_attention_that_cannot_be_shown_is_named(kind: type[nn.Module]) -> None:
    model = built(kind)
    with pytest.raises(attnctl.AttnctlError, match=NAMED[kind]), attnctl.capture(model):
        model(texts())


@pytest.mark.parametrize("kind", [OverFeaturesAndTokens, Retention, Online])
def test_there_is_no_second_reason(kind: type[nn.Module]) -> None:
    model = built(kind)
    with pytest.raises(attnctl.AttnctlError) as caught, attnctl.capture(model):
        model(texts())
    assert str(caught.value).count("in the root:") == 1


@pytest.mark.parametrize("kind", NAMED)
def test_beside_attention_it_is_a_warning(kind: type[nn.Module]) -> None:
    model = Beside(built(kind)).eval()
    with pytest.warns(UserWarning, match=NAMED[kind]), attnctl.capture(model) as traces:
        model(texts())
    assert [call.name for call in traces] == ["attend"]
    assert "part" in traces.unseen


def test_an_operator_that_looks_fused_is_named() -> None:
    with torch.library._scoped_library("attnctl_test", "DEF") as library:
        library.define("flash_attention(Tensor q, Tensor k, Tensor v) -> Tensor")
        library.impl("flash_attention", lambda q, k, v: functional.scaled_dot_product_attention(q, k, v), "CPU")

        class Custom(Plain):
            def forward(self, x):
                return torch.ops.attnctl_test.flash_attention(*map(self.split, self.projected(x)))

        model = built(Custom)
        with pytest.raises(attnctl.AttnctlError, match="attnctl_test.flash_attention"), attnctl.capture(model):
            model(texts())


def opaque(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """An attention that torch cannot look into, as a kernel of another package."""
    weights = (q.numpy() @ k.numpy().swapaxes(-1, -2)) - 1
    return torch.from_numpy(np.exp(weights) / np.exp(weights).sum(-1, keepdims=True) @ v.numpy())


@pytest.mark.parametrize("kernel", [opaque, functional.scaled_dot_product_attention])
@pytest.mark.parametrize("takes", [3, 1])
def test_an_operator_with_an_odd_name_is_named_beside_attention(kernel, takes: int) -> None:
    """By a softmax below it, or by queries, keys and values; one that has neither is passed over."""
    with torch.library._scoped_library("odd_operators", "DEF") as library:
        arguments = ", ".join(f"Tensor {name}" for name in "qkv"[:takes])
        library.define(f"mixer({arguments}) -> Tensor")
        key = "CPU" if kernel is opaque else "CompositeImplicitAutograd"  # a kernel, or other operators put together
        library.impl("mixer", kernel if takes == 3 else lambda q: kernel(q, q, q), key)

        class Custom(Plain):
            def forward(self, x):
                return torch.ops.odd_operators.mixer(*list(map(self.split, self.projected(x)))[:takes])

        model = Beside(built(Custom)).eval()
        with (
            warnings.catch_warnings(record=True, action="always") as caught,
            torch.no_grad(),
            attnctl.capture(model) as traces,
        ):
            model(texts())
    assert [call.name for call in traces] == ["attend"]
    is_told = takes == 3 or kernel is not opaque
    assert ["odd_operators.mixer in part" in str(one.message) for one in caught] == [True] * is_told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_in_torchscript_is_read() -> None:
    scripted = torch.jit.script(scripted_softmax)

    class Scripted(Plain):
        def forward(self, x):
            q, k, v = self.projected(x)
            self.expect(q, k, scale=0.5)
            return self.joined(scripted(*map(self.split, (q, k, v))))

    model = Beside(built(Scripted)).eval()
    for _ in range(3):  # TorchScript optimises a function when it has run
        with attnctl.capture(model) as traces:
            model(texts())
        assert [call.name for call in traces] == ["part", "attend"] and not traces.unseen
        assert (traces[0].weights - model.part.expected[-1]).abs().max() < 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fused_kernel_in_torchscript_is_named() -> None:
    scripted = torch.jit.script(scripted_fused)

    class Scripted(Plain):
        def forward(self, x):
            return self.joined(scripted(*map(self.split, self.projected(x))))

    model = Beside(built(Scripted)).eval()
    with pytest.warns(UserWarning, match="_scaled_dot_product_.* in part"), attnctl.capture(model) as traces:
        model(texts())
    assert [call.name for call in traces] == ["attend"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_in_torchscript_is_read() -> None:
    class Scripted(nn.Module):
        def forward(self, x):
            return torch.softmax(x @ x.transpose(-2, -1), -1) @ x

    traced, x = torch.jit.trace(Scripted(), texts()), texts()
    for model, names in ((nn.Sequential(nn.Linear(D, D), traced), ["1"]), (traced, [""])):
        with attnctl.capture(model) as traces:
            model(x)
        assert [call.name for call in traces] == names and not traces.unseen
    assert (traces[0].weights[:, 0] - (x @ x.mT).double().softmax(-1)).abs().max() < 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_of_jit_script_takes_no_hooks() -> None:
    model = torch.jit.script(OneHead())
    with pytest.raises(attnctl.AttnctlError, match=r"OneHead was put into TorchScript by torch\.jit\.script"):
        attnctl.capture(model).__enter__()
    holder = nn.Sequential(model)
    with attnctl.capture(holder) as traces:
        holder(x := texts())
    assert (traces[0].weights[:, 0] - (x @ x.mT).double().softmax(-1)).abs().max() < 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_error_in_torchscript_is_attnctls_own() -> None:
    """TorchScript turns what is raised inside it into a RuntimeError."""
    model = nn.Sequential(torch.jit.trace(OneHead(), texts()), OneHead())
    with attnctl.capture(model, layer=0, stop=True) as traces:
        model(texts())
    assert [call.name for call in traces] == ["0"]
    with pytest.raises(UsageError, match="head=5"), attnctl.capture(model, head=5):
        model(texts())
    with (
        pytest.raises(attnctl.AttnctlError, match="in TorchScript, where gradients"),
        attnctl.capture(model, grad=True),
    ):
        model(texts())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_named_before_torch_refuses_it() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 8, batch_first=True), 1).eval()
    with (
        pytest.raises(attnctl.AttnctlError, match=r"layers\.0\.self_attn attends to a nested tensor"),
        attnctl.capture(model),
    ):
        model(torch.nested.nested_tensor([torch.randn(2, D), torch.randn(3, D)]))


def test_a_forward_in_another_thread_is_named() -> None:
    model = built(Plain)
    with pytest.raises(attnctl.AttnctlError, match="other threads"), attnctl.capture(model):
        thread = Thread(target=model, args=(texts(),))
        thread.start()
        thread.join()


class InThread(Plain):
    """A model that lets a thread attend, after it has attended itself."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        y = super().forward(x)
        with ThreadPoolExecutor(1) as pool:
            return y + pool.submit(self.function, x, x, x).result()


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (attend, r"attend \(test_no_attention\.py:\d+\) called softmax in a thread of its own"),
        (functional.scaled_dot_product_attention, "called scaled_dot_product_attention in a thread"),
        (lambda q, k, v: q + k + v, ""),
    ],
)
def test_a_function_in_a_new_thread_is_named(function, named: str) -> None:
    """Beside attention that was seen; the profiler of threads is as it was before."""
    model = InThread(function).eval()
    with warnings.catch_warnings(record=True, action="always") as caught, attnctl.capture(model) as traces:
        model(texts())
    assert len(traces) == 1 and threading.getprofile() is None
    assert bool(traces.unseen) == bool(named) == bool(caught) and re.search(named, traces.unseen)


def test_a_module_in_another_thread_is_named() -> None:
    model = InThread(None).eval()
    model.function = nn.TransformerEncoderLayer(D, 2, 8, batch_first=True).eval()
    model.function.forward = lambda *_, plain=model.function.forward: plain(texts())
    with pytest.warns(UserWarning, match="function ran in other threads"), attnctl.capture(model) as traces:
        model(texts())
    assert len(traces) == 1 and "softmax" not in traces.unseen


def test_each_thread_with_a_context_records_its_own_forwards() -> None:
    model, unseen = built(Plain), []

    def run() -> None:
        with attnctl.capture(model) as traces:
            model(texts())
        unseen.append((len(traces), traces.unseen))

    with attnctl.capture(model) as traces:
        model(texts())
        thread = Thread(target=run)
        thread.start()
        thread.join()
    assert (len(traces), traces.unseen) == (1, "") and unseen == [(1, "")]


def test_parts_of_the_keys_with_a_softmax_each_are_named() -> None:
    """Their results are merged later, as in ring attention."""

    class Parts(Plain):
        def forward(self, x):
            q, k, v = map(self.split, self.projected(x))
            pairs = zip(k.split(3, 2), v.split(3, 2), strict=True)
            parts = [((q @ keys.mT).softmax(-1) @ values, (q @ keys.mT).logsumexp(-1)) for keys, values in pairs]
            shares = torch.stack([total for _, total in parts], -1).softmax(-1)
            return self.joined(sum(part * shares[..., i : i + 1] for i, (part, _) in enumerate(parts)))

    model = built(Parts)
    with pytest.warns(UserWarning, match="several parts of the keys"), attnctl.capture(model):
        model(texts())


def test_weights_that_are_inverted_are_not_shown_beside_those_that_meet_values() -> None:
    model = built(Nystroem)
    model.values_first = True
    with pytest.warns(UserWarning, match="another softmax") as warned, attnctl.capture(model) as traces:
        model(texts())
    assert (len(warned), traces.unseen.count("its ")) == (1, 1)
    (call,) = traces
    assert (call.weights - model.expected[0]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "model", [OneHead(), nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 8, batch_first=True), 1)]
)
@pytest.mark.parametrize("shape", [(1, 0, D), (0, 4, D)])
def test_a_forward_over_nothing_is_an_error(model: nn.Module, shape: tuple[int, ...]) -> None:
    model.eval()
    with pytest.raises(attnctl.AttnctlError, match="ran over zero tokens"), attnctl.capture(model):
        model(torch.randn(shape))
    with pytest.warns(UserWarning, match="forward 1 ran over zero tokens"), attnctl.capture(model) as traces:
        model(torch.randn(1, 4, D))
        model(torch.randn(shape))
    assert len(traces) == 1


def test_a_context_without_a_forward_is_no_error() -> None:
    with attnctl.capture(built(Plain)) as traces:
        pass
    assert traces == []
