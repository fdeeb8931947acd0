"""Spherical harmonics as polynomials, against e3nn's in float64."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3

from tpgen.base.errors import PlanError
from tpgen.form.polynomial import make_scalar_form
from tpgen.planner.harmonics import NORMALIZATIONS, make_harmonics_plan

DEGREES = [[0, 1, 2, 3, 4], [1], [2, 2, 0, 1], [4, 3]]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("degrees", DEGREES)
def test_components_signs_and_sizes_are_e3nns(degrees: list[int], normalization: str) -> None:
    plan = make_harmonics_plan("1o", degrees, normalization)
    x = torch.randn(20, 3, dtype=torch.float64)
    wanted = o3.spherical_harmonics(degrees, x, False, normalization)
    components = {"x": x.unbind(-1), "one": [torch.ones(20, dtype=torch.float64)]}
    gradient = make_scalar_form(plan).gradient("out")
    found = torch.stack([gradient[k].at(components) for k in range(plan.out.dim)], -1)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12 * float(wanted.abs().max()))


def test_parities_are_those_of_the_vector() -> None:
    assert str(make_harmonics_plan("1e", [0, 1, 2], "norm").out.irreps) == "1x0e+1x1e+1x2e"
    assert str(make_harmonics_plan("1o", [3, 0], "norm").out.irreps) == "1x3o+1x0e"


@pytest.mark.parametrize(
    "degrees, normalization, why",
    [
        ([0, 5], "norm", r"harmonics: the highest degree must be 1 to 4, got 5"),
        ([0], "norm", r"harmonics: the highest degree must be 1 to 4, got 0"),
        ([0, 1], "nrom", r"harmonics: .*'nrom'.*norm"),
    ],
)
def test_what_has_no_plan_is_an_error(degrees: list[int], normalization: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        make_harmonics_plan("1o", degrees, normalization)
