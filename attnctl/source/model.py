"""Protocols of models: every model has the members of `Model`, some can do more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from attnctl.errors import UsageError
from attnctl.runtime.files import names_picture, names_sound

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from PIL.Image import Image
    from transformers import PreTrainedModel

    from attnctl.attention import Array
    from attnctl.blockwise import Tick
    from attnctl.formats.chat import Conversation, Prompt
    from attnctl.layer import LayerAttention
    from attnctl.layer.interventions import Intervention
    from attnctl.runtime.arrays import Floats
    from attnctl.text.tokens import Token
    from attnctl.trace.model_info import ModelInfo
    from attnctl.trace.run import Run


@runtime_checkable
class Model(Protocol):
    """A model: it cuts a text into tokens, and runs them through its layers."""

    @property
    def info(self) -> ModelInfo:
        """Return the facts about the model that do not depend on a text."""

    @property
    def photograph(self) -> Image | None:
        """Return the picture that each text is read with; None without a picture."""

    @property
    def limit(self) -> int | None:
        """Return how many tokens the model reads at most; None for no limit."""

    def tokenize(self, text: str, /) -> tuple[Token, ...]:
        """Return the tokens of a text: its queries."""

    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """Run the text through every layer; `visit` receives each layer's attention, until it raises StopForward."""

    def text_as_read(self, text: str) -> str:
        """Return the text in which the tokens have their positions: both texts of a pair."""

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return the tokens of the keys if they differ from the queries' tokens; else None."""

    def model_for(self, text: str) -> Model:
        """Return the model that reads `text`: itself, or its tower for pictures (CLIP).

        Raises UsageError for a picture or a sound if it reads only texts.
        """

    def with_text_pair(self, text_pair: str) -> Model:
        """Return the model that reads `text_pair` after each text. Raises UsageError if it reads one text."""


@runtime_checkable
class Predicts(Model, Protocol):
    """A model that predicts words."""

    @property
    def predict(self) -> str | None:
        """Return the token after which, or at which, words are predicted; "all" for every one; None: last, and blanks."""

    @property
    def predicts_words(self) -> bool:
        """Return whether there is an unembedding, so that a word can be predicted."""

    def predicted_positions(self, tokens: Sequence[Token], text: str, *, causal: bool) -> Sequence[int]:
        """Return the positions at which words are predicted: all if the model continues a text, else its blanks."""


@runtime_checkable
class Generates(Model, Protocol):
    """A model that can write text, or look at a text through several attentions."""

    @property
    def kind(self) -> str:
        """Return which attention is read: self; of an encoder-decoder encoder, decoder, cross; vision beside captions."""

    @property
    def generate(self) -> int:
        """Return how many tokens the model adds before the attention is read."""

    def with_target(self, target: str) -> Model:
        """Return the model with this text for its decoder. Raises UsageError if it reads none."""

    def with_cross_attention(self) -> Model:
        """Return an encoder-decoder that shows its cross attention instead of its encoder's; others unchanged."""


@runtime_checkable
class AnswersByIds(Model, Protocol):
    """A model that continues token ids without a cache: a module of the user's own, with a tokenizer and logits."""

    @property
    def can_answer(self) -> bool:
        """Return whether a tokenizer turns text into ids, and back."""

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def text_of_ids(self, ids: Sequence[int]) -> str:
        """Return the text of some ids."""

    def answer_of(self, prompt: Sequence[int]) -> Any:
        """Return a prompt of ids whose answer is still to be generated."""

    def answering_without(self, heads: Mapping[int, tuple[int, ...]]) -> AbstractContextManager[object]:
        """Return a context in which these heads (layer → heads) are off in each answer."""


@runtime_checkable
class CanIntervene(Model, Protocol):
    """A model whose heads can be switched off, and whose layers can run again with other values."""

    @property
    def intervention(self) -> Intervention | None:
        """Return what is changed in every run: the heads that are off."""

    def with_heads_off(self, heads: Mapping[int, tuple[int, ...]]) -> Model:
        """Return the model with these heads (layer → heads) off in every run, and no others.

        Raises AttnctlError for an architecture whose heads cannot be switched off.
        """

    def contexts_of_heads(self, text: str) -> dict[int, Array]:
        """Return layer → the context of each head at each position, after a gate if there is one: (heads, n, d_v)."""

    def run_with_zeroed_values(
        self,
        tokens: Sequence[Token],
        take: Callable[[LayerAttention, Floats, Iterator[Floats]], None],
        text: str = "",
        layers: Sequence[int] | None = None,
    ) -> Run:
        """Run the tokens; `take` receives each of `layers`, its output, and its outputs with each key's value zeroed."""


@runtime_checkable
class HasVocabulary(Model, Protocol):
    """A model whose tokens are pieces of a vocabulary."""

    def names_by_id(self) -> Mapping[int, str]:
        """Return id → name of the ordinary pieces: words, or what the tokenizer was not given later; {} if there is none."""


