"""Rules of rows in products of every mode: weights by element, of rows and of edges, against the definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.kernels.plans import VARIANTS, mode_plan, operands
from tests.machine import needs_compiler
from tpgen.base.errors import InputError, PlanError
from tpgen.form.reference import reference_product
from tpgen.kernels.rows import DESTINATIONS, EDGE_PAIRS, EDGES, ELEMENTS, SOURCES, parse_row_rules
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.ops import kernel_conv, kernel_product
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

pytestmark = pytest.mark.usefixtures("unoptimised")

ROWS, NODES, SETS = 11, 4, 3
WEIGHTED = [mode for mode, weighted, shared in VARIANTS if weighted and not shared]
INDEX = torch.tensor([2, 0, 0, 2, 2, 0, 2, 2, 0, 0, 2])  # element 1 has no rows
TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-4}


def derivatives(product: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """A product, its gradients, and gradients of these."""
    out = product(*inputs)
    first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), inputs)
    return [out, *first, *second]


def inputs_of(plan: Plan, dtype: torch.dtype, nodes: int = ROWS) -> list[Tensor]:
    given = operands(plan, ROWS, dtype)
    return [x.clone().requires_grad_() for x in (given["x1"][:nodes], given["x2"], given["w"][:SETS])]


def check(plan: Plan, dtype: torch.dtype, kernel: Callable[..., Tensor], wanted: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    nodes = NODES if kernel is not None and kernel.__name__ == "conv" else ROWS
    given = inputs_of(plan, dtype, nodes)
    exact = [x.detach().double().requires_grad_() for x in given]
    for found, want in zip(derivatives(kernel, given), derivatives(wanted, exact), strict=True):
        assert (found.double() - want).abs().max() <= TOLERANCES[dtype] * (1 + want.abs().max())


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("copies", [(3, 1), (17, 3)])
@pytest.mark.parametrize("mode", WEIGHTED)
def test_products_of_every_mode_have_weights_by_element(mode: str, copies: tuple[int, int], dtype: torch.dtype) -> None:
    plan = mode_plan(mode, True, False, *copies)

    def product(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        return kernel_product(x1, x2, w, describe(plan), INDEX)

    check(plan, dtype, product, lambda x1, x2, w: reference_product(plan, x1, x2, w[INDEX]))


@needs_compiler
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mode", WEIGHTED)
def test_so_have_convolutions(mode: str, dtype: torch.dtype) -> None:
    """Gathered, summed, and with weights by element at once: each sum in an order of its own."""
    plan, (src, dst) = mode_plan(mode, True, False, 5, 3), torch.arange(2 * ROWS).mul(7).remainder(NODES).view(2, -1)

    def conv(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        return kernel_conv(x1, x2, w, src, dst, NODES, describe(plan), INDEX)

    def definition(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        messages = reference_product(plan, x1[src], x2, w[INDEX])
        return messages.new_zeros(NODES, messages.shape[1]).index_add(0, dst, messages)

    check(plan, dtype, conv, definition)


@needs_compiler
@pytest.mark.parametrize(
    "plan", [channelwise("8x0e", "1o", "1o"), fully_connected("2x0e", "1o", "3x1o", shared_weights=False)]
)
def test_a_batch_of_weights_by_element(plan: Plan) -> None:
    x1, x2, w = (x.detach() for x in inputs_of(plan, torch.float64))
    many = torch.stack([w, 2 * w, -w])
    found = torch.func.vmap(lambda w: kernel_product(x1, x2, w, describe(plan), INDEX))(many)
    torch.testing.assert_close(found, torch.stack([reference_product(plan, x1, x2, one[INDEX]) for one in many]))


@needs_compiler
def test_what_a_rule_asks_for_is_said() -> None:
    plan = channelwise("8x0e", "1o", "1o")
    x1, x2, w = (x.detach() for x in inputs_of(plan, torch.float64))
    with pytest.raises(InputError, match="index: elements run from 0 to 2, got 1 to 3"):
        kernel_product(x1, x2, w, describe(plan), INDEX + 1)
    with pytest.raises(InputError, match="index must be int64"):
        kernel_product(x1, x2, w, describe(plan), INDEX.int())
    with pytest.raises(InputError, match="index: give it too"):
        torch.ops.tpgen.form([x1, x2, w], [], describe(plan), "x1 x2 w -> out", "element")
    with pytest.raises(InputError, match="rows share one set of weights"):
        kernel_product(x1, x2, w[0], describe(channelwise("8x0e", "1o", "1o", shared_weights=True)), INDEX)


def test_rules_are_read_by_their_names() -> None:
    assert parse_row_rules("") == ()
    assert parse_row_rules("src dst element") == (*EDGES, ELEMENTS) == (SOURCES, DESTINATIONS, ELEMENTS)
    assert parse_row_rules("pair") == (EDGE_PAIRS,)
    for text, message in (("dst src", "in the order of"), ("element pair", "one rule"), ("edge", "unknown row rule")):
        with pytest.raises(PlanError, match=message):
            parse_row_rules(text)
