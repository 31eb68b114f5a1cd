"""Where answers came from, on prompts whose truth is planted: is the source named, and how long does the search take?

python -m tests.tools.benchmarks.bench_sources planted [MODEL] [PROMPTS]: a fact in one of twenty documents, swapped between them.
python -m tests.tools.benchmarks.bench_sources search [MODEL] [PROMPTS]: three facts in sixty documents, against the plain loop.
python -m tests.tools.benchmarks.bench_sources needle [MODEL] [HEADS]: ten needles, with so many heads off and as many others.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from attnctl.commands.needle.compute import NeedleAsker
from attnctl.commands.needle.haystack import filler_sentences
from attnctl.commands.sources.search import SourceSearch, answer_ids
from attnctl.formats.chat import Conversation, Message
from attnctl.models import open_model
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.models.huggingface.prompts import Prompt, chat_prompt, ids_of, prompt_tokens

NAMES = ("Anna", "Bruno", "Chidi", "Dora", "Emil", "Farah", "Goran", "Hana", "Igor", "Jana")
# what is planted, what is asked, and the answer; {} is what only the document knows
FACTS = (
    ("The secret code of the vault is {}.", "What is the secret code of the vault?", "codes"),
    ("{} keeps the key to the boathouse.", "Who keeps the key to the boathouse?", "names"),
    ("The meeting of the council was moved to {}.", "To which day was the meeting of the council moved?", "days"),
    ("The lost ring was found in {}.", "In which town was the lost ring found?", "towns"),
)
ANSWERS = {
    "names": NAMES,
    "days": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "towns": ("Brno", "Lagos", "Quito", "Oslo", "Perth", "Turin", "Kyoto", "Lima"),
}


@dataclass(frozen=True)
class Planted:
    """A prompt, the documents that hold its answer, and what the answer must hold."""

    conversation: Conversation
    documents: tuple[int, ...]
    expect: str
    answer: str | None = None


def one_fact(seed: int, documents: int = 20) -> Planted:
    """A fact in one of several documents; the same fact and documents at each fourth seed, the fact's place moved."""
    rng = random.Random(seed // 4)
    text, question, kind = FACTS[(seed // 4) % len(FACTS)]
    expect = f"{rng.randrange(1000, 10000)}" if kind == "codes" else rng.choice(ANSWERS[kind])
    said, at = _fillers(seed // 4, documents), random.Random(seed).randrange(documents)
    said[at] += f" {text.format(expect)}"
    return Planted(_asked(said, question), (at,), expect)


def three_facts(seed: int, documents: int = 60) -> Planted:
    """Three people's codes in three documents, and a question for all three."""
    rng = random.Random(seed)
    places, who = rng.sample(range(documents), 3), rng.sample(NAMES, 3)
    codes = [f"{rng.randrange(10000):04d}" for _ in who]
    said = _fillers(seed, documents)
    for at, name, code in zip(places, who, codes, strict=True):
        said[at] += f" {name}'s code is {code}."
    question = f"What are the codes of {who[0]}, {who[1]} and {who[2]}?"
    answer = ", ".join(f"{name}'s code is {code}" for name, code in zip(who, codes, strict=True))
    return Planted(_asked(said, question), tuple(places), codes[0], f"{answer}.")


def prompt_for(model: Any, conversation: Conversation) -> Prompt:
    """The conversation by the model's template, or as a text with a question where it has none."""
    if "chat_template" in model.pieces.settings:
        return chat_prompt(model, conversation)
    body, _, question = conversation.messages[0].content.rpartition("\n\n")
    return Prompt(f"{body}\n\nQuestion: {question}\nAnswer:", ())


def _fillers(seed: int, documents: int) -> list[str]:
    sentences: Iterator[str] = filler_sentences(seed)
    return [" ".join(islice(sentences, 2)) for _ in range(documents)]


def _asked(documents: list[str], question: str) -> Conversation:
    body = "\n".join(f"[document {at}] {text}" for at, text in enumerate(documents))
    return Conversation((Message("user", f"{body}\n\n{question}"),))


def place_named(prompt: Any, part: str) -> int | None:
    """The number of the document that a part is; None for any other part."""
    return int(part.removeprefix("document ")) if part.startswith("document ") else None


def planted(name: str, count: int) -> None:
    """Of the prompts that the model answers: how often each column's first document is the one with the fact."""
    model: Any = open_model(name)
    right: Counter[str] = Counter()
    places: dict[int, list[bool]] = {}
    looked = np.zeros(20)
    asked = 0
    for seed in range(count):
        case = one_fact(seed)
        prompt = prompt_for(model, case.conversation)
        if not _answers(model, prompt, case):
            continue
        search = SourceSearch(model, prompt, most=24, budget=64)
        list(search.measure_all())
        parts = [part for part in search.found_so_far().parts if place_named(prompt, part.name) is not None]
        firsts = {
            "matters": min(parts, key=lambda part: part.matters),
            "writes": max(parts, key=lambda part: part.writes or 0.0),
            "looks": max(parts, key=lambda part: part.looks),
        }
        asked += 1
        for column, first in firsts.items():
            right[column] += place_named(prompt, first.name) == case.documents[0]
        places.setdefault(case.documents[0] // 5, []).append(
            place_named(prompt, firsts["matters"].name) == case.documents[0]
        )
        for part in parts:
            at = place_named(prompt, part.name)
            looked[at or 0] += part.looks if at != case.documents[0] else 0.0
        print(f"\r{seed + 1} of {count}, {asked} answered, {dict(right)}", end="", file=sys.stderr, flush=True)
    print(f"\n{name} answers {asked} of {count} prompts of twenty documents; the document with the fact is named by")
    for column in ("matters", "writes", "looks"):
        print(f"  {column:8} {right[column]} of {asked}: {right[column] / max(1, asked):.1%}")
    for quarter, hits in sorted(places.items()):
        print(f"  fact in documents {5 * quarter} to {5 * quarter + 4}: {sum(hits)} of {len(hits)} by what matters")
    shares = [f"{looked[a : a + 5].sum() / looked.sum():.0%}" for a in (0, 5, 10, 15)]
    print(
        f"position bias: of the looks at documents without the fact, {', '.join(shares)} go to each quarter of the prompt"
    )


def _answers(model: Any, prompt: Prompt, case: Planted) -> bool:
    read = AnsweredPrompt(model, ids_of(prompt_tokens(model, prompt.text)))
    read.generate_answer(24)
    return case.expect.casefold() in model.pieces.tokenizer.decode(list(read.answer)).casefold()


def search_time(name: str, count: int) -> None:
    """The search with its default budget against the plain loop, and against leaving out each part through the cache."""
    model: Any = open_model(name)
    for seed in range(count):
        case = three_facts(seed)
        prompt = prompt_for(model, case.conversation)
        start = time.process_time()
        search = SourceSearch(model, prompt, answer=case.answer)
        list(search.measure_all())
        ours = time.process_time() - start
        found = [part.name for part in search.found_so_far().parts if part.alone and part.name[0] == "d"][:3]
        plain = 60 * _plain_forward(model, prompt, case)
        start = time.process_time()
        exact = {
            part.name: abs(float((search.read.log_probabilities([part.tokens]) - search.base).sum()))
            for part in search.parts
            if part.name[0] == "d"
        }
        cached = time.process_time() - start
        best = sorted(exact, key=lambda part: -exact[part])[:3]
        same = "the same" if found == best else f"{found}, not {best}"
        print(
            f"{len(search.tokens):,} tokens, {search.read.forwards - len(exact)} forwards, {ours:.0f} s: {ours / plain:.2f} of "
            f"the plain loop's {plain:.0f} s, {ours / cached:.2f} of {cached:.0f} s through the cache; top three {same}",
            flush=True,
        )


def _plain_forward(model: Any, prompt: Prompt, case: Planted) -> float:
    """CPU seconds of one forward over prompt and answer with a mask (1, 1, n, n) that hides a document."""
    import torch

    ids = [*ids_of(prompt_tokens(model, prompt.text)), *answer_ids(model, case.answer or "")]
    mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()  # (n, n)
    mask[100:, 40:80] = False
    start = time.process_time()
    with torch.inference_mode():
        model.network(input_ids=torch.tensor([ids]), attention_mask=mask[None, None], logits_to_keep=32)
    return time.process_time() - start


def needle_time(name: str, off: int) -> None:
    """Ten needles and those asked again with heads off, against transformers' `generate` of each prompt, and the products."""
    import torch

    model: Any = open_model(name)
    asker = NeedleAsker(model)
    places = [(length, share / 4) for length in (512, 1024) for share in range(5)]
    start = time.process_time()
    found = asker.needles_of(list(asker.ask_needles(places)), off)
    ours = time.process_time() - start
    plain, read = 0.0, 0.0
    runs = 5 * (1 + 2 * bool(found.off))
    for length in (512, 1024):
        ids = torch.tensor([ids_of(asker._prompt_of_length(length, 0.5)[1])])
        start = time.process_time()
        model.network.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)
        plain += runs * (time.process_time() - start)
        # filler stands before half of each needle: read once for all, and what is behind it for each
        read += length * runs / 2
    read += 1024 * runs / 5
    weights = sum(
        part.weight.numel() for part in model.network.base_model.modules() if isinstance(part, torch.nn.Linear)
    )
    x, matrix = torch.randn(512, 576), torch.ops.mkldnn._reorder_linear_weight(torch.randn(1536, 576), 512)
    start = time.process_time()
    for _ in range(200):
        torch.ops.mkldnn._linear_pointwise(x, matrix, None, "none", [], "")
    rate = 200 * x.numel() * 1536 / (time.process_time() - start)
    print(
        f"{found.answered} of {len(places)} needles, {off} heads off: {ours:.0f} s, {ours / plain:.2f} of generate's "
        f"{plain:.0f} s; bare matrix products of the {read:,.0f} tokens read {read * weights / rate:.0f} s"
    )


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    what, model_name, prompts = [*sys.argv[1:], *("search", "smollm2", "")[len(sys.argv) - 1 :]][:3]
    if what == "planted":
        planted(model_name, int(prompts or 60))
    elif what == "needle":
        needle_time(model_name, int(prompts or 10))
    else:
        search_time(model_name, int(prompts or 3))
