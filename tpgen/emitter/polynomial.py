"""Write a polynomial as an fx graph.

Placeholders: inputs, weights, ``index`` (row elements; otherwise weights are ``(1 or rows, paths, channels)``), edge
ends, output rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from tpgen.base.errors import EmitError, unknown
from tpgen.base.remember import remembered
from tpgen.emitter.emit import Emission
from tpgen.emitter.frame import gather_rows, scatter_add_rows
from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.emitter.passes import name_nodes
from tpgen.form.polynomial import flatten_operand, unflatten_operand
from tpgen.kernels.runtime.batched import run_polynomial
from tpgen.kernels.runtime.polynomials import describe_polynomial, forward_call
from tpgen.kernels.sweep.statements import Component, Value, run_statements
from tpgen.planner.plan import OUT, Plan

_TensorsByName = Mapping[str, Traced]
Ends = tuple[tuple[str, str], ...]  # the name of an operand, and the end of edges where its rows are
EDGE_ARGUMENTS = {"src": "edge_src", "dst": "edge_dst"}  # of edges, and the arguments that say them
NODES = "num_nodes"


@remembered("programs of polynomials", entries=256)
def emit_polynomial(plan: Plan, strategy: str = "einsum", indexed: bool = False, ends: Ends = ()) -> Emission:
    """Write a polynomial's program; ``indexed``: an element index selects weights; ``ends``: a convolution over edges.

    >>> from e3nn.o3 import Irreps
    >>> from tpgen.planner.plan import Operand
    >>> from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
    >>> operands = [Operand("x", Irreps("1o")), Operand("out", Irreps("0e"))]
    >>> plan = make_polynomial_plan(operands, [PolynomialTerm(("x", "x"), 0)])
    >>> round(float(emit_polynomial(plan).module()(torch.ones(1, 3))), 4)
    1.7321
    """
    if strategy not in POLYNOMIAL_STRATEGIES:
        raise EmitError(unknown("strategy", strategy, POLYNOMIAL_STRATEGIES))
    writer = GraphWriter()
    names = [o.name for o in plan.operands if o.name != OUT] + (["index"] if indexed else [])
    given = {name: writer.placeholder(name) for name in names}
    found = dict(ends)
    indices = {end: writer.placeholder(name) for end, name in EDGE_ARGUMENTS.items() if end in found.values()}
    size = writer.placeholder(NODES, int) if OUT in found else None
    for name in names:
        if name in found:
            given[name] = gather_rows(writer, given[name], indices[found[name]])
    with writer.serving(tuple(plan.by_instruction), "contraction"):
        output = POLYNOMIAL_STRATEGIES[strategy](writer, plan, given)
    if OUT in found:
        output = scatter_add_rows(writer, output, indices[found[OUT]], (size, output.size(1)))
    title = f"polynomial of {plan.digest}, {strategy}"
    return Emission(name_nodes(writer.finish(output)), writer.constants, title)


def _write_kernel_call(writer: GraphWriter, plan: Plan, given: _TensorsByName) -> Traced:
    tensors = [given[o.name] for o in plan.operands if o.name != OUT]
    index = given.get("index")
    with writer.role("kernel"):
        return writer.call(run_polynomial, tensors, index, plan.to_json(), str(forward_call(plan)))


def _write_einsum_strategy(writer: GraphWriter, plan: Plan, given: _TensorsByName) -> Traced:
    # for each term: its monomials, a matrix product with its constants, the weights
    flat = _view_operands_by_channel(writer, plan, given)
    total: Traced = None
    for n in plan.by_instruction:
        with writer.serving(n, "contraction"):
            values = _write_polynomial_term(writer, plan, n, flat)
            total = values if total is None else total + values
    if _has_term_without_channels(plan):
        total = total + _make_zero_of_batch_shape(flat).unsqueeze(-1)
    with writer.serving((), "reshape"):
        return flatten_operand(plan.out, total)


def _write_polynomial_term(writer: GraphWriter, plan: Plan, term_index: int, operands: _TensorsByName) -> Traced:
    term, paths = plan.terms[term_index], [path.entries or {} for path in plan.by_instruction[term_index]]
    monomials = sorted({key[1:] for path in paths for key in path})
    constant = np.zeros((len(monomials), plan.out.dim, len(paths)))
    place = {index: m for m, index in enumerate(monomials)}
    for p, path in enumerate(paths):
        for (k, *index), value in path.items():
            constant[place[tuple(index)], k, p] += value
    values: Traced = None
    for axis, name in enumerate(term.inputs):
        where = writer.constant(f"_component_{term_index}_{axis}", np.array([m[axis] for m in monomials]))
        factor = operands[name].index_select(-1, where)
        values = factor if values is None else values * factor
    summed = constant if term.weight else constant.sum(-1, keepdims=True)
    table = writer.constant(f"_coupling_{term_index}", summed.reshape(len(monomials), -1))
    values = torch.matmul(values, table)
    if not term.weight:
        return values
    values = values.unflatten(-1, (plan.out.dim, len(paths)))  # [z, c, (k p)] with [z, c, p]
    return (values * operands[term.weight].unsqueeze(-2)).sum(-1)


def _write_unrolled_strategy(writer: GraphWriter, plan: Plan, given: _TensorsByName) -> Traced:
    flat = _view_operands_by_channel(writer, plan, given)
    kernels = describe_polynomial(plan)
    components: dict[Value, Traced] = {
        Component(o.name, 0, i): flat[o.name].select(-1, i)
        for o in plan.operands
        if o.name != OUT
        for i in range(o.dim)
    }
    opened = run_statements(kernels.sweep(forward_call(plan)).statements, components)
    found: list[Traced] = [opened.get(Component(OUT, 0, k)) for k in range(plan.out.dim)]
    zero = _make_zero_of_batch_shape(flat) if len(opened) < len(found) or _has_term_without_channels(plan) else None
    parts = found if zero is None else [zero if x is None else x + zero for x in found]
    return flatten_operand(plan.out, torch.stack(parts, -1))


def _has_term_without_channels(plan: Plan) -> bool:
    # whether some term has one value for all channels
    return any(not (t.weight or any(plan.operand(name).channels for name in t.inputs)) for t in plan.terms)


def _make_zero_of_batch_shape(flat: _TensorsByName) -> Traced:
    return sum(x.narrow(-1, 0, 0).sum(-1) for x in flat.values())


POLYNOMIAL_STRATEGIES: dict[str, Callable[[GraphWriter, Plan, _TensorsByName], Traced]] = {
    "einsum": _write_einsum_strategy,
    "unrolled": _write_unrolled_strategy,
    "kernel": _write_kernel_call,
}


def _view_operands_by_channel(writer: GraphWriter, plan: Plan, given: _TensorsByName) -> dict[str, Traced]:
    # [row, channel, component]; one channel if all share it, one row if rows do
    found = {}
    for o in plan.operands:
        if o.name != OUT:
            with writer.serving((), "slice"):
                x = given[o.name]
                found[o.name] = unflatten_operand(
                    o, x.index_select(0, given["index"]) if o.weights and "index" in given else x
                )
    return found
