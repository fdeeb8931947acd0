"""The obvious slow version of a polynomial, and the polynomials that tests share."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import torch
from e3nn.o3 import Irreps
from torch import Tensor

from tpgen.form.polynomial import Monomial, PolynomialForm, Variable, collect_like_terms
from tpgen.planner.generalized import generalized_couplings
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan

X, Y = Irreps("0e + 1o"), Irreps("0e + 1o + 2e")


def symmetric(irreps: Irreps = X, degree: int = 3, layout: str = "channel") -> Plan:
    """A symmetric contraction to scalars and vectors."""
    terms = [PolynomialTerm(("x",) * nu, n, f"w{n}_{nu}", "chained") for n in range(2) for nu in range(degree, 0, -1)]
    return make_polynomial_plan([Operand("x", irreps, layout), Operand(OUT, Irreps("0e + 1o"))], terms)


def mixed(layout: str = "mul_ir", weighted: bool = True, a: Irreps = X, y: Irreps = Y) -> Plan:
    """Two tensors of channels, one repeated, and one copy for all channels."""
    operands = [Operand("a", a, layout), Operand("b", Irreps("1o"), layout), Operand("y", y, channels=False)]
    terms = [
        PolynomialTerm(("a", "a", "y"), 1, "u" if weighted else None),
        PolynomialTerm(("a", "b"), 0, "v" if weighted else None),
        PolynomialTerm(("y", "y"), 0),
    ]
    return make_polynomial_plan([*operands, Operand(OUT, Irreps("0e + 1o"), layout)], terms)


def small_symmetric() -> Plan:
    """A vector squared and a vector as it is."""
    terms = [PolynomialTerm(("x", "x"), 0, "w0_2", "chained"), PolynomialTerm(("x",), 1, "w1_1", "chained")]
    return make_polynomial_plan([Operand("x", Irreps("1o"), "channel"), Operand(OUT, Irreps("0e + 1o"))], terms)


def small_mixed() -> Plan:
    """Vectors alone as inputs of `mixed`."""
    return mixed(a=Irreps("1o"), y=Irreps("1o"))


def nested() -> Plan:
    """Terms whose factors begin other terms, all of coefficient 1: a factor taken out leaves a constant."""
    tables = {
        ("x",): {(i, i): 1.0 for i in range(4)},
        ("x", "x"): {(i, 0, i): 1.0 for i in range(4)},
        ("x", "x", "x"): {(i, 0, 0, i): 1.0 for i in range(4)},
    }
    terms = [PolynomialTerm(names, table=(tuple(table.items()),)) for names, table in tables.items()]
    return make_polynomial_plan([Operand("x", X, "channel"), Operand(OUT, X)], terms)


PLANS = {
    "symmetric": symmetric,
    "symmetric ir_mul": lambda: symmetric(layout="ir_mul"),
    "mixed": mixed,
    "mixed channel": lambda: mixed("channel"),
    "nested": nested,
    "mixed unweighted": lambda: mixed(weighted=False),
}


def operands_of(
    plan: Plan, rows: int, elements: int, channels: int, dtype: torch.dtype = torch.float64, grad: bool = True
) -> list[Tensor]:
    """Random inputs and weights in the order of the plan."""
    return [
        torch.randn(_shape(o, rows, elements, channels), dtype=dtype).requires_grad_(grad) for o in plan.operands[:-1]
    ]


def _shape(o: Operand, rows: int, elements: int, channels: int) -> tuple[int, ...]:
    if o.weights:
        return (elements, o.dim, channels)
    if not o.channels:
        return (rows, o.dim)
    return (rows, channels, o.dim) if o.layout == "channel" else (rows, channels * o.dim)


def slow(plan: Plan, tensors: Sequence[Tensor], index: Tensor | None = None) -> Tensor:
    """Each term as one einsum with its dense constant, unsymmetrised where couplings are generated."""
    flat = {}
    for o, x in zip(plan.operands, tensors, strict=False):
        if o.weights:
            flat[o.name] = x if index is None else x[index]  # [z, p, c]
        else:
            flat[o.name] = components(o, x)  # [z, c, i]
    total = 0.0
    for term, paths in zip(plan.terms, plan.by_instruction.values(), strict=True):
        constant = torch.from_numpy(_dense(plan, term, len(paths))).to(tensors[0].dtype)
        letters = string.ascii_lowercase[: len(term.inputs)]
        inputs = [flat[name] for name in term.inputs]
        equation = ",".join(f"Z{'C' if x.shape[1] > 1 else 'D'}{i}" for x, i in zip(inputs, letters, strict=True))
        inputs = [x if x.shape[1] > 1 else x[:, :1] for x in inputs]
        if term.weight:
            weight = flat[term.weight].expand(inputs[0].shape[0], -1, -1)
            out = torch.einsum(f"{equation},K{letters}P,ZPC->ZCK", *inputs, constant, weight)
        else:
            out = torch.einsum(f"{equation},K{letters}P->Z{'C' if 'C' in equation else ''}K", *inputs, constant)
            out = out if "C" in equation else out.unsqueeze(1)
        total = total + out
    channels = next(x.shape[1] for o in plan.inputs if o.channels for x in [flat[o.name]])
    return _written(plan.out, total.expand(-1, channels, -1))


def _dense(plan: Plan, term: PolynomialTerm, paths: int) -> np.ndarray:
    sizes = [plan.operand(name).dim for name in term.inputs]
    dense = np.zeros((plan.out.dim, *sizes, paths))
    if term.basis != "independent" and term.i_out is not None:
        s = plan.out.irreps.slices()[term.i_out]
        factors = [plan.operand(name).irreps for name in term.inputs]
        dense[s] = generalized_couplings(factors, plan.out.irreps[term.i_out].ir)
        return dense
    for p, path in enumerate(plan.by_instruction[plan.terms.index(term)]):
        for key, value in path.entries.items():
            dense[(*key, p)] += value
    return dense


def components(o: Operand, x: Tensor) -> Tensor:
    """A tensor as ``[row, channel, component]``."""
    if not o.channels:
        return x.unsqueeze(1)
    if o.layout == "channel":
        return x.reshape(x.shape[0], -1, o.dim)
    channels = x.shape[1] // o.dim
    if o.layout == "ir_mul":
        return x.reshape(x.shape[0], o.dim, channels).transpose(1, 2)
    parts = x.split([channels * (s.stop - s.start) for s in o.irreps.slices()], 1)
    return torch.cat([part.reshape(x.shape[0], channels, -1) for part in parts], -1)


def _written(o: Operand, x: Tensor) -> Tensor:
    if o.layout == "channel":
        return x.flatten(1)
    if o.layout == "ir_mul":
        return x.transpose(1, 2).flatten(1)
    return torch.cat([x[..., s].flatten(1) for s in o.irreps.slices()], 1)


def along(form: PolynomialForm, tensor: str, direction: str) -> PolynomialForm:
    """The derivative along a direction, ``sum_i v_i dP/dt_i``, as a polynomial: the oracle of calls at levels."""
    return collect_like_terms(
        Monomial(m.coefficient, (*m.factors[:n], Variable(direction, f.component), *m.factors[n + 1 :]))
        for m in form.monomials
        for n, f in enumerate(m.factors)
        if f.tensor == tensor
    )
