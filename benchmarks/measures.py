"""How goals are measured: one function for each kind of row, `Unit` in and `Findings` out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product as pairs
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.goals import Figure, Findings, Point, Unit
from benchmarks.graphs import GRAPH, Graph, check_convolutions, conv_operands, conv_product, gathered, require_right
from benchmarks.machine import copy_call, fma_rate
from benchmarks.problems import problem_named
from benchmarks.startup import SHOW_MEMORY, in_fresh_process
from tpgen.base.clock import Timing, time_in_turns, with_threads
from tpgen.base.text import duration, quantity, ratio
from tpgen.form.form import Layout
from tpgen.kernels.runtime.call import product_call_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.ops import kernel_product
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.problems import Problem
from tpgen.tools.bench.contenders import CONTENDERS, ignore_weights_unless_needed, select_contenders
from tpgen.tools.bench.records import Record, Report
from tpgen.tools.bench.run import measure_peak_bytes, run_benchmarks
from tpgen.tools.bench.tasks import (
    TASKS,
    Operands,
    Task,
    TimedProduct,
    compute_expected_results,
    convert_operands_to_layout,
    make_operands,
    select_operand_rows,
)

CPU = torch.device("cpu")
LAYOUTS = ("mul_ir", "ir_mul")
OURS = {"mul_ir": "tpgen-auto/eager", "ir_mul": "tpgen-auto-ir_mul/eager"}
RIVALS = ("e3nn/script", "e3nn/eager", "e3nn/inductor")
_GATE_ROWS = 256  # the slow definition is slow: kernels that are timed by themselves are checked on so many
_CONV_ROUNDS = 5  # a call of e3nn takes seconds

Results = Callable[[], Sequence[Tensor]]


def rivals(unit: Unit) -> tuple[str, ...]:
    """Who tpgen is compared with."""
    return RIVALS if unit.inductor else RIVALS[:-1]


# --- times faster than e3nn -------------------------------------------------------------------------------------------


def speed(unit: Unit, dtype: torch.dtype = torch.float32, against: Sequence[str] = ()) -> Findings:
    """A problem in both layouts against e3nn's best, or against those named; the parts of the goal are the tasks."""
    names = (*OURS.values(), *(against or rivals(unit)))
    report = run_benchmarks(
        [problem_named(unit.subject)], select_contenders(names), tuple(unit.goal.targets),
        dtype=dtype, seconds=unit.seconds, threads=None, progress=unit.show,
    )  # fmt: skip
    found = [
        (layout, record)
        for (layout, name), task in pairs(OURS.items(), unit.goal.targets)
        if (record := report.find(unit.subject, task, name))
    ]
    return Findings(tuple(_speed_figure(report, layout, record) for layout, record in found))


def _speed_figure(report: Report, layout: str, record: Record) -> Figure:
    what, ratio = f"{record.problem}, {layout}", report.speedup(record)
    if ratio is None:
        return Figure(record.task, what, None, record.reason or _doubt(report, record) or "no e3nn to compare with")
    theirs = [r for r in report.records_of(record.problem, record.task) if r.family == "e3nn" and r.median]
    best = min(theirs, key=lambda r: r.median or 0.0)
    times = f"{duration(record.median)}, {best.contender} {duration(best.median)}"
    return Figure(record.task, what, ratio, f"{times}; set up in {_setup(record)}, theirs {_setup(best)}")


def _doubt(report: Report, record: Record) -> str:
    """Why the time of a record or of an e3nn's is no ground for a ratio."""
    doubted = [
        r for r in report.records_of(record.problem, record.task) if r.doubt and (r is record or r.family == "e3nn")
    ]
    return f"{doubted[0].contender}: {doubted[0].doubt}; measure again when the machine is quiet" if doubted else ""


def _setup(record: Record) -> str:
    return duration((record.build or 0.0) + (record.first or 0.0))


# --- kernels by themselves --------------------------------------------------------------------------------------------


def kernel_calls(plan: Plan, layout: Layout, operands: Operands) -> dict[str, Results]:
    """The forward and the backward kernel alone: without autograd around them, into fresh results."""
    text = describe(plan, layout)
    x1, x2, w, g = (t.detach() for t in (operands.x1, operands.x2, operands.w, operands.out_cotangent))
    backward = product_call_text("x1", "x2", "w") if plan.weight_numel else product_call_text("x1", "x2")
    return {
        "forward": lambda: (kernel_product(x1, x2, w, text),),
        "backward": lambda: torch.ops.tpgen.form([x1, x2, w, g], [], text, backward),
    }


