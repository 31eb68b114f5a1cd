"""What looks like attention and is none, and what is attention and cannot be shown: never silently."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import attnctl
from tests.models.torch.no_attention import NAMED, SILENT
from tests.models.torch.test_written_by_hand import built, texts
from tests.models.torch.written_by_hand import D, Plain


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_script_module_is_named() -> None:
    class Scripted(nn.Module):
        def forward(self, x):
            return torch.softmax(x @ x.transpose(-2, -1), -1) @ x

    model = nn.Sequential(nn.Linear(D, D), torch.jit.trace(Scripted(), texts()))
    with pytest.raises(attnctl.AttnctlError, match="TorchScript"), attnctl.capture(model):
        model(texts())


def test_a_forward_in_another_thread_is_named() -> None:
    from threading import Thread

    model = built(Plain)
    with pytest.raises(attnctl.AttnctlError, match="other threads"), attnctl.capture(model):
        thread = Thread(target=model, args=(texts(),))
        thread.start()
        thread.join()


def test_a_context_without_a_forward_is_no_error() -> None:
    with attnctl.capture(built(Plain)) as traces:
        pass
    assert traces == []
