"""Colours of paths."""

from __future__ import annotations

Color = tuple[float, float, float]

# Nine colours that are told apart with any kind of colour vision, by Paul Tol ("muted"); a tenth path has the first
# again, lighter, and then darker: where there are so many, numbers tell them apart.
_PALETTE = ("332288", "88ccee", "117733", "ddcc77", "cc6677", "44aa99", "882255", "999933", "aa4499")
_SHADES = ((1.0, 0.0), (0.6, 0.4), (0.65, 0.0))  # factor of the colour, and what of white is added
# Luminances that differ from a white page, and from a dark one (#1f1f1f), by 3 to 1 at least, as WCAG asks of lines.
_DARKEST, _LIGHTEST = 0.145, 0.295


def path_color(index: int) -> Color:
    """RGB colour of a path.

    >>> path_color(0) == path_color(9)
    False
    """
    turn, place = divmod(index, len(_PALETTE))
    kept, white = _SHADES[turn % len(_SHADES)]
    red, green, blue = (kept * byte / 255 + white for byte in bytes.fromhex(_PALETTE[place]))
    return red, green, blue


def line_color(index: int) -> Color:
    """Colour of a path's line, visible on light and dark pages."""
    linear = [_srgb_to_linear(channel) for channel in path_color(index)]
    found = _luminance(linear)
    kept = min(1.0, _LIGHTEST / found)
    white = max(0.0, (_DARKEST - found) / (1 - found))
    red, green, blue = (_linear_to_srgb((1 - white) * kept * channel + white) for channel in linear)
    return red, green, blue


def text_color(color: Color) -> str:
    """CSS black or white, the more readable on a colour.

    >>> text_color((1.0, 1.0, 0.0)), text_color((0.2, 0.0, 0.5))
    ('#000', '#fff')
    """
    # contrast 4.5 to 1 at least, as WCAG asks
    return "#000" if _luminance([_srgb_to_linear(channel) for channel in color]) > 0.179 else "#fff"


def to_css(color: Color) -> str:
    """Colour in CSS notation.

    >>> to_css((1.0, 0.0, 0.2))
    '#ff0033'
    """
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in color)


def _srgb_to_linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def _linear_to_srgb(channel: float) -> float:
    return 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055


def _luminance(linear: list[float]) -> float:
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
