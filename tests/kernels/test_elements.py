"""Linear layers with weights of elements, which an index selects for each row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.test_products import identical, on_threads
from tests.machine import needs_compiler
from tpgen.base.errors import InputError, PlanError
from tpgen.emitter.emit import emit_plan
from tpgen.form.reference import reference_product
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.build.build import load_kernel
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.target import kernel_obstacle
from tpgen.kernels.rows import ELEMENTS as ELEMENTS_RULE
from tpgen.kernels.runtime.call import FormCall, make_product_call
from tpgen.kernels.runtime.description import OPENED_BY_DIRECTION, describe, description_of_plan, kernel_source
from tpgen.kernels.runtime.load import generate_kernel_source
from tpgen.kernels.runtime.ops import kernel_layer
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.workspace import count_call_workspace
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.read import read_plan

ENDS = "8x0e+4x1o", "6x1o+5x0e+2x0e+3x2e"
PLAN = make_linear_plan(*ENDS, shared_weights="element")
# unlike vectors, several tiles, segments that no path reads or writes
WIDE = make_linear_plan("33x0e+1x1e+17x1o+5x2e", "20x1o+48x0e+2x0o+7x2e", shared_weights="element")
ELEMENTS = torch.tensor([3, 0, 1, 3, 3, 0, 1])  # none of the third
FORWARD = "x1 x2 w -> out"

Layer = Callable[[Tensor, Tensor], Tensor]


def operands(plan: Plan = PLAN, rows: int = 7, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x, w = torch.randn(rows, plan.irreps_in.dim, dtype=dtype), torch.randn(4, plan.weight_numel, dtype=dtype)
    return x.requires_grad_(), w.requires_grad_()


def layer(x: Tensor, w: Tensor, elements: Tensor = ELEMENTS, plan: Plan = PLAN) -> Tensor:
    return kernel_layer(x, w, elements, describe(plan))


def by_definition(x: Tensor, w: Tensor, elements: Tensor = ELEMENTS, plan: Plan = PLAN) -> Tensor:
    return reference_product(plan.remade(shared_weights=False), x, w[elements])


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plan", [PLAN, WIDE])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_each_row_has_the_weights_of_its_element(plan: Plan, dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    given, elements = operands(plan, rows, dtype), torch.randint(0, 2, (rows,)) * 3
    wide = [x.detach().double().requires_grad_() for x in given]
    found, wanted = layer(*given, elements, plan), by_definition(*wide, elements, plan)
    ends = torch.randn_like(wanted)
    found = [found, *torch.autograd.grad(found, given, ends.to(dtype))]
    wanted = [wanted, *torch.autograd.grad(wanted, wide, ends.to(dtype).double())]
    for mine, theirs in zip(found, wanted, strict=True):
        scale = theirs.abs().max()
        assert (mine.double() - theirs).abs().max() <= 20 * torch.finfo(dtype).eps * scale
    assert not found[2][1:3].any(), "elements without rows have no gradient"


@needs_compiler
def test_results_do_not_depend_on_threads() -> None:
    x, w = operands(WIDE, 5000, torch.float32)
    elements = torch.randint(0, 4, (5000,))

    def compute() -> list[Tensor]:
        out = layer(x, w, elements, WIDE)
        return [out, *torch.autograd.grad(out.square().sum(), (x, w))]

    assert identical(on_threads(1, compute), on_threads(2, compute))


@needs_compiler
def test_derivatives_of_two_orders() -> None:
    assert torch.autograd.gradcheck(layer, operands(), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(layer, operands(), check_batched_grad=True)


@needs_compiler
def test_a_third_derivative() -> None:
    def third(f: Layer) -> Tensor:
        torch.manual_seed(3)
        x, w = operands()
        (first,) = torch.autograd.grad(f(x, w).pow(3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), w, create_graph=True)
        return torch.autograd.grad(second.sum(), x)[0]

    torch.testing.assert_close(third(layer), third(by_definition))


@needs_compiler
def test_without_an_index_rows_share_one_set_or_have_their_own() -> None:
    text, (x, w) = describe(PLAN), operands()
    for sets, elements in ((w[:1], torch.zeros(7, dtype=torch.int64)), (w[ELEMENTS], torch.arange(7))):
        call = FormCall((x, x[:, :0], sets), (), text, FORWARD, (ELEMENTS_RULE,))
        torch.testing.assert_close(kernels_of(text).run(call)[0], by_definition(x, sets, elements))


@needs_compiler
def test_no_rows() -> None:
    x, w = operands(rows=0)
    found = layer(x, w, ELEMENTS[:0])
    assert found.shape == (0, PLAN.irreps_out.dim)
    assert [g.shape for g in torch.autograd.grad(found.sum(), (x, w))] == [x.shape, w.shape]


@needs_compiler
def test_transforms_of_torch() -> None:
    x, w = operands()
    many, some = torch.randn(3, *x.shape, dtype=torch.float64), torch.randn(3, *w.shape, dtype=torch.float64)
    found = torch.func.vmap(layer, (0, None))(many, w)
    torch.testing.assert_close(found, torch.stack([layer(one, w) for one in many]))
    found = torch.func.vmap(layer)(many, some)
    torch.testing.assert_close(found, torch.stack([layer(*both) for both in zip(many, some, strict=True)]))
    by_transform = torch.func.grad(lambda x: layer(x, w).sum())(x)
    torch.testing.assert_close(by_transform, torch.autograd.grad(layer(x, w).sum(), x)[0])
    closed_over = torch.func.grad(lambda scale: (layer(x, w) * scale).sum())(torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(closed_over, layer(x, w).sum())


@needs_compiler
@pytest.mark.slow
def test_a_compiled_graph_holds_the_layer() -> None:
    (x, w), text = operands(), describe(PLAN)
    compiled = torch.compile(lambda x, w: kernel_layer(x.sin(), w, ELEMENTS, text).cos(), fullgraph=True)
    found, wanted = compiled(x, w), by_definition(x.sin(), w).cos()
    torch.testing.assert_close(found, wanted)
    for mine, theirs in zip(*(torch.autograd.grad(y.sum(), (x, w)) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("strategy", ["einsum", "grouped", "unrolled"])
def test_graphs_gather_the_weights(strategy: str) -> None:
    program, (x, w) = emit_plan(PLAN, "forward", strategy).module().double(), operands()
    torch.testing.assert_close(program(x, w, ELEMENTS), by_definition(x, w))
    assert "at element" in str(description_of_plan(PLAN).form)


def test_a_plan_says_so_and_is_read_back() -> None:
    assert "weights per element" in str(PLAN)
    assert read_plan(PLAN.to_json()) == PLAN != make_linear_plan(*ENDS)
    assert "of one element" in str(description_of_plan(PLAN).schedule(torch.float32))
    with pytest.raises(PlanError, match=r"shared_weights.*'element', got 'rows'"):
        make_linear_plan(*ENDS, shared_weights="rows")
    with pytest.raises(PlanError, match=r"'shared_weights':.*'element', got 'rows'"):
        read_plan(PLAN.to_json().replace('"element"}', '"rows"}'))


def test_a_gpu_has_no_kernel_of_it() -> None:
    reason = kernel_obstacle(
        KernelSpec(description_of_plan(PLAN), description_of_plan(PLAN).calls()[0], torch.float32), chip_of(90)
    )
    assert reason is not None
    assert "weights of elements have kernels on a CPU alone" in reason


@needs_compiler
def test_bytes_of_a_call_hold_the_lists_of_rows() -> None:
    (x, w), text, index = operands(rows=1000), describe(PLAN), torch.zeros(1000, dtype=torch.int64)
    few, many = (
        count_call_workspace(FormCall((x, x[:, :0], w[:n]), [index], text, FORWARD, (ELEMENTS_RULE,))) for n in (1, 4)
    )
    assert many > few > 8 * 1000


@needs_compiler
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((torch.zeros(7, 19), None, ELEMENTS), r"x1 must have shape \(7, 20\), got \(7, 19\)"),
        ((torch.zeros(7, 20), torch.zeros(4, 3), ELEMENTS), r"w must have shape \(elements, \d+\), got \(4, 3\)"),
        ((torch.zeros(7, 20), None, ELEMENTS.int()), "index must be int64, got torch.int32"),
        ((torch.zeros(7, 20), None, ELEMENTS[1:]), r"index must have shape \(7,\), one index for every row"),
        (
            (torch.zeros(7, 20), None, ELEMENTS + 1),
            r"index: elements run from 0 to 3, got 1 to 4",
        ),
        (
            (torch.zeros(7, 20), None, ELEMENTS - 1),
            r"index: elements run from 0 to 3, got -1 to 2",
        ),
    ],
)
def test_bad_input(given: tuple, message: str) -> None:
    x, w, elements = given
    with pytest.raises(InputError, match=message):
        layer(x, torch.zeros(4, PLAN.weight_numel) if w is None else w, elements)


@needs_compiler
@pytest.mark.parametrize("direction", OPENED_BY_DIRECTION)
def test_the_source_of_a_plan_is_that_which_runs(direction: str) -> None:
    source = kernel_source(PLAN, direction=direction)
    spec = KernelSpec(
        description_of_plan(PLAN), make_product_call(OPENED_BY_DIRECTION[direction]), torch.float32, (ELEMENTS_RULE,)
    )
    assert source.text == generate_kernel_source(spec).text
    load_kernel(source.text)
