"""Generalised couplings: equivariant, complete, symmetrised; polynomials planned from them, and what cannot be."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from e3nn.o3 import Irreps

from tests.polynomials import PLANS, X
from tpgen.base.errors import PlanError
from tpgen.planner.coupling import wigner_3j
from tpgen.planner.equivariance import check_equivariant, equivariance_violation
from tpgen.planner.generalized import drop_dependent_paths, generalized_couplings, symmetrized_couplings
from tpgen.planner.plan import Operand
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
from tpgen.planner.read import read_plan

OUT = Operand("out", Irreps("0e + 1o"))


@pytest.mark.parametrize("degree", [1, 2, 3])
@pytest.mark.parametrize("output", ["0e", "1o", "1e", "2e"])
def test_every_path_is_equivariant(output: str, degree: int) -> None:
    for natural in (False, True):
        whole = generalized_couplings(["0e + 1o + 2e"] * degree, output, natural)
        for p in range(whole.shape[-1]):
            path = {tuple(map(int, at)): float(whole[tuple(at)][p]) for at in np.argwhere(whole[..., p])}
            assert equivariance_violation([Irreps("0e + 1o + 2e")] * degree, Irreps(output), path) < 1e-10


def test_a_first_call_under_vmap_may_plan() -> None:
    """A plan is read, and asked whether it is equivariant, where it is first called."""

    def planned(x: torch.Tensor) -> torch.Tensor:
        assert equivariance_violation([Irreps("1o")] * 2, Irreps("0e"), {(0, i, i): 1.0 for i in range(3)}) < 1e-12
        return x

    torch.func.vmap(planned)(torch.zeros(2))


def test_degree_two_is_the_wigner_3j() -> None:
    whole = generalized_couplings(["1o", "2e"], "3o")
    np.testing.assert_allclose(whole[..., 0], np.moveaxis(wigner_3j(3, 1, 2), 0, 0) * 7**0.5)


def test_degree_three_contracts_two_of_them() -> None:
    whole = generalized_couplings(["1o"] * 3, "1o")
    middle = [wigner_3j(1, j, 1) * 3**0.5 for j in range(3)]
    first = [wigner_3j(j, 1, 1) * (2 * j + 1) ** 0.5 for j in range(3)]
    paths = [np.einsum("kjc,jab->kabc", m, f) for m, f in zip(middle, first, strict=True)]
    found = [whole[..., p] for p in range(3)]
    assert all(any(np.allclose(f, p) for p in paths) for f in found)


def test_symmetrised_paths_are_the_same_polynomial() -> None:
    whole = generalized_couplings(["0e + 1o"] * 3, "1o")
    x = np.random.default_rng(0).normal(size=4)
    for p, path in enumerate(symmetrized_couplings(["0e + 1o"] * 3, "1o")):
        value = np.zeros(3)
        for (k, *index), c in path.items():
            assert index == sorted(index, reverse=True)
            value[k] += c * x[index].prod()
        np.testing.assert_allclose(value, np.einsum("kabc,a,b,c->k", whole[..., p], x, x, x), atol=1e-12)


def test_independent_paths_span_all_symmetric_maps() -> None:
    """As many as the symmetric cube of 0e+1o has scalars: s^3 and s v.v."""
    paths = symmetrized_couplings(["0e + 1o"] * 3, "0e")
    kept = drop_dependent_paths(paths)
    keys = sorted({k for p in paths for k in p})
    matrix = np.array([[p.get(k, 0.0) for k in keys] for p in paths])
    assert len(kept) == np.linalg.matrix_rank(matrix) == 2


def test_factors_of_different_tensors_are_not_exchanged() -> None:
    assert symmetrized_couplings(["1o", "1o"], "1e", tensor_names="ab") != [{}]
    assert symmetrized_couplings(["1o", "1o"], "1e", tensor_names="aa") == [{}]


@pytest.mark.parametrize("degree", [0, 5])
def test_degrees_out_of_range(degree: int) -> None:
    with pytest.raises(PlanError, match="1 to 4 factors"):
        generalized_couplings(["0e"] * degree, "0e")


def levi_civita() -> dict[tuple[int, ...], float]:
    return {p: float(np.linalg.det(np.eye(3)[list(p)])) for p in itertools.permutations(range(3))}


def test_tables_are_checked_by_rotations() -> None:
    vectors = [Irreps("1o"), Irreps("1o")]
    check_equivariant("cross", vectors, Irreps("1e"), [levi_civita()])
    with pytest.raises(PlanError, match=r"cross, path 0: .* changes by \d.* under rotation or inversion"):
        check_equivariant("cross", vectors, Irreps("1o"), [levi_civita()])
    spoiled = levi_civita() | {(0, 0, 0): 0.5}
    with pytest.raises(PlanError, match="check its entries"):
        check_equivariant("cross", vectors, Irreps("1e"), [spoiled])


BAD_TERMS = {
    "degree must be 1 to 4, got 0": PolynomialTerm((), 0),
    "degree must be 1 to 4, got 5": PolynomialTerm(("x",) * 5, 0),
    "unknown tensor 'z'; known tensors: x": PolynomialTerm(("x", "z"), 0),
    "unknown basis 'mine'": PolynomialTerm(("x",), 0, basis="mine"),
    "i_out must be 0 to 1": PolynomialTerm(("x",), 2),
    "i_out must be 0 to 1, the segments of the output, got None": PolynomialTerm(("x",)),
    "cannot name its weights": PolynomialTerm(("x",), 0, weight="x"),
    "an entry has 3 indices": PolynomialTerm(("x", "x"), table=((((0, 0), 1.0),),)),
    "index 9 of x is out of range: it has components 0 to 3": PolynomialTerm(("x",), table=((((0, 9), 1.0),),)),
    "must be a finite number": PolynomialTerm(("x",), table=((((0, 0), float("nan")),),)),
    "not an equivariant map": PolynomialTerm(("x",), table=((((0, 1), 1.0),),)),
    r"the entry \(0, 0\) is there twice": PolynomialTerm(("x",), table=((((0, 0), 1.0), ((0, 0), 1.0)),)),
    "every entry of its table is zero": PolynomialTerm(("x",), table=((((0, 0), 0.0),), ())),
    "must have a tuple of names, such as .'x',., got 'x'": PolynomialTerm("x", 0),  # type: ignore[arg-type]
    "no equivariant map exists": PolynomialTerm(("v", "v"), 2),
}


@pytest.mark.parametrize("message", BAD_TERMS)
def test_bad_terms(message: str) -> None:
    operands = [Operand("x", X), OUT]
    term = BAD_TERMS[message]
    if "v" in term.inputs:
        operands = [Operand("v", Irreps("1o")), Operand("out", Irreps("0e + 1o + 1e"))]
    with pytest.raises(PlanError, match=message):
        make_polynomial_plan(operands, [term])


BAD_OPERANDS = {
    "the last operand must be 'out'": [Operand("x", X)],
    "must be an identifier": [Operand("x.1", X), OUT],
    "given twice": [Operand("x", X), Operand("x", X), OUT],
    "unknown layout 'rows'": [Operand("x", X, "rows"), OUT],
    "irreps are empty": [Operand("x", Irreps("")), OUT],
    "cannot be shared": [Operand("x", X), Operand("out", X, channels=False)],
}


@pytest.mark.parametrize("message", BAD_OPERANDS)
def test_bad_operands(message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_polynomial_plan(BAD_OPERANDS[message], [PolynomialTerm(("x",), 0)])


def test_terms_that_share_weights_need_as_many_paths() -> None:
    terms = [PolynomialTerm(("x",), 0, "w"), PolynomialTerm(("x", "x"), 0, "w")]
    with pytest.raises(PlanError, match="must have equally many paths, got 1 and 2"):
        make_polynomial_plan([Operand("x", X), OUT], terms)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("format", "x", "must be one of .*tpgen.polynomial/1, got"),
        ("operands", [], "must hold the tensors"),
        ("operands", 1, "'operands' *: must be a list"),
        ("operands", [["x", "1o", "mul_ir"]], "must be a list of 4"),
        ("operands", [["x", "1o", "mul_ir", 1]], "must be true or false"),
        ("operands", [["x", "what", "mul_ir", True]], "has an unreadable entry"),
        ("operands", [["x", "300x0e", "mul_ir", True]], "at most 256 components"),
        ("terms", [[["x"], True, None, "independent", None]], "indices must be small integers"),
        ("terms", [[[1], 0, None, "independent", None]], "must be text, got '1'"),
        ("terms", [[["x"], None, None, "independent", [[[["0"], 1.0]]]]], "indices must be small integers, got '0'"),
        ("terms", [[["x"], None, None, "independent", [7]]], "must be a list"),
        ("terms", [[["x"], None, None, "independent", [[[[0, 0], 1], [[0, 0], 1]]]]], "is there twice: give one"),
        ("terms", [], "terms: give one at least"),
    ],
)
def test_bad_fields(field: str, value: object, message: str) -> None:
    fields = json.loads(PLANS["symmetric"]().to_json())
    fields[field] = value
    with pytest.raises(PlanError, match=message):
        read_plan(json.dumps(fields))
