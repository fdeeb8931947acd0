"""The tables of a deployed runtime as C++: which file serves which call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import torch

from tpgen.deployment.kernels import Needed
from tpgen.form.call import Call
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.runtime import forms
from tpgen.kernels.runtime.call import mask_of
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.signature import native_fields

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
        counts = f"{_dtype(needed.dtype)}, {len(given)}, {len(opened)}, given_{number}, opened_{number}"
        mask = 0 if form.description.any_level or part.levels else mask_of(part)
        flags = f"{int(form.description.check_index)}, {mask}"
        rows.append(f'  {{{texts}, {counts}, "{file}", {checksum}, 0, 0, {flags}}},')
    yield "\n".join(["static Form FORMS[] = {", *rows, "};"])


def _list(numbers: Sequence[int]) -> str:
    return f"{{{', '.join(str(int(n)) for n in numbers)}}}"


def _dtype(dtype: torch.dtype) -> int:
    return list(DTYPES).index(dtype)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
