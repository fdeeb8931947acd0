r"""Operators: the multilinear form with some slots open, and its derivatives of every order.

With :math:`L(x_1, x_2, w, g)` the form of a product, ``tpgen::product`` is :math:`\partial L/\partial g`, and
``tpgen::gradients`` is :math:`\partial L/\partial s` for every slot s of a mask.  For cotangents :math:`c_s` of those
results,

.. math:: \sum_s \langle c_s, \partial L/\partial s\rangle = \sum_s L(\ldots, s := c_s, \ldots),

so the derivative of either operator is a sum of ``tpgen::gradients`` at points where one operand is replaced.  The same
holds for tangents, and this one rule gives every order, backwards and forwards.

Every other call of a form, polynomials' among them, is one of ``tpgen::form`` (`tpgen.kernels.runtime.forms`).  These
two are its calls without levels, in a fixed number of arguments: so many small ones are made that a list shows.

They are registered below the level of Python classes: for autograd, for forward mode, for torch.func's
transforms, and with shapes for tracing, so a compiled or exported program holds them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tpgen._torch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from tpgen.errors import InputError
from tpgen.form.derivative import Evaluate, pull_back, push_forward
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.runtime.batching import fold_batch
from tpgen.kernels.runtime.call import OUT, SLOT_BITS, X2, FormCall, ProductCall, W, mask_of, opening_text, slots_in
from tpgen.kernels.runtime.description import describe, kernel_source
from tpgen.kernels.runtime.forms import call_form, second_order
from tpgen.kernels.runtime.registration import Operator, Unfold, added, define, register
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.targets import kernel_supported
from tpgen.kernels.sweep.terms import SLOTS

__all__ = [
    "GeneratedSource",
    "describe",
    "kernel_conv",
    "kernel_polynomial",
    "kernel_product",
    "kernel_source",
    "kernel_supported",
]


def kernel_product(x1: Tensor, x2: Tensor, w: Tensor | None, description: str) -> Tensor:
    """The product of rows by a generated kernel.

    ``x1 (z, in1)``, ``x2 (z, in2)``, ``w (numel,)`` shared or ``(z, numel)``; the result is ``(z, out)``.

    Computed in the widest dtype among the operands; differentiable to any order in all three.  ``description`` is what
    `describe` returns.  Raises `InputError` for tensors that do not fit, `BackendError` where no kernel can be built.

    >>> from tpgen.planner.product import make_plan
    >>> text = describe(make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", False)]))
    >>> kernel_product(torch.ones(2, 8), torch.ones(2, 3), None, text).shape
    torch.Size([2, 24])
    """
    x1, x2, w = _alike(x1, x2, w)
    return _products.form(_product_call(x1, x2, w, description))[0]


def kernel_conv(
    x1: Tensor, x2: Tensor, w: Tensor | None, edge_src: Tensor, edge_dst: Tensor, num_nodes: int, description: str
) -> Tensor:
    r"""Products of edges summed over their destination, no edge's product ever stored.

    .. math:: \text{out}[n] = \sum_{e : \text{dst}[e] = n} x_1[\text{src}[e]] \otimes_{w[e]} x_2[e]

    Args:
        x1: node features ``(nodes, in1)``.
        x2: edge attributes ``(edges, in2)``.
        w: weights ``(numel,)`` shared or ``(edges, numel)``; None where the product has none.
        edge_src, edge_dst: rows of x1 and of the result for every edge, in any order; int64 or int32.
        num_nodes: rows of the result.
        description: what `describe` returns.

    The sum runs over a node's edges in their order, whatever the number of threads.  Indices are checked on each call
    and in each derivative, unless the description was made with ``check_index=False``.
    Raises `InputError` for tensors that do not fit and indices out of range.
    """
    x1, x2, w = _alike(x1, x2, w)
    _check_index("edge_src", edge_src)
    _check_index("edge_dst", edge_dst)
    return _products.form(_product_call(x1, x2, w, description, edge_src, edge_dst, num_nodes))[0]


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
    return call_form(FormCall(tensors, None, None, description, call, index))[0]


def quick_product(
    x1: Tensor,
    x2: Tensor,
    w: Tensor,
    description: str,
    src: Tensor | None = None,
    dst: Tensor | None = None,
    nodes: int = 0,
) -> Tensor | None:
    """The product, or None where the call is not a usual one that fits; `kernel_product` sees to those."""
    made = _products.at_once(ProductCall(x1, x2, w, None, src, dst, description, OUT, nodes))
    return made[0] if made else None


def _check_index(name: str, index: Tensor) -> None:
    if not isinstance(index, Tensor):
        kind = type(index).__name__
        raise InputError(f"{name} must be a tensor of int64 or int32, got {kind}: use torch.as_tensor({name})")


def _alike(x1: Tensor, x2: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """All three in the widest dtype; no weights are an empty tensor."""
    if w is None:
        w = x1.new_empty(0)
    if x1.dtype == x2.dtype == w.dtype:
        return x1, x2, w
    dtype = torch.promote_types(torch.promote_types(x1.dtype, x2.dtype), w.dtype)
    return x1.to(dtype), x2.to(dtype), w.to(dtype)


# -- operators ---------------------------------------------------------------------------------------------------------

_EDGES = "Tensor? edge_src=None, Tensor? edge_dst=None"
SCHEMAS = (
    f"product(Tensor x1, Tensor x2, Tensor w, str description, {_EDGES}, SymInt num_nodes=0) -> Tensor",
    f"gradients(Tensor x1, Tensor x2, Tensor w, Tensor g, str description, int mask, {_EDGES}) -> Tensor[]",
)
for _schema in SCHEMAS:
    define(_schema)
_product = torch.ops.tpgen.product.default
_gradients = torch.ops.tpgen.gradients.default


def _product_call(
    x1: Tensor,
    x2: Tensor,
    w: Tensor,
    description: str,
    src: Tensor | None = None,
    dst: Tensor | None = None,
    nodes: int = 0,
) -> ProductCall:
    """A call from the arguments of ``tpgen::product``."""
    return ProductCall(x1, x2, w, None, src, dst, description, OUT, nodes)


def _gradients_call(
    x1: Tensor,
    x2: Tensor,
    w: Tensor,
    g: Tensor,
    description: str,
    mask: int,
    src: Tensor | None = None,
    dst: Tensor | None = None,
) -> ProductCall:
    """A call from the arguments of ``tpgen::gradients``."""
    return ProductCall(x1, x2, w, g, src, dst, description, mask)


# Asking costs as long as the gradients of so many numbers.
_WORTH_ASKING = 2**14


class _Products(Operator[ProductCall]):
    """Both operators: a call says which slots it opens."""

    indices = 2

    def split(self, call: ProductCall) -> tuple[tuple[Tensor | None, ...], tuple]:
        return call[:6], call[6:]

    def call(self, tensors: Sequence[Any], rest: tuple) -> ProductCall:
        return ProductCall(*tensors, *rest)

    def evaluate(self, call: ProductCall) -> list[Tensor]:
        x1, x2, w, g, src, dst, description, mask, nodes = call
        if mask == OUT:
            return [_product(x1, x2, w, description, src, dst, nodes if g is None else g.shape[0])]
        return list(_gradients(x1, x2, w, g, description, mask, src, dst))

    def run(self, call: ProductCall) -> list[Tensor]:
        return kernels_of(call.description).run_product(call)

    def redispatch(self, keys: Any, call: ProductCall) -> list[Tensor]:
        x1, x2, w, g, src, dst, description, mask, nodes = call
        if g is None:
            return [_product.redispatch(keys, x1, x2, w, description, src, dst, nodes)]
        return list(_gradients.redispatch(keys, x1, x2, w, g, description, mask, src, dst))

    def shapes(self, call: ProductCall) -> list[Tensor]:
        listed = call.listed()
        signature, counts = kernels_of(call.description).check(listed)
        return [call.x1.new_empty(shape) for shape in signature.shapes(listed.tensors, counts)]

    def ahead(self, call: ProductCall, wanted: Sequence[bool]) -> None:
        if call.g is None and any(wanted):
            calls = opening_text(call.mask), opening_text(mask_of(wanted))
            kernels_of(call.description).build_together(calls, call.x1, call.indexed)

    def asks(self, call: ProductCall) -> bool:
        numbers = call.x1.numel() + call.w.numel()
        return not isinstance(numbers, int) or numbers >= _WORTH_ASKING  # a symbol while torch traces

    def pull_back(
        self, call: ProductCall, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        x1, x2, w, _, src, dst, description, mask, _ = call
        if mask == OUT:  # the usual case, in few steps
            (g,), mask = cotangents, wanted[0] | wanted[1] << 1 | wanted[2] << 2
            if g is None or not mask:
                return (None,) * len(SLOT_BITS)
            rest = iter(self.form(ProductCall(x1, x2, w, g, src, dst, description, mask)))
            return [*[next(rest) if yes else None for yes in wanted[:3]], None]
        opened = slots_in(call.mask)
        read = _read(call, opened, cotangents)
        there = {SLOTS[n]: c for n, c in zip(opened, read, strict=True) if c is not None}
        if len(there) > 1 and _fuses(call, there.values()):  # a single one is a call without levels
            names = tuple(name for name, yes in zip(SLOTS, wanted, strict=True) if yes)
            found = dict(zip(names, second_order(call, there, names), strict=True)) if names else {}
            return [found.get(name) for name in SLOTS]
        return pull_back(_at(call), call.point, opened, read, slots_in(mask_of(wanted)), added)

    def push_forward(self, call: ProductCall, tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        opened = slots_in(call.mask)
        found = push_forward(_at(call), call.point, opened, _read(call, range(len(tangents)), tangents))
        pairs = zip([call.point[n] for n in opened], found, strict=True)
        return [torch.zeros_like(like) if x is None and like is not None else x for like, x in pairs]

    def quick(self, call: ProductCall) -> Sequence[Tensor]:
        return kernels_of(call.description).quick(call)

    def needs_grad(self, call: ProductCall) -> bool:
        x1, x2, w, g, *_ = call
        return x1.requires_grad or x2.requires_grad or w.requires_grad or (g is not None and g.requires_grad)

    def fold(self, size: int, dims: Sequence[int | None], call: ProductCall) -> tuple[ProductCall, Unfold]:
        listed = call.listed()
        count = len(listed.tensors)
        folded, unfold = fold_batch(size, (*dims[:count], *dims[4:], None), listed)
        x1, x2, w, *others = folded.tensors
        g = others[0] if others else None
        return ProductCall(x1, x2, w, g, folded.src, folded.dst, folded.description, call.mask, folded.nodes), unfold


def _fuses(call: ProductCall, cotangents: Iterable[Tensor]) -> bool:
    """Whether the second derivatives of a call are one kernel; under torch.func they are expanded."""
    tensors = (*(x for x in call.point if x is not None), *cotangents)
    if any(is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x) for x in tensors):
        return False
    return call.g is not None and kernels_of(call.description).fuses(call.x1.dtype, call.x1.device.type)


_products = _Products()


def _read(call: ProductCall, slots: Iterable[int], instead: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Tensors in the place of operands, without those that no path reads: a layer's second inputs."""
    unread = X2 if not kernels_of(call.description).product.dims[1] else 0
    return [None if SLOT_BITS[n] == unread else x for n, x in zip(slots, instead, strict=True)]


def _at(call: ProductCall) -> Evaluate:
    """The rule of the head of this file: the form where one operand is replaced."""

    def evaluate(replaced: int, moved: Sequence[Tensor], opened: tuple[int, ...]) -> Sequence[Tensor]:
        text = call.description
        if SLOT_BITS[replaced] == W:  # unweighted paths do not depend on what stands in the weights' place
            text = kernels_of(text).product.weighted
        x1, x2, w, g = moved
        mask, nodes = sum(SLOT_BITS[n] for n in opened), call.nodes
        if mask == OUT and g is not None:  # its rows alone are needed
            nodes = g.shape[0]
        return _products.form(ProductCall(x1, x2, w, None if mask == OUT else g, call.src, call.dst, text, mask, nodes))

    return evaluate


register(_products, "product", _product_call, single=True)
register(_products, "gradients", _gradients_call)
