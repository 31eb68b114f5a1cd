"""The tokenizer of a GGUF file, made from its header: the ids are llama.cpp's.

Source: llama.cpp, src/llama-vocab.cpp. Four kinds of vocabularies are read (`tokenizer.ggml.model`): gpt2 and gemma4 (merges
of bytes or of characters), llama (SentencePiece's merges by score), t5 (unigrams) and bert (WordPiece).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.errors import AttnctlError
from attnctl.models.gguf.pretokenizers import DEFAULT, PreTokenizer, oniguruma, pre_tokenizer_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from attnctl.models.gguf.header import Metadata

PREFIX = "tokenizer.ggml."
SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
LONGEST_WORD = 1 << 30  # characters: llama.cpp has no limit
# tokens that llama.cpp reads as special by their text, whatever their type is (`load` in src/llama-vocab.cpp)
_CONTROL = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s>
<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>
<｜end▁of▁sentence｜> [e~[ <|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|>
<|prefix|> <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>
<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|> <|fim_pad|>
<fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame> <|file_sep|>
"""
CONTROL_TEXTS = frozenset(_CONTROL.split())
SHOWN_TEXTS = frozenset(
    ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
)  # of gpt-oss: read as user-defined
# special tokens that phi-3 does not strip white space after
UNSTRIPPED = frozenset(("<unk>", "<s>", "<|endoftext|>"))
NAMED = {  # key of the header → setting of a tokenizer_config.json
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "seperator_token_id": "sep_token",
    "padding_token_id": "pad_token",
    "mask_token_id": "mask_token",
}


class GgufTokenizer(NamedTuple):
    """A tokenizer, its settings under the names of a tokenizer_config.json, and notes about what is not known."""

    tokenizer: Tokenizer
    settings: dict[str, object]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Kind:
    """The defaults of a kind of vocabulary; the keys of a header change them."""

    special: Mapping[str, int | None] = field(default_factory=dict)  # ids by setting
    add_bos: bool = False
    add_eos: bool = False
    space_prefix: bool = False


_KINDS = {
    "llama": _Kind({"bos_token": 1, "eos_token": 2, "unk_token": 0}, add_bos=True, space_prefix=True),
    "gpt2": _Kind({"bos_token": 11, "eos_token": 11}),
    "gemma4": _Kind(),
    "t5": _Kind({"eos_token": 1, "unk_token": 2, "pad_token": 0}, add_eos=True),
    "bert": _Kind(
        {"bos_token": 101, "unk_token": 100, "sep_token": 102, "pad_token": 0, "mask_token": 103}, add_bos=True
    ),
}


def read_tokenizer(metadata: Metadata, name: str) -> GgufTokenizer:
    """Return the tokenizer of a GGUF file called `name`.

    Raises AttnctlError, in one line, for a file without a vocabulary, or with one of another kind.
    """
    return _Vocabulary(metadata, name).read()


