"""Presets have e3nn's instructions, outputs and weights."""

from __future__ import annotations

from typing import Any

import pytest
from e3nn import o3

from tpgen.base.errors import PlanError
from tpgen.planner.plan import Plan
from tpgen.planner.presets import PRESETS, channelwise, elementwise, full, fully_connected, tensor_square
from tpgen.planner.problems import PROBLEMS, SUITES, find_problem

IN1, IN2 = "3x0e + 2x1o + 1x2e + 2x1e", "2x1o + 1x0e + 2x2o"


def assert_same_product(plan: Plan, theirs: o3.TensorProduct) -> None:
    """Same irreps, instructions, weights and coefficients as a product of e3nn."""
    assert (plan.irreps_in1, plan.irreps_in2) == (theirs.irreps_in1, theirs.irreps_in2)
    assert plan.irreps_out == theirs.irreps_out
    assert plan.weight_numel == theirs.weight_numel
    assert [tuple(i[:5]) + (i.path_shape,) for i in plan.instructions] == [
        tuple(i[:5]) + (tuple(i.path_shape),) for i in theirs.instructions
    ]
    coefficients = {path.index: path.coefficient for path in plan.paths}
    for index, coefficient in coefficients.items():
        assert coefficient == pytest.approx(theirs.instructions[index].path_weight, rel=1e-15, abs=0.0)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"irrep_normalization": "norm", "path_normalization": "path"},
    {"irrep_normalization": "none", "path_normalization": "none"},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("out", ["2x0e + 3x1o + 1x2o", "4x0o + 1x1o + 2x1e + 2x3o + 1x0o", "5x9e", ""])
def test_fully_connected(out: str, options: dict) -> None:
    theirs = o3.FullyConnectedTensorProduct(IN1, IN2, out, compile_left_right=False, **options)
    assert_same_product(fully_connected(IN1, IN2, out, **options), theirs)


@pytest.mark.parametrize("options", [{}, {"irrep_normalization": "norm"}])
@pytest.mark.parametrize("filter_ir_out", [None, ["0e", "1o"], [o3.Irrep("2e")], []])
def test_full(filter_ir_out: list | None, options: dict) -> None:
    for in1, in2 in ((IN1, IN2), ("2x1o", "3x0e"), ("1o + 1o + 2x1o", "0e"), ("", "1o")):
        theirs = o3.FullTensorProduct(in1, in2, filter_ir_out, compile_left_right=False, **options)
        assert_same_product(full(in1, in2, filter_ir_out, **options), theirs)


@pytest.mark.parametrize("options", [{}, {"irrep_normalization": "norm"}])
@pytest.mark.parametrize("filter_ir_out", [None, ["0e", "1o"], [o3.Irrep("2e")]])
def test_elementwise(filter_ir_out: list | None, options: dict) -> None:
    pairs = (("5x1o + 5x1e", "10x1e"), ("3x0e + 2x1o + 4x2e", "4x1o + 1x0e + 4x1o"), ("2x1o", "1o + 0e"))
    for in1, in2 in pairs:
        theirs = o3.ElementwiseTensorProduct(in1, in2, filter_ir_out, compile_left_right=False, **options)
        assert_same_product(elementwise(in1, in2, filter_ir_out, **options), theirs)


@pytest.mark.parametrize("normalization", ["component", "norm", "none"])
@pytest.mark.parametrize(
    "arguments",
    [
        (IN1,),
        ("1o",),
        ("4x0e + 1x1o + 2x2e", None, ["0e", "2e", "1o"]),
        (IN1, "3x0e + 2x1o + 1x2e + 4x0e"),
        ("1x0e + 5x1o", "2x2e + 1x1e"),
        (IN1, ""),
    ],
)
def test_tensor_square(arguments: tuple, normalization: str) -> None:
    theirs = o3.TensorSquare(*arguments, irrep_normalization=normalization, compile_left_right=False)
    assert_same_product(tensor_square(*arguments, irrep_normalization=normalization), theirs)


