"""Emit a form as an fx.GraphModule.

Every program has the same frame: typed placeholders, one for each given operand (``x1, x2, w`` forwards; ``g``
where the output is given), batch dimensions broadcast and flattened, operands split into segments, the strategy's
nodes, and the results summed, concatenated and given their batch dimensions back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod
from operator import add
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.emitter.lowering import Inputs, Result
from tpgen.emitter.passes import name_nodes, put_on_streams
from tpgen.emitter.strategies import STRATEGIES
from tpgen.errors import EmitError, unknown
from tpgen.form.form import Form, Layout, group_dim, make_form, right_form
from tpgen.planner.plan import Plan

PLACEHOLDERS = {"out": "g", "x1*out": "g"}  # group name -> argument name, where they differ


@dataclass(frozen=True)
class Emission:
    """A written program: the graph, and its constants in float64 (indices in int64)."""

    graph: fx.Graph
    constants: dict[str, np.ndarray]
    title: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the placeholders, in order."""
        return tuple(str(node.target) for node in self.graph.nodes if node.op == "placeholder")

    @property
    def code(self) -> str:
        """The graph as Python source."""
        return self.graph.python_code("self").src

    def module(self) -> EmittedModule:
        """A module that runs the program, with constants of its own in the default dtype."""
        return EmittedModule.of(self)

    def __str__(self) -> str:
        return f"{self.title}\n{graph_table(self.graph)}"


class EmittedModule(fx.GraphModule):
    """The GraphModule of an emission.

    Its constants are non-persistent buffers, rounded from float64 to the dtype in use: ``.double()`` is exact, and a
    state_dict does not hold them.
    """

    __jit_ignored_attributes__ = ("_exact",)  # name -> exact values; means nothing to TorchScript

    @classmethod
    def of(cls, emission: Emission) -> EmittedModule:
        root = nn.Module()
        for name, values in emission.constants.items():
            root.register_buffer(name, _rounded(values, torch.get_default_dtype()), persistent=False)
        return cls(root, emission.graph, class_name="tpgen_" + emission.title.split(" ")[0])._holding(
            emission.constants
        )

    def __deepcopy__(self, memo: dict) -> EmittedModule:
        copied: EmittedModule = super().__deepcopy__(memo)
        return copied._holding(self.__dict__["_exact"])

    def _holding(self, exact: dict[str, np.ndarray]) -> EmittedModule:
        """Say again what fx forgets where it copies buffers: their exact values, and that they are not persistent."""
        self.__dict__["_exact"] = exact
        for name in exact:
            self.register_buffer(name, self._buffers[name], persistent=False)
        return self

    def _apply(self, fn: Callable, recurse: bool = True) -> EmittedModule:
        super()._apply(fn, recurse)
        exact: dict[str, np.ndarray] = self.__dict__["_exact"]
        for name, values in exact.items():
            moved = self._buffers[name]
            assert moved is not None
            if moved.device.type != "meta":  # a buffer that leaves "meta" has no values yet, so indices are set as well
                self._buffers[name] = _rounded(values, moved.dtype).to(moved.device)
        return self