class _Vocabulary:
    """The tokens of a header, and what it says about them."""

    def __init__(self, metadata: Metadata, name: str) -> None:
        self.metadata, self.name = metadata, name
        self.model = str(self._entry("model", ""))
        if self.model not in _KINDS:
            kind = f"a tokenizer of the kind {self.model}" if self.model else "no tokenizer (tokenizer.ggml.model)"
            raise AttnctlError(f"{name} has {kind}: attnctl reads {', '.join(_KINDS)}")
        self.kind = _KINDS[self.model]
        texts: tuple[str, ...] = tuple(map(str, metadata.array(f"{PREFIX}tokens")))
        if not texts:
            raise AttnctlError(f"{name} has no tokens (tokenizer.ggml.tokens)")
        self.texts = tuple(text or f"[EMPTY_{number}]" for number, text in enumerate(texts))
        self.ids = {text: number for number, text in reversed(list(enumerate(self.texts)))}
        self.scores = self._numbers("scores", 0.0)
        self.types = self._numbers("token_type", NORMAL)
        self.special = self._special_ids()
        self.notes: list[str] = []

    def read(self) -> GgufTokenizer:
        """Return the tokenizer, its settings and the notes."""
        makers = {"llama": self._sentencepiece, "t5": self._unigrams, "bert": self._wordpiece}
        tokenizer, add_bos, add_eos = makers.get(self.model, self._merges)()
        self._add_special_tokens(tokenizer)
        self._add_ends(tokenizer, add_bos, add_eos)
        return GgufTokenizer(tokenizer, self._settings(), tuple(self.notes))

    # --- the header ---------------------------------------------------------------------------------------------------

    def _entry(self, key: str, default: Any) -> Any:
        return self.metadata.entries.get(PREFIX + key, default)

    def _numbers(self, key: str, default: float) -> Sequence[float]:
        numbers = [float(value) for value in self.metadata.array(PREFIX + key)]
        if numbers and len(numbers) < len(self.texts):
            raise AttnctlError(
                f"{self.name} has {len(self.texts):,} tokens, and {len(numbers):,} of tokenizer.ggml.{key}"
            )
        return numbers or [default] * len(self.texts)

    def _special_ids(self) -> dict[str, int]:
        """Return the ids of the named special tokens, by setting; ids beyond the vocabulary do not count."""
        ids = {setting: number for setting, number in self.kind.special.items() if number is not None}
        if self._entry("pre", None) in ("glm4", "chatglm-bpe"):
            ids.pop("bos_token")
        ids = {setting: number for setting, number in ids.items() if number < len(self.texts)}
        for key, setting in NAMED.items():
            number = self._entry(key, None)
            if isinstance(number, int) and 0 <= number < len(self.texts):
                ids[setting] = number
        return ids

    def _settings(self) -> dict[str, object]:
        stated = {setting for key, setting in NAMED.items() if self._entry(key, None) is not None}
        # a default of gpt2, the token 11, is no beginning that a user would know
        named = [setting for setting in self.special if setting in stated or self.model != "gpt2"]
        settings: dict[str, object] = {setting: self.texts[self.special[setting]] for setting in named}
        if self.model == "bert":
            settings["cls_token"] = settings.pop("bos_token", None)
        templates = {"default": self.metadata.text("tokenizer.chat_template")}
        for name in map(str, self.metadata.array("tokenizer.chat_templates")):
            templates[name] = self.metadata.text(f"tokenizer.chat_template.{name}")
        listed = [{"name": name, "template": text} for name, text in templates.items() if text is not None]
        if listed:
            settings["chat_template"] = listed[0]["template"] if len(listed) == 1 else listed
        return {key: value for key, value in settings.items() if value is not None}

    # --- the kinds ----------------------------------------------------------------------------------------------------

    def _merges(self) -> tuple[Tokenizer, bool, bool]:
        """Return a tokenizer of merges (gpt2, gemma4), and whether it adds a beginning and an end."""
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

        form = self._pre_tokenizer()
        byte_fallback = not form.spells_bytes
        model = models.BPE(
            self.ids, self._listed_merges(), ignore_merges=form.ignore_merges, byte_fallback=byte_fallback
        )
        tokenizer = Tokenizer(model)
        splits: list[Any] = [
            pre_tokenizers.Split(Regex(oniguruma(expression)), "isolated") for expression in form.expressions
        ]
        if form.spells_bytes:
            splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
            tokenizer.decoder = decoders.ByteLevel()
        else:
            tokenizer.normalizer = normalizers.Replace(" ", SPACE)
            tokenizer.decoder = self._spaced_decoder(strip=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
        add_bos = form.always_bos or bool(self._entry("add_bos_token", form.add_bos))
        return tokenizer, add_bos, bool(self._entry("add_eos_token", False))

    def _pre_tokenizer(self) -> PreTokenizer:
        """Return how words are split; note a name that is not known."""
        name = "gemma4" if self.model == "gemma4" else self._entry("pre", None)
        form = pre_tokenizer_of(name)
        if form is None:
            self.notes.append(
                f"{self.name} names rules for splitting words that attnctl does not know ({str(name)[:40]} in "
                "tokenizer.ggml.pre): words are split by llama.cpp's default rules, so tokens may differ from the model's."
            )
        return form or DEFAULT

    def _listed_merges(self) -> list[tuple[str, str]]:
        """Return the merges of the header whose parts and result are tokens. Raises AttnctlError if it has none."""
        pairs, merges = [], self.metadata.array(f"{PREFIX}merges")
        if not merges:  # letters would be the tokens: llama.cpp refuses such a file, too
            raise AttnctlError(f"{self.name} has no merges (tokenizer.ggml.merges)")
        for merge in map(str, merges):
            place = merge.find(" ", 1)
            left, right = merge[:place], merge[place + 1 :]
            if place > 0 and left in self.ids and right in self.ids and left + right in self.ids:
                pairs.append((left, right))
        return pairs

    def _sentencepiece(self) -> tuple[Tokenizer, bool, bool]:
        """Return a tokenizer of SentencePiece's merges: two neighbours merge to the token of the highest score."""
        from tokenizers import Tokenizer, models, normalizers

        unknown = self.texts[self.special["unk_token"]] if "unk_token" in self.special else None
        has_bytes = any(kind == BYTE for kind in self.types)
        model = models.BPE(
            self.ids, list(self._scored_merges()), unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes
        )
        tokenizer = Tokenizer(model)
        prefix = bool(self._entry("add_space_prefix", self.kind.space_prefix))
        steps = [normalizers.Prepend(SPACE)] if prefix else []
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
        tokenizer.decoder = self._spaced_decoder(strip=prefix)
        return tokenizer, *self._added_ends()

    def _scored_merges(self) -> Iterator[tuple[str, str]]:
        """Yield the merges that make each token, those of the highest score first.

        llama.cpp merges the leftmost of equal scores, so that a run of spaces grows from the left: of equal scores, the
        longest token comes first here, and of one token the merge with the longest left part.
        """
        order = sorted(range(len(self.texts)), key=lambda number: (-self.scores[number], -len(self.texts[number])))
        for text in (self.texts[number] for number in order):
            for place in range(len(text) - 1, 0, -1):
                if text[:place] in self.ids and text[place:] in self.ids:
                    yield text[:place], text[place:]

    def _unigrams(self) -> tuple[Tokenizer, bool, bool]:
        """Return a tokenizer of unigrams: the pieces whose scores have the largest sum."""
        from tokenizers import Regex, Tokenizer, models, normalizers

        pieces = [
            (text, 0.0 if kind == USER_DEFINED else score)
            for text, score, kind in zip(self.texts, self.scores, self.types, strict=False)
        ]
        tokenizer = Tokenizer(models.Unigram(pieces, self.special.get("unk_token"), False))
        merges_spaces = bool(self._entry("remove_extra_whitespaces", False))
        charsmap = bytes(int(byte) % 256 for byte in self.metadata.array(f"{PREFIX}precompiled_charsmap"))
        steps: list[Any] = _character_map(charsmap) if charsmap else []
        if merges_spaces:
            steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        steps.append(normalizers.Replace(" ", SPACE))
        if merges_spaces or self._entry("add_space_prefix", self.kind.space_prefix):
            # a text of spaces alone gets no further space
            steps += [normalizers.Prepend(SPACE), normalizers.Replace(Regex(rf"\A{SPACE}(?={SPACE}*\z)"), "")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = self._spaced_decoder(strip=True)
        return tokenizer, *self._added_ends()

    def _wordpiece(self) -> tuple[Tokenizer, bool, bool]:
        """Return a tokenizer of WordPiece; a GGUF file marks the beginnings of words with ▁, not the rest with ##."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        lowercase = bool(self._entry("normalizer.lowercase", True))
        strip_accents = bool(self._entry("normalizer.strip_accents", lowercase))
        unknown = self.texts[self.special["unk_token"]] if "unk_token" in self.special else "[UNK]"
        model = models.WordPiece(
            self.ids, unk_token=unknown, continuing_subword_prefix="", max_input_chars_per_word=LONGEST_WORD
        )
        tokenizer = Tokenizer(model)
        # llama.cpp drops every mark, and keeps the first letter alone of a Korean syllable
        unmarked: list[Any] = [normalizers.NFD(), normalizers.Replace(Regex(r"\p{M}|[\x{1161}-\x{11FF}]"), "")]
        cleaned = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=lowercase
        )
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Replace("\x85", " "), *(unmarked if strip_accents else []), cleaned]
        )
        words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), words])
        tokenizer.decoder = self._spaced_decoder(strip=True)
        return tokenizer, True, True

    def _added_ends(self) -> tuple[bool, bool]:
        """Return whether a beginning and an end are added."""
        add_bos = bool(self._entry("add_bos_token", self.kind.add_bos))
        return add_bos, bool(self._entry("add_eos_token", self.kind.add_eos))

    @staticmethod
    def _spaced_decoder(*, strip: bool) -> Any:
        from tokenizers import decoders

        steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)

    # --- special tokens -----------------------------------------------------------------------------------------------

    def _add_special_tokens(self, tokenizer: Tokenizer) -> None:
        """Let special and user-defined tokens be read in a text, as llama.cpp does."""
        from tokenizers import AddedToken

        model_name = str(self.metadata.entries.get("general.name", "")).lower()
        strips = "phi-3" in model_name or "phi3" in model_name
        special, plain = list[AddedToken](), list[AddedToken]()
        for text, kind in zip(self.texts, self.types, strict=False):
            is_control = (kind in (UNKNOWN, CONTROL) or text in CONTROL_TEXTS) and text not in SHOWN_TEXTS
            if not is_control and kind != USER_DEFINED and text not in SHOWN_TEXTS:
                continue
            sides = {"rstrip": strips and text not in UNSTRIPPED, "lstrip": self._strips_left(text)}
            token = AddedToken(text, normalized=False, special=is_control, **sides)
            (special if is_control else plain).append(token)
        tokenizer.add_special_tokens(special)
        tokenizer.add_tokens(plain)

    def _strips_left(self, text: str) -> bool:
        """Return whether a token takes the white space before it: the masks of some encoders."""
        pre = str(self._entry("pre", ""))
        architecture = str(self.metadata.entries.get("general.architecture", ""))
        if any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
            return text == "<mask>"
        return text == "<mask>" and any(part in architecture for part in ("nomic-bert-moe", "jina-bert-v3"))

    def _add_ends(self, tokenizer: Tokenizer, add_bos: bool, add_eos: bool) -> None:
        """Let the tokens for the beginning and the end be added. Raises AttnctlError if the file names none."""
        from tokenizers import processors

        end = "sep_token" if self.model == "bert" else "eos_token"
        for added, setting in ((add_bos, "bos_token"), (add_eos, end)):
            if added and setting not in self.special:
                raise AttnctlError(f"{self.name} says that its tokenizer adds a {setting}, and names none")
        first = [self.texts[self.special["bos_token"]]] if add_bos else []
        last = [self.texts[self.special[end]]] if add_eos else []
        second = [] if self.model == "bert" else first
        if first or last:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*_typed(first, 0), "$A:0", *_typed(last, 0)],
                pair=[*_typed(first, 0), "$A:0", *_typed(last, 0), *_typed(second, 1), "$B:1", *_typed(last, 1)],
                special_tokens=[(text, self.ids[text]) for text in {*first, *last}],
            )


def _typed(texts: Sequence[str], number: int) -> list[str]:
    """Return tokens of a template with the number of their text."""
    return [f"{text}:{number}" for text in texts]


def _character_map(charsmap: bytes) -> list[Any]:
    """Return the normalizers of SentencePiece's table of characters.

    The tokenizers library looks up letters together with their marks, and drops a mark that the table does not have. Tables
    made from NFKC have nothing left to do for such letters after NFKC.
    """
    from tokenizers import normalizers

    nfkc = partial(unicodedata.normalize, "NFKC")
    table = normalizers.Precompiled(charsmap)
    is_nfkc = all(table.normalize_str(text).lower() == nfkc(text).lower() for text in ("Ａ", "，", "㎏", "ﬁ", "①"))
    steps: list[Any] = [normalizers.NFKC()] if is_nfkc else []
    if table.normalize_str("\r") == " ":  # the library takes a line's end of Windows for one character
        steps.append(normalizers.Replace("\r\n", "  "))
    return [*steps, normalizers.Lowercase(), table] if table.normalize_str("A") == "a" else [*steps, table]
