"""Differentiable program results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Recompute = Callable[[], Sequence[Tensor | None]]  # the same results, computed by the network of the same tensors


def with_recomputed_graph(made: Sequence[Tensor], recompute: Recompute, sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """Make results ``made`` differentiable to any order: the backward pass calls ``recompute``."""
    with torch.enable_grad():
        found = _RecomputedResults.apply(list(made), recompute, *sources)
    return found if isinstance(found, tuple) else (found,)


class _RecomputedResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: list[Tensor], recompute: Recompute, *sources: Tensor) -> tuple[Tensor, ...]:
        """Return ``made`` unchanged, and save ``sources``."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*sources)
        ctx.recompute = recompute
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple:
        """Recompute the results, and return gradients of the sources."""
        sources = ctx.saved_tensors
        with torch.enable_grad():
            found = ctx.recompute()
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
