"""Charts: marks in proportion to values, every value as text, and what is no number nowhere in a mark."""

from __future__ import annotations

from math import inf, nan
from xml.etree import ElementTree

import pytest

from tpgen.base.drawing.charts import draw_bar_groups, draw_error_scale, draw_stacked_bar


def texts(drawn: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(drawn).iter("text")]


def numbers(drawn: str, tag: str, name: str) -> list[float]:
    return [float(element.attrib[name]) for element in ElementTree.fromstring(drawn).iter(tag)]


def test_bars_are_in_proportion_within_their_group() -> None:
    drawn = draw_bar_groups({"a": [("x", 1.0, "1 B"), ("<y>", 4.0, "4 B")], "none": [], "b": [("z", nan, "-")]})
    short, long, none = numbers(drawn, "rect", "width")
    assert (long, none) == (4 * short, 0)
    assert texts(drawn) == ["a", "x", "1 B", "<y>", "4 B", "b", "z", "-"]
    assert draw_bar_groups({"a": []}) == ""


def test_parts_add_up_to_the_whole() -> None:
    drawn = draw_stacked_bar([("a & b", 1.0), ("c", 2.0)], 4.0, "other")
    whole = numbers(drawn, "rect", "width")[::2]
    assert whole == pytest.approx([110.0, 220.0, 110.0])
    assert {"a & b: 25 %", "c: 50 %", "other: 25 %"} <= set(texts(drawn))
    assert texts(draw_stacked_bar([("all", 3.0)], 3.0)) == ["100 %", "all: 100 %"]
    assert "0 %" in " ".join(texts(draw_stacked_bar([("none", 0.0)], 0.0)))


def test_errors_stand_by_their_powers_of_ten() -> None:
    drawn = draw_error_scale([("a", 1e-8, 1e-6), ("b", 1e-6, 1e-6), ("c", 1e-4, None)])
    places = numbers(drawn, "circle", "cx")
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    ticks = [
        e for e in ElementTree.fromstring(drawn).iter("line") if (e.findtext("title") or "").startswith("tolerance")
    ]
    assert [float(tick.attrib["x1"]) for tick in ticks] == [places[1]] * 2
    assert {"a", "b", "c", "1.0e-08", "1.0e-04"} <= set(texts(drawn))


def test_an_error_beyond_its_tolerance_has_another_mark() -> None:
    drawn = draw_error_scale([("good", 1e-8, 1e-6), ("bad", 1e-3, 1e-6), ("worse", nan, 1e-6), ("worst", inf, 1e-6)])
    assert drawn.count("<circle") == 1
    assert drawn.count('class="beyond"') == 3
    assert {"nan", "inf"} <= set(texts(drawn))
    assert "nan" not in "".join(path.attrib["d"] for path in ElementTree.fromstring(drawn).iter("path"))


def test_what_is_not_compared_has_no_row() -> None:
    assert draw_error_scale([("none", None, 1e-6)]) == ""
    assert texts(draw_error_scale([("none", None, 1e-6), ("zero", 0.0, 1e-6)])).count("0") == 1
