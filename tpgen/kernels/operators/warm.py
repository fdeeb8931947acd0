"""Build the kernels of products ahead of use."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tpgen.form.form import Layout, make_form, split_layout
from tpgen.kernels.libraries.build import load_all
from tpgen.kernels.operators.description import DIRECTIONS, Description
from tpgen.planner.plan import Plan

# slots opened by the gradient of x2, and by the gradients of that
_FORCES = (("x2",), ("x1", "w", "out"))


def warm(
    plans: Iterable[Plan],
    layout: Layout = "mul_ir",
    dtypes: Iterable[torch.dtype] = (torch.float32,),
    convolution: bool = False,
    forces: bool = False,
) -> int:
    """Build the kernels of plans ahead of use, side by side; returns how many there are.

    Forward and backward; with ``forces`` those that training on the gradient of x2 needs besides.  ``convolution``
    builds them for `TensorProductConv`.  A product without paths has none.  Raises `BackendError` where there is no
    compiler or it fails.
    """
    opened = [*DIRECTIONS.values(), *(_FORCES if forces else ())]
    if convolution:  # x1 and out are the two ends of a gather, each with a sweep of its own
        opened = [tuple(s for s in slots if s != "out" or "x1" not in slots) for slots in opened]
    live = [plan for plan in plans if make_form(plan, layout).live_terms]
    texts = [
        (Description(plan, split_layout(layout)).source(slots, dtype, convolution).text, convolution)
        for plan in live
        for dtype in tuple(dtypes)
        for slots in opened
    ]
    load_all(texts)
    return len(texts)
