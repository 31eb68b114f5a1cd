"""The memory of long work is checked before it begins."""

from __future__ import annotations

import pytest

from attnctl.checks import limits
from attnctl.cli.cost import check_memory_of_cuts
from attnctl.errors import AttnctlError


def test_cut_edges_need_a_mask_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: 16e9)
    check_memory_of_cuts(20_000)
    monkeypatch.setattr(limits, "free_memory", lambda: 1e9)
    with pytest.raises(AttnctlError, match=r"cutting edges of 20,000 tokens needs 4.8 GB of memory"):
        check_memory_of_cuts(20_000)
