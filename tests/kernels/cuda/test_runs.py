"""Runs of edges: nodes of any number of edges on any number of blocks, by the kernels' own text and by their PTX."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.emulator.kernels import Emulated
from tests.kernels.cuda.standin import StandIn
from tests.kernels.cuda.test_products import Case, wanted
from tests.kernels.plans import mode_plan, operands
from tests.machine import needs_compiler, needs_nvrtc

EDGES, NODES = 45, 9
# Receivers of edges: some without one among others, first and last; one with all; few on many blocks; no edge at all.
RECEIVERS = {
    "any": torch.tensor([1, 1, 1, 4, 7, 7, 7] * 6 + [4, 2, 2]),
    "one": torch.full((EDGES,), 5),
    "two long ones": torch.tensor([0] * 22 + [8] * 23),
    "few": torch.tensor([3, 0, 3]),
    "one edge": torch.tensor([8]),
    "none": torch.empty(0, dtype=torch.int64),
}
CASES = [
    Case(mode_plan("uvu", True, False, 33, 1), "mul_ir", "float32", ("out",), 2, True),
    Case(mode_plan("uvu", True, True, 5, 3), "ir_mul", "float64", ("x1", "x2", "w"), 1, True),
    Case(mode_plan("uvw", True, False, 5, 3), "mul_ir", "bfloat16", ("x1", "x2", "w"), 2, True),
    Case(mode_plan("uvw", True, True, 3, 2), "mul_ir", "float32", ("x2", "w", "out"), 0, True),
    Case(mode_plan("uvu", True, False, 34, 1), "mul_ir", "float32", ("x1", "x2", "w"), 2, True, uncached=True),
    Case(mode_plan("uvu", True, False, 2, 3), "ir_mul", "float64", ("x1", "x2", "w"), 1, True, uncached=True),
    Case(mode_plan("uvu", True, True, 10, 2), "mul_ir", "bfloat16", ("x1", "w"), 0, True, uncached=True),
]
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1.2e-2}


def numbers(case: Case, receivers: Tensor) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
    """Operands, and edges in any order."""
    torch.manual_seed(0)
    kind, edges = getattr(torch, case.dtype), len(receivers)
    given = {name: x.to(kind).double() for name, x in operands(case.plan, max(edges, NODES)).items()}
    given |= {name: given[name][:NODES].clone() for name in ("x1", "out")}
    rows = {name for name in ("x2", "w") if given[name].dim() == 2}
    given |= {name: given[name][:edges].clone() for name in rows}
    mixed, others = receivers[torch.randperm(edges)], torch.randint(NODES, (edges,))
    return given, (mixed, others) if "x1" in case.opened and not case.uncached else (others, mixed)


def check(found: dict[str, Tensor], case: Case, given: dict[str, Tensor], edges: tuple[Tensor, Tensor]) -> None:
    for name, want in wanted(case, given, edges).items():
        error = (found[name] - want).abs().max() / want.abs().max().clamp(min=1e-3) if want.numel() else 0
        assert error < TOLERANCES[case.dtype], f"{name}: {error}"


@needs_compiler
def test_every_edge_is_added_once(tmp_path: Path) -> None:
    stand_in = StandIn([case.source for case in CASES], [case.copies for case in CASES], tmp_path)
    for n, case in enumerate(CASES):
        for receivers in RECEIVERS.values():
            given, edges = numbers(case, receivers)
            for blocks in (1, 2, 7):
                found, again = (stand_in.run(n, given, edges, blocks, seed) for seed in (0, 2))
                check(found, case, given, edges)
                assert all(torch.equal(found[name], again[name]) for name in found)


def test_without_a_cache_gradients_come_by_receiver() -> None:
    assert all(case.source.placement.held == ("out" if case.uncached else None) for case in CASES)


@needs_nvrtc
@pytest.mark.parametrize(
    "case", [CASES[0], *(case for case in CASES if case.uncached and case.copies)], ids=lambda case: case.dtype
)
@pytest.mark.parametrize("receivers", ["any", "two long ones"])
def test_the_ptx_finds_the_same_owners(receivers: str, case: Case) -> None:
    given, edges = numbers(case, RECEIVERS[receivers])
    check(Emulated(case.source).run(given, edges, blocks=4), case, given, edges)
