"""Sources of answers: prompts whose truth is planted: is the source named, and how long does the search take?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from attnctl.commands.needle.haystack import filler_sentences
from attnctl.formats.chat import Conversation, Message
from tests.tools.benchmarks.measuring import Row, benchmark, linear_rate, linear_weights, seconds_of

NAMES = ("Anna", "Bruno", "Chidi", "Dora", "Emil", "Farah", "Goran", "Hana", "Igor", "Jana")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TOWNS = ("Brno", "Lagos", "Quito", "Oslo", "Perth", "Turin", "Kyoto", "Lima")
# what is planted, what is asked, and the answers; {} is what only the document knows
FACTS = (
    (
        "The secret code of the vault is {}.",
        "What is the secret code of the vault?",
        tuple(map(str, range(1000, 10000))),
    ),
    ("{} keeps the key to the boathouse.", "Who keeps the key to the boathouse?", NAMES),
    ("The meeting of the council was moved to {}.", "To which day was the meeting of the council moved?", DAYS),
    ("The lost ring was found in {}.", "In which town was the lost ring found?", TOWNS),
)
PROMPTS = 60


@dataclass(frozen=True)
class Planted:
    """A prompt, the documents that hold its answer, and what the answer must hold."""

    conversation: Conversation
    documents: tuple[int, ...]
    expect: str
    answer: str | None = None


def conversation_about(documents: list[str], question: str) -> Conversation:
    """Return the documents, numbered, and a question as one message."""
    body = "\n".join(f"[document {at}] {text}" for at, text in enumerate(documents))
    return Conversation((Message("user", f"{body}\n\n{question}"),))


def fillers(seed: int, documents: int) -> list[str]:
    """Return documents of two sentences."""
    sentences: Iterator[str] = filler_sentences(seed)
    return [" ".join(islice(sentences, 2)) for _ in range(documents)]


def one_fact(seed: int) -> Planted:
    """Return a fact in one of twenty documents; each fourth seed has the same fact and documents, its place moved."""
    text, question, answers = FACTS[(seed // 4) % len(FACTS)]
    expect = random.Random(seed // 4).choice(answers)
    documents, at = fillers(seed // 4, 20), random.Random(seed).randrange(20)
    documents[at] += f" {text.format(expect)}"
    return Planted(conversation_about(documents, question), (at,), expect)


def three_facts(seed: int) -> Planted:
    """Return three people's codes in three of sixty documents, and a question for all three."""
    draw = random.Random(seed)
    places, who = draw.sample(range(60), 3), draw.sample(NAMES, 3)
    codes = [f"{draw.randrange(10000):04d}" for _ in who]
    documents = fillers(seed, 60)
    for at, name, code in zip(places, who, codes, strict=True):
        documents[at] += f" {name}'s code is {code}."
    question = f"What are the codes of {who[0]}, {who[1]} and {who[2]}?"
    answer = ", ".join(f"{name}'s code is {code}" for name, code in zip(who, codes, strict=True))
    return Planted(conversation_about(documents, question), tuple(places), codes[0], f"{answer}.")


def prompt_of(model: Any, conversation: Conversation) -> Any:
    """Return the conversation by the model's template, or as a text with a question where it has none."""
    from attnctl.formats.chat import Prompt

    if "chat_template" in model.pieces.settings:
        return model.prompt_of(conversation)
    body, _, question = conversation.messages[0].content.rpartition("\n\n")
    return Prompt(f"{body}\n\nQuestion: {question}\nAnswer:", ())


