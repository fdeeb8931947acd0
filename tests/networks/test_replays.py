"""Programs on a GPU, by a recorder that stands in for CUDA graphs on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.networks.served import Field, given
from tests.networks.tape import Tape
from tpgen.base.errors import DeployError
from tpgen.networks import served, step_program
from tpgen.networks.bypass import must_run_eagerly
from tpgen.networks.conversion.operations import pairs
from tpgen.networks.functional import trace_without_writes
from tpgen.networks.recording import Recording, recording
from tpgen.networks.replays import _IN_A_ROW, _KEPT, _MOST, RecordedRun, ReplayedRun, TensorRun
from tpgen.networks.simplify import expand_library_calls, fold_constants
from tpgen.networks.step import compile_step


class Refuses(Tape):
    def record(self, run: TensorRun, inputs: Sequence[Tensor]) -> RecordedRun:
        super().record(run, inputs)
        raise RuntimeError("operation not permitted when stream is capturing")


def scaled(tape: Tape) -> tuple[ReplayedRun, Tensor]:
    """A run of a parameter and a tensor, and the parameter."""
    weight = torch.tensor([2.0])
    return ReplayedRun(lambda w, x: [w * x], 1, tape), weight


def test_sizes_that_come_three_times_in_a_row_are_recorded_and_replayed_with_other_numbers() -> None:
    tape = Tape()
    run, weight = scaled(tape)
    kept = []
    for n in range(5):
        x = torch.full((3,), float(n))
        kept.append(run([weight, x]))
        assert tape.recorded == (n + 1 >= _IN_A_ROW)
    weight.mul_(10)  # an optimiser's step: a replay reads the memory of parameters
    kept.append(run([weight, torch.ones(3)]))
    assert [x[0] for (x,) in kept] == [0, 2, 4, 6, 8, 20]  # results are the caller's own: later replays leave them
    assert tape.repeated == 4


def test_other_sizes_and_other_streams_are_other_recordings() -> None:
    tape = Tape()
    run, weight = scaled(tape)
    for _ in range(_IN_A_ROW):
        run([weight, torch.ones(3)])
    assert run([weight, torch.ones(4)])[0].shape == (4,)
    tape.at = 7
    run([weight, torch.ones(3)])
    assert (tape.recorded, tape.repeated) == (1, 1)
    tape.at = 0
    run([weight, torch.ones(3)])  # known, though others came between
    assert (tape.recorded, tape.repeated) == (1, 2)


@pytest.mark.parametrize("change", ["place", "strides", "precision"])
def test_recordings_end_with_places_of_parameters_and_settings(change: str) -> None:
    tape = Tape()
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    run = ReplayedRun(lambda w, x: [w @ x], 1, tape)
    for _ in range(_IN_A_ROW):
        run([weight, torch.ones(2)])
    changed = {"place": weight.clone().mul_(5), "strides": weight.t(), "precision": weight}[change]
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if change == "precision" else before)
        found = run([changed, torch.ones(2)])[0]
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found, changed @ torch.ones(2))
    assert (tape.recorded, tape.repeated, run._recordings) == (1, 1, {})


@pytest.mark.parametrize("count", [_KEPT, _KEPT + 1])
def test_the_last_used_recordings_are_kept(count: int) -> None:
    tape = Tape()
    run, weight = scaled(tape)
    for rows in range(1, count + 1):
        for _ in range(_IN_A_ROW):
            run([weight, torch.ones(rows)])
    run([weight, torch.ones(1)])
    assert tape.repeated == count + (count == _KEPT)


@pytest.mark.parametrize("count", [_MOST - 1, _MOST, _MOST + 1])
def test_sizes_that_change_again_and_again_are_recorded_no_more(count: int) -> None:
    tape = Tape()
    run, weight = scaled(tape)
    for rows in range(1, count + 1):
        for _ in range(_IN_A_ROW):
            assert run([weight, torch.ones(rows)])[0].shape == (rows,)
    assert tape.recorded == min(count, _MOST)


def test_a_run_that_cannot_be_recorded_is_called_each_time(caplog: pytest.LogCaptureFixture) -> None:
    tape = Refuses()
    run, weight = scaled(tape)
    with caplog.at_level("INFO", "tpgen"):
        assert [run([weight, torch.full((1,), float(n))])[0].item() for n in range(9)] == [2.0 * n for n in range(9)]
    assert tape.recorded == 1
    assert "operation not permitted when stream is capturing" in caplog.text


def test_a_network_by_replays_gives_its_own_results_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape()

    def run_on_tape(parameters: int, program: Any, sizes: Any, inputs: Any) -> Any:
        held = sum(n < parameters for n in program.takes)
        return ReplayedRun(program.graph.forward, held, tape), sizes

    monkeypatch.setattr(step_program, "library_of", partial(run_on_tape, 5))  # two layers and a buffer
    network = Field().double()
    step = compile_step(network)
    for atoms in (5, 5, 5, 7, 5, 5):
        for seed in range(2):
            wanted, found = network(given(atoms, seed)), step(given(atoms, seed))
            for name in ("energy", "energies", "forces"):
                torch.testing.assert_close(found[name], wanted[name].detach(), rtol=1e-14, atol=1e-14)
        with torch.no_grad():
            network.first.weight.mul_(1.1)
    assert tape.recorded == 1
    assert tape.repeated == 8


def test_sums_of_rows_by_index_put_are_index_adds() -> None:
    def of(x: Tensor, at: Tensor, rows: Tensor) -> list[Tensor]:
        zeros = torch.zeros_like(x)
        columns = torch.ops.aten.index_put.default(torch.zeros_like(x.t()), [None, at], rows.t(), True)
        added = torch.ops.aten.index_put.default(zeros, [at], rows, True)
        written = torch.ops.aten.index_put.default(zeros, [at], rows)  # the last one counts
        halves = torch.ops.aten.index_put.default(zeros, [at], rows[:, :1], True)  # of other columns
        return [added, written, halves, columns]

    x, at, rows = torch.randn(4, 3), torch.tensor([2, 0, 2]), torch.randn(3, 3)
    graph = trace_without_writes(of, (x, at, rows))
    expand_library_calls(graph.graph, on_gpu=True)
    graph.recompile()
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.aten.index_add.default) == 2
    assert targets.count(torch.ops.aten.index_put.default) == 2
    at = torch.tensor([2, 0, -1])  # the last one, from the end
    for found, wanted in zip(graph(x, at, rows), of(x, at, rows), strict=True):
        torch.testing.assert_close(found, wanted)


def test_pairs_of_edges_are_those_of_a_cpu_alone() -> None:
    program, edges = Recording({}), torch.zeros(2, 4, dtype=torch.int64)
    with recording(program):
        pairs.mark_edge_pairs(torch.randn(4, 1), edges.to("meta"), torch.randn(4, 3, device="meta"))
        assert "pairs" not in program.sources
        pairs.mark_edge_pairs(torch.randn(4, 1), edges, torch.randn(4, 3))
        assert "pairs" in program.sources


def test_copies_of_constants_are_made_once() -> None:
    x = torch.randn(4, dtype=torch.float64)
    graph = trace_without_writes(lambda x: x * torch.tensor([1.5, 2, 3, 4]).to(x), (x,))
    wanted = graph(x)
    fold_constants(graph)
    graph.recompile()
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.mul.Tensor]
    assert torch.equal(graph(x), wanted)


@pytest.mark.parametrize(
    ("made", "equal"),
    [
        (lambda energy, forces: (energy * (1 + 1e-9), forces), True),
        (lambda energy, forces: (energy * (1 + 1e-7), forces), False),
        (lambda energy, forces: (energy, forces + 1e-15), True),  # of a crystal, which are rounding alone
        (lambda energy, forces: (energy, forces + 1e-12), False),
        (lambda energy, forces: (energy[0], forces), False),
    ],
)
def test_a_program_with_other_numbers_is_refused(made: Any, equal: bool) -> None:
    outcome = (torch.tensor([3.0], dtype=torch.float64), "constant", torch.zeros(2, 3, dtype=torch.float64))
    found = made(outcome[0], outcome[2])
    written = SimpleNamespace(leaves=lambda tensors: [tensors[0], "constant", tensors[1]])
    program: Any = SimpleNamespace(run_tensors=lambda _: found, written=written)
    if equal:
        served._check_program_equals_network(program, [], outcome)
    else:
        with pytest.raises(DeployError, match="other numbers"):
            served._check_program_equals_network(program, [], outcome)


def test_a_program_that_serves_no_example_is_refused() -> None:
    program: Any = SimpleNamespace(run_tensors=lambda _: None)
    with pytest.raises(DeployError, match="does not serve"):
        served._check_program_equals_network(program, [], ())


@pytest.mark.parametrize(("on_gpu", "here"), [(True, True), (False, False)])
def test_programs_on_a_gpu_are_built_in_this_process(
    on_gpu: bool, here: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TPGEN_PROGRAM", raising=False)
    built: list[str] = []
    monkeypatch.setattr(served.Calls, "_build_and_check_program", lambda *_: built.append("here"))
    monkeypatch.setattr(served.Calls, "_build_in_background", lambda *_: built.append("beside"))
    monkeypatch.setattr(served, "program_record", lambda *_: None)
    monkeypatch.setattr(served, "comparison_record", lambda *_: SimpleNamespace(read_refusal=lambda _: None))
    monkeypatch.setattr(served, "are_libraries_cached", lambda _: False)
    kind: Any = SimpleNamespace(tensors=[SimpleNamespace(is_cuda=on_gpu)], seconds=0.01, program=None, refused="")
    network = Field()
    with caplog.at_level("INFO", "tpgen"):
        served.Calls(network, "auto")._begin_build_or_put_off(network, kind)
    assert built == ["here" if here else "beside"]
    assert ("traces a program for calls of Field, once" in caplog.text) == here


@pytest.mark.parametrize("state", ["autocast", "capture"])
def test_networks_run_eagerly_in_captures_and_under_autocast_of_cuda(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not must_run_eagerly()
    if state == "autocast":
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    else:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert must_run_eagerly()
