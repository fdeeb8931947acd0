"""The library that a program without tpgen loads: the operators, and which kernel file serves which call."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from tpgen.deployment.kernels import Needed
from tpgen.errors import DeployError
from tpgen.kernels.libraries.compiler import DTYPES, cpu_features, need_compiler
from tpgen.kernels.native.source import deployed_text, lacking, libtorch
from tpgen.kernels.operators.ops import SCHEMAS
from tpgen.kernels.operators.runtime import product_of

LIBRARY = "libtpgen.so"
# what a compiler may use without being asked again, by the names that the system and the compiler share
_FEATURES = ("avx", "avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl")


def write_runtime(kernels: Sequence[Needed], folder: Path) -> None:
    """Write the library, and beside it the kernels.  Raises `DeployError` where the compiler fails."""
    if missing := lacking():
        raise DeployError(f"no runtime can be written: {missing}; deploy with torch 2.10 or later")
    (folder / "kernels").mkdir()
    files = [f"{number}.so" for number in range(len(kernels))]
    for needed, file in zip(kernels, files, strict=True):
        shutil.copyfile(needed.library(), folder / "kernels" / file)
    source = folder / "libtpgen.cpp"
    sizes = [(folder / "kernels" / file).stat().st_size for file in files]
    source.write_text(deployed_text(_table(kernels, files, sizes)), encoding="utf-8")
    _compile(source, folder / LIBRARY)
    source.unlink()


def _compile(source: Path, library: Path) -> None:
    command = need_compiler().command([source], library, [libtorch()])
    plain = [flag for flag in command if not flag.startswith(("-march", "-mcpu"))]  # it says what kernels need
    done = subprocess.run(plain, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    if done.returncode:
        raise DeployError(f"the compiler failed: {' '.join(plain)}\n{done.stderr.strip()}")


def _table(kernels: Sequence[Needed], files: Sequence[str], sizes: Sequence[int]) -> str:
    """Products and their kernels as C++."""
    texts = list(dict.fromkeys(needed.description for needed in kernels))
    lines = [f"static Product product_{n} = {_fields(text)};" for n, text in enumerate(texts)]
    lines += ["static const Entry KERNELS[] = {"]
    for needed, file, size in zip(kernels, files, sizes, strict=True):
        place = f"{int(needed.indexed)}, {list(DTYPES).index(needed.dtype)}, {needed.mask}"
        number = texts.index(needed.description)
        lines += [f'  {{{_quoted(needed.description)}, &product_{number}, {place}, "{file}", {size}}},']
    product, gradients = map(_quoted, SCHEMAS)
    major, minor = torch.__version__.split(".")[:2]
    return "\n".join(
        [
            *lines,
            "};",
            f"static const char *const PRODUCT = {product}, *const GRADIENTS = {gradients};",
            f"enum : u64 {{ TORCH = {major}ull << 56 | {minor}ull << 48 }};",
            f'#define BUILT_WITH "{major}.{minor}"',
            "#define FEATURES " + " ".join(f'NEEDS("{name}")' for name in features()),
        ]
    )


def _fields(text: str) -> str:
    product = product_of(text)
    dims = ", ".join(map(str, product.dims))
    return f"{{{{{dims}}}, {int(product.shared)}, {int(product.description.check_index)}, 0, {{}}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)


def features() -> list[str]:
    """What this processor has of what compiled kernels may use."""
    here = set(cpu_features().split())
    return [name for name in _FEATURES if name in here]
