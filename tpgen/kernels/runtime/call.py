"""Kernel calls as values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.form.call import Call, Slot
from tpgen.kernels.rows import ROWS, RowIndex, RowRules, join_rule_names, parse_row_rules
from tpgen.kernels.sweep.terms import SLOTS
from tpgen.planner.plan import OUT


class OperandShape(NamedTuple):
    """Expected tensor shape ``(rows, dim)`` of an operand; ``counts`` says rows of what.

    With ``channels`` a row holds ``dim`` numbers per channel.  A row that is not ``flat`` may have several axes.
    """

    dim: int
    counts: str = ROWS
    irreps: str = ""
    channels: bool = False
    flat: bool = True


class FormCall(NamedTuple):
    """Arguments of one call of the operator ``tpgen::form``.

    ``at`` holds index tensors of ``rules``, then sort orders of ``ordered`` rules.  ``nodes`` counts output rows.
    """

    tensors: Sequence[Tensor]
    at: Sequence[Tensor]
    description: str
    call: str
    rules: RowRules = ()
    nodes: int = 0
    ordered: RowRules = ()

    @property
    def slots(self) -> Call:
        """Given and opened slots; `PlanError` for invalid text."""
        return Call.parse(self.call)

    @property
    def indices(self) -> tuple[RowIndex, ...]:
        """Index tensor and sort order of each row rule."""
        count = len(self.at) - len(self.ordered)
        own, orders = iter(self.at[:count]), dict(zip(self.ordered, self.at[count:], strict=True))
        return tuple(
            RowIndex(
                rule,
                next(own, None) if rule.takes_index else None,
                self.nodes if rule.operand == OUT else 0,
                orders.get(rule),
            )
            for rule in self.rules
        )

    def with_indices(self, indices: Sequence[RowIndex]) -> FormCall:
        """Copy the call with other row indices."""
        ordered = [index for index in indices if index.order is not None]
        at = [x for x in (*[index.tensor for index in indices], *[index.order for index in ordered]) if x is not None]
        nodes = next((index.size for index in indices if index.rule.operand == OUT), 0)
        rules = tuple(index.rule for index in indices)
        return self._replace(at=at, rules=rules, nodes=nodes, ordered=tuple(index.rule for index in ordered))

    def to_arguments(self) -> tuple[Any, ...]:
        """Arguments of the operator ``tpgen::form``, row rules as text."""
        tensors, at, description, call, rules, nodes, ordered = self
        return list(tensors), list(at), description, call, join_rule_names(rules), nodes, join_rule_names(ordered)

    @staticmethod
    def from_arguments(
        tensors: Sequence[Any],
        at: Sequence[Any] | None,
        description: str,
        call: str,
        rows: str = "",
        nodes: Any = 0,
        ordered: str = "",
    ) -> FormCall:
        """Make a call from arguments of the operator ``tpgen::form``.

        Raises `PlanError` for unknown rules, `InputError` for a wrong number of indices.
        """
        at = at or ()  # packages of AOTInductor give None for no list
        rules, sorts = parse_row_rules(rows), parse_row_rules(ordered)
        more = len(at) - len(sorts) - sum(rule.takes_index for rule in rules)
        if more > 0 or len(at) < len(sorts):
            raise InputError(f"rows {rows!r}, ordered {ordered!r}: {len(at)} indices and orders are not one for each")
        return FormCall(tensors, at, description, call, rules, nodes, sorts)


def make_product_call(computed: tuple[str, ...]) -> Call:
    """Call that computes a product (``out``), or gradients of operands from the cotangent ``out``.

    >>> print(make_product_call(("out",)))
    x1 x2 w -> out
    >>> print(make_product_call(("x1", "out")))
    x1 x2 w out -> x1 out
    """
    given = SLOTS[:3] if computed == (OUT,) else SLOTS
    return Call(tuple(map(Slot, given)), tuple(map(Slot, computed)))


@cache
def product_call_text(*computed: str) -> str:
    """Text of a call that computes a product or gradients, such as ``x1 x2 w -> out``.

    >>> product_call_text("out")
    'x1 x2 w -> out'
    """
    return str(make_product_call(computed))


FORWARD = product_call_text(OUT)
