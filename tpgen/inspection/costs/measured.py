"""The time of a product or a convolution as it is written and run, beside the ceilings of that moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tpgen.inspection.costs.roofline import Ceilings, measured_together
from tpgen.inspection.stages.dump import Request, example_arguments
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.tensor_product import TensorProduct


def product_seconds(request: Request, nodes: int | None, seconds: float) -> tuple[dict[str, float], Ceilings]:
    """Seconds of ``forward`` and of ``backward`` (forward and backward) on random operands, and the ceilings.

    With ``nodes`` it is the convolution, on random edges between them.
    """
    run, operands = _runnable(request, nodes)
    return both_seconds(run, operands, request.dtype, request.device, seconds)


def both_seconds(
    run: Callable[[], Tensor], operands: Sequence[Tensor], dtype: torch.dtype, device: str, seconds: float
) -> tuple[dict[str, float], Ceilings]:
    """The same of any call: alone, and with the gradients of its operands."""
    for operand in operands:
        operand.requires_grad_()

    def forward() -> None:
        with torch.no_grad():
            run()

    def backward() -> None:
        for x in operands:
            x.grad = None
        run().sum().backward()

    return measured_together({"forward": forward, "backward": backward}, dtype, device, seconds)


def _runnable(request: Request, nodes: int | None) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """A call of the product, or of the convolution on random edges, and the operands that it reads."""
    kind = TensorProduct if nodes is None else TensorProductConv
    product = kind.from_plan(
        request.plan, internal_weights=False, layout=request.layout, strategy=request.strategy, backend=request.backend
    ).to(device=request.device, dtype=request.dtype)
    y, w = example_arguments(request, ("x2", "w"))
    (x,) = example_arguments(request if nodes is None else replace(request, rows=nodes), ("x1",))
    edges: list[Tensor] = []
    if nodes is not None:
        drawn = torch.randint(nodes, (2, request.rows), generator=torch.Generator().manual_seed(0))
        edges = list(drawn.to(request.device))
    return lambda: product(x, y, w, *edges), [x, y, w]
