"""CUDA C++ from placements: deterministic, without includes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpgen.kernels.cpp.text import GeneratedSource, Writer
from tpgen.kernels.cuda.channel_placement import CudaChannelPlacement
from tpgen.kernels.cuda.gather_placement import CudaGatherPlacement
from tpgen.kernels.cuda.placement import AnyPlacement
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.polynomial_text import PolynomialKernelWriter
from tpgen.kernels.cuda.steps_text import ProductKernelWriter


@dataclass(frozen=True)
class CudaSource:
    """Generated CUDA kernels and their placement."""

    source: GeneratedSource
    placement: Any

    @property
    def text(self) -> str:
        return self.source.text


def generate_cuda(placement: AnyPlacement | CudaPolynomialPlacement) -> CudaSource:
    w = Writer()
    _TEXTS[type(placement)](placement, w).write_kernel_source()
    return CudaSource(w.finish(), placement)


_TEXTS: dict[type, Callable[[Any, Writer], ProductKernelWriter | PolynomialKernelWriter]] = {
    CudaChannelPlacement: ProductKernelWriter,
    CudaGatherPlacement: ProductKernelWriter,
    CudaPolynomialPlacement: PolynomialKernelWriter,
}
