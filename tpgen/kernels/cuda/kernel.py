"""CUDA kernels of calls."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from tpgen.base.locks import cached_property
from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.chips import Chip, chip_of
from tpgen.kernels.cuda.driver import LoadedKernel, load_kernel_from_library, need_driver
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.launch import plan_launches
from tpgen.kernels.cuda.nvrtc import compile_machine_code
from tpgen.kernels.cuda.prelude import ENTRY
from tpgen.kernels.rows import RowIndex


@dataclass(frozen=True)
class _CompiledKernels:
    source: CudaSource
    code: bytes

    @cached_property
    def library(self) -> ctypes.c_void_p:
        return need_driver().load_library(self.code)


class LoadedKernels(NamedTuple):
    """Kernels of a call by name, loaded on one device."""

    placement: Any
    device: int
    functions: Mapping[str, LoadedKernel]
    concurrent_blocks: int  # blocks of the first, that of the rows

    @property
    def context(self) -> int:
        return need_driver().primary_context(self.device).value or 0

    @property
    def stream(self) -> int:
        return driver.stream_of(self.device)

    def address(self, name: str) -> int:
        """Address of a kernel, 0 if unknown."""
        return self.functions[name].address if name in self.functions else 0


class PreparedIndices(NamedTuple):
    """A call's row indices as int64, checked, with orders that sort edges by owner."""

    indices: Sequence[Tensor]
    orders: Sequence[Tensor | None]
    stream: int | None  # to which that stays known; None: it is of this call alone


class CudaKernel(ABC):
    """CUDA kernels of one call, built at the first use on a device."""

    def __init__(self, spec: KernelSpec) -> None:
        """Keep the spec; compile nothing yet."""
        self.spec = spec
        self._built: dict[int, _CompiledKernels] = {}  # by capability
        self._loaded: dict[int, LoadedKernels] = {}

    @staticmethod
    @abstractmethod
    def place_on_chip(spec: KernelSpec, chip: Chip) -> Any:
        """Choose rows and warps of a call's kernel.  Raises `EmitError` for lack of memory."""

    @abstractmethod
    def launch_fields(self, loaded: LoadedKernels) -> list[int]:
        """Launch parameters for the C++ runtime."""

    @abstractmethod
    def get_cached_indices(self, indices: Sequence[RowIndex], like: Tensor) -> PreparedIndices | None:
        """Cached indices and sort orders of a call; None for new indices."""

    @abstractmethod
    def sort_rows(self, loaded: LoadedKernels, call: KernelCall) -> tuple[int, Any]:
        """Sort edges by owner, or rows by element; return a fault code (0: none) and the order."""

    def load_on_device(self, device: int) -> LoadedKernels:
        """Compile and load the kernels on a device, once.

        Raises `BackendError` for a first use inside a CUDA graph capture.
        """
        if device not in self._loaded:
            driver.refuse_while_capturing(device)
            with need_driver().use_device(device):
                self._loaded[device] = self._compile_and_load_on_device(device)
        return self._loaded[device]

    def compile(self, like: Tensor) -> None:
        """Compile the kernels for a tensor's device."""
        self._compile_for_architecture(driver.capability(cuda_device_of([like])))

    def launch_parameters(self, like: Tensor) -> tuple[int, list[int]]:
        """A tensor's device, and integers by which C++ launches the kernels."""
        device = cuda_device_of([like])
        return device, self.launch_fields(self.load_on_device(device))

    def __call__(self, call: KernelCall) -> int:
        """Launch the kernels on the current stream; return a fault code or 0."""
        loaded = self.load_on_device(cuda_device_of(call.given))
        fault, order = self.sort_rows(loaded, call)
        if not fault:
            with need_driver().use_device(loaded.device):
                self._launch_kernels(loaded, call, order)
        return fault

    def _launch_kernels(self, loaded: LoadedKernels, call: KernelCall, row_order: Any) -> None:
        slots, opened = ([*map(str, part)] for part in (self.spec.call.given, self.spec.call.opened))
        given = [_aligned_or_copied(x, loaded.placement.alignment) for x in call.given]
        tensors = dict(zip(slots, given, strict=True)), dict(zip(opened, call.opened, strict=True))
        launches = plan_launches(loaded.placement, call.sizes, loaded.concurrent_blocks)
        scratch = launches.allocate_scratch(given[0].device)  # which must live until all is launched
        for one in launches.list_launches(*tensors, scratch, row_order):
            loaded.functions[one.entry].launch(one.blocks, loaded.stream, *one.arguments)

    def _compile_and_load_on_device(self, device: int) -> LoadedKernels:
        # the device's context is current
        built = self._compile_for_architecture(driver.capability(device))
        placement = built.source.placement
        entries = placement.block_sizes_by_kernel.items()
        functions = {
            name: load_kernel_from_library(need_driver(), built.library, device, name, *block)
            for name, block in entries
        }
        return LoadedKernels(
            placement,
            device,
            functions,
            functions[ENTRY].count_blocks_per_multiprocessor() * driver.count_multiprocessors(device),
        )

    def _compile_for_architecture(self, arch: int) -> _CompiledKernels:
        if arch not in self._built:
            source = generate_cuda(self.place_on_chip(self.spec, chip_of(arch)))
            self._built[arch] = _CompiledKernels(source, compile_machine_code(source.text, arch))
        return self._built[arch]


def _aligned_or_copied(x: Tensor, alignment: int) -> Tensor:
    # a slice of another tensor may begin at any address
    return x if x.data_ptr() % alignment == 0 else x.clone()


def cuda_device_of(tensors: Sequence[Tensor]) -> int:
    return tensors[0].get_device()
