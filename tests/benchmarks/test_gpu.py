"""The script for a machine with a GPU: all of it runs on a CPU, with stand-ins for streams and CUDA graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks import (
    gpu,
    gpu_checks,
    gpu_clock,
    gpu_compile,
    gpu_convolutions,
    gpu_device_checks,
    gpu_polynomials,
    gpu_rivals,
    gpu_times,
    gpu_tools,
)
from tests.machine import needs_compiler
from tpgen.kernels.cuda.nvrtc import find_nvrtc
from tpgen.planner.presets import channelwise, fully_connected

SMALL = channelwise("4x0e+4x1o", "0e+1o", "0e+1o", shared_weights=False)


class FakeGraph:
    """A CUDA graph that runs its call again, into the tensors that the recording returned."""

    replayed: Callable[[], object]

    def replay(self) -> None:
        self.replayed()


class FakeStream:
    def wait_stream(self, other: object) -> None:
        pass


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda, as far as the checks use it, on a CPU."""

    @contextmanager
    def use(stream: object) -> Iterator[None]:
        yield

    def recorded(call: Callable[[], list[torch.Tensor]], f: Any = gpu_clock.recorded) -> Any:
        found, _ = f(call)
        return found, lambda: [x.copy_(y) for x, y in zip(found, call(), strict=True)]

    fakes = {
        "Stream": FakeStream, "current_stream": FakeStream, "stream": use, "synchronize": lambda *_: None,
        "CUDAGraph": FakeGraph, "graph": use, "current_device": lambda: 0,
        "get_device_properties": lambda _: SimpleNamespace(name="a GPU", total_memory=1, L2_cache_size=1000),
        "_sleep": lambda cycles: None, "device_count": lambda: 1,
    }  # fmt: skip
    FakeGraph.replayed = lambda self: None
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for module in (gpu_clock, gpu_device_checks):
        monkeypatch.setattr(module, "recorded", recorded)
    for module in (gpu, gpu_device_checks):
        monkeypatch.setattr(
            module, "product_of", lambda name, rows, device, f=gpu_device_checks.product_of: f(name, 3, device)
        )
    monkeypatch.setattr(gpu, "build_all", lambda kernels, arch, seconds: len(kernels))
    monkeypatch.setattr(gpu, "capability", lambda device: 90)
    monkeypatch.setattr(gpu.Report, "on_gpu", True)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    mixing = fully_connected("2x0e+1o", "0e+1o", "3x0e+1o")
    monkeypatch.setattr(gpu_checks, "plans", lambda: [("keeping", SMALL), ("mixing", mixing)])
    monkeypatch.setattr(gpu_checks, "REPETITIONS", 2)
    monkeypatch.setattr(gpu_checks, "POLYNOMIALS", {"harmonics": gpu_checks.POLYNOMIALS["harmonics"]})
    monkeypatch.setattr(gpu_polynomials, "POLYNOMIALS", gpu_checks.POLYNOMIALS)
    monkeypatch.setattr(gpu_tools, "small_problems", None)
    monkeypatch.setattr(gpu_rivals, "RIVALS", ("loop/eager", "openequivariance/*"))


def run(tmp_path: Path, *options: str) -> tuple[Any, dict[str, Any]]:
    file = tmp_path / "gpu.json"
    fixed = ["--device", "cpu", "--rows", "40", "--seconds", "0.001", "--calls", "2", "--only", "nequip-aspirin"]
    done = CliRunner().invoke(gpu.main, [*fixed, *options, "--json", str(file)], catch_exceptions=False)
    return done, json.loads(file.read_text())


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(gpu.main, ["--json", str(tmp_path / "gpu.json")])
    assert done.exit_code == 1
    assert "no kernel can run here: torch sees no CUDA device" in done.output


