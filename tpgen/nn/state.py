"""What a product keeps in its state_dict, and what not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tpgen.form.linear import AnyPlan


def without_programs(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Keep constants out of a state_dict.  e3nn's scripting puts a copy in a program's place whose buffers persist."""
    for key in [k for k in state_dict if k.startswith((f"{prefix}_forward_program.", f"{prefix}_right_program."))]:
        del state_dict[key]


def output_mask_of(plan: AnyPlan) -> Tensor:
    """One for every output entry that some path writes, else zero."""
    reached = zip(plan.irreps_out, plan.reached, strict=True)
    return torch.cat([torch.zeros(0), *(torch.full((mul_ir.dim,), float(live)) for mul_ir, live in reached)])
