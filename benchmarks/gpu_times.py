"""How fast are the kernels of this machine's GPU: the measurements of `make gpu`, as shares of a copy's bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_clock import copies_beyond_cache, device_seconds, seconds_of
from tpgen.base.clock import now
from tpgen.base.text import duration, table
from tpgen.form.sampling import random_operands
from tpgen.kernels.runtime.ops import describe, kernel_conv, kernel_product
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import OUT, SHARED, Plan
from tpgen.planner.problems import PROBLEMS

EDGES_PER_NODE = 20
BACKWARD = ("x1", "x2", "w")
Row = dict[str, Any]

product_of_rows: Callable[..., Tensor] = kernel_product
product_of_edges: Callable[..., Tensor] = kernel_conv


def convolution(
    plan: Plan, edges: int, device: str, dtype: torch.dtype = torch.float32, layout: str = "mul_ir"
) -> tuple[list[Tensor], dict[str, Any]]:
    """Operands and edges of a convolution."""
    nodes = max(1, edges // EDGES_PER_NODE)
    given = random_operands(plan, max(edges, nodes), device=device, dtype=dtype)
    src, dst = torch.randint(nodes, (2, edges), device=device)
    graph = {"edge_src": src, "edge_dst": dst, "num_nodes": nodes, "description": describe(plan, layout)}
    return [given["x1"][:nodes].clone(), given["x2"], given["w"]], graph


def measured(case: Case, task: str, device: str, seconds: float, machine: Row) -> Row:
    """One task of a named problem: its first call, and seconds of a call from Python and on the device."""
    start = now(device)
    call = TASKS[task](case)
    call()
    first = now(device) - start
    row: Row = {"problem": case.name, "rows": case.rows, "layout": case.layout, "task": task, "first call": first}
    row["eager"] = seconds_of(call, device, seconds)
    calls = [call, *(TASKS[task](other) for other in case.others)]
    row["seconds"], row["held"] = device_seconds(calls, device, row["eager"])
    return row | reached(case.plan, task, case.rows, row["seconds"], machine)


@dataclass(frozen=True)
class Case:
    """A named problem of so many rows; operands are made when a task first asks for them."""

    name: str
    rows: int
    layout: str
    device: str

    @property
    def plan(self) -> Plan:
        return PROBLEMS[self.name].plan

    def __str__(self) -> str:
        return f"{self.name}, {self.rows} rows, {self.layout}"

    @cached_property
    def given(self) -> dict[str, Tensor]:
        return random_operands(self.plan, self.rows, (*BACKWARD, "out"), device=self.device, dtype=torch.float32)

    @cached_property
    def inputs(self) -> list[Tensor]:
        return [self.given[n].requires_grad_() for n in BACKWARD]

    @cached_property
    def others(self) -> list[Case]:
        """The same with operands elsewhere in memory: taken in turn, none is in the cache."""
        size = sum(x.numel() * x.element_size() for x in self.given.values())
        return [self._again() for _ in range(copies_beyond_cache(size, self.device) - 1)]

    def _again(self) -> Case:
        other, (nodal, graph) = replace(self), self.nodal
        given = {name: x.detach().clone() for name, x in self.given.items()}
        vars(other).update(given=given, nodal=([x.detach().clone().requires_grad_() for x in nodal], graph))
        return other

    def on_rows(self) -> Tensor:
        return product_of_rows(*self.inputs, description=describe(self.plan, self.layout))

    @cached_property
    def nodal(self) -> tuple[list[Tensor], dict[str, Any]]:
        given, graph = convolution(self.plan, self.rows, self.device, layout=self.layout)
        return [x.requires_grad_() for x in given], graph

    def on_edges(self) -> Tensor:
        given, graph = self.nodal
        return product_of_edges(*given, **graph)

    def by_graph(self) -> Callable[[], Tensor]:
        options: dict[str, Any] = {"strategy": "grouped", "layout": self.layout, "internal_weights": False}
        return partial(TensorProduct.from_plan(self.plan, **options).to(self.device), *self.inputs)


def gradients(product: Tensor, inputs: list[Tensor]) -> Callable[[], object]:
    """The backward pass alone of a product that is computed once."""
    g = torch.randn_like(product)
    return lambda: torch.autograd.grad(product, inputs, g, retain_graph=True)


def second_gradients(run: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    """The gradients alone of gradients that are computed once."""
    product = run()
    first = torch.autograd.grad(product, inputs, torch.randn_like(product).requires_grad_(), create_graph=True)
    cotangents = [torch.randn_like(x) for x in first]
    return lambda: torch.autograd.grad(first, inputs, cotangents, retain_graph=True, allow_unused=True)


# Product and convolution, forward, with all gradients, those of these, and as a step of force training; as a graph.
TASKS: dict[str, Callable[[Case], Callable[[], object]]] = {
    "forward": lambda case: without_gradients(case.on_rows),
    "backward": lambda case: gradients(case.on_rows(), case.inputs),
    "second": lambda case: second_gradients(case.on_rows, case.inputs),
    "force step": lambda case: lambda: force_step(case.on_rows, case.inputs),
    "conv forward": lambda case: without_gradients(case.on_edges),
    "conv backward": lambda case: gradients(case.on_edges(), case.nodal[0]),
    "conv second": lambda case: second_gradients(case.on_edges, case.nodal[0]),
    "conv force step": lambda case: lambda: force_step(case.on_edges, case.nodal[0]),
    "graph forward": lambda case: without_gradients(case.by_graph()),
}


def without_gradients(call: Callable[[], Tensor], *_: object) -> Callable[[], object]:
    def run() -> Tensor:
        with torch.no_grad():
            return call()

    return run


def force_step(call: Callable[[], Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Forces are a gradient with respect to x2, and training takes gradients of them."""
    (force,) = torch.autograd.grad(call().square().sum(), inputs[1], create_graph=True)
    return torch.autograd.grad(force.square().sum(), inputs)


