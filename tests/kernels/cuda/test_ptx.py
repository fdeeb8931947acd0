"""The PTX that NVRTC writes for products and convolutions, run by the emulator: against the definition, and no access
without what must stand before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.interpreter import interpret
from tests.kernels.cuda.emulator.kernels import Emulated
from tests.kernels.cuda.named import BACKWARD, FORWARD, Kernel
from tests.machine import needs_nvrtc
from tpgen.form.form import form_of
from tpgen.kernels.sweep.sweep import make_sweep
from tpgen.kernels.sweep.terms import SLOTS, path_terms

NODES = 4
TOLERANCES = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 1.2e-2}
ALL, SECOND = ("x1", "x2", "w", "out"), ("x2", "w", "out")  # what derivatives of derivatives open
QUICK = [
    (Kernel("mixed-mul", BACKWARD), 90),
    (Kernel("mixed-mul", BACKWARD, "ir_mul", True), 90),
    (Kernel("mixed-mul", BACKWARD, indexed=True), 80),
    (Kernel("mace-medium", FORWARD, indexed=True, dtype="bfloat16"), 90),
    (Kernel("nequip-aspirin", ALL, "ir_mul", dtype="float64"), 90),
    (Kernel("elementwise", SECOND, "ir_mul", True), 80),
    (Kernel("article", FORWARD, dtype="bfloat16"), 80),
    (Kernel("mace-readout", BACKWARD), 90),
    (Kernel("roofline-636", FORWARD, indexed=True), 90),
    (Kernel("roofline-636", BACKWARD, "ir_mul"), 80),
]


@dataclass(frozen=True)
class Run:
    """A kernel with numbers: a block takes three steps of rows, another one that is not full."""

    kernel: Kernel
    arch: int

    @property
    def emulated(self) -> Emulated:
        return Emulated(self.kernel.source(self.arch))

    def numbers(self, emulated: Emulated) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor] | None]:
        """Operands, rounded to what the dtype holds, and edges."""
        p, indexed = emulated.placement, self.kernel.indexed
        torch.manual_seed(0)
        rows = 20 if indexed else 5 * p.rows + max(1, p.rows - 1)
        shapes = {name: (NODES if indexed and name in ("x1", "out") else rows, p.dim[name]) for name in SLOTS}
        if p.schedule.shared_weights:
            shapes["w"] = shapes["w"][1:]
        given = {
            name: torch.randn(shape).to(getattr(torch, self.kernel.dtype)).double() for name, shape in shapes.items()
        }
        if not indexed:
            return given, None
        src, dst = torch.randint(NODES, (2, rows))
        src[src == 3], dst[dst == 2] = 0, 1  # a node that nothing leaves, and one that nothing enters
        return given, (src, dst)


def wanted(kernel: Kernel, given: dict[str, Tensor], edges: tuple[Tensor, Tensor] | None) -> dict[str, Tensor]:
    """The same by the interpreter, in float64: on edges of gathered rows, whose results are added up."""
    form = form_of(kernel.plan, kernel.layout)
    there = {operand.name for operand in form.operands}  # of a linear layer two
    sweep = make_sweep(path_terms(form), tuple(slot for slot in kernel.opened if slot in there))
    if edges is None:
        return interpret(sweep, form, given)
    ends = dict(zip(("x1", "out"), edges, strict=True))
    found = interpret(sweep, form, {name: x[ends[name]] if name in ends else x for name, x in given.items()})
    added = {
        name: torch.zeros_like(given[name]).index_add(0, ends[name], found[name]) for name in ends if name in found
    }
    return found | added


def check(kernel: Kernel, arch: int) -> None:
    run = Run(kernel, arch)
    emulated = run.emulated
    given, edges = run.numbers(emulated)
    found = emulated.run(given, edges)
    for name, want in wanted(kernel, given, edges).items():
        if want.numel():
            error = (found[name] - want).abs().max() / want.abs().max()
            assert error < TOLERANCES[kernel.dtype], f"{name}: {error}"


@needs_nvrtc
@pytest.mark.parametrize("kernel, arch", QUICK, ids=str)
def test_ptx_agrees_with_the_definition(kernel: Kernel, arch: int) -> None:
    check(kernel, arch)


@needs_nvrtc
def test_a_graph_without_edges_adds_nothing() -> None:
    run = Run(Kernel("elementwise", FORWARD, indexed=True), 90)
    emulated = run.emulated
    given, edges = run.numbers(emulated)
    assert edges is not None
    none = {name: x[:0] if name in ("x2", "w") else x for name, x in given.items()}
    ends = edges[0][:0], edges[1][:0]
    assert not emulated.run(none, ends, blocks=1)["out"].any()
