"""Forms that are linear in each of their tensors, as autograd sees them: one rule for derivatives of every order.

What opens slots of such a form at a point is all that its gradients need: `tpgen.form.derivative`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tpgen._torch import (
    dispatch_modes,
    forward_mode,
    has_tangents,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    is_tracing,
    transform_level,
)
from tpgen.form.derivative import pull_back, push_forward
from tpgen.kernels.runtime.registration import Differentiable, added, apply_of, record_call

Point = Sequence[Any]  # a tensor for each slot; None for the last one where it is open alone
Opens = Callable[[Point, tuple[int, ...]], list[Tensor]]  # results that nothing else holds

Map = Callable[[Tensor], Tensor]

_DTYPES = (torch.float32, torch.float64)


def has_plain_numbers(x: Tensor) -> bool:
    """Whether a tensor is numbers at hand that a kernel takes: nothing is traced, transformed or compiled."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.is_cpu
        and x.dtype in _DTYPES
        and not is_functorch_wrapped_tensor(x)
        and not is_legacy_batchedtensor(x)
        and not is_tracing()
        and not dispatch_modes()
        and transform_level() is None  # tensors that a transformed function closes over are plain ones
    )


def is_usual(*tensors: Tensor) -> bool:
    """Whether a call may be one of ours that has no forward mode: tangents may come to its backward alone."""
    return not has_tangents() and all(map(has_plain_numbers, tensors))


def is_traced(x: Tensor) -> bool:
    """Whether a dispatch mode sees operators on a CPU tensor, as `make_fx`, `torch.export` and flop counters do."""
    return (
        x.is_cpu
        and x.dtype in _DTYPES
        and not is_functorch_wrapped_tensor(x)
        and not is_legacy_batchedtensor(x)
        and dispatch_modes() > 0
    )


def writes_to(x: Tensor) -> int:
    """Count the writes to a tensor; torch does not count those to one made in `torch.inference_mode`: -1.

    >>> writes_to(torch.zeros(1).add_(1))
    1
    """
    return -1 if x.is_inference() else x._version


def open_slots(fast: Opens, general: Opens, point: Point, opened: tuple[int, ...]) -> list[Tensor]:
    """Open slots of a form: by ``fast`` for plain tensors, recorded as one; else by ``general``, in torch's operations.

    >>> def times(point, opened):  # L = x * w * g
    ...     x, w, g = point
    ...     return [{0: lambda: w * g, 1: lambda: x * g, 2: lambda: x * w}[n]() for n in opened]
    >>> x, w = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0)
    >>> (found,) = open_slots(times, times, (x, w, None), (2,))
    >>> torch.autograd.grad(found, x)
    (tensor(3.),)
    """
    if all(has_plain_numbers(x) for x in point if x is not None):
        with torch.no_grad(), forward_mode(False):
            made = fast(point, opened)
        return list(record_call(_Form(fast, general), made, (opened,), *point))
    return general(point, opened)


class _Form(Differentiable[Any]):
    """The open slots of a form at a point."""

    def __init__(self, fast: Opens, general: Opens) -> None:
        self._fast, self._general = fast, general

    def call(self, point: Point, rest: tuple) -> tuple:
        return point, *rest

    def pull_back(self, call: Any, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        point, opened = call
        return pull_back(self._at, point, opened, cotangents, [n for n, yes in enumerate(wanted) if yes], added)

    def push_forward(self, call: Any, tangents: Sequence[Tensor | None]) -> list[Tensor]:
        point, opened = call
        found = push_forward(self._at, point, opened, tangents)
        return [torch.zeros_like(point[n]) if t is None else t for n, t in zip(opened, found, strict=True)]

    def _at(self, _raised: Any, moved: Point, opened: tuple[int, ...]) -> list[Tensor]:
        return open_slots(self._fast, self._general, moved, opened)


class _Linear(torch.autograd.Function):
    """A linear map of a tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, of: Map, adjoint: Map) -> Tensor:
        ctx.adjoint = adjoint
        return of(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return ctx.adjoint(g), None, None


_linear = apply_of(_Linear)


def linear_map(x: Tensor, of: Map, adjoint: Map) -> Tensor:
    """Compute ``of(x)`` for a linear function; its gradient is the adjoint, which can be differentiated in turn.

    >>> x = torch.ones(2, requires_grad=True)
    >>> torch.autograd.grad(linear_map(x, torch.sum, lambda g: g.expand(2)), x)
    (tensor([1., 1.]),)
    """
    return _linear(x, of, adjoint)
