"""Check and measure the kernels of this machine's GPU, in less than eight minutes: `make gpu`.

It needs nothing but tpgen and torch with CUDA.  Send the JSON that it writes: everything else is in there.  With
`--device cpu` it does what can be done without a GPU, which tests the script.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
import torch
from torch import Tensor

from tpgen.errors import TpgenError
from tpgen.form.linear import form_of
from tpgen.form.sampling import random_operands
from tpgen.inspection.clock import now
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.driver import capability
from tpgen.kernels.cuda.model import predict
from tpgen.kernels.cuda.nvrtc import find_nvrtc
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.operators.ops import describe, kernel_conv, kernel_product, kernel_supported
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.placement.values import ChannelSchedule
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan, make_plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS
from tpgen.text import duration, table

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
EDGES_PER_NODE = 20
BACKWARD = ("x1", "x2", "w")
MODES = {"uvu": (40, 2, 40), "uvv": (3, 40, 40), "uuu": (40, 40, 40), "uvuv": (40, 2, 80)}

product_of_rows: Callable[..., Tensor] = kernel_product
product_of_edges: Callable[..., Tensor] = kernel_conv


@dataclass
class Report:
    """What was found, as it is written down."""

    device: str
    machine: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)

    def check(self, what: str, passed: bool, note: str = "") -> None:
        self.checks.append({"what": what, "passed": passed, "note": note})
        click.echo(f"{'ok  ' if passed else 'FAIL'} {what}{': ' if note else ''}{note}")

    @property
    def passed(self) -> bool:
        return all(check["passed"] for check in self.checks)


@click.command(help=__doc__)
@click.option("--device", default="cuda", show_default=True)
@click.option("--rows", multiple=True, type=int, default=(2000, 40000), show_default=True, help="Rows to measure at.")
@click.option("--seconds", default=0.3, show_default=True, help="Measuring time of one task.")
@click.option("--json", "json_to", type=click.Path(path_type=Path), default=Path("out/gpu.json"), show_default=True)
@click.option("--only", "names", multiple=True, help="Measure this problem only; may be repeated.")
def main(device: str, rows: tuple[int, ...], seconds: float, json_to: Path, names: tuple[str, ...]) -> None:
    report = Report(device)
    if device == "cuda" and (reason := kernel_supported(channelwise("32x0e", "0e", "0e"), device=device)):
        raise click.ClickException(f"no kernel can run here: {reason}")
    report.machine = machine(device)
    click.echo(json.dumps(report.machine, indent=1))
    for step in (check_values, check_edges, check_repetitions, check_streams, check_graphs):
        step(report)
    try:
        measure(report, names or tuple(n for n, p in PROBLEMS.items() if p.suite == "channelwise"), rows, seconds)
    except TpgenError as error:
        report.check("measurements", False, str(error))
    click.echo(times_table(report))
    json_to.parent.mkdir(parents=True, exist_ok=True)
    json_to.write_text(json.dumps(asdict(report), indent=1) + "\n")
    click.echo(f"written to {json_to}")
    if not report.passed:
        raise click.ClickException("some check failed")


def machine(device: str) -> dict[str, Any]:
    """What the figures are of, the bandwidth of a copy among it."""
    nvrtc = find_nvrtc()
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvrtc": nvrtc and ".".join(map(str, nvrtc.version)),
        "host": platform.processor() or platform.machine(),
        "copy bytes per second": copy_bandwidth(device),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {"gpu": properties.name, "capability": capability(torch.cuda.current_device())}
    return found


def copy_bandwidth(device: str) -> float:
    """Bytes read and written in a second by a large copy."""
    source = torch.zeros(2**28 if device == "cuda" else 2**22, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source), device, 0.5)


def seconds_of(call: Callable[[], object], device: str, seconds: float) -> float:
    """The median over five batches of calls, which fill the given time; a batch is waited for as a whole."""
    call()
    start = now(device)
    call()
    once = max(now(device) - start, 1e-6)
    count = max(1, int(seconds / 5 / once))
    times = []
    for _ in range(5):
        start = now(device)
        for _ in range(count):
            call()
        times.append((now(device) - start) / count)
    return median(times)


# -- is it right -------------------------------------------------------------------------------------------------------


def plans() -> Iterator[tuple[str, Plan]]:
    """Every mode that keeps channels, weighted or not, with weights of each row or shared."""
    for mode, (a, b, c) in MODES.items():
        for weighted, shared in ((True, True), (True, False), (False, True)):
            paths = [(0, 0, 0, mode, weighted), (1, 0, 1, mode, weighted), (1, 1, 2, mode, weighted)]
            irreps = (f"{a}x0e+{a}x1o", f"{b}x1o+{b}x2e", f"{c}x1o+{c}x1e+{c}x3o")
            kind = ("shared" if shared else "rows") if weighted else "no weights"
            yield f"{mode}, {kind}", make_plan(*irreps, paths, shared_weights=shared)


def check_values(report: Report) -> None:
    """Forward, gradients and second-order gradients against float64 on the CPU."""
    for name, plan in plans():
        for layout in ("mul_ir", "ir_mul"):
            for dtype, tolerance in TOLERANCE.items():
                error = max(relative(*pair) for pair in compared(plan, layout, dtype, report.device))
                what = f"{name}, {layout}, {str(dtype).removeprefix('torch.')}"
                report.check(what, error < tolerance, f"{error:.1e} of {tolerance:.0e}")


def compared(plan: Plan, layout: str, dtype: torch.dtype, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of a kernel and of the slow definition, of the same numbers."""
    options: dict[str, Any] = {"layout": layout}
    given = [x.to(dtype) for x in random_operands(plan, 37, ("x1", "x2", "w", "out")).values()]
    here = derivatives(TensorProduct.from_plan(plan, strategy="kernel", **options), given, device, dtype)
    there = derivatives(TensorProduct.from_plan(plan, strategy="einsum", **options), given, "cpu", torch.float64)
    return zip(here, there[: len(here)], strict=True)  # bfloat16 has no second order