@needs_compiler
def test_all_of_it_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_cuda: None) -> None:
    small(monkeypatch)
    monkeypatch.setattr(gpu.article, "COLUMNS", gpu.article.COLUMNS[:1])
    monkeypatch.setattr(gpu.article, "ROWS", {"eager module, a loop": ("loop", "eager")})
    _, found = run(tmp_path)
    assert not found["faults"], found["faults"][0]
    tasks = {"forward", "backward", "second", "force step"}
    tasks |= {f"conv {task}" for task in tasks}
    assert {row["task"] for row in found["times"]} >= tasks
    failed = [check["what"] for check in found["checks"] if not check["passed"]]
    assert not failed
    assert {*found["launch"]} == {"call", "empty kernel", "eager"}
    assert [goal["reached"] for goal in found["goals"]][:2] == [None, None]  # of fewer rows, and not on a device
    other_edges = "CUDA graphs: a convolution with gradients, of other edges"
    assert {"harmonics, float64", "two streams at once", other_edges} <= {check["what"] for check in found["checks"]}
    assert [row["task"] for row in found["polynomials"]] == ["forward", "backward", "second"]
    assert all({*row} >= {*gpu_convolutions.TASKS} for row in found["convolutions"][:2])
    assert [row["library"] for row in found["convolutions"] if "reason" in row] == [
        "openequivariance",
        "cuequivariance",
    ]
    assert {row["network"] for row in found["networks"]} == {"mace", "nequip"}
    assert {*found["tools"]} == {*gpu_tools.TOOLS}
    assert {row["contender"] for row in found["rivals"]} == {"loop/eager", "openequivariance/eager"}
    assert {file.name for file in tmp_path.iterdir()} >= {"gpu-rivals.png"}
    assert found["machine"]["gpu"] == "a GPU"
    assert {row["kernel"] for row in found["compiled"]} == ({*gpu_compile.TASKS} if find_nvrtc() else set())
    assert all(row["seconds"] > 0 and not row["spills"] for row in found["compiled"])


