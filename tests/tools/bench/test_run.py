"""The gate and the run: right contenders are timed, wrong, failing and absent ones are told apart."""

from __future__ import annotations

from dataclasses import replace

import e3nn
import pytest
import torch

from tests.machine import needs_compiler
from tpgen.base.clock import time_in_turns
from tpgen.base.errors import BackendError, TpgenError
from tpgen.emitter.strategies import STRATEGIES
from tpgen.form.reference import reference_product
from tpgen.kernels.build.compiler import find_compiler
from tpgen.kernels.runtime.memory import LARGE
from tpgen.nn.products import ElementwiseTensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, elementwise, fully_connected, tensor_square
from tpgen.planner.problems import Problem
from tpgen.tools.bench.contenders import (
    CONTENDERS,
    Contender,
    LoopOverInstructions,
    build_e3nn_module,
    build_instruction_loop,
    select_contenders,
)
from tpgen.tools.bench.run import measure_peak_bytes, run_benchmarks, select_problems
from tpgen.tools.bench.tasks import (
    TASKS,
    compute_expected_results,
    convert_operands_to_layout,
    make_operands,
    select_operand_rows,
    select_tasks,
)

CPU = torch.device("cpu")
SMALL = (
    Problem("chan", "weights of each row", 5, lambda: channelwise("4x0e+4x1o", "0e+1o", "0e+1o+1e"), "test"),
    Problem("connected", "shared weights", 5, lambda: fully_connected("2x0e+1o", "0e+1o", "2x0e+1o"), "test"),
    Problem("elementwise", "no weights", 5, lambda: elementwise("3x0e+3x1o", "3x0e+3x1o"), "test"),
)
# All that run without a compiler; compiled ones have one test.
PLAIN = select_contenders(["e3nn/eager", "e3nn/script", "loop/eager", "tpgen-*/eager", "tpgen-auto/script"])


def broken(spoil) -> Contender:
    """The loop with something wrong."""

    def build(plan: Plan, dtype: torch.dtype, device: torch.device):
        loop = build_instruction_loop(plan, dtype, device, "eager")
        return lambda x1, x2, w: spoil(loop, x1, x2, w)

    return Contender("broken/eager", build)


@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.name)
def test_contenders_agree_with_the_reference(problem: Problem):
    report = run_benchmarks([problem], PLAIN, dtype=torch.float64, repeats=1)
    states = {(r.contender, r.task): (r.status, r.reason) for r in report.records}
    compiled = [] if find_compiler() else [c for c in PLAIN if c.name.startswith("tpgen-kernel")]
    elsewhere = {c.name for c in PLAIN if c.cuda_only or c in compiled}
    wrong = {key: state for key, state in states.items() if state[0] != "ok" and key[0] not in elsewhere}
    assert not wrong
    assert len(states) == len(PLAIN) * len(TASKS)


def test_compiled_contenders_run_and_say_what_they_cannot_do():
    names = ["tpgen-unrolled/inductor", "loop/inductor"]
    states = {names[0]: ("ok", ""), names[1]: ("unavailable", "torch.compile has no double backward")}
    report = run_benchmarks(SMALL[:1], select_contenders(names), ["forward", "double"], repeats=1)
    for name in names:
        forward, double = (report.find("chan", task, name) for task in ("forward", "double"))
        assert forward is not None
        assert (forward.status, forward.reason) == ("ok", "")
        assert double is not None
        assert (double.status, double.reason) == states[name]


@pytest.mark.parametrize(
    "spoil, where",
    [
        (lambda loop, x1, x2, w: loop(x1, x2, w) * 1.001, "out"),
        (lambda loop, x1, x2, w: loop(x1, x2, w) + 1e-2, "out"),
        (lambda loop, x1, x2, w: loop(x1, x2, w)[:, :-1], "out"),
        (lambda loop, x1, x2, w: loop(x1, x2, w) * float("nan"), "out"),
    ],
    ids=["scaled", "shifted", "shape", "nan"],
)
def test_gate_stops_a_wrong_result(spoil, where: str):
    report = run_benchmarks(SMALL[:1], [broken(spoil)], ["forward"], repeats=1)
    (record,) = report.records
    assert record.status == "wrong"
    assert record.reason.startswith(f"{where} is off by")
    assert record.median is None
    assert record.samples == 0


def test_gate_stops_a_wrong_gradient():
    def right_value_wrong_gradient(loop, x1, x2, w):
        out = loop(x1, x2, w)
        extra = loop(x1, x2, w) - out.detach()  # zero, with a gradient
        return out + extra

    records = run_benchmarks(SMALL[:1], [broken(right_value_wrong_gradient)], repeats=1).records
    assert {r.task: r.status for r in records} == {"forward": "ok", "backward": "wrong", "double": "wrong"}


def test_failing_and_absent_contenders_say_why():
    def fails(loop, x1, x2, w):
        raise RuntimeError("out of luck\nand more")

    def absent(plan: Plan, dtype: torch.dtype, device: torch.device):
        raise BackendError("not installed")

    contenders = [broken(fails), Contender("peer/eager", absent), *select_contenders(["loop-streams/eager"])]
    records = run_benchmarks(SMALL[:1], contenders, ["forward"], repeats=1).records
    assert [(r.status, r.reason) for r in records] == [
        ("failed", "RuntimeError: out of luck"),
        ("unavailable", "not installed"),
        ("unavailable", "needs a CUDA device"),
    ]


