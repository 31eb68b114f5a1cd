"""`attnctl align`: words of a speech in time. A tiny random Whisper and a tone; Whisper base where its packages and a voice are."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import attnctl
from attnctl.commands.align.result import AlignedSpeech, AlignedWindow, AlignedWord
from attnctl.commands.align.speech import align_speech, open_speech
from attnctl.commands.align.transcripts import clock, spoken_segments, subtitle_cues, subtitles, transcript
from attnctl.commands.align.word_times import (
    median_filter,
    repeated_tokens,
    token_starts,
    warping_paths,
    without_pauses,
    words_of_pieces,
)
from attnctl.formats.audio import read_audio
from attnctl.formats.documents.json_documents import json_object
from attnctl.models import open_model
from tests.conftest import Refused, Run, check_schema
from tests.tools import whisper
from tests.tools.voice import Voice, lateness

pytestmark = pytest.mark.usefixtures("network_kept")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tone, and a tiny Whisper in "tiny", which names head 1.0; in "unnamed" one that names none."""
    folder = tmp_path_factory.mktemp("speech")
    whisper.write_tiny(folder / "tiny", heads=[[1, 0]])
    whisper.write_tiny(folder / "unnamed")
    whisper.write_wave(folder / "tone.wav", whisper.sine(2.0))
    return folder


def test_warping_is_the_cheapest_monotonic_path() -> None:
    """Held against all paths of small matrices."""

    def cheapest(cost: np.ndarray) -> float:
        n, m = cost.shape
        best: dict[tuple[int, int], float] = {}
        for i, j in itertools.product(range(n), range(m)):
            before = [best[at] for at in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if at in best]
            best[i, j] = cost[i, j] + (min(before) if before else 0)
        return best[n - 1, m - 1]

    random = np.random.default_rng(0)
    for n, m in itertools.product((1, 2, 3, 5), (1, 2, 4, 9)):
        costs = random.normal(size=(3, n, m)).astype(np.float32)
        for cost, (rows, columns) in zip(costs, warping_paths(costs), strict=True):
            assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, n - 1, m - 1)
            assert set(np.diff(rows)) <= {0, 1} and set(np.diff(columns)) <= {0, 1}
            assert cost[rows, columns].sum() == pytest.approx(cheapest(cost), abs=1e-5)
            assert list(token_starts((rows, columns))) == [columns[rows == at][0] for at in range(n)]


def test_median_of_seven_frames() -> None:
    array = np.random.default_rng(1).normal(size=(2, 3, 20)).astype(np.float32)
    padded = np.pad(array, [(0, 0), (0, 0), (3, 3)], mode="reflect")
    for at in range(20):
        assert (median_filter(array)[..., at] == np.median(padded[..., at : at + 7], axis=-1)).all()
    assert median_filter(array[..., :2]).shape == (2, 3, 2)


def test_tokens_become_words() -> None:
    parts = [
        " He",
        " said",
        ":",
        ' "',
        "Don",
        "'t",
        " go",
        ',"',
        " 3",
        ".",
        "5",
        " caf",
        "é".encode()[:1],
        "é".encode()[1:],
        "!",
    ]
    data = [part if isinstance(part, bytes) else part.encode() for part in parts]
    decode = lambda ids: b"".join(data[at] for at in ids).decode(errors="replace")  # noqa: E731
    words = words_of_pieces(decode, range(len(data)), spaces=True)
    assert [text for text, *_ in words] == ["He", "said:", "\"Don't", 'go,"', "3.5", "café!"]
    assert words[-1][1:] == (11, 15) and all(a[2] == b[1] for a, b in itertools.pairwise(words))
    assert [
        text for text, *_ in words_of_pieces(lambda ids: "".join("天気。"[at] for at in ids), range(3), spaces=False)
    ] == ["天", "気。"]


