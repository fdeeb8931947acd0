"""Launches by the runtime in C++: those of Python to the bit, and no frame of Python on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.fakes import Products
from tests.kernels.cuda.silent import silent_driver, use
from tests.kernels.plans import operands
from tests.machine import needs_compiler
from tpgen.base.errors import BackendError
from tpgen.form.reference import reference_product
from tpgen.kernels.cuda.orders import order_of
from tpgen.kernels.runtime import forms
from tpgen.kernels.runtime.call import OUT, ProductCall, W, opening_text
from tpgen.kernels.runtime.native import runtime as native
from tpgen.kernels.runtime.ops import describe, kernel_product
from tpgen.kernels.runtime.runtime import Kernels
from tpgen.planner.presets import channelwise, fully_connected

pytestmark = needs_compiler
PLANS = {
    "shared": channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=True),
    "rows": channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=False),
    # cotangents that are long, and longer than rows of x1: gradients come by receiver, and another kernel collects them
    "wide": channelwise("64x0e+64x1o", "0e+1o+2e+3o", "64x0e+64x1o+64x2e+64x3o", shared_weights=False),
    "mixed": fully_connected("3x0e+2x1o", "0e+1o", "4x1o", shared_weights=False),
}
ROWS = 7


def call_of(name: str, mask: int = OUT, rows: int = ROWS) -> ProductCall:
    x1, x2, w, g = operands(PLANS[name], rows).values()
    return ProductCall(x1, x2, w, None if mask == OUT else g, None, None, describe(PLANS[name]), mask)


def on_edges(call: ProductCall, dtype: torch.dtype = torch.int64, nodes: int = 4) -> ProductCall:
    src, dst = torch.randint(nodes, (2, call.x2.shape[0]), generator=torch.Generator().manual_seed(1)).to(dtype)
    g = None if call.g is None else call.g[:nodes].clone()
    return call._replace(x1=call.x1[:nodes].clone(), g=g, src=src, dst=dst, nodes=nodes)


def both(call: ProductCall) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """By Python, which enters the kernel, and then by C++ alone."""
    kernels = forms.kernels_of(call.description)
    return kernels._run(call.listed()), kernels.quick(call)


def same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return len(found) == len(wanted) > 0 and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mask", [OUT, 7, W, 15])
def test_rows(name: str, mask: int, native_gpu: Products) -> None:
    by_python, by_runtime = both(call_of(name, mask))
    assert same(by_runtime, by_python)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    "name, mask", [("rows", OUT), ("shared", 7), ("rows", 15), ("rows", W), ("mixed", 15), ("wide", 7), ("wide", 15)]
)
def test_edges(name: str, mask: int, dtype: torch.dtype, native_gpu: Products) -> None:
    """Every kind of owner; as many edges as take a second launch for those that lie across runs."""
    by_python, by_runtime = both(on_edges(call_of(name, mask, 300), dtype))
    assert same(by_runtime, by_python)
    collects = any(source.placement.scattered for source in native_gpu.sources)
    assert collects == (name == "wide")


@pytest.mark.parametrize("edges, nodes", [(0, 4), (0, 0), (5, 4)])
def test_gradients_are_collected_of_senders_without_edges(edges: int, nodes: int, native_gpu: Products) -> None:
    """Zeros; of no sender at all nothing is launched, which the driver would refuse."""
    call = on_edges(call_of("wide", 7))
    assert call.src is not None
    assert call.dst is not None
    assert call.g is not None
    fewer = call._replace(x1=call.x1[:nodes].clone(), g=call.g[:nodes].clone(), nodes=nodes)
    fewer = fewer._replace(**{name: getattr(call, name)[:edges].clone() for name in ("x2", "w", "src", "dst")})
    by_python, by_runtime = both(fewer)
    assert same(by_runtime, by_python)


# -- what stands between a call and the driver -------------------------------------------------------------------------


@pytest.fixture
def silent(native_gpu: Products) -> Any:
    """A driver that does nothing, in C: for kernels that the other one has launched once."""
    return silent_driver()


def frames(call: Any, *arguments: object) -> list[str]:
    """Frames of Python in a call."""
    seen = list[str]()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
    return seen


def test_no_frame_of_python_between_an_operator_and_the_driver(silent: Any) -> None:
    rows, edges = call_of("shared", 7), on_edges(call_of("rows", 7))
    for call in (rows, edges):
        forms.kernels_of(call.description).run(call)
    numbers = [forms.kernels_of(call.description)._number for call in (rows, edges)]
    use(silent)
    x1, x2, w, g, *_ = rows
    assert frames(torch.ops.tpgen_native.run.default._op, x1, x2, w, numbers[0], 7, g) == []
    assert silent.fake_count(0) == 2  # the rows, and the sum of their parts of the weights' gradient
    x1, x2, w, g, src, dst, *_ = edges
    assert src is not None
    given = x1, x2, w, numbers[1], 7, g, src, dst, 4, order_of(src, 4).whole, None, 7
    assert frames(torch.ops.tpgen_native.sorted.default._op, *given) == []
    assert silent.fake_count(0) == 4  # edges by sender, and the sums of runs that lie across blocks
    assert silent.fake_count(1) == 0


def test_no_frame_of_python_in_a_convolution_that_collects(silent: Any) -> None:
    call = on_edges(call_of("wide", 7))
    forms.kernels_of(call.description).run(call)
    use(silent)
    x1, x2, w, g, src, dst, *_ = call
    assert src is not None
    assert dst is not None
    by_src, by_dst = (order_of(end, 4).whole for end in (src, dst))
    number, operator = forms.kernels_of(call.description)._number, torch.ops.tpgen_native.sorted.default._op
    assert frames(operator, x1, x2, w, number, 7, g, src, dst, 4, by_src, by_dst) == []
    assert silent.fake_count(0) == 2  # the gradients by edge, and their sums
    for orders in ((None, by_dst), (by_dst[1:], by_dst), (by_src, by_src[1:]), (by_src.int(), by_dst)):
        assert not operator(x1, x2, w, number, 7, g, src, dst, 4, *orders)


class Ends:
    """Calls on rows of an ``edge_index`` that each takes anew."""

    def __init__(self, name: str = "wide", mask: int = 15) -> None:
        self.call = on_edges(call_of(name, mask))
        assert self.call.src is not None
        assert self.call.dst is not None
        self.edge_index = torch.stack([self.call.src, self.call.dst])
        self.kernels = forms.kernels_of(self.call.description)

    def taken(self, first: int = 0) -> ProductCall:
        src, dst = self.edge_index.unbind() if first == 0 else (self.edge_index[1], self.edge_index[0])
        return self.call._replace(src=src, dst=dst)

    def known(self) -> int:
        assert self.kernels._launched is not None
        return len(self.kernels._launched._seen)


def test_frames_of_python_on_a_users_call(silent: Any) -> None:
    """Edges take one more than rows, where tensors have an identity and a version, whoever takes them out of what."""
    rows, ends = call_of("rows"), Ends()
    calls = {"rows": lambda: rows, "edges": lambda: ends.call, "edge_index": ends.taken}
    counted = {}
    for name, take in calls.items():
        kernels = forms.kernels_of(take().description)
        kernels.run(take())
        use(silent)
        assert kernels.quick(take())
        counted[name] = len(frames(kernels.quick, take()))
        assert silent.fake_count(0) == 2 * (1 if name == "rows" else 4)  # by receiver, collected, and forward in runs
    assert counted == {"rows": 1, "edges": 2, "edge_index": 2}


def test_known_edges_are_those_of_a_version_a_part_and_a_size(native_gpu: Products) -> None:
    """Of others nothing is launched, until Python has sorted them; and nothing is left of edges that are gone."""
    ends = Ends()
    ends.kernels.run(ends.taken())
    assert ends.kernels.quick(ends.taken())
    assert same(*both(ends.taken(1)))  # the other way round
    more = ends.taken()._replace(x1=ends.call.x1.repeat(2, 1))
    assert not ends.kernels.quick(more)
    assert same(*both(more))
    ends.edge_index[1] = ends.edge_index[1].flip(0)
    assert not ends.kernels.quick(ends.taken())
    by_python, by_runtime = both(ends.taken())
    assert same(by_runtime, by_python)
    assert same(ends.kernels.quick(ends.taken()), by_python)
    assert ends.known() == 1
    del more
    ends.edge_index = torch.zeros(2, 0)
    assert ends.known() == 0


@pytest.mark.parametrize("change", [{"stream": 8}, {"capture": 1}])
def test_known_edges_are_those_of_a_stream_and_of_no_graph(change: dict[str, int], silent: Any) -> None:
    """Which C++ asks behind the look-up: then nothing is launched."""
    ends = Ends()
    ends.kernels.run(ends.taken())
    launched = ends.kernels._launched
    assert launched is not None
    for again in (False, True):
        use(silent, **(change if again else {}))
        for _ in range(2):
            known = [known for seen in launched._seen.values() for known in seen.known.values()]
            made = ends.kernels.quick(ends.taken())
        assert bool(made)
        assert (len(frames(ends.kernels.quick, ends.taken())) == 2) == (not again)
        assert len(known) == 1


def test_the_default_stream_alone_needs_a_context(silent: Any) -> None:
    """Any other says its own, be it a green one; the context that was current is so again."""
    call = call_of("shared")
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    for stream, pushes in ((0, 2), (7, 0)):
        use(silent, stream)
        assert kernels.quick(call)
        assert silent.fake_count(1) == pushes


def test_what_does_not_fit_is_left_to_python(silent: Any) -> None:
    call = on_edges(call_of("shared", 7))
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    use(silent)
    assert kernels.quick(call)
    assert call.src is not None
    assert call.g is not None
    wrong: dict[str, tuple[object, ...]] = {
        "x1": (call.x1[:, 1:], call.x1.float(), call.x1[0, 0]),
        "x2": (call.x2[1:],),
        "w": (call.w[1:],),
        "g": (None, call.g[:, 1:], call.g[0, 0]),
        "src": (None, call.src[1:], call.src.clone()),
        "mask": (0, 3),
    }
    for field, values in wrong.items():
        for value in values:
            assert not kernels.quick(call._replace(**{field: value})), (field, value)
    assert silent.fake_count(0) == 3


def test_what_the_driver_refuses_is_said_by_python(silent: Any, native_gpu: Products) -> None:
    call = call_of("rows")
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    use(silent, code=700)
    assert not kernels.quick(call)
    native_gpu.failing["cuLaunchKernel"] = 700
    with pytest.raises(BackendError, match=r"cuLaunchKernel failed: .*; a kernel read or wrote outside its tensors"):
        kernels.run(call)


def test_no_rows_and_rows_that_begin_anywhere(native_gpu: Products) -> None:
    call = call_of("shared", 7)
    x1 = torch.cat([call.x1.flatten()[:1], call.x1.flatten()])[1:].view_as(call.x1)
    none = {name: getattr(call, name)[:0] for name in ("x1", "x2", "g")}
    wide = torch.stack([call.x2, call.x2], dim=-1)[..., 0]
    for one in (call._replace(x1=x1), call._replace(x2=wide), call._replace(**none)):
        by_python, by_runtime = both(one)
        assert same(by_runtime, by_python)


def test_derivatives_of_two_orders_are_launched_in_cpp(native_gpu: Products, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of("rows")
    leaves = [x.requires_grad_() for x in (call.x1, call.x2, call.w)]

    def second(product: Any) -> list[Tensor]:
        first = torch.autograd.grad(product().sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.cos().sum() for x in first), leaves))

    wanted = second(lambda: reference_product(PLANS["rows"], *leaves))
    for again in (False, True):
        if again:
            monkeypatch.setattr(Kernels, "_run", None)
        found = second(lambda: kernel_product(*leaves, call.description))
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_a_gpu_has_operators_of_its_own() -> None:
    """Those of C++: what they do not take, they leave to Python; no tensor of another device gets there."""
    for name in ("run", "sorted", "form", "sorted_form"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tpgen_native::{name}", "CUDA")
    assert native.entry_points() is None or torch.version.cuda


def test_gradients_are_compiled_beside_the_forward(native_gpu: Products) -> None:
    call = call_of("rows")
    kernel_product(call.x1.requires_grad_(), call.x2, call.w, call.description)
    opened = [source.placement.opened for source in native_gpu.sources]
    assert sorted(opened) == [("out",), ("x1",)]
    assert native_gpu.calls.count("cuLibraryLoadData") == 1


def test_a_gradient_alone_is_compiled_ahead(native_gpu: Products) -> None:
    call = call_of("rows")
    Kernels(call.description).build_together([opening_text(W)], call.x1, False)
    assert [source.placement.opened for source in native_gpu.sources] == [("w",)]
    assert "cuLibraryLoadData" not in native_gpu.calls


def test_a_first_call_inside_a_capture_is_refused(native_gpu: Products) -> None:
    call, native_gpu.capture = call_of("rows"), 1
    with pytest.raises(BackendError, match="cannot be part of a CUDA graph: call it once before you capture, with its"):
        kernel_product(call.x1, call.x2, call.w, call.description)
    assert "cuLibraryLoadData" not in native_gpu.calls


def test_the_first_convolution_of_a_cuda_graph_is_left_to_python(silent: Any, native_gpu: Products) -> None:
    """Which sorts for it; no order of outside may be pointed to, since a replay may find other edges."""
    call = on_edges(call_of("rows"))
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    use(silent)
    for native_gpu.capture in (0, 1, 2, 0):
        use(silent, capture=native_gpu.capture)
        assert bool(kernels.quick(call)) == (not native_gpu.capture)
        kernels.run(call)
        assert kernels.quick(call)
