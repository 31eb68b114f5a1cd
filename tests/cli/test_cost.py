"""What long work will cost is told before it begins."""

from __future__ import annotations

import pytest

from attnctl import limits
from attnctl.cli import cost
from attnctl.cli.cost import cost_of_passes
from attnctl.errors import AttnctlError
from attnctl.trace.model_info import ModelInfo
from tests.conftest import Run

TEXT = "Alice will eat pizza"
DEMO = ModelInfo("demo", "demo", n_layers=2, n_heads=6, causal=False)


def test_a_sweep_says_its_passes_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost.os, "cpu_count", lambda: 2)
    assert cost_of_passes(DEMO, 500, 12, cuts=False) is None
    told = str(cost_of_passes(DEMO, 20_000, 12, cuts=False))
    assert "12 passes over 20,000 tokens: about 2 min on the CPU (fewer layers or heads take less" in told
    monkeypatch.setattr(limits, "free_memory", lambda: 16e9)
    told = str(cost_of_passes(DEMO, 20_000, 20_000, cuts=True))
    assert "20,000 passes over 20,000 tokens: about 67 h and 4.8 GB on" in told
    monkeypatch.setattr(limits, "free_memory", lambda: 1e9)
    with pytest.raises(AttnctlError, match=r"cutting edges of 20,000 tokens needs 4.8 GB of memory"):
        cost_of_passes(DEMO, 20_000, 1, cuts=True)
    # the rest of the network is counted: 47 parts were told to take 2 minutes of SmolLM2-135M, and took ten
    info = ModelInfo("smollm2", "checkpoint", d_model=576, n_layers=30, n_heads=9, causal=True)
    told = str(cost_of_passes(info, 2_597, 47, cuts=True, fewer="longer parts take fewer"))
    assert "47 passes over 2,597 tokens: about 8 min and 81 MB on the CPU (longer parts" in told


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("ablate", TEXT), "12 passes over 4 tokens"),
        (("ablate", TEXT, "--layer", "1", "--head", "0-2"), "3 passes over 4 tokens"),
        (("ablate", TEXT, "--edges"), "4 passes over 4 tokens"),
        (("view", TEXT, "-o", "-"), "12 heads over 4 tokens"),
    ],
)
def test_commands_say_it_before_they_begin(
    run: Run, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr(cost, "TOLD_SECONDS", 0.0)
    monkeypatch.setattr(limits, "PAGE_WEIGHTS", 1)
    result = run(*asked)
    assert result.code == 0 and said in result.err
