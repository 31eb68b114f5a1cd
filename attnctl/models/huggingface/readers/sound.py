"""The reader of sounds for Whisper, wav2vec 2.0 and AST: the tokens are frames, or patches of a spectrogram, in seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.formats.audio import SAMPLE_RATE, read_audio
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.checkpoint import ModelInput, Reader
from attnctl.models.huggingface.hub import has_processor, import_extra
from attnctl.models.huggingface.network import device_of_inputs, end_ids, quiet_library, running_network
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.models.huggingface.readers.text import GREEDY, decoder_start_id
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.runtime.files import names_sound
from attnctl.source.model import HeardSpeech
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.tokenizer import Pieces


AST_STEP = 0.01  # seconds from one frame of AST's spectrogram to the next: its extractor's own, in no setting


@dataclass(frozen=True)
class SoundReader(Reader):
    """The reader of sounds: a user gives the name of a sound file in place of a text.

    The tokens of an encoder, and the keys of cross attention, are frames, named by their start ("0.42 s"). The tokens of a
    decoder are the spoken words. `extractor` is the feature extractor of the checkpoint, `tokenizer` that of its decoder.
    """

    name: str
    extractor: Any
    tokenizer: Pieces | None
    takes: ClassVar[str] = "sound"
    _last: list[tuple[tuple[object, ...], Sound]] = field(default_factory=list, init=False, repr=False, compare=False)

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the frames of the sound file `text`, or for decoder and cross attention the tokens of the spoken words."""
        sound = self.sound_in(model, text)
        if model.kind not in ("decoder", "cross"):
            return sound.frames()
        if model.target not in sound.spoken:
            with running_network(model.network, model.network.config.max_target_positions, model.info.name):
                marks = sound.spoken_marks()[0]
                ids = sound.spoken_ids(marks, model.target)
            tokens = (*self.pieces.continued_tokens((), marks), *self.pieces.continued_tokens(marks, ids))
            sound.spoken[model.target] = tokens
        return sound.spoken[model.target]

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the sound; for decoder and cross attention the encoder's output, which does not depend on the decoder."""
        sound = self.sound_in(model, text)
        if model.kind not in ("decoder", "cross"):
            inputs = {model.network.main_input_name: sound.values}
            if model.kind == "encoder":  # the decoder needs an input; its attention is not read
                inputs["decoder_input_ids"] = model.token_ids(self.decoder_start(model, text))
            return ModelInput(tokens, inputs, notes=sound.notes(tokens))
        model.check_tokens(tokens)
        inputs = {"encoder_outputs": sound.encoded, "decoder_input_ids": model.token_ids(tokens)}
        frames, notes = sound.frames(), sound.notes(sound.frames())
        if model.target is None:
            notes += (
                "The model wrote down the spoken words, the likeliest token each time; "
                f"{option_name('target')} gives them.",
            )
        return ModelInput(tokens, inputs, frames if model.kind == "cross" else None, notes, frames)

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return the frames for cross attention; None otherwise: the keys are the tokens."""
        return self.sound_in(model, text).frames() if model.kind == "cross" else None

    def decoder_start(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens that Whisper's decoder begins with: start, language and task."""
        if model.kind == "self":
            return ()
        with running_network(model.network, model.network.config.max_target_positions, model.info.name):
            return self.pieces.continued_tokens((), self.sound_in(model, text).spoken_marks()[0])

    def sound_in(self, model: Checkpoint, path: str) -> Sound:
        """Return the sound in a file; read it again only if the file or the model's intervention has changed.

        Raises AttnctlError if the file is not a sound.
        """
        if not names_sound(path):
            raise AttnctlError(
                f"no sound {path[:80]!r}: {model.info.name} hears, so give the name of a file (speech.wav)"
            )
        file: tuple[object, ...] = (path,)
        with suppress(OSError):
            status = Path(path).stat()
            file = path, status.st_ino, status.st_size, status.st_mtime_ns
        for stored_file, sound in self._last:
            same_model = sound.model.network is model.network and sound.model.intervention is model.intervention
            if stored_file == file and same_model and sound.model.kind == model.kind:
                return sound
        sound = self.sound_of(model, read_audio(path))
        self._last[:] = [(file, sound)]
        return sound

    def sound_of(self, model: Checkpoint, samples: Floats) -> Sound:
        """Return the sound of samples (n,) at 16 kHz, padded or cut by the extractor to what the network takes."""
        try:
            with quiet_library():
                processed = self.extractor(samples, sampling_rate=SAMPLE_RATE, return_tensors="np")
        except Exception as error:  # each family's extractor raises its own errors
            raise AttnctlError(
                f"the extractor of {model.info.name} fails on this sound: {in_one_line(error)}"
            ) from error
        values = import_extra("torch").from_numpy(np.asarray(processed[model.network.main_input_name]))
        values = values.to(device_of_inputs(model.network), model.network.dtype)
        return Sound(model, self, values, len(samples) / SAMPLE_RATE)


