"""Costs of every graph node.

>>> from tpgen.tools.inspection.stages.request import Request
>>> from tpgen.planner.presets import full
>>> costs = compute_node_costs(Request(full("1o", "0e"), rows=10, strategy="einsum"))
>>> print(costs["x1"])
10×3 float32, 120 B
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from tpgen.base._torch import DispatchMode, FakeTensorMode, OpOverload, pytree
from tpgen.base.text import quantity
from tpgen.tools.inspection.stages.dump import draw_example_arguments
from tpgen.tools.inspection.stages.request import Request

_REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "index_add", "index_add_", "scatter_add")


@dataclass(frozen=True)
class _NodeCost:
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    is_view: bool
    flops: int

    def __str__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "scalar"
        kept = f"{quantity(self.bytes, 'B')} (a view)" if self.is_view else quantity(self.bytes, "B")
        return ", ".join([f"{shape} {self.dtype}", kept, *([quantity(self.flops, "FLOP")] if self.flops else [])])


def compute_node_costs(request: Request) -> dict[str, _NodeCost]:
    """Shape, bytes and operations of each node of a program's graph, by name."""
    emission = request.emit_program()
    watch = _CostInterpreter(request.module(emission))
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):  # example arguments are made as such too
        watch.run(*draw_example_arguments(request, emission.arguments))
    return watch.found


def compute_joint_graph_costs(graph: fx.Graph) -> dict[str, _NodeCost]:
    """Shape, bytes and operations of each node of AOTAutograd's graph, by name."""
    found = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta.get("val"), (node.args, node.kwargs))
            is_call = isinstance(node.target, OpOverload)
            flops = count_operations(node.target, args, kwargs, value) if is_call else 0
            is_view = _returns_view(node.target) if is_call else node.target is operator.getitem  # of a split
            found[node.name] = _make_node_cost(value, flops, is_view)
    return found


def count_operations(function: OpOverload, args: tuple, kwargs: Mapping[str, Any], result: Any) -> int:
    """Count an aten call's operations: matrix products by size, pointwise calls and reductions by elements.

    >>> a = torch.ones(2, 3)
    >>> count_operations(torch.ops.aten.mm.default, (a, a.T), {}, a @ a.T)
    24
    >>> count_operations(torch.ops.aten.t.default, (a,), {}, a.T)
    0
    """
    counted: Callable[..., int] | None = flop_registry.get(function.overloadpacket)
    if counted is not None:
        return counted(*args, **kwargs, out_val=result)
    if function.overloadpacket.__name__ in _REDUCTIONS:
        return max((x.numel() for x in args if isinstance(x, Tensor)), default=0)
    return result.numel() if torch.Tag.pointwise in function.tags and isinstance(result, Tensor) else 0


class _CostInterpreter(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[str, _NodeCost] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and record costs."""
        with _FlopCounter() as counted:
            result = super().run_node(n)
        if isinstance(result, Tensor) and n.op != "output":
            read = pytree.tree_leaves([self.env[given] for given in n.all_input_nodes])
            held = {_storage_id(value) for value in read if isinstance(value, Tensor)}
            self.found[n.name] = _make_node_cost(result, counted.flops, _storage_id(result) in held)
        return result


class _FlopCounter(DispatchMode):
    # operations of all that is called meanwhile
    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.flops += count_operations(func, args, kwargs or {}, result)
        return result


def _storage_id(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def _make_node_cost(value: Tensor, flops: int, is_view: bool) -> _NodeCost:
    dtype = str(value.dtype).removeprefix("torch.")
    shape = tuple(map(int, value.shape))
    return _NodeCost(shape, dtype, prod(shape) * value.dtype.itemsize, is_view, int(flops))


def _returns_view(function: OpOverload) -> bool:
    returned = [r.alias_info for r in function._schema.returns]
    return any(info is not None and not info.is_write for info in returned)
