"""The operator ``tpgen::polynomial``: calls of a form, and the one rule that makes their derivatives calls again.

Registered for autograd, forward mode, torch.func's transforms and tracing, as the operators of products are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import _C, Tensor
from torch.autograd import forward_ad

from tpgen.kernels.operators.registration import (
    KERNEL_KEYS,
    asked_for,
    batch_again,
    below_vmap,
    library,
    peel,
    register,
)
from tpgen.kernels.polynomial.batching import fold_batch
from tpgen.kernels.polynomial.call import Call
from tpgen.kernels.polynomial.runtime import PolynomialKernels, kernels_of


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
    return _polynomial(tensors, index, description, call)[0]


library.define("polynomial(Tensor[] tensors, Tensor? index, str description, str call) -> Tensor[]")
_polynomial = torch.ops.tpgen.polynomial.default


def _plain(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> list[Tensor]:
    return kernels_of(description).run(call, tensors, index)


def _shapes(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> list[Tensor]:
    signature = kernels_of(description).signature(call)
    shapes = signature.shapes(tensors, signature.sizes(tensors, index))
    return [tensors[0].new_empty(shape) for shape in shapes]


# -- derivatives -------------------------------------------------------------------------------------------------------


def _remember(ctx: Any, tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> None:
    ctx.save_for_backward(*tensors, index)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors, index)
    ctx.description, ctx.call = description, call
    ctx.set_materialize_grads(False)


def _pull_back(ctx: Any, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of the given tensors, for cotangents of the opened slots."""
    *tensors, index = ctx.saved_tensors
    there = [c for c in cotangents if c is not None]
    if not there or not any(wanted):
        return [None] * len(tensors)
    call = Call.parse(ctx.call).pulled_back([c is not None for c in cotangents], wanted)
    found = iter(_polynomial([*tensors, *there], index, ctx.description, str(call)))
    return [next(found) if yes else None for yes in wanted]


def _push_forward(ctx: Any, tangents: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Tangents of the opened slots, for tangents of the given tensors."""
    *tensors, index = ctx.saved_tensors
    call = Call.parse(ctx.call).pushed_forward([t is not None for t in tangents])
    there = [t for t in tangents if t is not None]
    return tuple(_polynomial([*tensors, *there], index, ctx.description, str(call)))


class _Recorded(torch.autograd.Function):
    """The operator as autograd records it.  ``keys`` are the dispatch keys of the call, to go on below autograd."""

    @staticmethod
    def forward(ctx: Any, keys: Any, description: str, call: str, index: Tensor | None, *tensors: Tensor) -> tuple:
        _remember(ctx, tensors, index, description, call)
        return tuple(_below_autograd(keys, ctx.needs_input_grad[4:], tensors, index, description, call))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        possible = ctx.needs_input_grad[4:]
        wanted = asked_for(possible, ctx.next_functions[-len(possible) :])
        return (None, None, None, None, *_pull_back(ctx, cotangents, wanted))

    @staticmethod
    def jvp(ctx: Any, _keys: Any, _description: Any, _call: Any, _index: Any, *tangents: Tensor | None) -> tuple:
        return _push_forward(ctx, tangents)


class _Transformed(torch.autograd.Function):
    """The operator as torch.func transforms it: grad, jvp and vmap, in any nesting."""

    @staticmethod
    def forward(description: str, call: str, index: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(_polynomial(tensors, index, description, call))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        description, call, index, *tensors = inputs
        _remember(ctx, tensors, index, description, call)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        return (None, None, None, *_pull_back(ctx, cotangents, ctx.needs_input_grad[3:]))

    @staticmethod
    def jvp(ctx: Any, _description: Any, _call: Any, _index: Any, *tangents: Tensor | None) -> tuple:
        return _push_forward(ctx, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, description: str, call: str, index: Tensor | None, *tensors: Tensor) -> tuple:
        folded, index = _folded(info.batch_size, in_dims[2:], (index, *tensors), description, call)
        results = _unfolded(info.batch_size, _Transformed.apply(description, call, index, *folded))
        return results, (0,) * len(results)


def _folded(
    size: int, dims: Sequence[int | None], values: Sequence[Any], description: str, call: str
) -> tuple[list[Tensor], Tensor | None]:
    """Tensors and index, which comes first in ``dims`` and ``values``, with the batch folded into rows."""
    own, slots = kernels_of(description).weights, Call.parse(call)
    weights, opens = [s.operand in own for s in slots.given], any(s.operand in own for s in slots.opened)
    return fold_batch(size, dims[1:], values[1:], dims[0], values[0], weights, opens)


def _unfolded(size: int, results: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in results)


def _below_autograd(
    keys: Any, wanted: Sequence[bool], tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str
) -> list[Tensor]:
    """The opened slots; where a backward is to follow its kernel is built beside the one that runs."""
    rest = keys & _C._after_autograd_keyset
    if rest.highestPriorityTypeId() in KERNEL_KEYS:  # nothing in between: save a round through the dispatcher
        kernels = kernels_of(description)
        if any(wanted) and (call, tensors[0].dtype) not in kernels.called:
            _build_ahead(kernels, Call.parse(call), wanted, tensors[0].dtype)
        return kernels.run(call, tensors, index)
    with _C._AutoDispatchBelowAutograd():
        return list(_polynomial.redispatch(rest, tensors, index, description, call))


def _build_ahead(kernels: PolynomialKernels, call: Call, wanted: Sequence[bool], dtype: torch.dtype) -> None:
    if not call.levels:
        kernels.build_together((call, call.pulled_back([True] * len(call.opened), wanted)), dtype)


def _autograd(keys: Any, tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> list[Tensor]:
    records = (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)) or forward_ad._current_level >= 0
    if not records:
        return _below_autograd(keys, (), tensors, index, description, call)
    return list(_Recorded.apply(keys, description, call, index, *tensors))


def _transformed(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> list[Tensor]:
    return list(_Transformed.apply(description, call, index, *tensors))


def _batched(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> list[Tensor]:
    """The operator under torch's older vmap."""
    with below_vmap() as level:
        size, dims, below = peel(level, (index, *tensors))
        folded, index = _folded(size, dims, below, description, call)
        return batch_again(level, _unfolded(size, _polynomial(folded, index, description, call)))


register("polynomial", _plain, _autograd, _transformed, _batched, _shapes)
