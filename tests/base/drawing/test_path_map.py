"""The map of paths: as SVG that is well formed, with a curve for each end, for notebooks and for the explorer."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tpgen.base.drawing.path_map import PathMap, Route, draw_first_paths, draw_path_map
from tpgen.form.form import form_of, right_form
from tpgen.planner.presets import channelwise

PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")


@pytest.mark.parametrize("interactive", [False, True])
def test_every_path_joins_its_segments(interactive: bool) -> None:
    drawn = ElementTree.fromstring(draw_path_map(PLAN.map, interactive))
    groups = drawn.findall("g")
    assert [group.findtext("text") for group in groups] == [str(path.index) for path in PLAN.paths]
    curves = [group.findall("path")[-1].attrib for group in groups]
    assert all(curve["d"].count("C") == 3 for curve in curves)
    widest = max(range(len(curves)), key=lambda n: float(curves[n]["stroke-width"]))
    assert PLAN.paths[widest].flops == max(path.flops for path in PLAN.paths)
    texts = [text.text for text in drawn.findall("text")]
    assert texts[:3] == ["x1", "x2", "out"]
    assert texts[3:] == [str(s) for irreps in (PLAN.irreps_in1, PLAN.irreps_in2, PLAN.irreps_out) for s in irreps]


def test_only_the_explorers_can_be_clicked() -> None:
    apart, together = (draw_path_map(PLAN.map, interactive) for interactive in (False, True))
    assert "tabindex" in together
    assert "tabindex" not in apart
    assert " id=" not in apart, "a notebook has several"


def test_a_form_is_mapped_from_what_is_given_to_what_is_open() -> None:
    form = form_of(PLAN)
    assert [*form.path_map.operands], [*form.path_map.results] == (["x1", "x2", "w"], ["out"])
    back = form.open("x1").path_map
    assert (list(back.operands), list(back.results)) == (["x2", "w", "out"], ["x1"])
    assert back.operands["x2"] == ("1x0e", "1x1o")
    assert back.operands["w"] == tuple(str(path.weight.stop - path.weight.start) for path in PLAN.paths if path.weight)
    matrix = right_form(PLAN).path_map
    assert {name for route in matrix.routes for name, _ in route.reaches} == {"x1", "out"}


def test_names_are_text() -> None:
    shown = PathMap({"<i>": ("a&b",)}, {"out": ("x",)}, (Route(0, (("<i>", 0),), (("out", 0),), "<path>", 1),))
    texts = [text.text for text in ElementTree.fromstring(draw_first_paths(shown)).iter("text")]
    assert texts == ["<i>", "out", "0", "a&b", "x"]
