"""Planning: coefficients, weight slices, spellings of an instruction, and every error."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from e3nn import o3

from tests.cases import MIXED, random_arguments
from tpgen.base.errors import PlanError, TpgenError
from tpgen.nn.from_e3nn import from_e3nn
from tpgen.planner.instruction import Instruction
from tpgen.planner.normalization import IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS
from tpgen.planner.plan import Plan
from tpgen.planner.product import make_plan

VARIANCES = {
    "in1_var": [0.3, 1.0, 2.5],
    "in2_var": [1.5, 0.25, 4.0],
    "out_var": [1.0, 2.0, 3.0, 0.5, 0.1, 7.0, 1.0],
}


def assert_e3nn_coefficients(arguments: tuple, keywords: dict) -> None:
    plan = make_plan(*arguments, **keywords)
    theirs = o3.TensorProduct(*arguments, **keywords, compile_left_right=False)
    assert plan.weight_numel == theirs.weight_numel
    assert [i.path_shape for i in plan.instructions] == [tuple(i.path_shape) for i in theirs.instructions]
    by_index = {path.index: path.coefficient for path in plan.paths}
    for index, instruction in enumerate(theirs.instructions):
        if 0 not in instruction.path_shape:
            assert math.isclose(by_index[index], instruction.path_weight, rel_tol=1e-15, abs_tol=0.0), index


@pytest.mark.parametrize("path_normalization", PATH_NORMALIZATIONS)
@pytest.mark.parametrize("irrep_normalization", IRREP_NORMALIZATIONS)
@pytest.mark.parametrize("variances", [{}, VARIANCES], ids=["unit", "variances"])
def test_coefficients_are_e3nns(irrep_normalization: str, path_normalization: str, variances: dict) -> None:
    keywords = {"irrep_normalization": irrep_normalization, "path_normalization": path_normalization, **variances}
    assert_e3nn_coefficients(MIXED, keywords)


def test_coefficients_of_random_products_are_e3nns() -> None:
    for seed in range(150):
        assert_e3nn_coefficients(*random_arguments(seed))


def test_variance_zero_leaves_the_coefficient_unscaled_as_e3nn_does() -> None:
    assert_e3nn_coefficients(("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)]), {"in1_var": [0.0]})


def test_all_normalisations_are_tested() -> None:
    assert list(product(IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS)) == [
        (irrep, path) for irrep in ("component", "norm", "none") for path in ("element", "path", "none")
    ]


def test_weight_slices_tile_the_weights_and_skip_unweighted_paths() -> None:
    plan = make_plan(*MIXED)
    slices = [s for s in plan.weight_slices if s is not None]
    assert [s is not None for s in plan.weight_slices] == [i.has_weight for i in plan.instructions]
    assert slices[0].start == 0
    assert all(a.stop == b.start for a, b in pairwise(slices))
    assert slices[-1].stop == plan.weight_numel
    assert [path.weight for path in plan.paths] == [plan.weight_slices[path.index] for path in plan.paths]


def test_every_spelling_of_an_instruction_is_the_same_plan() -> None:
    irreps = ("2x1o", "1o", "2x0e")
    spelled = [
        (0, 0, 0, "uvu", True),
        [0, 0, 0, "uvu", True],
        (0, 0, 0, "uvu", True, 1.0),
        (np.int64(0), torch.tensor(0), 0, "uvu", 1, np.float32(1.0)),
        Instruction(0, 0, 0, "uvu", True),
    ]
    plans = [make_plan(*irreps, [instruction]) for instruction in spelled]
    assert len({plan.digest for plan in plans}) == 1
    assert all(plan == plans[0] for plan in plans)


def test_instructions_of_a_built_e3nn_product_are_refused() -> None:
    built = o3.FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "1o")
    with pytest.raises(PlanError, match=r"instruction 0 is of a built e3nn product.*tpgen.from_e3nn\(product\)"):
        make_plan(built.irreps_in1, built.irreps_in2, built.irreps_out, built.instructions)
    with pytest.raises(PlanError, match=r"instruction 0 is of a built e3nn product.*tpgen.from_e3nn\(product\)"):
        make_plan(built.irreps_in1, built.irreps_in2, built.irreps_out, [tuple(i) for i in built.instructions])
    again = make_plan("1o", "1o", "0e", make_plan("1o", "1o", "0e", [(0, 0, 0, "uvw", True, 4.0)]).instructions)
    assert again.instructions[0].path_weight == 4.0  # our records hold what was given


def test_final_coefficients_are_normalised_once() -> None:
    built = o3.FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "1o")
    ours = from_e3nn(built)
    irreps = ours.irreps_in1, ours.irreps_in2, ours.irreps_out
    with pytest.raises(PlanError, match=r"instruction 0 .* is of a plan without normalisation.*from_plan"):
        make_plan(*irreps, ours.instructions)
    with pytest.raises(PlanError, match=r"instruction 0 .* is of a plan without normalisation"):
        make_plan(*irreps, ours.instructions, irrep_normalization="none", path_normalization="path")
    again = make_plan(*irreps, ours.instructions, irrep_normalization="none", path_normalization="none")
    assert again == ours.plan
    assert pickle.loads(pickle.dumps(ours.plan)).instructions == ours.plan.instructions
    torch.jit.script(ours)


def test_a_plan_without_any_path_says_so() -> None:
    assert str(make_plan("1o", "1o", "3o", [])).endswith("no path: the output is zero")
    assert str(make_plan("0x1o", "1o", "0e", [(0, 0, 0, "uvw", True)])).endswith("zero (1 empty dropped)")


def test_every_spelling_of_irreps_is_the_same_plan() -> None:
    spelled = ["2x1o", o3.Irreps("2x1o"), [(2, "1o")], [(2, (1, -1))]]
    assert len({make_plan(irreps, "1o", "2x0e", [(0, 0, 0, "uvu", True)]) for irreps in spelled}) == 1


def test_the_path_weight_of_an_instruction_stays_the_users() -> None:
    plan = make_plan(*MIXED)
    assert [i.path_weight for i in plan.instructions[:4]] == [0.5, 2.0, 0.1, 1.0]


def test_paths_without_an_element_are_dropped_and_keep_their_place_in_the_weights() -> None:
    plan = make_plan(
        "0x0e + 2x0e + 1x1o",
        "1x0e + 1x1o",
        "2x0e + 0x1o + 0x1e",
        [
            (0, 0, 0, "uvw", True),
            (1, 0, 0, "uvu", True),
            (2, 0, 1, "uvw", True),
            (2, 1, 2, "uvu<v", True),
            (1, 0, 0, "uvw", True),
        ],
    )
    assert [path.index for path in plan.paths] == [1, 4]
    assert plan.weight_numel == 2 + 4
    assert plan.paths[1].weight is not None
    assert plan.paths[1].weight.start == 2
    assert "2 paths (3 empty dropped)" in str(plan)


def test_outputs_that_a_path_reaches() -> None:
    plan = make_plan("1o", "1o", "0e+1e+2e+1x0e", [(0, 0, 0, "uuu", False), (0, 0, 2, "uuu", False, 0.0)])
    assert plan.reached == (True, False, False, False)


def test_products_without_paths_or_irreps() -> None:
    assert make_plan("", "", "", []).weight_numel == 0
    assert make_plan("2x0e", "1o", "3x1o", []).paths == ()


def test_flops_and_bytes_of_one_path() -> None:
    plan = make_plan("4x1o", "1x1o", "4x1e", [(0, 0, 0, "uvu", True)], shared_weights=False)
    # 4 copies times 6 non-zeros, then 4 weights on 3 components, a multiply and an add each
    assert plan.flops == 2 * (4 * 6 + 4 * 3)
    assert plan.row_bytes() == 4 * (12 + 3 + 4 + 12)
    assert plan.row_bytes(8) == 2 * plan.row_bytes()


def test_prints_as_a_table() -> None:
    plan = make_plan("4x1o", "1x1o", "4x0e+4x1e", [(0, 0, 1, "uvu", True)])
    assert str(plan) == (
        f"plan {plan.digest}: 4x1o x 1x1o -> 4x0e+4x1e\n"
        "component/element normalisation, 4 weights shared\n"
        "\n"
        "path  in1   in2   out   mode  weights  coefficient  coupling  flops  bytes\n"
        "   0  4x1o  1x1o  4x1e  uvu       0:4      1.73205      6/27     72    108\n"
        "\n"
        "1 paths, coupling 6/27 non-zero, per row 72 flops, 124 bytes (each operand once)"
    )


def test_plans_are_frozen() -> None:
    plan = make_plan(*MIXED)
    with pytest.raises(AttributeError):
        plan.shared_weights = False  # type: ignore[misc]
    with pytest.raises(AttributeError):
        plan.paths[0].coefficient = 2.0  # type: ignore[misc]


# --- errors -----------------------------------------------------------------------------------------------------------


def one(in1: object, in2: object, out: object, instruction: object, **keywords) -> Plan:
    return make_plan(in1, in2, out, [instruction], **keywords)  # type: ignore[list-item]


# what differs from a product that fits: ends or fields of its instruction
WRONG: list[tuple[dict, str]] = [
    ({"fields": (0, 0, 0, "uwu", True)}, r"instruction 0 .*: unknown mode 'uwu'; known modes: uvw, uvu"),
    ({"out": "8x0o"}, r"product of the input parities, even.*irreps_out\[0\] = 8x0o"),
    ({"in2": "1e"}, r"product of the input parities, odd"),
    ({"out": "8x3e"}, r"triangle rule .* between 0 and 2, got 3"),
    ({"in1": "8x2e", "in2": "0e", "out": "8x1e"}, r"triangle rule .* between 2 and 2, got 1"),
    ({"in1": "8x0e + 8x1p"}, r"irreps_in1: cannot read .* \('8x1p' is none\); write"),
    ({"in1": None}, r"irreps_in1: cannot read irreps None .*write them like"),
    ({"in1": "8y1o"}, r"irreps_in1: cannot read irreps '8y1o' .*write them like"),
    ({"in2": 3}, r"irreps_in2: cannot read irreps 3"),
    ({"out": [(-1, "0e")]}, r"irreps_out: cannot read irreps"),
    ({"out": [("a", "0e")]}, r"irreps_out: cannot read irreps"),
    (
        {"out": "16x0e"},
        r"instruction 0 \(0, 0, 0, 'uvu', weighted\): mode 'uvu' keeps axis u of input 1, so the output multiplicity "
        r"must be 8, got 16 \(irreps_in1\[0\] = 8x1o, irreps_in2\[0\] = 1x1o, irreps_out\[0\] = 16x0e\)",
    ),
    ({"fields": (0, 0, 0, "uvw", False)}, r"instruction 0 \(.*, unweighted\): mode 'uvw' fills .*set has_weight"),
    ({"fields": (1, 0, 0, "uvu", True)}, r"i_in1 = 1 is out of range: irreps_in1 has 1 entries, counted from 0"),
    ({"fields": (0, 2, 0, "uvu", True)}, r"i_in2 = 2 is out of range: irreps_in2 has 1 entries, counted from 0"),
    ({"fields": (0, 0, -1, "uvu", True)}, r"i_out = -1 is out of range: irreps_out has 1 entries, counted from 0"),
    ({"fields": (0, 0, 0, "uvu", True, -1.0)}, r"instruction 0: path_weight must be .*not negative"),
    ({"fields": (0, 0, 0, "uvu", True, math.nan)}, r"path_weight must be finite .*got nan"),
    ({"fields": (0, 0, 0, "uvu", True, math.inf)}, r"path_weight must be finite .*got inf"),
    ({"fields": (0, 0, 0, "uvu", True, "1a")}, r"instruction 0: path_weight must be a number, got '1a'"),
    ({"fields": (0, 0, 0, "uvu", "no")}, r"instruction 0: has_weight must be True or False, got 'no'"),
    ({"fields": (0, 0, 0, "uvu")}, r"instruction 0: expected \(i_in1, i_in2, i_out, mode, has_weight"),
    ({"fields": (0, 0, 0, "uvu", True, 1.0, (), 1)}, r"instruction 0: expected"),
    ({"fields": "uvu"}, r"instruction 0: expected .* got 'uvu'"),
    ({"fields": None}, r"instruction 0: expected .* got None"),
    ({"fields": (0.0, 0, 0, "uvu", True)}, r"instruction 0: i_in1 must be an integer, got 0.0"),
    ({"fields": (0, True, 0, "uvu", True)}, r"instruction 0: i_in2 must be an integer, got True"),
    ({"fields": (0, 0, "0", "uvu", True)}, r"instruction 0: i_out must be an integer, got '0'"),
]


@pytest.mark.parametrize("change, match", WRONG)
def test_errors_name_the_instruction_and_the_rule(change: dict, match: str) -> None:
    arguments = {"in1": "8x1o", "in2": "1o", "out": "8x0e", "fields": (0, 0, 0, "uvu", True)} | change
    with pytest.raises(PlanError, match=match):
        one(*arguments.values())


def test_the_error_names_the_instruction_that_is_wrong() -> None:
    good = (0, 0, 0, "uvu", True)
    with pytest.raises(PlanError, match=r"instruction 2 \(0, 0, 0, 'uvv', weighted\)"):
        make_plan("8x1o", "1o", "8x0e", [good, good, (0, 0, 0, "uvv", True), good])


@pytest.mark.parametrize("instructions", [None, 3])
def test_instructions_that_are_no_list(instructions: object) -> None:
    with pytest.raises(PlanError, match="instructions must be a list of tuples"):
        make_plan("1o", "1o", "0e", instructions)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["in1_var", "in2_var", "out_var"])
@pytest.mark.parametrize(
    "values, match",
    [
        ([1.0, 1.0], "needs one variance for each of the 1 entries of .*, got 2"),
        ([], "needs one variance for each of the 1 entries of .*, got 0"),
        ([-1.0], r"\[0\] must be finite and not negative \(it is a variance\), got -1.0"),
        ([math.nan], r"\[0\] must be finite and not negative"),
        ([math.inf], r"\[0\] must be finite and not negative"),
        (["a"], "must be a list of numbers"),
        (1.0, "must be a list of numbers"),
    ],
)
def test_wrong_variances(name: str, values: object, match: str) -> None:
    with pytest.raises(PlanError, match=name + r"\s?" + match):
        one("8x1o", "1o", "8x0e", (0, 0, 0, "uvu", True), **{name: values})


@pytest.mark.parametrize("value", ["components", "", 1, ["norm"]])
def test_unknown_normalisation(value: object) -> None:
    with pytest.raises(
        PlanError, match=r"unknown irrep_normalization .* [Kk]nown irrep_normalizations: component, norm, none"
    ):
        one("1o", "1o", "0e", (0, 0, 0, "uvu", True), irrep_normalization=value)
    with pytest.raises(
        PlanError, match=r"unknown path_normalization .*; known path_normalizations: element, path, none"
    ):
        one("1o", "1o", "0e", (0, 0, 0, "uvu", True), path_normalization=value)


def test_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="triangle"):
        one("1o", "1o", "3e", (0, 0, 0, "uvu", True))
    assert issubclass(PlanError, TpgenError)
