"""Limits for everything from outside: how large a file or a count may be, and what each number option may be.

Sizes are compared with these limits before anything is unpacked, built or begun. Each limit has its unit and its reason.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from attnctl.errors import AttnctlError, UsageError

# --- files and arrays, in bytes ----------------------------------------------------------------------------------

ALWAYS_FREE_BYTES = 1 << 20  # of memory: smaller needs are not compared with the free memory
TEXT_BYTES = 32 << 20  # a text, or any file read as text: a million tokens are 5 MB, the Bible in English 4.5 MB
CORPUS_BYTES = 256 << 20  # a corpus to train on: 45 million words
AUDIO_BYTES = 1 << 30  # a sound file: three hours of stereo
DATA_BYTES = 4 << 30  # a trace or a matrix read at once: 32,000 × 32,000 weights in float32
SETTINGS_BYTES = 128 << 20  # JSON beside a model, or numbers as text
TOKENIZER_BYTES = 64 << 20  # a tokenizer.json: the largest in use is about 35 MB
DIGEST_BYTES = 2_000_000_000  # a weights file with a digest: for a larger file it takes many seconds
DEFAULTS_BYTES = 1 << 20  # a user's defaults: one line for each option
HEADER_BYTES = 100 << 20  # the header of a safetensors file, as the format itself allows
UNPACKED_BYTES = 4 << 30  # all arrays of one NPZ file, as its headers say
PACKED_FREELY = 64 << 20  # up to this size an NPZ file may have any compression ratio
MOST_PACKED = 100  # compression ratio of larger arrays: trained weights shrink by a tenth, masked ones to a half
TRACE_BYTES = 16e9  # weights and scores of one text
ZEROED_TOKENS = 2_048  # of value zeroing: each layer runs once for each token
ZEROED_NOTED = 128  # tokens from which a note says in advance that value zeroing takes long
ROWS_JSON_BYTES = 500e6  # JSON of single rows: a reader of it needs ten times that memory
CARD_DIGEST_BYTES = 64 << 20  # a weights file with its digest in every result: reading it takes a twentieth of a second
CORPUS_LINE_CHARACTERS = 4 << 20  # a line of a corpus to train on: a novel without line ends has two million
LINE_BYTES = 64 << 20  # one text of a batch: nothing longer is a sentence
SPANS_BYTES = 4 << 20  # a file of spans: there are 200 at most, each with a name
TABLE_WEIGHTS = 100_000_000  # weights of a table, one a row: CSV of about 4 GB
ENDLESS_BYTES = 1 << 30  # a line without an end: after this length, none is expected

TEMPLATE_BYTES = 1 << 30  # memory for filling chat templates: thirty times the longest text
TEMPLATE_SECONDS = 20  # for one conversation: a long one takes a hundredth of a second
PROCESS_SECONDS = 60  # until a process for templates has started: a third of a second on a quick disk
READER_SECONDS = 10  # wait for the reader of a named pipe: the shell starts both at once

# --- counts that a file may claim --------------------------------------------------------------------------------

HEADS_IN_ALL = 20_000  # over all layers of a trace or a matrix: the largest models have 15,000
TEXT_TOKENS = 2_000_000  # one text: making them takes ten seconds and half a gigabyte
PASS_TOKENS = 4096  # the texts that share a pass through a model, with padding
PASS_PADDING = 64  # padding in a pass: it takes about as long as the overhead of another pass
GGUF_BYTES = 5e8  # memory for the metadata of a GGUF file: the largest vocabularies in use take 90 MB
ARRAY_AXES = 8  # a stored array: weights have four at most
TEXT_GROWTH = 64  # characters or tokens made from one character of a text: the largest number in use is 36
TEXT_GROWTH_FREE = 1000  # characters or tokens that any text may become: a template adds a few hundred at most
RANDOM_NUMBERS = 10**9  # in all W_Q of a random model: more is useless to a reader
GGUF_NESTING = 4  # arrays in arrays: files in use have none
GGUF_KEPT = 4096  # bytes of a text, or items of an array of numbers: longer ones are only counted
CONFIGURED_SIZE = 10**9  # any size in a configuration: the largest in use is a vocabulary of 260,000
LAYERS_BUILT = 1000  # layers without stored tensors: some layers share theirs; these are built in a second
EXPERTS_BUILT = 600_000  # in all layers, if no weights are read: Doge has 16,384 in each of 32
PICTURE_PIXELS = 60_000_000  # a picture: its RGB takes 180 MB
NAME_BYTES = 255  # of a file's name, on every common file system
SENTENCE_LINES = 20_000  # one sentence of a treebank: a longer one is not kept in memory
CONLLU_LINE_BYTES = 1 << 20  # one line of a treebank
SPAN_NAME_CHARACTERS = 1000  # the name is part of a heading
DOCUMENT_WORDS = 4000  # kept of a document: a longer one becomes several
PAGE_NUMBERS = 400_000_000  # weights in a page: no browser opens a larger one
PAGE_WEIGHTS = 40_000_000  # exact weights in a page: 12 layers × 12 heads × 512 tokens, and a little more
SOFTMAX_SCORES = 10_000  # in one row: nobody can look at more
SEGMENTS = 500  # of a packed batch: each one is exchanged, and the number of pairs is its square
WATCHED_FILES = 1_000  # of a model's folder: their times show whether it has changed
SPANS = 200  # parts of a text: a matrix of more parts is no longer small
TENSORS = 1_000_000  # in one weights file: the largest checkpoints have 50,000


def growth_error(count: int, characters: int, noun: str) -> str:
    """Return an error text if `count` tokens or characters are too many for a text of `characters`; "" if not."""
    if count <= TEXT_GROWTH * characters + TEXT_GROWTH_FREE:
        return ""
    return f"it makes {count:,} {noun} of {characters:,} characters"


def check_memory(need: float, subject: str, advice: str) -> None:
    """Raise AttnctlError if `need` bytes are more than the free memory.

    `subject` is what needs the memory, `advice` what the user can do.
    """
    free = None if need < ALWAYS_FREE_BYTES else free_memory()
    if free is not None and need > free:
        raise AttnctlError(f"{subject} needs {bytes_text(need)} of memory, and {bytes_text(free)} are free: {advice}")


def free_memory() -> float | None:
    """Return the free memory in bytes; None if the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            return next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def bytes_text(count: float) -> str:
    """Return a number of bytes as readable text: 640 B, 1.6 GB, 4.5 PB."""
    units = ["B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB"]
    while count >= 999.5 and len(units) > 1:
        count, units = count / 1000, units[1:]
    if count >= 999.5:
        return "far too much"
    return f"{count:.0f} {units[0]}" if units[0] == "B" or count >= 99.5 else f"{count:.2g} {units[0]}"


