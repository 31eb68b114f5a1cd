"""Several processes at one piece of work, left in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from attnctl.batching.items import Item
from attnctl.batching.work import Result

LARGE = 50_000_000  # bytes of a result: longer to hand over than its worker lives


class Writer:
    """Hands over results that take a while."""

    def __init__(self, work: object, model: object = None) -> None:
        pass

    def chunk_results(self, items: list[Item]) -> list[Result]:
        return [Result(item, {"json": bytes(LARGE)}) for item in items]


LEFT_IN_THE_MIDDLE = """
from attnctl.batching.engines import run_in_processes
from attnctl.batching.items import Item
from tests.batching.test_engines import Writer
if __name__ == "__main__":
    results = run_in_processes(None, ([Item(number, "")] for number in range(99)), 2, Writer)
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
