"""What notebooks and IPython show: HTML that is well formed, with every number of the text, and bars that mean them."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import tpgen
from tpgen.base.notebook import Shown, html_table
from tpgen.emitter.emit import emit_plan
from tpgen.form.form import form_of
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import POLYNOMIALS
from tpgen.tools.inspection.costs.explain_network import explain_network
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.report.compile_report import compile_report
from tpgen.tools.verification.verify import verify

PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
PROBLEM = POLYNOMIALS["turned"]


class Tags(HTMLParser):
    """Reads HTML and fails where a tag is closed that was not opened last."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.styles.append(dict(attrs).get("style") or "")
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


class Printer:
    """What IPython prints, and how it looks for it: class by class, and a `__repr__` hides what is inherited."""

    def __init__(self) -> None:
        self.said = ""

    def text(self, said: str) -> None:
        self.said += said

    def pretty(self, value: Any, cycle: bool = False) -> None:
        found = next(cls for cls in type(value).__mro__ if {"_repr_pretty_", "__repr__"} & set(vars(cls)))
        if "_repr_pretty_" in vars(found):
            found._repr_pretty_(value, self, cycle)
        else:
            self.text(repr(value))


def _network() -> Any:
    network = torch.nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"))
    return explain_network(network, [torch.randn(3, 6)])


MADE: dict[str, Callable[[], Any]] = {
    "plan": lambda: PLAN,
    "linear plan": lambda: make_linear_plan("2x0e", "3x0e"),
    "form": lambda: form_of(PLAN).open("x1"),
    "emission": lambda: emit_plan(PLAN),
    "explanation": lambda: tpgen.explain(PLAN, rows=10, strategy="einsum"),
    "network": _network,
    "verification": lambda: verify(tpgen.TensorProduct.from_plan(PLAN), only=["definition"]),
    "report": lambda: compile_report(torch.nn.ReLU(), [torch.randn(4, 3)], sections=["partition"]),
    "conversion": lambda: _converted(),
}


def _converted() -> Any:
    from e3nn import o3

    return tpgen.conversion_report(torch.nn.ModuleList([o3.FullTensorProduct("1o", "1o")]))


@pytest.mark.parametrize("kind", MADE)
def test_a_value_shows_itself(kind: str) -> None:
    value = MADE[kind]()
    assert isinstance(value, Shown)
    html = Tags(value._repr_html_())
    words = str(value).split("\n")[0].rstrip(":").split()
    assert all(word.rstrip(":,") in html.text for word in words)
    printer = Printer()
    printer.pretty(value)
    assert printer.said == str(value)


@pytest.mark.parametrize("kind", MADE)
def test_a_value_reads_on_light_and_on_dark_pages(kind: str) -> None:
    """The colour of text is the page's, and backgrounds are tints of it: none hides a text."""
    styles = [style for style in Tags(MADE[kind]()._repr_html_()).styles if style]
    assert not any(re.search(r"(^|;)color:", style) for style in styles)
    tints = [color for style in styles for color in re.findall(r"background:[^;]*?(#[0-9a-f]+)", style)]
    assert all(len(color) == 9 and int(color[7:], 16) < 0x60 for color in tints)


@pytest.mark.parametrize("kind", ["plan", "linear plan", "form"])
def test_paths_stand_on_a_map(kind: str) -> None:
    value = MADE[kind]()
    paths = value.live_terms if kind == "form" else value.paths
    assert value._repr_html_().count("<ellipse") == len(paths) > 0


@pytest.mark.parametrize("kind, marks", [("emission", "<circle"), ("verification", "<circle"), ("network", "<rect")])
def test_what_is_measured_is_drawn(kind: str, marks: str) -> None:
    html = MADE[kind]()._repr_html_()
    assert marks in html[html.index("<svg") :]


def test_a_report_draws_what_its_verdict_compares() -> None:
    class Cubes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.pow(3).sin()

    report = compile_report(Cubes(), [torch.randn(4, 3)], sections=["graphs", "partition"])
    html = report._repr_html_()
    assert {"graphs", "breaks", "saved for backward", "min-cut"} <= set(re.findall(r">([^<]+)</text>", html))


def test_of_many_paths_the_first_are_drawn() -> None:
    many = make_linear_plan("+".join(["1x0e"] * 7), "+".join(["1x0e"] * 7))
    assert many._repr_html_().count("<ellipse") == 40
    assert "the first 40 of 49 paths" in many._repr_html_()
    assert "<svg" not in make_linear_plan("1x0e", "1x1o")._repr_html_()


def test_tables_have_bars_in_proportion() -> None:
    html = Tags(html_table([("name", "n"), ("a", 1), ("b", 4)], left=(0,), bars={"n": [1.0, 4.0]}))
    bars = [style.split("#4a7dbd55 ")[1].split("%")[0] for style in html.styles if "gradient" in style]
    assert bars == ["25", "100"]
    assert Tags(html_table([("n",), (0,), (float("nan"),)], bars={"n": [0.0, float("nan")]})).styles


def test_what_is_shown_is_text_and_not_html() -> None:
    table = html_table([("<b>",), ("a & b",)])
    assert "&lt;b&gt;" in table
    assert "a &amp; b" in table


def test_pictures_need_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpgen.tools.inspection.costs.pictures.new_figure", None)
    found = tpgen.explain(PLAN, rows=10, strategy="einsum", ceilings=Ceilings(1e10, 1e11))
    html = found._repr_html_()
    assert html.count("<circle") == len(found.paths) + 1, "each path, and what is predicted of all"
    assert "10 GB/s</text>" in html
    assert "<img" not in html


def test_a_polynomial_has_its_roofline() -> None:
    found = tpgen.explain(PROBLEM.plan, rows=10, channels=2, strategy="einsum", ceilings=Ceilings(1e10, 1e11))
    assert isinstance(found, Shown)
    assert found._repr_html_().count('class="predicted"') == 1


def test_a_value_within_itself_is_short() -> None:
    printer = Printer()
    printer.pretty(PLAN, cycle=True)
    assert printer.said == "Plan(...)"
