r"""e3nn's `BatchNorm`: two passes over the rows, where e3nn takes some five for each irrep.

.. math:: z = \frac{w}{\sqrt{v + \epsilon}}\,(x - m) + b, \qquad
    v = \left\langle \lVert x - m \rVert^2 \right\rangle, \qquad
    m = \begin{cases} \langle x \rangle & \text{of scalars} \\ 0 & \text{else} \end{cases}

Means are over rows, the norm is over the components of a copy.  Its gradient is three sums over rows, and a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from e3nn.nn import BatchNorm
from e3nn.o3 import Irreps
from torch import Tensor, nn

from tpgen.base.remember import remembered
from tpgen.networks.conversion.obstacles import replaced
from tpgen.networks.conversion.swap import Kept, Swap, SwapOrKept
from tpgen.nn.plain_tensors import is_usual

_NOW = "torch operations (two passes over the rows), but e3nn's own code where numbers are traced"


class _Columns(NamedTuple):
    # what the columns of rows are of a norm

    copy: Tensor  # of each column: the copy of an irrep that it is a component of
    scalars: Tensor  # the columns of scalars
    share: Tensor  # of each copy: what a component counts in its norm


class _Normed(torch.autograd.Function):
    # rows over their own norms

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, columns: _Columns) -> tuple[Tensor, ...]:
        mean, y, variance = _moments(x, columns)
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(x, weight, bias, y, inverse)
        ctx.eps, ctx.columns = eps, columns
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(_spread(bias, columns), y, (inverse * weight)[columns.copy]), mean, variance

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, bias, y, inverse = ctx.saved_tensors
        columns: _Columns = ctx.columns
        if torch.is_grad_enabled():  # derivatives of these are to follow
            return *_gradients(x, weight, bias, g, ctx.eps, columns), None, None
        total, slope = g.sum(0), _sums(g, y, columns)
        scale = (inverse * weight)[columns.copy]
        back = (-weight * slope * inverse**3 * columns.share / len(x))[columns.copy]
        shift = _spread((total * scale)[columns.scalars] / -len(x), columns)
        return torch.addcmul(shift, g, scale).addcmul_(y, back), slope * inverse, total[columns.scalars], None, None


def _moments(x: Tensor, columns: _Columns) -> tuple[Tensor, Tensor, Tensor]:
    # means of scalars, rows less these, and the mean of squared norms
    mean = x.mean(0)[columns.scalars]
    y = x - _spread(mean, columns)
    return mean, y, _sums(y, y, columns) * columns.share / len(x)


def _sums(a: Tensor, b: Tensor, columns: _Columns) -> Tensor:
    # of products, over rows and the components of each copy
    return a.new_zeros(len(columns.share)).index_add(0, columns.copy, (a * b).sum(0))


def _spread(bias: Tensor, columns: _Columns) -> Tensor:
    return bias.new_zeros(len(columns.copy)).index_copy(0, columns.scalars, bias)


def _gradients(x: Tensor, weight: Tensor, bias: Tensor, g: Tensor, eps: float, columns: _Columns) -> tuple[Tensor, ...]:
    # as above, of operations that have derivatives
    given = [each if each.requires_grad else each.detach().requires_grad_() for each in (x, weight, bias)]
    _, y, variance = _moments(given[0], columns)
    scale = ((variance + eps).rsqrt() * given[1])[columns.copy]
    return torch.autograd.grad(y * scale + _spread(given[2], columns), given, g, create_graph=True)


class ConvertedBatchNorm(BatchNorm):
    """An `e3nn.nn.BatchNorm` of fewer passes; traced, transformed or compiled it runs e3nn's own code."""

    def forward(self, input: Tensor) -> Tensor:
        """As e3nn's."""
        held = [x for x in (self.running_var, self.weight) if x is not None]
        if torch.compiler.is_compiling() or not is_usual(input, *held) or any(x.dtype != input.dtype for x in held):
            return super().forward(input)
        columns = _columns(self.irreps, self.normalization, input.dtype)
        weight = torch.ones_like(columns.share) if self.weight is None else self.weight
        bias = getattr(self, "bias", None)  # e3nn 0.6 has no such attribute where there is no bias
        bias = input.new_zeros(len(columns.scalars)) if bias is None else bias
        rows = input.reshape(-1, input.shape[-1])
        if not self.training:
            scale = ((self.running_var + self.eps).rsqrt() * weight)[columns.copy]
            mean = _spread(self.running_mean, columns)
            return torch.addcmul(_spread(bias, columns) - mean * scale, rows, scale).view(input.shape)
        out, mean, variance = _Normed.apply(rows, weight, bias, self.eps, columns)
        with torch.no_grad():
            for kept, now in ((self.running_mean, mean), (self.running_var, variance)):
                kept.copy_((1 - self.momentum) * kept + self.momentum * now)
        return out.view(input.shape)


@remembered("columns of norms")
def _columns(irreps: Irreps, normalization: str, dtype: torch.dtype) -> _Columns:
    copies, scalars, share = list[int](), list[int](), list[float]()
    for mul, irrep in irreps:
        scalars += [len(copies) + n for n in range(mul)] if irrep.is_scalar() else []
        copies += [len(share) + n // irrep.dim for n in range(mul * irrep.dim)]
        share += [1 / irrep.dim if normalization == "component" else 1.0] * mul
    columns = torch.tensor(scalars, dtype=torch.int64)
    return _Columns(torch.tensor(copies), columns, torch.tensor(share, dtype=dtype))


def find_batch_norm(module: nn.Module, options: Mapping[str, Any]) -> SwapOrKept | None:
    """Return the swap of e3nn's batch norm, or why it stays; None for other modules."""
    if type(module) is not BatchNorm:
        return None
    other = "of instances, or of the largest norm" if module.instance or module.reduce != "mean" else None
    why = replaced(module) or other
    return Kept(module, why) if why else Swap(module, ConvertedBatchNorm, _NOW)
