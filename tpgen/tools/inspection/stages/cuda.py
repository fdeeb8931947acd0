"""Texts of CUDA kernels, without GPU."""

from __future__ import annotations

import shutil
import site
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from tpgen.base.errors import BackendError
from tpgen.kernels.build.compiler import COMPUTED, DTYPES
from tpgen.kernels.cuda.chips import Chip, chip_of
from tpgen.kernels.cuda.driver import capability, why_no_driver
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.nvrtc import need_nvrtc

_UNKNOWN = 90  # what kernels are shown for where there is no GPU


def choose_shown_chip() -> Chip:
    """Chip of the current GPU, else an H200."""
    return chip_of(_UNKNOWN if why_no_driver() else capability(torch.cuda.current_device()))


def c_type_of(dtype: torch.dtype) -> str:
    """C name of a dtype."""
    if dtype not in DTYPES:
        raise BackendError(f"{COMPUTED}, not in {str(dtype).removeprefix('torch.')}")
    return DTYPES[dtype]


def compile_to_ptx(source: CudaSource, numbered: bool = False) -> str:
    """Compile a kernel to PTX text; ``numbered`` adds source lines."""
    arch = source.placement.chip.arch
    return need_nvrtc(arch).ptx(source.text, arch, numbered).strip()


def disassemble_to_sass(source: CudaSource) -> str:
    """Disassemble a kernel to machine instructions by nvdisasm."""
    tool = next(find_disassemblers(), None)
    if tool is None:
        raise BackendError(
            "the stage 'sass' needs nvdisasm of the CUDA toolkit, and there is none in PATH: "
            "pip install nvidia-cuda-nvdisasm, or ask for the stage 'ptx'"
        )
    arch = source.placement.chip.arch
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(need_nvrtc(arch).compile(source.text, arch).code)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{tool} failed: {(done.stderr.splitlines() or ['(no output)'])[0]}")
    return done.stdout.strip()


def find_disassemblers() -> Iterator[str]:
    """Yield paths of nvdisasm."""
    found = shutil.which("nvdisasm")
    if found:
        yield found
    for folder in site.getsitepackages():
        yield from map(str, Path(folder).glob("nvidia/*/bin/nvdisasm"))