@runtime_checkable
class ReadsTokens(Model, Protocol):
    """A model that reads the tokens that a user lists, in place of those that it would split a text into."""

    def listed_tokens(self, text: str, names: Sequence[str], /) -> tuple[Token, ...]:
        """Return the tokens of these names, with the model's ids and their places in the text.

        Raises AttnctlError for a name that is not one token, UsageError if the model splits each text itself.
        """


@runtime_checkable
class SpellsTokens(Model, Protocol):
    """A model whose tokens are ids, of which it makes text and of text ids."""

    def ids_behind(self, text: str, /) -> tuple[int, ...]:
        """Return the ids of a text behind another one."""

    def tokens_behind(self, before: Sequence[int], after: Sequence[int], /) -> tuple[Token, ...]:
        """Return the tokens of ids that follow others."""

    def spelled(self, ids: Sequence[int], /, *, special: bool) -> str:
        """Return the text of ids, with or without the special tokens among them."""


@runtime_checkable
class BringsText(Model, Protocol):
    """A model that reads one text alone, which comes with its numbers."""

    @property
    def own_text(self) -> str:
        """Return the text."""


@runtime_checkable
class NamesKeys(Model, Protocol):
    """A model whose keys may be another text than its queries."""

    def with_key_names(self, names: Sequence[str], /) -> Model:
        """Return the model with these names of its keys. Raises UsageError if their number is another."""


@runtime_checkable
class Unembeds(Model, Protocol):
    """A model whose logits are its last layer's rows times an unembedding."""

    def last_logits(self, final: Array, most_bytes: int, /) -> Array | None:
        """Return the last positions' logits from the states after the last layer: (n, d_model) → (positions, vocabulary).

        There are as many positions as `most_bytes` hold. Return None without an unembedding.
        """


@runtime_checkable
class CallsNetwork(Generates, Protocol):
    """A model that calls a network of transformers."""

    @property
    def network(self) -> PreTrainedModel:
        """Return the network."""

    def inputs_of(self, text: str, /) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the keyword arguments of the network's forward for a text, and the names of its tokens.

        There are no names for an encoder-decoder, which reads two texts. Raises AttnctlError if it cannot read the text.
        """


@runtime_checkable
class CallsModule(Model, Protocol):
    """A model of a user's own function, which calls a torch module."""

    @property
    def module(self) -> Any:
        """Return the module."""

    @property
    def name(self) -> str:
        """Return the name of the user's function, on the command line."""

    def inputs_of_text(self, text: str, /) -> Any:
        """Return what the module is called with for a text: `args`, `keywords`, and its `tokens` if they are known."""

    def packed(self, texts: Sequence[str], /) -> dict[str, Any]:
        """Return a batch of one row that holds several texts. Raises UsageError without a tokenizer."""


@runtime_checkable
class ShowsOutputs(Model, Protocol):
    """A model that shows what a forward puts out on the way, and may attend by another kernel."""

    def architecture(self) -> str:
        """Return the class of its layers, for messages: "LlamaModel"."""

    def classifies(self) -> bool:
        """Return whether it predicts one of several labels for a whole text."""

    def kernel(self) -> str:
        """Return the function that attends, as "sdpa" or "eager"."""

    def attending_by(self, kernel: str, /) -> AbstractContextManager[None]:
        """Let the model attend by a kernel within a context. Raises UsageError for one that it does not have."""

    def outputs_shown(
        self, see_output: Callable[[Array], None], see_logits: Callable[[Array], None], most_bytes: int, /
    ) -> AbstractContextManager[None]:
        """Pass each layer's output (n, d_out) to `see_output` within a context, and the logits to `see_logits`.

        These are (1, labels), or of the last positions, as many as `most_bytes` hold: (positions, vocabulary).
        """


# --- prompts and their answers ---


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

    @property
    def at_once(self) -> int:
        """Return how many forwards `log_probabilities_of` runs at once: 1 or 2."""

    def log_probabilities_of(self, groups: Sequence[Sequence[tuple[int, int]]]) -> Iterator[Floats]:
        """Yield `log_probabilities` with each of the groups hidden, in their order."""

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

    def prompt_of(self, conversation: Conversation | str, /) -> Prompt:
        """Return a conversation, or a user's only message, in the model's chat template, up to its answer.

        Raises AttnctlError if there is no template, or it refuses the conversation.
        """

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


# --- a target and its source, a speech and its words ---


