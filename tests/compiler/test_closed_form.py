"""Derivatives as programs of their own: any order, under a compiling backend, with broadcasting and mixed paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tests.cases import STRATEGIES, assert_close, derivatives, operands, reference_right
from tests.machine import KERNEL
from tpgen.compiler.closed_form import ClosedForm
from tpgen.emitter.emit import emit_form
from tpgen.form.form import form_of
from tpgen.form.reference import reference_product
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.product import make_plan

# weighted and not, two paths into one segment, vectors that meet copy by copy
INSTRUCTIONS = [
    (0, 0, 0, "uvu", True),
    (0, 0, 1, "uvu", False),
    (1, 0, 2, "uvu", True),
    (1, 1, 2, "uvv", False),
    (0, 1, 0, "uuu", True),
]
SHARED = {True: "shared", False: "rows"}
# modes whose weights mix copies, two paths into one segment
MIXING = [(0, 0, 0, "uvw", True), (0, 0, 0, "u<vw", True), (1, 0, 1, "uvw", True)]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def small_plan(shared: bool) -> Plan:
    return make_plan("3x1o+3x0e", "3x1o+3x1o", "3x1e+3x0e+3x1o", INSTRUCTIONS, shared_weights=shared)


def check_derivatives(plan: Plan, product: TensorProduct, orders: int) -> None:
    inputs = list(operands(plan, requires_grad=True).values())
    results = product(*inputs), reference_product(plan, *inputs)
    for got, want in zip(*(derivatives(result, inputs, orders) for result in results), strict=True):
        assert_close(got, want, 1e-11)


@pytest.mark.parametrize("shared", SHARED, ids=SHARED.get)
@pytest.mark.parametrize("strategy", [*STRATEGIES, KERNEL])
def test_derivatives_of_three_orders(shared: bool, strategy: str) -> None:
    plan = small_plan(shared)
    product = TensorProduct.from_plan(plan, False, strategy=strategy, backend="aot_eager").double()
    check_derivatives(plan, product, orders=3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_derivatives_where_weights_mix_copies(strategy: str) -> None:
    plan = make_plan("2x1o+1x0e", "2x1o", "2x1e+1x1o", MIXING)
    product = TensorProduct.from_plan(plan, False, strategy=strategy, backend="aot_eager").double()
    check_derivatives(plan, product, orders=2)


@pytest.mark.parametrize("strategy", ["grouped", "unrolled"])
def test_derivatives_in_compiled_code(strategy: str) -> None:
    """As in training on forces: first order in one operand, second order in all."""
    plan = make_plan("2x1o", "1x1o", "2x1e", [(0, 0, 0, "uvu", True), (0, 0, 0, "uvw", True)])
    product = TensorProduct.from_plan(plan, False, strategy=strategy, backend="inductor").double()
    inputs = list(operands(plan, requires_grad=True).values())
    found = []
    for function in (product, lambda *xs: reference_product(plan, *xs)):
        (force,) = torch.autograd.grad(function(*inputs).sum(), inputs[1], create_graph=True)
        found.append((force, *torch.autograd.grad(force.sin().sum(), (inputs[0], inputs[2]))))
    for got, want in zip(*found, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("strategy", ["unrolled", KERNEL])
def test_derivatives_of_right(strategy: str) -> None:
    plan = small_plan(shared=True)
    product = TensorProduct.from_plan(plan, False, strategy=strategy, backend="aot_eager", compile_right=True).double()
    _, *inputs = operands(plan, requires_grad=True).values()
    results = product.right(*inputs), reference_right(plan, *inputs)
    for got, want in zip(*(derivatives(result, inputs) for result in results), strict=True):
        assert_close(got, want, 1e-11)


def test_gradients_of_broadcast_operands_have_their_shapes() -> None:
    product = TensorProduct("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)], strategy="unrolled", backend="aot_eager")
    x, y = torch.randn(5, 1, 6, requires_grad=True), torch.randn(3, requires_grad=True)
    eager = TensorProduct("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)], strategy="einsum")
    eager.load_state_dict(product.state_dict())
    inputs = [x, y, product.weight]
    torch.testing.assert_close(*(derivatives(module(*inputs), inputs) for module in (product, eager)))


def test_all_gradients_are_one_program() -> None:
    compiled = []

    def compile_program(module: torch.nn.Module) -> torch.nn.Module:
        compiled.append(module)
        return module

    plan = small_plan(shared=False)
    product = ClosedForm(form_of(plan), "unrolled", torch.empty(0, dtype=torch.float64), compile_program)
    inputs = list(operands(plan, requires_grad=True).values())
    product(*inputs).sum().backward()
    assert len(compiled) == 2
    # where less is wanted, less is computed
    product(inputs[0].detach(), inputs[1], inputs[2].detach()).sum().backward()
    assert len(compiled) == 3
    outputs = next(node for node in compiled[-1].graph.nodes if node.op == "output").args[0]
    assert len(outputs) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_joint_program_shares_nodes(strategy: str) -> None:
    form = form_of(small_plan(shared=False))
    slots = tuple(form.open(name) for name in ("x1", "x2", "w"))
    joint = len(emit_form(slots, strategy).graph.nodes)
    assert joint < sum(len(emit_form(slot, strategy).graph.nodes) for slot in slots)


def test_results_are_copied_where_the_next_run_overwrites_them() -> None:
    def compile_program(module: torch.nn.Module) -> Callable[..., tuple[Tensor, ...]]:
        memory: list[Tensor] = []

        def run(*xs: Tensor) -> tuple[Tensor, ...]:
            results = module(*xs)
            if not memory:
                memory.extend(results)
            return tuple(kept.copy_(result) for kept, result in zip(memory, results, strict=True))

        return run

    plan = small_plan(shared=True)
    like = torch.empty(0, dtype=torch.float64)
    product = ClosedForm(form_of(plan), "einsum", like, compile_program, clone_results=True)
    x1, x2, w = operands(plan).values()
    first, kept = product(x1, x2, w), reference_product(plan, x1, x2, w)
    product(2.0 * x1, x2, w)
    assert_close(first, kept)


def test_a_gradient_that_nobody_asked_for_is_none() -> None:
    plan = small_plan(shared=False)
    product = TensorProduct.from_plan(plan, False, strategy="grouped", backend="aot_eager").double()
    x1, x2, w = operands(plan, requires_grad=True).values()
    (force,) = torch.autograd.grad(product(x1, x2, w).sum(), x2, create_graph=True)
    # the force is linear in x1 and w, and does not depend on x2 itself
    assert torch.autograd.grad(force.sum(), x2, allow_unused=True)[0] is None
