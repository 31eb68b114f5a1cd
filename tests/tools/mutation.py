"""Which changes of the program its tests notice: `python -m tests.tools.mutation [FOLDER …] [--each 40] [--seed 0]`.

A sample of small changes (Cosmic Ray's operators: + for -, < for <=, a number one larger, `not` gone), drawn by the seed, is
made one by one in a copy of the repository. The tests that run the changed line, as a recording of the whole suite says, are
run against it, the quickest first. Printed are the changes that no test noticed, and for each folder the share of those noticed.
`mutation_same.txt` holds changes that were read and found to change no answer: they are left out.
Needs `pip install cosmic-ray pytest-cov`. The recording takes as long as two runs of the tests (--tests names fewer);
`--recorded FOLDER` keeps it there, and takes it from there while the package and its tests stand as they stood.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAME = Path(__file__).with_name(
    "mutation_same.txt"
)  # a line each: file | the line as it is changed | why no answer changes
# what is changed, and the share of changes that tests are to notice
WANTED = {
    "attnctl/attention.py": 0.95,
    "attnctl/blockwise": 0.95,
    "attnctl/layer": 0.95,
    "attnctl/measures": 0.95,
    "attnctl/readings": 0.85,
    "attnctl/formats": 0.85,
    "attnctl/cli/command.py": 0.85,
    "attnctl/cli/defaults.py": 0.85,
}
OPERATORS = [
    *(
        "AddNot",
        "NumberReplacer",
        "ReplaceAndWithOr",
        "ReplaceOrWithAnd",
        "ReplaceTrueWithFalse",
        "ReplaceFalseWithTrue",
    ),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ExceptionReplacer"),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Invert"),
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv")
    ),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Pow_Mul", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitAnd")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_GtE", "Gt_LtE", "Is_IsNot", "IsNot_Is")),
]
LIBRARIES = ("torch", "matplotlib.figure", "rich.console", "typer")  # imported once for all changes
# how much is worked on at a time, or kept for another question: no answer depends on it
WORK_SIZES = {"KEYS", "ELEMENTS", "ROWS", "TILE", "MOST_BYTES", "step"}
SECONDS = 60.0  # of tests, by the recording, that are run against one change
LIMIT = 200  # seconds after which a change counts as noticed: it made a loop that does not end


@dataclass(frozen=True)
class Change:
    """One change of one file: the operator, which of its places in the file, and the lines of the statement there."""

    path: str
    operator: str
    occurrence: int
    lines: range


@dataclass
class Recording:
    """Which tests run each line, and how long each test takes."""

    tests: dict[str, dict[int, set[str]]]  # path → line → tests
    seconds: dict[str, float]
    sound: set[str] = field(default_factory=set)  # seen to pass where nothing is changed
    unsound: set[str] = field(default_factory=set)  # seen to fail there: they notice nothing

    def tests_of(self, change: Change) -> list[str]:
        """The tests that run a change's statement, quickest first, up to SECONDS; of what is run by an import those of its file."""
        lines = self.tests.get(change.path, {})
        found = set().union(*(lines.get(line, set()) for line in change.lines)) - {""}
        found = {test for test in found or set().union(*lines.values()) if test.isprintable()} - {""} - self.unsound
        chosen, total = [], 0.0
        for test in sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test)):
            total += self.seconds.get(test, 0.0)
            if total > SECONDS:
                break
            chosen.append(test)
        return chosen


def copy_of_repository(folder: Path) -> Path:
    """The files of the repository as they stand here, in a new folder."""
    copy = folder / "copy"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def record(copy: Path, kept: Path, tests: Sequence[str]) -> Recording:
    """Run the tests (none: all) once in the copy, with what each runs written down; `kept` holds it afterwards."""
    data, times = kept / "coverage", kept / "times.txt"
    if not data.exists() or not times.exists():
        kept.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "auto",
            "-p",
            "no:cacheprovider",
            "--durations=0",
            "--durations-min=0",
        ]
        told = subprocess.run(
            [*command, "--cov=attnctl", "--cov-context=test", "--cov-report=", *tests],
            cwd=copy, env=_environment(copy) | {"COVERAGE_FILE": str(data)}, capture_output=True, text=True,
        )  # fmt: skip
        if told.returncode not in (0, 1):
            sys.exit(told.stdout[-2000:] + told.stderr[-2000:])
        times.write_text(told.stdout)
    from coverage import CoverageData

    read = CoverageData(str(data))
    read.read()
    found: dict[str, dict[int, set[str]]] = {}
    for file in read.measured_files():
        if "/attnctl/" in file:
            path = "attnctl/" + file.rpartition("/attnctl/")[2]
            lines = read.contexts_by_lineno(file).items()
            found[path] = {line: {context.rpartition("|")[0] for context in contexts} for line, contexts in lines}
    seconds: Counter[str] = Counter()
    for amount, test in re.findall(r"^([\d.]+)s (?:call|setup|teardown)\s+(.*?)\s*$", times.read_text(), re.MULTILINE):
        seconds[test] += float(amount)
    return Recording(found, dict(seconds))


