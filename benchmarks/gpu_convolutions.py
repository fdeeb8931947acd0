"""Convolutions of known and of fresh edges, and those of other libraries beside them: a step of `make gpu`.

Dynamics makes its edges anew every some steps, and pays for what is made of them: ours sorts them, and asks whether
they are in range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_clock import device_seconds, seconds_of
from benchmarks.gpu_times import BACKWARD, convolution, gradients, product_of_edges, without_gradients
from tpgen.base.clock import now
from tpgen.base.errors import BackendError
from tpgen.base.text import duration, table
from tpgen.form.form import Layout
from tpgen.form.reference import reference_product
from tpgen.kernels.runtime.ops import describe
from tpgen.planner.plan import Plan
from tpgen.planner.problems import PROBLEMS
from tpgen.tools.bench.contenders import build_openequivariance_problem
from tpgen.tools.bench.tasks import convert_tensor_to_layout, error_bound

Row = dict[str, Any]
Convolution = Callable[..., Tensor]  # of x1, x2, w, both ends of the edges, and the number of nodes
Builder = Callable[[Plan, Layout, str], Convolution]  # of a plan, for a layout and a device
_CHECKED = 200  # edges


@dataclass(frozen=True)
class Graph:
    """Operands of a convolution in a layout, and its edges."""

    plan: Plan
    edges: int
    layout: Layout
    device: str

    @cached_property
    def numbers(self) -> dict[str, Tensor]:
        """Random operands, the same for every layout: they are in ``mul_ir``."""
        torch.manual_seed(0)
        return dict(zip(BACKWARD, convolution(self.plan, self.edges, self.device)[0], strict=True))

    @cached_property
    def operands(self) -> list[Tensor]:
        return [self._laid_out(name, x).requires_grad_() for name, x in self.numbers.items()]

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1)
        src, dst = torch.randint(self.nodes, (2, self.edges), generator=generator).to(self.device)
        return src, dst

    @property
    def nodes(self) -> int:
        return self.numbers["x1"].shape[0]

    def run(self, conv: Convolution, fresh: bool = False) -> Tensor:
        ends = [x.clone() for x in self.ends] if fresh else self.ends
        return conv(*self.operands, *ends, self.nodes)

    def forces(self, conv: Convolution, fresh: bool) -> tuple[Tensor, ...]:
        """Forward and backward, as a step of dynamics."""
        return torch.autograd.grad(self.run(conv, fresh).sum(), self.operands)

    def definition(self) -> Tensor:
        """The convolution by the slow definition, in float64."""
        x1, x2, w = (x.double().cpu() for x in self.numbers.values())
        src, dst = (x.cpu() for x in self.ends)
        rows = reference_product(self.plan, x1[src], x2, w)
        return self._laid_out("out", rows.new_zeros(self.nodes, rows.shape[1]).index_add(0, dst, rows))

    def _laid_out(self, name: str, x: Tensor) -> Tensor:
        return convert_tensor_to_layout(self.plan, self.layout, name, x)


# -- libraries ---------------------------------------------------------------------------------------------------------


def ours(plan: Plan, layout: Layout, device: str) -> Convolution:
    text = describe(plan, layout)
    return lambda x, y, w, src, dst, nodes: product_of_edges(x, y, w, src, dst, nodes, text)


def openequivariance(plan: Plan, layout: Layout, device: str) -> Convolution:
    """OpenEquivariance's fused convolution, which adds by atomics."""
    problem = build_openequivariance_problem(plan, torch.float32)
    import openequivariance as oeq

    conv = oeq.TensorProductConv(problem, torch_op=True, deterministic=False).to(device)
    return lambda x, y, w, src, dst, nodes: conv(x, y, w, dst, src)


def cuequivariance(plan: Plan, layout: Layout, device: str) -> Convolution:
    """cuEquivariance's fused convolution, as MACE calls it."""
    try:
        import cuequivariance as cue
        import cuequivariance_torch as cuet
    except ImportError as error:
        raise BackendError("not installed: pip install cuequivariance-torch (and its kernels for CUDA)") from error
    irreps = (cue.Irreps("O3", str(i)) for i in (plan.irreps_in1, plan.irreps_in2, plan.irreps_out))
    found = cue.descriptors.channelwise_tensor_product(*irreps).flatten_coefficient_modes().squeeze_modes()
    conv = cuet.SegmentedPolynomial(found.polynomial, math_dtype=torch.float32, method="uniform_1d").to(device)
    return lambda x, y, w, src, dst, nodes: conv([w, x, y], {1: src}, {0: x}, {0: dst})[0]


CONVOLUTIONS: dict[str, tuple[Layout, Builder]] = {
    "tpgen": ("mul_ir", ours),
    "tpgen-ir_mul": ("ir_mul", ours),
    "openequivariance": ("mul_ir", openequivariance),
    "cuequivariance": ("ir_mul", cuequivariance),
}


# -- measurements ------------------------------------------------------------------------------------------------------


def convolution_rows(name: str, edges: int, device: str, seconds: float) -> Iterator[Row]:
    """A row for each library, of a named problem; one that is missing or wrong says why."""
    for library, (layout, build) in CONVOLUTIONS.items():
        row: Row = {"problem": name, "edges": edges, "library": library}
        try:
            yield row | _timed(PROBLEMS[name].plan, layout, build, edges, device, seconds)
        except Exception as error:
            yield row | {"reason": f"{type(error).__name__}: {error}"[:200]}


def _timed(plan: Plan, layout: Layout, build: Builder, edges: int, device: str, seconds: float) -> Row:
    start = now(device)
    conv = build(plan, layout, device)
    error = _error(Graph(plan, min(edges, _CHECKED), layout, device), conv)
    row: Row = {"first call": now(device) - start, "error": error}
    if not error <= error_bound(torch.float32):
        return row | {"reason": f"off by {error:.1e}"}
    graph = Graph(plan, edges, layout, device)
    calls: dict[str, Callable[[], object]] = {
        "forward": without_gradients(partial(graph.run, conv)),
        "backward": gradients(graph.run(conv), graph.operands),
        "step, known edges": partial(graph.forces, conv, False),
        "step, fresh edges": partial(graph.forces, conv, True),
    }
    eager = {task: seconds_of(call, device, seconds) for task, call in calls.items()}
    return row | {task: (*device_seconds([call], device, eager[task]), eager[task]) for task, call in calls.items()}


def _error(graph: Graph, conv: Convolution) -> float:
    wanted = graph.definition()
    return float((graph.run(conv).detach().double().cpu() - wanted).norm() / wanted.norm())


TASKS = ("forward", "backward", "step, known edges", "step, fresh edges")


def convolution_table(rows: list[Row]) -> str:
    """Times on the device, or where that could not be timed alone from Python, with a star."""

    def cell(row: Row, task: str) -> str:
        if task not in row:
            return row.get("reason", "")[:40] if task == TASKS[0] else ""
        found, held, _ = row[task]
        return duration(found) + ("" if held else " *")

    heads = ("problem", "edges", "library", *TASKS)
    body = [(row["problem"], row["edges"], row["library"], *(cell(row, task) for task in TASKS)) for row in rows]
    return table([heads, *body], left=(0, 2))
