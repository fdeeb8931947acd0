"""The library that a program without tpgen loads: the operators, and which kernel file serves which call."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tpgen.deployment.example import run_command
from tpgen.deployment.kernels import Needed
from tpgen.form.call import Call
from tpgen.kernels.build.compiler import DTYPES, cpu_features, need_compiler
from tpgen.kernels.runtime import forms
from tpgen.kernels.runtime.call import mask_of
from tpgen.kernels.runtime.native.source import deployed_text, libtorch
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.signature import native_fields

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


# -- the table, as C++ -------------------------------------------------------------------------------------------------

File = tuple[str, int]  # name and checksum


def kernel_table(kernels: Sequence[Needed], files: Sequence[File], features: Sequence[str]) -> str:
    """Write the table of kernels, which stands between the headers of `tpgen.kernels.runtime.native` in a source."""
    major, minor = torch.__version__.split(".")[:2]
    schemas = zip(("PRODUCT", "GRADIENTS", "FORM", "POLYNOMIAL"), forms.SCHEMAS, strict=True)
    return "\n".join(
        [
            *_forms(kernels, files),
            *(f"static const char* const {name} = {_quoted(schema)};" for name, schema in schemas),
            f"enum : u64 {{ TORCH = {major}ull << 56 | {minor}ull << 48 }};",
            f'#define BUILT_WITH "{major}.{minor}"',
            "#define FEATURES " + " ".join(f'NEEDS("{name}")' for name in features),
        ]
    )


def _forms(kernels: Sequence[Needed], files: Sequence[File]) -> Iterator[str]:
    rows = []
    for number, (needed, (file, checksum)) in enumerate(zip(kernels, files, strict=True)):
        form, part = kernels_of(needed.description), Call.parse(needed.part)
        given, opened = native_fields(form.signature(needed.part, needed.indexed))
        yield f"static const Given given_{number}[] = {{{', '.join(map(_list, given))}}};"
        yield f"static const Opened opened_{number}[] = {{{', '.join(map(_list, opened))}}};"
        texts = f"{_quoted(needed.description)}, {_quoted(needed.call)}"
        counts = f"{list(DTYPES).index(needed.dtype)}, {len(given)}, {len(opened)}, given_{number}, opened_{number}"
        mask = 0 if form.description.any_level or part.levels else mask_of(part)
        flags = f"{int(form.description.check_index)}, {mask}"
        rows.append(f'  {{{texts}, {counts}, "{file}", {checksum}, 0, 0, {flags}}},')
    yield "\n".join(["static Form FORMS[] = {", *rows, "};"])


def _list(numbers: Sequence[int]) -> str:
    return f"{{{', '.join(str(int(n)) for n in numbers)}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