@benchmark(quick=False)
def planted() -> Iterator[Row]:
    """Yield how often each column's first document is that with the fact, of the prompts that SmolLM2 answers."""
    from attnctl.commands.sources.search import SourceSearch
    from attnctl.models import open_model
    from attnctl.models.huggingface.answers import AnsweredPrompt
    from attnctl.text.tokens import ids_of

    model: Any = open_model("smollm2")
    right: Counter[str] = Counter()
    for seed in range(PROMPTS):
        case = one_fact(seed)
        prompt = prompt_of(model, case.conversation)
        read = AnsweredPrompt(model, ids_of(model.prompt_tokens(prompt.text)))
        read.generate_answer(24)
        if case.expect.casefold() not in model.pieces.tokenizer.decode(list(read.answer)).casefold():
            continue
        search = SourceSearch(model, prompt, answer_limit=24, budget=64)
        list(search.measure_all())
        parts = [part for part in search.found_so_far().parts if part.name.startswith("document ")]
        firsts = {
            "matters": min(parts, key=lambda part: part.matters),
            "writes": max(parts, key=lambda part: part.writes or 0.0),
            "looks": max(parts, key=lambda part: part.looks),
        }
        right["answered"] += 1
        right.update(column for column, first in firsts.items() if first.name == f"document {case.documents[0]}")
    for column in ("matters", "writes", "looks"):
        share = right[column] / max(1, right["answered"])
        peer = f"{right['answered']} of {PROMPTS} prompts answered"
        yield Row(f"sources: the document with the fact by {column}", peer, 100 * share, "%")


@benchmark(quick=False)
def search() -> Iterator[Row]:
    """Yield the search with its default budget against leaving out each document by a full forward."""
    import torch

    from attnctl.commands.sources.search import SourceSearch, answer_ids
    from attnctl.models import open_model
    from attnctl.text.tokens import ids_of

    torch.set_num_threads(1)
    model: Any = open_model("smollm2")
    case = three_facts(0)
    prompt = prompt_of(model, case.conversation)
    searched = SourceSearch(model, prompt, answer=case.answer)
    ours = seconds_of(lambda: list(searched.measure_all()))
    first = [part.name for part in searched.found_so_far().parts if part.alone and part.name.startswith("d")][:3]
    ids = [*ids_of(model.prompt_tokens(prompt.text)), *answer_ids(model, case.answer or "")]
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()  # (n, n)
    mask[100:, 40:80] = False

    @torch.inference_mode()
    def forward() -> None:
        model.network(input_ids=torch.tensor([ids]), attention_mask=mask[None, None], logits_to_keep=32)

    def leave_out_each() -> None:
        for part in searched.parts:
            if part.name.startswith("d"):
                exact[part.name] = abs(float((searched.read.log_probabilities(part.ranges) - searched.base).sum()))

    exact: dict[str, float] = {}
    cached, plain = seconds_of(leave_out_each), 60 * seconds_of(forward)
    same = "the same" if first == sorted(exact, key=lambda part: -exact[part])[:3] else "others"
    times = {"ours": f"{ours:.0f} s", "theirs": f"{plain:.0f} s"}
    yield Row(f"sources, {len(ids):,} tokens, SmolLM2", "60 forwards", ours / plain, most=0.3, **times)
    limit = f"first three documents: {same}"
    yield Row("sources", "60 parts left out through the cache", ours / cached, ours=times["ours"], limit=limit)


@benchmark(quick=False)
def needle() -> Iterator[Row]:
    """Yield ten needles, asked again with heads off and with as many others off, against `generate` of each prompt."""
    import torch

    from attnctl.commands.needle.compute import NeedleAsker
    from attnctl.models import open_model
    from attnctl.text.tokens import ids_of

    torch.set_num_threads(1)
    model: Any = open_model("smollm2")
    asker = NeedleAsker(model)
    places = [(length, share / 4) for length in (512, 1024) for share in range(5)]
    answers: list[Any] = []
    ours = seconds_of(lambda: answers.append(asker.needles_of(list(asker.ask_needles(places)), 10)))
    runs = 5 * (1 + 2 * bool(answers[0].off))
    plain = 0.0
    for length in (512, 1024):
        ids = torch.tensor([ids_of(asker._prompt_of_length(length, 0.5)[1])])
        how = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
        plain += runs * seconds_of(lambda ids=ids, how=how: model.network.generate(ids, **how))
    # filler stands before half of each needle: read once for all, and what is behind it for each
    read = (512 + 1024) * runs / 2 + 1024 * runs / 5
    floor = read * linear_weights(model.network.base_model) / linear_rate()
    times = {"ours": f"{ours:.0f} s", "theirs": f"{plain:.0f} s"}
    limit = f"{floor / plain:.2f} by the linear layers alone"
    yield Row("needle, ten places, heads off", "generate of each prompt", ours / plain, most=1.0, **times, limit=limit)
