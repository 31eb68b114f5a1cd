"""Every kind of file that attnctl reads back itself, made once, and each way that one may be damaged.

`python -m tests.tools.read_back` damages each file in every way and runs the commands that read it; a test does a part of it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import copy
import gzip
import io
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

TEXT = "Alice will eat pizza\n\nBob likes tea"
SMALL = ["--model", "random", "--layers", "2", "--heads", "2", "--d-model", "8"]
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "A cat sat.\n\nA dog ran. Who sat?"}]
GONE = object()  # in place of a value: its key is removed
SETTINGS = '# mine\nmodel = "random"\nseed = 3\n\n[heatmap]\ncmap = "magma"\n'

# what makes the files, in a folder of its own
MADE_BY = (
    ["explain", TEXT, *SMALL, "-o", "t.json"],
    ["explain", TEXT, *SMALL, "--causal", "--head", "0", "--layer", "1", "-o", "t.npz"],
    ["explain", "--file", "long.txt", *SMALL, "--head", "0", "--top", "2", "-o", "links.json"],
    ["heatmap", "--file", "long.txt", *SMALL, "--layer", "0", "-o", "grid.json"],
    ["batch", "in.txt", *SMALL, "--format", "json,npz", "--jobs", "1", "-o", "out"],
    ["batch", "in.txt", *SMALL, "--format", "statistics,effects", "--jobs", "1", "-o", "tallies"],
    ["train", "corpus.txt", "-o", "run", "--max-steps", "2", "--batch-size", "4", "--d-model", "8", "--layers", "1", "--heads", "1"],
)  # fmt: skip

# file → the commands that read it; a folder stands for itself, so that what lies beside the file is there
READERS: dict[str, tuple[list[str], ...]] = {
    "t.json": (["explain", "t.json"], ["heatmap", "t.json", "--rows", "0-1"], ["heads", "t.json", "--json"], ["quiz", "t.json", "--json"],
               ["view", "t.json", "-o", "p.html", "--no-open"], ["compare", "t.json", "t.json", "--json"]),
    "t.npz": (["explain", "t.npz", "--json"], ["heatmap", "t.npz"]),
    "links.json": (["explain", "links.json", "--query", "3"], ["heads", "links.json"]),
    "grid.json": (["heatmap", "grid.json"], ["view", "grid.json", "-o", "p.html", "--no-open"]),
    "out/manifest.jsonl": (["batch", "in.txt", *SMALL, "--format", "json,npz", "--jobs", "1", "-o", "out"],),
    "out/run.json": (["batch", "in.txt", *SMALL, "--format", "json,npz", "--jobs", "1", "-o", "out"],),
    "out/traces.jsonl": (["batch", "in.txt", *SMALL, "--format", "json,npz", "--jobs", "1", "-o", "out"], ["batch", "out/traces.jsonl"]),
    "tallies/.tallies/0000000.json": (["batch", "in.txt", *SMALL, "--format", "statistics,effects", "--jobs", "1", "-o", "tallies"],),
    "tallies/manifest.jsonl": (["batch", "in.txt", *SMALL, "--format", "statistics,effects", "--jobs", "1", "-o", "tallies"],),
    "run/recipe.json": (["train", "--resume", "-o", "run", "--max-steps", "3", "--json"], ["film", "run", "Alice will eat", "-o", "e.png"]),
    "run/metrics.jsonl": (["train", "--resume", "-o", "run", "--max-steps", "3", "--json"],),
    "run/resume.safetensors": (["train", "--resume", "-o", "run", "--max-steps", "3", "--json"],),
    "run/weights.safetensors": (["explain", "Alice will eat", "--model", "run"], ["model", "run", "--json"]),
    "run/corpus.txt": (["train", "--resume", "-o", "run", "--max-steps", "3", "--json"],),
    "chat.json": (["explain", "--chat", "chat.json", "--model", "ckpt"], ["batch", "chat.json", "--model", "ckpt"]),
    "spans.csv": (["heatmap", TEXT, "--spans", "spans.csv"], ["ablate", TEXT, "--spans", "spans.csv"]),
    "w.csv": (["heatmap", "w.csv"], ["heads", "w.csv"]),
    "w.npy": (["heatmap", "w.npy"], ["explain", "w.npy", "--json"]),
    "qkv.npz": (["explain", "a b c", "--qkv", "qkv.npz", "--json"],),
    "in.jsonl": (["batch", "in.jsonl", *SMALL],),
    "in.csv": (["batch", "in.csv", *SMALL],),
    "in.txt.gz": (["batch", "in.txt.gz", *SMALL],),
    "in.parquet": (["batch", "in.parquet", *SMALL],),
    "attnctl/config.toml": (["explain", "Alice will eat"], ["config"], ["config", "--set", "seed=4"]),
    "tokenizer.json": (["explain", "a b", *SMALL, "--tokenizer", "tokenizer.json"],),
}  # fmt: skip

# what one command alone writes or reads stands in the folder of its tests: TEXTS, MADE_BY, READERS
OF_COMMANDS = [
    import_module(f"tests.commands.{path.parent.name}.read_back")
    for path in sorted(Path(__file__).parents[1].glob("commands/*/read_back.py"))
]
for _more in OF_COMMANDS:
    for _name, _lines in _more.READERS.items():
        READERS[_name] = (*READERS.get(_name, ()), *_lines)


@cache
def made_files() -> dict[str, bytes]:
    """Every file by its name, as sound as attnctl writes it."""
    import numpy as np

    from attnctl.cli.app import run_command
    from attnctl.registry import COMMANDS

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        rows = np.arange(18, dtype=np.float32).reshape(2, 3, 3) / 9
        np.save("w.npy", np.full((2, 3, 3), 1 / 3, np.float32))
        np.savez("qkv.npz", Q=rows, K=rows, V=rows)
        tokenizer = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
                     "pre_tokenizer": {"type": "Whitespace"}}  # fmt: skip
        texts = {
            "long.txt": "\n\n".join(" ".join(f"w{(at + k) % 37}" for at in range(60)) for k in range(9)),
            "in.txt": "Alice will eat\nBob likes tea\n",
            "corpus.txt": "Alice will eat pizza .\nBob likes tea .\nAlice likes Bob .\n" * 4,
            "chat.json": json.dumps(CHAT),
            "spans.csv": "name,start,end\na,0,5\nb,6,10\n",
            "w.csv": ",Alice,will\nAlice,1,0\nwill,.5,.5\n",
            "in.jsonl": '{"text": "Alice", "id": 1, "options": {"seed": 2}, "tokens": ["Alice"]}\n"Bob likes tea"\n',
            "in.csv": "id,text\n1,Alice will eat\n2,Bob\n",
            "attnctl/config.toml": SETTINGS,
            "tokenizer.json": json.dumps(tokenizer),
        }
        for more in OF_COMMANDS:
            texts |= more.TEXTS
        for name, text in texts.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        Path("in.txt.gz").write_bytes(gzip.compress(texts["in.txt"].encode(), mtime=0))
        with contextlib.suppress(ImportError):
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({"id": [1, 2], "text": ["Alice will eat", "Bob"]}), "in.parquet")
        quiet = io.TextIOWrapper(io.BytesIO(), "utf-8")
        lines = [*MADE_BY, *(words for more in OF_COMMANDS for words in more.MADE_BY)]
        for arguments in (words for words in lines if words[0] in COMMANDS):
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                code = run_command(arguments)
            assert code == 0, (arguments, code)
        with contextlib.suppress(ImportError):
            from tests.tools import folders

            template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            (folders.write(Path("ckpt"), "llama", max_position_embeddings=512) / "chat_template.jinja").write_text(
                template
            )
        return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


def cases_of(
    name: str, files: dict[str, bytes], rng: random.Random, flips: int = 24, most: int = 60
) -> Iterator[dict[str, Any]]:
    """The cases of one file (see tests.tools.fuzz): each damage of it, read by each of its readers in turn."""
    folder = name.partition("/")[0] + "/" if "/" in name else None
    beside = {other: data for other, data in files.items() if folder and other.startswith(folder)}
    for at, (what, data) in enumerate(damages_of(name, files[name], rng, flips, most)):
        readers = READERS[name]
        arguments = readers[at % len(readers)]
        named = {other: files[other] for other in files if other in arguments or other.partition("/")[0] in arguments}
        used = beside | named | {name: data}
        yield {
            "arguments": arguments,
            "files": {part: base64.b64encode(data).decode() for part, data in used.items()},
            "stdin": "",
            "damage": f"{name}: {what}",
        }


def damages_of(name: str, data: bytes, rng: random.Random, flips: int, most: int) -> Iterator[tuple[str, bytes]]:
    """What may happen to a file: cut, flipped, in another encoding, and of JSON `most` fields of another type."""
    for tenth in range(10):
        yield f"cut at {tenth * 10} %", data[: len(data) * tenth // 10]
    for _ in range(flips):
        at = rng.randrange(len(data))
        yield f"byte {at} flipped", data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    yield "doubled", data + data
    yield "zeros", bytes(len(data))
    if b"\0" in data:
        return
    text = data.decode()
    yield "byte-order mark", b"\xef\xbb\xbf" + data
    yield "UTF-16", text.encode("utf-16")
    yield "CRLF", text.replace("\n", "\r\n").encode()
    yield "CR", text.replace("\n", "\r").encode()
    yield "Latin-1", b"\xe9\xff" + data
    yield "a null", data[: len(data) // 2] + b"\0" + data[len(data) // 2 :]
    yield "an escape", data.replace(b"a", b"\x1b]0;x\x07", 3)
    yield "no Unicode", data.replace(b"a", b"\xed\xa0\x80", 3)
    if ".json" in name:
        yield from _damaged_json(name, text, rng, most)


def _damaged_json(name: str, text: str, rng: random.Random, most: int) -> Iterator[tuple[str, bytes]]:
    lines = text.splitlines() if name.endswith(".jsonl") else [text]

    def written(value: str) -> bytes:
        return "\n".join([*lines[:-1], value]).encode()

    for word in (
        "NaN",
        "-Infinity",
        "1e999",
        "9" * 400,
        "[" * 100_000,
        '{"a":' * 100_000,
        "null",
        "[]",
        "{}",
        "5",
        '"x"',
    ):
        yield f"all of it {word[:9]}", written(word)
    document = json.loads(lines[-1])
    yield "keys twice", written(_with_keys_twice(lines[-1], document))

    def changed(place: tuple[Any, ...], value: Any) -> str:
        """Return the document as JSON with another value in one place; without that place where `value` is GONE."""
        whole = copy.deepcopy(document)
        inner = whole
        for key in place[:-1]:
            inner = inner[key]
        if value is GONE:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        return json.dumps(whole)

    places = list(_places(document))
    for place in places if len(places) < most else rng.sample(places, most):
        values = (None, True, -1, 1e308, 10**30, "x", "\x1b[2J\u202e", [], {}, [[]], "\ud800", 0.5)
        for value in rng.sample(values, 3):
            yield f"{place} is {value!r}", written(changed(place, value)) + b"\n"
        for word in ("NaN", "9" * 400):
            yield f"{place} is {word[:9]}", changed(place, "@@").replace('"@@"', word).encode() + b"\n"
        yield f"{place} is not there", written(changed(place, GONE)) + b"\n"


def _with_keys_twice(line: str, document: Any) -> str:
    if not isinstance(document, dict) or not document:
        return line
    key = next(iter(document))
    return line.rstrip()[:-1] + f",{json.dumps(key)}:5}}"


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a document, of lists to the first and the last."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*at, key))
    elif isinstance(value, list) and len(at) < 8:
        for index in {0, len(value) - 1} if value else ():
            yield from _places(value[index], (*at, index))


def main() -> None:
    """Damage each file in every way, and tell what comes of it that should not."""
    from tests.tools.fuzz import Worker

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    files, rng, found = made_files(), random.Random(given.seed), 0
    worker = Worker()
    for name in given.files or READERS:
        count = 0
        for case in cases_of(name, files, rng) if name in files else ():
            count += 1
            if (wrong := worker.play(case)) is not None:
                found += 1
                print(f"--- {ascii(case['damage'])} {case['arguments']}\n{wrong}", flush=True)
        print(f"{name}: {count} damages", flush=True)
    worker.end()
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
