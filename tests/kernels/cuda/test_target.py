"""From a product on a CUDA device to the driver and back, with a driver that runs the kernels' text on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tests.kernels.cuda.standin import StandIn
from tests.kernels.plans import call, operands
from tests.machine import needs_nvrtc
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import Config
from tpgen.errors import BackendError, InputError
from tpgen.form.linear import form_of
from tpgen.form.reference import reference_product
from tpgen.kernels.cuda import cubins, driver, orders, parts, target
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.driver import Driver
from tpgen.kernels.cuda.generate import ENTRY, CudaSource, generate_cuda
from tpgen.kernels.libraries import cache
from tpgen.kernels.operators.edges import Edges
from tpgen.kernels.operators.ops import describe, kernel_conv, kernel_product, kernel_supported
from tpgen.kernels.operators.runtime import Product
from tpgen.kernels.operators.targets import KERNEL_TARGETS, target_of
from tpgen.nn.linear import Linear
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

SHARED = channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=True)
PLAN = channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=False)


# What two devices have, by number: capabilities, how rows are copied there, contexts and torch's current streams.
ARCHITECTURES, COPIES, CONTEXTS, STREAMS = (90, 80), (2, 1), (50, 51), (7, 8)


def machine_code(source: CudaSource) -> bytes:
    return f"{source.placement.chip.arch} {source.text}".encode()


class FakeLibrary:
    """The driver's functions: modules are texts, and a launch runs them by the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, list[str]()
        self.sources: list[CudaSource] = []
        self.built: dict[int, StandIn] = {}
        self.failing: dict[str, int] = {}
        self.device, self.contexts = 0, list[int]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name in self.failing:
                return self.failing[name]
            known = getattr(type(self), f"_{name}", None)
            return (known(self, *arguments) or 0) if known else 0

        return call

    def _cuGetErrorString(self, code: int, text: Any) -> None:
        text._obj.value = b"what the driver says"

    def _cuDevicePrimaryCtxRetain(self, made: Any, device: int) -> None:
        made._obj.value = CONTEXTS[device]

    def _cuCtxPushCurrent_v2(self, context: Any) -> None:
        self.contexts.append(context.value)

    def _cuCtxPopCurrent_v2(self, _: Any) -> None:
        self.contexts.pop()

    def _cuModuleLoadData(self, module: Any, code: bytes) -> None:
        module._obj.value = next(n for n, s in enumerate(self.sources, 1) if machine_code(s) == code)

    def _cuModuleGetFunction(self, made: Any, module: Any, name: bytes) -> None:
        made._obj.value = 2 * module.value + (name != ENTRY.encode())

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count: Any, *_: Any) -> None:
        count._obj.value = 1

    def _cuLaunchKernel(self, handle: Any, blocks: int, *rest: Any) -> None:
        n, sums = divmod(handle.value, 2)
        chip = self.sources[n - 1].placement.chip
        assert (self.contexts, rest[6].value) == ([CONTEXTS[self.device]], STREAMS[self.device])
        assert chip == chip_of(ARCHITECTURES[self.device])
        if n not in self.built:
            folder = self.folder / str(n)
            folder.mkdir()
            self.built[n] = StandIn([self.sources[n - 1]], [COPIES[self.device]], folder)
        pointers = rest[7]
        if sums:
            read = [ctypes.c_void_p.from_address(pointers[k]) for k in (0, 1)]
            parts = ctypes.c_int.from_address(pointers[2])
            self.built[n].library.call("add_0", blocks, *read, parts)
        else:
            placement = self.sources[n - 1].placement
            assert rest[2:6] == (placement.threads, 1, 1, placement.shared)
            self.built[n].library.call("run_0", blocks, rest[2], rest[5], 0, ctypes.c_void_p(pointers[0]))


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibrary]:
    """A process whose CPU is a CUDA device, as far as kernels know: the first of two, of capability 9.0."""
    library = FakeLibrary(tmp_path)
    fake = Driver(library)

    def generated(*given: Any) -> CudaSource:
        source = generate_cuda(*given)
        library.sources.append(source)
        return source

    monkeypatch.setattr(target, "generate_cuda", generated)
    monkeypatch.setattr(target, "need_driver", lambda: fake)
    monkeypatch.setattr(target, "cubin", lambda text, arch: f"{arch} {text}".encode())
    monkeypatch.setattr(target, "_device_of", lambda tensors: library.device)
    for name, values in {"capability": ARCHITECTURES, "processors": (2, 2), "stream_of": STREAMS}.items():
        monkeypatch.setattr(driver, name, values.__getitem__)
    monkeypatch.setattr(driver, "capturing", lambda device: False)
    row = replace(KERNEL_TARGETS["cuda"], device="cpu", missing=lambda device: None, obstacle=lambda *_: None)
    monkeypatch.setitem(KERNEL_TARGETS, "cpp", row)
    target_of.cache_clear()
    products: dict[str, Product] = {}
    for module in ("runtime", "ops"):
        find = lambda text: products.setdefault(text, Product(text))  # noqa: E731
        monkeypatch.setattr(f"tpgen.kernels.operators.{module}.product_of", find)
    yield library
    target_of.cache_clear()


