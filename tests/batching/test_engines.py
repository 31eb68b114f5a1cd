"""Several processes at one piece of work, left in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from attnctl.batching.items import Item, Result

LARGE = 50_000_000  # bytes of a result: longer to hand over than its worker lives


class Large:
    """What is asked for: results that take a while to be handed over."""

    def task(self, model: object) -> Large:
        return self

    def begin(self, item: Item) -> Result:
        return Result(item, {"json": bytes(LARGE)})


LEFT_IN_THE_MIDDLE = """
from attnctl.batching.engines import run_in_processes
from attnctl.batching.items import Item, Result
from tests.batching.test_engines import Large
if __name__ == "__main__":
    results = run_in_processes(Large(), ([Item(number, "")] for number in range(99)), 2)
    print(len(next(results)))
    results.close()
"""


def test_processes_that_end_while_they_hand_a_result_over_are_not_waited_for(tmp_path: Path) -> None:
    """One Ctrl-C in four of `batch --jobs 2` never came to an end."""
    (tmp_path / "left.py").write_text(f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n{LEFT_IN_THE_MIDDLE}")
    done = subprocess.run(
        [sys.executable, tmp_path / "left.py"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
