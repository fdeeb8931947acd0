"""Polynomials for kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpgen.base.errors import InputError, KernelError, PlanError
from tpgen.base.locks import cached_property
from tpgen.base.remember import remembered
from tpgen.form.call import Call, Slot
from tpgen.form.polynomial import PolynomialForm, make_scalar_form
from tpgen.kernels.build.compiler import cpu_target
from tpgen.kernels.cpp.polynomial import generate_polynomial
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.placement.polynomial import PolynomialPlacement
from tpgen.kernels.rows import ELEMENTS, ROWS, RowRule, RowRules
from tpgen.kernels.runtime.call import OperandShape
from tpgen.kernels.sweep.monomials import PolynomialSweep, make_polynomial_sweep
from tpgen.planner.plan import OUT, Plan
from tpgen.planner.polynomial_plan import POLYNOMIAL

LARGEST = 100_000  # operations of a row: what takes g++ minutes is refused


@dataclass(frozen=True)
class PolynomialDescription:
    """A polynomial's plan, from which kernels of any dtype are generated."""

    plan: Plan
    check_index: bool = True

    format = POLYNOMIAL.format
    other_dtypes = "convert it, or use strategy='einsum'"
    other_devices = "strategy='einsum'"
    has_live_paths = True
    any_level = True  # kernels take calls at any levels
    groups = True  # rows of one element stand together; without an index all are of one, or each of its own

    @cached_property
    def form(self) -> PolynomialForm:
        """The form of one row and channel."""
        return make_scalar_form(self.plan)

    def calls(self, forces: bool = False) -> tuple[Call, ...]:
        """Forward call and gradients; ``forces`` adds second derivatives."""
        return tuple(
            parse_polynomial_call(self.plan, name) for name in (POLYNOMIAL_CALLS if forces else POLYNOMIAL_CALLS[:2])
        )

    def opened_bits(self, _call: Call) -> int:
        return 0

    def sweep(self, call: Call) -> PolynomialSweep:
        """Straight-line program of a call.  Raises `KernelError` above `LARGEST` operations per row."""
        sweep = self.statements(call)
        if sweep.operations > LARGEST:
            raise KernelError(
                f"a kernel of this polynomial ({call}) takes "
                f"{sweep.operations} operations a row, more than {LARGEST}: "
                "use strategy='einsum', or fewer irreps or a lower degree"
            )
        return sweep

    def statements(self, call: Call) -> PolynomialSweep:
        """Straight-line program of a call, of any length."""
        return make_polynomial_sweep(self.form, call, frozenset(o.name for o in self.plan.weights))

    def placement(self, call: Call, dtype: torch.dtype, rules: RowRules = ()) -> PolynomialPlacement:
        return PolynomialPlacement(self.plan, self.sweep(call), cpu_target(dtype))

    def source(self, call: Call, dtype: torch.dtype, rules: RowRules = ()) -> GeneratedSource:
        return generate_polynomial(self.placement(call, dtype))

    def computed_and_cotangent_operands(self, call: Call) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Slots that a call computes, and given slots with levels, as text; `PlanError` for unknown slots."""
        names = [o.name for o in self.plan.operands]
        for slot in (*call.given, *call.opened):
            if slot.operand not in names or slot.levels & ~call.levels:
                raise PlanError(
                    f"call {str(call)[:60]!r}: {slot} is no slot of this polynomial; its operands: {', '.join(names)}"
                )
        return tuple(map(str, call.opened)), tuple(str(slot) for slot in call.given if slot.levels)

    def split_call(self, call: Call, rules: RowRules) -> tuple[Call, ...]:
        """Return the call alone: one kernel computes a call."""
        self.computed_and_cotangent_operands(call)
        return (call,)

    def operand_shapes(self, rules: RowRules) -> dict[str, OperandShape]:
        """Expected tensor shape of each operand, by name.  Raises `InputError` for rules other than elements."""
        if rules != (ELEMENTS,):
            raise InputError("edge_src and edge_dst are of convolutions: a polynomial takes an index of elements alone")
        return {
            o.name: OperandShape(o.dim, ELEMENTS.into if o.weights else ROWS, str(o.irreps), o.channels, False)
            for o in self.plan.operands
        }

    def supports_row_rule(self, _rule: RowRule, _dtype: torch.dtype) -> bool:
        return True

    def rounds_partial_sums(self, call: Call, rules: RowRules) -> bool:
        return False


@remembered("polynomials as kernels compute them")
def describe_polynomial(plan: Plan) -> PolynomialDescription:
    return PolynomialDescription(plan)


def forward_call(plan: Plan) -> Call:
    """Call that computes the output from inputs and weights."""
    return Call(tuple(Slot(o.name) for o in plan.operands if o.name != OUT), (Slot(OUT),))


POLYNOMIAL_CALLS = ("forward", "backward", "second")


def parse_polynomial_call(plan: Plan, name: str) -> Call:
    """The ``forward`` call, its ``backward`` (all gradients), the ``second`` (their gradients), or a parsed call.

    >>> from e3nn.o3 import Irreps
    >>> from tpgen.planner.plan import Operand
    >>> from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
    >>> plan = make_polynomial_plan([Operand("x", Irreps("1o")), Operand("out", Irreps("0e"))],
    ...                             [PolynomialTerm(("x", "x"), 0)])
    >>> print(parse_polynomial_call(plan, "backward"))
    x out.1 -> x
    """
    if name not in POLYNOMIAL_CALLS:
        if "->" not in name:
            raise PlanError(
                f"not a call: {name[:60]!r}; calls are {', '.join(POLYNOMIAL_CALLS)}, or one in full like 'x w -> out'"
            )
        call = Call.parse(name)
        PolynomialDescription(plan).computed_and_cotangent_operands(call)
        return call
    call = forward_call(plan)
    for _ in range(POLYNOMIAL_CALLS.index(name)):
        call = call.pulled_back([True] * len(call.opened), [True] * len(call.given))
    return call
