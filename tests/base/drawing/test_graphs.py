"""Pictures of graphs: a dot for each node in the colour of its path, and a line for each read."""

from __future__ import annotations

from xml.etree import ElementTree

from tpgen.base.drawing.colors import path_color, to_css
from tpgen.base.drawing.graphs import PictureNode, draw_node_graph
from tpgen.emitter.emit import emit_plan
from tpgen.emitter.graph_writer import list_picture_nodes
from tpgen.planner.presets import channelwise

PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")


def test_a_program_is_drawn_from_its_inputs_to_its_output() -> None:
    dots = list_picture_nodes(emit_plan(PLAN, strategy="einsum").graph)
    drawn = ElementTree.fromstring(draw_node_graph(dots))
    assert len(list(drawn.iter("circle"))) == len(dots)
    lines = sum(len({source for source in dot.reads if source in dots}) for dot in dots.values())
    assert len(list(drawn.iter("polyline"))) == lines
    tops = {e.findtext("text"): float(e.find("circle").attrib["cy"]) for e in drawn.iter("g")}  # type: ignore[union-attr]
    assert tops["x1"] == tops["x2"] == min(tops.values()) < tops["output"] == max(tops.values())
    served = {dot.path for dot in dots.values()} - {None}
    assert served == {path.index for path in PLAN.paths}
    colors = {circle.attrib["fill"] for circle in drawn.iter("circle")}
    assert {to_css(path_color(n)) for n in served if n is not None} <= colors


def test_of_many_nodes_the_first_are_drawn() -> None:
    chain = {f"n{n}": PictureNode([f"n{n - 1}"] if n else [], "add") for n in range(160)}
    drawn = draw_node_graph(chain)
    assert drawn.count("<circle") == 150
    assert "the first 150 of 160 nodes" in drawn
    assert draw_node_graph({}) == ""
