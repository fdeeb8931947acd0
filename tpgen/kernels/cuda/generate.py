"""CUDA C++ from placements: deterministic, without includes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpgen.kernels.cpp.text import GeneratedSource, Writer
from tpgen.kernels.cuda.channel_placement import CudaPlacement
from tpgen.kernels.cuda.gather_placement import GatherPlacement
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.polynomial_text import PolynomialText
from tpgen.kernels.cuda.steps_text import StepsText


@dataclass(frozen=True)
class CudaSource:
    """Generated CUDA kernels and their placement."""

    source: GeneratedSource
    placement: Any

    @property
    def text(self) -> str:
        return self.source.text


def generate_cuda(placement: Any) -> CudaSource:
    w = Writer()
    _TEXTS[type(placement)](placement, w).write()
    return CudaSource(w.finish(), placement)


_TEXTS: dict[type, Callable[[Any, Writer], StepsText | PolynomialText]] = {
    CudaPlacement: StepsText,
    GatherPlacement: StepsText,
    CudaPolynomialPlacement: PolynomialText,
}