def test_forms_of_aligned_words(place: Path, tmp_path: Path, run: Run) -> None:
    how = (
        "align",
        str(place / "tone.wav"),
        "--model",
        str(place / "tiny"),
        "--target",
        "One two. <b> four",
        "--language",
        "en",
    )
    made = run(*how)
    assert made.code == 0, made.err
    rows = [line.split("\t") for line in made.out.splitlines()]
    assert rows[0] == ["start", "end", "word", "confidence", "doubtful"] and [row[2] for row in rows[1:]] == [
        "One",
        "two.",
        "<b>",
        "four",
    ]
    times = [float(row[0]) for row in rows[1:]]
    assert times == sorted(times) and times[0] == 0.05 and float(rows[-1][1]) <= 2.0
    document = run(*how, "--json").json
    assert check_schema(document) == "alignment"
    assert (document["seconds"], document["text"], document["given"], document["language"]) == (
        2,
        "One two. <b> four",
        True,
        "en",
    )
    assert document["heads"] == document["named_heads"] == [{"layer": 1, "head": 0}] and document["chosen"] == "named"
    assert document["common_heads"] == 1 and len(document["found_heads"]) == 4
    for suffix in ("json", "srt", "vtt", "ctm", "txt", "png", "svg", "pdf"):
        assert run(*how, "-o", str(tmp_path / f"a.{suffix}")).code == 0
        assert (tmp_path / f"a.{suffix}").stat().st_size > 50
    assert (tmp_path / "a.srt").read_text().startswith("1\n00:00:00,050 --> 00:00:") and "<\u2060b> four" in (
        tmp_path / "a.srt"
    ).read_text()
    assert (tmp_path / "a.vtt").read_text().startswith("WEBVTT\n\n1\n00:00:00.050 --> ") and "&lt;b&gt;" in (
        tmp_path / "a.vtt"
    ).read_text()


def test_heads_are_named_found_or_given(place: Path, run: Run) -> None:
    how = {"target": "One two three", "language": "en"}
    auto = attnctl.align(place / "tone.wav", place / "tiny", heads="auto", **how)
    assert [(one.layer, one.head) for one in auto.heads] == [(one.layer, one.head) for one in auto.found_heads[:6]]
    scores = [one.score for one in auto.found_heads]
    assert scores == sorted(scores, reverse=True)
    given = attnctl.align(place / "tone.wav", place / "tiny", heads="0.1,1.1", **how)
    assert [(one.layer, one.head) for one in given.heads] == [(0, 1), (1, 1)] and given.chosen == "given"
    unnamed = run(
        "align",
        str(place / "tone.wav"),
        "--model",
        str(place / "unnamed"),
        "--target",
        "One",
        "--language",
        "en",
        "--json",
    )
    assert unnamed.json["chosen"] == "auto" and "names no alignment heads" in unnamed.err


def test_more_than_thirty_seconds_are_heard_in_parts(tmp_path: Path, place: Path) -> None:
    sound = np.concatenate([whisper.sine(28.5), np.zeros(8_000), whisper.sine(10.0)])
    heard = read_audio(str(whisper.write_wave(tmp_path / "long.wav", sound)))
    *steps, found = align_speech(open_speech(str(place / "tiny")), heard, "long.wav", language="en")
    assert isinstance(found, AlignedSpeech) and "heard in 2 parts" in found.notes[0]
    starts = [step.start for step in steps if isinstance(step, AlignedWindow)]
    assert starts[0] == 0 and len(starts) == 2 and 28.5 <= starts[1] <= 29
    assert all(word.start <= word.end <= found.seconds for word in found.words)


