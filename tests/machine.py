"""What this machine has, for tests that need it: they skip elsewhere and say why."""

from __future__ import annotations

import pytest

from tpgen.kernels.build.compiler import find_compiler
from tpgen.kernels.cuda.nvrtc import find_nvrtc, why_no_nvrtc
from tpgen.tools.inspection.stages.cuda import find_disassemblers

WITHOUT_COMPILER = "no C++ compiler, or TPGEN_CXX=none: generated kernels are not tested"
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason=WITHOUT_COMPILER)
KERNEL = pytest.param("kernel", marks=needs_compiler)  # the strategy, as a parameter
WITHOUT_NVRTC = f"no NVRTC ({why_no_nvrtc()}): kernels for GPUs are not compiled"
needs_nvrtc = pytest.mark.skipif(find_nvrtc() is None, reason=WITHOUT_NVRTC)
WITHOUT_NVDISASM = "no nvdisasm (pip install nvidia-cuda-nvdisasm): instructions of kernels for GPUs are not counted"
needs_nvdisasm = pytest.mark.skipif(next(find_disassemblers(), None) is None, reason=WITHOUT_NVDISASM)
