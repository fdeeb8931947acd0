"""The C++ runtime: operators, and tables of built kernels.

``tpgen_native::form`` runs built kernels on fitting plain tensors, else returns nothing, and Python takes over.
``form.few`` takes few tensors without lists; ``form.named``, for compiled programs, raises at faults.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tpgen.base import _torch
from tpgen.base.errors import BackendError
from tpgen.base.locks import ForkedLock
from tpgen.base.remember import integer_setting
from tpgen.kernels.build.build import LibraryRequest, load_library
from tpgen.kernels.build.cache import RUNTIME
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda.driver import EntryPoints, find_entry_points
from tpgen.kernels.runtime.native.source import libtorch, write_process_runtime_source

FEW = 3  # tensors of calls without a list, and less indices
NO_NUMBER = -1  # the number of a call that is not in the table
_UNUSUAL = (
    *("Python", "FuncTorchDynamicLayerFrontMode", "FuncTorchGradWrapper", "Functionalize", "Tracer", "Batched"),
    *("XPU", "MPS", "Meta", "SparseCPU", "MkldnnCPU", "CompositeExplicitAutograd"),  # the last: any other
)
_DTYPES = {dtype: n for n, dtype in enumerate(DTYPES)}
_TAKE: Any = getattr(_torch, "tensors_of", None)  # tensors, of their handles in capsules
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class CppRuntime:
    """The C++ runtime library: operators, and tables of built kernels."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Declare functions of a loaded library; register operators."""
        library.tpgen_set_kernel.argtypes = [ctypes.c_int64, ctypes.c_void_p]
        library.tpgen_name.argtypes = [ctypes.c_int64] * 2
        library.tpgen_use_driver.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * len(EntryPoints._fields)]
        library.tpgen_set_launch.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        library.tpgen_add_form.restype = ctypes.c_int64
        library.tpgen_add_form.argtypes = [ctypes.c_void_p]
        library.tpgen_empty.restype = ctypes.c_void_p
        library.tpgen_empty.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        for name in ("kept", "limit"):
            getattr(library, f"tpgen_memory_{name}").restype = ctypes.c_int64
        library.tpgen_memory_limit.argtypes = [ctypes.c_int64]
        self._library = library
        self._guard = ForkedLock()
        self._launches: bool | None = None
        # of calls, by all that describes them: what was forgotten gets its number again
        self._numbers: dict[str, int] = {}
        if library.tpgen_register():
            raise BackendError(f"torch {torch.__version__} refuses the operators of tpgen_native")
        self._registered = _register_empty_fallbacks_for_unusual_keys()
        self.form, self.few = _get_native_operator("form"), _get_native_operator("form", "few")

    def set_driver_functions(self, device: str, functions: EntryPoints | None) -> None:
        """Let C++ launch kernels on a device type by driver functions; None leaves launches to Python."""
        kind = getattr(ctypes.CDLL(libtorch()), f"aoti_torch_device_type_{device}")() if functions else NO_NUMBER
        self._library.tpgen_use_driver(kind, *(functions or [None] * len(EntryPoints._fields)))
        self._launches = functions is not None

    def can_launch_gpu_kernels(self) -> bool:
        """Whether C++ launches kernels on GPUs."""
        if self._launches is None:
            self.set_driver_functions("cuda", find_entry_points())
        return bool(self._launches)

    def register_call_hash(self, text: str, number: int) -> int:
        """Register call ``number`` for compiled programs by a hash of ``text``; return the hash."""
        name = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
        with self._guard.lock:
            self._library.tpgen_name(name, number)
        return name

    def register_call(
        self,
        text: str,
        dtype: torch.dtype,
        computed_bits: int,
        signature_fields: Sequence[Sequence[Sequence[int]]],
    ) -> int:
        """Register a call by ``text`` once; return the number, or `NO_NUMBER` if refused."""
        numbers = [
            _DTYPES[dtype],
            computed_bits,
            *map(len, signature_fields),
            *(n for part in signature_fields for x in part for n in x),
        ]
        with self._guard.lock:
            if text not in self._numbers:
                self._numbers[text] = self._library.tpgen_add_form((ctypes.c_int64 * len(numbers))(*numbers))
            return self._numbers[text]

    def allocate_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Uninitialised CPU tensor on reused pages, or None without memory."""
        if not _TAKE or dtype not in _DTYPES:
            return None
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        handle = self._library.tpgen_empty(sizes, len(shape), _DTYPES[dtype])
        return _TAKE([_new_capsule(handle, None, None)])[0] if handle else None

    def kept_bytes(self) -> int:
        return int(self._library.tpgen_memory_kept())

    def release(self) -> None:
        self._library.tpgen_memory_release()

    def limit(self, size: int) -> int:
        """Set the most bytes to keep (negative: default); return the previous limit."""
        return int(self._library.tpgen_memory_limit(size))

    def free_memory_lock_after_fork(self) -> None:
        self._library.tpgen_memory_after_fork()

    def set_kernel_address(self, form: int, address: int) -> None:
        self._library.tpgen_set_kernel(form, address)

    def set_launch_parameters(self, form: int, device: int, launch: Sequence[int]) -> None:
        self._library.tpgen_set_launch(form, device, (ctypes.c_int64 * len(launch))(*launch))


def _get_native_operator(name: str, overload: str = "") -> Callable[..., list[Tensor]]:
    # the operator's object would be another Python frame
    find = getattr(_torch, "operation", None)
    operators = getattr(torch.ops.tpgen_native, name)
    return find(f"tpgen_native::{name}", overload)[0] if find else getattr(operators, overload or "default")


def read_memory_limit() -> int | None:
    """Most bytes of freed results to keep, from ``TPGEN_REUSE_MB``, or None."""
    asked = integer_setting("TPGEN_REUSE_MB", "MB")
    return None if asked is None else asked * 2**20


def get_loaded_cpp_runtime() -> CppRuntime | None:
    return _build_cpp_runtime_or_none() if _build_cpp_runtime_or_none.cache_info().currsize else None


def _register_empty_fallbacks_for_unusual_keys() -> torch.library.Library:
    library = torch.library.Library("tpgen_native", "FRAGMENT")
    for key in _UNUSUAL:
        for name in ("form.few", "form"):
            library.impl(name, lambda *_: [], key)
    for name in ("form.few", "form", "form.named"):
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")  # who calls it records, or need not
    return library


_guard = ForkedLock()  # kernels are built side by side, and the first of them asks for the runtime


def load_cpp_runtime() -> CppRuntime | None:
    """The C++ runtime, compiled and loaded at first; None with TPGEN_NATIVE=0, or after a failure, which warns."""
    with _guard.lock:
        return _build_cpp_runtime_or_none()


@cache
def _build_cpp_runtime_or_none() -> CppRuntime | None:
    if os.environ.get("TPGEN_NATIVE") == "0":
        return None
    try:
        made = CppRuntime(
            load_library(LibraryRequest(write_process_runtime_source(), "tpgen_register", (libtorch(),), RUNTIME))
        )
        if (most := read_memory_limit()) is not None:
            made.limit(most)
        return made
    except BackendError as error:
        warnings.warn(
            f"kernels are called from Python, some ten microseconds slower a call: {error}; "
            "TPGEN_NATIVE=0 does so without this message",
            stacklevel=2,
        )
    return None