def test_what_cannot_be_aligned_is_refused(tmp_path: Path, place: Path, refused: Refused, room: Path) -> None:
    tone, tiny = str(place / "tone.wav"), str(place / "tiny")
    files = {"silent": np.zeros(16_000), "none": np.zeros(0), "long": whisper.sine(31.0)}
    paths: dict[str, str] = {
        name: str(whisper.write_wave(tmp_path / f"{name}.wav", array)) for name, array in files.items()
    }
    for name, data in {"empty": b"", "text": b"hello", "cut": Path(tone).read_bytes()[:30]}.items():
        (tmp_path / f"{name}.wav").write_bytes(data)
        paths[name] = str(tmp_path / f"{name}.wav")
    bare = shutil.copytree(tiny, tmp_path / "bare")
    (bare / "preprocessor_config.json").unlink()
    cases: list[tuple[int, list[Any], str]] = [
        (1, [paths["silent"], "-m", tiny], "is silent"),
        (1, [paths["none"], "-m", tiny], "holds no sound"),
        (1, [paths["empty"], "-m", tiny], "is empty"),
        (1, [paths["text"], "-m", tiny], "cannot read the sound"),
        (1, [paths["cut"], "-m", tiny], "cannot read the sound"),
        (1, ["nowhere.wav", "-m", tiny], "nowhere.wav"),
        (2, [paths["long"], "-m", tiny, "--target", "a"], "--target works for up to 30 seconds"),
        (1, [tone, "-m", tiny, "--target", "a " * 60], "tokens, and tiny writes"),
        (2, [tone, "-m", tiny, "--target", " "], "--target is empty"),
        (2, [tone, "-m", tiny, "--heads", "best"], "named, auto, or heads as layer.head"),
        (2, [tone, "-m", tiny, "--heads", "2.0"], "--heads 2.0: tiny has layers 0 to 1"),
        (2, [tone, "-m", tiny, "--language", "xx"], "knows de, en"),
        (2, [tone, "-m", tiny, "-o", "a.csv"], "align writes .json, .srt, .vtt"),
        (2, [tone, "-m", "demo"], "not a checkpoint that hears speech"),
        (2, [tone], "name its folder or Hugging Face id with --model"),
        (1, [tone, "-m", str(bare)], "preprocessor_config.json"),
        (2, [tone, "-m", str(room / "llama")], "does not write down speech"),
    ]
    for code, how, said in cases:
        line = refused("align", *how, code=code)
        assert said in line, (how, line)


def test_a_processor_that_is_saved_whole_is_read(place: Path, tmp_path: Path) -> None:
    """As WhisperProcessor.save_pretrained does: without a file for sound alone."""
    folder, tone = shutil.copytree(place / "tiny", tmp_path / "tiny"), str(place / "tone.wav")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": settings}))
    known, again = (open_model(str(path)).tokenize(tone) for path in (place / "tiny", folder))
    assert again == known


def frames(*parts: tuple[int, float]) -> np.ndarray:
    """The loudness of frames: how many, and how loud."""
    return np.repeat([loud for _, loud in parts], [count for count, _ in parts]).astype(np.float32)


@pytest.mark.parametrize("quiet", [0.0, 0.001, 0.05], ids=["silence", "a room", "a noise"])
def test_pauses_belong_to_no_word(quiet: float) -> None:
    """The path gives a pause to a word beside it: before, between and behind sentences of three words."""
    one = [(10, 0.2), (12, 0.3), (14, 0.2)]
    loudness = frames((125, quiet), *one, (200, quiet), *one, (600, quiet))
    path = [(2.5, 135), (135, 147), (147, 240), (240, 371), (371, 383), (383, len(loudness))]
    texts = ["The", "last", "word.", "The", "last", "word."]
    spans = without_pauses(texts, path, loudness)
    assert spans == [(125, 135), (135, 147), (147, 161), (361, 371), (371, 383), (383, 397)]
    assert without_pauses(texts, spans, loudness) == spans


def test_ordinary_words_keep_their_times() -> None:
    """A closure or a weak sound of less than 0.3 s is part of the word, and a word of 0.9 s is not too long."""
    loudness = frames((8, 0.001), (4, 0.2), (14, 0.004), (19, 0.3), (10, 0.2), (12, 0.01))
    spans = [(0.0, 12.0), (12.0, 45.0), (45.0, 67.0)]
    assert without_pauses(["a", "b", "c."], spans, loudness) == spans


def test_a_long_word_beside_a_tone_is_shortened_at_the_edge_of_speech_alone() -> None:
    """As openai-whisper does: to twice the median of the words, here 20 frames."""
    loudness = frames((422, 0.2))
    spans = [(2.5, 160), (160, 180), (180, 200), (200, 300), (300, 320), (320, 340), (340, 422)]
    cut = [(120, 160), *spans[1:6], (340, 380)]
    assert without_pauses(["a", "b", "c", "d", "e", "f", "g"], spans, loudness) == cut
    assert without_pauses(["a", "b", "c.", "d", "e", "f", "g"], spans, loudness)[3] == (260, 300)
    assert without_pauses(["a", "b", "c", "d.", "e", "f", "g"], spans, loudness)[3] == (200, 240)