@dataclass(frozen=True, eq=False)
class Sound:
    """A sound as the network takes it, (1, mels, frames) or (1, samples), and its length without padding."""

    model: Checkpoint
    reader: SoundReader
    values: Array
    seconds: float
    # target → tokens; None: the model's own words
    spoken: dict[str | None, tuple[Token, ...]] = field(default_factory=dict, repr=False)

    @property
    def network(self) -> Any:
        """Return the model's network, with the attributes of its own class."""
        return self.model.network

    def notes(self, frames: Sequence[Token]) -> tuple[str, ...]:
        """Return the notes for a reader: how much of the sound is used, and how much of it is padding."""
        used, notes = frames[-1].seconds[1] if frames[-1].seconds else 0.0, list[str]()
        if self.seconds > used + 0.05:
            notes.append(
                f"Of {self.seconds:.1f} seconds the first {used:g} are heard: cut the sound to hear the others."
            )
        filled = sum(token.special and token.seconds is not None for token in frames)
        if filled:
            notes.append(
                f"{filled:,} of {len(frames):,} frames come after the end of the sound: it is filled up with silence."
            )
        return tuple(notes)

    def frames(self) -> tuple[Token, ...]:
        """Return a token for each frame that the encoder's first layer reads; frames after the sound's end are special."""
        network = self.network
        config = network.config
        if config_value(config, "time_stride") is not None:
            return self._patches()
        if network.main_input_name == "input_features":
            count, step = int(config.max_source_positions), 2 * int(self.reader.extractor.hop_length) / SAMPLE_RATE
        else:
            squeezed = config_value(config, "squeeze_factor") or 1  # SEW attends to means of this many frames
            count = int(network._get_feat_extract_output_lengths(self.values.shape[-1])) // squeezed
            step = squeezed * math.prod(config.conv_stride) / SAMPLE_RATE
        starts = [round(number * step, 4) for number in range(count + 1)]
        return tuple(
            Token(f"{start:.2f} s", special=start >= self.seconds, seconds=(start, end))
            for start, end in zip(starts, starts[1:], strict=False)
        )

    def _patches(self) -> tuple[Token, ...]:
        """Return the tokens of AST: two special ones, then the patches of the spectrogram, band by band of mel bins."""
        config = self.network.config
        side, times, bands = config.patch_size, config.time_stride, config.frequency_stride
        starts = range(0, int(self.values.shape[1]) - side + 1, times)  # values: (1, frames, mel bins)
        patches = [
            Token(
                f"{start * AST_STEP:.2f} s mel {band}-{band + side - 1}",
                special=start * AST_STEP >= self.seconds,
                seconds=(round(start * AST_STEP, 4), round((start + side) * AST_STEP, 4)),
            )
            for band in range(0, int(self.values.shape[2]) - side + 1, bands)
            for start in starts
        ]
        return (Token("[CLS]", special=True), Token("[DIST]", special=True), *patches)

    @cached_property
    def encoded(self) -> Output:
        """Return the encoder's output for the sound."""
        network = self.network
        with running_network(network, self.values.shape[-1], self.model.info.name):
            return network.get_encoder()(self.values)

    def spoken_marks(self, language: str | None = None) -> tuple[list[int], str | None]:
        """Return the ids that Whisper's decoder begins with (start; language and task if it has several), and the language.

        `language` None: the one in generation_config, or the likeliest. Raises UsageError for an unknown language.
        """
        network = self.network
        tokenizer, name, first = self.reader.pieces.tokenizer, self.model.info.name, decoder_start_id(self.model)
        language_ids = config_value(network.generation_config, "lang_to_id") or {}
        configured, task = self._configured_speech() if language_ids else (None, None)
        requested, language = language, configured if language is None else language
        if language_ids and language is None:
            start_ids = import_extra("torch").tensor([[first]], device=device_of_inputs(network))
            logits = network(encoder_outputs=self.encoded, decoder_input_ids=start_ids).logits[0, -1]  # (vocabulary,)
            spoken = max(language_ids, key=lambda mark: float(logits[language_ids[mark]]))
            language = spoken.strip("<|>")
        if language is not None and f"<|{language}|>" not in language_ids:
            languages = (
                ", ".join(sorted(mark.strip("<|>") for mark in language_ids)) or "none: it hears one language alone"
            )
            if requested is None:
                raise AttnctlError(
                    f"generation_config.json of {name} says the language {language}: it knows {languages}"
                )
            raise UsageError(f"{name} knows {languages}", option="language", value=language)
        marks = (f"<|{language}|>", f"<|{task or 'transcribe'}|>") * bool(language_ids)
        ids: list[Any] = [first, *(tokenizer.token_to_id(mark) for mark in (*marks[:2], "<|notimestamps|>"))]
        if None in ids:
            raise AttnctlError(
                f"the tokenizer of {name} lacks the start tokens of Whisper: it belongs to another model"
            )
        return ids, language

    def _configured_speech(self) -> tuple[str | None, str | None]:
        """Return the language ("de") and the task ("translate") that `generate` uses by default; None where none is set."""
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        settings = self.network.generation_config
        language, task = config_value(settings, "language"), config_value(settings, "task")
        if language is None and task is None:  # older checkpoints force the tokens at positions 1 and 2
            pairs = config_value(settings, "forced_decoder_ids") or ()
            try:
                forced = dict(pairs)
                names = [
                    self.reader.pieces.tokenizer.id_to_token(forced[position]) if forced.get(position) else None
                    for position in (1, 2)
                ]
            except (TypeError, ValueError, OverflowError) as error:
                settings_text = (
                    f"generation_config.json of {self.model.info.name} says forced_decoder_ids {str(pairs)[:80]}"
                )
                raise AttnctlError(f"{settings_text}: they are pairs of a place and a token's id") from error
            language, task = (None if name is None else name.strip("<|>") for name in names)
        if language is not None:
            language = str(language).lower().strip("<|>")
            language = TO_LANGUAGE_CODE.get(language, language)
        return language, task

    def spoken_ids(self, marks: Sequence[int], target: str | None) -> list[int]:
        """Return the ids of the spoken words: of `target`, or greedily generated by the model after its `marks`.

        Raises AttnctlError if the text is too long.
        """
        network = self.network
        name, limit = self.model.info.name, network.config.max_target_positions
        if target is None:
            mark = self.reader.pieces.tokenizer.id_to_token(marks[1]) if len(marks) > 2 else None
            task = self.reader.pieces.tokenizer.id_to_token(marks[2]) if len(marks) > 2 else None
            options = {} if mark is None or task is None else {"language": mark.strip("<|>"), "task": task.strip("<|>")}
            out = network.generate(
                self.values, encoder_outputs=self.encoded, return_timestamps=False, max_new_tokens=limit - len(marks) - 1,
                **GREEDY, **options,
            )  # fmt: skip
            # timestamp tokens have larger ids
            end_id = min(end_ids(network), default=len(self.reader.pieces.tokenizer.get_vocab()))
            text = [
                number for number in out[0].tolist() if number not in self.reader.pieces.special_ids and number < end_id
            ]
        else:
            text = self.reader.pieces.tokenizer.encode(f" {target.strip()}", add_special_tokens=False).ids
        if len(marks) + len(text) + 1 > limit:
            raise AttnctlError(
                f"it has {len(text):,} tokens, and {name} writes {limit - len(marks) - 1:,}",
                option="target",
                value=target,
            )
        return text


