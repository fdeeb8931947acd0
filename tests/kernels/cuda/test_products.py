"""Every mode, weights, layout, dtype and set of open slots: the kernels' own text, run in random orders, twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.interpreter import INTERPRETER, interpret
from tests.kernels.cuda.standin import StandIn
from tests.kernels.plans import VARIANTS, mode_plan, operands
from tpgen.form.form import form_of
from tpgen.form.sampling import random_operands
from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.placement import place_form
from tpgen.kernels.placement.planning import CHANNEL_LETTER
from tpgen.kernels.rows import DESTINATIONS, EDGES, SOURCES, RowIndex
from tpgen.kernels.runtime.call import make_product_call
from tpgen.kernels.runtime.description import ProductDescription
from tpgen.kernels.sweep.sweep import make_sweep
from tpgen.kernels.sweep.terms import path_terms
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise

ROWS, NODES = 11, 4
OPENED = (("out",), ("x1", "x2", "w"), ("x2",), ("w",), ("x1", "out"))
CONV_OPENED = (("out",), ("x1", "x2", "w"), ("x2", "w"))
# A tail of rows that do not fill a step, warps with several rows, channels that fill no warp, and more than one warp.
COPIES = ((5, 3), (33, 2), (3, 40))
MIXED_COPIES = ((5, 3), (9, 2), (3, 11))
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1.2e-2}
ARCHITECTURES = {2: 90, 1: 80, 0: 70}


@dataclass(frozen=True)
class Case:
    plan: Plan
    layout: str
    dtype: str
    opened: tuple[str, ...]
    copies: int  # how rows come to shared memory
    indexed: bool = False
    rows: int = ROWS
    uncached: bool = False  # then gradients of x1 come by receiver

    @property
    def source(self) -> CudaSource:
        chip = chip_of(ARCHITECTURES[self.copies])
        chip = replace(chip, cache=1) if self.uncached else chip
        return generate_cuda(place_form(form_of(self.plan, self.layout), self.dtype, self.opened, chip, self.indexed))

    @property
    def operands(self) -> dict[str, Tensor]:
        """Random numbers that the dtype holds exactly."""
        kind = getattr(torch, self.dtype)
        made = operands(self.plan, self.rows) if len(self.plan.inputs) == 2 else layer_operands(self.plan, self.rows)
        given = {name: x.to(kind).double() for name, x in made.items()}
        if self.indexed:
            given |= {name: given[name][:NODES].clone() for name in ("x1", "out")}
        return given


Way = tuple[str, str, int]  # dtype, layout, and how rows are copied
LAYOUTS = ("mul_ir", "ir_mul")
# 23, a prime: in a cycle every mode and set of open slots meets all dtypes, and every mode both layouts.
WAYS = tuple((dtype, layout, way) for way, layout, dtype in product((2, 1, 2, 0), LAYOUTS, TOLERANCES))[:-1]


def cases(indexed: bool, ways: Iterable[Way]) -> list[Case]:
    """All modes, weights and open slots; dtypes, layouts and ways to copy take turns with them."""
    turns, kept, mixed = cycle(ways), cycle(COPIES), cycle(MIXED_COPIES)
    made = []
    for mode, weighted, shared in VARIANTS:
        for every in CONV_OPENED if indexed else OPENED:
            opened = every if weighted else tuple(slot for slot in every if slot != "w")
            if opened:
                dtype, layout, copies = next(turns)
                plan = mode_plan(mode, weighted, shared, *next(kept if mode in CHANNEL_LETTER else mixed))
                made.append(Case(plan, layout, dtype, opened, copies, indexed))
    return made


LAYERS = {
    "narrow": ("8x0e+3x1o", "5x0e+40x1o"),
    "several paths into one segment": ("3x0e+2x0e+4x1o", "6x0e+1x1o+2x1o"),
    "a segment that no path reaches": ("4x0e+2x2e", "3x0e+7x1o"),
}
LAYERS_OPENED = (("out",), ("x1", "x2", "w"), ("x1",), ("w",), ("x1", "out"))


def layer_operands(plan: Plan, rows: int) -> dict[str, Tensor]:
    """Operands of a linear layer, whose second input has no numbers."""
    given = random_operands(plan, rows, ("x1", "w", "out"))
    return {**given, "x2": torch.empty(rows, 0, dtype=torch.float64)}


def layers() -> list[Case]:
    """Linear layers, shared weights and those of rows; dtypes, layouts and ways to copy take turns with them."""
    turns = cycle(WAYS)
    every = product(LAYERS.values(), (True, False), LAYERS_OPENED)
    cases = []
    for ends, shared, opened in every:
        dtype, layout, copies = next(turns)
        cases.append(Case(make_linear_plan(*ends, shared_weights=shared), layout, dtype, opened, copies))
    return cases


def edges() -> tuple[Tensor, Tensor]:
    """A node that nothing enters and one that nothing leaves, among others."""
    src, dst = torch.randint(NODES, (2, ROWS))
    src[src == 3], dst[dst == 2] = 0, 1
    return src, dst


def wanted(case: Case, given: dict[str, Tensor], gather: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
    """The same by the interpreter, in float64."""
    if gather is None:
        form = form_of(case.plan, case.layout)
        there = {operand.name for operand in form.operands}  # of a linear layer without x2
        return interpret(make_sweep(path_terms(form), tuple(filter(there.__contains__, case.opened))), form, given)
    description = ProductDescription(case.plan, (case.layout,) * 3)
    spec = KernelSpec(description, make_product_call(case.opened), torch.float64, EDGES)
    results = {name: torch.empty_like(given[name]) for name in case.opened}
    src, dst = gather
    edges = RowIndex(SOURCES, src, len(given["x1"])), RowIndex(DESTINATIONS, dst, len(given["out"]))
    taken = [given[slot.operand] for slot in spec.call.given]
    INTERPRETER.load(spec)(KernelCall(taken, [*results.values()], len(given["x2"]), 1, edges))
    return results


@pytest.mark.parametrize("indexed", [False, True], ids=["rows", "edges"])
def test_kernels_agree_with_the_definition(indexed: bool, tmp_path: Path) -> None:
    check(cases(indexed, WAYS), tmp_path)


def test_layers_agree_with_the_definition(tmp_path: Path) -> None:
    check(layers(), tmp_path)


@pytest.mark.parametrize("indexed", [False, True], ids=["rows", "edges"])
def test_turns_leave_no_mode_without_a_dtype(indexed: bool) -> None:
    every = [(case.plan.instructions[0].connection_mode, case) for case in cases(indexed, WAYS)]
    modes = {mode for mode, _ in every}
    assert {(mode, case.dtype) for mode, case in every} == set(product(modes, TOLERANCES))
    assert {(mode, case.layout) for mode, case in every} == set(product(modes, LAYOUTS))
    opened = CONV_OPENED if indexed else OPENED
    assert {(case.opened, case.dtype) for _, case in every} >= set(product(opened, TOLERANCES))


def check(every: list[Case], folder: Path) -> None:
    stand_in = StandIn([case.source for case in every], [case.copies for case in every], folder)
    gather = edges() if every[0].indexed else None
    for n, case in enumerate(every):
        given = case.operands
        found = stand_in.run(n, given, gather, seed=0)
        again = stand_in.run(n, given, gather, seed=2)
        for name, want in wanted(case, given, gather).items():
            error = (found[name] - want).abs().max() / want.abs().max()
            assert error < TOLERANCES[case.dtype], f"{name} of {case}: {error}"
            assert torch.equal(found[name], again[name]), f"{name} depends on the order of threads"


@pytest.mark.parametrize("opened", CONV_OPENED, ids="+".join)
def test_a_graph_without_edges_adds_nothing(opened: tuple[str, ...], tmp_path: Path) -> None:
    case = Case(mode_plan("uvu", True, True, 5, 3), "mul_ir", "float32", opened, 2, True)
    given = {name: x[:0] if name == "x2" else x for name, x in case.operands.items()}
    none = torch.empty(0, dtype=torch.int64)
    found = StandIn([case.source], [2], tmp_path).run(0, given, (none, none))
    assert {name for name, x in found.items() if x.numel()} == set(opened) - {"x2"}
    assert not any(x.any() for x in found.values())


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("indexed", [False, True], ids=["rows", "edges"])
def test_narrow_rows_of_odd_length_are_fetched_by_two(indexed: bool, copies: int, tmp_path: Path) -> None:
    """Three numbers a row: the last of a step has no other, and every second edge begins in the middle of a pair."""
    plan = channelwise("8x0e+8x1o", "1o", "0e+1o", shared_weights=False)
    made = [Case(plan, "mul_ir", "bfloat16", opened, copies, indexed) for opened in (("out",), ("x1", "w"))]
    assert all(case.source.placement.row_bytes("x2") == 6 for case in made)
    check(made, tmp_path)