def reached(plan: Plan, task: str, rows: int, seconds: float, machine: Row) -> Row:
    """The share of a copy's bandwidth that a task reaches; nothing of tasks that take several kernels."""
    if task.startswith("graph") or task.endswith(("step", "second")) or "copy bytes per second" not in machine:
        return {}
    return {"share of copy": least_bytes(plan, task, rows) / machine["copy bytes per second"] / seconds}


def least_bytes(plan: Plan, task: str, rows: int) -> int:
    """Bytes that a task must move in float32: each row of an edge once, each row of a node once for all its edges.

    >>> plan = PROBLEMS["mace-large"].plan
    >>> least_bytes(plan, "forward", 40) == 40 * plan.flat.row_bytes(4)
    True
    >>> least_bytes(plan, "conv forward", 40) < least_bytes(plan, "forward", 40) < least_bytes(plan, "backward", 40)
    True
    """
    indexed = task.startswith("conv")
    counts = dict.fromkeys(("x1", OUT), max(1, rows // EDGES_PER_NODE)) if indexed else {}
    sizes = {o.name: o.dim * (1 if o.rows == SHARED else counts.get(o.name, rows)) for o in plan.flat.operands}
    gradients = () if task.endswith("forward") else BACKWARD
    numbers = sum(sizes.values()) + sum(sizes[name] for name in gradients)
    return 4 * numbers + indexed * 2 * rows * torch.int64.itemsize


def times_table(rows: list[Row]) -> str:
    """Times, and the shares of a copy's bandwidth."""
    heads = ("problem", "rows", "layout", "task", "on the device", "from Python", "share of copy")
    cells: list[tuple[Any, ...]] = [heads]
    for row in rows:
        share = f"{100 * row['share of copy']:.0f} %" if "share of copy" in row else ""
        times = duration(row["seconds"]) if row["held"] else "not measured", duration(row["eager"])
        cells.append((*(row[key] for key in ("problem", "rows", "layout", "task")), *times, share))
    return table(cells, left=(0, 2, 3))
