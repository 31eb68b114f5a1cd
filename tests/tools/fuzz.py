"""`python -m tests.tools.fuzz --minutes 10`: the command line fed with damaged files, odd options and hostile text, until it breaks.

A command may end in 0 to 3, with at most a few lines on stderr; a traceback, a warning, a control character that gets
through, a hang or a process that dies is a find. Finds are kept in tests/tools/fuzz_finds.jsonl, which a test plays again.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import typer.main

from tests.tools import read_back

FINDS = Path(__file__).with_name("fuzz_finds.jsonl")
SECONDS = 90  # of processor time: a command that takes more hangs
MEMORY = 6 << 30  # bytes of address space
CASES = 400  # that one process plays
STEERING = {
    *map(chr, (*range(9), *range(11, 32), *range(127, 160))),
    *"\u200e\u200f\u202a\u202b\u202d\u202e\u2028\u2066",
}

NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "1e308",
    "nan",
    "-inf",
    str(2**63),
    str(10**23),
    "",
    "٣",
    "0.5",
    "9" * 5000,
    "1:2",
    "0-5",
)
OUTPUTS = ("out.png", "out.json", "out.svg", "out", "out.html", "out.npz", "out.gif", "out.csv", "out.pdf", "out.txt", "out.jsonl",
           ".", "in.txt", "t.json", "none/out.png", "/dev/full", "/dev/null", "-")  # fmt: skip
FORMATS = ("statistics", "effects", "sources", "parquet", "npz", "json,png", "csv")
WORDS = ("all", "first", "words", "chars", "demo", "random", "dot", "lines", "mean", "max", "rollout", "value-norm", "entropy",
         "weights", "scores,weights", "json", "contributions", "matrices", "paragraphs", "edge", "0:1", "1.0", "masked-word", "Alice", "-", "6x4", "viridis", "cpu", "sinusoidal", "local")  # fmt: skip
TEXTS = ("Alice will eat pizza", "a", "", " ", "\x1b]0;x\x07", "\u202eabc", "\udcff", "x" * 3000, "Zebras [MASK] ____", "日本 🍕\u200d",
         "line\n\nline\r\n# head\n", "=1+1 @x -y", "word " * 600, "{{data}} $x^$ <b>", "a\0b")  # fmt: skip

# a case: the arguments, the files beside them and standard input
Case = dict[str, Any]


def samples() -> dict[str, bytes]:
    """Sound files of every kind, to be damaged."""
    from safetensors.numpy import save

    import attnctl
    from attnctl.formats.storage import write_trace_npz
    from attnctl.models.builtin.weights import path_of

    trace: Any = attnctl.attend("Alice will eat", "random", causal=True, n_heads=2)
    npz, npy = io.BytesIO(), io.BytesIO()
    write_trace_npz(trace, npz)
    np.save(npy, np.eye(3, dtype=np.float32))
    small = {name: np.ones((1, 8, 4), np.float32) for name in ("W_Q", "W_K", "W_V")}
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model}
    return read_back.made_files() | {
        "t.json": trace.to_json().encode(),
        "t.npz": npz.getvalue(),
        "w.npy": npy.getvalue(),
        "w.csv": b",Alice,will\nAlice,1,0\nwill,.5,.5\n",
        "m.safetensors": save(small, {"n_heads": "1", "scale": "0.5"}),
        "demo.safetensors": path_of("demo").read_bytes(),
        "tok.json": json.dumps(tokenizer).encode(),
        "s.csv": b"name,start,end\na,0,5\nb,6,9\n",
        "in.txt": b"Alice will eat\nBob likes tea\n",
        "in.csv": b"id,text\n1,Alice will eat\n2,Bob\n",
        "in.jsonl": b'{"text": "Alice", "id": 1, "options": {"seed": 2}}\n"Bob likes tea"\n',
    }


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes cut, overwritten, doubled or with numbers exchanged."""
    out = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 8))):
        at = rng.randrange(len(out) + 1) if out else 0
        match rng.randrange(6):
            case 0:
                del out[at:]
            case 1:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                out[at:at] = out[at : at + rng.randrange(1, 64)]
            case 3:
                del out[at : at + rng.randrange(1, 16)]
            case 4:
                out[at:at] = rng.choice(
                    (b"\xff", b"\0" * 8, b"-1", b"1e999", b"null", b"[[[[", b"\r", b"\xed\xa0\x80", b"9" * 30)
                )
            case _:
                out[at : at + 8] = rng.randbytes(8)
    return bytes(out)


