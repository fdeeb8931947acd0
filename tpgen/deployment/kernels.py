"""Which kernels a program calls, and their libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

import tpgen.kernels.operators.ops
import tpgen.kernels.polynomial.operator  # noqa: F401  both register what programs call
from tpgen.errors import DeployError
from tpgen.kernels.libraries.build import Wanted, load_library
from tpgen.kernels.operators.call import OUT, X1
from tpgen.kernels.operators.description import read_description
from tpgen.kernels.operators.runtime import product_of, slots_of
from tpgen.kernels.polynomial.call import Call
from tpgen.kernels.polynomial.runtime import kernels_of as polynomial_kernels

_PRODUCT, _GRADIENTS = torch.ops.tpgen.product.default, torch.ops.tpgen.gradients.default
_POLYNOMIAL = torch.ops.tpgen.polynomial.default


@dataclass(frozen=True)
class Needed:
    """A kernel: of a product, for a dtype, with some slots open, of rows or of edges."""

    description: str
    dtype: torch.dtype
    mask: int
    indexed: bool

    def library(self) -> Path:
        """The file of its compiled library, built if it is not in the cache."""
        source = read_description(self.description).source(slots_of(self.mask), self.dtype, self.indexed)
        return Path(load_library(Wanted(source.text))._name)


@dataclass(frozen=True)
class NeededPolynomial:
    """A kernel of a call of a polynomial, for a dtype."""

    description: str
    dtype: torch.dtype
    call: str

    def library(self) -> Path:
        """The file of its compiled library, built if it is not in the cache."""
        source = polynomial_kernels(self.description).source(Call.parse(self.call), self.dtype)
        return Path(load_library(Wanted(source.text))._name)


def kernels_of(program: ExportedProgram) -> list[Needed | NeededPolynomial]:
    """The kernels of a program, each once, in the order of their first call.

    Raises `DeployError` for a call that has none.
    """
    return list(dict.fromkeys(needed for node in program.graph.nodes for needed in _of(node)))


def _of(node: Any) -> Iterator[Needed | NeededPolynomial]:
    arguments: tuple[Any, ...] = (*node.args, None, None)  # the last, an index of edges, may be left out
    if node.target is _PRODUCT:
        text, src = arguments[3:5]
        yield from _sweeps(text, _dtype(arguments[0]), OUT, src is not None)
    elif node.target is _GRADIENTS:
        text, mask, src = arguments[4:7]
        yield from _sweeps(text, _dtype(arguments[0]), mask, src is not None)
    elif node.target is _POLYNOMIAL:
        tensors, _, text, call = arguments[:4]
        yield NeededPolynomial(text, _dtype(tensors[0]), call)


def _dtype(x: Any) -> torch.dtype:
    value = x.meta["val"]
    assert isinstance(value, Tensor)
    return value.dtype


def _sweeps(text: str, dtype: torch.dtype, mask: int, indexed: bool) -> Iterator[Needed]:
    """A kernel for each sweep of a call: both ends of a gather are two."""
    product = product_of(text)
    if not product.live or product.widens(mask, dtype, indexed):
        raise DeployError(
            f"a call in {dtype} of plan {product.description.plan.digest} has no kernel of its own to deploy: convert "
            "the network with .float(), or deploy tpgen.portable(network)"
        )
    for part in (mask & ~OUT, OUT) if indexed and mask & X1 and mask & OUT else (mask,):
        yield Needed(text, dtype, part, indexed)