def test_what_hangs_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel that waits for ever: nothing but the watch ends the process, and the file says what was begun."""
    left, file = list[int](), tmp_path / "gpu.json"
    monkeypatch.setattr(gpu.os, "_exit", left.append)
    report = gpu.Report("cuda", file=file)
    report.check("a product", True)
    gpu.guarded(report, "convolutions", lambda: gpu.hangs(report))
    assert left == [1]
    found = json.loads(file.read_text())
    assert [(check["what"], check["passed"]) for check in found["checks"]] == [
        ("a product", True),
        ("convolutions ends", False),
    ]
    assert found["doing"] == "convolutions"
    assert list(tmp_path.iterdir()) == [file]


def test_the_watch_is_over_when_all_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_cuda: None) -> None:
    started = list[Any]()
    monkeypatch.setattr(gpu, "Timer", lambda seconds, run: started.append(Timer(seconds, run)) or started[-1])
    monkeypatch.setattr(gpu, "STEPS", {"all": (1, lambda *_: None)})
    done, _ = run(tmp_path, "--minutes", "2")
    (watch,) = started
    assert watch.interval == 60 * 2 + gpu._GRACE
    assert watch.daemon
    assert watch.finished.is_set()
    assert done.output.count("send that file") == 2  # at the beginning too


def test_what_fails_is_written_down_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a typo")

    seen = list[str]()
    monkeypatch.setattr(gpu, "STEPS", {"first": (1, broken), "second": (1, lambda *_: seen.append("second"))})
    done, found = run(tmp_path)
    assert done.exit_code == 1
    assert seen == ["second"]
    assert "FAIL first: ValueError: a typo" in done.output
    assert "raise ValueError" in found["faults"][0]


def test_one_case_that_fails_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(plan: Any, layout: str, dtype: torch.dtype, device: str) -> Any:
        if plan is SMALL:
            raise RuntimeError("out of registers")
        return [(torch.ones(1), torch.ones(1))]

    monkeypatch.setattr(gpu_checks, "plans", lambda: [("bad", SMALL), ("good", None)])
    monkeypatch.setattr(gpu_checks, "compared", compared)
    found = list(gpu_checks.values("meta"))
    assert [passed for _, passed, _ in found] == 3 * [False] + 3 * [True]
    assert found[0][2] == "RuntimeError: out of registers"


def test_a_gpu_that_answers_no_more_ends_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered\nmore")

    monkeypatch.setattr(gpu, "CHECKS", {"one": lambda device: [("a", True, "")], "two": None})
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    report = gpu.Report("cuda")
    gpu.checks(report, gpu.Run((), (), 0, 0, Path()), gpu_clock.Clock(60))
    assert report.left_out == [
        "what comes after: this process has lost the GPU: an illegal memory access was encountered"
    ]
    assert [check["what"] for check in report.checks] == ["a"]


def test_a_lost_gpu_ends_the_run_and_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STEPS", {"first": (1, lambda *_: None), "second": (1, None)})
    monkeypatch.setattr(gpu, "dead", lambda: "an illegal memory access")
    monkeypatch.setattr(gpu.Report, "on_gpu", True)
    done, found = run(tmp_path)
    assert found["left_out"] == ["what comes after: this process has lost the GPU: an illegal memory access"]
    assert "second" not in done.output


def test_one_task_that_fails_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(case: gpu_times.Case, task: str, *_: Any) -> dict[str, Any]:
        if task == "backward":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"task": task}

    monkeypatch.setattr(gpu, "measured", measured)
    report, wanted = gpu.Report("cpu"), gpu.Run((), (), 0, 0, Path())
    gpu._measure_case(report, wanted, gpu_clock.Clock(60), gpu_times.Case("article", 2, "mul_ir", "cpu"))
    assert [row["task"] for row in report.times] == [task for task in gpu_times.TASKS if task != "backward"]
    (failed,) = report.checks
    assert (failed["what"], failed["passed"]) == ("backward of article, 2 rows, mul_ir", False)
    assert failed["note"] == "OutOfMemoryError: CUDA out of memory"


def test_the_summary_says_what_failed_what_is_missing_and_how_near_the_goals_are() -> None:
    report = gpu.Report("cpu")
    report.check("a", True)
    report.check("b", False)
    report.leave_out("c", "time is up")
    lines = gpu.summary(report).splitlines()
    assert lines[:3] == ["-- 1 of 2 checks passed", "   failed: b", "-- left out: 1, from c: time is up"]
    assert len(lines) == 3 + len(report.goals)
    assert all("not measured" in line for line in lines[3:])


@needs_compiler
@pytest.mark.parametrize("broken", [None, lambda *_, **__: torch.zeros(1)])
def test_an_index_out_of_range_must_be_refused_with_its_value(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given, graph = gpu_times.convolution(SMALL, 40, "cpu")
    if broken:
        monkeypatch.setattr(gpu_checks, "product_of_edges", broken)
    _, passed, note = gpu_checks.refused(given, graph)
    assert (passed, "got 2 to 2" in note) == (not broken, not broken)


@needs_compiler
def test_polynomials_are_compared_with_what_needs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = gpu_checks.POLYNOMIALS["turned"]
    monkeypatch.setattr(gpu_checks, "POLYNOMIALS", {"turned": problem})
    assert all(passed for _, passed, _ in gpu_checks.polynomials("cpu"))
    kernel = gpu_checks.polynomial_of_rows
    monkeypatch.setattr(gpu_checks, "polynomial_of_rows", lambda *given: 1.001 * kernel(*given))
    assert [passed for _, passed, _ in gpu_checks.polynomials("cpu")] == [False, False, True, True]


def test_checks_end_with_the_time() -> None:
    report = gpu.Report("cpu")
    gpu.checks(report, gpu.Run((), (), 0, 0, Path()), gpu_clock.Clock(0))
    assert report.left_out == [f"{name}: time is up" for name in gpu.CHECKS]
    assert not report.checks


def test_without_matplotlib_pictures_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    report = gpu.Report("cpu")
    gpu.picture(report, "gpu-rivals.png", pytest.fail)
    assert report.left_out == ["gpu-rivals.png: needs matplotlib (pip install matplotlib)"]
    assert report.passed


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "STEPS", {"how fast is it": (0.5, gpu.times)})
    done, found = run(tmp_path, "--minutes", "0")
    assert found["left_out"] == ["how fast is it: time is up"]
    assert done.exit_code == 0


def test_every_mode_is_checked() -> None:
    names = {path.mode.name for _, plan in gpu_checks.plans() for path in plan.paths}
    assert names == set(gpu_checks.MODES)
    assert len(list(gpu_checks.plans())) == 21


def test_a_failed_check_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    report = gpu.Report("cpu")
    report.check("something", False, "why")
    assert not report.passed
    assert capsys.readouterr().out == "FAIL something: why\n"


@needs_compiler
def test_a_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "plans", lambda: [("small", SMALL)])
    monkeypatch.setattr(
        gpu_checks, "derivatives", lambda product, given, device, dtype: [torch.tensor([1.0 + (device == "cpu")])]
    )
    assert not any(passed for _, passed, _ in gpu_checks.values("meta"))
    assert gpu_clock.Clock(0).left == 0
