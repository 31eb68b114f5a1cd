"""Reading texts: every form of input, what is wrong with one kept to itself, nothing held that need not be."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnctl.batching import texts as texts_module
from attnctl.batching.items import Item, slug_of
from attnctl.batching.texts import TextStream
from attnctl.errors import AttnctlError, UsageError
from attnctl.runtime.files import parse_json
from tests.conftest import Run


def texts(path: Path, **how: str) -> list[tuple[int, str | None, str]]:
    items = list(TextStream(str(path), **how))
    assert not any(item.error for item in items), items
    return [(item.number, item.id, item.text) for item in items]


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_line_each_with_any_line_ends_and_a_mark(tmp_path: Path) -> None:
    file = put(tmp_path / "a.txt", b"\xef\xbb\xbfAlice eats\r\nBob sleeps\n\xe6\x97\xa5\xe6\x9c\xac")
    assert texts(file) == [(0, None, "Alice eats"), (1, None, "Bob sleeps"), (2, None, "日本")]


def test_json_lines_bring_ids_tokens_and_options(tmp_path: Path) -> None:
    new_york = {"text": "New York is big", "id": 7, "tokens": ["New York", "is", "big"], "options": {"causal": True}}
    lines = [new_york | {"label": 1}, "a bare string", {"tokens": ["no", "text"]}]
    items = list(TextStream(str(put(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines))))))
    assert [(item.id, item.text, item.tokens, item.options) for item in items] == [
        (7, "New York is big", ("New York", "is", "big"), {"causal": True}),
        (None, "a bare string", None, {}),
        (None, "no text", ("no", "text"), {}),
    ]


@pytest.mark.parametrize("name, mark", [("a.csv", ","), ("a.tsv", "\t"), ("a.csv", ";")])
def test_a_column_of_a_table(tmp_path: Path, name: str, mark: str) -> None:
    rows = [["id", "said", "n"], ["x", 'with "quotes", marks; and\ttabs', "1"], ["y", "two\nlines", "2"]]
    with (tmp_path / name).open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows(rows)
    assert texts(tmp_path / name, column="said") == [(0, "x", rows[1][1]), (1, "y", rows[2][1])]
    assert texts(tmp_path / name, column="said", id_column="n")[1] == (1, "2", rows[2][1])
    with pytest.raises(UsageError, match="column="):
        list(TextStream(str(tmp_path / name)))
    with pytest.raises(UsageError, match="no column 'words': .* id, said, n"):
        list(TextStream(str(tmp_path / name), column="words"))


def test_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"text": ["a b", None, "c"], "id": [1, 2, 3], "tokens": [["a", "b"], None, None], "more": [0, 0, 0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    items = list(TextStream(str(tmp_path / "a.parquet")))
    assert [(item.id, item.text, item.tokens) for item in items] == [
        (1, "a b", ("a", "b")),
        (2, "", None),
        (3, "c", None),
    ]
    assert items[1].error == "the text is null"
    with pytest.raises(AttnctlError, match="not a sound Parquet file"):
        list(TextStream(str(put(tmp_path / "b.parquet", "no"))))


def test_a_folder_file_by_file(tmp_path: Path) -> None:
    put(tmp_path / "in/b.txt", "one text\nof two lines")
    put(tmp_path / "in/a.jsonl", '"first"\n"second"\n')
    put(tmp_path / "in/sub/c.txt.gz", gzip.compress(b"packed"))
    put(tmp_path / "in/picture.png", b"\x89PNG")
    put(tmp_path / "in/.hidden/d.txt", "hidden")
    assert texts(tmp_path / "in") == [
        (0, None, "first"),
        (1, None, "second"),
        (2, "b", "one text\nof two lines"),
        (3, "sub/c.txt", "packed"),
    ]
    put(tmp_path / "empty/picture.png", b"")
    with pytest.raises(AttnctlError, match="holds no texts"):
        list(TextStream(str(tmp_path / "empty")))


WRONG = {
    b"{": "not JSON",
    b"": "empty",
    b'{"words": 1}': "no text in 'text'",
    b'{"text": null, "label": 1}': "the text is null",
    b'{"text": 5}': "'text' holds 5, not a text",
    b"\xff": "byte 0xff",
    b"1": "object",
    b'{"text": "x", "tokens": [1]}': "tokens",
}


def test_what_is_wrong_with_one_line_is_kept_to_it(tmp_path: Path) -> None:
    lines = [b'{"text": "good"}', *WRONG, b'"last"']
    items = list(TextStream(str(put(tmp_path / "a.jsonl", b"\n".join(lines)))))
    assert [item.where.rpartition(" ")[2] for item in items] == [str(at) for at in range(1, len(lines) + 1)]
    assert items[0].error is items[-1].error is None
    for item, words in zip(items[1:-1], WRONG.values(), strict=True):
        assert words in str(item.error)
    (half,) = TextStream(str(put(tmp_path / "half.csv", b"text\ncaf\xe9\n")))
    assert half.error == "it is not UTF-8"
    with pytest.raises(AttnctlError, match="UTF-16"):
        list(TextStream(str(put(tmp_path / "a.txt", "Alice\n".encode("utf-16")))))
    with pytest.raises(AttnctlError, match=r"a.arrow is not text: it has a byte 0 at offset 6"):
        list(TextStream(str(put(tmp_path / "a.arrow", b"ARROW1\0\0Alice eats\n"))))


@pytest.mark.parametrize("column", ["text", "id", "text_pair", "target", "against"])
def test_a_cell_that_is_not_utf_8_is_the_error_of_its_row(tmp_path: Path, column: str) -> None:
    """In every column that is read; one in another column changes nothing. In CSV, and in Parquet that another wrote."""
    names = ["text", "id", "text_pair", "target", "against", "note"]
    rows = [[b"Alice eats", b"a", b"Bob sleeps", b"eats", b"sleeps", note] for note in (b"caf\xe9", b"", b"")]
    rows[1][names.index(column)] = b"caf\xe9"
    table = put(tmp_path / "a.csv", b"\n".join(b",".join(row) for row in [[name.encode() for name in names], *rows]))
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = {name: pa.array([row[place] for row in rows]).view(pa.string()) for place, name in enumerate(names)}
    pq.write_table(pa.table(texts), tmp_path / "a.parquet")
    for file in (table, tmp_path / "a.parquet"):
        first, bad, last = TextStream(str(file))
        assert first.error is last.error is None and (first.text_pair, last.id) == ("Bob sleeps", "a")
        assert bad.error == ("it is not UTF-8" if column == "text" else f"its {column} is not UTF-8")
        assert getattr(bad, column) == r"caf\xe9" and len(bad.content_fingerprint) == 16


def test_a_file_whose_name_is_not_utf_8_is_read(tmp_path: Path, run: Run) -> None:
    put(tmp_path / "in/b.txt", "Bob eats")
    name = os.fsdecode(b"caf\xe9.txt")
    try:
        put(tmp_path / "in" / name, "Alice eats")
    except OSError:
        pytest.skip("every name of this file system is UTF-8")
    assert texts(tmp_path / "in") == [(0, "b", "Bob eats"), (1, r"caf\xe9", "Alice eats")]
    assert run("batch", tmp_path / "in", "-m", "random", "-o", tmp_path / "out", "--jobs", "1").code == 0


def test_tokens_of_a_parquet_file_that_are_not_utf_8(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pieces = pa.array([b"caf\xe9", b"eats"]).view(pa.string())
    tokens = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pieces)
    pq.write_table(pa.table({"text": ["Alice eats"], "tokens": tokens}), tmp_path / "a.parquet")
    (item,) = TextStream(str(tmp_path / "a.parquet"))
    assert (item.tokens, item.error) == ((r"caf\xe9", "eats"), "its tokens are not UTF-8")


def compressed(data: bytes, form: str) -> bytes:
    if form == "gz":
        return gzip.compress(data)
    return pytest.importorskip("pyarrow").compress(data, "zstd", asbytes=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_gzip_and_zstd_are_told_by_their_bytes(form: str, tmp_path: Path) -> None:
    plain = "".join(f"line {at}\n" for at in range(2000))
    packed = compressed(plain.encode(), form)
    expected = texts(put(tmp_path / "a.txt", plain))
    assert texts(put(tmp_path / f"a.txt.{form}", packed)) == texts(put(tmp_path / "unnamed", packed)) == expected
    assert texts(put(tmp_path / f"two.{form}", packed + packed))[2000] == (2000, None, "line 0")


def test_what_stands_before_a_damage_is_read_and_the_damage_told(tmp_path: Path) -> None:
    with pytest.raises(AttnctlError, match="is damaged"):
        list(TextStream(str(put(tmp_path / "b.gz", gzip.compress(b"line\n" * 5000)[:-40]))))
    put(tmp_path / "in/a.txt.gz", gzip.compress(b"one text" * 999)[:-9])
    put(tmp_path / "in/b.txt", "another")
    damaged, whole = TextStream(str(tmp_path / "in"))
    assert str(damaged.error).startswith("the file is damaged: ") and whole.text == "another"


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        file = put(tmp_path / f"{lines}.txt", "The cat sat on the mat.\n" * lines)
        tracemalloc.start()
        assert sum(1 for _ in TextStream(str(file))) == lines
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(5000) < 1.2 * peak(1000) + 10_000


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=200), st.none() | st.text(max_size=200), st.integers(0, 10**8))
def test_names_are_safe_and_their_own(text: str, name: str | None, number: int) -> None:
    stem = Item(number, "", text, name).file_stem
    assert set(stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789-/") and len(stem) < 80
    assert stem.count("/") <= 1 and not stem.startswith(("/", "-")) and not stem.endswith("-")
    assert int(stem.rpartition("/")[2].partition("-")[0]) == number  # so that no two are the same


def test_slugs_read_well() -> None:
    assert slug_of("Crème brûlée, très bon!") == "creme-brulee-tres-bon"
    assert slug_of("../../etc/passwd") == "etc-passwd"
    assert slug_of("日本語") == ""
    assert slug_of("the quick brown fox jumps over the lazy dog again") == "the-quick-brown-fox-jumps-over-the-lazy-dog"


def test_a_text_whose_json_would_fill_the_memory_is_an_error_of_its_own(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand tokens in 2 kB took 3.7 GB, whatever was free."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnctl.checks.limits.free_memory", lambda: 1e8)
    Path("in.txt").write_text("Alice will eat\n" + "a " * 2000 + "\nBob eats\n")
    result = run("batch", "in.txt", "-o", "out", "-m", "random", "--jobs", "1")
    assert result.code == 3 and "the JSON of 2,000 tokens needs" in result.err and "--format npz" in result.err
    assert run("batch", "in.txt", "-o", "other", "-m", "random", "--format", "npz", "--jobs", "1").code == 0
    Path("long.txt").write_text("a " * 4000)
    long = run("batch", "long.txt", "-o", "long", "-m", "random", "--max-tokens", "9000", "--jobs", "1")
    assert "every step of 4,000 tokens needs" in long.err


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_in_json_is_its_entries(tmp_path: Path, indent: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over many lines, as editors and `json.dump(…, indent=2)` write it; from a file and from a pipe."""
    entries = ["one", {"text": "two", "id": 7}, {"messages": [{"role": "user", "content": "three"}]}, 4]
    data = b"\xef\xbb\xbf" + json.dumps(entries, indent=indent).encode() + b"\n"
    path = put(tmp_path / "a.json", data)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data[3:])))
    for name in (str(path), "-"):
        items = list(TextStream(name))
        assert [(item.number, item.text, item.id) for item in items[:3]] == [
            (0, "one", None),
            (1, "two", 7),
            (2, "three", None),
        ]
        assert items[2].messages and items[3].error == 'it is not a JSON object with a "text"'
        assert items[3].where.endswith(", entry 3")