def checked_calls(
    problem: Problem, layout: Layout, make: Callable[[Plan, Layout, Operands], Mapping[str, Results]]
) -> Mapping[str, Results]:
    """Calls on all rows of a problem, once the first rows have agreed with the slow definition in float64."""
    plan, backward = problem.plan, TASKS["backward"]
    operands = make_operands(plan, problem.rows, torch.float32, CPU)
    few = select_operand_rows(operands, plan, 0, _GATE_ROWS)
    expected = dict(zip(backward.results, compute_expected_results(plan, backward, few), strict=False))
    for name, call in make(plan, layout, convert_operands_to_layout(plan, layout, few)).items():
        results = TASKS["forward"].results if name == "forward" else backward.results[1:]
        task = Task(name, name, results, backward.run)
        right = [expected[result] for result in results if result in expected]
        require_right(plan, task, f"{problem.name}, {layout}, {name}", call(), right, layout)
    return make(plan, layout, convert_operands_to_layout(plan, layout, operands))


def bytes_moved(plan: Plan, rows: int, direction: str) -> int:
    """Every input read once and every result written once."""
    shared = 4 * plan.weight_numel if plan.shared_weights else 0
    once = plan.row_bytes() * rows + shared
    return once if direction == "forward" else 2 * once - 4 * plan.irreps_out.dim * rows


def flops(plan: Plan, rows: int, direction: str) -> int:
    """What the non-zero couplings ask for; the backward kernel opens three slots of the form."""
    return plan.flops * rows * (1 if direction == "forward" else 3)


def moves(unit: Unit) -> Findings:
    """Both kernels in both layouts beside copies that move as many bytes."""
    problem = problem_named(unit.subject)
    points, figures = [], []
    for layout in LAYOUTS:
        calls = checked_calls(problem, layout, kernel_calls)
        sizes = {name: bytes_moved(problem.plan, problem.rows, name) for name in calls}
        copies = {f"copy {name}": copy_call(size) for name, size in sizes.items()}
        timings = time_in_turns({**calls, **copies}, CPU, unit.seconds)
        for name, size in sizes.items():
            ours, copy = timings[name].median, timings[f"copy {name}"].median
            work = flops(problem.plan, problem.rows, name)
            points.append(Point(problem.name, name, layout, ours, copy, size, work))
            note = f"{duration(ours)}, copy of {quantity(size, 'B')} {duration(copy)}"
            figures.append(Figure(name, f"{problem.name}, {layout}", ours / copy, note))
    wanted = tuple(figure for figure in figures if figure.part in unit.goal.targets)
    return Findings(wanted, tuple(points), fma_rate())


def roof(unit: Unit) -> Findings:
    """Both kernels against what the machine allows: the longer of moving their bytes and of their multiply-adds."""
    problem, rate = problem_named(unit.subject), fma_rate()
    calls = checked_calls(problem, "mul_ir", kernel_calls)
    sizes = {name: bytes_moved(problem.plan, problem.rows, name) for name in calls}
    timings = time_in_turns({**calls, **{f"copy {n}": copy_call(size) for n, size in sizes.items()}}, CPU, unit.seconds)
    figures = []
    for name, size in sizes.items():
        ours, copy = timings[name].median, timings[f"copy {name}"].median
        adds = flops(problem.plan, problem.rows, name) / rate
        note = (
            f"{duration(ours)}, {quantity(size / ours, 'B/s')}; a copy {duration(copy)}, multiply-adds {duration(adds)}"
        )
        figures.append(Figure(name, problem.name, ours / max(copy, adds), note))
    return Findings(tuple(figures))


