"""Products that mix copies: every number is summed up once, by warps that share the work, and graphs where they win."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.plans import VARIANTS, forward_spec, mode_plan
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import Config
from tpgen.form.form import form_of
from tpgen.kernels.cuda import driver, target
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.gather_placement import CudaGatherPlacement
from tpgen.kernels.cuda.gathers import Gather
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.runtime.targets import KERNEL_TARGETS
from tpgen.kernels.sweep.terms import BETWEEN
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.problems import PROBLEMS, find_problem

FORWARD, BACKWARD = ("out",), ("x1", "x2", "w")
MIXING = [variant for variant in VARIANTS if variant[0] in ("uvw", "uuw", "u<vw", "uvu<v")]


def placed(plan: Plan, opened: tuple[str, ...], indexed: bool = False, layout: str = "mul_ir") -> CudaGatherPlacement:
    schedule = plan_schedule(form_of(plan, layout), cuda_target("float32"))
    placement = place_cuda(schedule, opened, chip_of(90), indexed)
    assert isinstance(placement, CudaGatherPlacement)
    return placement


def filled(g: Gather) -> list[int]:
    copy, component = g.strides
    return [g.start + n * copy + k * component for n in range(g.copies) for k in range(g.components)]


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("variant", MIXING, ids=str)
def test_every_number_is_summed_up_once(variant: tuple[str, bool, bool], layout: str) -> None:
    opened = BACKWARD if variant[1] else ("x1", "x2")
    for slots in (opened, FORWARD):
        placement = placed(mode_plan(*variant, 5, 3), slots, layout=layout)
        for slot in (*slots, *BETWEEN):
            found = [n for g in placement.gathers if g.target == slot for n in filled(g)]
            if slot in BETWEEN:
                assert sorted(found) == list(range(placement.intermediate_dims[slot]))
            else:
                found += [
                    n
                    for start, size in placement.starts_and_sizes_that_no_path_uses(slot)
                    for n in range(start, start + size)
                ]
                assert sorted(found) == list(range(placement.dim[slot]))


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("name", ["article", "diffdock-l1"])
def test_every_item_has_a_warp_in_a_phase_where_all_is_there(name: str, indexed: bool) -> None:
    placement = placed(find_problem(name).plan, BACKWARD, indexed)
    seen = [
        (n, s.work.number, s.chunk)
        for n, ws in enumerate(placement.work_by_phase_and_warp)
        for shares in ws
        for s in shares
    ]
    assert len(seen) == len({(gather, chunk) for _, gather, chunk in seen})
    when = {gather: n for n, gather, _ in seen}
    for g in placement.gathers:
        chunks = {chunk for _, gather, chunk in seen if gather == g.number}
        assert chunks == set(range(g.chunks))
        assert g.chunks * g.at_once >= g.items > (g.chunks - 1) * g.at_once
        for part in g.parts:
            needed = set(part.reads) & set(BETWEEN)
            made = [h for h in placement.gathers if h.target in needed and h.parts[0].term == part.term]
            assert all(when[h.number] < when[g.number] for h in made)
    last = max(when[g.number] for g in placement.gathers if "w" in {o for part in g.parts for o in part.reads})
    assert all(when[g.number] > last for g in placement.gathers if g.target == "w")


def test_large_matrices_are_left_to_the_library() -> None:
    mixing = [name for name, problem in PROBLEMS.items() if problem.suite in ("small", "connected")]
    left = [name for name in mixing if target.slower(forward_spec(find_problem(name).plan), chip_of(90))]
    assert left == ["self-connection"]


def test_the_library_has_large_layers() -> None:
    chip = chip_of(90)
    narrow, wide = (forward_spec(make_linear_plan(irreps, irreps)) for irreps in ("8x0e+4x1o", "512x0e+512x1o"))
    assert target.slower(narrow, chip) is None
    assert "262144 weights that all rows share" in str(target.slower(wide, chip))
    assert target.kernel_obstacle(narrow, chip) is None


def test_auto_knows_which_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    row = KERNEL_TARGETS["cuda"]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(driver, "capability", lambda device: 90)
    monkeypatch.setitem(row.__dict__, "missing", lambda device: None)
    chosen = {n: choose_strategy(find_problem(n).plan, Config(device="cuda")) for n in ("article", "self-connection")}
    assert str(chosen["article"]) == "kernel (a generated CUDA C++ kernel, compiled at the first call)"
    assert chosen["self-connection"].strategy == "grouped"
    assert "16384 weights that all rows share" in chosen["self-connection"].reason
    assert target.slower(forward_spec(find_problem("article").plan), chip_of(90)) is None
