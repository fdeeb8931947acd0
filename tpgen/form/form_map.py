"""A form as a map: which segments of its operands meet in which path."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING

from tpgen.drawing.path_map import PathMap, Route

if TYPE_CHECKING:
    from tpgen.form.form import Form, Slot


def form_map(form: Form) -> PathMap:
    """Which segments of the operands given meet in which path, and the segment of the open one that it reaches."""

    def sides(slots: Iterable[Slot]) -> dict[str, tuple[str, ...]]:
        return {name: form.operand(name).labels for slot in slots for name in slot}

    operands, results = sides(form.given), sides([form.opened])
    routes = []
    for t in form.live_terms:
        ends = [(leg.operand, leg.segment) for leg in t.legs]
        begins, reaches = (tuple(e for e in ends if e[0] in side) for side in (operands, results))
        cost = prod(size for _, size in t.sizes)
        routes.append(Route(t.path, begins, reaches, f"path {t.path}: {form.contraction(t)}", cost))
    return PathMap(operands, results, tuple(routes), "products in all, those with zero too")