def derivatives(product: TensorProduct, given: list[Tensor], device: str, dtype: torch.dtype) -> list[Tensor]:
    """The product, its gradients, and those of a sum of their squares; not these in bfloat16, which rounds too much."""
    product = product.to(device=device, dtype=dtype)
    x1, x2, w, g = (x.to(device=device, dtype=dtype) for x in given)
    inputs = [x.requires_grad_() for x in (x1, x2, w) if x.numel()]
    out = product(x1, x2, w) if w.numel() else product(x1, x2)
    first = torch.autograd.grad(out, inputs, g, create_graph=True)
    squares = torch.stack([x.square().sum() for x in first]).sum()
    second = torch.autograd.grad(squares, inputs, allow_unused=True)
    return [out, *first, *(x for x in second if x is not None and dtype != torch.bfloat16)]


def relative(found: Tensor, wanted: Tensor) -> float:
    want = wanted.detach().double()
    return float((found.detach().cpu().double() - want).abs().max() / want.abs().max().clamp_min(1e-300))


def convolution(
    plan: Plan, edges: int, device: str, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], dict[str, Any]]:
    """Operands and edges of a convolution."""
    nodes = max(1, edges // EDGES_PER_NODE)
    given = random_operands(plan, edges, device=device, dtype=dtype)
    src, dst = torch.randint(nodes, (2, edges), device=device)
    graph = {"edge_src": src, "edge_dst": dst, "num_nodes": nodes, "description": describe(plan)}
    return [given["x1"][:nodes].clone(), given["x2"], given["w"]], graph


def check_edges(report: Report) -> None:
    """A convolution and its gradients against float64 on the CPU, and an index out of range."""
    plan = channelwise("40x0e+40x1o", "0e+1o+2e", "0e+1o+2e", shared_weights=False)
    for dtype in (torch.float64, torch.float32):
        given, graph = convolution(plan, 400, report.device, dtype)
        far = graph | {name: graph[name].cpu() for name in ("edge_src", "edge_dst")}
        here = convolved(given, graph)
        error = max(map(relative, here, convolved([x.to("cpu", torch.float64) for x in given], far)))
        report.check(f"convolution, {str(dtype).removeprefix('torch.')}", error < TOLERANCE[dtype], f"{error:.1e}")
    given, graph = convolution(plan, 40, report.device)
    try:
        product_of_edges(*given, **graph | {"edge_dst": graph["edge_dst"] + graph["num_nodes"]})
        report.check("an index out of range is refused", False)
    except TpgenError as error:
        report.check("an index out of range is refused", "out of range" in str(error))


def convolved(given: list[Tensor], graph: dict[str, Any]) -> list[Tensor]:
    """A convolution and its gradients."""
    inputs = [x.detach().requires_grad_() for x in given]
    out = product_of_edges(*inputs, **graph)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


def check_repetitions(report: Report, times: int = 100) -> None:
    """The same bits every time, where threads may race."""
    plan = channelwise("96x0e+48x1o+16x2e", "0e+1o+2e", "0e+1o+2e", shared_weights=True)
    given, graph = convolution(plan, 2000, report.device)
    first = convolved(given, graph)
    same = all(torch.equal(a, b) for _ in range(times) for a, b in zip(first, convolved(given, graph), strict=True))
    report.check(f"{times} repetitions give the same bits", same)


def check_streams(report: Report) -> None:
    """Two streams at once give what one after the other gives."""
    if report.device != "cuda":
        return report.check("two streams", True, "needs a GPU: left out")
    given, text = big_product()
    one = product_of_rows(*given, description=text)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for stream in streams:
        with torch.cuda.stream(stream):
            found.append(product_of_rows(*given, description=text))
    torch.cuda.synchronize()
    return report.check("two streams", all(torch.equal(one, x) for x in found))


def check_graphs(report: Report) -> None:
    """A CUDA graph records a product, and replays it with other numbers; what a call costs then."""
    if report.device != "cuda":
        return report.check("CUDA graphs", True, "needs a GPU: left out")
    given, text = big_product()
    product_of_rows(*given, description=text)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = product_of_rows(*given, description=text)
    given[0].mul_(2)
    graph.replay()
    small, text = big_product(rows=1)
    product_of_rows(*small, description=text)
    many = torch.cuda.CUDAGraph()
    with torch.cuda.graph(many):
        for _ in range(100):
            product_of_rows(*small, description=text)
    once = seconds_of(many.replay, "cuda", 0.3) / 100
    right = torch.equal(out, product_of_rows(*given, description=text))
    return report.check("CUDA graphs", right, f"{1e6 * once:.1f} us for a product of one row")


def big_product(rows: int = 4000) -> tuple[list[Tensor], str]:
    plan = PROBLEMS["mace-medium"].plan
    return [*random_operands(plan, rows, device="cuda", dtype=torch.float32).values()], describe(plan)


# -- how fast is it ----------------------------------------------------------------------------------------------------


def measure(report: Report, names: tuple[str, ...], rows: tuple[int, ...], seconds: float) -> None:
    """Kernels, the same as graphs, and cuEquivariance's where it is installed, on the named problems."""
    for name in names:
        plan = PROBLEMS[name].plan
        for count in rows:
            for layout in ("mul_ir", "ir_mul"):
                for task, call in tasks(plan, count, layout, report.device).items():
                    start = time.perf_counter()
                    call()
                    built = time.perf_counter() - start
                    row: dict[str, Any] = {
                        "problem": name,
                        "rows": count,
                        "layout": layout,
                        "task": task,
                        "first call": built,
                    }
                    row["seconds"] = seconds_of(call, report.device, seconds)
                    report.times.append(row | expected(report, plan, layout, task, count, row["seconds"]))


def tasks(plan: Plan, rows: int, layout: str, device: str) -> dict[str, Callable[[], object]]:
    """Product and convolution, forward and with all gradients, and the product as a graph."""
    given = random_operands(plan, rows, ("x1", "x2", "w", "out"), device=device, dtype=torch.float32)
    inputs = [given[n].requires_grad_() for n in BACKWARD]
    text, g = describe(plan, layout), given["out"]
    grouped = TensorProduct.from_plan(plan, strategy="grouped", layout=layout).to(device)
    nodal, graph = convolution(plan, rows, device)
    nodal, graph = [x.requires_grad_() for x in nodal], graph | {"description": text}
    g_nodes = torch.randn(graph["num_nodes"], plan.irreps_out.dim, device=device)
    kernel, edges = product_of_rows(*inputs, description=text), product_of_edges(*nodal, **graph)

    def forward(call: Callable[..., Tensor], operands: list[Tensor], **options: Any) -> Callable[[], object]:
        def run() -> Tensor:
            with torch.no_grad():
                return call(*operands, **options)

        return run

    return {
        "forward": forward(product_of_rows, inputs, description=text),
        "backward": lambda: torch.autograd.grad(kernel, inputs, g, retain_graph=True),
        "conv forward": forward(product_of_edges, nodal, **graph),
        "conv backward": lambda: torch.autograd.grad(edges, nodal, g_nodes, retain_graph=True),
        "graph forward": forward(grouped, inputs),
    }


def expected(report: Report, plan: Plan, layout: str, task: str, rows: int, seconds: float) -> dict[str, float]:
    """The share of a copy's bandwidth that was reached, and the one that the model predicts."""
    if task.startswith("graph"):
        return {}
    chip = chip_of(report.machine.get("capability", 90))
    schedule = plan_schedule(form_of(plan, layout), cuda_target("float32"))
    assert isinstance(schedule, ChannelSchedule)
    opened = ("out",) if task.endswith("forward") else BACKWARD
    found = predict(place_cuda(schedule, opened, chip, task.startswith("conv")), EDGES_PER_NODE)
    copied = found.bytes * rows / report.machine["copy bytes per second"]
    return {"share of copy": copied / seconds, "predicted": found.share}


def times_table(report: Report) -> str:
    """Times, and the shares of a copy's bandwidth."""
    rows: list[tuple[Any, ...]] = [("problem", "rows", "layout", "task", "time", "share of copy", "predicted")]
    for row in report.times:
        shares = [f"{100 * row[key]:.0f} %" if key in row else "" for key in ("share of copy", "predicted")]
        rows.append((*(row[key] for key in ("problem", "rows", "layout", "task")), duration(row["seconds"]), *shares))
    return table(rows, left=(0, 2, 3))


if __name__ == "__main__":
    main()