def heard_speech(model: Checkpoint, samples: Floats, target: str | None, language: str | None) -> HeardSpeech:
    """Return what Whisper hears in samples (n,), and the weights of every head on its frames.

    The words are those of `target`, or the model's own. Raises the errors of `spoken_marks` and `spoken_ids`.
    """
    import torch

    network: Any = model.network
    assert isinstance(model.reader, SoundReader)
    sound = model.reader.sound_of(model, samples)
    weights: dict[int, Floats] = {}

    def keep_weights(site: Site, call: Call) -> Array:
        steps = attention.run_call(call)
        weights[site.layer] = as_numpy(steps.weights[0].float())  # (heads, prompt + tokens + 1, frames)
        return steps.context

    with running_network(network, network.config.max_target_positions, model.info.name):
        marks, language = sound.spoken_marks(language)
        text, encoded = sound.spoken_ids(marks, target), sound.encoded
        ids = torch.tensor([[*marks, *text, *end_ids(network)[:1]]], device=device_of_inputs(network))
        with watch_attention(network, keep_weights, lambda site: site.kind == "cross"):
            logits = network(encoder_outputs=encoded, decoder_input_ids=ids).logits[0].float()
    chances = torch.log_softmax(logits, -1)[len(marks) - 1 : len(marks) + len(text) - 1]  # (tokens, vocabulary)
    chances = chances[torch.arange(len(text)), torch.tensor(text, dtype=torch.long)].exp()
    return HeardSpeech(text, as_numpy(chances), weights, len(marks), language)


def open_sound_reader(
    folder: Path, network: PreTrainedModel, name: str, kind: str, pieces: Pieces | None
) -> SoundReader:
    """Return the sound reader of a checkpoint's folder.

    Raises AttnctlError if the settings of its processor are missing or unreadable; UsageError if decoder or cross attention
    is asked of a network that writes no text.
    """
    if not has_processor(folder):
        raise AttnctlError(
            f"{name} has no preprocessor_config.json, which says how sound is prepared for it: copy the file into its folder"
        )
    if kind in ("decoder", "cross") and not network.can_generate():
        instead = option_name("attention", "encoder")
        raise UsageError(f"{name} is {type(network).__name__}, which writes no text: see {instead}")
    try:
        with quiet_library():
            extractor = import_extra("transformers").AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
    except AttnctlError:
        raise
    except Exception as error:
        raise AttnctlError(f"{name}: cannot read how sound is prepared for it: {in_one_line(error)}") from error
    return SoundReader(name, extractor, pieces)