def case_of(rng: random.Random, commands: dict[str, list[Any]], files: dict[str, bytes]) -> Case:
    """A command with a few of its arguments and options set to anything."""
    if rng.random() < 0.3:
        file = rng.choice([file for file in read_back.READERS if file in files])
        return _reading_case(rng, commands, files, file)
    name = rng.choice(list(commands))
    known = commands[name]
    arguments: list[str] = []
    for parameter in known:
        if parameter.param_type_name == "argument" and (parameter.required or rng.random() < 0.7):
            arguments.append(value_of(rng, files))
    arguments += _options(rng, known, files)
    if name == "train":
        arguments += ["--max-steps=1", "--batch-size=2"]
    if name == "evaluate":
        arguments += ["--sentences=20"]
    if name == "view":
        arguments += ["--no-open"]
    stdin = damaged(rng, rng.choice(list(files.values()))) if "-" in arguments else b""
    if name == "shell":
        lines = [case_of(rng, commands, files)["arguments"] for _ in range(3)]
        stdin = "\n".join(" ".join(line) for line in lines if line[0] != "shell").encode(errors="surrogateescape")
    return _case(rng, [name, *arguments], files, stdin)


def _options(rng: random.Random, known: list[Any], files: dict[str, bytes]) -> list[str]:
    """A few options of a command, set to anything."""
    arguments = []
    options = [parameter for parameter in known if parameter.param_type_name == "option" and parameter.name != "help"]
    for parameter in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 3, 5)))):
        flag = rng.choice([*parameter.opts, *parameter.secondary_opts])
        value = rng.choice({"format": FORMATS, "output": OUTPUTS}.get(parameter.name, (value_of(rng, files),)))
        arguments += [flag] if parameter.is_flag else [f"{parameter.opts[-1]}={value}"]
    return arguments


def _reading_case(rng: random.Random, commands: dict[str, list[Any]], files: dict[str, bytes], file: str) -> Case:
    """A command that reads a file which attnctl wrote, with a few options more."""
    arguments = rng.choice(read_back.READERS[file])
    return _case(rng, [*arguments, *_options(rng, commands[arguments[0]], files)], files, b"", file.partition("/")[0])


def _case(
    rng: random.Random, arguments: list[str], files: dict[str, bytes], stdin: bytes, folder: str | None = None
) -> Case:
    """The case, with the files that its arguments name, and those of `folder`; of a folder few are damaged."""
    tops = {part: part.partition("/")[0] for part in files}
    named = [part for part, top in tops.items() if top == folder or any(top in argument for argument in arguments)]
    worse = {part for part in named if "/" not in part or rng.random() < 0.2}
    used = {part: damaged(rng, files[part]) if part in worse else files[part] for part in named}
    return {
        "arguments": arguments,
        "files": {part: base64.b64encode(data).decode() for part, data in used.items()},
        "stdin": base64.b64encode(stdin).decode(),
    }


def value_of(rng: random.Random, files: dict[str, bytes]) -> str:
    """Return a value for any option or argument."""
    tops = tuple(dict.fromkeys(part.partition("/")[0] for part in files))
    return rng.choice(rng.choice((NUMBERS, WORDS, TEXTS, tops, tuple(files), OUTPUTS)))


def played(case: Case) -> str | None:
    """What is wrong with how a case ends, or None: run in a process of its own, in a fresh folder, within limits."""
    worker = Worker()
    try:
        return worker.play(case)
    finally:
        worker.end()