def test_tokens_that_stand_four_times_in_a_row() -> None:
    assert repeated_tokens([1, 2, 2, 2, 2, 3]) == [False, True, True, True, True, False]
    assert repeated_tokens([7, 1, 2, 1, 2, 1, 2, 1, 2, 1, 5]) == [False, *[True] * 9, False]
    assert not any(repeated_tokens([2, 2, 2, 1, 2, 2, 2])) and not any(repeated_tokens([1, 2, 3] * 3))
    assert repeated_tokens([]) == []


def test_doubtful_words_are_marked(place: Path, run: Run) -> None:
    """A tiny random model gives no word a probability; the mark stands in the table, in JSON and in a note."""
    how = ("align", str(place / "tone.wav"), "--model", str(place / "tiny"), "--target", "One two", "--language", "en")
    made = run(*how)
    assert [line.split("\t")[4] for line in made.out.splitlines()] == ["doubtful"] * 3
    assert "2 of 2 words are doubtful" in made.err
    assert [word["doubtful"] for word in run(*how, "--json").json["words"]] == [True, True]


def spoken(*words: tuple[str, float], length: float = 0.4) -> tuple[AlignedWord, ...]:
    return tuple(AlignedWord(text, start, round(start + length, 3), 0.875) for text, start in words)


def cues_of(*words: tuple[str, float]) -> list[str]:
    return [" ".join(word.text for word in cue) for cue in subtitle_cues(spoken(*words))]


def test_subtitles_end_with_sentences_and_pauses() -> None:
    words = ("One", 0), ("two.", 0.5), ("Three", 1.0), ("four", 1.5), ("five", 3.0), ("six", 3.5)
    assert cues_of(*words) == ["One two.", "Three four", "five six"]
    assert clock(3723.0456) == "01:02:03.046" and clock(0.5, ",") == "00:00:00,500"


def test_no_subtitle_is_one_word_unless_it_is_spoken_all_alone() -> None:
    assert cues_of(("Yes.", 0), ("I", 0.5), ("will", 1.0)) == ["Yes. I will"]
    assert cues_of(("I", 0), ("will.", 0.5), ("Yes.", 2.8), ("Then", 4.0), ("go", 4.5)) == ["I will.", "Yes. Then go"]
    assert cues_of(("I", 0), ("will.", 0.5), ("No.", 9), ("Go", 19), ("on", 19.5)) == ["I will.", "No.", "Go on"]
    long = [("a" * 20, 0.5 * index) for index in range(3)]
    assert cues_of(*long) == [" ".join(text for text, _ in long)]  # rather than two lines of two words and one
    assert [len(cue.split()) for cue in cues_of(*(("a" * 13, 0.5 * index) for index in range(4)))] == [2, 2]
    assert cues_of(("a" * 50, 0), ("b" * 50, 0.5)) == ["a" * 50 + " " + "b" * 50]


SPOKEN = spoken(("He", 0.05), ("said:", 0.5), ('"no!"', 0.9), ("línea\t日\n", 2.5), ("a b", 2.9), ("end", 3.3))
SPEECH = SimpleNamespace(language="en", words=SPOKEN, audio="my ;talk.wav", seconds=4.125)
READ_BACK = [
    (word.start, word.end, text)
    for word, text in zip(SPOKEN, ["He", "said:", '"no!"', "línea␉日␊", "a b", "end"], strict=True)
]


def test_praat_reads_every_interval_of_a_text_grid(tmp_path: Path) -> None:
    pytest.importorskip("praatio")
    parselmouth = pytest.importorskip("parselmouth", reason="pip install praat-parselmouth")
    (tmp_path / "a.TextGrid").write_bytes(transcript(cast(Any, SPEECH), "textgrid"))
    grid = parselmouth.read(str(tmp_path / "a.TextGrid"))

    def intervals(tier: int) -> list[tuple[float, float, str]]:
        count = parselmouth.praat.call(grid, "Get number of intervals", tier)
        ask = ("Get start time of interval", "Get end time of interval", "Get label of interval")
        return [
            tuple(parselmouth.praat.call(grid, what, tier, number) for what in ask) for number in range(1, count + 1)
        ]

    for tier, name, wanted in (
        (1, "words", READ_BACK),
        (2, "segments", [(0.05, 1.3, 'He said: "no!"'), (2.5, 3.7, "línea␉日␊ a b end")]),
    ):
        made = intervals(tier)
        assert parselmouth.praat.call(grid, "Get tier name", tier) == name
        assert [interval for interval in made if interval[2]] == [interval for interval in wanted if interval[2]]
        assert all(interval in made for interval in wanted)
        assert (made[0][0], made[-1][1]) == (0, 4.125) and all(a[1] == b[0] for a, b in itertools.pairwise(made))


