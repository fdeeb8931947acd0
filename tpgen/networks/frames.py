"""Reshapes around inlined products."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

# methods that keep all entries in their order: where they also keep the shape, they do nothing
_REARRANGING = ("flatten", "unsqueeze", "squeeze", "reshape", "view", "unflatten", "expand")


def remove_neutral_reshapes(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Remove, in place, reshapes and broadcasts of tpgen programs that change no shape at example inputs."""
    # all operands of a product then have one number of rows
    seen = _ShapeRecorder(module)
    seen.run(*inputs)
    order = {node: n for n, node in enumerate(module.graph.nodes)}
    rows = _MatricesByRowCount(seen.shapes, order)
    origin: dict[fx.Node, fx.Node] = {}
    for node in list(module.graph.nodes):
        if "tpgen" not in node.meta:
            continue
        if node.target is torch.broadcast_tensors:
            rows.unite_equal_row_counts([origin.get(n, n) for n in node.args])
        source = _operand_of_reshape_without_effect(node, seen.shapes)
        if source is None:
            continue
        origin[node] = origin.get(source, source)
        if seen.shapes[node] == seen.shapes[origin[node]]:
            node.replace_all_uses_with(origin[node])
    for node in module.graph.nodes:
        if "tpgen" in node.meta and node.target == "size" and node.args[1:] == (0,):
            node.args = (rows.find_first_matrix(node.args[0]), 0)


@contextmanager
def eval_mode_without_gradients(module: nn.Module) -> Iterator[None]:
    """Run the block in evaluation, without gradients; restore modes and random state."""
    modes = {m: m.training for m in module.modules()}
    module.eval()  # so that a batch norm keeps its statistics
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for m, training in modes.items():
            m.training = training


class _ShapeRecorder(fx.Interpreter):
    """Interpreter that records shapes of tensors."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run once, in evaluation."""
        with eval_mode_without_gradients(self.module):
            return super().run(*args, **kwargs)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and record the shape."""
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n] = tuple(result.shape)
        return result


def _operand_of_reshape_without_effect(node: fx.Node, shapes: dict[fx.Node, tuple[int, ...]]) -> fx.Node | None:
    if node not in shapes:
        return None
    source: Any = None
    if node.op == "call_method" and node.target in _REARRANGING:
        source = node.args[0]
    elif node.target is operator.getitem and getattr(node.args[0], "target", None) is torch.broadcast_tensors:
        source = node.args[0].args[node.args[1]]  # type: ignore[union-attr,index]
        if shapes.get(source, ())[:-1] and prod(shapes[source][:-1]) == 1:
            return None  # one row: it may be the one that others are broadcast against
    if not isinstance(source, fx.Node) or source not in shapes:
        return None
    return source if prod(shapes[node]) == prod(shapes[source]) else None


class _MatricesByRowCount:
    """Union-find of matrices with equal numbers of rows."""

    def __init__(self, shapes: dict[fx.Node, tuple[int, ...]], position_of_node: dict[fx.Node, int]) -> None:
        self.shapes = shapes
        self.order = position_of_node
        self.parent: dict[fx.Node, fx.Node] = {}

    def unite_equal_row_counts(self, operands: Sequence[Any]) -> None:
        """Unite matrices of equal row counts among operands."""
        shapes = {n: self.shapes.get(n, ()) for n in operands}
        matrices = [n for n, shape in shapes.items() if len(shape) == 2 and shape[0] > 1]
        roots = sorted({self.find_first_matrix(n) for n in matrices}, key=self.order.__getitem__)
        for root in roots[1:]:
            if self.shapes[root][0] == self.shapes[roots[0]][0]:
                self.parent[root] = roots[0]

    def find_first_matrix(self, node: Any) -> Any:
        """Earliest matrix with as many rows as ``node``."""
        while node in self.parent:
            node = self.parent[node]
        return node
