"""The tables of a deployed runtime as C++: which file serves which call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import torch

from tpgen.deployment.kernels import Needed, NeededPolynomial
from tpgen.kernels.libraries.compiler import DTYPES
from tpgen.kernels.operators.ops import SCHEMAS
from tpgen.kernels.operators.runtime import product_of
from tpgen.kernels.polynomial.operator import SCHEMA
from tpgen.kernels.polynomial.runtime import kernels_of as polynomial_kernels

File = tuple[str, int]  # name and checksum


def table(kernels: Sequence[Needed | NeededPolynomial], files: Sequence[File], features: Sequence[str]) -> str:
    """What stands between the headers of `tpgen.kernels.native` in the source of a runtime."""
    pairs = list(zip(kernels, files, strict=True))
    products = [(needed, file) for needed, file in pairs if isinstance(needed, Needed)]
    polynomials = [(needed, file) for needed, file in pairs if isinstance(needed, NeededPolynomial)]
    major, minor = torch.__version__.split(".")[:2]
    return "\n".join(
        [
            *_products(products),
            *_polynomials(polynomials),
            *_schemas(),
            f"enum : u64 {{ TORCH = {major}ull << 56 | {minor}ull << 48 }};",
            f'#define BUILT_WITH "{major}.{minor}"',
            "#define FEATURES " + " ".join(f'NEEDS("{name}")' for name in features),
        ]
    )


def _products(kernels: Sequence[tuple[Needed, File]]) -> Iterator[str]:
    texts = list(dict.fromkeys(needed.description for needed, _ in kernels))
    for number, text in enumerate(texts):
        product = product_of(text)
        flags = f"{int(product.shared)}, {int(product.description.check_index)}"
        yield f"static Product product_{number} = {{{{{_list(product.dims)}}}, {flags}, 0, {{}}}};"
    yield "static const Entry KERNELS[] = {"
    for needed, (file, checksum) in kernels:
        place = f"{int(needed.indexed)}, {_dtype(needed.dtype)}, {needed.mask}"
        product_of_it = f"&product_{texts.index(needed.description)}"
        yield f'  {{{_quoted(needed.description)}, {product_of_it}, {place}, "{file}", {checksum}}},'
    yield "};"


def _polynomials(kernels: Sequence[tuple[NeededPolynomial, File]]) -> Iterator[str]:
    signatures = [polynomial_kernels(needed.description).signature(needed.call) for needed, _ in kernels]
    for number, s in enumerate(signatures):
        given = [f"{{{g.dim}, {int(g.channels)}, {int(g.weights)}}}" for g in s.given]
        opened = [f"{{{-1 if place is None else place}, {dim}}}" for place, dim in s.opened]
        yield f"static const Given given_{number}[] = {{{', '.join(given)}}};"
        yield f"static const Opened opened_{number}[] = {{{', '.join(opened)}}};"
    yield "static Polynomial POLYNOMIALS[] = {"
    for number, ((needed, (file, checksum)), s) in enumerate(zip(kernels, signatures, strict=True)):
        texts = f"{_quoted(needed.description)}, {_quoted(needed.call)}"
        counts = f"{_dtype(needed.dtype)}, {len(s.given)}, {len(s.opened)}"
        yield f'  {{{texts}, {counts}, given_{number}, opened_{number}, "{file}", {checksum}, 0}},'
    yield "};"


def _schemas() -> Iterator[str]:
    for name, schema in zip(("PRODUCT", "GRADIENTS", "POLYNOMIAL"), (*SCHEMAS, SCHEMA), strict=True):
        yield f"static const char* const {name} = {_quoted(schema)};"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _dtype(dtype: torch.dtype) -> int:
    return list(DTYPES).index(dtype)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
