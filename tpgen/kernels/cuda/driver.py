"""The CUDA driver through ctypes: load machine code, launch it on torch's current stream.

Nothing here is reached before a kernel runs on a GPU, and nothing of CUDA is needed to import it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from tpgen.errors import BackendError

# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
_MAX_SHARED, _CARVEOUT = 8, 9
_MAJOR = 1000  # 12.4 is 12040
_ALL = 100  # per cent of what a multiprocessor has between shared memory and cache
_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
_HINTS = {
    2: "the device is out of memory: use smaller batches",
    200: "the driver cannot read what NVRTC wrote: update the driver, or run tpgen cache clear",
    209: "this driver does not take what NVRTC wrote: update the driver, or install an NVRTC of its version",
    218: "this driver does not take what NVRTC wrote: update the driver, or install an NVRTC of its version",
    222: "this driver is older than NVRTC: update the driver, or install an NVRTC of its version",
    700: "a kernel read or wrote outside its tensors, and this process cannot use the GPU any more: start another; "
    "edges are checked, but not with check_index=False, nor in a CUDA graph",
}


class Driver:
    """The functions of the driver that are used, each checked."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self("cuInit", 0)

    def __call__(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise BackendError(f"{function} failed: {self._error(code)}")

    def _error(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        said = text.value.decode() if text.value else f"error {code}"
        return f"{said}; {_HINTS[code]}" if code in _HINTS else said

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """The device's context, which torch uses too, for this thread: one of autograd's may have none yet."""
        if device not in self._contexts:
            made = ctypes.c_void_p()
            self("cuDevicePrimaryCtxRetain", ctypes.byref(made), device)
            self._contexts[device] = made
        self("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def load(self, code: bytes) -> ctypes.c_void_p:
        """A module of the current context, which stays as long as that."""
        module = ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), code)
        return module


@dataclass(frozen=True)
class Function:
    """A kernel of a module, for blocks of so many threads and so much shared memory."""

    driver: Driver
    handle: ctypes.c_void_p
    threads: int
    shared: int

    def at_once(self) -> int:
        """Blocks of it that one multiprocessor runs at once."""
        count = ctypes.c_int()
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.driver(occupancy, ctypes.byref(count), self.handle, self.threads, ctypes.c_size_t(self.shared))
        return max(1, count.value)

    def launch(self, blocks: int, stream: int, *arguments: Any) -> None:
        """Start it; a structure goes by value."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        grid, block = (blocks, 1, 1), (self.threads, 1, 1)
        self.driver("cuLaunchKernel", self.handle, *grid, *block, self.shared, ctypes.c_void_p(stream), pointers, None)


def function(driver: Driver, module: ctypes.c_void_p, name: str, threads: int, shared: int = 0) -> Function:
    """A kernel by its name."""
    handle = ctypes.c_void_p()
    driver("cuModuleGetFunction", ctypes.byref(handle), module, name.encode())
    if shared:
        driver("cuFuncSetAttribute", handle, _MAX_SHARED, shared)
        driver("cuFuncSetAttribute", handle, _CARVEOUT, _ALL)
    return Function(driver, handle, threads, shared)


@cache
def _open() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def need_driver() -> Driver:
    """The driver, or a `BackendError`."""
    if reason := why_no_driver():
        raise BackendError(f"{reason}; use strategy='grouped'")
    return Driver(_open())


def why_no_driver() -> str | None:
    """Why nothing can be launched, in words; None where it can."""
    if torch.version.hip:
        return "generated kernels are CUDA's; on AMD let torch write them, by backend='inductor'"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None if _open() else f"the CUDA driver ({_LIBRARIES[0]}) cannot be loaded"


@cache
def cuda_taken() -> int | None:
    """The newest major version of CUDA whose code the driver takes; None where there is no driver."""
    library, version = _open(), ctypes.c_int()
    if library is None or library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // _MAJOR


# -- what torch knows of devices ---------------------------------------------------------------------------------------


def device_number(device: torch.device) -> int:
    """The number of a CUDA device; "cuda" alone is torch's current one."""
    return torch.cuda.current_device() if device.index is None else device.index


def gpu_name(device: torch.device) -> str:
    """Name of a CUDA device; empty where it is not there."""
    there = torch.cuda.is_available() and device_number(device) < torch.cuda.device_count()
    return torch.cuda.get_device_name(device) if there else ""


@cache
def capability(device: int) -> int:
    """The compute capability of a device: 90 for 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def stream_of(device: int) -> int:
    """Torch's current stream."""
    return torch.cuda.current_stream(device).cuda_stream


def capturing(device: int) -> bool:
    """Whether a CUDA graph records what is launched there: nothing may wait for the device then."""
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
