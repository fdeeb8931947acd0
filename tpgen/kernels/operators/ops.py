r"""Operators: the multilinear form with some slots open, and its derivatives of every order.

With :math:`L(x_1, x_2, w, g)` the form of a product, ``tpgen::product`` is :math:`\partial L/\partial g`, and
``tpgen::gradients`` is :math:`\partial L/\partial s` for every slot s of a mask.  For cotangents :math:`c_s` of those
results,

.. math:: \sum_s \langle c_s, \partial L/\partial s\rangle = \sum_s L(\ldots, s := c_s, \ldots),

so the derivative of either operator is a sum of ``tpgen::gradients`` at points where one operand is replaced.  The same
holds for tangents, and this one rule gives every order, backwards and forwards.

The operators are registered below the level of Python classes: for autograd, for forward mode, for torch.func's
transforms, and with shapes for tracing, so a compiled or exported program holds them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _C, Tensor
from torch.autograd import forward_ad

from tpgen.errors import InputError
from tpgen.form.derivative import Evaluate, pull_back, push_forward
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.libraries.compiler import DTYPES
from tpgen.kernels.operators.batching import fold_batch
from tpgen.kernels.operators.call import OUT, SLOT_BITS, Call, W, mask_of, slots_in
from tpgen.kernels.operators.description import describe, kernel_source
from tpgen.kernels.operators.registration import (
    KERNEL_KEYS,
    asked_for,
    batch_again,
    below_vmap,
    library,
    peel,
    register,
)
from tpgen.kernels.operators.runtime import product_of
from tpgen.kernels.operators.targets import kernel_supported

__all__ = ["GeneratedSource", "describe", "kernel_conv", "kernel_product", "kernel_source", "kernel_supported"]


def kernel_product(x1: Tensor, x2: Tensor, w: Tensor | None, description: str) -> Tensor:
    """The product of rows by a generated kernel.

    ``x1 (z, in1)``, ``x2 (z, in2)``, ``w (numel,)`` shared or ``(z, numel)``; the result is ``(z, out)``.

    Computed in the widest dtype among the operands; differentiable to any order in all three.  ``description`` is what
    `describe` returns.  Raises `InputError` for tensors that do not fit, `BackendError` where no kernel can be built.

    >>> from tpgen.planner.plan import make_plan
    >>> text = describe(make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", False)]))
    >>> kernel_product(torch.ones(2, 8), torch.ones(2, 3), None, text).shape
    torch.Size([2, 24])
    """
    x1, x2, w = _alike(x1, x2, w)
    return _product(x1, x2, w, description)


def kernel_conv(
    x1: Tensor, x2: Tensor, w: Tensor | None, edge_src: Tensor, edge_dst: Tensor, num_nodes: int, description: str
) -> Tensor:
    r"""Products of edges summed over their destination, no edge's product ever stored.

    .. math:: \text{out}[n] = \sum_{e : \text{dst}[e] = n} x_1[\text{src}[e]] \otimes_{w[e]} x_2[e]

    Args:
        x1: node features ``(nodes, in1)``.
        x2: edge attributes ``(edges, in2)``.
        w: weights ``(numel,)`` shared or ``(edges, numel)``; None where the product has none.
        edge_src, edge_dst: rows of x1 and of the result for every edge, in any order; int64, or int32, which is copied.
        num_nodes: rows of the result.
        description: what `describe` returns.

    The sum runs over a node's edges in their order, whatever the number of threads.  Indices are checked on each call
    and in each derivative, unless the description was made with ``check_index=False``.
    Raises `InputError` for tensors that do not fit and indices out of range.
    """
    x1, x2, w = _alike(x1, x2, w)
    src, dst = _index("edge_src", edge_src), _index("edge_dst", edge_dst)
    return _product(x1, x2, w, description, src, dst, num_nodes)


def _index(name: str, index: Tensor) -> Tensor:
    if not isinstance(index, Tensor):
        kind = type(index).__name__
        raise InputError(f"{name} must be a tensor of int64 or int32, got {kind}: use torch.as_tensor({name})")
    return index.long() if index.dtype == torch.int32 else index


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
library.define(f"product(Tensor x1, Tensor x2, Tensor w, str description, {_EDGES}, SymInt num_nodes=0) -> Tensor")
library.define(f"gradients(Tensor x1, Tensor x2, Tensor w, Tensor g, str description, int mask, {_EDGES}) -> Tensor[]")
_product = torch.ops.tpgen.product.default
_gradients = torch.ops.tpgen.gradients.default


def _form(call: Call) -> list[Tensor]:
    """The open slots of a call, by whichever operator computes them."""
    x1, x2, w, g, src, dst, description, mask, nodes = call
    if mask == OUT:
        return [_product(x1, x2, w, description, src, dst, nodes if g is None else g.shape[0])]
    return list(_gradients(x1, x2, w, g, description, mask, src, dst))


def _product_call(
    x1: Tensor,
    x2: Tensor,
    w: Tensor,
    description: str,
    src: Tensor | None = None,
    dst: Tensor | None = None,
    nodes: int = 0,
) -> Call:
    """A call from the arguments of ``tpgen::product``."""
    return Call(x1, x2, w, None, src, dst, description, OUT, nodes)


def _gradients_call(
    x1: Tensor,
    x2: Tensor,
    w: Tensor,
    g: Tensor,
    description: str,
    mask: int,
    src: Tensor | None = None,
    dst: Tensor | None = None,
) -> Call:
    """A call from the arguments of ``tpgen::gradients``."""
    return Call(x1, x2, w, g, src, dst, description, mask)


def _run(call: Call) -> list[Tensor]:
    return product_of(call.description).run(call)


def _shapes(call: Call) -> list[Tensor]:
    product = product_of(call.description)
    product.check(call)
    if call.g is None:
        return [call.x1.new_empty((call.rows, product.dims[3]))]
    opened = [call.point[n] for n in slots_in(call.mask)]
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in opened if x is not None]


# -- derivatives: the rule of the head of this file ------------------------------------------------------------------


def _pull_back(ctx: Any, cotangents: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of the operands for cotangents of the slots that were open."""
    call = _remembered(ctx)
    return pull_back(_at(call), call.point, slots_in(call.mask), cotangents, slots_in(mask_of(needed)))


def _push_forward(ctx: Any, tangents: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Tangents of the open slots for tangents of the operands."""
    call = _remembered(ctx)
    opened = slots_in(call.mask)
    found = push_forward(_at(call), call.point, opened, tangents)
    likes = [call.point[n] for n in opened]
    pairs = zip(likes, found, strict=True)
    return tuple(torch.zeros_like(like) if x is None and like is not None else x for like, x in pairs)


def _at(call: Call) -> Evaluate:
    def evaluate(replaced: int, moved: Sequence[Tensor], opened: tuple[int, ...]) -> list[Tensor]:
        text = call.description
        if SLOT_BITS[replaced] == W:  # unweighted paths do not depend on what stands in the weights' place
            text = product_of(text).description.weighted
        x1, x2, w, g = moved
        mask = sum(SLOT_BITS[n] for n in opened)
        return _form(Call(x1, x2, w, g, call.src, call.dst, text, mask, call.nodes))

    return evaluate


def _remember(ctx: Any, call: Call) -> None:
    tensors, rest = call[: len(_TENSORS)], call[len(_TENSORS) :]
    ctx.save_for_backward(*tensors)
    if forward_ad._current_level >= 0:
        ctx.save_for_forward(*tensors)
    ctx.rest = rest
    ctx.set_materialize_grads(False)


def _remembered(ctx: Any) -> Call:
    return Call(*ctx.saved_tensors, *ctx.rest)


_TENSORS = ("x1", "x2", "w", "g", "src", "dst")  # the fields of a call that hold tensors, which come first
_REST = (None,) * (len(Call._fields) - len(SLOT_BITS))  # gradients of what has none


# Asking costs as long as the gradients of so many numbers.
_WORTH_ASKING = 2**14


def _asked_for(ctx: Any) -> Sequence[bool]:
    """Which operands' gradients the running pass wants.  What torch tells a function is which of them can have one."""
    possible = ctx.needs_input_grad[1:5]
    if ctx.small:
        return possible
    # the nodes behind the tensors among the inputs, so none for a cotangent that is not there
    return asked_for(possible, ctx.next_functions)


class _Recorded(torch.autograd.Function):
    """The operators as autograd records them.  ``keys`` are the dispatch keys of the call, to go on below autograd."""

    @staticmethod
    def forward(ctx: Any, keys: Any, *inputs: Any) -> tuple[Tensor, ...]:
        call = Call(*inputs)
        _remember(ctx, call)
        numbers = call.x1.numel() + call.w.numel()
        ctx.small = isinstance(numbers, int) and numbers < _WORTH_ASKING  # a symbol while torch traces
        return tuple(_below_autograd(keys, mask_of(ctx.needs_input_grad[1:4]), call))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        return (None, *_pull_back(ctx, cotangents, _asked_for(ctx)), *_REST)

    @staticmethod
    def jvp(ctx: Any, _keys: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return _push_forward(ctx, tangents[: len(SLOT_BITS)])


class _Transformed(torch.autograd.Function):
    """The operators as torch.func transforms them: grad, jvp and vmap, in any nesting."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return tuple(_form(Call(*inputs)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        _remember(ctx, Call(*inputs))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        return (*_pull_back(ctx, cotangents, ctx.needs_input_grad[: len(SLOT_BITS)]), *_REST)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return _push_forward(ctx, tangents[: len(SLOT_BITS)])

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple:
        folded, unfold = fold_batch(info.batch_size, Call(*in_dims), Call(*inputs))
        results = unfold(_Transformed.apply(*folded))
        return results, (0,) * len(results)


def _below_autograd(keys: Any, ahead: int, call: Call) -> list[Tensor]:
    """The open slots of a call; the kernel of the slots ``ahead`` is built beside it."""
    rest = keys & _C._after_autograd_keyset
    if rest.highestPriorityTypeId() in KERNEL_KEYS:  # nothing in between: save a round through the dispatcher
        product, x1 = product_of(call.description), call.x1
        if call.g is None and ahead and x1.dtype in DTYPES:
            product.build_together((call.mask, ahead), x1.dtype, call.indexed, x1.device.type)
        return product.run(call)
    x1, x2, w, g, src, dst, description, mask, nodes = call
    with _C._AutoDispatchBelowAutograd():
        if g is None:
            return [_product.redispatch(rest, x1, x2, w, description, src, dst, nodes)]
        return list(_gradients.redispatch(rest, x1, x2, w, g, description, mask, src, dst))


def _recorded(keys: Any, call: Call) -> list[Tensor]:
    """The open slots, in autograd's graph where something asks for it."""
    records = torch.is_grad_enabled() and any(x.requires_grad for x in call.tensors())
    if records or forward_ad._current_level >= 0:
        return list(_Recorded.apply(keys, *call))
    return _below_autograd(keys, 0, call)


def _transformed(call: Call) -> list[Tensor]:
    return list(_Transformed.apply(*call))


def _batched(call: Call) -> list[Tensor]:
    """The operators under torch's older vmap."""
    with below_vmap() as level:
        size, dims, below = peel(level, call)
        folded, unfold = fold_batch(size, Call(*dims), Call(*below))  # type: ignore[arg-type]
        return batch_again(level, unfold(_form(folded)))


def _register(name: str, call_of: Callable[..., Call], single: bool) -> None:
    """One operator; ``call_of`` reads its arguments, a ``single`` one returns its only result."""

    def result(made: list[Tensor]) -> Any:
        return made[0] if single else made

    def at(level: Callable[[Call], list[Tensor]]) -> Callable:
        return lambda *args, **options: result(level(call_of(*args, **options)))

    def recorded(keys: Any, *args: Any, **options: Any) -> Any:
        return result(_recorded(keys, call_of(*args, **options)))

    register(name, at(_run), recorded, at(_transformed), at(_batched), at(_shapes))


_register("product", _product_call, single=True)
_register("gradients", _gradients_call, single=False)
