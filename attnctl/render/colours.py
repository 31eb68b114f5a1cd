"""The colours of attention and of ink on them: plain numbers, so that no picture library is needed to use them."""

from __future__ import annotations

# Lightness falls (or rises) evenly along the map in OKLab, and one family of hues from green to blue carries it, so that it
# reads alike for every kind of colour sight and in grey. Zero is close to the page's own colour.
HEAT_ON_LIGHT = (
    "#eef7f4", "#b1eae0", "#7ed6d3", "#4dc0c9", "#1da8bd", "#008fae", "#00769c", "#005d85", "#0f466c", "#133150", "#111d33",
)  # fmt: skip
HEAT_ON_DARK = (
    "#1b202b", "#1f324c", "#1b476b", "#075d86", "#00759b", "#008eac", "#19a6b8", "#4dbcc2", "#7bd1cc", "#a7e4d8", "#d2f7ea",
)  # fmt: skip
# matplotlib's maps of the same names (viridis, cividis: public domain), every sixteenth colour
VIRIDIS = (
    "#440154", "#48186a", "#472d7b", "#424086", "#3b528b", "#33638d", "#2c728e", "#26828e", "#21918c",
    "#1fa088", "#28ae80", "#3fbc73", "#5ec962", "#84d44b", "#addc30", "#d8e219", "#fde725",
)  # fmt: skip
CIVIDIS = (
    "#00224e", "#002e6a", "#1a386f", "#32436d", "#434e6c", "#535a6d", "#61656f", "#6f7073", "#7d7c78",
    "#8c8878", "#9b9476", "#aba072", "#bcae6c", "#cdbb63", "#dec958", "#f0d846", "#fee838",
)  # fmt: skip

# of matplotlib: orange for more, violet for less, told apart by every kind of colour vision
CHANGE = "PuOr_r"

# --- ink on a cell: dark or white; terminal, pictures and page read these three constants ------------------------

LUMINANCE = (0.2126, 0.7152, 0.0722)  # relative luminance (WCAG 2) of linear red, green and blue
LINEAR_OF_BYTE = tuple(
    (byte / 255) / 12.92 if byte / 255 <= 0.04045 else ((byte / 255 + 0.055) / 1.055) ** 2.4 for byte in range(256)
)
# dark ink from this luminance on: both inks have the same contrast at 0.19, but white is easier to read on middle tones;
# at 0.26 its contrast is still 3.4, more than the 3 that WCAG asks for pictures
DARK_INK_FROM = 0.26


def takes_dark_ink(red: int, green: int, blue: int) -> bool:
    """Whether dark ink, rather than white, is to stand on a colour, 0 to 255 each."""
    parts = zip(LUMINANCE, (red, green, blue), strict=True)
    return sum(weight * LINEAR_OF_BYTE[byte] for weight, byte in parts) > DARK_INK_FROM
