r"""Polynomials in tensor components, for one row and channel.

.. math:: P = \sum_n c_n \prod_f t_f[i_f]

>>> P = make_polynomial({(("x", 0), ("x", 1), ("g", 0)): 2.0, (("x", 1), ("x", 0), ("g", 0)): 1.0})
>>> print(P)
3 x0 x1 g0
>>> print(P.gradient("x")[1])
3 x0 g0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from tpgen.base.locks import cached_property
from tpgen.planner.plan import OUT, Operand, Plan

_NOISE = 1e-10  # of the terms that were summed: what is less of them has cancelled


class Variable(NamedTuple):
    """One component of a tensor."""

    tensor: str
    component: int

    def __str__(self) -> str:
        return f"{self.tensor}{self.component}"


class Monomial(NamedTuple):
    """Coefficient times a product of components."""

    coefficient: float
    factors: tuple[Variable, ...]

    def __str__(self) -> str:
        size = [] if self.coefficient == 1.0 and self.factors else [f"{self.coefficient:.6g}"]
        return " ".join([*size, *map(str, self.factors)])


@dataclass(frozen=True)
class PolynomialForm:
    """Polynomial in tensor components: a sum of monomials with distinct products."""

    monomials: tuple[Monomial, ...]

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """Tensors in order of first use.

        >>> make_polynomial({(("x", 0), ("g", 0)): 1.0}).tensors
        ('x', 'g')
        """
        return tuple(dict.fromkeys(f.tensor for m in self.monomials for f in m.factors))

    def degree(self, tensor: str) -> int:
        """Degree in a tensor: most factors of the tensor in a monomial.

        >>> make_polynomial({(("x", 0), ("x", 0)): 1.0}).degree("x")
        2
        """
        return max((sum(f.tensor == tensor for f in m.factors) for m in self.monomials), default=0)

    def gradient(self, tensor: str) -> dict[int, PolynomialForm]:
        """Non-zero derivatives by a tensor's components.

        >>> {i: str(p) for i, p in make_polynomial({(("x", 0), ("x", 1)): 1.0}).gradient("x").items()}
        {0: 'x1', 1: 'x0'}
        """
        parts: dict[int, list[Monomial]] = {}
        for m in self.monomials:
            for n, f in enumerate(m.factors):
                if f.tensor == tensor:
                    rest = Monomial(m.coefficient, m.factors[:n] + m.factors[n + 1 :])
                    parts.setdefault(f.component, []).append(rest)
        return {component: collect_like_terms(parts[component]) for component in sorted(parts)}

    def at(self, values: Mapping[str, Any]) -> Any:
        """Evaluate at ``values[tensor][component]``: numbers, arrays or tensors.

        >>> make_polynomial({(("x", 0), ("x", 1)): 3.0}).at({"x": [2.0, 5.0]})
        30.0
        """
        return sum(m.coefficient * prod(values[f.tensor][f.component] for f in m.factors) for m in self.monomials)

    def __str__(self) -> str:
        return " + ".join(map(str, self.monomials)).replace("+ -", "- ") or "0"


def make_polynomial(table: Mapping[tuple[tuple[str, int], ...], float]) -> PolynomialForm:
    """Polynomial from coefficients by products of (tensor, component)."""
    return collect_like_terms(Monomial(value, tuple(Variable(*f) for f in factors)) for factors, value in table.items())


def collect_like_terms(monomials: Iterable[Monomial]) -> PolynomialForm:
    """Sum monomials with equal factors; drop sums that cancel.

    >>> x0, x1 = Variable("x", 0), Variable("x", 1)
    >>> print(collect_like_terms([Monomial(1.0, (x1, x0)), Monomial(1.0, (x0, x1))]))
    2 x0 x1
    """
    order: dict[str, int] = {}
    sums: dict[tuple[Variable, ...], float] = {}
    sizes: dict[tuple[Variable, ...], float] = {}
    for coefficient, factors in monomials:
        for f in factors:
            order.setdefault(f.tensor, len(order))
        key = tuple(sorted(factors, key=lambda f: (order[f.tensor], f.component)))
        sums[key] = sums.get(key, 0.0) + coefficient
        sizes[key] = sizes.get(key, 0.0) + abs(coefficient)
    return PolynomialForm(tuple(Monomial(c, key) for key, c in sums.items() if abs(c) > _NOISE * sizes[key]))


def make_scalar_form(plan: Plan) -> PolynomialForm:
    """The scalar form of a plan: outputs times cotangents ``out``, summed.

    >>> from e3nn.o3 import Irreps
    >>> from tpgen.planner.plan import Operand
    >>> from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
    >>> operands = [Operand("x", Irreps("1o")), Operand("out", Irreps("0e"))]
    >>> print(make_scalar_form(make_polynomial_plan(operands, [PolynomialTerm(("x", "x"), 0, weight="w")])))
    0.57735 x0 x0 out0 w0 + 0.57735 x1 x1 out0 w0 + 0.57735 x2 x2 out0 w0
    """
    return collect_like_terms(
        Monomial(value, (*(Variable(leg.operand, i) for leg, i in zip(path.inputs, rest, strict=True)), *ends))
        for path in plan.paths
        for (k, *rest), value in (path.entries or {}).items()
        for ends in [(Variable(OUT, k), *([Variable(path.weight.operand, path.weight.start)] if path.weight else []))]
    )


# -- how operands stand in memory: tensors, or nodes of a graph --------------------------------------------------------


def unflatten_operand(o: Operand, x: Any) -> Any:
    """View a tensor as ``[row, channel, component]``; without channels that axis has size one."""
    if o.weights:  # [element or row, path, channel]
        return x.transpose(1, 2)
    flat = x.flatten(1)
    rows = flat.shape[0]
    channels = flat.shape[1] // o.dim if o.channels else 1  # said, since no shape follows from an empty tensor
    if not o.channels or o.layout == "channel":
        return flat.reshape(rows, channels, o.dim)
    if o.layout == "ir_mul":
        return flat.reshape(rows, o.dim, channels).transpose(1, 2)
    sizes = [s.stop - s.start for s in o.irreps.slices()]
    parts = torch.split(flat, [channels * size for size in sizes], 1) if len(sizes) > 1 else (flat,)
    return torch.cat([parts[n].reshape(rows, channels, size) for n, size in enumerate(sizes)], -1)


def flatten_operand(o: Operand, x: Any) -> Any:
    """Flatten ``[row, channel, component]`` to the operand's layout."""
    if o.layout == "channel":
        return x.flatten(1)
    if o.layout == "ir_mul":
        return x.transpose(1, 2).flatten(1)
    return torch.cat([x[:, :, s].flatten(1) for s in o.irreps.slices()], 1)
