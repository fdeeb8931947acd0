"""Colours of paths: lines differ from light pages and from dark ones, and numbers from the dots that they stand on."""

from __future__ import annotations

import pytest

from tpgen.base.drawing.colors import Color, line_color, path_color, text_color, to_css

PAGES = {"light": (1.0, 1.0, 1.0), "dark": (0x1F / 255,) * 3}


def contrast(one: Color, other: Color) -> float:
    """As WCAG 2 defines it."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(color: Color) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def shown(color: Color) -> Color:
    """A colour as a page has it, in bytes."""
    red, green, blue = (byte / 255 for byte in bytes.fromhex(to_css(color)[1:]))
    return red, green, blue


@pytest.mark.parametrize("page", PAGES)
def test_lines_read_on_every_page(page: str) -> None:
    assert min(contrast(shown(line_color(n)), PAGES[page]) for n in range(27)) >= 3
    assert min(contrast(path_color(n), PAGES[page]) for n in range(27)) < 3, "this is why lines have their own"


def test_numbers_read_on_their_dots() -> None:
    texts = {"#000": (0.0, 0.0, 0.0), "#fff": (1.0, 1.0, 1.0)}
    assert min(contrast(path_color(n), texts[text_color(path_color(n))]) for n in range(27)) >= 4.5


def test_lines_keep_the_hue() -> None:
    """Where a colour need not change, it does not."""
    assert to_css(line_color(4)) == to_css(path_color(4)) == "#cc6677"
    assert len({to_css(line_color(n)) for n in range(9)}) == 9
