"""What the report of a converted network says."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from e3nn import o3
from torch import nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.conversion.networks import GRAPHS, VECTORS, Mixed, Scaled, mixed_inputs
from tpgen.networks.conversion.adapters import ADAPTERS
from tpgen.networks.conversion.convert import conversion_report, convert
from tpgen.networks.conversion.report import Conversion
from tpgen.networks.conversion.swap import ClassSwap


def test_hooks_that_do_not_run_are_named() -> None:
    product = convert(o3.FullTensorProduct("2x1o", "1o"), **GRAPHS)
    product._compiled_main_left_right = nn.Identity()  # what e3nn 0.4 holds there takes no hooks
    product._compiled_main_left_right.register_forward_hook(lambda *_: None)
    (row,) = conversion_report(product).replaced
    assert row.now.endswith("; hooks on _compiled_main_left_right do not run: hook the module itself")


def test_the_report_says_all_of_it() -> None:
    reports = []
    convert(Mixed(), prove=mixed_inputs(), measure=mixed_inputs(), report=reports.append, **GRAPHS)
    (report,) = reports
    text = str(report)
    assert text.startswith("Mixed: 5 modules compute with tpgen, 0 stay as they are")
    for part in (
        "connected = again",
        "e3nn.TensorSquare",
        "tpgen grouped: asked for",
        "are equal",
        "call and gradients",
    ):
        assert part in text
    read = json.loads(report.to_json())
    assert [r["paths"] for r in read["replaced"]][1] == ["connected", "again"]
    assert {t["task"] for t in read["times"]["tasks"]} == {"call", "call and gradients"}


def test_the_report_of_a_stock_network_says_what_can_be_converted() -> None:
    report = conversion_report(nn.ModuleList([o3.FullTensorProduct("2x1o", "1o"), Scaled(*VECTORS)]))
    assert str(report).startswith(
        "ModuleList: 0 modules compute with tpgen, 1 can be converted, 1 stays as it is\n\n"
        "module  is                      can compute with\n0       e3nn.FullTensorProduct  tpgen "
    )
    assert [r.paths for r in report.possible] == [("0",)]


class Own(nn.Module):
    """A module of a project that an adapter knows."""


def test_rows_stand_in_the_order_of_the_network_whoever_found_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def adapter(network: nn.Module, options: dict[str, Any]) -> Iterator[ClassSwap]:
        for module in reversed(list(network.modules())):
            if isinstance(module, Own):
                yield ClassSwap(module, type("Other", (Own,), {}), "something else")

    monkeypatch.setitem(ADAPTERS, "tests", adapter)
    network = nn.Sequential(Own(), o3.FullTensorProduct("2x1o", "1o"), Own())
    reports = []
    possible = conversion_report(network).possible
    convert(network, report=reports.append, **GRAPHS)
    for rows in (possible, reports[0].replaced, conversion_report(network).replaced):
        assert [row.paths for row in rows] == [("0",), ("1",), ("2",)]


def test_modules_that_are_tpgens_already_are_counted() -> None:
    network = nn.Sequential(o3.Linear("2x0e", "2x0e"), tpgen.Linear("2x0e", "2x0e"), nn.Linear(2, 2))
    reports: list[Conversion] = []
    convert(network, report=reports.append, **GRAPHS)
    for found in (reports[0], conversion_report(network)):
        assert found.own == (("1",),)
        assert str(found).startswith("Sequential: 1 module computes with tpgen, 1 is tpgen's own, 0 stay")
    assert "tpgen's own" not in str(conversion_report(nn.Sequential(o3.Linear("2x0e", "2x0e"))))


@needs_compiler
def test_nothing_is_said_where_all_is_converted() -> None:
    network = Mixed()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(network)


def test_a_remark_of_many_rows_is_said_once() -> None:
    squares = nn.Sequential(*(o3.TensorSquare("2x1o", "0e") for _ in range(3)))
    for text in (str(conversion_report(squares)), str(conversion_report(convert(squares, **GRAPHS)))):
        (remark,) = [line for line in text.splitlines() if line.startswith("tpgen ")]
        name, _, said = remark.partition(": ")
        assert text.count(said) == 1
        assert text.count(f"e3nn.TensorSquare  {name}\n") == 3
    assert "tpgen grouped (asked for)" in str(conversion_report(squares[0]))