def test_words_without_a_length_keep_their_own_intervals(tmp_path: Path) -> None:
    """Praat keeps one interval for each start: a word that takes no time has a millisecond."""
    pytest.importorskip("praatio")
    parselmouth = pytest.importorskip("parselmouth", reason="pip install praat-parselmouth")
    words = (
        AlignedWord("a", 1, 1, 1),
        AlignedWord("b", 1, 1.0005, 1),
        AlignedWord("c", 1, 2, 1),
        AlignedWord("d", 2, 2, 1),
    )
    made = transcript(cast(Any, SimpleNamespace(language="en", words=words, audio="a.wav", seconds=2)), "textgrid")
    (tmp_path / "a.TextGrid").write_bytes(made)
    table = parselmouth.praat.call(
        parselmouth.read(str(tmp_path / "a.TextGrid")), "Down to Table", False, 6, True, False
    )
    rows = [line.split("\t") for line in parselmouth.praat.call(table, "List", False).strip().splitlines()[1:]]
    of_words = [(float(start), text, float(end)) for start, tier, text, end in rows if tier == "words"]
    assert of_words == [(1, "a", 1.001), (1.001, "b", 1.002), (1.002, "c", 2), (2, "d", 2.001)]


def test_time_marks_and_labels_have_every_word() -> None:
    marks = [line.split(" ") for line in transcript(cast(Any, SPEECH), "ctm").decode().splitlines()]
    assert {line[0] for line in marks} == {"my__talk"} and {len(line) for line in marks} == {6}
    wanted = [(start, round(end - start, 3), text.replace(" ", "_"), 0.875) for start, end, text in READ_BACK]
    assert [(float(line[2]), float(line[3]), line[4], float(line[5])) for line in marks] == wanted
    named = [line.split("\t") for line in transcript(cast(Any, SPEECH), "txt").decode().split("\n")[:-1]]
    assert [(float(start), float(end), text) for start, end, text in named] == READ_BACK


def test_segments_have_the_words_as_whisperx_has_them(place: Path) -> None:
    """What whisperX's own writers take of its result (`whisperx.utils.get_writer`): start, end, text, words."""
    words = SPOKEN[:4]
    segments = json.loads(json.dumps([json_object(segment) for segment in spoken_segments(words, "en")]))
    assert [(part["start"], part["end"], part["text"]) for part in segments] == [
        (0.05, 1.3, 'He said: "no!"'), (2.5, 2.9, words[3].text)
    ]  # fmt: skip
    listed = [word for part in segments for word in part["words"]]
    assert listed == [{"word": word.text, "start": word.start, "end": word.end, "score": 0.875} for word in words]
    made = attnctl.align(place / "tone.wav", place / "tiny", target="One two. three", language="en")
    assert [word.word for part in made.segments for word in part.words] == [word.text for word in made.words]


def test_an_opened_whisper_hears_many_files(place: Path) -> None:
    opened = attnctl.open_model(str(place / "tiny"))
    how = {"target": "One two", "language": "en"}
    by_name = attnctl.align(place / "tone.wav", place / "tiny", **how)
    assert all(attnctl.align(place / "tone.wav", opened, **how).words == by_name.words for _ in range(2))
    with pytest.raises(TypeError, match="device is for the name of a model"):
        attnctl.align(place / "tone.wav", opened, device="cpu")


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_nothing_in_subtitles_steers_a_terminal_or_breaks_a_cue(form: str) -> None:
    texts = ("a\x1b[2Jb", "\u202ec", "d\n\n2\n00:00:09,000", "<b>&")
    words = tuple(AlignedWord(text, at, at + 0.4, 1.0) for at, text in enumerate(texts))
    written = subtitles(cast(Any, SimpleNamespace(language="en", words=words)), form)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", written)
    assert "a␛[2Jb" in written and "\\u202ec" in written and "d␊␊2␊00:00:09,000" in written
    assert written.count("\n\n") == len(subtitle_cues(words)) - (form == "srt")


