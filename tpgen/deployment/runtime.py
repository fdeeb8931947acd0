"""The library that a program without tpgen loads: the operators, and which kernel file serves which call."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path

from tpgen.deployment.example import run_command
from tpgen.deployment.kernels import Needed
from tpgen.deployment.table import kernel_table
from tpgen.kernels.build.compiler import cpu_features, need_compiler
from tpgen.kernels.runtime.native.source import deployed_text, libtorch

LIBRARY = "libtpgen.so"
# what a compiler may use without being asked again, by the names that the system and the compiler share
_FEATURES = ("avx", "avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl")


def write_runtime(kernels: Sequence[Needed], folder: Path) -> None:
    """Write the library, and beside it the kernels.  Raises `DeployError` where the compiler fails."""
    (folder / "kernels").mkdir()
    files = [f"{number}.so" for number in range(len(kernels))]
    for needed, file in zip(kernels, files, strict=True):
        shutil.copyfile(needed.library(), folder / "kernels" / file)
    source = folder / "libtpgen.cpp"
    sums = [(file, zlib.crc32((folder / "kernels" / file).read_bytes())) for file in files]
    source.write_text(deployed_text(kernel_table(kernels, sums, features())), encoding="utf-8")
    command = need_compiler().command([source], folder / LIBRARY, [libtorch()])
    # without the flags of this processor: the library itself says what kernels need
    run_command([flag for flag in command if not flag.startswith(("-march", "-mcpu"))])
    source.unlink()


def features() -> list[str]:
    """List the features that compiled kernels may use and this processor has."""
    here = set(cpu_features().split())
    return [name for name in _FEATURES if name in here]