def _rounded(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    tensor = torch.tensor(values, device="cpu")
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


# Directions of a product by name: which form, and which of its operands is open.
DIRECTIONS: dict[str, Callable[[Plan, Layout], Form]] = {
    "forward": make_form,
    "right": right_form,
    "grad_x1": lambda plan, layout: make_form(plan, layout).open("x1"),
    "grad_x2": lambda plan, layout: make_form(plan, layout).open("x2"),
    "grad_w": lambda plan, layout: make_form(plan, layout).open("w"),
}


def emit_plan(
    plan: Plan, direction: str = "forward", strategy: str = "einsum", layout: Layout = "mul_ir", streams: int = 0
) -> Emission:
    """Write one direction of a planned product.

    The same request returns the same emission: it is written once per process.

    >>> from tpgen.planner.presets import channelwise
    >>> emission = emit_plan(channelwise("4x0e", "0e", "0e"))
    >>> emission.arguments
    ('x1', 'x2', 'w')
    """
    if direction not in DIRECTIONS:
        raise EmitError(unknown("direction", direction, DIRECTIONS))
    layout = layout if isinstance(layout, str) else tuple(layout)  # type: ignore[assignment]
    return _emit_plan(plan, direction, strategy, layout, streams)


@lru_cache(maxsize=1024)
def _emit_plan(plan: Plan, direction: str, strategy: str, layout: Layout, streams: int) -> Emission:
    form = DIRECTIONS[direction](plan, layout)
    return emit_form(form, strategy, streams, title=f"{direction} of {plan.digest}, {strategy}")


def emit_form(form: Form, strategy: str = "einsum", streams: int = 0, title: str = "form") -> Emission:
    """Write a form with the given strategy; ``streams`` CUDA streams share the paths where it is above zero."""
    if strategy not in STRATEGIES:
        raise EmitError(unknown("strategy", strategy, STRATEGIES))
    writer = GraphWriter()
    given = {group: writer.placeholder(_argument(group)) for group in form.closed}
    batch, flat, rows = _broadcast(writer, form, given)
    results = STRATEGIES[strategy](writer, form, Inputs(writer, form, flat, rows)) if form.live_terms else []
    out = _assembled(writer, form, results, next(iter(flat.values())), rows)
    if form.row(form.opened):
        with writer.serving((), "reshape"):
            out = out.unflatten(0, batch.shape[:-1]).squeeze(0)
    graph = name_nodes(writer.finish(out))
    if streams:
        graph = put_on_streams(graph, streams)
    return Emission(graph, writer.constants, title)


def _argument(group: tuple[str, ...]) -> str:
    name = "*".join(group)
    return PLACEHOLDERS.get(name, name)


def _broadcast(
    writer: GraphWriter, form: Form, given: dict[tuple[str, ...], Traced]
) -> tuple[Traced, dict[str, Traced], Traced]:
    """Broadcast the batch dimensions of all row operands against each other and flatten them into one.

    Returns a tensor that has the batch dimensions (one leading axis more, one trailing axis of length one), the flat
    operands, and the number of rows.
    """
    probes = []
    for group, x in given.items():
        if form.row(group):
            for name in group[:-1]:  # a matrix operand has two trailing axes
                x = _first_entry(x, -2, form.operand(name).dim).squeeze(-2)
            probes.append(_first_entry(x, -1, form.operand(group[-1]).dim))
    batch = torch.broadcast_tensors(*probes)[0] if len(probes) > 1 else probes[0]
    batch = batch.unsqueeze(0)
    flat = {}
    for group, x in given.items():
        name = "*".join(group)
        if not form.row(group):
            flat[name] = x
        elif len(group) == 1:
            # one more leading axis, so that there is a batch axis to flatten even where none is given
            flat[name] = (
                torch.broadcast_tensors(x, batch)[0].flatten(0, -2)
                if len(probes) > 1
                else x.unsqueeze(0).flatten(0, -2)
            )
        else:
            full = torch.broadcast_tensors(x, batch.unsqueeze(-1))[0] if len(probes) > 1 else x.unsqueeze(0)
            flat[name] = full.flatten(0, -3)
    row = next(x for name, x in flat.items() if form.row(tuple(name.split("*"))))
    return batch, flat, row.size(0)


def _first_entry(x: Traced, axis: int, dim: int) -> Traced:
    """The tensor cut to length one along an axis, also where that axis is empty."""
    return torch.narrow(x, axis, 0, 1) if dim > 0 else x.sum(axis, keepdim=True)


def _assembled(writer: GraphWriter, form: Form, results: list[Result], like: Traced, rows: Traced) -> Traced:
    """Sum the results of each segment, put zeros where there are none, concatenate."""
    batch = (rows,) if form.row(form.opened) else ()
    by_segment: dict[tuple[int, ...], list[Result]] = {}
    for result in results:
        by_segment.setdefault(result.segments, []).append(result)

    def assemble(chosen: tuple[int, ...], remaining: tuple[str, ...]) -> Any:
        if not remaining:
            return _segment_sum(
                writer, by_segment.get(chosen, ()), lambda: _zeros(like, (*batch, *_dims(form, chosen)))
            )
        segments = range(len(form.operand(remaining[0]).segments))
        if not any(key[: len(chosen)] == chosen for key in by_segment):
            with writer.serving((), "sum"):
                return _zeros(like, (*batch, *_dims(form, chosen), *group_dim(form, remaining)))
        pieces = [assemble((*chosen, s), remaining[1:]) for s in segments if prod(_dims(form, (*chosen, s))) > 0]
        if len(pieces) == 1:
            return pieces[0]
        with writer.serving((), "reshape"):
            return torch.cat(pieces, dim=len(chosen) - len(form.opened))

    return assemble((), form.opened)


def _dims(form: Form, segments: Iterable[int]) -> tuple[int, ...]:
    bounds = (form.operand(name).segments[s] for name, s in zip(form.opened, segments, strict=False))
    return tuple(stop - start for start, stop in bounds)


def _zeros(like: Traced, shape: tuple) -> Traced:
    return like.new_zeros(shape)


def _segment_sum(writer: GraphWriter, results: Iterable[Result], zeros: Callable[[], Traced]) -> Traced:
    found = tuple(results)
    if not found:
        with writer.serving((), "sum"):
            return zeros()
    with writer.serving(tuple(sorted({i for r in found for i in r.instructions})), "sum"):
        return reduce(add, (r.tensor for r in found))


def graph_table(graph: fx.Graph) -> str:
    """The graph as a table: node, operation, arguments, role, the instructions it serves."""
    rows = [("node", "op", "target", "arguments", "role", "instructions")]
    for node in graph.nodes:
        origin = node.meta["tpgen"]
        arguments = ", ".join([*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())])
        served = ",".join(map(str, origin.instructions)) or "all"
        rows.append((node.name, node.op, _target_name(node), arguments, origin.role, served))
    widths = [min(60, max(len(row[c]) for row in rows)) for c in range(6)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _target_name(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