@runtime_checkable
class AlignsTexts(Generates, SpellsTokens, Protocol):
    """A model that reads a source with its target: both in one text, or a target that it writes."""

    @property
    def target(self) -> str | None:
        """Return the text of the decoder; None if the model writes it, or has no decoder."""

    def writes_targets(self) -> bool:
        """Return whether the model is an encoder-decoder, which reads a source and writes its target."""

    def from_target(self, target: str | None, generate: int, /) -> Model:
        """Return an encoder-decoder that shows how it attends from a target to the source.

        A target of None is written by the model, with at most `generate` tokens (0: as its settings say). Raises
        AttnctlError if it attends to both in one softmax.
        """

    def target_tokens(self, target: str, /) -> tuple[Token, ...]:
        """Return the tokens of a decoder's text, with their places in it."""

    def spelled_target(self, tokens: Sequence[Token], /) -> tuple[str, tuple[Token, ...]]:
        """Return the text that a decoder's tokens spell, and the tokens with their places in it and their words."""


class HeardSpeech(NamedTuple):
    """What a model heard in a window of sound: the ids of its words, their probabilities, and where it looked for each.

    `weights` is layer → (heads, prompt + tokens + 1, frames); `prompt` counts the tokens before the words'.
    """

    ids: list[int]
    probabilities: Floats  # (tokens,)
    weights: dict[int, Floats]
    prompt: int
    language: str | None


@runtime_checkable
class HearsSpeech(SpellsTokens, Protocol):
    """A model that may write down speech."""

    def hears_speech(self) -> bool:
        """Return whether the model writes down speech by attention to its frames (Whisper)."""

    def reads_sounds(self) -> bool:
        """Return whether it was opened with its reader of sounds."""

    def alignment_heads(self) -> Any:
        """Return the heads that the model's own settings name for times of words, as they stand there; () for none."""

    def heard(self, samples: Floats, target: str | None, language: str | None, /) -> HeardSpeech:
        """Return what the model hears in samples (n,) at 16 kHz; `target` is the text that is spoken, if it is known.

        Raises UsageError for a language that it does not know, AttnctlError for a target that is too long.
        """


# --- several texts in one pass ---


class SharedPass(Protocol):
    """How several texts go through a model in one pass."""

    def may_share(self, texts: Sequence[Sequence[Token]], later: Sequence[Sequence[Token]], /) -> bool:
        """Return whether texts, the shortest first, keep their weights in one pass; those that come `later` are longer."""

    def run(
        self,
        texts: Sequence[tuple[Token, ...]],
        visits: Sequence[Callable[[LayerAttention], None]],
        fields: Collection[str] | None = None,
        /,
    ) -> list[Run]:
        """Return the run of each text; each visitor receives the layers of its own text. Raises the error of any text.

        The layers may lack their arrays other than the weights and these `fields` (None: all).
        """


@runtime_checkable
class GivesWeights(SharedPass, Protocol):
    """A pass that gives the weights of all its texts in one array."""

    def weights(self, texts: Sequence[tuple[Token, ...]], take: Callable[[int, Array], None], /) -> None:
        """Call `take` with each layer and its weights (batch, heads, n, n), padding at the end."""


@runtime_checkable
class SharesPasses(Model, Protocol):
    """A model through which several texts may go in one pass."""

    @property
    def is_heavy(self) -> bool:
        """Return whether a pass uses every core, so that texts are worth collecting for one."""

    def runs_at_once(self) -> bool:
        """Return whether two threads may run passes at once, so that each core has one."""

    def shared_pass(self) -> SharedPass | None:
        """Return how texts share a pass; None if each is read alone."""


@runtime_checkable
class CanBeUntrained(Model, Protocol):
    """A model that can be had as it was before its training."""

    def before_training(self, seed: int) -> Model | None:
        """Return the model with new random parameters, and the same heads off; None if it was never trained."""


class TextModel:
    """The members of `Model` that are the same in every model that reads one text."""

    info: ModelInfo

    @property
    def photograph(self) -> Image | None:
        """Return None: no picture is read with a text."""
        return None

    @property
    def limit(self) -> int | None:
        """Return None: there is no limit."""
        return None

    def text_as_read(self, text: str) -> str:
        """Return the text itself."""
        return text

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return None: the keys are the tokens."""
        return None

    def model_for(self, text: str) -> Model:
        """Return the model itself. Raises UsageError for a picture or a sound."""
        check_text(text, self.info.name)
        return self  # type: ignore[return-value]

    def with_text_pair(self, text_pair: str) -> Model:
        """Raise UsageError: one text is read."""
        raise UsageError(f"is for checkpoints: {self.info.name} reads one text", option="text_pair")


def check_text(text: str, name: str, instead: str = "name a vision model") -> None:
    """Raise UsageError if a text is the name of a picture or a sound, which the model `name` does not read."""
    if names_sound(text):
        raise UsageError(f"{text} is a sound, and {name} reads text: name a model that hears")
    if names_picture(text):
        raise UsageError(f"{text} is a picture, and {name} reads text: {instead}")