def threads(unit: Unit) -> Findings:
    """Both kernels with two threads against one, and what a second thread does for a copy of as many bytes."""
    problem, cores = problem_named(unit.subject), os.cpu_count() or 1
    if cores < 2:
        return Findings(tuple(Figure(part, unit.subject, None, "one core") for part in unit.goal.targets))
    calls = dict(checked_calls(problem, "mul_ir", kernel_calls))
    copies = {f"copy {name}": copy_call(bytes_moved(problem.plan, problem.rows, name)) for name in calls}
    numbered = {
        (name, number): _with_threads(call, number) for name, call in {**calls, **copies}.items() for number in (1, 2)
    }
    with with_threads(2):  # so the clock is the wall's
        timings = time_in_turns({f"{name} {n}": call for (name, n), call in numbered.items()}, CPU, unit.seconds)
    gain = {name: timings[f"{name} 1"].median / timings[f"{name} 2"].median for name, _ in numbered}
    return Findings(
        tuple(
            Figure(
                name, problem.name, gain[name],
                f"{duration(timings[f'{name} 2'].median)}; a copy gains {ratio(gain[f'copy {name}'])}",
            )
            for name in calls
        )
    )  # fmt: skip


def layouts(unit: Unit) -> Findings:
    """Both kernels in ``mul_ir``, whose tiles are transposed in registers, against the same in ``ir_mul``."""
    problem = problem_named(unit.subject)
    calls = {
        f"{name} {layout}": call
        for layout in LAYOUTS
        for name, call in checked_calls(problem, layout, kernel_calls).items()
    }
    timings = time_in_turns(calls, CPU, unit.seconds)
    figures = []
    for name in unit.goal.targets:
        outside, inside = (timings[f"{name} {layout}"].median for layout in LAYOUTS)
        figures.append(Figure(name, problem.name, outside / inside, f"{duration(outside)}, {duration(inside)}"))
    return Findings(tuple(figures))


def against_einsum(unit: Unit) -> Findings:
    """What `auto` takes against the strategy that needs nothing; the parts are the tasks."""
    ours, plain = OURS["mul_ir"], "tpgen-einsum/eager"
    report = run_benchmarks(
        [problem_named(unit.subject)], select_contenders([ours, plain]), tuple(unit.goal.targets),
        seconds=unit.seconds, threads=None, progress=unit.show,
    )  # fmt: skip
    figures = []
    for task in unit.goal.targets:
        found = [report.find(unit.subject, task, name) for name in (ours, plain)]
        times = [record.median for record in found if record and record.median]
        ratio = times[1] / times[0] if len(times) == 2 else None
        figures.append(Figure(task, unit.subject, ratio, ", ".join(duration(time) for time in times)))
    return Findings(tuple(figures))


def _with_threads(call: Callable[[], object], number: int) -> Callable[[], object]:
    def run() -> object:
        torch.set_num_threads(number)  # costs nothing where it is the number already
        return call()

    return run


