"""Networks that `torch.package` loads: their classes are known by their code, and they convert as any other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

import e3nn
import pytest
import torch
from e3nn import o3
from e3nn.o3 import _wigner
from torch import nn, package

from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.packages import find_installed_class, have_same_code, is_packaged

PROJECT = "tpgen_packaged_project"
LAYERS = """
from e3nn import o3
from torch import nn

SCALE = 2.0

def scaled(x, by=1.0):
    return SCALE * by * x

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("4x0e+4x1o", "0e+1o", "4x0e+4x1o")
        self.linear = o3.Linear("4x0e+4x1o", "4x0e")

    def forward(self, x, y):
        return scaled(self.linear(self.product(x, y)))
"""
pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
    pytest.mark.skipif(
        "constants.pt" in Path(_wigner.__file__).read_text(encoding="utf-8"),
        reason="an e3nn that reads its constants from a file beside it is in no package",
    ),
]
Written = Callable[[str], Any]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Install a project with this code, in the place of what was there."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code: str) -> Any:
        (tmp_path / f"{PROJECT}.py").write_text(code)
        monkeypatch.delitem(sys.modules, PROJECT, raising=False)
        invalidate_caches()
        return import_module(PROJECT)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return write


@pytest.fixture
def loaded(written: Written, tmp_path: Path) -> Callable[[], nn.Module]:
    """Package a network of the project; what loads it, each time from a package of its own."""
    torch.manual_seed(0)
    network = written(LAYERS).Layer().double()
    file = str(tmp_path / "network.pt")
    with package.PackageExporter(file) as out:
        out.intern([f"{PROJECT}.**", "e3nn.**"])
        out.mock("matplotlib.**")
        out.extern("**")
        out.save_pickle("model", "network.pkl", network)
    return lambda: package.PackageImporter(file).load_pickle("model", "network.pkl")


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(5, n, generator=generator, dtype=torch.float64) for n in (16, 4))  # type: ignore[return-value]


def test_a_network_from_a_package_is_converted_and_restored(loaded: Callable[[], nn.Module]) -> None:
    stock, network = loaded(), loaded()
    classes = {name: type(module) for name, module in network.named_modules()}
    assert all(map(is_packaged, (classes[""], classes["product"], classes["linear"])))
    possible = conversion_report(network).possible
    assert {row.was for row in possible} == {"e3nn.FullyConnectedTensorProduct", "e3nn.Linear"}
    assert {name: type(module) for name, module in network.named_modules()} == classes, "a report changes nothing"
    report = conversion_report(convert(network, prove=arguments()), prove=arguments())
    assert [row.paths for row in report.replaced] == [("product",), ("linear",)]
    assert report.proof is not None
    assert report.proof.holds
    torch.testing.assert_close(network(*arguments()), stock(*arguments()), rtol=1e-12, atol=1e-12)
    stock.load_state_dict(network.state_dict(), strict=True)
    restore(network)
    assert {name: type(module) for name, module in network.named_modules()} == classes
    assert not [name for module in network.modules() for name in vars(module) if "tpgen" in name]


def test_an_error_leaves_a_network_from_a_package_as_it_was(loaded: Callable[[], nn.Module]) -> None:
    network = loaded()
    classes = [type(module) for module in network.modules()]
    with pytest.raises(ZeroDivisionError):
        convert(network, report=lambda _: 1 / 0)
    assert [type(module) for module in network.modules()] == classes
    assert not [name for module in network.modules() for name in vars(module) if "tpgen" in name]


def test_what_another_class_was_given_to_since_is_not_restored(loaded: Callable[[], nn.Module]) -> None:
    network = convert(loaded())
    network.__class__ = type("Wrapped", (type(network),), {})
    with pytest.raises(TpgenError, match="which came from a package"):
        restore(network)
    assert conversion_report(network).replaced, "nothing is undone"


def test_a_class_of_other_code_stays_and_what_it_holds_is_converted(
    loaded: Callable[[], nn.Module], written: Written
) -> None:
    network = loaded()
    written(LAYERS.replace("SCALE = 2.0", "SCALE = 3.0"))
    assert find_installed_class(type(network)) is None
    stock = loaded()
    assert len(conversion_report(convert(network)).replaced) == 2
    torch.testing.assert_close(network(*arguments()), stock(*arguments()), rtol=1e-12, atol=1e-12)


def test_another_e3nn_in_a_package_is_named(loaded: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(o3.Linear, "forward", lambda self, x: x)
    with pytest.warns(UserWarning, match=r"another e3nn than is installed here \(modules that differ: 1\)"):
        found = conversion_report(convert(loaded()))
    assert [row.paths for row in found.replaced] == [("product",)]
    assert [row.paths for row in found.kept] == [("linear",)]


def test_settings_of_e3nn_are_no_code(loaded: Callable[[], nn.Module]) -> None:
    """NequIP changes them where it loads a checkpoint, and leaves them changed."""
    before = e3nn.get_optimization_defaults()
    network = loaded()
    e3nn.set_optimization_defaults(optimize_einsums=not before["optimize_einsums"])
    try:
        assert len(conversion_report(convert(network)).replaced) == 2
    finally:
        e3nn.set_optimization_defaults(optimize_einsums=before["optimize_einsums"])


CLASS = """
import functools

LIMIT = {"a": [1, 2]}

@functools.lru_cache
def wrapped(x):
    return x + LIMIT["a"][0]

class Base:
    def base(self):
        return 1

class Given(Base):
    at = 2.0

    def __init__(self, x=3):
        self.x = wrapped(x)

    @property
    def twice(self):
        def inner():
            return 2 * self.x
        return inner()

    @classmethod
    def made(cls):
        return cls(4)
"""


def defined(code: str, name: str) -> Any:
    space: dict[str, Any] = {"__name__": name}
    exec(code, space)
    return space["Given"]


def test_the_same_code_under_another_name_is_known() -> None:
    assert have_same_code(defined(CLASS, "<torch_package_7>.project"), defined(CLASS, "project"))


@pytest.mark.parametrize(
    "part, other",
    [
        ("[1, 2]", "[1, 3]"),
        ("return x + LIMIT", "return x - LIMIT"),
        ("return 1\n", "return 0\n"),
        ("at = 2.0", "at = 2.5"),
        ("at = 2.0", "at = 2.0; more = 1"),
        ("x=3", "x=5"),
        ("2 * self.x", "3 * self.x"),
        ("cls(4)", "cls(5)"),
        ("class Given(Base)", "class Given"),
        ("@functools.lru_cache\n", ""),
    ],
)
def test_a_difference_anywhere_is_seen(part: str, other: str) -> None:
    assert part in CLASS
    changed = CLASS.replace(part, other)
    assert not have_same_code(defined(CLASS, "<torch_package_7>.project"), defined(changed, "project"))


def test_a_class_of_another_name_is_another() -> None:
    assert not have_same_code(defined(CLASS, "<torch_package_7>.project"), defined(CLASS, "elsewhere"))
