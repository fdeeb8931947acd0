"""Benchmarks: build, check and time contenders."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from tpgen.base._e3nn import default_dtype
from tpgen.base.clock import TimedCall, now, time_calls, time_in_turns, with_threads
from tpgen.base.errors import BackendError, EmitError, check_known
from tpgen.base.locks import without_garbage_collection
from tpgen.base.progress import Progress, progress_bar
from tpgen.kernels.runtime.memory import disable_memory_reuse
from tpgen.planner.problems import PROBLEMS, SUITES, Problem, find_problem
from tpgen.tools.bench.contenders import Contender
from tpgen.tools.bench.records import Record, Report, Settings, read_environment
from tpgen.tools.bench.tasks import (
    Operands,
    Task,
    TimedProduct,
    compute_expected_results,
    convert_operands_to_layout,
    error_bound,
    find_largest_error,
    make_operands,
    select_tasks,
)

_WARM_CALLS = 2  # after the first: TorchScript rewrites its graph once more at the second


def select_problems(names: Iterable[str] = (), suites: Iterable[str] = ()) -> tuple[Problem, ...]:
    """Select problems by name or suite; default: all.

    >>> [problem.name for problem in select_problems(["mace-large"], ["small"])]
    ['article', 'mace-large', 'tetris-1']
    """
    names, suites = tuple(names), tuple(suites)
    check_known("suite", suites, SUITES)
    wanted = {find_problem(name).name for name in names}
    wanted |= {p.name for p in PROBLEMS.values() if p.suite in suites or not (names or suites)}
    return tuple(problem for name, problem in PROBLEMS.items() if name in wanted)


def run_benchmarks(
    problems: Sequence[Problem],
    contenders: Sequence[Contender],
    tasks: Sequence[str] = (),
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seconds: float = 2.0,
    repeats: int | None = None,
    rows: int | None = None,
    threads: int | None = 1,
    progress: bool | Progress = False,
) -> Report:
    """Check and time contenders at ``tasks`` (empty: all) of problems.

    Contenders share ``seconds`` per task and problem, without compilation; ``repeats`` sets rounds instead.  ``rows``
    replaces the batch.  One thread is timed in processor time, more ``threads`` (None: torch's number) in wall time.

    >>> from tpgen.tools.bench.contenders import select_contenders
    >>> report = run_benchmarks(select_problems(["article"]), select_contenders(["loop/eager"]), ["forward"], seconds=0)
    >>> [(record.contender, record.status) for record in report.records]
    [('loop/eager', 'ok')]
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendError("this machine has no CUDA device; leave device out, or give 'cpu'")
    error_bound(dtype)
    chosen = select_tasks(tasks)
    settings = Settings(str(dtype).removeprefix("torch."), device.type, seconds)
    records: list[Record] = []
    shown = progress_bar(len(problems) * len(chosen)) if progress is True else nullcontext(progress or Progress())
    # products are built in the dtype they run in; contenders' warnings are not ours to show
    with default_dtype(dtype), with_threads(threads), warnings.catch_warnings(), shown as show:
        warnings.simplefilter("ignore")
        for problem in problems:
            benchmark = _ProblemBenchmark(problem, rows or problem.rows, dtype, device, seconds, repeats, show)
            records += benchmark.measure_contenders(contenders, chosen)
            # e3nn's products share one code object, of which Dynamo keeps eight compilations at most
            if "torch._dynamo" in sys.modules:  # importing it takes a second, and nothing was compiled without
                torch.compiler.reset()
        return Report(read_environment(), settings, tuple(records))


@dataclass(frozen=True)
class _BuiltContender:
    contender: Contender
    product: TimedProduct
    operands: Operands
    build: float

    def call(self, task: Task) -> Callable[[], tuple[Tensor, ...]]:
        """Call to time."""
        return lambda: task.run(self.product, self.operands)


@dataclass(frozen=True)
class _UnbuiltContender:
    contender: Contender
    status: str
    reason: str


@dataclass(frozen=True)
class _ProblemBenchmark:
    problem: Problem
    rows: int
    dtype: torch.dtype
    device: torch.device
    seconds: float
    repeats: int | None
    show: Progress

    def measure_contenders(self, contenders: Sequence[Contender], tasks: Sequence[Task]) -> list[Record]:
        operands = make_operands(self.problem.plan, self.rows, self.dtype, self.device)
        entries = [self._build_contender(contender, operands, tasks) for contender in contenders]
        return [record for task in tasks for record in self._measure_task(task, operands, entries)]

    def _build_contender(
        self, contender: Contender, operands: Operands, tasks: Sequence[Task]
    ) -> _BuiltContender | _UnbuiltContender:
        plan, device = self.problem.plan, self.device
        self.show.begin_activity(f"{self.problem.name}: build {contender.name}")
        obstacles = [contender.why_task_cannot_run(task.name, device) for task in tasks]
        if all(obstacles):  # do not build what takes part in nothing
            return _UnbuiltContender(contender, "unavailable", obstacles[0] or "")
        start = now(device)
        try:
            product = contender.build(plan, self.dtype, device)
            build = now(device) - start
        except Exception as error:
            return _UnbuiltContender(contender, *_status_and_reason_of_error(error))
        return _BuiltContender(contender, product, convert_operands_to_layout(plan, contender.layout, operands), build)

    def _measure_task(
        self, task: Task, operands: Operands, entries: Sequence[_BuiltContender | _UnbuiltContender]
    ) -> list[Record]:
        where = f"{self.problem.name}, {task.name}"
        self.show.begin_activity(f"{where}: compute the right results")
        expected = compute_expected_results(self.problem.plan, task, operands)
        records, ready = {}, {}
        for entry in entries:
            name = entry.contender.name
            self.show.begin_activity(f"{where}: first calls of {name}")
            records[name] = self._check_contender_results(task, entry, expected)
            if records[name].status == "ok" and isinstance(entry, _BuiltContender):
                ready[name] = entry.call(task)
        self.show.begin_activity(f"{where}: time {len(ready)} in turn")
        timings = time_in_turns(ready, self.device, self.seconds, self.repeats, tick=self.show.report_share_of_step)
        for name, t in timings.items():
            record = replace(records[name], samples=len(t.samples), calls=t.calls, doubt=t.doubt)
            records[name] = replace(record, median=t.median, min=min(t.samples), spread=t.spread)
        self.show.finish_step()
        return list(records.values())

    def _check_contender_results(
        self, task: Task, entry: _BuiltContender | _UnbuiltContender, expected_results: Sequence[Tensor]
    ) -> Record:
        contender = entry.contender
        layout = contender.layout if isinstance(contender.layout, str) else ",".join(contender.layout)
        record = Record(self.problem.name, task.name, contender.name, "ok", self.rows, layout)
        if isinstance(entry, _UnbuiltContender):
            return replace(record, status=entry.status, reason=entry.reason)
        record = replace(record, build=entry.build)
        obstacle = contender.why_task_cannot_run(task.name, self.device)
        if obstacle:
            return replace(record, status="unavailable", reason=obstacle)
        try:
            return self._record_first_call_time_and_error(record, task, entry, expected_results)
        except Exception as error:
            status, reason = _status_and_reason_of_error(error)
            return replace(record, status=status, reason=reason)

    def _record_first_call_time_and_error(
        self, record: Record, task: Task, entry: _BuiltContender, expected_results: Sequence[Tensor]
    ) -> Record:
        device, call = self.device, entry.call(task)
        first = time_calls(call, device)
        for _ in range(_WARM_CALLS):
            results = call()
        error, where = find_largest_error(self.problem.plan, task, entry.contender.layout, results, expected_results)
        record = replace(record, first=first, error=error)
        if not error <= error_bound(self.dtype):
            reason = f"{where} is off by {error:.1e}, allowed is {error_bound(self.dtype):.0e}"
            return replace(record, status="wrong", reason=reason)
        del results
        return replace(record, peak_bytes=measure_peak_bytes(call, device))


def _status_and_reason_of_error(error: Exception) -> tuple[str, str]:
    # these two errors say that something is not available here
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, BackendError | EmitError):
        return "unavailable", lines[0]
    return "failed", f"{type(error).__name__}: {lines[0]}"[:200]


def measure_peak_bytes(call: TimedCall, device: torch.device) -> int:
    """A call's peak memory by torch's allocators, above memory held before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = call()
        torch.cuda.synchronize(device)
        del kept
        return torch.cuda.max_memory_allocated(device) - before
    return max(accumulate(_profile_allocated_and_freed_bytes(call), initial=0))


def _profile_allocated_and_freed_bytes(call: TimedCall) -> list[int]:
    with (
        without_garbage_collection(),
        _silence_stderr(),
        disable_memory_reuse(),
        torch.autograd.profiler.profile(profile_memory=True, use_kineto=True) as profiled,
    ):
        kept = call()
    del kept
    events = profiled.kineto_results.events()
    memory = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]" and e.device_type().name == "CPU"]
    return [nbytes for _, nbytes in sorted(memory, key=lambda event: event[0])]


@contextmanager
def _silence_stderr() -> Iterator[None]:
    # the profiler's native library writes lines past Python's streams
    saved = os.dup(2)
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silent, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(silent)
