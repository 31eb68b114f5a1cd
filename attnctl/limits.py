"""Limits for everything from outside: how large a file or a count may be, and what each number option may be.

Sizes are compared with these limits before anything is unpacked, built or begun. Each limit has its unit and its reason.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from attnctl.errors import AttnctlError, UsageError

# --- files and arrays, in bytes ----------------------------------------------------------------------------------

ALWAYS_FREE_BYTES = 1 << 20  # of memory: for less, nobody looks what is free
TEXT_BYTES = 32 << 20  # a text, or anything told as one: a million tokens are 5 MB, the Bible in English 4.5 MB
CORPUS_BYTES = 256 << 20  # a corpus to train on: 45 million words
AUDIO_BYTES = 1 << 30  # of a file of sound: three hours of stereo
DATA_BYTES = 4 << 30  # a trace or a matrix read at once: 32,000 × 32,000 weights in float32
SETTINGS_BYTES = 128 << 20  # JSON beside a model, or numbers as text
TOKENIZER_BYTES = 64 << 20  # of a tokenizer.json: the largest in use is about 35 MB
DIGEST_BYTES = 2_000_000_000  # of a weights file whose digest is made: of a larger one it would take many seconds
DEFAULTS_BYTES = 1 << 20  # a user's defaults: a line an option
HEADER_BYTES = 100 << 20  # the header of a safetensors file, as the format itself allows
UNPACKED_BYTES = 4 << 30  # all arrays of one NPZ file, as its headers say
PACKED_FREELY = 64 << 20  # up to here an NPZ file may be packed as densely as it likes
MOST_PACKED = 100  # times that larger arrays may be packed: trained weights shrink by a tenth, masked ones to a half
TRACE_BYTES = 16e9  # of weights and scores that are kept of one text
ZEROED_TOKENS = 2_048  # whose values are zeroed one after another, each layer run again for each
ZEROED_TOLD = 128  # tokens of which it is told beforehand that this takes its time
ROWS_JSON_BYTES = 500e6  # of JSON of single rows: what reads it holds ten times that
CARD_DIGEST_BYTES = 64 << 20  # of a weights file whose digest is said: read whole for it, a twentieth of a second
CORPUS_LINE_CHARACTERS = 4 << 20  # of a corpus to train on: a novel without line ends has two million
LINE_BYTES = 64 << 20  # of one text of a batch: what is longer is no sentence, and need not be held
SPANS_BYTES = 4 << 20  # a file of spans: there are 200 at most, each with a name
ENDLESS_BYTES = 1 << 30  # of a line that does not end: what has none by then never will

READER_SECONDS = 10  # until a named pipe that is written to has a reader: the shell starts both at once

# --- counts that a file may claim --------------------------------------------------------------------------------

HEADS_IN_ALL = 20_000  # of all layers in a trace or a matrix: the largest models have 15,000
TEXT_TOKENS = 2_000_000  # of one text: they are made in ten seconds, and in half a gigabyte
PASS_TOKENS = 4096  # of the texts that share a pass through a model, padding and all
PASS_PADDING = 64  # tokens of padding in a pass, which take about as long as another pass does beside its tokens
GGUF_BYTES = 1.5e9  # of memory for what a GGUF file says of itself: the largest vocabularies in use take 1.2 GB
ARRAY_AXES = 8  # of a stored array: weights have four at most
TEXT_GROWTH = (
    64  # characters, and tokens, that are made of a character of a text: the most in use are 36, of one that is a word
)
TEXT_GROWTH_FREE = 1000  # of them that any text may become: a template adds a few hundred at most
RANDOM_NUMBERS = 10**9  # in all W_Q of a random model: nobody reads more
GGUF_NESTING = 4  # arrays in arrays: files in use have none
GGUF_KEPT = 4096  # bytes of a text, and items of an array of numbers, that are kept: what is longer is counted
CONFIGURED_SIZE = 10**9  # any size in a configuration: the largest in use is a vocabulary of 260,000
LAYERS_BUILT = (
    1000  # layers beyond those that tensors are stored of: a few may share theirs, and these are built in a second
)
EXPERTS_BUILT = 600_000  # in all layers, where no weights are read: Doge has 16,384 in each of 32
PICTURE_PIXELS = 60_000_000  # of a picture: its RGB takes 180 MB
NAME_BYTES = 255  # of a file's name, on every common file system
SENTENCE_LINES = 20_000  # of one sentence of a treebank: what is longer is not held in memory
CONLLU_LINE_BYTES = 1 << 20  # of one line of a treebank
SPAN_NAME_CHARACTERS = 1000  # it stands in a heading
DOCUMENT_WORDS = 4000  # of a document that are held: a longer one is several
PAGE_NUMBERS = 400_000_000  # weights in a page: beyond, no browser would open it
PAGE_WEIGHTS = 40_000_000  # kept exactly in a page: 12 layers × 12 heads × 512 tokens, and a little more
SOFTMAX_SCORES = 10_000  # in one row: more cannot be looked at
SEGMENTS = 500  # of a packed batch: each is exchanged, and there are as many pairs as its square
WATCHED_FILES = 1_000  # of a model's folder, whose times tell whether it has changed
SPANS = 200  # parts of a text: beyond, a matrix of them is no longer small
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


# --- numbers that are asked for ----------------------------------------------------------------------------------------


class Range(NamedTuple):
    """The values that a number may have: from `lowest` to `highest`, both included unless `above` excludes `lowest`."""

    lowest: float
    highest: float
    unit: str
    reason: str
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

SIZE = Range(1, 10**6, "numbers", "matrices of a million columns fill the memory")
HEADS = Range(1, 10_000, "heads", "ten times what the largest models have")
LAYERS = Range(1, 10_000, "layers", "ten times what the largest models have")
SEED = Range(0, EXACT, "", "it is written into JSON, and must read back as it was")
WINDOW = Range(1, EXACT, "tokens", "a window of none hides everything")
SCALE = Range(-FLOAT32, FLOAT32, "", "scores are float32")
TEMPERATURE = Range(0, FLOAT32, "", "scores are divided by it", above=True)
ROPE_THETA = Range(0, FLOAT32, "", "angles are divided by its powers", above=True)
DROPOUT = Range(0, math.nextafter(1.0, 0.0), "", "the weights that are kept grow by 1 / (1 - dropout)")
GENERATE = Range(1, 100_000, "tokens", "each is a pass through the model")
PRECISION = Range(0, 9, "decimals", "float32 has no more")
TOP = Range(1, 10**9, "", "more than there are shows all of them")
SWITCHED_OFF = Range(0, 10_000, "heads", "more than the largest models have")
BUDGET = Range(2, 10**6, "forwards", "one measures nothing beside it")
QUESTIONS = Range(1, 100, "questions", "nobody answers more")
FONT_SIZE = Range(3, 40, "points", "below nothing can be read, above nothing else fits")
COLOUR_END = Range(-1e6, 1e6, "weight", "the end of a colour scale")
DPI = Range(30, 1200, "dots per inch", "below nothing can be read, above no printer follows")
MAX_TOKENS = Range(1, 10**9, "tokens", "no checkpoint reads more")
BATCH_SIZE = Range(1, 10_000, "texts", "they share the memory of one pass")
JOBS = Range(1, 1024, "processes", "each has a model of its own")
GPUS = Range(0, 1024, "GPUs", "no machine has more")
CASES = Range(1, 10**9, "cases", "no corpus has more")
GRAMMAR_SENTENCES = Range(20, 1000, "sentences", "each part of the bundled corpus holds a thousand")
LENGTH = Range(1, 10**12, "tokens", "a million million")
# of a training
TRAINED_LAYERS = Range(1, 1000, "layers", "the network is kept at every step of the run")
STEPS = Range(1, 10**9, "steps", "a step takes a millisecond: more than a week")
STEP_SENTENCES = Range(1, 10**6, "sentences", "they share the memory of one step")
POSITIONS = Range(1, 100_000, "positions", "each is a row of the network")
TABLE_ROWS = Range(1, 10**6, "rows", "a table of more fills the memory")
LEARNING_RATE = Range(0, FLOAT32, "", "weights are float32", above=True)


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