def test_each_entry_of_a_list_is_held_against_the_limit_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnctl.batching.texts.LONGEST", 1000)
    long = "ä" * 600  # 1,200 bytes
    entries = [
        "one",
        long,
        {"text": long},
        {"messages": [{"role": "user", "content": long}]},
        {"tokens": [long]},
        "two",
    ]
    path = put(tmp_path / "a.json", json.dumps(entries, ensure_ascii=False))
    assert [item.error for item in TextStream(str(path))] == [None, *["the text is longer than 64 MB"] * 4, None]
    table = put(tmp_path / "a.csv", f"text\n{'ä' * 400}\n{long}\n")
    assert [item.error for item in TextStream(str(table))] == [None, "the text is longer than 64 MB"]
    (item,) = TextStream(str(put(tmp_path / "b.json", json.dumps({"text": long}, indent=1, ensure_ascii=False))))
    assert item.error == "the text is longer than 64 MB"


def test_json_that_would_fill_the_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bytes of the file are a list, which takes 72 bytes of memory and more."""
    monkeypatch.setattr("attnctl.checks.limits.free_memory", lambda: 20e6)
    lists = put(tmp_path / "a.jsonl", json.dumps([[]] * 300_000) + "\n" + '{"text": "a b"}\n')
    refused, read = TextStream(str(lists))
    assert "reading it needs" in (refused.error or "") and read.text == "a b"
    with pytest.raises(AttnctlError, match="of memory"):
        parse_json(lists.read_bytes().splitlines()[0], "a.json")


def test_json_over_many_lines_is_one_value(tmp_path: Path) -> None:
    one = {"text": "one", "id": "a"}
    (item,) = TextStream(str(put(tmp_path / "a.json", json.dumps(one, indent=1))))
    assert (item.text, item.id) == ("one", "a")
    conversation = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    (item,) = TextStream(str(put(tmp_path / "b.json", json.dumps(conversation, indent=1))))
    assert item.messages and item.text == "yes"
    assert list(TextStream(str(put(tmp_path / "c.json", "[]")))) == []
    damaged = list(TextStream(str(put(tmp_path / "d.jsonl", '[{"role"\n"two"\n"three"\n'))))
    assert [item.error is None for item in damaged] == [False, True, True]


def test_a_pipe_of_plain_text_may_begin_with_a_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"[Music]\nhello\n")))
    assert [item.text for item in TextStream("-")] == ["[Music]", "hello"]


LINES = "".join(f"Alice eats {n}\n" for n in range(3000))  # more than is read at once


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "csv"])
def test_a_file_that_becomes_smaller_while_it_is_read(tmp_path: Path, suffix: str) -> None:
    """The half line was a text, and nothing said that the rest was not read."""
    lines = {"jsonl": "".join(f'"Alice eats {n}"\n' for n in range(3000)), "csv": f"text\n{LINES}", "txt": LINES}[
        suffix
    ]
    file = put(tmp_path / f"a.{suffix}", lines)
    stream = TextStream(str(file))
    items = iter(stream)
    read = [next(items)]
    os.truncate(file, len(lines) - 6)
    read += items
    *whole, half = read
    assert not any(item.error for item in whole) and len(whole) == 2999
    assert "it may be cut off" in str(half.error) or "is not JSON" in str(half.error)
    assert stream.unread == [f"6 B of {file} were not read: it became smaller while it was read"]


def test_a_file_that_is_cut_between_two_lines_or_grows(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that grows is read as far as it is whole; a last line without an end is a text of a file that stays."""
    file = put(tmp_path / "a.txt", LINES.rstrip())
    assert not any(item.error for item in TextStream(str(file)))
    stream = TextStream(str(file))
    items = iter(stream)
    next(items)
    with file.open("a") as log:
        log.write("\nAlice eats\nBob sl")
    *whole, half = items
    assert not any(item.error for item in whole) and "it may be cut off" in str(half.error) and not stream.unread

    def cut_first(raw: Any, path: str) -> Any:
        os.truncate(path, len("Alice eats\n"))
        return really(raw, path)

    really = texts_module.decompressed
    b = put(tmp_path / "b.txt", "Alice eats\nBob sleeps\n")
    monkeypatch.setattr(texts_module, "decompressed", cut_first)
    done = run("batch", b, "-m", "random", "-o", tmp_path / "out", "--jobs", "1")
    assert done.code == 3 and f"11 B of {b} were not read: it became smaller while it was read; 1 done: see" in done.err
    put(b, "Alice eats\nBob sleeps\n")
    done = run("batch", b, "-m", "random", "--jobs", "1")
    assert done.code == 3 and "11 B of" in done.err and done.out.count("\n") == 1
