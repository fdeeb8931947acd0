"""Read the plan of a polynomial from JSON text, which is untrusted: types and sizes first, planning checks the rest."""

from __future__ import annotations

import json
from typing import Any

from e3nn.o3 import Irreps

from tpgen.errors import PlanError
from tpgen.planner.polynomial_plan import (
    FORMAT,
    Operand,
    PolynomialPlan,
    PolynomialTerm,
    make_polynomial_plan,
    table_of,
)

# far above any real polynomial, far below what could exhaust a machine before planning notices
MAX_TEXT = 2**24
MAX_DIM = 256
MAX_TERMS = 1024


def polynomial_from_json(text: str) -> PolynomialPlan:
    """The plan that `PolynomialPlan.to_json` wrote.

    Raises `PlanError` that names the field where something is missing, of a wrong type or out of range.

    >>> operands = [Operand("x", Irreps("0e+1o")), Operand("out", Irreps("0e"))]
    >>> plan = make_polynomial_plan(operands, [PolynomialTerm(("x", "x"), 0)])
    >>> polynomial_from_json(plan.to_json()) == plan
    True
    """
    fields = _parsed(text)
    operands = [_operand(n, row) for n, row in enumerate(_list(fields["operands"], "operands", MAX_TERMS))]
    terms = [_term(n, row) for n, row in enumerate(_list(fields["terms"], "terms", MAX_TERMS))]
    if not operands:
        raise PlanError("polynomial field 'operands': must hold the tensors and, last, the output")
    return make_polynomial_plan(operands, terms)


def _parsed(text: str) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise PlanError(f"polynomial: must be text of at most {MAX_TEXT} characters")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"polynomial: not valid JSON ({error})") from None
    if not isinstance(fields, dict) or tuple(fields) != ("format", "operands", "terms"):
        raise PlanError("polynomial: must be an object with the fields format, operands, terms, in this order")
    if fields["format"] != FORMAT:
        raise PlanError(f"polynomial field 'format': must be {FORMAT!r}, got {str(fields['format'])[:40]!r}")
    return fields


def _list(value: Any, what: str, most: int) -> list:
    if not isinstance(value, list) or len(value) > most:
        raise PlanError(f"polynomial field {what!r}: must be a list of at most {most}")
    return value


def _row(value: Any, what: str, types: tuple[type | tuple[type, ...], ...]) -> list:
    if not isinstance(value, list) or len(value) != len(types):
        raise PlanError(f"polynomial field {what!r}: must be a list of {len(types)}")
    for item, kind in zip(value, types, strict=True):
        if not isinstance(item, kind) or (isinstance(item, bool) and kind is not bool):
            raise PlanError(f"polynomial field {what!r}: {str(item)[:40]!r} is of a wrong type")
    return value


def _operand(n: int, row: Any) -> Operand:
    name, text, layout, channels = _row(row, f"operands[{n}]", (str, str, str, bool))
    try:
        irreps = Irreps(text)
    except (ValueError, AssertionError) as error:
        raise PlanError(f"polynomial field 'operands[{n}]': not irreps: {str(error)[:80]}") from None
    if irreps.dim > MAX_DIM or len(irreps) > MAX_DIM:
        raise PlanError(
            f"polynomial field 'operands[{n}]': a channel has at most {MAX_DIM} components, got {irreps.dim}"
        )
    return Operand(name, irreps, layout, channels)


def _term(n: int, row: Any) -> PolynomialTerm:
    what = f"terms[{n}]"
    inputs, i_out, weight, basis, table = _row(
        row, what, (list, (int, type(None)), (str, type(None)), str, (list, type(None)))
    )
    if not all(isinstance(name, str) for name in inputs):
        raise PlanError(f"polynomial field {what!r}: its inputs must be names")
    paths = None if table is None else tuple(_path(what, path) for path in table)
    return PolynomialTerm(tuple(inputs), i_out, weight, basis, paths)


def _path(what: str, path: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    entries = []
    for entry in _list(path, what, MAX_TEXT):
        index, value = _row(entry, what, (list, (int, float)))
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in index):
            raise PlanError(f"polynomial field {what!r}: indices must be whole numbers, got {str(index)[:40]}")
        entries.append((tuple(index), value))
    return table_of(entries)
