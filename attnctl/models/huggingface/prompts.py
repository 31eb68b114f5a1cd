"""A conversation as a checkpoint reads it: its own chat template filled in, and where each message then stands."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnctl.arrays import Floats
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.formats.chat import Conversation, Message
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.contributions import writes_by_token
from attnctl.models.huggingface.template_process import template_process
from attnctl.models.huggingface.tokenizer import named_token
from attnctl.readings.effects.answer_sources import (
    SINK,
    TEMPLATE,
    AnswerSources,
    Found,
    PartSource,
    PromptPart,
    picture_parts,
    prompt_parts,
    search_parts,
)
from attnctl.text import quoted_beginning
from attnctl.tokens import Token


@dataclass(frozen=True)
class Prompt:
    """A conversation rendered to the text that the model reads.

    `spans` are (name, start, end) in characters, one a message that has content; what stands between them is the
    template's own: role names, separators, its default system message.
    """

    text: str
    spans: tuple[tuple[str, int, int], ...]


def template_of(settings: dict[str, object], name: str) -> str:
    """The chat template of a checkpoint, from its tokenizer's settings. Raises AttnctlError without one."""
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise AttnctlError(f"{name} has no chat template, so it reads no conversation: give it a text")
    return template


def render_conversation(
    conversation: Conversation, template: str, settings: dict[str, object], name: str, *, answer: bool
) -> Prompt:
    """The conversation by this template; `answer`: up to where the model is to answer.

    Raises AttnctlError where the template fails or refuses (some know no system message, or no two users in a row).
    """
    special = {key: named_token(settings, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
    messages = conversation.messages
    marks = [replace(message, content=_message_mark(at)) for at, message in enumerate(messages)]
    try:
        text, marked = template_process.fill_templates(
            template,
            [[{"role": one.role, "content": one.content, **one.more} for one in said] for said in (messages, marks)],
            tools=list(conversation.tools) or None,
            add_generation_prompt=answer,
            **special,
        )
    except ValueError as error:
        raise AttnctlError(f"the chat template of {name} refuses this conversation: {in_one_line(error)}") from error
    except AttnctlError as error:
        raise AttnctlError(f"the chat template of {name} is given up: {error}") from None
    return Prompt(text, _message_spans(text, marked, messages, name))


def _message_mark(at: int) -> str:
    """What stands for message `at` while its place is looked for: characters that no template and no text has."""
    return "\ue000" + "".join(chr(0xE001 + int(digit)) for digit in str(at)) + "\ue00f"


def _message_spans(text: str, marked: str, messages: Sequence[Message], name: str) -> tuple[tuple[str, int, int], ...]:
    """Where each message's content stands in `text`: (name, start, end), in the order of the text.

    `marked` is the same conversation with a mark for each content. Templates may strip the white space around a content,
    and leave whole messages out. Raises AttnctlError where a content cannot be found again.
    """
    places = sorted((marked.index(_message_mark(at)), at) for at in range(len(messages)) if _message_mark(at) in marked)
    spans, here, before = [], 0, 0  # where we are in `text`, and in `marked`
    for place, at in places:
        here += place - before
        before = place + len(_message_mark(at))
        content = messages[at].content
        if not text.startswith(content, here):
            content = content.strip()
        start = here if text.startswith(content, here) else text.find(content, here)
        if start < 0 and messages[at].role in ("system", "developer", "assistant"):
            continue  # templates leave an assistant's reasoning out, and reword a system message
        if start < 0:
            raise AttnctlError(f"the chat template of {name} changes message {at} ({messages[at].role})")
        here = start + len(content)
        if content.strip():
            spans.append((f"{at} {messages[at].role}", start, here))
    return tuple(spans)


LEARNED_SINK = "(learned sink)"
LEAST_SINK = 1e-3  # of the attention that no token has: less is rounding
NEUTRAL = "Write a general description of the image."  # what relative attention is relative to (Zhang et al. 2025)
ANSWER = 64  # tokens of an answer, unless told otherwise


def chat_prompt(model: Checkpoint, conversation: Conversation) -> Prompt:
    """The conversation by the checkpoint's own template, up to its answer. Errors as of `render_conversation`."""
    settings, name = model.pieces.settings, model.info.name
    if model.pieces.text_pair is not None:
        raise UsageError(f"does not go with {option_name('chat')}: a conversation is one text", option="text_pair")
    if hasattr(model, "photograph"):
        why = f"does not go with {option_name('image')}: give what is said of the picture as the text"
        raise UsageError(why, option="chat")
    return render_conversation(conversation, template_of(settings, name), settings, name, answer=True)


def prompt_tokens(model: Checkpoint, text: str) -> tuple[Token, ...]:
    """The tokens of a prompt; where template and tokenizer both begin it, it begins once."""
    tokens = model.tokenize(text)
    doubled = (
        len(tokens) > 1 and tokens[0].id == tokens[1].id == model.pieces.bos_id and not hasattr(model, "photograph")
    )
    return tokens[1:] if doubled else tokens


def begun_once(model: Checkpoint, text: str) -> str:
    """A prompt's text without the token that begins it where the tokenizer adds that by itself."""
    tokens = model.tokenize(text)
    kept = prompt_tokens(model, text)
    return text if len(kept) == len(tokens) else text[tokens[1].end or 0 :]


@dataclass(frozen=True)
class ForwardCost:
    """Seconds of a forward behind the cache: those that any takes, and those of each token of the prompt."""

    fixed: float
    each: float
    is_measured: bool = False  # on a forward too, not on the reading of the prompt alone

    def seconds_of(self, tokens: float) -> float:
        """Of a forward over so many tokens of the prompt."""
        return self.fixed + self.each * tokens

    def measured(self, seconds: float, tokens: int) -> ForwardCost:
        """The cost by the reading and the first forward that was made, in the middle between both: each is slow to start."""
        if self.is_measured:
            return self
        return ForwardCost(self.fixed, (self.each + max(0.0, seconds - self.fixed) / tokens) / 2, True)


@dataclass
class SourceSearch:
    """A prompt, its parts, and the answer to it; `run` measures part after part, `result` is what is known so far."""

    model: Checkpoint
    prompt: Prompt
    kind: str | None = None  # of the parts, as --spans
    answer: str | None = None  # None: the model's own, greedily
    most: int = ANSWER  # tokens of an answer of its own
    budget: int = 20  # forwards

    def __post_init__(self) -> None:
        self.model = self.model.of_text(self.prompt.text)
        self.tokens = prompt_tokens(self.model, self.prompt.text)
        patches = [at for at, token in enumerate(self.tokens) if token.box is not None]
        if patches:
            self.parts = picture_parts(self.kind, self.prompt.text, self.tokens)
        else:
            self.parts = prompt_parts(self.prompt.text, self.tokens, self.kind, self.prompt.spans)
        start = time.perf_counter()
        self.read = AnsweredPrompt(self.model, ids_of(self.tokens), together=self.model.read_together(self.tokens))
        self.read_seconds = time.perf_counter() - start
        if self.answer is None:
            self.read.generate_answer(self._answer_room())
        else:
            self.read.answer = answer_ids(self.model, self.answer)
            self._answer_room()
        self.looked = self.read.answer_looks().mass_of_keys()  # (n_k,)
        self.begun = self._looks_of_beginning(patches) if patches else None
        start = time.perf_counter()
        self.base = self.read.log_probabilities()  # (m,)
        self.cost = ForwardCost(time.perf_counter() - start, self.read_seconds / len(self.tokens))
        self.removed: dict[int, float] = {}
        self.tokens_read = 0  # by the forwards of the search
        self.found = Found()
        self.written: Floats | None = None  # (n_k,), what each token writes to the answer directly
        self.notes: tuple[str, ...] = ()
        try:
            self.written, self.notes = writes_by_token(self.read)
        except AttnctlError as why:
            self.notes = (f"No column says what the parts write: {why}.",)

    def _looks_of_beginning(self, patches: Sequence[int]) -> tuple[Floats, Floats]:
        """Where the last token of the prompt looks in the picture, and where after NEUTRAL in its place: (n,) each."""
        plain, both = self.model.of_text(NEUTRAL), []
        for model, tokens in ((self.model, self.tokens), (plain, prompt_tokens(plain, NEUTRAL))):
            places = [at for at, token in enumerate(tokens) if token.box is not None]
            read = AnsweredPrompt(model, ids_of(tokens), self.read.answer[:1], together=model.read_together(tokens))
            looks = np.zeros(len(self.tokens), np.float32)
            looks[patches] = read.answer_looks().mass_of_keys()[places]
            both.append(looks)
        return both[0], both[1]

    def _answer_room(self) -> int:
        """How many tokens an answer may have. Raises AttnctlError where prompt and answer are more than the model reads."""
        limit, wanted = self.model.pieces.limit, len(self.read.answer) or 1
        room = self.most if limit is None else min(self.most, limit - len(self.tokens))
        if limit is not None and len(self.tokens) + wanted > limit:
            raise AttnctlError(
                f"the prompt has {len(self.tokens):,} tokens, and {self.model.info.name} reads {limit:,} with the answer"
            )
        return room

    @property
    def forwards(self) -> int:
        """How many forwards the search makes at most."""
        return min(len(self.parts), self.budget)

    def estimated_seconds(self, remove: bool = False) -> float:
        """About how long the forwards take; with `remove` those of prompts without a part, too.

        By how long the prompt took to read, and once a forward was made by that one.
        """
        again = remove * len(self.parts) * self.cost.seconds_of(len(self.tokens))
        return self.forwards * self.cost.seconds_of(self._mean_behind()) + again

    def share_done(self, remove: bool = False) -> float:
        """How much is done of the tokens that the forwards read at most, 0 to 1; `remove` as above."""
        whole = self.forwards * self._mean_behind() + remove * len(self.parts) * len(self.tokens)
        return min(1.0, (self.tokens_read + len(self.removed) * len(self.tokens)) / whole)

    def _mean_behind(self) -> float:
        """How many tokens a forward reads that hides one part, on average."""
        return sum(self._tokens_behind((part,)) for part in range(len(self.parts))) / len(self.parts)

    def cost_notes(self, remove: bool, least: float) -> tuple[str, ...]:
        """How many forwards are made and about how long they take, where that is more than `least` seconds; as one note."""
        seconds, forwards = self.estimated_seconds(remove), self.forwards + remove * len(self.parts)
        fewer = f"{option_name('budget')} takes fewer"
        told = f"{len(self.parts)} parts: {forwards} forwards at most, about {seconds:.0f} s ({fewer})"
        return (told,) * (seconds > least)

    def _tokens_behind(self, group: Sequence[int]) -> int:
        """How many tokens a forward reads that hides a group of parts."""
        first = min(self.parts[at].ranges[0][0] for at in group)
        return len(self.tokens) - (0 if first < self.read.together else first)

    def measure_all(self) -> Iterator[int]:
        """Measure; yields the number of forwards made after each of them."""

        def change(group: Sequence[int]) -> Floats:
            self.read.leaves_out()  # is tried here, not on the clock of the first forward
            start = time.perf_counter()
            hidden = self.read.log_probabilities([one for at in group for one in self.parts[at].ranges])  # (m,)
            behind = self._tokens_behind(group)
            self.tokens_read += behind
            if len(group) == 1 and 2 * behind >= len(self.tokens):  # of fewer tokens it tells too little
                self.cost = self.cost.measured(time.perf_counter() - start, behind)
            return hidden - self.base  # (m,)

        for found in search_parts(len(self.parts), change, self.budget, self._likely()):
            self.found = found
            yield found.measured

    def _likely(self) -> list[int]:
        """The parts, those first that write most to the answer, or that it looks at most: by turns."""
        columns = [self.looked] if self.written is None else [np.abs(self.written), self.looked]
        shares = [[-part.share_of(column) for part in self.parts] for column in columns]
        ranked = [np.argsort(several, kind="stable").tolist() for several in shares]
        return list(dict.fromkeys(at for several in zip(*ranked, strict=True) for at in several))

    def remove_parts(self, conversation: Conversation | None) -> Iterator[int]:
        """Measure each part that was measured alone by rendering the prompt without it; yields how many were.

        A prompt that is one part has nothing left to answer: a note says so.
        """
        for count, at in enumerate(sorted(self.found.alone), 1):
            text = prompt_without(self.model, self.prompt, self.parts[at], conversation)
            tokens = prompt_tokens(self.model, text)
            if tokens:
                again = AnsweredPrompt(self.model, ids_of(tokens), self.read.answer, after=self.read)
                self.removed[at] = float((again.log_probabilities() - self.base).sum())
            else:
                self.notes += (f"Without {quoted_beginning(self.parts[at].name)} nothing of the prompt is left.",)
            yield count

    def found_so_far(self) -> AnswerSources:
        """What is known so far, what matters most first; parts not reached yet are left out."""
        known = [at for at in range(len(self.parts)) if at in self.found.changes]
        sources = [(self._part_source(at), self.found.changes[at]) for at in known]
        sources.sort(key=lambda one: (not one[0].alone, one[0].matters))
        sources.sort(key=lambda one: -abs(one[0].matters) if one[0].alone else 0.0)
        notes = [*self.notes]
        notes += [] if len(known) == len(self.parts) else [f"{len(self.parts) - len(known)} parts were not reached."]
        groups = len(known) - len(self.found.alone)
        if groups:
            notes.append(
                f"{groups} parts were not measured alone, only with their neighbours: together they matter less than the "
                "parts listed first, or the budget was spent."
            )
        answer = self.answer
        if answer is None:
            answer = self.model.pieces.tokenizer.decode(list(self.read.answer), skip_special_tokens=False)
        return AnswerSources(
            prompt=self.prompt.text,
            model=self.model.info,
            answer=answer,
            answer_tokens=self.model.pieces.continued_tokens(self.read.prompt, self.read.answer),
            log_probabilities=self.base,
            parts=tuple(source for source, _ in sources),
            changes=tuple(change for _, change in sources),
            apart=self._shares_apart(),
            forwards=self.read.forwards + len(self.removed),
            given=self.answer is not None,
            notes=tuple(notes),
        )

    def _part_source(self, at: int) -> PartSource:
        part = self.parts[at]
        asked, plain = (None, None) if self.begun is None else map(part.share_of, self.begun)
        return PartSource(
            name=part.name,
            start=part.start,
            end=part.end,
            box=part.box,
            looks=part.share_of(self.looked),
            relative=asked / plain if asked is not None and plain else None,
            matters=float(self.found.changes[at].sum()),
            alone=at in self.found.alone,
            writes=None if self.written is None else part.share_of(self.written),
            removed=self.removed.get(at),
        )

    def _shares_apart(self) -> dict[str, float]:
        """The shares of attention that no part has, by name."""
        held = np.zeros(len(self.looked), dtype=bool)
        for part in self.parts:
            for a, b in part.ranges:
                held[a:b] = True
        n = len(self.tokens)
        template = self.looked[1:n][~held[1:n]].sum()
        said = {
            SINK: 0.0 if self.tokens[0].box else self.looked[0],
            TEMPLATE if self.prompt.spans else "(rest)": template,
        }
        said |= {"(the answer itself)": self.looked[n:].sum()}
        unseen = 1.0 - float(self.looked.sum())
        said |= {LEARNED_SINK: unseen} if unseen > LEAST_SINK else {}
        return {name: float(value) for name, value in said.items()}


def ids_of(tokens: Sequence[Token]) -> tuple[int, ...]:
    """The ids of a checkpoint's tokens."""
    return tuple(token.id for token in tokens if token.id is not None)


def answer_ids(model: Checkpoint, answer: str) -> tuple[int, ...]:
    """The ids that spell an answer behind a prompt. Raises UsageError where it has none."""
    ids: Any = model.pieces.tokenizer.encode(answer, add_special_tokens=False).ids
    if not ids or not answer.strip():
        raise UsageError("it has no tokens: give the words of the answer", option="answer", value=answer)
    return tuple(ids)


def prompt_without(model: Checkpoint, prompt: Prompt, part: PromptPart, conversation: Conversation | None) -> str:
    """The prompt's text without a part; a message that is the part is left out of its conversation."""
    if conversation is not None:
        for number, message in enumerate(conversation.messages):
            if part.name == f"{number} {message.role}":
                rest = tuple(m for at, m in enumerate(conversation.messages) if at != number)
                if not rest:
                    break
                try:
                    return chat_prompt(model, replace(conversation, messages=rest)).text
                except AttnctlError:  # a template that wants this message: its content alone goes
                    break
    return prompt.text[: part.start] + prompt.text[part.end :]
