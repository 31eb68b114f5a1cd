"""What a model that answers prompts does: read a prompt, answer it, and measure the answer with parts of it hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attnctl.source.model import CanIntervene, Generates, SpellsTokens

if TYPE_CHECKING:
    from attnctl.attention import Array
    from attnctl.blockwise import Tick
    from attnctl.formats.chat import Conversation, Prompt
    from attnctl.runtime.arrays import Floats
    from attnctl.text.tokens import Token


class AnswerLooks(Protocol):
    """Where the queries that predict an answer look."""

    @property
    def strongest(self) -> Mapping[int, Array]:
        """Return layer → the key that each head and query attends to most: (heads, m)."""

    def mass_of_keys(self) -> Floats:
        """Return the mean weight of each key, over all heads, layers and queries: (n_k,)."""


class AnsweredPrompt(Protocol):
    """A prompt that a model has read, and its answer, as ids of tokens; `answer` may be given, or generated."""

    answer: tuple[int, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        """Return the ids of the prompt's tokens."""

    @property
    def together(self) -> int:
        """Return how many tokens must be read in one forward, because they see each other or include a picture; else 0."""

    @property
    def forwards(self) -> int:
        """Return how many forwards were made with hidden parts."""

    def another(self, tokens: Sequence[Token], answer: Sequence[int] = (), /) -> AnsweredPrompt:
        """Read another prompt, except what both begin with."""

    def generate_answer(self, count: int) -> None:
        """Generate the answer greedily, of at most `count` tokens. Raises AttnctlError for an empty answer."""

    def log_probabilities(self, hidden: Sequence[tuple[int, int]] = ()) -> Floats:
        """Return the log-probability of each answer token, given the tokens before it: (m,).

        `hidden` are ranges [a, b) of the prompt's tokens that later tokens cannot see.
        """

    def leaves_out(self) -> bool:
        """Return whether hidden tokens are left out of the forward; the first call tries it."""

    def answer_looks(self) -> AnswerLooks:
        """Return where the queries that predict the answer look."""

    def writes_by_token(self) -> tuple[Floats, tuple[str, ...]]:
        """Return what each token adds directly to the answer's log-probability, in nats (n_k,), and notes.

        Raises AttnctlError for an architecture whose logits are not such a sum.
        """


@runtime_checkable
class AnswersPrompts(Generates, CanIntervene, SpellsTokens, Protocol):
    """A model that answers prompts: a text, or a conversation in its chat template."""

    def check_prompts(self) -> None:
        """Raise UsageError for a model that reads a sound, or two texts, in place of a prompt."""

    def reads_conversations(self) -> bool:
        """Return whether the model has a chat template."""

    def prompt_of(self, conversation: Conversation, /) -> Prompt:
        """Return a conversation in the model's chat template, up to its answer. Raises AttnctlError if it does not fit."""

    def prompt_tokens(self, text: str, /) -> tuple[Token, ...]:
        """Return the tokens of a prompt, with one beginning token if template and tokenizer both add one."""

    def read_prompt(
        self,
        tokens: Sequence[Token],
        text: str | None = None,
        *,
        answer: Sequence[int] = (),
        tick: Tick | None = None,
    ) -> AnsweredPrompt:
        """Read the tokens of a prompt; a model that reads a picture with it needs its `text`, too.

        `tick` receives the shares that are read. Raises AttnctlError for a model whose prompts cannot be read in parts.
        """
