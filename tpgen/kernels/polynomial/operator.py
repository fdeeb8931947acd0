"""The operator ``tpgen::polynomial``: calls of a form, and the one rule that makes their derivatives calls again.

Registered for autograd, forward mode, torch.func's transforms and tracing, as the operators of products are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.kernels.operators.registration import Operator, Unfold, define, register
from tpgen.kernels.polynomial.batching import fold_batch
from tpgen.kernels.polynomial.call import Call
from tpgen.kernels.polynomial.runtime import kernels_of
from tpgen.remember import remembered


def kernel_polynomial(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> Tensor:
    """The output of a polynomial by a generated kernel, ``(rows, out)``.

    ``tensors`` are inputs and weights in the order of the plan; ``index`` is the element of every row, where weights
    have elements.  Differentiable to any order up to 9 in all tensors.  ``description`` is the plan's JSON text,
    ``call`` its `forward_call` as text: both are made outside of what is compiled or traced, where they are constants.
    """
    dtype = tensors[0].dtype
    if any(x.dtype != dtype for x in tensors):
        for x in tensors:
            dtype = torch.promote_types(dtype, x.dtype)
        tensors = [x.to(dtype) for x in tensors]
    return _polynomials.form(_Arguments(tensors, index, description, call))[0]


SCHEMA = "polynomial(Tensor[] tensors, Tensor? index, str description, str call) -> Tensor[]"
define(SCHEMA)
_polynomial = torch.ops.tpgen.polynomial.default


class _Arguments(NamedTuple):
    """What the operator is given."""

    tensors: Sequence[Tensor]
    elements: Tensor | None  # of every row
    description: str
    call: str


class _Polynomials(Operator[_Arguments]):
    """The operator; the rule of its derivatives is that of `tpgen.kernels.polynomial.call`."""

    indices, constants = 1, 2

    def flat(self, call: _Arguments) -> tuple:
        return (*call.tensors, *call[1:])

    def call(self, arguments: Sequence[Any]) -> _Arguments:
        *tensors, elements, description, text = arguments
        return _Arguments(tensors, elements, description, text)

    def evaluate(self, call: _Arguments) -> list[Tensor]:
        return list(_polynomial(*call))

    def run(self, call: _Arguments) -> list[Tensor]:
        return kernels_of(call.description).run(call.call, call.tensors, call.elements)

    def redispatch(self, keys: Any, call: _Arguments) -> list[Tensor]:
        return list(_polynomial.redispatch(keys, *call))

    def shapes(self, call: _Arguments) -> list[Tensor]:
        signature = kernels_of(call.description).signature(call.call)
        shapes = signature.shapes(call.tensors, signature.sizes(call.tensors, call.elements))
        return [call.tensors[0].new_empty(shape) for shape in shapes]

    def ahead(self, call: _Arguments, wanted: Sequence[bool]) -> None:
        kernels_of(call.description).build_ahead(call.call, wanted, call.tensors[0])

    def pull_back(
        self, call: _Arguments, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        there = [c for c in cotangents if c is not None]
        if not there or not any(wanted):
            return [None] * len(call.tensors)
        text = _pulled_back(call.call, tuple(c is not None for c in cotangents), tuple(wanted))
        found = iter(self.form(_Arguments([*call.tensors, *there], call.elements, call.description, text)))
        return [next(found) if yes else None for yes in wanted]

    def push_forward(self, call: _Arguments, tangents: Sequence[Tensor | None]) -> Sequence[Tensor]:
        text = str(Call.parse(call.call).pushed_forward([t is not None for t in tangents]))
        there = [t for t in tangents if t is not None]
        return list(self.form(_Arguments([*call.tensors, *there], call.elements, call.description, text)))

    def quick(self, call: _Arguments) -> Sequence[Tensor]:
        return kernels_of(call.description).quick(call.call, call.tensors, call.elements)

    def needs_grad(self, call: _Arguments) -> bool:
        return any(x.requires_grad for x in call.tensors)

    def fold(self, size: int, dims: Sequence[int | None], call: _Arguments) -> tuple[_Arguments, Unfold]:
        count, slots = len(call.tensors), Call.parse(call.call)
        own = kernels_of(call.description).weights
        weights, opens = [s.operand in own for s in slots.given], any(s.operand in own for s in slots.opened)
        tensors, elements = fold_batch(size, dims[:count], call.tensors, dims[count], call.elements, weights, opens)
        return call._replace(tensors=tensors, elements=elements), partial(_unfolded, size)


@remembered("calls of gradients of polynomials")
def _pulled_back(call: str, cotangents: tuple[bool, ...], wanted: tuple[bool, ...]) -> str:
    """The call of the gradients, as text: small polynomials notice how it is made."""
    return str(Call.parse(call).pulled_back(cotangents, wanted))


def _unfolded(size: int, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in results)


_polynomials = _Polynomials()
register(_polynomials, "polynomial", _Arguments)