def test_no_word_is_markup_in_srt() -> None:
    """What players and pysubs2 take for a tag or for times holds a word joiner; what is none is as it was."""
    texts = ("<i>a</i>", "{\\an8}b", "00:01-->00:02", "2<3", "<3", "{c}", "->")
    words = tuple(AlignedWord(text, at, at + 0.4, 1.0) for at, text in enumerate(texts))
    written = subtitles(cast(Any, SimpleNamespace(language="en", words=words)), "srt")
    lines = written.splitlines()
    assert sum("-->" in line for line in lines) == sum(line.isdigit() for line in lines)
    assert not re.search(r"<\/?[a-z]|\{\\", written) and all(text in written for text in texts[3:])
    assert all(text in written.replace("\u2060", "") for text in texts)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whisper base, where its packages are installed."""
    if whisper.package_files() is None:
        pytest.skip(whisper.LACKS)
    return whisper.write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def voice() -> Voice:
    """A voice that tells when each word begins, where libespeak-ng is installed."""
    try:
        return Voice()
    except OSError:
        pytest.skip("libespeak-ng is not installed: apt-get install espeak-ng")


def test_whisper_base_finds_words_in_time(tmp_path: Path, base: Path, voice: Voice) -> None:
    """The voice's own times: `bench_align` measures twenty sentences."""
    samples, times = voice.speak("The museum shows paintings from the last century.")
    path = whisper.write_wave(tmp_path / "a.wav", samples, rate=voice.rate)
    found = attnctl.align(path, base, target="The museum shows paintings from the last century.")
    late = np.abs(lateness(found.words, times))
    assert len(late) >= 6 and np.median(late) <= 0.08 and late.max() < 0.4
    assert found.language == "en" and found.common_heads >= 4
    assert json.dumps([f"{one.layer}.{one.head}" for one in found.named_heads]) == json.dumps(whisper.PUBLISHED)
    assert not any(word.doubtful for word in found.words)


def test_words_beside_silence_begin_where_they_are_said(tmp_path: Path, base: Path, voice: Voice) -> None:
    """Twelve seconds of silence before a sentence, four between two, three behind them."""
    first, second = "The train leaves at noon.", "Please close the window."
    (a, first_times), (b, second_times) = voice.speak(first), voice.speak(second)
    silence = [np.zeros(round(seconds * voice.rate), np.float32) for seconds in (12, 4, 3)]
    sound = np.concatenate([silence[0], a, silence[1], b, silence[2]])
    begins = 12, 16 + len(a) / voice.rate
    times = [
        (word, at + begin) for own, begin in zip((first_times, second_times), begins, strict=True) for word, at in own
    ]
    path = whisper.write_wave(tmp_path / "a.wav", sound, rate=voice.rate)
    found = attnctl.align(path, base, target=f"{first} {second}", language="en")
    late = np.abs(lateness(found.words, times))
    assert len(late) == 9 and np.median(late) <= 0.1 and late.max() < 0.4
    ends = 12 + len(a) / voice.rate, begins[1] + len(b) / voice.rate
    assert all(found.words[at].end < end + 0.02 for at, end in zip((4, -1), ends, strict=True))


def test_whisper_with_several_ends(place: Path, tmp_path: Path) -> None:
    """A list of ends; the usual one is first."""
    folder = shutil.copytree(place / "tiny", tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        settings["eos_token_id"] = [settings["eos_token_id"], settings["decoder_start_token_id"]]
        (folder / name).write_text(json.dumps(settings))
    for target in (None, "One two"):
        alone, several = (
            attnctl.align(str(place / "tone.wav"), name, target=target) for name in (place / "tiny", folder)
        )
        assert several.text == alone.text and several.words == alone.words
