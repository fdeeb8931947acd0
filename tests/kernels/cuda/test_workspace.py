"""Bytes that kernels take on a GPU beside operands and results: those that a launch makes room for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tests.kernels.cuda.fakes import FakeDriver
from tests.kernels.plans import operands
from tpgen.form.form import form_of
from tpgen.kernels.arguments import CallSizes
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.launch import ProductLaunches, count_peak_sort_bytes, count_workspace_bytes, plan_launches
from tpgen.kernels.cuda.placement import cuda_target, place_cuda, place_polynomial
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.rows import DESTINATIONS, EDGES, ELEMENTS, SOURCES, RowIndex
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.call import make_product_call as slots_of
from tpgen.kernels.runtime.ops import describe, kernel_product
from tpgen.kernels.runtime.polynomials import describe_polynomial, parse_polynomial_call
from tpgen.kernels.runtime.workspace import count_call_workspace
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import POLYNOMIALS, PROBLEMS

SHARED = channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=True)
ROWS, NODES = 4000, 100


def call_of(plan: Plan, opened: str, device: str, index: torch.dtype | None = None) -> FormCall:
    """A call on tensors without values."""
    number = {"dtype": torch.float32, "device": device}
    w = torch.empty(plan.weight_numel if plan.shared_weights else (ROWS, plan.weight_numel), **number)
    x1 = torch.empty(NODES if index else ROWS, plan.irreps_in1.dim, **number)
    x2 = torch.empty(ROWS, plan.irreps_in2.dim, **number)
    g, slots = torch.empty(NODES if index else ROWS, plan.irreps_out.dim, **number), slots_of(tuple(opened.split()))
    src, dst = (torch.empty(ROWS, dtype=index or torch.int64, device=device) for _ in range(2))
    at, rules, nodes = ([src, dst], EDGES, NODES) if index else ([], (), 0)
    return FormCall([x1, x2, w, g][: len(slots.given)], at, describe(plan), str(slots), rules, nodes)


def bytes_of(opened: str, device: str, index: torch.dtype | None = None) -> int:
    return count_call_workspace(call_of(SHARED, opened, device, index))


def test_what_a_call_takes_is_asked_of_the_device_of_its_tensors() -> None:
    """Nothing for a forward pass of rows on a GPU, where threads of a CPU have scratch."""
    with FakeTensorMode():
        assert bytes_of("out", "cuda") == 0 < bytes_of("out", "cpu")
        assert bytes_of("out", "xpu") == 0
        wide, narrow = (bytes_of("out", "cuda", index) for index in (torch.int64, torch.int32))
    assert narrow - wide == 2 * 8 * ROWS
    assert wide >= 8 * (ROWS + NODES)


def sizes_of(rows: int, sources: int = 0, destinations: int = 0) -> CallSizes:
    edges = (RowIndex(SOURCES, None, sources), RowIndex(DESTINATIONS, None, destinations))
    return CallSizes(torch.device("cuda"), rows, 1, edges if destinations else ())


def test_room_for_sums_over_blocks_is_what_a_launch_makes(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[dict[str, torch.Tensor]]()
    room = ProductLaunches.allocate_scratch
    monkeypatch.setattr(ProductLaunches, "allocate_scratch", lambda *given: made.append(room(*given)) or made[-1])
    rows = 2  # so few that no device has too few blocks for them
    given = {name: x.float() for name, x in operands(SHARED, rows).items()}
    x1, x2, w = (given[name].requires_grad_() for name in ("x1", "x2", "w"))
    torch.autograd.grad(kernel_product(x1, x2, w, describe(SHARED)), (x1, x2, w), given["out"])
    forward, backward = made
    assert not forward
    schedule = plan_schedule(form_of(SHARED, "mul_ir"), cuda_target("float32"))
    placement = place_cuda(schedule, ("x1", "x2", "w"), chip_of(90))
    assert count_workspace_bytes(placement, sizes_of(rows)) == sum(x.nbytes for x in backward.values()) > 0


def test_there_is_room_for_owners_at_the_ends_of_runs() -> None:
    schedule = plan_schedule(form_of(SHARED, "mul_ir"), cuda_target("float32"))
    placement = place_cuda(schedule, ("out",), chip_of(90), indexed=True)
    few = replace(placement, chip=replace(placement.chip, processors=2))
    ends = 2 * (2 * few.max_blocks_per_multiprocessor) * few.dim["out"] * 4
    assert count_workspace_bytes(few, sizes_of(ROWS, destinations=NODES)) == count_peak_sort_bytes(ROWS, [NODES], ends)
    assert count_peak_sort_bytes(10, [3], 5_000) == 8 * (10 + 3 + 1) + 5_000
    assert count_peak_sort_bytes(10, [3], 0) == 8 * 6 * 10  # while it is sorted


def test_there_is_room_for_gradients_of_edges_and_both_orders() -> None:
    schedule = plan_schedule(form_of(PROBLEMS["mace-large"].plan, "mul_ir"), cuda_target("float32"))
    placement = place_cuda(schedule, ("x1", "x2", "w"), chip_of(90), indexed=True)
    orders = 8 * ((ROWS + 30 + 1) + (ROWS + NODES + 1))
    assert count_workspace_bytes(placement, sizes_of(ROWS, 30, NODES)) == orders + ROWS * placement.row_bytes("x1")
    assert count_peak_sort_bytes(10, [3, 2], 0) == 8 * 2 * 6 * 10  # while both are sorted


def test_both_gradients_of_a_convolution_take_room_one_after_the_other() -> None:
    with FakeTensorMode():
        both, one, other = (bytes_of(opened, "cuda", torch.int64) for opened in ("x1 out", "x1", "out"))
        weights = bytes_of("x1 x2 w", "cuda", torch.int64)
    assert both == max(one, other)
    assert weights >= one


def test_polynomials_have_sums_of_tasks() -> None:
    problem = POLYNOMIALS["mace-contraction"]
    plan, elements = problem.plan, RowIndex(ELEMENTS, None, problem.elements)
    sizes = CallSizes(torch.device("cuda"), 512, problem.channels, (elements,))
    call = parse_polynomial_call(plan, "backward")
    sweep, parts = describe_polynomial(plan).sweep(call), list[int]()
    for dtype in ("float32", "bfloat16"):  # computed in float32
        launches = plan_launches(place_polynomial(plan, sweep, dtype, chip_of(90)), sizes)
        parts.append(launches.tasks * launches.placement.warp_gradients * problem.channels * 4)
        assert count_workspace_bytes(launches.placement, sizes) == parts[-1]
    with FakeTensorMode():
        given = [plan.operand(slot.operand) for slot in call.given]
        counts = [sizes.elements if o.weights else sizes.rows for o in given]
        widths = [o.dim * (sizes.channels if o.channels else 1) for o in given]
        tensors = [torch.empty(shape, device="cuda") for shape in zip(counts, widths, strict=True)]
        index = torch.empty(sizes.rows, dtype=torch.int64, device="cuda")
        found = count_call_workspace(FormCall(tensors, [index], plan.to_json(), str(call), (ELEMENTS,)))
    assert found == 8 * (512 + sizes.elements + 1) + parts[0]
