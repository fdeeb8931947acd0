"""Kernels that sum products with many scalars by node: numbers, derivatives, sizes on both sides of each limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from e3nn import o3
from torch import Tensor
from torch.nn.functional import pad

import tpgen
from tests.kernels.test_products import identical, on_threads
from tests.machine import needs_compiler
from tpgen.base.errors import InputError
from tpgen.kernels.placement import nodes as module
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.nodes import FEWEST_SCALARS, NODE_ROWS, NodePlacement
from tpgen.kernels.placement.planning import place
from tpgen.kernels.rows import DESTINATIONS, EDGE_PAIRS, SOURCES
from tpgen.kernels.runtime.call import FORWARD, FormCall
from tpgen.kernels.runtime.description import describe, description_of_plan
from tpgen.kernels.runtime.forms import forms
from tpgen.planner.plan import Plan
from tpgen.planner.presets import fully_connected
from tpgen.planner.product import make_plan

pytestmark = needs_compiler
PRODUCTS, OUT = "12x0e+5x1o+17x2e+3x0o+2x1e", "8x0e+16x1o+2x0o+3x2e+1x4e"  # 1e has no path, 4e neither
BOUNDS = {torch.float32: 2e-5, torch.float64: 1e-13}


def plan_of_scalars(scalars: int, products: str = PRODUCTS, out: str = OUT) -> Plan:
    """Each irrep of the second input, times scalars, mixed into the one of its kind."""
    ends = [[ir for _, ir in o3.Irreps(of)] for of in (products, out)]
    steps = [(0, n, ends[1].index(ir), "uvw", True) for n, ir in enumerate(ends[0]) if ir in ends[1]]
    return make_plan(f"{scalars}x0e", products, out, steps)


def define(plan: Plan, h: Tensor, p: Tensor, w: Tensor, nodes: Tensor, count: int) -> Tensor:
    """The sums, by einsum for each edge."""
    total = h.new_zeros(count, plan.irreps_out.dim)
    for path in plan.paths:
        dim, (begin, end) = path.out.ir.dim, (path.out.start, path.out.stop)
        rows = p[:, path.in2.start : path.in2.stop].view(len(p), path.in2.mul, dim)
        weights = w[path.weight.start : path.weight.stop].view(path.weight.shape)
        # of a scalar and an irrep: 1 over the root of its dimension
        made = path.coefficient * dim**-0.5 * torch.einsum("ek,eum,kuw->ewm", h, rows, weights).flatten(1)
        total = total.index_add(0, nodes, pad(made, (begin, plan.irreps_out.dim - end)))
    return total


def compute(plan: Plan, h: Tensor, p: Tensor, w: Tensor, nodes: Tensor, count: int) -> Tensor:
    return forms.compute(FormCall((h, p, w), (nodes,), describe(plan), FORWARD, (DESTINATIONS,), count))[0]


def operands(plan: Plan, edges: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (edges, plan.irreps_in1.dim), (edges, plan.irreps_in2.dim), (plan.weight_numel,)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def derivatives(sums: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """The sums, all gradients, each alone, and gradients of the gradients."""
    out = sums(*given)
    g = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view_as(out)
    all_of = torch.autograd.grad((out * g).square().sum(), given, create_graph=True)
    alone = [torch.autograd.grad((sums(*given) * g).square().sum(), x)[0] for x in given]
    return [out, *all_of, *alone, *torch.autograd.grad(sum(x.square().sum() for x in all_of), given)]


def assert_equal(found: list[Tensor], wanted: list[Tensor], bound: float) -> None:
    for x, y in zip(found, wanted, strict=True):
        assert x.shape == y.shape
        assert not x.numel() or (x - y).abs().max() <= bound * y.abs().max().clamp(min=1)


def assert_sums_equal_definition(
    plan: Plan, given: list[Tensor], nodes: Tensor, count: int, bound: float
) -> list[Tensor]:
    found, wanted = (derivatives(lambda *of, f=f: f(plan, *of, nodes, count), given) for f in (compute, define))
    assert_equal(found, wanted, bound)
    return found


def placement_of(plan: Plan, dtype: torch.dtype = torch.float32, rules: tuple = (DESTINATIONS,)) -> type:
    return type(place(description_of_plan(plan, "mul_ir").schedule(dtype), ("out",), rules))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("scalars", [8, 13, 16, 40])
def test_numbers_and_derivatives(scalars: int, dtype: torch.dtype) -> None:
    """Nodes without an edge, with one, with as many as are taken at a time, one fewer and one more, and with more."""
    plan = plan_of_scalars(scalars)
    assert placement_of(plan, dtype) is NodePlacement
    counts = torch.tensor([0, 1, NODE_ROWS - 1, NODE_ROWS, NODE_ROWS + 1, 3, 0, 2 * NODE_ROWS + 5, 2])
    nodes = torch.arange(len(counts)).repeat_interleave(counts)[torch.randperm(int(counts.sum()))]
    given = operands(plan, len(nodes), dtype)
    found = assert_sums_equal_definition(plan, given, nodes, len(counts), BOUNDS[dtype])
    assert not found[0][0].any(), "a node without an edge"
    assert not found[2][:, -6:].any(), "no path reads these"


@pytest.mark.parametrize("irrep", ["0e", "1o", "2e", "3o", "4e", "5o"])
def test_every_dimension(irrep: str) -> None:
    """Nodes and columns in registers at a time depend on the dimension: fours of nodes, and what is left."""
    for copies, mixed, count in ((1, 1, 1), (5, 4, 2), (3, 7, 5), (4, 9, 8)):
        plan = plan_of_scalars(9, f"{copies}x{irrep}", f"{mixed}x{irrep}")
        assert_sums_equal_definition(plan, operands(plan, 30), torch.randint(count, (30,)), count, 1e-12)


@pytest.mark.parametrize(
    "name, around", [("_ROWS", 64), ("_SUMMED_ROWS", 64), ("NODE_ROWS", 4), ("NODES_AT_A_TIME", 3), ("_SUMS", 4)]
)
@pytest.mark.parametrize("edges", [0, 1, 63, 64, 65, 200])
def test_blocks_of_rows(edges: int, name: str, around: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits on any number of threads."""
    for where in (module, tpgen.kernels.cpp.nodes):
        if hasattr(where, name):
            monkeypatch.setattr(where, name, around)
    tpgen.caches().clear()
    plan = plan_of_scalars(8, "9x0e+10x1o", "2x0e+4x1o")
    given, nodes = operands(plan, edges), torch.randint(7, (edges,))
    call = lambda: derivatives(lambda *of: compute(plan, *of, nodes, 7), given)  # noqa: E731
    found = on_threads(1, call)
    assert identical(found, on_threads(3, call))
    assert_equal(found, derivatives(lambda *of: define(plan, *of, nodes, 7), given), 1e-13)
    tpgen.caches().clear()


