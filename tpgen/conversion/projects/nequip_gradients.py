"""Gradients by rows that were looked up, where what uses them went by their numbers in the table instead.

A product with rows ``table[types]`` that is computed from ``types`` gives its gradient to the table.  That is all there
is, unless somebody asks for the gradient by the rows themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Product = Callable[..., Tensor]


def also_by(rows: Tensor, found: Tensor, product: Product, operands: tuple[Tensor, ...]) -> Tensor:
    """Let a result that was ``found`` by types be differentiable by ``rows`` of the table too.

    Backwards, the gradient goes the way that it was found, as a rule.  Where the gradient by ``rows`` is asked for, it
    goes through ``product(*operands)``, which must have the same value: some operand comes from ``rows``.

    >>> table = torch.tensor([2.0, 3.0], requires_grad=True)
    >>> rows, x = table[[0, 0, 1]], torch.ones(3)
    >>> found = also_by(rows, x * table[[0, 0, 1]], torch.mul, (x, rows))
    >>> torch.autograd.grad(found.sum(), [rows, table])
    (tensor([1., 1., 1.]), tensor([2., 1.]))
    """
    return _Also.apply(found, rows, product, *operands)


class _Also(torch.autograd.Function):
    """Autograd function of `also_by`: a result as it is, with the derivatives of a product of equal value."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, rows: Tensor, product: Product, *operands: Tensor) -> Tensor:
        ctx.save_for_backward(*operands)
        ctx.product, ctx.rows = product, rows
        ctx.set_materialize_grads(False)
        return found.view_as(found)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor | None) -> tuple:
        if cotangent is None or not _is_asked(ctx.rows):
            return (cotangent, None, None, *(None for _ in ctx.saved_tensors))
        return (None, None, None, *_pulled_back(ctx.product, ctx.saved_tensors, cotangent))


def _pulled_back(product: Product, operands: tuple[Tensor, ...], cotangent: Tensor) -> list[Tensor | None]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        operands = tuple(x.view_as(x) for x in operands)  # each by itself, though two may be the same tensor
        moving = [x for x in operands if x.requires_grad]
        found = iter(torch.autograd.grad(product(*operands), moving, cotangent, create_graph=again))
    return [next(found) if x.requires_grad else None for x in operands]


def _is_asked(rows: Tensor) -> bool:
    """Whether this pass backwards wants the gradient by rows for itself, not on the way to the table."""
    if rows.retains_grad or rows._backward_hooks:
        return True
    passes = list(_passes(sys._getframe()))
    return not passes or any(_is_edge(x, rows) for inputs in passes for x in inputs)


_CALLS = (torch.autograd.grad.__code__, torch.autograd.backward.__code__)


def _passes(frame: FrameType | None) -> Iterator[tuple[Any, ...]]:
    """Yield the inputs of each pass backwards that is under way, read off the frames of the callers of autograd."""
    while frame is not None:
        if frame.f_code in _CALLS:
            inputs = frame.f_locals.get("inputs_tuple") or frame.f_locals["inputs"] or ()
            yield (inputs,) if isinstance(inputs, (Tensor, GradientEdge)) else tuple(inputs)
        frame = frame.f_back


def _is_edge(given: Any, rows: Tensor) -> bool:
    node, number = (given.grad_fn, given.output_nr) if isinstance(given, Tensor) else given[:2]
    return node is rows.grad_fn and number == rows.output_nr
