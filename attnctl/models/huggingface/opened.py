"""A checkpoint as it is opened: it can be watched, lets texts share a forward, and can be had as before its training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.layer.interventions import Intervention
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.optional_fields import config_value, generation_config
from attnctl.text.tokens import Token, ids_of

if TYPE_CHECKING:
    from attnctl.attention import Array
    from attnctl.blockwise import Tick
    from attnctl.formats.chat import Conversation, Prompt
    from attnctl.models.huggingface.contributions import AttributedPrompt
    from attnctl.models.huggingface.padded_batch import PaddedTexts
    from attnctl.models.huggingface.watched import WatchedNetwork
    from attnctl.runtime.arrays import Floats
    from attnctl.source.model import HeardSpeech


class OpenedCheckpoint(Checkpoint):
    """A checkpoint with what is built on checkpoints."""

    # --- prompts and their answers ---

    def check_prompts(self) -> None:
        """Raise UsageError for a checkpoint that reads a sound, or two texts, in place of a prompt."""
        if self.reader.takes == "sound":
            raise UsageError(f"{self.info.name} reads sound, and answers no prompts: name a model that reads text")
        if self.pieces.text_pair is not None:
            raise UsageError("cannot be combined with a prompt, which is one text", option="text_pair")

    def reads_conversations(self) -> bool:
        """Return whether the checkpoint has a chat template."""
        return "chat_template" in self.pieces.settings

    def prompt_of(self, conversation: Conversation | str) -> Prompt:
        """Return a conversation, or a user's only message, in the checkpoint's chat template, up to its answer.

        Raises AttnctlError if there is no template, or it refuses the conversation.
        """
        from attnctl.formats.chat import Conversation, Message
        from attnctl.models.huggingface.prompts import chat_prompt

        if isinstance(conversation, str):
            conversation = Conversation((Message("user", conversation),))
        return chat_prompt(self, conversation)

    def prompt_tokens(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of a prompt, with one beginning token if template and tokenizer both add one."""
        from attnctl.models.huggingface.prompts import prompt_tokens

        return prompt_tokens(self, text)

    def read_prompt(
        self,
        tokens: Sequence[Token],
        text: str | None = None,
        *,
        answer: Sequence[int] = (),
        tick: Tick | None = None,
    ) -> AttributedPrompt:
        """Read the tokens of a prompt; with its `text`, a picture in it is read, too.

        `tick` receives the shares that are read. Raises AttnctlError for a network whose cache cannot be cut.
        """
        from attnctl.models.huggingface.contributions import AttributedPrompt

        model_input = None if text is None else self.read(text, tokens)
        return AttributedPrompt(self, ids_of(tokens), tuple(answer), model_input=model_input, tick=tick)

    def ids_behind(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text behind another one."""
        return tuple(self.pieces.tokenizer.encode(text, add_special_tokens=False).ids)

    def tokens_behind(self, before: Sequence[int], after: Sequence[int]) -> tuple[Token, ...]:
        """Return the tokens of ids that follow others; they have no position in a text."""
        return self.pieces.continued_tokens(before, after)

    def spelled(self, ids: Sequence[int], *, special: bool) -> str:
        """Return the text of ids, with or without the special tokens among them."""
        return str(self.pieces.tokenizer.decode(list(ids), skip_special_tokens=not special))

    # --- a target and its source ---

    def writes_targets(self) -> bool:
        """Return whether the network is an encoder-decoder, which reads a source and writes its target."""
        return bool(self.network.config.is_encoder_decoder)

    def from_target(self, target: str | None, generate: int) -> Checkpoint:
        """Return an encoder-decoder that shows how it attends from a target, its own for None, to the source.

        `generate` 0 writes as long as its generation_config says. Raises AttnctlError without cross attention.
        """
        from attnctl.models.huggingface.attention_sites import merges_source

        separate = self.kind == "decoder" and not merges_source(self.network)
        opened = replace(replace(self, kind="encoder") if separate else self, target=target).with_cross_attention()
        if opened.kind != "cross":
            raise AttnctlError(
                f"{self.info.name} attends to source and target in one softmax: it has no cross attention"
            )
        return replace(opened, generate=generate)

    def target_tokens(self, target: str) -> tuple[Token, ...]:
        """Return the tokens of a decoder's text, with their places in it."""
        return self.pieces.tokenize_target(target)

    def spelled_target(self, tokens: Sequence[Token]) -> tuple[str, tuple[Token, ...]]:
        """Return the text that a decoder's tokens spell, and the tokens with their places in it and their words."""
        return self.pieces.spelled_target(tokens)

    # --- speech ---

    def hears_speech(self) -> bool:
        """Return whether the network is Whisper, which attends to frames while it writes down speech."""
        return self.network.config.model_type == "whisper"

    def reads_sounds(self) -> bool:
        """Return whether the checkpoint has its reader of sounds."""
        return self.reader.takes == "sound"

    def alignment_heads(self) -> Any:
        """Return the alignment_heads of generation_config.json as they stand there; () for none."""
        return config_value(generation_config(self.network), "alignment_heads") or ()

    def heard(self, samples: Floats, target: str | None, language: str | None) -> HeardSpeech:
        """Return what Whisper hears in samples (n,) at 16 kHz, or where it looks for the words of `target`.

        Raises UsageError for a language that it does not know, AttnctlError for a target that is too long.
        """
        from attnctl.models.huggingface.readers.sound import heard_speech

        return heard_speech(self, samples, target, language)

    # --- what a forward puts out ---

    def architecture(self) -> str:
        """Return the class of its layers: "LlamaModel"."""
        return type(self.network.base_model).__name__

    def classifies(self) -> bool:
        """Return whether it predicts one of several labels for a whole text."""
        return bool(self.classes)

    def kernel(self) -> str:
        """Return the attention function of transformers that runs."""
        return str(self.network.config._attn_implementation)

    def attending_by(self, kernel: str) -> AbstractContextManager[None]:
        """Let the network attend by sdpa or eager within a context. Raises UsageError for one that it does not have."""
        from attnctl.models.huggingface.attention_interface import attention_set_to

        if kernel == "sdpa" and not self.network._supports_sdpa:
            raise UsageError(f"{type(self.network).__name__} attends by eager alone", value=kernel)
        return attention_set_to(self.network, kernel)

    def outputs_shown(
        self, see_output: Callable[[Array], None], see_logits: Callable[[Array], None], most_bytes: int
    ) -> AbstractContextManager[None]:
        """Pass the output of each output projection (n, d_out) to `see_output` within a context, logits to the other.

        These are (1, labels), or of the last positions, as many as `most_bytes` hold: (positions, vocabulary).
        """
        from attnctl.models.huggingface.forward_outputs import outputs_shown

        return outputs_shown(self, see_output, see_logits, most_bytes)

    # --- changed, and watched ---

    def with_heads_off(self, heads: Mapping[int, tuple[int, ...]]) -> Checkpoint:
        """Return this checkpoint with these heads (layer → heads) off in every run, and no others.

        Raises AttnctlError for an architecture whose heads cannot be switched off.
        """
        from attnctl.models.huggingface.watched import check_switchable

        check_switchable(self.network)
        return replace(self, info=self.info.with_heads_off(heads), intervention=Intervention(heads) if heads else None)

    def watch(self, text: str, query: str | None, base: Intervention) -> WatchedNetwork:
        """Return the text with the watched position: `query`, the mask of a masked model, or the last token.

        Raises AttnctlError for an architecture whose heads cannot be switched off, UsageError for an unknown query.
        """
        from attnctl.models.huggingface.watched import watch_network

        return watch_network(self, text, query, base)

    def shared_pass(self) -> PaddedTexts | None:
        """Return how texts share a forward, padded to one length; None if each is read alone."""
        from attnctl.models.huggingface.padded_batch import PaddedTexts, can_batch

        return PaddedTexts(self) if can_batch(self) else None

    def runs_at_once(self) -> bool:
        """Return whether two threads may run passes at once: its forward changes none of its modules."""
        from attnctl.models.huggingface.attention_interface import may_run_at_once

        return self.shared_pass() is not None and may_run_at_once(self.network)

    def before_training(self, seed: int) -> Checkpoint:
        """Return this checkpoint with newly initialised parameters. Raises AttnctlError if its network cannot be built."""
        import torch

        network = self.network
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                model_class: Any = type(network)
                fresh = model_class(copy.deepcopy(network.config))
            except Exception as error:
                raise AttnctlError(
                    f"{type(network).__name__} cannot be built untrained ({in_one_line(error)})"
                ) from error
        fresh = fresh.to(device=network.device, dtype=network.dtype).eval().requires_grad_(False)
        return replace(self, network=fresh)