@pytest.mark.parametrize("target", ["avx2", "sse2"])
def test_vectors_of_other_lengths(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_TARGET", target)
    tpgen.caches().clear()
    plan, nodes = plan_of_scalars(13), torch.randint(5, (40,))
    for dtype, bound in BOUNDS.items():
        assert_sums_equal_definition(plan, operands(plan, 40, dtype), nodes, 5, bound)
    tpgen.caches().clear()


@pytest.mark.parametrize("opened", [(0, 1), (0, 2), (1, 2)])
def test_some_gradients(opened: tuple[int, ...]) -> None:
    """As where a network's weights or edges are constants: a kernel of two results."""
    plan, nodes = plan_of_scalars(13), torch.randint(5, (40,))
    given = [x.detach().requires_grad_(n in opened) for n, x in enumerate(operands(plan, 40))]
    wanted = [given[n] for n in opened]
    found, slow = (torch.autograd.grad(f(plan, *given, nodes, 5).square().sum(), wanted) for f in (compute, define))
    assert_equal(list(found), list(slow), 1e-13)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_node_that_is_not_there_is_an_error(wrong: int) -> None:
    plan = plan_of_scalars(8)
    with pytest.raises(InputError, match="edge_dst holds an index out of range"):
        compute(plan, *operands(plan, 3), torch.tensor([0, wrong, 4]), 5)


def test_indices_in_int32_and_results_of_two_paths() -> None:
    plan = make_plan("16x0e", "4x1o+3x1o", "2x1o", [(0, 0, 0, "uvw", True), (0, 1, 0, "uvw", True)])
    given, nodes = operands(plan, 40), torch.randint(5, (40,))
    assert placement_of(plan) is NodePlacement
    wanted = derivatives(lambda *of: define(plan, *of, nodes, 5), given)
    assert_equal(derivatives(lambda *of: compute(plan, *of, nodes.int(), 5), given), wanted, 1e-12)


def test_which_products_are_summed_by_node() -> None:
    for scalars in (FEWEST_SCALARS - 1, FEWEST_SCALARS):
        wanted = NodePlacement if scalars == FEWEST_SCALARS else BatchPlacement
        assert placement_of(plan_of_scalars(scalars)) is wanted
    plan = plan_of_scalars(16)
    assert placement_of(plan, torch.float64) is NodePlacement
    assert placement_of(plan, torch.bfloat16) is BatchPlacement
    assert placement_of(plan, rules=()) is BatchPlacement
    assert placement_of(plan, rules=(SOURCES, DESTINATIONS)) is BatchPlacement
    twice = make_plan("16x0e", "4x1o", "4x1o+2x1o", [(0, 0, 0, "uvw", True), (0, 0, 1, "uvw", True)])
    vectors = fully_connected("16x1o", "4x1o", "4x0e")
    others = make_plan("16x0e+2x0e", "4x1o", "4x1o", [(0, 0, 0, "uvw", True)])
    of_rows = make_plan("16x0e", "4x1o", "4x1o", [(0, 0, 0, "uvw", True)], shared_weights=False)
    for other in (twice, vectors, others, of_rows):
        assert placement_of(other) is BatchPlacement
    with pytest.raises(tpgen.TpgenError, match="two edges share"):
        placement_of(plan, rules=(DESTINATIONS, EDGE_PAIRS))


def test_what_is_no_number_stays_with_its_node() -> None:
    plan, nodes = plan_of_scalars(13), torch.arange(5).repeat_interleave(7)
    h, p, w = (x.detach() for x in operands(plan, 35))
    infinite = p.abs()
    infinite[9, 0] = float("inf")  # of the first irrep alone, 12x0e into 8x0e
    found = compute(plan, h.abs(), infinite, w.abs(), nodes, 5)
    assert found[1, :8].isposinf().all()
    assert found[:, 8:].isfinite().all()
    h[9, 12] = float("nan")
    found = compute(plan, h, p, w, nodes, 5)
    assert found[1, : o3.Irreps(OUT).dim - 9].isnan().all()
    assert not found[[0, 2, 3, 4]].isnan().any()