# --- values of number options -------------------------------------------------------------------------------------------


class Range(NamedTuple):
    """The values that a number may have: from `lowest` to `highest`, both included unless `above` excludes `lowest`."""

    lowest: float
    highest: float
    unit: str = ""
    above: bool = False

    def holds_value(self, value: float) -> bool:
        """Return whether a value is in the range; NaN and infinity never are."""
        try:
            finite = math.isfinite(value)
        except OverflowError:  # a whole number beyond any float
            return False
        return finite and self.lowest <= value <= self.highest and not (self.above and value == self.lowest)

    def check_value(self, option: str, value: object) -> None:
        """Raise UsageError if the value of this option is outside the range."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.holds_value(value):
            raise UsageError(self.range_text(), option=option, value=value)

    def range_text(self) -> str:
        """Return the range for an error message: "a number above 0, at most 1e+30"."""
        low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (self.lowest, self.highest))
        if self.above:
            return f"a number above {low}, at most {high}"
        if self.highest < 1:
            return f"a probability from {low} up to, not including, 1"
        return f"it is {low} to {high}" + (f" {self.unit}" if self.unit else "")


EXACT = 2**53  # up to here a whole number is the same in JSON readers of every language
FLOAT32 = 1e30  # numbers beside which sums and products in float32 stay finite

SIZE = Range(1, 10**6, "numbers")  # matrices of a million columns fill the memory
HEADS = Range(1, 10_000, "heads")  # ten times the number in the largest models
LAYERS = Range(1, 10_000, "layers")  # ten times the number in the largest models
SEED = Range(0, EXACT)  # JSON readers of every language keep it exact
WINDOW = Range(1, EXACT, "tokens")  # a window of 0 hides everything
OFFSET = Range(0, EXACT, "keys")  # where the first query stands among the keys
SCALE = Range(-FLOAT32, FLOAT32)  # scores are float32
TEMPERATURE = Range(0, FLOAT32, above=True)  # scores are divided by it
ROPE_THETA = Range(0, FLOAT32, above=True)  # angles are divided by its powers
DROPOUT = Range(0, math.nextafter(1.0, 0.0))  # the kept weights grow by 1 / (1 - dropout)
GENERATE = Range(1, 100_000, "tokens")  # each token is a pass through the model
FIRST_WORD = Range(0, 1, "")  # from which the words of an alignment are counted
PRECISION = Range(0, 9, "decimals")  # float32 has no more decimals
TOP = Range(1, 10**9)  # a larger number than exist shows all
SWITCHED_OFF = Range(0, 10_000, "heads")  # more than the largest models have
BUDGET = Range(2, 10**6, "forwards")  # one forward leaves nothing to compare with
QUESTIONS = Range(1, 100, "questions")  # nobody answers more questions
FONT_SIZE = Range(3, 40, "points")  # smaller text is illegible, larger text leaves no room
COLOUR_END = Range(-1e6, 1e6, "weight")  # the end of a colour scale
DPI = Range(30, 1200, "dots per inch")  # fewer are illegible, no printer prints more
MAX_TOKENS = Range(1, 10**9, "tokens")  # no checkpoint reads more
BATCH_SIZE = Range(1, 10_000, "texts")  # they share the memory of one pass
JOBS = Range(1, 1024, "processes")  # each process has its own model
GPUS = Range(0, 1024, "GPUs")  # no machine has more
CASES = Range(1, 10**9, "cases")  # no corpus has more
GRAMMAR_SENTENCES = Range(20, 1000, "sentences")  # each part of the bundled corpus holds a thousand
LENGTH = Range(1, 10**12, "tokens")  # a million million
# options of training
TRAINED_LAYERS = Range(1, 1000, "layers")  # the network is stored at every step of the run
STEPS = Range(1, 10**9, "steps")  # a step takes a millisecond: more than a week
STEP_SENTENCES = Range(1, 10**6, "sentences")  # they share the memory of one step
POSITIONS = Range(1, 100_000, "positions")  # each is a row of the network
TABLE_ROWS = Range(1, 10**6, "rows")  # a larger table fills the memory
LEARNING_RATE = Range(0, FLOAT32, above=True)  # weights are float32


def whole_number(text: str) -> int:
    """Return a whole number from at most 400 ASCII digits.

    Raises ValueError for anything else, such as "٣", "1_000" or "1e3".
    """
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,400}\s*", text):
        raise ValueError(text)
    return int(text)


def decimal_number(text: str) -> float:
    """Return a number from ASCII digits, as Python writes it. Raises ValueError for anything else."""
    if not text.isascii() or "_" in text or len(text) > 400:
        raise ValueError(text)
    return float(text)


def scale_factor(scale: str | float | None) -> float | None:
    """Return the option `scale` as a factor; None means 1/√d_k, or the scale of the model. Raises UsageError."""
    if scale is None or scale == "auto":
        return None
    if scale == "none":
        return 1.0
    try:
        return _factor_number(str(scale))
    except (ValueError, ZeroDivisionError):
        expected = "it is auto, none, a number such as 0.125, or a fraction such as 1/8 or 1/√64"
        raise UsageError(expected, option="scale", value=scale) from None


def _factor_number(text: str) -> float:
    """Return `0.125`, `1/8` or `1/√64` as a number. Raises ValueError or ZeroDivisionError for anything else."""
    above, slash, below = text.partition("/")
    factor = decimal_number(above)
    if slash:
        divisor = decimal_number(below.removeprefix("√"))
        factor /= math.sqrt(divisor) if below.startswith("√") else divisor
    return factor