class Worker:
    """A process that plays cases one after another, so that what they import is imported once.

    A case that ends it, or takes longer than SECONDS of processor time, is a find; the next one has a new process.
    """

    def __init__(self) -> None:
        self._process: Any = None
        self._played = 0

    def play(self, case: Case) -> str | None:
        """Return what is wrong with how a case ends, or None."""
        if self._played >= CASES:
            self.end()
        if self._process is None:
            self._begin()
        self._played += 1
        self._pipe.send(case)
        if not self._pipe.poll(10 * SECONDS):
            self._process.kill()
            self.end()
            return "it hangs"
        try:
            answer: str | None = self._pipe.recv()
        except EOFError:
            code = self.end()
            return f"it died of signal {-code}" if code < 0 else "it ended the process"
        return answer

    def end(self) -> int:
        """End the process, if it runs; return its exit code."""
        if self._process is None:
            return 0
        self._pipe.close()
        self._process.join()
        code: int = self._process.exitcode
        self._process, self._played = None, 0
        return code

    def _begin(self) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_work, args=(self._pipe, theirs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: what is played first has none yet
            self._process.start()
        theirs.close()


def _work(parents: Connection, pipe: Connection) -> None:
    """Play what comes in until no more does, each case in a folder of its own."""
    parents.close()  # else no end of it is ever seen
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    before = dict(os.environ)
    if "torch" in sys.modules:  # which waits for ever for the threads that its parent had made
        sys.modules["torch"].set_num_threads(1)
    with contextlib.suppress(EOFError):
        while True:
            case = pipe.recv()
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                # defaults of one's own, and the lines of a shell, are files like any other: never those of whoever runs this
                os.environ |= dict.fromkeys(("XDG_CONFIG_HOME", "XDG_STATE_HOME"), folder)
                for name, data in case["files"].items():
                    Path(name).parent.mkdir(parents=True, exist_ok=True)
                    Path(name).write_bytes(base64.b64decode(data))
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # whose signal ends the process
                found = _in_process(case["arguments"], base64.b64decode(case["stdin"]))
                signal.setitimer(signal.ITIMER_PROF, 0)
                os.chdir("/")
            os.environ.clear()
            os.environ.update(before)
            pipe.send(found and found.encode(errors="backslashreplace").decode())


def _in_process(arguments: list[str], stdin: bytes) -> str | None:
    import webbrowser

    from attnctl.cli.app import run_command_line

    webbrowser.open = lambda *_, **__: True  # type: ignore[assignment]
    sys.argv = ["attnctl", *arguments]
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    given: Any = io.BufferedReader(io.BytesIO(stdin))  # type: ignore[arg-type]
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(given, "utf-8"), out, err
    try:
        run_command_line()
    except SystemExit as end:
        code = end.code
    except BaseException:
        return traceback.format_exc(limit=-4)
    out.flush()
    err.flush()
    said = [stream.buffer.getvalue().decode(errors="replace") for stream in (out, err)]  # type: ignore[attr-defined]
    if code not in (0, 1, 2, 3):
        return f"exit code {code}: {said[1][:500]}"
    for text in said:
        if found := STEERING & set(text):
            return f"control characters {ascii(found)} in {ascii(text[:300])}"
    if "Traceback" in said[1] or "Warning" in said[1] or "a bug in attnctl" in said[1]:
        return said[1][:1000]
    return None


def commands_of() -> dict[str, list[Any]]:
    """The parameters of every command, from Typer's own lists."""
    from attnctl.cli.app import app
    from attnctl.registry import COMMANDS

    group: Any = typer.main.get_command(app)
    return {name: group.get_command(None, name).params for name in COMMANDS}


def kept() -> Iterator[Case]:
    """The finds of before."""
    for line in FINDS.read_text(encoding="utf-8").splitlines() if FINDS.exists() else []:
        yield json.loads(line)


def random_cases(seed: int) -> Iterator[Case]:
    """Yield cases without end, the same for the same seed."""
    rng, files, commands = random.Random(seed), samples(), commands_of()
    while True:
        yield case_of(rng, commands, files)


def play_cases(cases: Iterable[Case], report: Callable[[Case, str], None]) -> int:
    """Play cases, and call `report` with each find; return how many were played."""
    count, worker = 0, Worker()
    try:
        for case in cases:
            count += 1
            if worker.play(case) is not None and (found := played(case)) is not None:  # by itself too
                report(case, found)
    finally:
        worker.end()
    return count


def main() -> None:
    """Fuzz for some minutes, tell each find once, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = random.randrange(2**32) if given.seed is None else given.seed
    seen: set[str] = set()

    def report(case: Case, found: str) -> None:
        key = found.strip().splitlines()[-1][:80]
        if key in seen:
            return
        seen.add(key)
        print(f"--- {'again: ' * ('found' in case)}attnctl {ascii(case['arguments'])}\n{found}", flush=True)
        if "found" not in case:
            with FINDS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(case | {"found": key}) + "\n")

    end = time.monotonic() + 60 * given.minutes
    new = itertools.takewhile(lambda _: time.monotonic() < end, random_cases(seed))
    count = play_cases(itertools.chain(list(kept()), new), report)
    print(f"seed {seed}: {count} cases, {len(seen)} finds")
    sys.exit(1 if seen else 0)


if __name__ == "__main__":
    main()
