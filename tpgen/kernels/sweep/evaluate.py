"""Statements run one by one, on whatever multiplies and adds: tensors, as the oracle of what is generated, or an fx
graph under construction.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from tpgen.kernels.sweep.monomials import stored_value
from tpgen.kernels.sweep.statements import Component, Load, Local, Product, Statement, Sum, Value

ValueMemory = MutableMapping[Value, Any]


def run_statements(statements: Iterable[Statement], memory: ValueMemory) -> dict[Component, Any]:
    """The sums of all components that statements add to; named values and coefficients are left in the memory."""
    opened: dict[Component, Any] = {}
    for statement in statements:
        if not isinstance(statement, Load):  # what is read is at hand
            target = stored_value(statement)
            inner = isinstance(target, Local) or (isinstance(target, Component) and target.operand.startswith("@"))
            place: Any = memory if inner else opened
            place[target] = summed(statement.terms, memory, place.get(target))
    return opened


def summed(terms: Sum, memory: ValueMemory, start: Any = None) -> Any:
    """A sum of products of values, in its order, on top of what there is."""
    for term in terms:
        value = _product(term, memory)
        start = value if start is None else start + value
    return start


def _product(product: Product, memory: ValueMemory) -> Any:
    if not product.factors:
        return product.coefficient
    first, *rest = (memory[factor] for factor in product.factors)
    for factor in rest:
        first = first * factor
    return first if product.coefficient == 1.0 else first * product.coefficient
