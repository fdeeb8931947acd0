"""Edges of convolutions by polynomials: which tensors are read at which end, and what a call is given of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tpgen.emitter.polynomial import ENDS, NODES, Ends
from tpgen.errors import InputError, PlanError, unknown
from tpgen.nn.checks import check_edge_index, check_end
from tpgen.nn.edges import EdgeOrder
from tpgen.planner.plan import OUT, Plan


def check_ends(edges: Any, plan: Plan) -> Ends:
    """The ends of edges by operand.  Raises `PlanError` for what is no tensor or no end, and for names that clash."""
    names = [o.name for o in plan.operands if not o.weights]
    if not isinstance(edges, Mapping):
        raise PlanError(f"edges: must map names of tensors to ends, such as {{'x': 'src'}}, got {str(edges)[:60]}")
    for name, end in edges.items():
        if name not in names:
            raise PlanError(f"edges: {unknown('tensor', name, names)}")
        if end not in ENDS:
            raise PlanError(f"edges: {name} is read at an end of edges: {unknown('end', end, ENDS)}")
    taken = {*ENDS.values(), NODES} & {o.name for o in plan.operands} if edges else ()
    if taken:
        raise PlanError(f"tensors: a convolution has the argument {min(taken)}: give the tensor another name")
    return tuple(edges.items())


def ends_of_call(
    ends: Ends, given: Mapping[str, Tensor], src: Any, dst: Any, num_nodes: int | None, check_index: bool
) -> list[Any]:
    """The ends of edges as a program takes them, and behind them how many rows results are summed into.

    Raises `InputError` for edges of what has none, and for those that do not fit the tensors that are given.
    """
    if not ends:
        if src is not None or dst is not None or num_nodes is not None:
            raise InputError(
                "edge_src, edge_dst, num_nodes: this polynomial has no edges: leave them out, or construct it with "
                "edges, such as {'x': 'src', 'out': 'dst'}"
            )
        return []
    if isinstance(src, EdgeOrder):
        src, dst, num_nodes = src.ends(dst, num_nodes)
    at = {end: [name for name, found in ends if found == end] for end in ENDS}
    used = {end: index for end, index in {"src": src, "dst": dst}.items() if at[end]}
    for end, index in used.items():
        check_edge_index(ENDS[end], index)
    counts = {name: given[name].shape[0] for name, _ in ends if name != OUT and given[name].dim()}
    into = dict(ends).get(OUT)
    if into and num_nodes is None:
        num_nodes = next((counts[name] for name in (*at[into], *counts) if name in counts), 0)
    if num_nodes is not None and num_nodes < 0:
        raise InputError(f"{NODES}: must not be negative, got {num_nodes}")
    first = next(iter(used.values()))
    for end, index in used.items():
        limits = {f"rows of {name}": counts[name] for name in at[end] if name in counts}
        if end == into:
            limits[NODES] = num_nodes or 0
        what = min(limits, key=limits.__getitem__) if check_index else ""
        like, limit = next(iter(given.values())), limits.get(what, 0)
        check_end(ENDS[end], index, like, first.numel(), limit, what, check_index)
    return [*(index.long() for index in used.values()), *([num_nodes] if into else [])]
