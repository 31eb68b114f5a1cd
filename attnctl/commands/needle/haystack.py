"""The filler around a needle, and the default needle."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from attnctl.errors import AttnctlError

PIECE = 200  # characters of a piece of filler: a longer one would leave too much of a prompt empty

# the default fact, question, and text that a right answer contains
NEEDLE = (
    "The key to the old lighthouse lies under the blue flowerpot by the door.",
    "Where does the key to the old lighthouse lie? Answer with the place alone.",
    "blue flowerpot",
)

_PLACES = (
    "harbour", "market", "library", "station", "garden", "museum", "bakery", "workshop", "orchard", "mill",
    "school", "theatre", "bridge", "square",
)  # fmt: skip
_PEOPLE = (
    "gardener", "baker", "teacher", "sailor", "carpenter", "painter", "clerk", "doctor", "farmer", "weaver",
    "printer", "singer", "miller", "guide",
)  # fmt: skip
_DEEDS = (
    "repaired a fence", "read the newspaper", "counted the boats", "painted a wall", "sold apples", "wrote a long letter",
    "waited for the rain to stop", "swept the steps", "talked about the weather", "mended a coat", "drank a cup of tea",
    "looked for a lost glove", "carried a basket of bread", "watched the birds", "listened to the bells", "fed the hens",
)  # fmt: skip
_TIMES = (
    "In the morning", "Before noon", "Late in the afternoon", "On Monday", "On a cold day", "After the storm", "In spring",
    "Toward evening", "On the first of the month", "During the holidays", "At six o'clock", "Once a week",
)  # fmt: skip


def filler_sentences(seed: int) -> Iterator[str]:
    """Yield endless sentences that are not related to a needle; the same seed gives the same sentences."""
    rng = random.Random(seed)
    while True:
        yield f"{rng.choice(_TIMES)} the {rng.choice(_PEOPLE)} at the {rng.choice(_PLACES)} {rng.choice(_DEEDS)}."


def sentences_of(text: str) -> list[str]:
    """Return a haystack's sentences in order, long ones in pieces. Raises AttnctlError if it has none."""
    from attnctl.readings.spans import spans_of

    sentences = [" ".join(text[start:end].split()) for _, start, end in spans_of("sentences", text)]
    if not sentences:
        raise AttnctlError("the haystack holds no sentences")
    return [piece for sentence in sentences for piece in textwrap.wrap(sentence, PIECE, break_on_hyphens=False)]
