"""What of a network `convert` is asked to leave, or to take alone; and what reports say of other dtypes and devices."""

from __future__ import annotations

import re

import pytest
import torch
from e3nn import o3
from torch import nn

from tests.machine import needs_compiler
from tests.networks.conversion.networks import Layer, Mixed, Scaled, mixed_inputs
from tpgen.base.errors import InputError, TpgenError
from tpgen.networks.conversion.adapters import ADAPTERS
from tpgen.networks.conversion.convert import Conversion, conversion_report, convert
from tpgen.networks.conversion.swap import ClassSwap, get_swap_mark

GRAPHS = {"strategy": "grouped"}


def layers() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"first": Layer(), "second": Layer()})


def done(network: nn.Module) -> list[str]:
    return [name for name, module in network.named_modules() if get_swap_mark(module)]


def news(recorded: pytest.WarningsRecorder) -> list[str]:
    """What `convert` warned of; old versions of e3nn warn of other things."""
    return [str(w.message) for w in recorded.list if "without tpgen" in str(w.message)]


@pytest.mark.parametrize(
    "asked, left",
    [
        ({"keep": "first"}, ["second.product", "second.linear"]),
        ({"keep": ["e3nn.Linear"]}, ["first.product", "second.product"]),
        ({"keep": ("*.product",)}, ["first.linear", "second.linear"]),
        ({"only": "first"}, ["first.product", "first.linear"]),
        ({"only": ["e3nn.Linear"]}, ["first.linear", "second.linear"]),
        ({"only": "first", "keep": "e3nn.Linear"}, ["first.product"]),
        ({"only": "tests.Layer", "keep": ["first"]}, ["second.product", "second.linear"]),
    ],
)
def test_modules_and_classes_are_left_out(asked: dict, left: list[str], recwarn: pytest.WarningsRecorder) -> None:
    reports: list[Conversion] = []
    network = convert(layers(), report=reports.append, **asked, **GRAPHS)
    assert done(network) == left
    assert len(reports[0].kept) == 4 - len(left)
    assert not news(recwarn), "what was asked for is none"


def test_the_report_says_who_asked() -> None:
    reports: list[Conversion] = []
    network = convert(layers(), keep="first.linear", only=["first", "se*"], report=reports.append, **GRAPHS)
    assert "first.linear  e3nn.Linear  among keep='first.linear'" in str(reports[0])
    assert [r.paths for r in conversion_report(network).possible] == [("first.linear",)]
    convert(layers(), only=["first"], report=reports.append, **GRAPHS)
    assert {k.why for k in reports[1].kept} == {"not among only='first'"}


def test_a_module_of_two_names_is_kept_by_either() -> None:
    network = convert(Mixed(), keep="again", **GRAPHS)
    assert get_swap_mark(network.connected) is None
    assert get_swap_mark(network.full) is not None


def test_what_cannot_be_converted_is_no_news_where_it_is_left_out(recwarn: pytest.WarningsRecorder) -> None:
    own = nn.ModuleDict({"own": Scaled("2x1o", "1o", "2x1e"), "product": o3.FullTensorProduct("2x1o", "1o")})
    convert(own, keep="own", **GRAPHS)
    assert not news(recwarn)


def test_what_is_left_out_is_exact_in_a_proof() -> None:
    """Modules built in float32 hold rounded couplings; a proof refines those of both networks, converted or not."""
    reports: list[Conversion] = []
    network = convert(Mixed(), keep="connected", prove=mixed_inputs(), report=reports.append, **GRAPHS)
    later = conversion_report(network, prove=mixed_inputs())
    for report in (*reports, later):
        assert report.proof is not None
        assert all(d.relative < 1e-13 for d in report.proof.differences), report.proof
    assert get_swap_mark(network.connected) is None


def test_a_pair_is_left_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubling(Layer):
        pass

    def adapter(network: nn.Module, options: dict) -> list[ClassSwap]:
        found = []
        for layer in network.values():  # type: ignore[operator]
            found += [ClassSwap(layer.linear, o3.Linear, "twice", paired=True), ClassSwap(layer, Doubling, "")]
        return found

    monkeypatch.setitem(ADAPTERS, "tests", adapter)
    network = convert(layers(), keep="first.linear", **GRAPHS)
    assert [type(layer) for layer in network.values()] == [Layer, Doubling]
    network = convert(layers(), only="first.linear", **GRAPHS)
    assert [type(layer) for layer in network.values()] == [Doubling, Layer]


