"""Run statements on tensors or on nodes of an fx graph."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

from tpgen.kernels.sweep.statements import Component, Load, Local, Product, Statement, Sum, Value

ValueMemory = MutableMapping[Value, Any]


def run_statements(statements: Iterable[Statement], memory: ValueMemory) -> dict[Component, Any]:
    """Run statements; return the sums of opened components, and store other values in ``memory``."""
    opened: dict[Component, Any] = {}
    for statement in statements:
        if not isinstance(statement, Load):  # what is read is at hand
            target = statement.target
            inner = isinstance(target, Local) or (isinstance(target, Component) and target.operand.startswith("@"))
            place: Any = memory if inner else opened
            place[target] = add_products(statement.terms, memory, place.get(target))
    return opened


def add_products(terms: Sum, memory: ValueMemory, start: Any = None) -> Any:
    """Add a sum of products to ``start``, in order."""
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
