"""From a product on a CUDA device to the driver and back, with a driver that runs the kernels' text on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tests.kernels.cuda.fakes import ARCHITECTURES, FakeDriver
from tests.kernels.plans import call, forward_spec, operands
from tests.machine import needs_nvrtc
from tpgen.base.errors import BackendError, InputError
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import Config
from tpgen.form.reference import reference_product
from tpgen.kernels.build import cache
from tpgen.kernels.cuda import driver, nvrtc, target
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.runtime.ops import describe, kernel_product, why_kernel_unsupported
from tpgen.kernels.runtime.runtime import Kernels
from tpgen.nn.linear import Linear
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

SHARED = channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=True)
PLAN = channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=False)


@pytest.mark.parametrize("plan", [PLAN, SHARED], ids=["rows", "shared"])
def test_a_product_and_its_gradients(plan: Plan, gpu: FakeDriver) -> None:
    given = operands(plan, 5)
    x1, x2, w = (given[name].requires_grad_() for name in ("x1", "x2", "w"))
    found = kernel_product(x1, x2, w, describe(plan))
    wanted = reference_product(plan, x1, x2, w)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(*(torch.autograd.grad(y, (x1, x2, w), given["out"]) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
    assert gpu.calls.count("cuCtxPushCurrent_v2") == gpu.calls.count("cuCtxPopCurrent_v2") > 0
    assert gpu.calls.count("cuLaunchKernel") == 2 + plan.shared_weights


def test_a_launch_is_on_the_device_of_the_tensors(gpu: FakeDriver) -> None:
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


def test_a_linear_layer_and_its_gradients(gpu: FakeDriver) -> None:
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


def test_tensors_of_several_devices_are_refused() -> None:
    sizes = {"x1": PLAN.irreps_in1.dim, "x2": PLAN.irreps_in2.dim, "w": PLAN.weight_numel}
    with FakeTensorMode():
        given = {name: torch.empty(2, size, device=f"cuda:{name == 'x2':d}") for name, size in sizes.items()}
    with pytest.raises(InputError, match="x2 must be on cuda:0 as x1 is, got cuda:1: move one of them"):
        Kernels(describe(PLAN)).check_tensors(call("out", *given.values()))


def test_a_slice_that_begins_anywhere_is_copied(gpu: FakeDriver) -> None:
    given = operands(PLAN, 4)
    inside = torch.zeros(given["x1"].numel() + 1, dtype=torch.float64)[1:].view_as(given["x1"]).copy_(given["x1"])
    text = describe(PLAN)
    one, other = (kernel_product(x1, given["x2"], given["w"], text) for x1 in (inside, given["x1"]))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    "function, code, why",
    [
        ("cuLaunchKernel", 700, "a kernel read or wrote outside its tensors, and this process cannot use the GPU"),
        ("cuLibraryLoadData", 200, "the driver cannot read what NVRTC wrote: update the driver, or"),
        ("cuLibraryLoadData", 222, "this driver is older than NVRTC: update the driver"),
        ("cuLibraryLoadData", 2, "the device is out of memory: use smaller batches"),
        ("cuKernelSetAttribute", 1, "what the driver says"),
        ("cuLibraryLoadData", 900, "a CUDA graph is being captured, which cannot hold this: call it once before"),
        ("cuLaunchKernel", 901, "an earlier error has ended the capture of a CUDA graph: see that one"),
        ("cuLaunchKernel", 905, "a CUDA graph is being captured on other streams than this: let this stream wait"),
        ("cuLaunchKernel", 908, "another thread has begun the capture of a CUDA graph: end it there"),
    ],
)
def test_what_the_driver_refuses_is_said(function: str, code: int, why: str, gpu: FakeDriver) -> None:
    gpu.failing[function] = code
    given = operands(PLAN, 2)
    with pytest.raises(BackendError, match=f"{function} failed: what the driver says.*{why}|{function} failed: {why}"):
        kernel_product(given["x1"], given["x2"], given["w"], describe(PLAN))


def test_shared_memory_is_as_large_as_blocks_use_and_the_rest_caches(
    gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it until it is known how many blocks run at once, then so much that these fit."""
    asked = list[int]()
    carveout = 9
    monkeypatch.setattr(
        FakeDriver,
        "_cuKernelSetAttribute",
        lambda self, what, value, *_: asked.append(value) if what == carveout else None,
        raising=False,
    )
    given = operands(PLAN, 2)
    kernel_product(given["x1"], given["x2"], given["w"], describe(PLAN))
    placement = gpu.sources[-1].placement
    assert asked == [100, -(-100 * (placement.shared + 1024) // placement.chip.shared)]
    assert asked[1] < 100


@needs_nvrtc
def test_machine_code_is_compiled_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" __global__ void tpgen_kernel() {}'
    made = nvrtc.compile_machine_code(text, 80)
    assert made.startswith(b"\x7fELF")
    assert {file.suffix for file in fresh.iterdir()} == {".cu", ".cubin", ".sha256", ".lock"}
    monkeypatch.setattr("tpgen.kernels.cuda.nvrtc.Nvrtc.compile", None)
    assert nvrtc.compile_machine_code(text, 80) == made
    assert cache.info().entries == 1
    assert cache.clear() == 1
    assert not list(fresh.iterdir())


@needs_nvrtc
def test_broken_machine_code_is_compiled_again(fresh: Path) -> None:
    text = 'extern "C" __global__ void tpgen_kernel() {}'
    made = nvrtc.compile_machine_code(text, 80)
    next(fresh.glob("*.cubin")).write_bytes(b"broken")
    assert nvrtc.compile_machine_code(text, 80) == made


def test_without_a_gpu_nothing_is_missed_but_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert why_kernel_unsupported(PLAN, device="cuda") == "torch sees no CUDA device"
    with pytest.raises(BackendError, match=r"CUDA.*strategy='grouped'"):
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
    monkeypatch.setattr(driver, "_load_driver_library", lambda: Versions(13000))
    monkeypatch.setattr(driver, "capability", [90, 61].__getitem__)
    driver.driver_cuda_version.cache_clear()
    yield
    driver.driver_cuda_version.cache_clear()


def test_what_else_may_be_missing(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(target, "find_nvrtc", lambda arch, cuda: (arch, cuda) == (90, 13))
    assert target.why_no_cuda_kernels(gpu) is None
    assert target.why_no_cuda_kernels(torch.device("cuda:2")) == "there is no cuda:2, only cuda:0 to cuda:1"
    monkeypatch.setattr(target, "find_nvrtc", lambda arch, cuda: None)
    monkeypatch.setenv("TPGEN_NVRTC", "none")
    assert target.why_no_cuda_kernels(gpu) == "kernels on a GPU need NVRTC, and TPGEN_NVRTC=none forbids it"
    monkeypatch.setattr(driver, "_load_driver_library", lambda: None)
    assert "the CUDA driver (libcuda.so.1) cannot be loaded" in str(target.why_no_cuda_kernels(gpu))
    monkeypatch.setattr(driver, "_load_driver_library", lambda: Versions(11080))
    driver.driver_cuda_version.cache_clear()
    assert (
        target.why_no_cuda_kernels(gpu)
        == "kernels need a driver for CUDA 12 or later, and this one takes CUDA 11: update it"
    )
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert "on AMD let torch write them, by backend='inductor'" in str(target.why_no_cuda_kernels(gpu))


def test_the_device_of_the_tensors_is_asked_not_the_current_one(
    two_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "find_nvrtc", lambda arch, cuda: object())
    old = "kernels need a GPU of compute capability 7.0 or later, and cuda:1 has 6.1"
    assert why_kernel_unsupported(PLAN, device="cuda:0") is None
    assert why_kernel_unsupported(PLAN, device="cuda:1") == old
    choices = [choose_strategy(PLAN, Config(device=name)) for name in ("cuda", "cuda:0", "cuda:1")]
    assert [choice.strategy for choice in choices] == ["kernel", "kernel", "grouped"]
    assert choices[2].reason.endswith(old)
    wide = channelwise("4096x0e+4096x1o+4096x2e", "0e+1o+2e", "0e+1o+2e", shared_weights=False)
    monkeypatch.setattr(driver, "capability", [90, 75].__getitem__)
    assert "a block of sm_90" in str(why_kernel_unsupported(wide, device="cuda:0"))
    assert "a block of sm_75" in str(why_kernel_unsupported(wide, device="cuda:1"))


def test_what_has_no_kernel_says_why() -> None:
    mixing = forward_spec(fully_connected("4x0e", "4x0e", "4x0e"))
    assert target.kernel_obstacle(mixing, chip_of(90)) is None
    large = forward_spec(fully_connected("64x0e", "16x0e", "64x0e", shared_weights=False))
    assert "bytes of shared memory, and a block of sm_90" in str(target.kernel_obstacle(large, chip_of(90)))
    wide = forward_spec(channelwise("4096x0e+4096x1o+4096x2e", "0e+1o+2e", "0e+1o+2e", shared_weights=False))
    reason = target.kernel_obstacle(wide, chip_of(75))
    assert "bytes of shared memory, and a block of sm_75 has 65536: use strategy='grouped'" in str(reason)
    assert target.kernel_obstacle(forward_spec(PLAN), chip_of(75)) is None
    with pytest.raises(BackendError, match=r"compute capability 7.0 or later, this one has 6.1: use strategy"):
        chip_of(61)
