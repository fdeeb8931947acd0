"""Launches of a polynomial's kernels by the runtime in C++: those of Python to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.fakes import FakeDriver
from tests.kernels.cuda.silent import silent_driver, use
from tests.kernels.cuda.test_native import frames, number_of, same
from tests.machine import needs_compiler
from tests.polynomials import mixed, operands_of, symmetric
from tpgen.kernels.cuda.orders import sort_by_owner
from tpgen.kernels.rows import ELEMENTS, RowIndex
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.polynomials import parse_polynomial_call
from tpgen.kernels.runtime.runtime import kernels_of

pytestmark = needs_compiler
INDEX = torch.tensor([0, 2, 2, 0, 0, 2, 0])


def call_of(name: str, indexed: bool = True, channels: int = 5) -> FormCall:
    """Rows of three elements, or of one."""
    plan = symmetric(degree=2) if indexed else mixed("ir_mul")
    slots = parse_polynomial_call(plan, name)
    there, out = operands_of(plan, 7, 3 if indexed else 1, channels, grad=False), plan.operand("out")
    cotangent = torch.randn(7, out.dim * (channels if out.channels else 1), dtype=torch.float64)
    by_name = dict(zip([o.name for o in plan.operands], [*there, cotangent], strict=True))
    tensors = [by_name[slot.operand] for slot in slots.given]
    return of_elements(FormCall(tensors, (), plan.to_json(), str(slots)), INDEX.clone() if indexed else None)


def of_elements(call: FormCall, index: Tensor | None) -> FormCall:
    return call.with_indices([RowIndex(ELEMENTS, index)])


def both(call: FormCall) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """By Python, which enters the kernel, and then by C++ alone."""
    kernels = kernels_of(call.description)
    return kernels._check_and_run(call), kernels.compute_in_cpp(call)


@pytest.mark.parametrize("name", ["forward", "backward", "second"])
@pytest.mark.parametrize("indexed, channels", [(True, 5), (False, 40)])
def test_all_calls(name: str, indexed: bool, channels: int, native_gpu: FakeDriver) -> None:
    """Channels in one chunk and in two; an index that is met first, and one that is known."""
    call = call_of(name, indexed, channels)
    kernels = kernels_of(call.description)
    assert not kernels.compute_in_cpp(call)
    by_python = kernels._check_and_run(call)
    launched = list(native_gpu.launched)
    for times in (2, 3):
        assert same(kernels.compute_in_cpp(call), by_python)
        assert native_gpu.launched == launched * times


# -- what stands between a call and the driver -------------------------------------------------------------------------


@pytest.fixture
def silent(native_gpu: FakeDriver) -> Any:
    """A driver that does nothing, in C: for kernels that the other one has launched once."""
    return silent_driver()


@pytest.mark.parametrize("name, launches", [("forward", 1), ("backward", 2)])
def test_no_frame_of_python_between_an_operator_and_the_driver(name: str, launches: int, silent: Any) -> None:
    call = call_of(name)
    kernels, (index,) = kernels_of(call.description), call.at
    kernels.run(call)
    number = number_of(call)
    use(silent)
    operator, order = torch.ops.tpgen_native.form.default._op, sort_by_owner(index, 3).packed
    assert frames(operator, [*call.tensors, index, order], number, 0, 1, 7) == []
    assert silent.fake_count(0) == launches
    for given in ((order,), (index, order[1:]), (index, order.int()), (index[1:], order), (index.int(), order)):
        assert not operator([*call.tensors, *given], number, 0, 1, 7)
    assert not operator([*call.tensors[1:], index, order], number, 0, 1, 7)
    assert not operator([*call.tensors, index, order], number, 0, 1, 8)
    assert silent.fake_count(0) == launches


class Elements:
    """Calls on a row of a tensor, which each takes anew."""

    def __init__(self, name: str = "backward") -> None:
        self.call = call_of(name)
        self.kernels = kernels_of(self.call.description)
        self.whole = torch.stack([INDEX, 2 - INDEX])

    def taken(self, row: int = 0) -> FormCall:
        return of_elements(self.call, self.whole[row])

    def known(self) -> int:
        assert self.kernels._launched is not None
        return sum(len(seen.known) for seen in self.kernels._launched._seen.values())


def test_frames_of_python_on_a_users_call(silent: Any) -> None:
    """As of convolutions, with an index and without, of an index itself and of a part that is taken anew."""
    rows, call, elements = call_of("backward", indexed=False), call_of("forward"), Elements()
    for take, launches in ((lambda: rows, 3), (lambda: call, 1), (elements.taken, 2)):
        kernels = kernels_of(take().description)
        kernels.run(take())
        assert bool(kernels.compute_in_cpp(take()))
        use(silent)
        assert frames(kernels.compute_in_cpp, take()) == ["compute_in_cpp", "launch_call"][: 1 + len(take().at)]
        assert silent.fake_count(0) == launches


def test_known_elements_are_those_of_a_version_a_part_and_a_size(native_gpu: FakeDriver) -> None:
    """Of others nothing is launched, until Python has sorted them; and nothing is left of an index that is gone."""
    elements = Elements()
    elements.kernels.run(elements.taken())
    for row, known in ((0, 1), (1, 2)):
        by_python, by_runtime = both(elements.taken(row))
        assert same(by_runtime, by_python)
        assert elements.known() == known
    more = elements.taken()
    wider = [torch.cat([x, x[:1]]) if x.shape[0] == 3 else x for x in more.tensors]  # another element, without rows
    assert not elements.kernels.compute_in_cpp(more._replace(tensors=wider))
    for call in (more._replace(tensors=wider), more):
        by_python, by_runtime = both(call)
        assert same(by_runtime, by_python)
    elements.whole[0, 0] = 2
    assert not elements.kernels.compute_in_cpp(elements.taken())
    by_python, by_runtime = both(elements.taken())
    assert same(by_runtime, by_python)
    assert elements.known() == 1
    del more, call
    elements.whole = torch.zeros(2, 0)
    assert elements.known() == 0


@pytest.mark.parametrize("change", [{"stream": 8}, {"capture": 1}])
def test_known_elements_are_those_of_a_stream_and_of_no_graph(change: dict[str, int], silent: Any) -> None:
    """Which C++ asks behind the look-up: then nothing is launched by it."""
    elements = Elements()
    elements.kernels.run(elements.taken())
    for again in (False, True):
        use(silent, **(change if again else {}))
        for _ in range(2):
            elements.kernels.compute_in_cpp(elements.taken())
        assert (len(frames(elements.kernels.compute_in_cpp, elements.taken())) == 2) == (not again)


def test_tensors_that_are_not_taken_are_let_go(silent: Any) -> None:
    """Of a list that is longer or shorter than a call's, or of a call that nobody has entered."""
    call = call_of("forward")
    kernels = kernels_of(call.description)
    kernels.run(call)
    use(silent)
    number, (index,) = number_of(call), call.at
    operator, order = torch.ops.tpgen_native.form.default, sort_by_owner(index, 3).packed
    for count, n in ((8, number), (2, number), (4, -1)):
        tensors = [torch.zeros(7, 5) for _ in range(count)]
        seen = [ref(x) for x in tensors]
        assert not operator([*tensors, index, order], n, 0, 1)
        del tensors
        assert not any(x() is not None for x in seen)