def changes_of(copy: Path, path: str) -> Iterator[Change]:
    """Every change of a file: but for annotations, decorators, imports of types, `strict` of zip, and sizes of work."""
    from cosmic_ray.ast import Visitor, get_ast
    from cosmic_ray.plugins import get_operator

    source = (copy / path).read_text(encoding="utf-8")
    tree, passed_over, statements = ast.parse(source), [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            statements.append(node)
        elif isinstance(node, ast.stmt):
            statements.append(ast.Pass(lineno=node.lineno, end_lineno=max(node.lineno, node.body[0].lineno - 1)))
        passed_over += [
            getattr(node, name) for name in ("annotation", "returns") if getattr(node, name, None) is not None
        ]
        passed_over += getattr(node, "decorator_list", [])
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            passed_over.append(node)
        if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip, which checks lengths that are alike
            passed_over.append(node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in WORK_SIZES:
            passed_over.append(node)

    class Places(Visitor):
        def visit(self, node: object) -> object:
            for start, _ in operator.mutation_positions(node):
                places.append(start)
            return node

    for name in OPERATORS:
        operator, places = get_operator(f"core/{name}")(), []
        Places().walk(get_ast(source))
        for occurrence, (line, column) in enumerate(places):
            if any(_holds(node, line, column) for node in passed_over):
                continue
            inner = [node for node in statements if node.lineno <= line <= (node.end_lineno or line)]
            smallest = min(inner, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)
            lines = range(smallest.lineno, (smallest.end_lineno or line) + 1) if smallest else range(line, line + 1)
            yield Change(path, name, occurrence, lines)


def _holds(node: ast.AST, line: int, column: int) -> bool:
    start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)  # type: ignore[attr-defined]
    return start <= (line, column) <= end


def made(copy: Path, change: Change) -> tuple[str, str, str]:
    """A file as it is, as it is changed, and the difference of lines."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    sound = (copy / change.path).read_text(encoding="utf-8")
    changed = mutate_code(sound, get_operator(f"core/{change.operator}")(), change.occurrence)
    assert changed is not None and changed != sound, change
    lines = difflib.unified_diff(sound.splitlines(), changed.splitlines(), change.path, lineterm="", n=1)
    return sound, changed, "\n".join(lines)


def is_same(difference: str, known: set[tuple[str, str]]) -> bool:
    """Whether the lines of a difference are in SAME."""
    path, *lines = difference.splitlines()
    return all((path[4:], line[1:].strip()) in known for line in lines if line[0] == "+" and line[:3] != "+++")


def noticed(copy: Path, change: Change, recording: Recording) -> str | None:
    """None where a test notices a change, else the change as a difference of lines."""
    file = copy / change.path
    sound, changed, difference = made(copy, change)
    while tests := recording.tests_of(change):
        file.write_text(changed, encoding="utf-8")
        try:
            failed = first_failure(copy, tests)
        finally:
            file.write_text(sound, encoding="utf-8")
        if failed is None:
            break
        if not failed:
            assert first_failure(copy, ["--collect-only", *tests]) is None, change
            return None
        if failed in recording.sound or first_failure(copy, [failed]) is None:
            recording.sound.add(failed)
            return None
        recording.unsound.add(failed)  # it fails whatever is changed
    return f"{difference}\n  {len(tests)} tests"


class FirstFailure:
    """A plugin of pytest that writes down which test fails, wherever that test stands."""

    def __init__(self, copy: Path) -> None:
        self.file = copy / ".failed"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.file.write_text(report.nodeid, encoding="utf-8")


def first_failure(copy: Path, tests: Sequence[str]) -> str | None:
    """The first of these tests that fails in the copy, "" where they cannot start or do not end; None where all pass.

    They run in a fork of this process, which has the libraries imported already: that is most of a short test's time.
    """
    (copy / ".failed").write_text("", encoding="utf-8")
    process = get_context("fork").Process(target=_run_tests, args=(copy, tests))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    return None if process.exitcode == 0 else (copy / ".failed").read_text(encoding="utf-8")


def _run_tests(copy: Path, tests: Sequence[str]) -> None:
    os.setsid()
    os.chdir(copy)
    os.environ.update(_environment(copy))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    sys.dont_write_bytecode = True
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("attnctl", "tests")]:
        del sys.modules[name]
    sys.exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests], plugins=[FirstFailure(copy)]))


def _environment(copy: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def main() -> None:
    """Draw the changes, run the tests against each, and print what they did not notice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=list(WANTED), metavar="FOLDER")
    parser.add_argument("--each", type=int, default=40, help="changes of a folder (40)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="*", default=[], metavar="PATH", help="tests that may notice them (all)")
    parser.add_argument("--recorded", type=Path, help="a folder that keeps the recording")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        copy = copy_of_repository(Path(temporary))
        files = sorted(str(path.relative_to(copy)) for path in copy.rglob("*.py"))
        digest = hashlib.sha256(b"".join((copy / name).read_bytes() for name in files) + str(given.tests).encode())
        recording = record(copy, (given.recorded or Path(temporary)) / digest.hexdigest()[:12], given.tests)
        os.environ.update(_environment(copy))
        for library in LIBRARIES:
            import_module(library)
        rows = (line.split(" | ") for line in SAME.read_text(encoding="utf-8").splitlines())
        known = {(path, line) for path, line, _ in rows}
        table = []
        for folder in given.folders:
            paths = [name for name in files if name == folder or name.startswith(f"{folder}/")]
            every = [change for path in paths for change in changes_of(copy, path)]
            drawn = random.Random(f"{given.seed} {folder}").sample(every, min(given.each, len(every)))
            asked = [change for change in drawn if not is_same(made(copy, change)[2], known)]
            left = 0
            for change in asked:
                if (lines := noticed(copy, change, recording)) is not None:
                    left += 1
                    print(lines, flush=True)
            share = 1 - left / len(asked)
            wanted = f", wanted {WANTED[folder]:.0%}" if folder in WANTED else ""
            table.append(
                f"{folder}: {len(asked) - left} of {len(asked)} changes noticed, {share:.0%}{wanted}; {len(drawn) - len(asked)} "
                f"left out that change no answer ({len(every):,} possible)"
            )
            print(table[-1], flush=True)
        print("\n" + "\n".join(table))


if __name__ == "__main__":
    main()