class Whole(Layer):
    """A layer that calls neither of its parts any more."""


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are converted as a whole."""
    covers = ("product", "linear")
    monkeypatch.setitem(
        ADAPTERS, "tests", lambda network, _: [ClassSwap(m, Whole, "one", covers=covers) for m in network.values()]
    )


@pytest.mark.parametrize("part", ["first.product", "first.linear._compiled_main"])
def test_to_keep_a_part_is_to_keep_the_whole(part: str, whole: None) -> None:
    network, reports = layers(), []
    convert(network, keep=part, report=reports.append, **GRAPHS)
    assert [type(layer) for layer in network.values()] == [Layer, Whole]
    assert [k.why for k in reports[0].kept] == [f"among keep='{part}'"]


def test_a_class_of_parts_keeps_each_whole(whole: None) -> None:
    with pytest.raises(TpgenError, match=r"among keep='e3nn\.Linear'"):
        convert(layers(), keep="e3nn.Linear", **GRAPHS)


def test_a_part_alone_cannot_be_converted(whole: None) -> None:
    network = layers()
    with pytest.raises(InputError, match=r"only: '\*.linear' names a part of 'first', .* only='first'"):
        convert(network, only=["second", "*.linear"], **GRAPHS)
    assert not done(network)


@pytest.mark.parametrize("asked", [{"keep": "first"}, {"only": "first"}])
def test_an_adapter_that_cannot_be_loaded_is_news_whatever_is_chosen(
    asked: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", "tests.nowhere:swaps")
    with pytest.warns(UserWarning, match=r"'first': of tests, whose adapter cannot be loaded"):
        convert(layers(), **asked, **GRAPHS)


@pytest.mark.parametrize(
    "asked, error, why",
    [
        (
            {"keep": "frist"},
            InputError,
            r"keep: ModuleDict has no module 'frist' .*'first'.*give names .*'e3nn.Linear'",
        ),
        ({"only": ["first", "torch.Conv2d"]}, InputError, r"only: ModuleDict has no module 'torch.Conv2d'"),
        ({"only": [o3.Linear]}, InputError, r"only: give the name of a module or of a class, or a list of them, got"),
        ({"keep": 3}, InputError, r"keep: give the name of a module or of a class, or a list of them, got 3"),
        ({"keep": "*"}, TpgenError, r"holds nothing that can be converted: among keep='\*'"),
        ({"only": ()}, TpgenError, r"holds nothing that can be converted: not among only=\(\)"),
    ],
)
def test_wrong_names_are_errors(asked: dict, error: type[Exception], why: str) -> None:
    network = layers()
    with pytest.raises(error, match=why):
        convert(network, **asked, **GRAPHS)
    assert not done(network)


# --- other dtypes and devices ---------------------------------------------------------------------------------------


class Kinds(nn.Module):
    """A product, one with scalars, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("2x0e+2x1o", "0e+1o", "2x1o")
        self.elements = o3.FullyConnectedTensorProduct("2x0e+2x1o", "5x0e", "2x1o")
        self.linear = o3.Linear("2x0e+2x1o", "2x1o")


@needs_compiler
@pytest.mark.parametrize(
    "to, why",
    [
        (torch.float16, "no kernel: kernels compute in float32, float64 or bfloat16, not in float16"),
        ("meta", "no kernel: kernels run on .*not on meta"),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_reports_name_what_runs_without_kernels(to: torch.dtype | str, why: str, when: str) -> None:
    network = Kinds()
    if when == "before":
        report = conversion_report(convert(network.to(to)))
    else:
        report = conversion_report(convert(network).to(to))
    for row in report.replaced:
        assert row.now.startswith("tpgen grouped"), row
        assert re.search(why, row.now), row
        assert row.now.endswith(")"), "no word of elements, for which no kernel runs either"


@needs_compiler
@pytest.mark.parametrize("to", [torch.float16, "meta"])
def test_reports_say_where_a_kernel_that_was_asked_for_does_not_run(to: torch.dtype | str) -> None:
    rows = {row.paths[0]: row.now for row in conversion_report(convert(Kinds().to(to), strategy="kernel")).replaced}
    assert {now.partition(": none runs as it is, kernels")[0] for now in rows.values()} == {"tpgen kernel (asked for)"}
    assert all(now.endswith(str(to).removeprefix("torch.")) for now in rows.values()), rows


@needs_compiler
def test_reports_name_kernels_where_they_run() -> None:
    rows = {row.paths[0]: row.now for row in conversion_report(convert(Kinds())).replaced}
    assert {now.partition("(")[0] for now in rows.values()} == {"tpgen kernel "}
    assert rows["elements"].endswith("; by element where rows are one-hot")
