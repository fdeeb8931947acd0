"""The tour of `tpgen demo`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from e3nn import o3
from rich.console import Console
from rich.progress import track

from tpgen._version import __version__
from tpgen.base._e3nn import default_dtype
from tpgen.base.clock import ROUGH, Timing, with_threads
from tpgen.base.errors import TpgenError
from tpgen.base.text import duration, ratio, table
from tpgen.kernels.build.compiler import find_compiler
from tpgen.nn.products import FullyConnectedTensorProduct
from tpgen.planner.problems import POLYNOMIALS, Problem, find_problem
from tpgen.tools.bench.contenders import select_contenders
from tpgen.tools.bench.run import run_benchmarks, select_problems
from tpgen.tools.bench.tables import ReportTables, markdown_report, plot_report
from tpgen.tools.demo.potential import (
    STOCK,
    atoms,
    convert_potential,
    deploy_and_run_from_cpp,
    time_potential,
    verify_potential,
)
from tpgen.tools.demo.tetris import Tetris, TrainingRun, train
from tpgen.tools.inspection.explorer.page import write_explorer
from tpgen.tools.inspection.figures import new_figure, save_figure
from tpgen.tools.inspection.stages.dump import STAGES, dump_files
from tpgen.tools.verification.findings import count_statuses_as_text
from tpgen.tools.verification.verify import Verification, verify

# Asked of every product and polynomial here; what takes a while is asked of the converted network at the end.
_LAWS = ("definition", "linear", "equivariant", "permutation", "first order", "second order")
LOSS_TOLERANCE = 1e-9  # relative, in float64: both networks add the same numbers in another order


@dataclass(frozen=True)
class Tour:
    """Contents and sizes of the demonstration."""

    problems: tuple[str, ...]
    compiled: tuple[str, ...]  # problems whose Inductor output is shown as well
    steps: int
    layers: int
    must_solve: bool
    contenders: tuple[str, ...]
    tasks: tuple[str, ...]
    seconds: float  # for each task of each problem
    potential: tuple[int, int, int]  # atoms along an edge of the lattice, channels, degree
    laws: tuple[str, ...] | None = None  # that the potential is verified by; None: all
    deploys: bool = True
    parts: tuple[str, ...] | None = None  # titles of `STEPS`; None: all


WHOLE = Tour(
    problems=("article", "mace-medium"),
    compiled=("article",),
    steps=80,
    layers=2,
    must_solve=True,
    contenders=("e3nn/script", "e3nn/eager", "tpgen-auto/eager", "tpgen-auto/script"),
    tasks=("forward", "backward"),
    seconds=4.0,
    potential=(4, 64, 3),
)
MAIN = ("Convert a whole network by one line", "Read the code of one product")
QUICK = replace(WHOLE, parts=MAIN)
SHORT = replace(
    WHOLE,
    problems=("article",),
    compiled=(),
    steps=3,
    layers=1,
    must_solve=False,
    contenders=("e3nn/eager", "tpgen-auto/eager"),
    tasks=("forward",),
    seconds=0.1,
    potential=(2, 4, 2),
    laws=("equivariant", "forces"),
    deploys=False,
)


@dataclass(frozen=True)
class _TourChapter:
    text: str
    wrong: tuple[str, ...] = ()


def run_tour(folder: Path, tour: Tour, console: Console) -> None:
    """Run all steps and write ``index.md``; raise `TpgenError` if a check failed."""
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    sections = []
    steps = {title: step for title, step in STEPS.items() if tour.parts is None or title in tour.parts}
    with with_threads(1):  # timed in processor time, to which other programs add nothing
        for number, (title, step) in enumerate(steps.items(), start=1):
            console.print(f"[bold]{number}/{len(steps)}  {title}[/]")
            sections.append(step(folder, tour, console))
    took = time.perf_counter() - start
    head = f"# tpgen {__version__}: the tour\n\nWritten by `tpgen demo` in {took:.0f} seconds.\n"
    parts = [f"## {title}\n\n{section.text}" for title, section in zip(steps, sections, strict=True)]
    if len(steps) < len(STEPS):
        others = ", ".join(title for title in STEPS if title not in steps)
        parts.append(f"`tpgen demo --all` shows the rest: {others}.\n")
    index = folder / "index.md"
    index.write_text("\n".join([head, *parts]), encoding="utf-8")
    console.print(f"[bold]Done in {took:.0f} s.[/]  Everything is described in [bold]{index}[/]")
    if len(steps) < len(STEPS):
        console.print(
            "`tpgen demo --all` shows the rest, in some minutes: training, laws, deploying to C++, benchmarks"
        )
    wrong = [what for section in sections for what in section.wrong]
    if wrong:
        raise TpgenError("the tour found what should not be: " + "; ".join(wrong))


def _inspect_and_verify_products(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    problems = [*map(find_problem, tour.problems)]
    return _inspect_and_verify_problems(problems, "grouped", (*_LAWS, "e3nn", "right"), folder, tour, console)


def _inspect_and_verify_polynomials(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    contraction = replace(POLYNOMIALS["small-contraction"], about="MACE's symmetric contraction, small")
    problems = [contraction, POLYNOMIALS["turned"]]
    return _inspect_and_verify_problems(problems, "einsum", (*_LAWS, "degree"), folder, tour, console)


def _inspect_and_verify_problems(
    problems: Sequence[Problem], strategy: str, laws: Sequence[str], folder: Path, tour: Tour, console: Console
) -> _TourChapter:
    texts, wrong = [], []
    for problem in problems:
        name, sizes = problem.name, {size: getattr(problem, size) for size in problem.plan.maker.sizes}
        files = _write_stage_files(
            problem, {**sizes, "strategy": strategy}, folder / name, name in tour.compiled, console
        )
        with console.status(f"   {name}: write the explorer"):
            page = folder / name / "explorer.html"
            # measured where there is time to compile
            write_explorer(problem.plan, page, rows=problem.rows, measure=bool(tour.compiled), **sizes)
        console.print(f"   {name}: every stage on one page, [bold]{page}[/]")
        with console.status(f"   {name}: verify"):
            report = verify(problem.plan, only=laws)
        wrong += _write_verification_and_list_failures(report, name, folder / name, console)
        texts.append(_write_product_markdown(problem, files, str(report)))
    return _TourChapter("\n".join(texts), tuple(wrong))


def _write_verification_and_list_failures(
    report: Verification, title: str, folder: Path, console: Console
) -> list[str]:
    (folder / "verify.txt").write_text(f"{report}\n", encoding="utf-8")
    (folder / "verify.json").write_text(report.to_json() + "\n", encoding="utf-8")
    console.print(f"   {title}: verified ({count_statuses_as_text(report.findings)})")
    return [] if report.passed else [f"{title}: {report.verdict}"]


# slow, or of those products alone that GPUs have kernels for
_SLOW_OR_PARTIAL_STAGES = ("inductor", "cuda", "ptx", "sass")


def _write_stage_files(
    problem: Problem, options: dict[str, Any], folder: Path, with_inductor: bool, console: Console
) -> list[str]:
    plan = problem.plan
    console.print(f"   {problem.name}: {len(plan.paths)} paths, {plan.weight_numel} weights, {plan.flops} FLOPs a row")
    folder.mkdir(parents=True, exist_ok=True)
    with console.status(f"   {problem.name}: write every stage"):
        stages = [stage for stage in STAGES if stage not in _SLOW_OR_PARTIAL_STAGES]
        files = dump_files(plan, stages, ["all"], **options)
    if with_inductor:  # in seconds, so for the forward product alone
        with console.status(f"   {problem.name}: compile with Inductor"):
            files |= dump_files(plan, ["inductor"], strategy="unrolled")
    files["plan.json"] = plan.to_json()
    for name, text in files.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")
    console.print(f"   {problem.name}: {len(files)} files of generated text in {folder}")
    return list(files)


def _write_product_markdown(problem: Problem, files: list[str], report: str) -> str:
    rows = []
    for name, stage in STAGES.items():
        links = ", ".join(
            f"[{file.split('.')[1] if stage.by_direction else name}]({problem.name}/{file})"
            for file in files
            if file.startswith(f"{name}.") and not file.endswith(".json")
        )
        rows += [f"| {name} | {stage.about} | {links} |"] if links else []
    table = "\n".join(["| stage | what it shows | files |", "| --- | --- | --- |", *rows])
    page = f"[Explore it]({problem.name}/explorer.html): every stage on one page, in a browser.\n"
    title = f"### {problem.name}: {problem.about}\n\n{page}"
    return f"{title}\n```\n{problem.plan}\n```\n\n{table}\n\n```\n{report}\n```\n"


def _write_product_explorer(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    problem = find_problem(tour.problems[-1])
    page = folder / "explorer.html"
    with console.status(f"   {problem.name}: write the explorer"):
        write_explorer(problem.plan, page, rows=problem.rows)
    console.print(f"   {problem.about}: every stage of its code on one page, [bold]{page}[/]")
    text = f"[Explore {problem.name}](explorer.html): choose a path or a line, and all that belongs to it lights up.\n"
    return _TourChapter(f"{text}\n```\n{problem.plan}\n```\n")


def train_tetris(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    """Train a network with products of e3nn and of tpgen, and compare losses."""
    classes = {"e3nn": o3.FullyConnectedTensorProduct, "tpgen": FullyConnectedTensorProduct}
    with default_dtype(torch.float64):
        models = {}
        for name, product in classes.items():
            torch.manual_seed(0)
            models[name] = Tetris(product, tour.layers)
        models["tpgen"].load_state_dict(models["e3nn"].state_dict())  # e3nn's checkpoints load
        runs = {name: _train_with_progress(model, tour.steps, name, console) for name, model in models.items()}
    ours, theirs = runs["tpgen"], runs["e3nn"]
    apart = max(abs(a - b) / abs(b) for a, b in zip(ours.losses, theirs.losses, strict=True))
    same = "yes" if ours.accuracies == theirs.accuracies else "no"
    console.print(f"   the losses differ by {apart:.0e} at most, relative; accuracies are equal: {same}")
    (folder / "tetris.json").write_text(json.dumps({name: run.losses for name, run in runs.items()}) + "\n")
    _plot_losses(runs, folder / "tetris.png")
    wrong = [f"the losses of tpgen and e3nn differ by {apart:.0e}"] if not apart < LOSS_TOLERANCE else []
    if tour.must_solve:
        wrong += [
            f"{name} did not learn tetris in {tour.steps} steps" for name, r in runs.items() if r.solved_step is None
        ]
    return _TourChapter(_write_training_markdown(runs, apart), tuple(wrong))


def _train_with_progress(model: Tetris, steps: int, name: str, console: Console) -> TrainingRun:
    hidden = not console.is_terminal
    bar = iter(track(range(steps), f"   train with {name}", console=console, transient=True, disable=hidden))
    run = train(model, steps, watch=lambda step: next(bar))
    for _ in bar:  # let the bar close itself
        pass
    solved = "not solved yet" if run.solved_step is None else f"100 % from step {run.solved_step} on"
    console.print(f"   {name}: loss {run.losses[-1]:.3g}, {solved}, {1e3 * run.step_seconds:.0f} ms a step")
    return run


def _write_training_markdown(runs: dict[str, TrainingRun], loss_error: float) -> str:
    ours, theirs = runs["tpgen"], runs["e3nn"]
    shown = sorted({*range(0, len(ours.losses), 10), len(ours.losses) - 1})
    rows = [
        f"| {step} | {theirs.losses[step]:.12g} | {ours.losses[step]:.12g} "
        f"| {100 * theirs.accuracies[step]:.0f} % | {100 * ours.accuracies[step]:.0f} % |"
        for step in shown
    ]
    seconds = [
        f"| {what} | {1e3 * e3nn:.0f} ms | {1e3 * tpgen:.0f} ms | | |"
        for what, e3nn, tpgen in (
            ("first step, with what is compiled in it", theirs.seconds[0], ours.seconds[0]),
            ("a step, median", theirs.step_seconds, ours.step_seconds),
        )
    ]
    head = ["| step | e3nn, loss | tpgen, loss | e3nn, accuracy | tpgen, accuracy |", "| --- " * 5 + "|"]
    return "\n".join(
        [
            "Eight shapes of four points, turned at random at every step; accuracy is that on shapes turned anew. The",
            "network is written once, as a function of the product's class: `tpgen/tools/demo/tetris.py`. Both start",
            f"from the same weights, in float64; the largest relative difference of the losses is {loss_error:.1e}.\n",
            "![losses](tetris.png)\n",
            *head,
            *rows,
            *seconds,
            "",
        ]
    )


def _plot_losses(runs: dict[str, TrainingRun], path: Path) -> None:
    figure = new_figure(7.0, 3.6)
    loss, accuracy = figure.subplots(1, 2)
    for (name, run), style in zip(runs.items(), ({"lw": 4, "alpha": 0.4}, {"lw": 1.2}), strict=True):
        loss.semilogy(run.losses, label=name, **style)
        accuracy.plot([100 * a for a in run.accuracies], label=name, **style)
    loss.set(xlabel="step", ylabel="loss")
    accuracy.set(xlabel="step", ylabel="shapes recognised, %")
    loss.legend(frameon=False)
    save_figure(figure, path)


def convert_network(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    """Convert and check a potential of e3nn's modules; time both."""
    _, channels, degree = tour.potential
    with console.status("   a potential of e3nn's modules: convert, compile kernels, prove"):
        stock, network, found = convert_potential(channels, degree)
    (folder / "conversion.txt").write_text(f"{found}\n", encoding="utf-8")
    (folder / "conversion.json").write_text(found.to_json() + "\n", encoding="utf-8")
    for part in (found, found.proof):
        _print_plain(console, str(part).splitlines()[0])
    parts = [
        "`tpgen.convert(network)` on `tpgen/tools/demo/potential.py`, of e3nn alone. [As JSON](conversion.json).\n",
        f"```\n{found}\n```\n",
    ]
    for side in dict.fromkeys((2, tour.potential[0])):
        with console.status(f"   energies and forces of {side**3} atoms: compile the program, measure"):
            times = time_potential(stock, network, side)
        edges = atoms(side)[2].shape[1]
        head = f"forces of {side**3} atoms, {edges} edges, {channels} channels to l = {degree}, one thread"
        rows = [(name, duration(t.median), _speedup_over_e3nn_text(times, name)) for name, t in times.items()]
        shown = table([(head, "a call", "times as fast"), *rows])
        for line in shown.splitlines():
            _print_plain(console, line)
        parts.append(f"```\n{shown}\n```\n")
    return _TourChapter("\n".join(parts))


