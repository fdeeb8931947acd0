"""Entries of a product's state_dict, and what is kept out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from tpgen.planner.plan import Plan


def without_programs(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Keep constants out of a state_dict.  e3nn's scripting puts a copy in a program's place whose buffers persist."""
    for key in [k for k in state_dict if k.startswith((f"{prefix}_forward_program.", f"{prefix}_right_program."))]:
        del state_dict[key]


def output_mask_of(plan: Plan) -> np.ndarray:
    """One for every output entry that some path writes, else zero."""
    return np.repeat(np.array(plan.reached, dtype=float), [mul_ir.dim for mul_ir in plan.out.irreps])
