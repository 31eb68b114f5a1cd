"""`attnctl batch` of alignments: folders and lists of recordings, tables and lines of pairs of texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import attnctl
from tests.conftest import Refused, Run, check_schema
from tests.tools import folders, whisper


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper, an encoder-decoder "t5", "llama", and a folder of recordings, one of them silent."""
    folder = tmp_path_factory.mktemp("aligned")
    whisper.write_tiny(folder / "whisper", heads=[[1, 0]])
    for name, case in {"t5": "t5, bias", "llama": "llama"}.items():
        folders.write(folder / name, case, eos=name == "t5")
    (folder / "recordings" / "later").mkdir(parents=True)
    whisper.write_wave(folder / "recordings" / "a tone.wav", whisper.sine(1.0))
    whisper.write_wave(folder / "recordings" / "later" / "tone.wav", whisper.sine(0.5))
    whisper.write_wave(folder / "recordings" / "silent.wav", np.zeros(16_000))
    (folder / "recordings" / "notes.txt").write_text("no sound")
    return folder


def test_a_folder_of_recordings_has_a_file_for_each(place: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("praatio")
    out = tmp_path / "out"
    how = ("batch", str(place / "recordings"), "--model", str(place / "whisper"), "-o", str(out))
    forms = ("--format", "textgrid,ctm,srt,vtt,labels,words")
    done = run(*how, *forms)
    assert done.code == 3 and "2 done, 1 failed" in done.err and "silent.wav is silent" in done.err
    names = {"0000000-a-tone": "a tone.wav", "0000002-later-tone": "later/tone.wav"}
    suffixes = ("TextGrid", "srt", "vtt", "txt", "json")
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {
        *(f"{name}.{suffix}" for name in names for suffix in suffixes), "aligned.ctm", "manifest.jsonl", "run.json"
    }  # fmt: skip
    marks = []
    for name, file in names.items():
        alone = attnctl.align(place / "recordings" / file, place / "whisper")
        document = json.loads((out / f"{name}.json").read_text())
        assert check_schema(document) == "alignment" and [word["text"] for word in document["words"]] == [
            word.text for word in alone.words
        ]
        assert (out / f"{name}.txt").read_text().count("\n") == len(alone.words)
        marks += [file.removesuffix(".wav").replace(" ", "_")] * len(alone.words)
    assert [line.split(" ")[0] for line in (out / "aligned.ctm").read_text().splitlines()] == marks
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = run(*how, *forms)
    assert "0 done, 3 finished before (1 of them failed)" in again.err
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert run(*how, "--format", "srt", "--replace").code == 3 and not list(out.glob("*.TextGrid"))


def test_a_list_of_recordings_and_their_texts(place: Path, tmp_path: Path, run: Run) -> None:
    tone = shutil.copy(place / "recordings" / "a tone.wav", tmp_path / "tone.wav")
    lines = [{"text": str(tone), "id": "x", "target": "One two", "options": {"language": "en", "heads": "0.1"}}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    how = ("batch", str(tmp_path / "list.jsonl"), "--model", str(place / "whisper"), "-o", str(tmp_path / "out"))
    assert run(*how, "--format", "words").code == 0
    document = json.loads((tmp_path / "out" / "0000000-x.json").read_text())
    assert (document["text"], document["given"], document["heads"]) == ("One two", True, [{"layer": 0, "head": 1}])


PAIRS = (("will eat.", "das eat"), ("", "at"), ("at  will", "at eat das"))


def test_pairs_have_a_line_each_also_those_that_fail(place: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "pairs.tsv").write_text("text\ttarget\n" + "".join(f"{text}\t{target}\n" for text, target in PAIRS))
    (tmp_path / "pairs.txt").write_text("".join(f"{text} ||| {target}\n" for text, target in PAIRS))
    for name, number in (("pairs.tsv", 3), ("pairs.txt", 3)):
        for model in ("t5", "llama"):
            out = tmp_path / f"{name}-{model}"
            how = ("batch", str(tmp_path / name), "--model", str(place / model), "-o", str(out), "--layer", "1")
            assert run(*how, "--format", "pharaoh", "--head", "0,2").code == 3
            lines = (out / "aligned.pharaoh").read_text().split("\n")
            wanted = [
                attnctl.align(text, place / model, target=target, heads="1.0,1.2").pharaoh
                if model == "t5"
                else attnctl.align(f"{text} >> {target}", place / model, heads="1.0,1.2").pharaoh
                for text, target in (PAIRS[0], PAIRS[2])
            ]
            assert lines == [wanted[0], "", wanted[1], ""] and number == len(lines) - 1
            piped = run(*how[:4], *how[6:], "--format", "pharaoh", "--head", "0,2")
            assert (piped.code, piped.out.split("\n")) == (3, lines)


def test_what_cannot_be_aligned_in_a_batch_is_refused(place: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "in.txt").write_text("a ||| b\n")
    (tmp_path / "empty").mkdir()
    source, out = str(tmp_path / "in.txt"), ("-o", str(tmp_path / "out"))
    hears, writes = ("--model", str(place / "whisper")), ("--model", str(place / "t5"))
    for code, how, said in (
        (2, [source, *hears, "--format", "pharaoh", *out], "whisper reads sounds: it is textgrid, srt, vtt, labels, words or"),
        (2, [source, *writes, "--format", "srt", *out], "t5 reads texts: it is pharaoh"),
        (2, [source, "--format", "pharaoh", *out], "demo aligns nothing: name a checkpoint"),
        (2, [source, *writes, "--format", "pharaoh,png", *out], "png: it cannot be combined with pharaoh"),
        (2, [source, *hears, "--format", "srt"], "it needs a folder to write"),
        (2, [source, *writes, "--format", "pharaoh", "--words", *out], "--words has no effect here"),
        (2, [source, *writes, "--format", "pharaoh", "--layer", "7", *out], "--layer 7: t5 has layers 0 to 1"),
        (1, [str(tmp_path / "empty"), *hears, "--format", "srt", *out], "holds no sounds: it may hold .wav"),
    ):  # fmt: skip
        assert said in refused("batch", *how, code=code), said
