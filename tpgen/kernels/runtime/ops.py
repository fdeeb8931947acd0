"""Kernel calls for users and modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.rows import EDGE_PAIRS, EDGES, ELEMENTS
from tpgen.kernels.runtime.call import FORWARD, FormCall
from tpgen.kernels.runtime.description import describe, kernel_source
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, why_kernel_unsupported

__all__ = [
    "GeneratedSource",
    "describe",
    "kernel_conv",
    "kernel_layer",
    "kernel_polynomial",
    "kernel_product",
    "kernel_source",
    "why_kernel_unsupported",
]


SORTED_ON = {target.device for target in KERNEL_TARGETS.values() if target.sorts}


def kernel_product(
    x1: Tensor, x2: Tensor, w: Tensor | None, description: str, elements: Tensor | None = None
) -> Tensor:
    """Compute the product of rows by a generated kernel.

    ``x1 (z, in1)``, ``x2 (z, in2)``, ``w (numel,)`` shared or ``(z, numel)``; the result is ``(z, out)``.  With int64
    ``elements (z,)``, ``w`` is ``(elements, numel)``, and row n has weights ``w[elements[n]]``.

    Differentiable to any order, in the widest operand dtype.  Raises `InputError` for tensors that do not fit,
    `BackendError` where no kernel can be built.

    >>> from tpgen.planner.product import make_plan
    >>> text = describe(make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", False)]))
    >>> kernel_product(torch.ones(2, 8), torch.ones(2, 3), None, text).shape
    torch.Size([2, 24])
    """
    x1, x2, w = _convert_to_common_dtype(x1, x2, w)
    at, rules = ((), ()) if elements is None else ((elements,), (ELEMENTS,))
    return forms.compute(FormCall((x1, x2, w), at, description, FORWARD, rules))[0]


def kernel_layer(x: Tensor, w: Tensor, elements: Tensor, description: str) -> Tensor:
    """Compute a linear layer by a generated kernel; row n has weights ``w[elements[n]]``.

    ``x (rows, in)``, ``w (elements, numel)``, int64 ``elements (rows,)``; the result is ``(rows, out)``.  The plan of
    ``description`` has ``shared_weights="element"``.  Raises `InputError` for tensors that do not fit, and elements
    without weights.

    >>> from tpgen.planner.linear import make_linear_plan
    >>> text = describe(make_linear_plan("2x0e", "3x0e", shared_weights="element"))
    >>> kernel_layer(torch.ones(4, 2), torch.ones(5, 6), torch.tensor([0, 4, 4, 1]), text).shape
    torch.Size([4, 3])
    """
    x = as_floating_tensor("x1", x, w.dtype)
    if x.dim() != 2:
        raise InputError(f"x1 must have shape (rows, in), got {tuple(x.shape)}")
    none = x.detach()[:, :0]  # no second input is one without entries
    return forms.compute(FormCall((x, none, w), (elements,), description, FORWARD, (ELEMENTS,)))[0]


def kernel_conv(
    x1: Tensor,
    x2: Tensor,
    w: Tensor | None,
    edge_src: Tensor,
    edge_dst: Tensor,
    num_nodes: int,
    description: str,
    elements: Tensor | None = None,
    paired: bool = False,
) -> Tensor:
    r"""Sum products of edges over destinations, without storing products.

    .. math:: \text{out}[n] = \sum_{e : \text{dst}[e] = n} x_1[\text{src}[e]] \otimes_{w[e]} x_2[e]

    ``x1 (nodes, in1)``, ``x2 (edges, in2)``, ``w (numel,)`` shared or ``(edges, numel)``, int64 or int32 ``edge_src``
    and ``edge_dst``; the result is ``(num_nodes, out)``.  With int64 ``elements (edges,)``, ``w`` is
    ``(elements, numel)``.  With ``paired``, edges e and e + n share row e of n.

    A node sums edges in order.  Indices are checked, unless the description has ``check_index=False``.  Raises
    `InputError` for tensors that do not fit and indices out of range.
    """
    x1, x2, w = _convert_to_common_dtype(x1, x2, w)
    _check_index_is_tensor("edge_src", edge_src)
    _check_index_is_tensor("edge_dst", edge_dst)
    more = () if elements is None else (elements,)
    rules = (*EDGES, *[ELEMENTS] * len(more), *[EDGE_PAIRS] * paired)
    call = FormCall((x1, x2, w), (edge_src, edge_dst, *more), description, FORWARD, rules, num_nodes)
    if torch.compiler.is_compiling() and x1.device.type in SORTED_ON and not torch.compiler.is_exporting():
        both = torch.is_grad_enabled() and (x1.requires_grad or x2.requires_grad or w.requires_grad)
        call = _add_edge_sort_orders(call, both, edge_src.long(), edge_dst.long(), more)
    return forms.compute(call)[0]


def _add_edge_sort_orders(
    call: FormCall, both_ends: bool, src: Tensor, dst: Tensor, other_indices: tuple[Tensor, ...]
) -> FormCall:
    # Equal sorts of many layers and directions are one in a graph.  Outside, an order is kept with its tensor; Inductor
    # lends memory for one call, in which nothing may stay.
    nodes, rows = call.nodes, call.tensors[0].shape[0]
    if both_ends:
        # of the first layer too, whose x1 may have no gradient: what layers share is one sort then
        both, size = torch.ops.tpgen.order(dst, nodes, src, rows), nodes + 1 + dst.shape[0]
        return call._replace(at=(src, dst, *other_indices, both[size:], both[:size]), ordered=EDGES)
    return call._replace(at=(src, dst, *other_indices, torch.ops.tpgen.order(dst, nodes)), ordered=EDGES[1:])


def kernel_polynomial(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> Tensor:
    """Compute the output ``(rows, out)`` of a polynomial by a generated kernel.

    ``tensors`` are inputs and weights in plan order, ``index`` each row's element if any, ``description`` the plan's
    JSON text, ``call`` the text of `forward_call`.  Differentiable up to order 9.
    """
    dtype = next((x.dtype for x in tensors if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
    tensors = [as_floating_tensor(f"tensors[{n}]", x, dtype) for n, x in enumerate(tensors)]
    if any(x.dtype != dtype for x in tensors):
        for x in tensors:
            dtype = torch.promote_types(dtype, x.dtype)
        tensors = [x.to(dtype) for x in tensors]
    return forms.compute(FormCall(tensors, () if index is None else (index,), description, call, (ELEMENTS,)))[0]


def _check_index_is_tensor(name: str, index: Tensor) -> None:
    if not isinstance(index, Tensor):
        kind = type(index).__name__
        raise InputError(f"{name} must be a tensor of int64 or int32, got {kind}: use torch.as_tensor({name})")


def _convert_to_common_dtype(x1: Tensor, x2: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    tensors = isinstance(x1, Tensor) and isinstance(x2, Tensor) and isinstance(w, Tensor)
    if tensors and w is not None and x1.is_floating_point() and x1.dtype == x2.dtype == w.dtype:
        return x1, x2, w  # usual calls, in one frame of Python
    dtype = next((x.dtype for x in (x1, x2, w) if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
    x1, x2 = as_floating_tensor("x1", x1, dtype), as_floating_tensor("x2", x2, dtype)
    w = x1.new_empty(0) if w is None else as_floating_tensor("w", w, dtype)
    if x1.dtype == x2.dtype == w.dtype:
        return x1, x2, w
    dtype = torch.promote_types(torch.promote_types(x1.dtype, x2.dtype), w.dtype)
    return x1.to(dtype), x2.to(dtype), w.to(dtype)
