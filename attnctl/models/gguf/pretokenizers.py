r"""How llama.cpp splits a text into words before it merges bytes: the expressions under each `tokenizer.ggml.pre`.

Source: llama.cpp, src/llama-vocab.cpp (names, expressions, defaults) and src/unicode.cpp (how they are run): each
expression splits every part that the one before it left, into its matches and what lies between. The expressions are
llama.cpp's; `oniguruma` gives them the meaning that they have there:

- \p{Lu}, \p{Ll}, \p{Lt}, \p{Lm} and \p{Lo} are all \p{L}: llama.cpp replaces a character by its main category first;
- $ is the end of the part, not of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"  # llama.cpp: ((?=[\p{L}])([^a-z]))
_ANY_UPPER, _ANY_LOWER = r"[\p{L}\p{M}&&[^a-z]]", r"[\p{L}\p{M}&&[^A-Z]]"
_PUNCTUATED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{ENDINGS}?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{ENDINGS}?"
).replace("{ENDINGS}", _ENDINGS)
# of unicode_cpt_is_han in src/unicode.cpp
_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}"
    r"\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
# groups of three digits from the right; the first group keeps what stands before it (unicode_regex_split_custom_afmoe)
_THREE_DIGITS = r"\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
# white space outside ASCII is replaced before llama.cpp matches characters, so no range contains it
_EAST = r"[一-龥ࠀ-一가-퟿&&\S]+"
_ASIAN = "[一-龥぀-ゟ゠-ヿ]+"


def _mixed_case(upper: str, lower: str, ending: str, digits: str) -> str:
    """Return the expression of o200k and Tekken: words end where a capital follows a small letter."""
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{upper}*{lower}+{ending}|{start}{upper}+{lower}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


# llama.cpp leaves out the last alternative, and takes what remains of white space as a part of its own
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_REST}"
STARCODER = (r"\p{N}", GPT2)
DEEPSEEK3 = (r"\p{N}{1,3}", _ASIAN, _PUNCTUATED)
GPT4O = _mixed_case(_UPPER, _LOWER, f"{_ENDINGS}?", r"\p{N}{1,3}")
LINES = (r"[^\n]+|[\n]+",)
# capital and small letters of the scripts that have both
DEEPSEEK_LETTERS = (
    r"A-Za-z"
    r"\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}\x{01C4}-\x{0293}\x{0295}-\x{02AF}"
    r"\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F}\x{0386}\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}"
    r"\x{03A3}-\x{03F5}\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}"
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}"
    r"\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}"
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}"
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}"
    r"\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}"
    r"\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}"
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)


@dataclass(frozen=True)
class PreTokenizer:
    """What a name of `tokenizer.ggml.pre` means; the other keys of a header may change `add_bos`.

    `spells_bytes`: words are spelled in GPT-2's letters for bytes; otherwise spaces are ▁ and other bytes <0x..>.
    """

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    always_bos: bool = False
    spells_bytes: bool = True


LLAMA3_FORM = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
GPT2_FORM = PreTokenizer((GPT2,))
QWEN2_FORM = PreTokenizer((QWEN2,))
GEMMA4 = PreTokenizer(LINES, add_bos=True, always_bos=True, spells_bytes=False)
DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_FORMS: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", DEFAULT),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", LLAMA3_FORM),
    ("dbrx smaug-bpe glm4 glm5 chatglm-bpe", PreTokenizer((LLAMA3,))),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
        "roberta-bpe mpt olmo jais trillion granite-docling exaone4",
        GPT2_FORM,
    ),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", PreTokenizer(STARCODER)),
    ("stablelm2 qwen2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2", QWEN2_FORM),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(DEEPSEEK3)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((GPT4O,))),
    ("bloom gpt3-finnish poro-chat", PreTokenizer((" ?[^(\\s|.,!?…。，、।۔،)]+",))),
    ("viking", PreTokenizer((" ?[^(\\s|.,!?…。，、।۔،)]+", r"\p{N}"))),
    ("gemma4 granite-embed-multi-311m", GEMMA4),
    ("sarvam-moe", PreTokenizer(LINES, spells_bytes=False)),
    (
        "deepseek-llm",
        PreTokenizer(
            (
                "[\r\n]",
                rf"\s?[{DEEPSEEK_LETTERS}]+",
                # U+3000, which llama.cpp's range begins with, is white space, and llama.cpp replaces that first
                r"\s?[!-/:-~！-／：-～‘-‟、-。]+",
                r"\s+$",
                _EAST,
                r"\p{N}+",
            )
        ),
    ),
    ("deepseek-coder", PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST, r"\p{N}"))),
    (
        "falcon",
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    ),
    ("tekken", PreTokenizer((_mixed_case(_UPPER, _LOWER, "", r"\p{N}"),), ignore_merges=True, add_bos=True)),
    (
        "granite-embed-multi-97m",
        PreTokenizer((_mixed_case(_ANY_UPPER, _ANY_LOWER, f"{_ENDINGS}?", r"\p{N}{1,3}"),), ignore_merges=True),
    ),
    (
        "jais-2",
        PreTokenizer(
            (
                rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s{{512}}(?!\S)"
                r"|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
            )
        ),
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "spark2_5",
        PreTokenizer(
            (
                r"\p{N}{1,3}",
                _ASIAN,
                r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
                r"\p{N}",
            )
        ),
    ),
    (
        "youtu",
        PreTokenizer(
            (
                "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _ASIAN,
                _CASED + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
            ignore_merges=True,
        ),
    ),
    (
        "tiny_aya cohere2moe",
        PreTokenizer(
            (
                _THREE_DIGITS,
                _CASED + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "kimi-k2",  # unicode_regex_split_custom_kimi_k2: letters of any case, without marks
        PreTokenizer((rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_ENDINGS}?|\p{{N}}{{1,3}}|{_REST}",)),
    ),
    ("superbpe", PreTokenizer((r"\p{N}+", "[0-9]{1,3}(?=(?:[0-9]{3})*(?![0-9]))"))),  # as (?=(\d{3})+(?!\d))
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]"
                r"|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "seed-coder",
        PreTokenizer((rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)),
    ),
    ("ufakzeka", PreTokenizer((rf"{_WORD}|\p{{N}}|{_REST}",))),
    (
        "afmoe",
        PreTokenizer(
            (
                _THREE_DIGITS,
                "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
                _PUNCTUATED,
            )
        ),
    ),
    ("laguna", PreTokenizer((*LINES, QWEN2))),
    (
        "exaone-moe",
        PreTokenizer(
            (
                rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("minicpm5", PreTokenizer((r"\p{N}{1,3}", rf"{_ENDINGS}|{_WORD}|\p{{N}}+|{_REST}"), ignore_merges=True)),
    (
        "chameleon",
        PreTokenizer(
            (
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ),
            add_bos=True,
        ),
    ),
)
PRE_TOKENIZERS = {name: form for names, form in _FORMS for name in names.split()}


def oniguruma(expression: str) -> str:
    """Return one of llama.cpp's expressions for the library that the tokenizers package uses, with the same meaning."""
    expression = re.sub(r"\\p\{L[ultmo]\}", r"\\p{L}", expression)
    return expression.removesuffix("$") + r"\z" if expression.endswith("$") else expression


def pre_tokenizer_of(name: str | None) -> PreTokenizer | None:
    """Return what a name of `tokenizer.ggml.pre` means; None for an unknown name. A file without a name has the default."""
    return PRE_TOKENIZERS.get(name or "default")