def test_channelwise_is_the_product_of_mace() -> None:
    """Instructions built by hand as MACE does: every allowed path, outputs sorted, instructions in output order."""
    in1, in2 = o3.Irreps("4x0e + 4x1o"), o3.Irreps("0e + 1o + 2e")
    plan = channelwise(in1, in2, "4x0e + 4x1o + 4x2e")
    assert str(plan.irreps_out) == "4x0e+4x0e+4x1o+4x1o+4x1o+4x2e+4x2e"
    assert [i[:3] for i in plan.instructions] == [
        (0, 0, 0),
        (1, 1, 1),
        (0, 1, 2),
        (1, 0, 3),
        (1, 2, 4),
        (0, 2, 5),
        (1, 1, 6),
    ]
    assert all(i[3:6] == ("uvu", True, 1.0) for i in plan.instructions)
    assert not plan.shared_weights
    assert channelwise(in1, in2, "0e", shared_weights=True).shared_weights


def test_channelwise_outputs_are_sorted_with_a_multiplicity_of_their_own() -> None:
    plan = channelwise("3x1o + 2x0e", "1x1o + 2x0e", "1x1o + 9x0e")
    assert plan.irreps_out == plan.irreps_out.sort().irreps
    assert [plan.irreps_out[i.i_out].mul == plan.irreps_in1[i.i_in1].mul for i in plan.instructions] == [True] * 4
    assert [i.i_out for i in plan.instructions] == sorted(i.i_out for i in plan.instructions)


def test_presets_by_name() -> None:
    assert list(PRESETS) == ["fully_connected", "channelwise", "elementwise", "full", "tensor_square"]


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: elementwise("3x1o", "2x1o"), "pairs the irreps one by one.* 3x1o has 3, 2x1o has 2"),
        (lambda: full("1o", "1o", ["7"]), "filter_ir_out must hold irreps like '0e' or '1o', got"),
        (lambda: full("1o", "1o", 3), "filter_ir_out must hold irreps like '0e' or '1o', got"),
        (lambda: elementwise("1o", "1o", ["1x0e"]), "filter_ir_out must hold irreps"),
        (lambda: tensor_square("1o", "0e", ["0e"]), "give either irreps_out or filter_ir_out"),
        (lambda: tensor_square("1o", irrep_normalization="all"), "unknown irrep_normalization 'all'; known"),
        (lambda: fully_connected("1a", "1o", "0e"), "irreps_in1: cannot read irreps '1a'"),
        (lambda: channelwise("1o", "1o", "x"), "irreps_filter: cannot read irreps 'x'"),
        (lambda: tensor_square("?"), r"irreps_in: cannot read irreps '\?'"),
        (
            lambda: find_problem("mace-huge"),
            r"unknown problem 'mace-huge': did you mean 'mace-large'\? Known problems: article, mace-medium",
        ),
    ],
)
def test_errors(make, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        make()


# name: paths, weights, (in1, in2, out) dimensions, (non-zero, dense) coupling entries where they are known
FACTS = {
    "article": (11, 103, (22, 22, 22), None),
    "mace-medium": (8, 1024, (512, 16, 3328), (58, 248)),
    "mace-large": (17, 2176, (1152, 16, 9088), (215, 1077)),
    "nequip-lips": (30, 960, (576, 9, 3264), (274, 1230)),
    "nequip-aspirin": (10, 640, (512, 4, 1408), (32, 110)),
    "nequip-toluene": (30, 1920, (1152, 9, 6528), (274, 1230)),
    "diffdock-l1": (10, 6928, (156, 4, 156), (32, 110)),
    "self-connection": (3, None, (576, 4, 576), None),
    "e3nn-bench": (24, 12288, (128, 128, 128), (359, 1938)),
    "tetris-1": (24, 648, (16, 16, 368), (351, 1826)),
    "elementwise": (9, 0, (576, 576, 2240), None),
    "roofline-333": (1, 128, (128 * 7, 7, 128 * 7), None),
}


@pytest.mark.parametrize("name", FACTS)
def test_named_problems_are_the_published_ones(name: str) -> None:
    paths, weights, dims, coupling = FACTS[name]
    plan = find_problem(name).plan
    assert len(plan.paths) == paths
    assert weights is None or plan.weight_numel == weights
    assert (plan.irreps_in1.dim, plan.irreps_in2.dim, plan.irreps_out.dim) == dims
    if coupling:
        assert (sum(p.nonzeros for p in plan.paths), sum(p.dense for p in plan.paths)) == coupling


def test_every_problem_plans_and_has_a_suite() -> None:
    assert set(FACTS) <= set(PROBLEMS)
    for name, problem in PROBLEMS.items():
        assert problem.name == name
        assert problem.plan.paths
        assert problem.suite in SUITES
