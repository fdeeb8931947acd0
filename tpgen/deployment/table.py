"""The tables of a deployed runtime as C++: which file serves which call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import torch

from tpgen.deployment.kernels import Needed
from tpgen.form.call import Call
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.runtime import forms, ops
from tpgen.kernels.runtime.call import mask_of
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.signature import native_fields
from tpgen.kernels.sweep.terms import SLOTS

File = tuple[str, int]  # name and checksum


def kernel_table(kernels: Sequence[Needed], files: Sequence[File], features: Sequence[str]) -> str:
    """Write the table of kernels, which stands between the headers of `tpgen.kernels.runtime.native` in a source."""
    pairs = list(zip(kernels, files, strict=True))
    products = [(needed, file) for needed, file in pairs if needed.fixed]
    listed = [(needed, file) for needed, file in pairs if not needed.fixed]
    major, minor = torch.__version__.split(".")[:2]
    operators = ("PRODUCT", "GRADIENTS", "FORM", "POLYNOMIAL")
    schemas = zip(operators, (*ops.SCHEMAS, *forms.SCHEMAS), strict=True)
    return "\n".join(
        [
            *_products(products),
            *_forms(listed),
            *(f"static const char* const {name} = {_quoted(schema)};" for name, schema in schemas),
            f"enum : u64 {{ TORCH = {major}ull << 56 | {minor}ull << 48 }};",
            f'#define BUILT_WITH "{major}.{minor}"',
            "#define FEATURES " + " ".join(f'NEEDS("{name}")' for name in features),
        ]
    )


def _products(kernels: Sequence[tuple[Needed, File]]) -> Iterator[str]:
    texts = list(dict.fromkeys(needed.description for needed, _ in kernels))
    for number, text in enumerate(texts):
        described = kernels_of(text).product
        flags = f"{int(described.plan.shared_weights)}, {int(described.check_index)}"
        yield f"static Product product_{number} = {{{_list(described.dims)}, {flags}, 0, {{}}}};"
    yield "static const Entry KERNELS[] = {"
    for needed, (file, checksum) in kernels:
        opened = [slot.operand for slot in Call.parse(needed.part).opened]
        mask = mask_of(name in opened for name in SLOTS)
        place = f"{int(needed.indexed)}, {_dtype(needed.dtype)}, {mask}"
        product_of_it = f"&product_{texts.index(needed.description)}"
        yield f'  {{{_quoted(needed.description)}, {product_of_it}, {place}, "{file}", {checksum}}},'
    yield "};"


def _forms(kernels: Sequence[tuple[Needed, File]]) -> Iterator[str]:
    described = [kernels_of(needed.description) for needed, _ in kernels]
    fields = [
        native_fields(form.signature(needed.part, needed.indexed))
        for form, (needed, _) in zip(described, kernels, strict=True)
    ]
    for number, (given, opened) in enumerate(fields):
        yield f"static const Given given_{number}[] = {{{', '.join(map(_list, given))}}};"
        yield f"static const Opened opened_{number}[] = {{{', '.join(map(_list, opened))}}};"
    yield "static Form FORMS[] = {"
    for number, ((needed, (file, checksum)), (given, opened)) in enumerate(zip(kernels, fields, strict=True)):
        texts = f"{_quoted(needed.description)}, {_quoted(needed.call)}"
        counts = f"{_dtype(needed.dtype)}, {len(given)}, {len(opened)}"
        check = int(described[number].description.check_index)
        yield f'  {{{texts}, {counts}, given_{number}, opened_{number}, "{file}", {checksum}, 0, 0, {check}}},'
    yield "};"


def _list(numbers: Sequence[int]) -> str:
    return f"{{{', '.join(str(int(n)) for n in numbers)}}}"


def _dtype(dtype: torch.dtype) -> int:
    return list(DTYPES).index(dtype)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