def test_every_strategy_and_auto_has_contenders():
    for strategy in (*STRATEGIES, "auto"):
        for backend in ("eager", "script", "inductor", "cudagraphs"):
            contender = CONTENDERS[f"tpgen-{strategy}/{backend}"]
            assert contender.name == f"tpgen-{strategy}/{backend}"
    assert all(name == contender.name for name, contender in CONTENDERS.items())


def test_unknown_names_are_listed():
    with pytest.raises(TpgenError, match=r"unknown contender 'e4nn/\*'; known contenders: e3nn/eager, "):
        select_contenders(["e4nn/*"])
    with pytest.raises(TpgenError, match=r"'backwards':.*'backward'"):
        select_tasks(["backwards"])
    with pytest.raises(TpgenError, match=r"'smal':.*'small'"):
        select_problems(suites=["smal"])
    with pytest.raises(
        TpgenError,
        match=r"'mace':.*'mace-medium' or 'mace-large'",
    ):
        select_problems(["mace"])
    with pytest.raises(BackendError, match=r"float64.*int64"):
        run_benchmarks(SMALL[:1], [], dtype=torch.int64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_an_error():
    with pytest.raises(BackendError, match="no CUDA device; leave device out"):
        run_benchmarks(SMALL[:1], [], device="cuda")


def test_defaults_of_others_are_put_back():
    before = e3nn.get_optimization_defaults(), torch.get_default_dtype()
    assert isinstance(build_e3nn_module(SMALL[0].plan, scripted=True)._compiled_main_left_right, torch.jit.ScriptModule)
    assert not isinstance(build_e3nn_module(SMALL[0].plan)._compiled_main_left_right, torch.jit.ScriptModule)
    run_benchmarks(SMALL[:1], select_contenders(["e3nn/eager"]), ["forward"], dtype=torch.float64, repeats=1)
    assert before == (e3nn.get_optimization_defaults(), torch.get_default_dtype())


def test_expected_results_do_not_depend_on_chunks(monkeypatch):
    for problem in SMALL:
        operands = make_operands(problem.plan, 5, torch.float64, CPU)
        whole = [compute_expected_results(problem.plan, task, operands) for task in TASKS.values()]
        with monkeypatch.context() as patch:
            patch.setattr("tpgen.tools.bench.tasks._CHUNK", 2)
            parts = [compute_expected_results(problem.plan, task, operands) for task in TASKS.values()]
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


def test_operands_are_seeded_and_change_layout():
    plan = SMALL[0].plan
    first, again = (make_operands(plan, 5, torch.float32, CPU) for _ in range(2))
    assert torch.equal(first.x1, again.x1)
    assert not torch.equal(first.x1, make_operands(plan, 5, torch.float32, CPU, seed="other").x1)
    turned = convert_operands_to_layout(plan, ("mul_ir", "mul_ir", "ir_mul"), first)
    assert torch.equal(turned.x1, first.x1)
    for (mul, ir), where in zip(plan.irreps_out, plan.irreps_out.slices(), strict=True):
        outside = turned.out_cotangent[:, where].reshape(-1, ir.dim, mul)
        assert torch.equal(outside.transpose(1, 2).flatten(1), first.out_cotangent[:, where])
    assert all(leaf.is_leaf and leaf.requires_grad for leaf in turned.leaves)
    assert select_operand_rows(first, plan, 1, 3).w.shape == (2, plan.weight_numel)


def test_loop_has_all_modes():
    plan = tensor_square("3x0e+2x1o", "2x0e+1x2e+1x1o")
    x1, x2, w = torch.randn(4, 9), torch.randn(4, 9), torch.randn(plan.weight_numel)
    result = LoopOverInstructions(replace(plan)).float()(x1, x2, w)
    torch.testing.assert_close(result, reference_product(plan, x1, x2, w))


def test_timing_takes_turns():
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    timings = time_in_turns(calls, CPU, seconds=1.0, repeats=4)
    assert [len(t.samples) for t in timings.values()] == [4, 4, 4]
    assert all(sorted(order[start : start + 3]) == list("abc") for start in range(0, 12, 3))
    assert len(set(map(tuple, (order[start : start + 3] for start in range(0, 12, 3))))) > 1


def test_peak_memory_counts_intermediates(capfd):
    x = torch.ones(1 << 18)

    def call():
        return ((x + 1) * 2).sum()  # two arrays of a MiB at once

    assert 2 << 20 <= measure_peak_bytes(call, CPU) < 3 << 20
    assert capfd.readouterr().err == ""


@needs_compiler
def test_peak_memory_counts_large_results_of_kernels():
    """They stand in slabs of tpgen's own, in which torch's profiler sees nothing."""
    product = ElementwiseTensorProduct("64x0e+64x1o", "64x0e+64x1o", strategy="kernel")
    x = torch.randn(1 << 12, 256)
    result = product(x, x)
    assert result.nbytes > LARGE
    assert result.nbytes <= measure_peak_bytes(lambda: product(x, x), CPU) < 2 * result.nbytes
