"""Launches by the runtime in C++: those of Python to the bit, and no frame of Python on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.fakes import FakeDriver
from tests.kernels.cuda.silent import silent_driver, use
from tests.kernels.plans import call as call_on
from tests.kernels.plans import operands
from tests.machine import needs_compiler
from tpgen.base.errors import BackendError
from tpgen.form.reference import reference_product
from tpgen.kernels.cuda.orders import sort_by_owner
from tpgen.kernels.rows import DESTINATIONS, SOURCES, RowIndex
from tpgen.kernels.runtime import forms
from tpgen.kernels.runtime.call import FormCall, product_call_text
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


OUT, ALL, GRADIENTS = "out", "x1 x2 w out", "x1 x2 w"


def call_of(name: str, opened: str = OUT, rows: int = ROWS) -> FormCall:
    return call_on(opened, *operands(PLANS[name], rows).values(), text=describe(PLANS[name]))


def on_edges(call: FormCall, dtype: torch.dtype = torch.int64, nodes: int = 4) -> FormCall:
    x1, x2, w, *g = call.tensors
    ends = torch.randint(nodes, (2, x2.shape[0]), generator=torch.Generator().manual_seed(1)).to(dtype)
    tensors = [x1[:nodes].clone(), x2, w, *(x[:nodes].clone() for x in g)]
    return with_ends(call._replace(tensors=tensors), *ends, nodes=nodes)


def with_ends(call: FormCall, src: Tensor | None, dst: Tensor | None, nodes: int = 4) -> FormCall:
    return call.with_indices([RowIndex(SOURCES, src), RowIndex(DESTINATIONS, dst, nodes)])


def ends_of(call: FormCall) -> tuple[Tensor, Tensor]:
    src, dst = call.at
    return src, dst


def number_of(call: FormCall) -> int:
    """The number by which the runtime knows the only kernel of a call."""
    entered = forms.kernels_of(call.description)._entered[call.call, call.tensors[0].dtype, call.rules]
    return entered[0][0]


def both(call: FormCall) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """By Python, which enters the kernel, and then by C++ alone."""
    kernels = forms.kernels_of(call.description)
    return kernels._check_and_run(call), kernels.compute_in_cpp(call)


def same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return len(found) == len(wanted) > 0 and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("opened", [OUT, GRADIENTS, "w", ALL])
def test_rows(name: str, opened: str, native_gpu: FakeDriver) -> None:
    by_python, by_runtime = both(call_of(name, opened))
    assert same(by_runtime, by_python)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    "name, opened",
    [
        *(("rows", opened) for opened in (OUT, ALL, "w")),
        *(("wide", opened) for opened in (GRADIENTS, ALL)),
        *(("shared", GRADIENTS), ("mixed", ALL)),
    ],
)
def test_edges(name: str, opened: str, dtype: torch.dtype, native_gpu: FakeDriver) -> None:
    """Every kind of owner; as many edges as take a second launch for those that lie across runs."""
    by_python, by_runtime = both(on_edges(call_of(name, opened, 300), dtype))
    assert same(by_runtime, by_python)
    collects = any(source.placement.scattered for source in native_gpu.sources)
    assert collects == (name == "wide")


@pytest.mark.parametrize("edges, nodes", [(0, 4), (0, 0), (5, 4)])
def test_gradients_are_collected_of_senders_without_edges(edges: int, nodes: int, native_gpu: FakeDriver) -> None:
    """Zeros; of no sender at all nothing is launched, which the driver would refuse."""
    call = on_edges(call_of("wide", GRADIENTS))
    sizes = (nodes, edges, edges, nodes)
    fewer = call._replace(tensors=[x[:n].clone() for x, n in zip(call.tensors, sizes, strict=True)])
    fewer = with_ends(fewer, *(end[:edges].clone() for end in ends_of(call)), nodes=nodes)
    by_python, by_runtime = both(fewer)
    assert same(by_runtime, by_python)


# -- what stands between a call and the driver -------------------------------------------------------------------------


@pytest.fixture
def silent(native_gpu: FakeDriver) -> Any:
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
    rows, edges = call_of("shared", GRADIENTS), on_edges(call_of("rows", GRADIENTS))
    for call in (rows, edges):
        forms.kernels_of(call.description).run(call)
    use(silent)
    operator = torch.ops.tpgen_native.form.default._op
    assert frames(operator, list(rows.tensors), number_of(rows)) == []
    assert silent.fake_count(0) == 2  # the rows, and the sum of their parts of the weights' gradient
    src, dst = ends_of(edges)
    given = [*edges.tensors, src, dst, sort_by_owner(src, 4).packed]
    assert frames(operator, given, number_of(edges), 4, 1, 7) == []
    assert silent.fake_count(0) == 4  # edges by sender, and the sums of runs that lie across blocks
    assert silent.fake_count(1) == 0


def test_no_frame_of_python_in_a_convolution_that_collects(silent: Any) -> None:
    call = on_edges(call_of("wide", GRADIENTS))
    forms.kernels_of(call.description).run(call)
    use(silent)
    by_src, by_dst = (sort_by_owner(end, 4).packed for end in ends_of(call))
    given, number, operator = [*call.tensors, *ends_of(call)], number_of(call), torch.ops.tpgen_native.form.default._op
    assert frames(operator, [*given, by_src, by_dst], number, 4, 3) == []
    assert silent.fake_count(0) == 2  # the gradients by edge, and their sums
    assert not operator([*given, by_dst], number, 4, 2)
    for orders in ((by_dst[1:], by_dst), (by_src, by_src[1:]), (by_src.int(), by_dst)):
        assert not operator([*given, *orders], number, 4, 3)


class Ends:
    """Calls on rows of an ``edge_index`` that each takes anew."""

    def __init__(self, name: str = "wide", opened: str = ALL) -> None:
        self.call = on_edges(call_of(name, opened))
        self.edge_index = torch.stack(ends_of(self.call))
        self.kernels = forms.kernels_of(self.call.description)

    def taken(self, first: int = 0) -> FormCall:
        src, dst = self.edge_index.unbind() if first == 0 else (self.edge_index[1], self.edge_index[0])
        return with_ends(self.call, src, dst)

    def known(self) -> int:
        assert self.kernels._launched is not None
        return len(self.kernels._launched._seen)


def test_frames_of_python_on_a_users_call(silent: Any) -> None:
    """Edges take as many as rows, where tensors have an identity and a version, whoever takes them out of what."""
    rows, ends = call_of("rows"), Ends()
    calls = {"rows": lambda: rows, "edges": lambda: ends.call, "edge_index": ends.taken}
    counted = {}
    for name, take in calls.items():
        kernels = forms.kernels_of(take().description)
        kernels.run(take())
        use(silent)
        assert kernels.compute_in_cpp(take())
        counted[name] = len(frames(kernels.compute_in_cpp, take()))
        assert silent.fake_count(0) == 2 * (1 if name == "rows" else 4)  # by receiver, collected, and forward in runs
    assert counted == {"rows": 1, "edges": 2, "edge_index": 2}


def test_known_edges_are_those_of_a_version_a_part_and_a_size(native_gpu: FakeDriver) -> None:
    """Of others nothing is launched, until Python has sorted them; and nothing is left of edges that are gone."""
    ends = Ends()
    ends.kernels.run(ends.taken())
    assert ends.kernels.compute_in_cpp(ends.taken())
    assert same(*both(ends.taken(1)))  # the other way round
    x1, *rest = ends.call.tensors
    more = ends.taken()._replace(tensors=[x1.repeat(2, 1), *rest])
    assert not ends.kernels.compute_in_cpp(more)
    assert same(*both(more))
    ends.edge_index[1] = ends.edge_index[1].flip(0)
    assert not ends.kernels.compute_in_cpp(ends.taken())
    by_python, by_runtime = both(ends.taken())
    assert same(by_runtime, by_python)
    assert same(ends.kernels.compute_in_cpp(ends.taken()), by_python)
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
            made = ends.kernels.compute_in_cpp(ends.taken())
        assert bool(made)
        assert (len(frames(ends.kernels.compute_in_cpp, ends.taken())) == 2) == (not again)
        assert len(known) == 1


def test_the_default_stream_alone_needs_a_context(silent: Any) -> None:
    """Any other says its own, be it a green one; the context that was current is so again."""
    call = call_of("shared")
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    for stream, pushes in ((0, 2), (7, 0)):
        use(silent, stream)
        assert kernels.compute_in_cpp(call)
        assert silent.fake_count(1) == pushes


def test_what_does_not_fit_is_left_to_python(silent: Any) -> None:
    call = on_edges(call_of("shared", GRADIENTS))
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    use(silent)
    assert kernels.compute_in_cpp(call)
    (x1, x2, w, g), (src, dst) = call.tensors, ends_of(call)
    wrong = [
        *([x, x2, w, g] for x in (x1[:, 1:], x1.float(), x1[0, 0])),
        *([x1, x2[1:], w, g], [x1, x2, w[1:], g]),
        *([x1, x2, w, x] for x in (g[:, 1:], g[0, 0])),
    ]
    changed = [call._replace(tensors=tensors) for tensors in (*wrong, [x1, x2, w])]
    changed += [with_ends(call, x, dst) for x in (None, src[1:], src.clone())]
    changed.append(call._replace(call=product_call_text("x1", "x2")))
    for one in changed:
        assert not kernels.compute_in_cpp(one), one
    assert silent.fake_count(0) == 3


def test_what_the_driver_refuses_is_said_by_python(silent: Any, native_gpu: FakeDriver) -> None:
    call = call_of("rows")
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    use(silent, code=700)
    assert not kernels.compute_in_cpp(call)
    native_gpu.failing["cuLaunchKernel"] = 700
    with pytest.raises(BackendError, match=r"cuLaunchKernel failed: .*; a kernel read or wrote outside its tensors"):
        kernels.run(call)


def test_no_rows_and_rows_that_begin_anywhere(native_gpu: FakeDriver) -> None:
    call = call_of("shared", GRADIENTS)
    x1, x2, w, g = call.tensors
    shifted = torch.cat([x1.flatten()[:1], x1.flatten()])[1:].view_as(x1)
    wide = torch.stack([x2, x2], dim=-1)[..., 0]
    for tensors in ([shifted, x2, w, g], [x1, wide, w, g], [x1[:0], x2[:0], w, g[:0]]):
        by_python, by_runtime = both(call._replace(tensors=tensors))
        assert same(by_runtime, by_python)


def test_derivatives_of_two_orders_are_launched_in_cpp(native_gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of("rows")
    leaves = [x.requires_grad_() for x in call.tensors]

    def second(product: Any) -> list[Tensor]:
        first = torch.autograd.grad(product().sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.cos().sum() for x in first), leaves))

    wanted = second(lambda: reference_product(PLANS["rows"], *leaves))
    for again in (False, True):
        if again:
            monkeypatch.setattr(Kernels, "_check_and_run", None)
        found = second(lambda: kernel_product(*leaves, call.description))
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_a_gpu_has_operators_of_its_own() -> None:
    """Those of C++: what they do not take, they leave to Python; no tensor of another device gets there."""
    for name in ("form", "form.few"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tpgen_native::{name}", "CUDA")
    assert native.find_entry_points() is None or torch.version.cuda


def test_gradients_are_compiled_beside_the_forward(native_gpu: FakeDriver) -> None:
    call = call_of("rows")
    x1, *rest = call.tensors
    kernel_product(x1.requires_grad_(), *rest, call.description)
    opened = [source.placement.opened for source in native_gpu.sources]
    assert sorted(opened) == [("out",), ("x1",)]
    assert native_gpu.calls.count("cuLibraryLoadData") == 1


def test_a_gradient_alone_is_compiled_ahead(native_gpu: FakeDriver) -> None:
    call = call_of("rows")
    Kernels(call.description).build_kernels_in_parallel([product_call_text("w")], call.tensors[0], ())
    assert [source.placement.opened for source in native_gpu.sources] == [("w",)]
    assert "cuLibraryLoadData" not in native_gpu.calls


def test_a_first_call_inside_a_capture_is_refused(native_gpu: FakeDriver) -> None:
    call, native_gpu.capture = call_of("rows"), 1
    with pytest.raises(BackendError, match="cannot be part of a CUDA graph: call it once before you capture, with its"):
        kernel_product(*call.tensors, call.description)
    assert "cuLibraryLoadData" not in native_gpu.calls


def test_the_first_convolution_of_a_cuda_graph_is_left_to_python(silent: Any, native_gpu: FakeDriver) -> None:
    """Which sorts for it; no order of outside may be pointed to, since a replay may find other edges."""
    call = on_edges(call_of("rows"))
    kernels = forms.kernels_of(call.description)
    kernels.run(call)
    use(silent)
    for native_gpu.capture in (0, 1, 2, 0):
        use(silent, capture=native_gpu.capture)
        assert bool(kernels.compute_in_cpp(call)) == (not native_gpu.capture)
        kernels.run(call)
        assert kernels.compute_in_cpp(call)
