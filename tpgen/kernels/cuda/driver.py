"""The CUDA driver through ctypes.  Importing this module needs no CUDA."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tpgen.base import _torch
from tpgen.base.errors import BackendError

# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
_MAX_SHARED, _CARVEOUT = 8, 9
_SHARED_OF_PROCESSOR = 81  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
_RESERVED = 1024  # bytes of shared memory that the system takes of a block
_MAJOR = 1000  # 12.4 is 12040
_OLDEST = 12  # the first CUDA with libraries of kernels, which belong to no context
_STREAM_OF = "aoti_torch_get_current_cuda_stream"
_LAUNCHING = ("cuStreamIsCapturing", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernel")
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
    **dict.fromkeys((900, 906), "a CUDA graph is being captured, which cannot hold this: call it once before"),
    901: "an earlier error has ended the capture of a CUDA graph: see that one, and capture anew",
    **dict.fromkeys(
        (902, 903, 904, 905, 907),
        "a CUDA graph is being captured on other streams than this: let this stream wait for the one that began the "
        "capture, and that one for this before it ends",
    ),
    908: "another thread has begun the capture of a CUDA graph: end it there",
}


class Driver:
    """The CUDA driver, called by function name; failures raise `BackendError`."""

    def __init__(self, library: Any) -> None:
        """Initialise the driver of a loaded library."""
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self("cuInit", 0)

    def __call__(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise BackendError(f"{function} failed: {self._driver_error_text(code)}")

    def _driver_error_text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        said = text.value.decode() if text.value else f"error {code}"
        return f"{said}; {_HINTS[code]}" if code in _HINTS else said

    def primary_context(self, device: int) -> ctypes.c_void_p:
        """A device's primary context, which torch uses too."""
        if device not in self._contexts:
            made = ctypes.c_void_p()
            self("cuDevicePrimaryCtxRetain", ctypes.byref(made), device)
            self._contexts[device] = made
        return self._contexts[device]

    @contextmanager
    def use_device(self, device: int) -> Iterator[None]:
        """Make a device's context current on this thread."""
        self("cuCtxPushCurrent_v2", self.primary_context(device))
        try:
            yield
        finally:
            self("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def load_library(self, code: bytes) -> ctypes.c_void_p:
        """Load machine code as a library, for ever; return the handle."""
        library = ctypes.c_void_p()
        self("cuLibraryLoadData", ctypes.byref(library), code, None, None, 0, None, None, 0)
        return library

    def shared_bytes_per_multiprocessor(self, device: int) -> int:
        found = ctypes.c_int()
        self("cuDeviceGetAttribute", ctypes.byref(found), _SHARED_OF_PROCESSOR, device)
        return found.value

    def capturing_graph_number(self, stream: int) -> int:
        """Number of the CUDA graph that captures a stream, also after an error; else 0."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        self("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), *map(ctypes.byref, (status, number)), *[None] * 3)
        return number.value + 1 if status.value else 0


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel loaded on a device, with its block size."""

    driver: Driver
    handle: ctypes.c_void_p
    threads: int
    shared: int

    @property
    def address(self) -> int:
        return self.handle.value or 0

    def count_blocks_per_multiprocessor(self) -> int:
        count = ctypes.c_int()
        occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.driver(occupancy, ctypes.byref(count), self.handle, self.threads, ctypes.c_size_t(self.shared))
        return max(1, count.value)

    def shared_memory_percentage(self, room: int) -> int:
        """Percentage of ``room`` bytes that concurrent blocks need."""
        return min(_ALL, -(-_ALL * self.count_blocks_per_multiprocessor() * (self.shared + _RESERVED) // room))

    def launch(self, blocks: int, stream: int, *arguments: Any) -> None:
        """Launch the kernel; a structure passes by value."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        grid, block = (blocks, 1, 1), (self.threads, 1, 1)
        self.driver("cuLaunchKernel", self.handle, *grid, *block, self.shared, ctypes.c_void_p(stream), pointers, None)


def load_kernel_from_library(
    driver: Driver, library: ctypes.c_void_p, device: int, name: str, threads: int, shared_bytes: int = 0
) -> LoadedKernel:
    """Load a kernel by name on the current context's device; blocks have ``threads`` and ``shared_bytes``."""
    handle = ctypes.c_void_p()
    driver("cuLibraryGetKernel", ctypes.byref(handle), library, name.encode())
    if shared_bytes:
        driver("cuKernelSetAttribute", _MAX_SHARED, shared_bytes, handle, device)
        driver("cuKernelSetAttribute", _CARVEOUT, _ALL, handle, device)
    driver("cuKernelGetFunction", ctypes.byref(ctypes.c_void_p()), handle)
    made = LoadedKernel(driver, handle, threads, shared_bytes)
    if shared_bytes:
        driver(
            "cuKernelSetAttribute",
            _CARVEOUT,
            made.shared_memory_percentage(driver.shared_bytes_per_multiprocessor(device)),
            handle,
            device,
        )
    return made


@cache
def _load_driver_library() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def need_driver() -> Driver:
    """Return the driver or raise `BackendError`."""
    if reason := why_no_driver():
        raise BackendError(f"{reason}; use strategy='grouped'")
    return Driver(_load_driver_library())


def why_no_driver() -> str | None:
    """Why this process cannot launch kernels, or None."""
    if torch.version.hip:
        return "generated kernels are CUDA's; on AMD let torch write them, by backend='inductor'"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if _load_driver_library() is None:
        return f"the CUDA driver ({_LIBRARIES[0]}) cannot be loaded"
    taken = driver_cuda_version() or _OLDEST
    if taken < _OLDEST:
        return f"kernels need a driver for CUDA {_OLDEST} or later, and this one takes CUDA {taken}: update it"
    return None


@cache
def driver_cuda_version() -> int | None:
    """Newest major CUDA version that the driver supports, or None."""
    library, version = _load_driver_library(), ctypes.c_int()
    if library is None or library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // _MAJOR


class EntryPoints(NamedTuple):
    """Addresses of torch and driver functions that C++ launches call."""

    stream_of: int
    capturing: int
    push: int
    pop: int
    launch: int


@cache
def find_entry_points() -> EntryPoints | None:
    """Addresses for launches from C++; None if torch exports no stream function."""
    torchs = next((Path(torch.__file__).parent / "lib").glob("libtorch_cuda.*"), None)
    if torchs is None or not hasattr(stable := ctypes.CDLL(str(torchs)), _STREAM_OF):
        return None
    own = [getattr(_load_driver_library(), name) for name in _LAUNCHING]
    return EntryPoints(*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (getattr(stable, _STREAM_OF), *own)))


# -- what torch knows of devices ---------------------------------------------------------------------------------------


def device_number(device: torch.device) -> int:
    """Index of a CUDA device; ``cuda`` is torch's current one."""
    return torch.cuda.current_device() if device.index is None else device.index


def gpu_name(device: torch.device) -> str:
    """Name of a CUDA device, empty if absent."""
    there = torch.cuda.is_available() and device_number(device) < torch.cuda.device_count()
    return torch.cuda.get_device_name(device) if there else ""


@cache
def capability(device: int) -> int:
    """Compute capability of a device: 90 for 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@cache
def count_multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def stream_of(device: int) -> int:
    """Handle of torch's current stream on a device."""
    find = getattr(_torch, "raw_stream", None)
    return find(device) if find else torch.cuda.current_stream(device).cuda_stream


# -- graphs that record ------------------------------------------------------------------------------------------------


_TREES = "torch._inductor.cudagraph_trees"  # loaded by the first compilation that asks for CUDA graphs


def captured_graph_number(device: int) -> int:
    """Number of the CUDA graph that captures a device's current stream, or 0."""
    stream = stream_of(device)
    return need_driver().capturing_graph_number(stream) if stream else 0


def is_cudagraph_tree_active(device: int) -> bool:
    """Whether torch.compile(mode="reduce-overhead") warms up or captures on a device."""
    find = getattr(_torch, "graph_trees", None) if _TREES in sys.modules else None
    trees = find(device, create_if_none_exists=False) if find else None
    return trees is not None and trees.stream.cuda_stream == stream_of(device)


def refuse_while_capturing(device: int) -> None:
    """Raise `BackendError` while a CUDA graph is captured."""
    if captured_graph_number(device):
        raise BackendError(
            "a kernel is loaded by its first call, which cannot be part of a CUDA graph: call it once before you "
            "capture, with its backward if that is captured too"
        )
