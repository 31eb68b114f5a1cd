"""Arrays between libraries and devices."""

from __future__ import annotations

import pytest
import torch

from attnctl.runtime.arrays import one_thread


@pytest.mark.parametrize(("needed", "inside"), [(True, 1), (False, 2)])
def test_threads_are_as_before_also_after_an_error(needed: bool, inside: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="wrong"), one_thread(needed):
            assert torch.get_num_threads() == inside
            raise ValueError("wrong")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
