"""A CUDA driver of two devices whose kernels run on the CPU, by the stand-in: for products and for polynomials."""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.cuda.standin import StandIn
from tpgen.kernels.cuda import driver, kernel, polynomial_kernel, product_kernel
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.driver import Driver, EntryPoints
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.prelude import COLLECT_ENTRY, JOIN_ENTRY, SUM_ENTRY

# What two devices have, by number: capabilities, how rows are copied there, contexts and torch's current streams.
ARCHITECTURES, COPIES, CONTEXTS, STREAMS = (90, 80), (2, 1), (50, 51), (7, 8)


def compile_machine_code(text: str, arch: int) -> bytes:
    return f"{arch} {text}".encode()


_STREAM_OF = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_STREAM_IS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
_PUSH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_POP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_void_p)] * 2
)


class FakeDriver:
    """The driver's functions: modules are texts, and a launch runs them by the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, list[str]()
        self.sources: list[Any] = []
        self.functions: list[tuple[int, str]] = []  # the number of the source of each function, and its name
        self.built: dict[int, Any] = {}
        self.failing: dict[str, int] = {}
        self.launched = list[str]()
        self.device, self.contexts, self.streams = 0, list[int](), list(STREAMS)
        self.capture = 0  # the CUDA graph that records all calls

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name in self.failing:
                return self.failing[name]
            known = getattr(type(self), f"_{name}", None)
            return (known(self, *arguments) or 0) if known else 0

        return call

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put these devices in the place of those that kernels run on."""

        def generated(placement: Any) -> CudaSource:
            self.sources.append(generate_cuda(placement))
            return self.sources[-1]

        fake = Driver(self)
        for name, value in {
            "generate_cuda": generated,
            "need_driver": lambda: fake,
            "compile_machine_code": compile_machine_code,
            "cuda_device_of": lambda tensors: self.device,
        }.items():
            monkeypatch.setattr(kernel, name, value)
        for module in (product_kernel, polynomial_kernel):
            monkeypatch.setattr(module, "cuda_device_of", lambda tensors: self.device)
        for name, values in {
            "capability": ARCHITECTURES,
            "count_multiprocessors": (2, 2),
            "stream_of": self.streams,
        }.items():
            monkeypatch.setattr(driver, name, values.__getitem__)
        monkeypatch.setattr(driver, "captured_graph_number", lambda device: self.capture)

    @cached_property
    def entry_points(self) -> EntryPoints:
        """The functions that C++ calls."""
        functions = {
            "stream_of": _STREAM_OF(lambda _, found: found.__setitem__(0, self.streams[self.device]) or 0),
            "capturing": _STREAM_IS(lambda _, found: found.__setitem__(0, bool(self.capture)) or 0),
            "push": _PUSH(lambda context: self.cuCtxPushCurrent_v2(ctypes.c_void_p(context))),
            "pop": _POP(lambda popped: self.cuCtxPopCurrent_v2(popped)),
            "launch": _LAUNCH(self._launched_by_address),
        }
        self._kept = functions
        return EntryPoints(**{name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in functions.items()})

    def _launched_by_address(self, kernel: int, *rest: Any) -> int:
        *geometry, stream, arguments, more = rest
        return self.cuLaunchKernel(ctypes.c_void_p(kernel), *geometry, ctypes.c_void_p(stream), arguments, more)

    def _cuGetErrorString(self, code: int, text: Any) -> None:
        text._obj.value = b"what the driver says"

    def _cuDevicePrimaryCtxRetain(self, made: Any, device: int) -> None:
        made._obj.value = CONTEXTS[device]

    def _cuCtxPushCurrent_v2(self, context: Any) -> None:
        self.contexts.append(context.value)

    def _cuCtxPopCurrent_v2(self, _: Any) -> None:
        self.contexts.pop()

    def _cuLibraryLoadData(self, library: Any, code: bytes, *_: Any) -> None:
        codes = (compile_machine_code(source.text, source.placement.chip.arch) for source in self.sources)
        library._obj.value = next(n for n, known in enumerate(codes, 1) if known == code)

    def _cuLibraryGetKernel(self, made: Any, library: Any, name: bytes) -> None:
        self.functions.append((library.value, name.decode()))
        made._obj.value = len(self.functions)

    def _cuDeviceGetAttribute(self, found: Any, what: int, device: int) -> None:
        assert what == 81
        found._obj.value = chip_of(ARCHITECTURES[device]).shared

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count: Any, *_: Any) -> None:
        count._obj.value = 1

    def _cuLaunchKernel(self, handle: Any, blocks: int, *rest: Any) -> None:
        """Runs it: on the device of the tensors, in its context, on its stream, by code for its capability.

        The default stream is that of the current context; any other says its context.
        """
        n, name = self.functions[handle.value - 1]
        source = self.sources[n - 1]
        assert (rest[6].value or 0) == self.streams[self.device]
        assert self.contexts == [CONTEXTS[self.device]] or (rest[6].value and not self.contexts)
        assert source.placement.chip == chip_of(ARCHITECTURES[self.device])
        if n not in self.built:
            folder = self.folder / str(n)
            folder.mkdir()
            self.built[n] = StandIn([source], [COPIES[self.device]], folder)
        self.launched.append(name)
        threads, shared = source.placement.block_sizes_by_kernel[name]
        assert rest[2:6] == (threads, 1, 1, shared)
        self.built[n].call(0, name, blocks, threads, shared, 0, *_arguments(source, name, rest[7]))


def _arguments(source: CudaSource, name: str, pointers: Any) -> list[Any]:
    """What a kernel is called with: a structure, or pointers; then how many parts there are to add up."""
    if isinstance(source.placement, CudaPolynomialPlacement):
        return [ctypes.c_void_p(pointers[0])]
    count = {COLLECT_ENTRY: 4, SUM_ENTRY: 2}.get(name, 0)
    read: list[Any] = [ctypes.c_void_p.from_address(pointers[k]) for k in range(count)]
    read = read or [ctypes.c_void_p(pointers[0])]
    if name in (SUM_ENTRY, JOIN_ENTRY):
        read.append(ctypes.c_int.from_address(pointers[len(read)]))
    return read
