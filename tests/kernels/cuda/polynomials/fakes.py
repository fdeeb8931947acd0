"""Devices as kernels of polynomials see them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from tests.kernels.cuda.fakes import FakeLibrary
from tests.kernels.cuda.polynomials.standin import PolynomialStandIn
from tpgen.kernels.cuda.generate import CudaSource


class Polynomials(FakeLibrary):
    """Devices for kernels of polynomials, which have functions of several names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.launched = list[str]()

    def stand_in(self, source: CudaSource, folder: Path) -> PolynomialStandIn:
        return PolynomialStandIn([source], folder)

    def launch(self, n: int, name: str, blocks: int, rest: tuple[Any, ...]) -> None:
        self.launched.append(name)
        call = ctypes.c_void_p(rest[7][0])
        self.built[n].library.call(f"run_{name.removeprefix('tpgen_')}_0", blocks, rest[2], rest[5], 0, call)
