"""What is inspected: a module, or a plan with options; either becomes a `Request` whose strategy is decided."""

from __future__ import annotations

from dataclasses import replace

import torch

from tpgen.compiler import autotune
from tpgen.errors import TpgenError
from tpgen.inspection.dump import Request
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan

Subject = TensorProduct | Plan


def request_of(subject: Subject, **options: object) -> Request:
    """The request that stands for a product; ``auto`` is decided in it.

    >>> from tpgen.planner.presets import channelwise
    >>> request_of(channelwise("8x1o", "1o", "0e"), strategy="einsum").strategy
    'einsum'
    """
    if isinstance(subject, TensorProduct):
        like = subject.output_mask
        given: dict[str, object] = {
            "layout": subject.layout,
            "strategy": subject.choice.strategy,
            "backend": subject.backend,
            "dtype": like.dtype,
            "device": str(like.device),
        }
        return decided(Request(subject.plan, **{**given, **options}))  # type: ignore[arg-type]
    if isinstance(subject, Plan):
        return decided(Request(subject, **options))  # type: ignore[arg-type]
    raise TpgenError(
        f"give a tpgen TensorProduct or a Plan, not {type(subject).__name__}; tpgen.convert makes products"
    )


def choice_of(request: Request) -> autotune.Choice:
    """The strategy of a request and the reason for it."""
    asked = autotune.Request(
        request.plan, request.backend, request.layout, request.dtype, torch.device(request.device).type
    )
    return autotune.choose_strategy(asked, request.strategy)


def decided(request: Request) -> Request:
    """The same request with its strategy by name."""
    return replace(request, strategy=choice_of(request).strategy)
