"""Differentiable program results: a backward pass reruns the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Again = Callable[[], Sequence[Tensor | None]]  # the same results, computed by the network of the same tensors


def with_graph(made: Sequence[Tensor], again: Again, sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """Attach an autograd graph to results ``made``: backward recomputes the results by ``again``, to any order.

    Autograd raises an error for a source that is written to before.
    """
    with torch.enable_grad():
        found = _Later.apply(list(made), again, *sources)
    return found if isinstance(found, tuple) else (found,)


class _Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: list[Tensor], again: Again, *sources: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*sources)
        ctx.again = again
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple:
        sources = ctx.saved_tensors
        with torch.enable_grad():
            found = ctx.again()
        pairs = [
            (x, g) for x, g in zip(found, gradients, strict=True) if g is not None and x is not None and x.requires_grad
        ]
        if not pairs:
            return None, None, *(None for _ in sources)
        results, cotangents = zip(*pairs, strict=True)
        return (
            None,
            None,
            *torch.autograd.grad(results, sources, cotangents, create_graph=torch.is_grad_enabled(), allow_unused=True),
        )
