"""Functions of e3nn that a network calls are told by its report."""

from __future__ import annotations

import e3nn.o3
import pytest
import torch
from e3nn import o3
from e3nn.o3 import spherical_harmonics
from torch import Tensor, nn

import tpgen
from tpgen.base.errors import InputError
from tpgen.networks.conversion.functions_called import describe_e3nn_functions_called


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.irreps = o3.Irreps.spherical_harmonics(1)  # another function of this name
        self.linear = o3.Linear(self.irreps, "0e")


class ByModule(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(o3.spherical_harmonics(self.irreps, x, True))


class ByName(Base):
    def helper(self, x: Tensor) -> Tensor:
        return spherical_harmonics(self.irreps, x, True)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.helper(x))


class ByPackage(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(e3nn.o3.spherical_harmonics(self.irreps, x, True))


class Own(Base):
    def spherical_harmonics(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], x], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.spherical_harmonics(x))


@pytest.mark.parametrize(
    ("network", "method"), [(ByModule, "ByModule.forward"), (ByName, "ByName.helper"), (ByPackage, "ByPackage.forward")]
)
def test_a_function_is_told_once(network: type[Base], method: str) -> None:
    reports: list[tpgen.Conversion] = []
    made = tpgen.convert(nn.Sequential(network(), network()), report=reports.append, program=False)
    wanted = f"{method} calls o3.spherical_harmonics, which e3nn computes: hold an o3.SphericalHarmonics"
    assert reports[0].functions == tpgen.conversion_report(made).functions == (wanted,)
    assert wanted in str(reports[0])


def test_other_functions_are_not() -> None:
    assert describe_e3nn_functions_called(Own()) == ()


@pytest.mark.parametrize(("name", "nearest"), [("Own", "tests.Own"), ("linaer", "linear")])
def test_a_wrong_name_tells_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"the nearest is '{nearest}'"):
        tpgen.convert(Own(), keep=name)