def matrix_product(unit: Unit) -> Findings:
    """The forward of a fully connected product against one matrix product with the same number of operations."""
    problem = problem_named(unit.subject)

    def calls_of(plan: Plan, layout: Layout, operands: Operands) -> dict[str, Results]:
        module = ignore_weights_unless_needed(
            plan, TensorProduct.from_plan(plan, internal_weights=False, layout=layout)
        )
        return {"forward": lambda: TASKS["forward"].run(module, operands)}

    # outer products of copies against weights: (rows × components, u v) times (u v, w), path by path
    path = problem.plan.paths[0]
    inner, columns = path.in1.mul * path.in2.mul, path.out.mul
    assert all((p.in1.mul * p.in2.mul, p.out.mul) == (inner, columns) for p in problem.plan.paths)
    a, b = torch.randn(problem.rows * problem.plan.irreps_out.dim // columns, inner), torch.randn(inner, columns)
    figures = []
    for layout in LAYOUTS:
        calls = {**checked_calls(problem, layout, calls_of), "matrix": lambda: torch.mm(a, b)}
        t = time_in_turns(calls, CPU, unit.seconds)
        ratio = t["forward"].median / t["matrix"].median
        shapes = f"{len(a)}×{inner} by {inner}×{columns}"
        note = f"{duration(t['forward'].median)}, {shapes} {duration(t['matrix'].median)}"
        figures.append(Figure("forward", f"{problem.name}, {layout}", ratio, note))
    return Findings(tuple(figures))


# --- convolutions -----------------------------------------------------------------------------------------------------


def convolution(unit: Unit) -> Findings:
    """`TensorProductConv` against e3nn's product between a gather and `index_add`; the parts are the tasks."""
    plan, figures = problem_named(unit.subject).plan, []
    for name in unit.goal.targets:
        unit.show.begin_activity(f"{unit.subject}, {name}: build and check")
        task, makers = TASKS[name], _conv_makers(plan, rivals(unit))
        check_convolutions(plan, task, makers)
        operands = conv_operands(plan, GRAPH, torch.float32)
        calls = {who: partial(task.run, make(GRAPH), operands) for who, make in makers.items()}
        expected = calls["e3nn/eager"]()
        for who, call in calls.items():
            require_right(plan, task, who, call(), expected)
        del expected
        unit.show.begin_activity(f"{unit.subject}, {name}: time {len(calls)} in turn")
        figures.append(_conv_figure(unit, name, time_in_turns(calls, CPU, unit.seconds, _CONV_ROUNDS)))
    return Findings(tuple(figures))


def _conv_makers(plan: Plan, names: Sequence[str]) -> dict[str, Callable[[Graph], TimedProduct]]:
    products = {name: CONTENDERS[name].build(plan, torch.float32, CPU) for name in names}
    makers = {name: lambda graph, product=product: gathered(product, graph) for name, product in products.items()}
    return {"tpgen": lambda graph: conv_product(plan, graph), **makers}


def _conv_figure(unit: Unit, task: str, timings: Mapping[str, Timing]) -> Figure:
    best = min((name for name in timings if name != "tpgen"), key=lambda name: timings[name].median)
    mine, theirs = timings["tpgen"].median, timings[best].median
    return Figure(task, unit.subject, theirs / mine, f"{duration(mine)}, {best} {duration(theirs)}")


def convolution_memory(unit: Unit) -> Findings:
    """Extra memory, results not counted, in units of what the nodes' output takes; also with twice the edges."""
    plan, edges = problem_named(unit.subject).plan, (GRAPH.edges, 2 * GRAPH.edges)
    found = in_fresh_process("memory", unit.subject, *map(str, edges), environment=SHOW_MEMORY)
    nodes = 4 * GRAPH.nodes * plan.irreps_out.dim
    operands = conv_operands(plan, GRAPH, torch.float32)
    product = gathered(CONTENDERS["e3nn/eager"].build(plan, torch.float32, CPU), GRAPH)
    figures = []
    for task in unit.goal.targets:
        once, twice = found[task]
        call = partial(TASKS[task].run, product, operands)
        theirs = measure_peak_bytes(call, CPU) - sum(result.nbytes for result in call())
        note = f"{quantity(once, 'B')}, {quantity(twice, 'B')} with twice the edges; e3nn/eager {quantity(theirs, 'B')}"
        figures.append(Figure(task, unit.subject, once / nodes, f"{note}; the nodes' output is {quantity(nodes, 'B')}"))
    return Findings(tuple(figures))


# --- set-up -----------------------------------------------------------------------------------------------------------


def cold_build(unit: Unit) -> Findings:
    """Building both kernels with an empty cache, in a fresh process."""
    with TemporaryDirectory(prefix="tpgen-") as empty:
        found = in_fresh_process("build", unit.subject, environment={"TPGEN_CACHE_DIR": empty})
    return Findings((Figure("build", unit.subject, found[unit.subject], "forward and backward, side by side"),))


def cold_directions(unit: Unit) -> Findings:
    """Building one kernel with an empty cache, in a fresh process; the parts are the directions."""
    figures = []
    for part in unit.goal.targets:
        with TemporaryDirectory(prefix="tpgen-") as empty:
            found = in_fresh_process("build-one", unit.subject, part, environment={"TPGEN_CACHE_DIR": empty})
        figures.append(Figure(part, unit.subject, found[part], f"{len(problem_named(unit.subject).plan.paths)} paths"))
    return Findings(tuple(figures))


def warm_start(unit: Unit, products: Sequence[str]) -> Findings:
    """A second process with the cache that a first one filled: plan, construct and first call, less a plain call."""
    with TemporaryDirectory(prefix="tpgen-") as shared:
        first, second = (
            in_fresh_process("start", *products, environment={"TPGEN_CACHE_DIR": shared}) for _ in range(2)
        )
    return Findings(
        tuple(
            Figure(
                "start", name, second[name],
                f"{duration(first[name])} with an empty cache{'' if n else '; the first of its process'}",
            )
            for n, name in enumerate(products)
        )
    )  # fmt: skip
