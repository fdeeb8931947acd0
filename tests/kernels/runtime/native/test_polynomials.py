"""The runtime computes what Python's calls of polynomials do, to the bit, and leaves to Python what is not usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tests.machine import needs_compiler
from tests.polynomials import PLANS, operands_of, symmetric
from tpgen.base.errors import InputError
from tpgen.kernels.rows import ELEMENTS as OF_ELEMENTS
from tpgen.kernels.runtime import memory
from tpgen.kernels.runtime import runtime as runtime_of_forms
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.memory import LARGE
from tpgen.kernels.runtime.native import runtime as native
from tpgen.kernels.runtime.ops import kernel_polynomial
from tpgen.kernels.runtime.polynomials import forward_call, named_call
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.planner.plan import Plan

pytestmark = needs_compiler
ROWS, ELEMENTS, CHANNELS = 7, 3, 16
INDEX = torch.tensor([0, 2, 2, 0, 0, 2, 0])  # no row of element 1


def point(plan: Plan, name: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Tensors for a named call: those of the polynomial, and cotangents in the shape of what they belong to."""
    tensors = [x.detach().to(dtype) for x in operands_of(plan, ROWS, ELEMENTS, CHANNELS)]
    out = torch.randn(ROWS, plan.out.dim * CHANNELS, dtype=dtype)
    likes = {o.name: x for o, x in zip((o for o in plan.operands if o.name != "out"), tensors, strict=True)}
    slots = named_call(plan, name).given[len(tensors) :]
    return [*tensors, *(torch.randn_like(likes.get(slot.operand, out)) for slot in slots)]


def index_of(plan: Plan) -> Tensor | None:
    return INDEX if plan.weights else None


def call_of(plan: Plan, name: str, tensors: Sequence[Tensor], index: Tensor | None) -> FormCall:
    at = [] if index is None else [index]
    return FormCall(tensors, at, plan.to_json(), str(named_call(plan, name)), (OF_ELEMENTS,))


def by_runtime(plan: Plan, name: str, tensors: list[Tensor], index: Tensor | None) -> list[Tensor]:
    """A call by the runtime alone, which knows its kernel once Python has run it."""
    kernels, call = kernels_of(plan.to_json()), call_of(plan, name, tensors, index)
    kernels.run(call)
    return list(kernels.compute_in_cpp(call))


