"""Checkpoints that hear: Whisper and wav2vec 2.0's kin, whose tokens are frames of sound, each with its seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attnctl.arrays import Floats
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.files import names_sound
from attnctl.formats.audio import RATE, read_audio
from attnctl.models.huggingface.checkpoint import GREEDY, Checkpoint
from attnctl.models.huggingface.hub import has_processor, import_extra
from attnctl.models.huggingface.image_checkpoint import NoTokenizer
from attnctl.models.huggingface.network import device_of_inputs, end_ids, quiet_library, running_network
from attnctl.models.huggingface.tokenizer import Pieces
from attnctl.tokens import Token
from attnctl.trace.model_info import ModelInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class AudioCheckpoint(Checkpoint):
    """A checkpoint that hears; where others are given a text it is given the name of a file of sound.

    The tokens of an encoder, and the keys of cross attention, are frames, called by when they begin ("0.42 s"); those of a
    decoder are what is said. `extractor` is the checkpoint's own.
    """

    extractor: Any = None
    sound: Any = None  # as the network takes it: (1, mels, frames) or (1, samples)
    seconds: float = 0.0  # of the sound, without what it is filled up with
    file: tuple[object, ...] | None = None  # that the sound was read from: its name, size and time
    _last: dict[tuple[object, ...], AudioCheckpoint] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def tokenize(self, text: str) -> tuple[Token, ...]:
        """The tokens that ask: frames of the sound in the file `text`, or what is said in it for decoder and cross."""
        model = self.of_text(text)
        return model._said if self.kind in ("decoder", "cross") else model._frames()

    def of_text(self, text: str) -> AudioCheckpoint:
        """Return the same with the sound in the file `text`, which is read again only where the file has changed.

        Raises AttnctlError for what is no sound.
        """
        if not names_sound(text):
            raise AttnctlError(
                f"no sound {text[:80]!r}: {self.info.name} hears, so give the name of a file (speech.wav)"
            )
        file: tuple[object, ...] = (text,)
        with suppress(OSError):
            status = Path(text).stat()
            file = text, status.st_ino, status.st_size, status.st_mtime_ns
        if self.file == file:
            return self
        if file not in self._last:
            samples = read_audio(text)
            self._last.clear()
            self._last[file] = replace(self, sound=self.heard_of(samples), seconds=len(samples) / RATE, file=file)
        return self._last[file]

    def heard_of(self, samples: Floats) -> Any:
        """What the extractor makes of samples (n,) at 16 kHz, filled up or cut as the network needs it."""
        try:
            with quiet_library():
                made = self.extractor(samples, sampling_rate=RATE, return_tensors="np")
        except Exception as error:  # each family's extractor has its own
            raise AttnctlError(
                f"the extractor of {self.info.name} fails on this sound: {in_one_line(error)}"
            ) from error
        sound = import_extra("torch").from_numpy(np.asarray(made[self.network.main_input_name]))
        return sound.to(device_of_inputs(self.network), self.network.dtype)

    def source_tokens(self, text: str) -> tuple[Token, ...] | None:
        """The frames that a decoder's cross attention looks at; None where none is read."""
        return self.of_text(text)._frames() if self.kind in ("decoder", "cross") else None

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Of cross attention the frames; else None: the keys are the tokens."""
        return self.source_tokens(text) if self.kind == "cross" else None

    def check_tokens(self, tokens: Sequence[Token]) -> None:
        """Raise AttnctlError for more tokens than a decoder reads; frames are made of the sound that the network takes."""
        if self.kind in ("decoder", "cross"):
            super().check_tokens(tokens)

    def mask_positions(self, tokens: Sequence[Token]) -> list[int]:
        """None: a sound has no blanks."""
        return []

    def inputs_beside(self, n: int) -> dict[str, object]:
        """The sound, which has no ids beside it."""
        return {self.network.main_input_name: self.sound}

    def inputs_of_tokens(self, tokens: Sequence[Token]) -> dict[str, object]:
        """Return the sound, or for a decoder what the encoder made of it, which no change of the decoder reaches."""
        if self.kind in ("decoder", "cross"):
            return {"encoder_outputs": self.encoded}
        return self.inputs_beside(len(tokens))

    def text_notes(self, tokens: Sequence[Token], source: Sequence[Token] | None, bare: bool) -> tuple[str, ...]:
        """What a reader must know: how much of the sound was heard, and whose the words are."""
        frames = tokens if source is None else source
        heard = frames[-1].seconds[1] if frames[-1].seconds else 0.0
        notes = []
        if self.seconds > heard + 0.05:
            notes.append(
                f"Of {self.seconds:.1f} seconds the first {heard:g} are heard: cut the sound to hear the others."
            )
        filled = sum(token.special for token in frames)
        if filled:
            notes.append(
                f"{filled:,} of {len(frames):,} frames come after the end of the sound: it is filled up with silence."
            )
        if source is not None and self.target is None:
            notes.append(
                "What is said was written down by the model, the likeliest token each time; the option target gives it."
            )
        return tuple(notes)

    def _frames(self) -> tuple[Token, ...]:
        """A token for each frame that the first layer of the encoder attends to, those after the sound's end special."""
        config: Any = self.network.config
        if self.network.main_input_name == "input_features":
            count, step = int(config.max_source_positions), 2 * int(self.extractor.hop_length) / RATE
        else:
            squeezed = getattr(config, "squeeze_factor", 1)  # SEW attends to means of so many frames
            count = int(cast(Any, self.network)._get_feat_extract_output_lengths(self.sound.shape[-1])) // squeezed
            step = squeezed * math.prod(config.conv_stride) / RATE
        begins = [round(at * step, 4) for at in range(count + 1)]
        return tuple(
            Token(f"{start:.2f} s", special=start >= self.seconds, seconds=(start, end))
            for start, end in zip(begins, begins[1:], strict=False)
        )

    def decoder_start(self) -> tuple[Token, ...]:
        """The marks that Whisper's decoder begins with: its start, language and task."""
        with running_network(self.network, self.network.config.max_target_positions, self.info.name):
            return self.pieces.continued_tokens((), self.spoken_marks()[0])

    @cached_property
    def encoded(self) -> Any:
        """What the encoder makes of the sound."""
        with running_network(self.network, self.sound.shape[-1], self.info.name):
            return cast(Any, self.network).get_encoder()(self.sound)

    def spoken_marks(self, language: str | None = None) -> tuple[list[int], str | None]:
        """Token ids of the marks that Whisper begins with (start, language where it knows several, task), and the language.

        None: the language of generation_config, or the likeliest. Raises UsageError for one that it does not know.
        """
        network: Any = self.network
        tokenizer, name, first = self.pieces.tokenizer, self.info.name, self.decoder_start_id
        several = getattr(network.generation_config, "lang_to_id", None) or {}
        configured, task = self._configured_speech() if several else (None, None)
        asked, language = language, configured if language is None else language
        if several and language is None:
            begun = import_extra("torch").tensor([[first]], device=device_of_inputs(network))
            logits = network(encoder_outputs=self.encoded, decoder_input_ids=begun).logits[0, -1]  # (vocabulary,)
            spoken = max(several, key=lambda one: float(logits[several[one]]))
            language = spoken.strip("<|>")
        if language is not None and f"<|{language}|>" not in several:
            known = ", ".join(sorted(one.strip("<|>") for one in several)) or "none: it hears one language alone"
            if asked is None:
                raise AttnctlError(f"generation_config.json of {name} says the language {language}: it knows {known}")
            raise UsageError(f"{name} knows {known}", option="language", value=language)
        marks = (f"<|{language}|>", f"<|{task or 'transcribe'}|>") * bool(several)
        ids: list[Any] = [first, *(tokenizer.token_to_id(one) for one in (*marks[:2], "<|notimestamps|>"))]
        if None in ids:
            raise AttnctlError(f"the tokenizer of {name} lacks the marks of Whisper: it is another model's")
        return ids, language

    def _configured_speech(self) -> tuple[str | None, str | None]:
        """Return the language ("de") and the task ("translate") that `generate` takes unasked; None: it names none."""
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        settings: Any = self.network.generation_config
        language, task = getattr(settings, "language", None), getattr(settings, "task", None)
        if language is None and task is None:  # older checkpoints force the tokens in these places
            listed = getattr(settings, "forced_decoder_ids", None) or ()
            try:
                forced = dict(listed)
                names = [self.pieces.tokenizer.id_to_token(forced[at]) if forced.get(at) else None for at in (1, 2)]
            except (TypeError, ValueError, OverflowError) as error:
                which = f"generation_config.json of {self.info.name} says forced_decoder_ids {str(listed)[:80]}"
                raise AttnctlError(f"{which}: they are pairs of a place and a token's id") from error
            language, task = (None if name is None else name.strip("<|>") for name in names)
        if language is not None:
            language = str(language).lower().strip("<|>")
            language = TO_LANGUAGE_CODE.get(language, language)
        return language, task

    def said_ids(self, marks: Sequence[int], target: str | None) -> list[int]:
        """Token ids of what is said: of `target`, or what the model writes behind its marks, the likeliest token each time.

        Raises AttnctlError for a text that is too long.
        """
        network: Any = self.network
        name, most = self.info.name, network.config.max_target_positions
        if target is None:
            mark = self.pieces.tokenizer.id_to_token(marks[1]) if len(marks) > 2 else None
            task = self.pieces.tokenizer.id_to_token(marks[2]) if len(marks) > 2 else None
            how = {} if mark is None or task is None else {"language": mark.strip("<|>"), "task": task.strip("<|>")}
            out = network.generate(
                self.sound, encoder_outputs=self.encoded, return_timestamps=False, max_new_tokens=most - len(marks) - 1,
                **GREEDY, **how,
            )  # fmt: skip
            ends = min(end_ids(network), default=len(self.pieces.tokenizer.get_vocab()))  # marks of times follow
            text = [number for number in out[0].tolist() if number not in self.pieces.special_ids and number < ends]
        else:
            text = self.pieces.tokenizer.encode(f" {target.strip()}", add_special_tokens=False).ids
        if len(marks) + len(text) + 1 > most:
            raise AttnctlError(
                f"it has {len(text):,} tokens, and {name} writes {most - len(marks) - 1:,}",
                option="target",
                value=target,
            )
        return text

    @cached_property
    def _said(self) -> tuple[Token, ...]:
        """The decoder's tokens: the marks of its task, and the target or what it writes down itself."""
        with running_network(self.network, self.network.config.max_target_positions, self.info.name):
            marks = self.spoken_marks()[0]
            said = self.said_ids(marks, self.target)
        return (*self.pieces.continued_tokens((), marks), *self.pieces.continued_tokens(marks, said))


def open_audio_checkpoint(
    folder: Path, network: PreTrainedModel, info: ModelInfo, kind: str, pieces: Pieces | None, target: str | None
) -> AudioCheckpoint:
    """A checkpoint that hears. Raises AttnctlError where the settings of its processor are missing or unreadable."""
    if not has_processor(folder):
        raise AttnctlError(
            f"{info.name} has no preprocessor_config.json, which says how sound is put to it: copy it there"
        )
    if kind in ("decoder", "cross") and not network.can_generate():
        instead = option_name("attention", "encoder")
        raise UsageError(f"{info.name} is {type(network).__name__}, which writes no text: see {instead}")
    try:
        with quiet_library():
            extractor = import_extra("transformers").AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
    except AttnctlError:
        raise
    except Exception as error:
        raise AttnctlError(f"{info.name}: cannot read how sound is put to it: {in_one_line(error)}") from error
    own = cast(Pieces, NoTokenizer(info.name, "hears")) if pieces is None else pieces
    return AudioCheckpoint(
        replace(info, causal=info.causal and kind == "decoder"), network, own, kind, target, extractor=extractor
    )