def _print_plain(console: Console, line: str) -> None:
    console.print(f"   {line}", markup=False, highlight=False)


def _speedup_over_e3nn_text(times: Mapping[str, Timing], name: str) -> str:
    pairs = zip(times[STOCK].samples, times[name].samples, strict=True)
    said, spread = ratio(median(one / other for one, other in pairs)), max(times[n].spread for n in (STOCK, name))
    return said if spread <= ROUGH else f"{said}, times lie {100 * spread:.0f} % apart"


def _benchmark_products(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    report = run_benchmarks(
        select_problems(tour.problems),
        select_contenders(tour.contenders),
        tour.tasks,
        seconds=tour.seconds,
        progress=console.is_terminal,
    )
    console.print(ReportTables(report))
    report.save_json(folder / "benchmark.json")
    plot_report(report, folder / "benchmark.png")
    wrong = [f"{r.contender} is {r.status} at {r.problem}" for r in report.records if r.status in ("wrong", "failed")]
    text = "A short run, for orientation; `tpgen bench` measures longer, and more.\n\n"
    return _TourChapter(text + markdown_report(report, "benchmark.png"), tuple(wrong))


def _verify_converted_potential(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    with console.status("   a converted potential: verify"):
        report = verify_potential(4, tour.laws)
    wrong = _write_verification_and_list_failures(report, "a converted potential", folder, console)
    text = "`tpgen.verify(network, inputs)` on the converted potential. [As JSON](verify.json).\n"
    return _TourChapter(f"{text}\n```\n{report}\n```\n", tuple(wrong))


SAME = 1e-12  # relative, in float64


def _deploy_network(folder: Path, tour: Tour, console: Console) -> _TourChapter:
    if not tour.deploys or find_compiler() is None:
        why = "there is no C++ compiler here" if tour.deploys else "the short tour leaves this out"
        console.print(f"   nothing is deployed: {why}")
        return _TourChapter(f"Nothing was deployed: {why}.\n")
    where = folder / "deployed"
    with console.status("   a potential: write the package, compile example.cpp, run it"):
        energy, apart, command = deploy_and_run_from_cpp(where)
    console.print(f"   a potential deployed into [bold]{where}[/], and called from C++, without Python:")
    console.print(f"   energy {energy:.12f}, forces as Python's to {apart:.0e} of the largest")
    wrong = [f"C++ and Python differ by {apart:.0e}"] if not apart < SAME else []
    return _TourChapter(_DEPLOYED.format(command=" ".join(command), energy=energy, apart=apart), (*wrong,))


_DEPLOYED = """`tpgen.deploy(network, inputs, folder)` wrote the network, its forces and its kernels into
[deployed](deployed/README.md). [example.cpp](deployed/example.cpp) is the whole program that calls it; it was built by

    {command}

and ran without Python: energy {energy:.12f}, energy and forces equal to Python's to {apart:.0e} of the largest.
"""

STEPS: dict[str, Callable[[Path, Tour, Console], _TourChapter]] = {
    "Convert a whole network by one line": convert_network,
    "Read the code of one product": _write_product_explorer,
    "Plan, dump and verify": _inspect_and_verify_products,
    "Multiply features with themselves: polynomials": _inspect_and_verify_polynomials,
    "Train the tetris classifier, beside e3nn's": train_tetris,
    "Measure": _benchmark_products,
    "Verify": _verify_converted_potential,
    "Deploy, and call it from C++": _deploy_network,
}