def in_python(
    plan: Plan, name: str, tensors: list[Tensor], index: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> list[Tensor]:
    """The same by kernels that the runtime does not know."""
    with monkeypatch.context() as patch:
        patch.setattr(runtime_of_forms, "runtime", lambda: None)
        return Kernels(plan.to_json()).run(call_of(plan, name, tensors, index))


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return len(found) == len(wanted) > 0 and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("call", ["forward", "backward", "second"])
@pytest.mark.parametrize("name", PLANS)
def test_every_call(name: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS[name]()
    given = plan, call, point(plan, call), index_of(plan)
    assert same(by_runtime(*given), in_python(*given, monkeypatch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    given = symmetric(), "backward", point(symmetric(), "backward", dtype), INDEX
    assert same(by_runtime(*given), in_python(*given, monkeypatch))


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "every other column": lambda x: torch.stack([x, x + 1], dim=-1).flatten(-2)[..., ::2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "part of wider rows": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
}


@pytest.mark.parametrize("how", STRIDES)
def test_tensors_of_any_strides(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = symmetric()
    given = plan, "backward", list(map(STRIDES[how], point(plan, "backward"))), torch.stack([INDEX, INDEX], 1)[:, 0]
    assert same(by_runtime(*given), in_python(*given, monkeypatch))


def test_both_derivatives_go_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = symmetric()
    leaves = [x.detach().requires_grad_() for x in operands_of(plan, ROWS, ELEMENTS, CHANNELS)]

    def second() -> list[Tensor]:
        made = kernel_polynomial(leaves, INDEX, plan.to_json(), str(forward_call(plan)))
        first = torch.autograd.grad(made.sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.cos().sum() for x in first), leaves))

    def away(self: Kernels, call: FormCall) -> list[Tensor]:
        raise AssertionError(f"a usual call went through Python: {call.call}")

    wanted = second()
    monkeypatch.setattr(Kernels, "run", away)
    assert same(second(), wanted)


def test_what_is_not_usual_is_left_to_python() -> None:
    plan = symmetric()
    tensors = point(plan, "forward")
    by_runtime(plan, "forward", tensors, INDEX)
    kernels = kernels_of(plan.to_json())

    def at_once(*given: Tensor, index: Tensor | None = INDEX) -> int:
        return len(kernels.compute_in_cpp(call_of(plan, "forward", given, index)))

    first, *weights = tensors
    assert at_once(*tensors) == 1
    assert torch.func.vmap(lambda x: x + at_once(x, *weights))(first.expand(2, *first.shape)).equal(
        first.expand(2, *first.shape)
    )
    assert torch.func.grad(lambda x: x.sum() * (1 + at_once(x, *weights)))(first).equal(torch.ones_like(first))
    with FakeTensorMode() as fake:
        assert at_once(*map(fake.from_tensor, tensors), index=fake.from_tensor(INDEX)) == 0
    with FlopCounterMode(display=False):
        assert at_once(*tensors) == 0
    assert at_once(*(x.to("meta") for x in tensors)) == 0


def test_results_without_channels_are_sums_over_none() -> None:
    plan = symmetric()
    none = [x[..., :0] for x in point(plan, "backward")]
    made = by_runtime(plan, "backward", none, INDEX)
    assert len(made) > 1
    assert all(not x.count_nonzero() for x in made)


def test_what_does_not_fit_is_left_to_python() -> None:
    plan = symmetric()
    first, *weights = point(plan, "forward")
    by_runtime(plan, "forward", [first, *weights], INDEX)
    kernels = kernels_of(plan.to_json())
    others: dict[str, tuple[list[Tensor], Tensor | None]] = {
        "a row too few": ([first[1:], *weights], INDEX),
        "part of a channel": ([first[..., 1:], *weights], INDEX),
        "another dtype": ([first, *weights[:-1], weights[-1].double()], INDEX),
        "a dtype without its kernel": ([x.half() for x in (first, *weights)], INDEX),
        "a tensor too few": ([first, *weights[:-1]], INDEX),
        "no index": ([first, *weights], None),
        "indices too short": ([first, *weights], INDEX[1:]),
        "indices of 32 bits": ([first, *weights], torch.zeros(ROWS, dtype=torch.int32)),
        "a number": ([first.sum(), *weights], INDEX),
    }
    for why, (tensors, index) in others.items():
        assert not kernels.compute_in_cpp(call_of(plan, "forward", tensors, index)), why
    for number in (-1, 2**40):
        assert not native.runtime().form([first, *weights, INDEX], number)


def test_faults_are_told_by_python() -> None:
    plan = symmetric()
    tensors = point(plan, "forward")
    by_runtime(plan, "forward", tensors, INDEX)
    with pytest.raises(InputError, match="index: elements run from 0 to 2, got 3 to 5"):
        kernel_polynomial(tensors, INDEX + 3, plan.to_json(), str(forward_call(plan)))


def test_large_results_stand_on_pages_that_are_kept() -> None:
    plan = symmetric()
    first, *weights = point(plan, "forward")
    wide = [x.repeat_interleave(-(-LARGE // (4 * ROWS * plan.out.dim * CHANNELS)), 1) for x in (first,)]
    times = wide[0].numel() // first.numel()
    tensors = [*wide, *(w.repeat_interleave(times, -1) for w in weights)]
    found = by_runtime(plan, "forward", tensors, INDEX)
    assert found[0].nbytes >= LARGE
    place, before = found[0].data_ptr(), memory.kept_bytes()
    size = found[0].nbytes
    del found
    assert memory.kept_bytes() >= before + size  # nothing else holds it
    assert by_runtime(plan, "forward", tensors, INDEX)[0].data_ptr() == place


def test_without_a_runtime_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = symmetric(), "forward", point(symmetric(), "forward"), INDEX
    wanted = by_runtime(*given)
    assert same(in_python(*given, monkeypatch), wanted)


def test_a_polynomial_that_was_forgotten_gets_its_numbers_again() -> None:
    plan, tensors = symmetric(), point(symmetric(), "forward")
    by_runtime(plan, "forward", tensors, INDEX)
    numbers = dict(kernels_of(plan.to_json())._entered)
    kernels_of.cache_clear()
    by_runtime(plan, "forward", tensors, INDEX)
    again = kernels_of(plan.to_json())._entered
    assert again.items() <= numbers.items()
    assert again