@pytest.mark.parametrize("plan", [PLAN, SHARED], ids=["rows", "shared"])
def test_a_product_and_its_gradients(plan: Plan, gpu: FakeLibrary) -> None:
    given = operands(plan, 5)
    x1, x2, w = (given[name].requires_grad_() for name in ("x1", "x2", "w"))
    found = kernel_product(x1, x2, w, describe(plan))
    wanted = reference_product(plan, x1, x2, w)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(*(torch.autograd.grad(y, (x1, x2, w), given["out"]) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert gpu.calls.count("cuCtxPushCurrent_v2") == gpu.calls.count("cuCtxPopCurrent_v2") > 0
    assert gpu.calls.count("cuLaunchKernel") == 2 + plan.shared_weights


def test_a_launch_is_on_the_device_of_the_tensors(gpu: FakeLibrary) -> None:
    """In its context, on its stream, by code for its capability: the launch asserts them; the sum's does too."""
    given = operands(SHARED, 3)
    x1, x2, w = (given[name].requires_grad_() for name in ("x1", "x2", "w"))
    wanted = reference_product(SHARED, x1, x2, w)
    for gpu.device in (0, 1):
        found = kernel_product(x1, x2, w, describe(SHARED))
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        torch.autograd.grad(found, w, given["out"])
    assert gpu.calls.count("cuLaunchKernel") == 6
    assert gpu.calls.count("cuDevicePrimaryCtxRetain") == 2
    assert {s.placement.chip.arch for s in gpu.sources} == set(ARCHITECTURES)


def test_a_linear_layer_and_its_gradients(gpu: FakeLibrary) -> None:
    plan = make_linear_plan("6x0e+3x1o", "4x0e+5x1o")
    x1, w = torch.randn(5, 15, dtype=torch.float64), torch.randn(plan.weight_numel, dtype=torch.float64)
    layers = [Linear.from_plan(plan, False, strategy=strategy).double() for strategy in ("kernel", "einsum")]
    operands = x1.requires_grad_(), w.requires_grad_()
    outs = [layer(*operands) for layer in layers]
    torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)
    first = [torch.autograd.grad(out.sin().sum(), operands, create_graph=True) for out in outs]
    torch.testing.assert_close(*first, rtol=1e-11, atol=1e-11)
    second = [torch.autograd.grad((f[0].cos().sum() + f[1].cos().sum()), operands) for f in first]
    torch.testing.assert_close(*second, rtol=1e-10, atol=1e-10)
    assert gpu.calls.count("cuLaunchKernel") >= 4


def test_a_convolution_sorts_its_edges_once(gpu: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_ = list[int]()
    monkeypatch.setattr(orders, "order_of", lambda i, n, f=orders.order_of: sorted_.append(n) or f(i, n))
    given = operands(PLAN, 6)
    x1, x2, w = given["x1"][:4].clone().requires_grad_(), given["x2"], given["w"]
    src, dst = torch.tensor([0, 3, 3, 1, 0, 2]), torch.tensor([2, 1, 2, 0, 0, 4])
    text = describe(PLAN)
    found = kernel_conv(x1, x2, w, src, dst, 5, text)
    wanted = torch.zeros(5, PLAN.irreps_out.dim, dtype=x1.dtype)
    wanted = wanted.index_add(0, dst, reference_product(PLAN, x1[src], x2, w))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(found)
    one, other = (torch.autograd.grad(y, x1, cotangent)[0] for y in (found, wanted))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    kernel_conv(x1.detach(), x2, w, src, dst, 5, text)
    assert sorted_ == [5, 4]  # by dst forwards, by src backwards, and then known
    dst[0] = 3
    kernel_conv(x1.detach(), x2, w, src, dst, 5, text)
    assert sorted_ == [5, 4, 5]


def test_a_node_of_very_many_edges_is_summed_in_parts(gpu: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards at a receiver, backwards at a sender; the bits are the same each time."""
    asked = list[int]()
    cut = parts.parts_of
    monkeypatch.setattr(parts, "parts_of", lambda *given: asked.append(given[1]) or cut(*given))
    plan, edges = channelwise("3x0e+2x1o", "0e+1o", "0e+1o", shared_weights=False), 200
    given, text = operands(plan, edges), describe(plan)
    x1, x2, w = given["x1"][:3].clone().requires_grad_(), given["x2"], given["w"]
    src, dst = torch.zeros(edges, dtype=torch.long), torch.full((edges,), 3)
    src[::50], dst[7] = 2, 0  # the others have few, or none
    found = kernel_conv(x1, x2, w, src, dst, 4, text)
    wanted = torch.zeros_like(found).index_add(0, dst, reference_product(plan, x1[src], x2, w))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(found)
    one, other = (torch.autograd.grad(y, x1, cotangent)[0] for y in (found, wanted))
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert torch.equal(kernel_conv(x1, x2, w, src, dst, 4, text), found)
    assert asked == [edges, edges]  # by dst and by src, once each
    assert all(parts.parts_of(orders.order_of(i, n).first, edges, 2) for i, n in ((dst, 4), (src, 3)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_layers_that_take_rows_of_one_edge_index_share_what_is_known(
    dtype: torch.dtype, gpu: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As networks do: each layer takes ``edge_index[0]`` and ``edge_index[1]`` anew."""
    asked = list[str]()
    for name in ("order_of", "in_range"):
        find = getattr(orders, name)
        monkeypatch.setattr(orders, name, lambda i, n, name=name, find=find: asked.append(name) or find(i, n))
    given, text = operands(PLAN, 6), describe(PLAN)
    edge_index = torch.tensor([[0, 3, 3, 1, 0, 2], [2, 1, 2, 0, 0, 3]], dtype=dtype)

    def layer(x1: torch.Tensor) -> torch.Tensor:
        return kernel_conv(x1, given["x2"], given["w"], edge_index[0], edge_index[1], 4, text)

    def definition(x1: torch.Tensor) -> torch.Tensor:
        found = reference_product(PLAN, x1[edge_index[0]], given["x2"], given["w"])
        return found.new_zeros(4, found.shape[1]).index_add(0, edge_index[1], found)

    x1 = given["x1"][:4].clone().requires_grad_()
    for _ in range(3):
        found, wanted = layer(x1), definition(x1)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        pairs = zip(*(torch.autograd.grad(y.sin().sum(), x1) for y in (found, wanted)), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert sorted(asked) == ["in_range"] * 2 + ["order_of"] * 2  # both ends, each once
    edge_index[1] = edge_index[1].flip(0)
    torch.testing.assert_close(layer(x1), definition(x1), rtol=1e-12, atol=1e-12)
    assert sorted(asked) == ["in_range"] * 4 + ["order_of"] * 3


def test_bfloat16_is_summed_over_edges_as_it_stands(gpu: FakeLibrary) -> None:
    """A kernel for a GPU adds in float32 whatever the operands are, where one for a CPU gets copies of them."""
    plan = fully_connected("3x0e+2x1o", "0e+1o", "4x1o", shared_weights=False)
    text, nodes = describe(plan), 3
    given = {name: x.bfloat16() for name, x in operands(plan, 40).items()}
    src, dst = torch.randint(nodes, (2, 40), generator=torch.Generator().manual_seed(0))
    x1 = given["x1"][:nodes].clone()
    found = kernel_conv(x1, given["x2"], given["w"], src, dst, nodes, text)
    wide = [x.double() for x in (x1[src], given["x2"], given["w"])]
    wanted = torch.zeros(nodes, found.shape[1], dtype=torch.float64).index_add(0, dst, reference_product(plan, *wide))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=1e-3)
    assert [source.placement.schedule.target.dtype for source in gpu.sources] == ["bfloat16"]


def test_an_order_is_known_to_the_stream_that_made_it(gpu: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    streams, sorted_ = [1, 1, 2, 1, 2], list[int]()
    monkeypatch.setattr(orders, "order_of", lambda i, n, f=orders.order_of: sorted_.append(n) or f(i, n))
    monkeypatch.setattr(orders, "_stream", lambda index: streams.pop(0))
    dst = torch.tensor([1, 0, 1])
    first, again, other, *_ = (orders.known_order(dst, 2) for _ in range(5))
    assert first.order is again.order
    assert first.order is not other.order
    assert sorted_ == [2, 2]


def test_parts_are_known_to_the_stream_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, asked = iter([1, 1, 2, 1, 2]), list[int]()
    cut = parts.parts_of
    monkeypatch.setattr(parts, "parts_of", lambda *given: asked.append(given[1]) or cut(*given))
    monkeypatch.setattr(orders, "_stream", lambda index: next(streams))
    dst = torch.zeros(500, dtype=torch.long)
    order = orders.order_of(dst, 2)
    first, again, other, *_ = (parts.known_parts(dst, 2, order, 2) for _ in range(5))
    assert first is again is not None
    assert other is not None
    assert first.first is not other.first
    assert asked == [500, 500]


def test_of_a_tensor_in_slices_the_last_parts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, long = orders.Memory[int](), torch.zeros(40, dtype=torch.int64)
    asked = list[int]()
    for start in (*range(20), 19, 0):
        assert memory.of(long[start : start + 2], 5, lambda i, n: asked.append(i.storage_offset()) or len(asked))
    assert asked == [*range(20), 0]
    assert [len(parts.known) for parts in memory._kept.values()] == [orders._PARTS]
    assert memory.of(long[0:2], 6, lambda i, n: -1) == -1  # other rows
    assert memory.of(long[0:4:2], 5, lambda i, n: -2) == -2  # another part that begins there
    del long
    assert not len(memory._kept)


def test_a_captured_convolution_sorts_in_its_graph(gpu: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay may find other edges in the same tensors, and no order of outside may be pointed to."""
    src, dst = torch.tensor([0, 1, 1, 0]), torch.tensor([2, 0, 2, 1])
    edges = Edges(src, dst, 2, 3, True)
    known = target._gather("out", edges, 0)[1]
    monkeypatch.setattr(driver, "capturing", lambda device: True)
    monkeypatch.setattr(orders, "in_range", None)  # which would wait
    found = [target._gather("out", edges, 0)[1] for _ in range(2)]
    pointers = {gather.order.data_ptr() for gather in (known, *found) if gather and gather.order is not None}
    assert len(pointers) == 3
    assert all(torch.equal(gather.order, known.order) for gather in found)
    dst.fill_(0)
    assert target._gather("out", edges, 0)[1].first.tolist() == [0, 4, 4, 4]


@pytest.mark.parametrize("written", [False, True])
def test_whether_edges_are_in_range_is_asked_once(
    written: bool, gpu: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    monkeypatch.setattr(orders, "in_range", lambda i, n, f=orders.in_range: asked.append(n) or f(i, n))
    src, dst = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2])
    with torch.no_grad():
        for _ in range(3):
            assert target._gather("out", Edges(src, dst, 2, 3, True), 0)[0] == 0
            if written:
                src[0] = 1
    assert asked == ([2, 3, 2, 2] if written else [2, 3])


def test_nothing_is_kept_of_what_counts_no_writes(gpu: FakeLibrary) -> None:
    with torch.inference_mode():
        src, dst = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2])
        for wanted in (0, target._DESTINATIONS):
            assert target._gather("out", Edges(src, dst, 2, 3, True), 0)[0] == wanted
            dst[0] = 3


@pytest.mark.parametrize("name, place", [("edge_src", 0), ("edge_dst", 1)])
def test_edges_that_point_nowhere_are_refused(name: str, place: int, gpu: FakeLibrary) -> None:
    given = operands(PLAN, 2)
    edges = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    edges[place] = torch.tensor([0, 2])
    with pytest.raises(
        InputError, match=f"{name} holds an index out of range: indices run from 0 to 1, .*, got 0 to 2"
    ):
        kernel_conv(given["x1"], given["x2"], given["w"], *edges, 2, describe(PLAN))
    assert "cuLaunchKernel" not in gpu.calls
    right = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    assert kernel_conv(given["x1"], given["x2"], given["w"], *right, 2, describe(PLAN)).isfinite().all()


def test_tensors_of_several_devices_are_refused() -> None:
    sizes = {"x1": PLAN.irreps_in1.dim, "x2": PLAN.irreps_in2.dim, "w": PLAN.weight_numel}
    with FakeTensorMode():
        given = {name: torch.empty(2, size, device=f"cuda:{name == 'x2':d}") for name, size in sizes.items()}
    with pytest.raises(InputError, match="x2 must be on cuda:0 as x1 is, got cuda:1: move one of them"):
        Product(describe(PLAN)).check(call(8, **given))


def test_a_slice_that_begins_anywhere_is_copied(gpu: FakeLibrary) -> None:
    given = operands(PLAN, 4)
    inside = torch.zeros(given["x1"].numel() + 1, dtype=torch.float64)[1:].view_as(given["x1"]).copy_(given["x1"])
    text = describe(PLAN)
    one, other = (kernel_product(x1, given["x2"], given["w"], text) for x1 in (inside, given["x1"]))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "function, code, why",
    [
        ("cuLaunchKernel", 700, "a kernel read or wrote outside its tensors, and this process cannot use the GPU"),
        ("cuModuleLoadData", 200, "the driver cannot read what NVRTC wrote: update the driver, or"),
        ("cuModuleLoadData", 222, "this driver is older than NVRTC: update the driver"),
        ("cuModuleLoadData", 2, "the device is out of memory: use smaller batches"),
        ("cuFuncSetAttribute", 1, "what the driver says"),
    ],
)
def test_what_the_driver_refuses_is_said(function: str, code: int, why: str, gpu: FakeLibrary) -> None:
    gpu.failing[function] = code
    given = operands(PLAN, 2)
    with pytest.raises(BackendError, match=f"{function} failed: what the driver says.*{why}|{function} failed: {why}"):
        kernel_product(given["x1"], given["x2"], given["w"], describe(PLAN))


@needs_nvrtc
def test_machine_code_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" __global__ void tpgen_kernel() {}'
    made = cubins.cubin(text, 80)
    assert made.startswith(b"\x7fELF")
    assert {file.suffix for file in fresh.iterdir()} == {".cu", ".cubin", ".sha256", ".lock"}
    monkeypatch.setattr("tpgen.kernels.cuda.nvrtc.Nvrtc.compile", None)
    assert cubins.cubin(text, 80) == made
    assert cache.info().entries == 1
    assert cache.clear() == 1
    assert not list(fresh.iterdir())


@needs_nvrtc
def test_broken_machine_code_is_compiled_again(fresh: Path) -> None:
    text = 'extern "C" __global__ void tpgen_kernel() {}'
    made = cubins.cubin(text, 80)
    next(fresh.glob("*.cubin")).write_bytes(b"broken")
    assert cubins.cubin(text, 80) == made


def test_without_a_gpu_nothing_is_missed_but_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernel_supported(PLAN, device="cuda") == "torch sees no CUDA device"
    with pytest.raises(BackendError, match="torch sees no CUDA device; use strategy='grouped'"):
        driver.need_driver.__wrapped__()
    choice = choose_strategy(PLAN, Config(device="cuda"))
    assert (choice.strategy, choice.reason[-41:]) == ("grouped", "one; no kernel: torch sees no CUDA device")


class Versions:
    """The driver's library, as far as it is asked for the CUDA that it takes."""

    def __init__(self, version: int) -> None:
        self.version = version

    def cuDriverGetVersion(self, found: Any) -> int:
        found._obj.value = self.version
        return 0


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch sees an H200 and a GTX 1080, the first of which is current; a driver for CUDA 13 is there."""
    fakes: dict[str, Any] = {"is_available": lambda: True, "current_device": lambda: 0, "device_count": lambda: 2}
    fakes["get_device_name"] = lambda device: ["H200", "GTX 1080"][device.index or 0]
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(driver, "_open", lambda: Versions(13000))
    monkeypatch.setattr(driver, "capability", [90, 61].__getitem__)
    driver.cuda_taken.cache_clear()
    yield
    driver.cuda_taken.cache_clear()


def test_what_else_may_be_missing(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(target, "find_nvrtc", lambda arch, cuda: (arch, cuda) == (90, 13))
    assert target.missing(gpu) is None
    assert target.missing(torch.device("cuda:2")) == "there is no cuda:2, only cuda:0 to cuda:1"
    monkeypatch.setattr(target, "find_nvrtc", lambda arch, cuda: None)
    monkeypatch.setenv("TPGEN_NVRTC", "none")
    assert target.missing(gpu) == "kernels on a GPU need NVRTC, and TPGEN_NVRTC=none forbids it"
    monkeypatch.setattr(driver, "_open", lambda: None)
    assert "the CUDA driver (libcuda.so.1) cannot be loaded" in str(target.missing(gpu))
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert "on AMD let torch write them, by backend='inductor'" in str(target.missing(gpu))


def test_the_device_of_the_tensors_is_asked_not_the_current_one(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "find_nvrtc", lambda arch, cuda: object())
    old = "kernels need a GPU of compute capability 7.0 or later, and cuda:1 has 6.1"
    assert kernel_supported(PLAN, device="cuda:0") is None
    assert kernel_supported(PLAN, device="cuda:1") == old
    choices = [choose_strategy(PLAN, Config(device=name)) for name in ("cuda", "cuda:0", "cuda:1")]
    assert [choice.strategy for choice in choices] == ["kernel", "kernel", "grouped"]
    assert choices[2].reason.endswith(old)
    wide = channelwise("4096x0e+4096x1o+4096x2e", "0e+1o+2e", "0e+1o+2e", shared_weights=False)
    monkeypatch.setattr(driver, "capability", [90, 75].__getitem__)
    assert "a block of sm_90" in str(kernel_supported(wide, device="cuda:0"))
    assert "a block of sm_75" in str(kernel_supported(wide, device="cuda:1"))


def test_what_has_no_kernel_says_why() -> None:
    mixing = form_of(fully_connected("4x0e", "4x0e", "4x0e"), "mul_ir")
    assert target.obstacle(mixing, torch.float32, chip_of(90)) is None
    large = form_of(fully_connected("256x0e", "64x0e", "256x0e", shared_weights=False), "mul_ir")
    assert "bytes of shared memory, and a block of sm_90" in str(target.obstacle(large, torch.float32, chip_of(90)))
    wide = form_of(channelwise("4096x0e+4096x1o+4096x2e", "0e+1o+2e", "0e+1o+2e", shared_weights=False), "mul_ir")
    reason = target.obstacle(wide, torch.float32, chip_of(75))
    assert "bytes of shared memory, and a block of sm_75 has 65536: use strategy='grouped'" in str(reason)
    assert target.obstacle(form_of(PLAN, "mul_ir"), torch.float32, chip_of(75)) is None
    with pytest.raises(BackendError, match=r"compute capability 7.0 or later, this one has 6.1: use strategy"):
        chip_of(61)
