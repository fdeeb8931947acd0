"""A CUDA driver that does nothing: its functions in C, and a process whose CPU is its device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.cuda.fakes import FakeDriver
from tpgen.kernels.build.build import LibraryRequest, load_library
from tpgen.kernels.cuda.driver import EntryPoints
from tpgen.kernels.runtime.native.runtime import load_cpp_runtime
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, target_of

_SILENT = """
typedef long long i64;
#define EXPORTED extern "C" __attribute__((visibility("default")))
static void* own; static i64 launches, pushes, refusing, recorded;
EXPORTED i64 fake_count(i64 what) { return what ? pushes : launches; }
EXPORTED i64 fake_set(i64 stream, i64 code, i64 graph) {
  own = (void*)stream; refusing = code; recorded = graph; launches = pushes = 0; return 0;
}
EXPORTED int fake_stream(int, void** found) { *found = own; return 0; }
EXPORTED int fake_capturing(void*, int* found) { *found = recorded; return 0; }
EXPORTED int fake_push(void* context) { pushes += context == (void*)50; return 0; }
EXPORTED int fake_pop(void** context) { *context = 0; ++pushes; return 0; }
EXPORTED int fake_launch(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         void* stream, void** arguments, void** more) {
  launches += kernel && stream == own && *arguments && !more;
  return (int)refusing;
}
"""


def silent_driver() -> Any:
    """The functions in C, with a count of launches and of contexts that were pushed and popped."""
    return load_library(LibraryRequest(_SILENT, "fake_count"))


def use(silent: Any, stream: int = 7, code: int = 0, capture: int = 0) -> None:
    """Let the runtime in C++ launch by these functions, on a stream; launches return a code."""
    names = ("fake_stream", "fake_capturing", "fake_push", "fake_pop", "fake_launch")
    addresses = [ctypes.cast(getattr(silent, name), ctypes.c_void_p).value or 0 for name in names]
    silent.fake_set(*map(ctypes.c_int64, (stream, code, capture)))
    native = load_cpp_runtime()
    assert native is not None
    native.set_driver_functions("cpu", EntryPoints(*addresses))


class Silent(FakeDriver):
    """Devices whose kernels compute nothing, for launches from Python."""

    def _cuLaunchKernel(self, handle: Any, blocks: int, *rest: Any) -> None:
        return None


@contextmanager
def silent_gpu() -> Iterator[Any]:
    """Make the CPU a device that computes nothing, in a process that has run no kernel; yields the functions in C."""
    with pytest.MonkeyPatch.context() as patch:
        Silent(Path()).install(patch)
        patch.setitem(KERNEL_TARGETS, "cpp", replace(KERNEL_TARGETS["cuda"], device="cpu", missing=lambda device: None))
        target_of.cache_clear()
        silent = silent_driver()
        use(silent)
        yield silent
