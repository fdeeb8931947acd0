"""Slow product, for tests and `tpgen verify`."""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.form.form import Layout, expand_layout
from tpgen.planner.coupling import wigner_3j
from tpgen.planner.plan import Plan, Segment


def reference_product(plan: Plan, *tensors: Tensor | None, layout: Layout = "mul_ir") -> Tensor:
    """Compute a product or linear layer without biases, an einsum per path.

    Inputs ``(z, dim)``, then w ``(numel,)`` or ``(z, numel)``; returns ``(z, out)``.
    """
    *inputs, w = tensors
    first, layouts = tensors[0], expand_layout(plan, layout)
    assert first is not None
    given = {o.name: (x, name) for o, x, name in zip(plan.inputs, inputs, layouts, strict=False) if x is not None}
    out = [first.new_zeros(len(first), mul * ir.dim) for mul, ir in plan.out.irreps]
    for path in plan.paths:
        operands = [_reshape_segment_to_copies_by_components(*given[leg.operand], leg.at) for leg in path.inputs]
        if path.mode.paired:
            pairs = torch.triu_indices(path.in1.mul, path.in1.mul, 1)
            operands = [x[:, n] for x, n in zip(operands, pairs, strict=True)]
        letters = ([path.mode.in1, "i"], [path.mode.in2, "j"])[: len(operands)]
        terms = ["z" + "".join(both) for both in letters]
        if len(operands) == 2:  # one input alone keeps its components
            terms.append("ijk")
            operands.append(torch.tensor(wigner_3j(*path.ls), dtype=first.dtype, device=first.device))
        if path.weight is not None:
            assert w is not None
            terms.append(("" if plan.shared_weights else "z") + path.mode.weight)
            flat = w[..., path.weight.start : path.weight.stop]
            operands.append(flat.reshape(flat.shape[:-1] + path.weight.shape))
        # unweighted, an axis that only weights fill has size one
        out_axes = "".join(a for a in path.mode.out if path.weight is not None or a not in path.mode.mixing)
        component = "k" if len(path.inputs) == 2 else "i"
        result = torch.einsum(f"{','.join(terms)}->z{out_axes}{component}", *operands)
        result = result.flatten(1).unflatten(1, (-1, path.out.ir.dim))
        if layouts[-1] == "ir_mul":
            result = result.transpose(1, 2)
        out[path.out.index] = out[path.out.index] + path.coefficient * result.flatten(1)
    return torch.cat(out, dim=1) if out else first.new_zeros(len(first), 0)


def _reshape_segment_to_copies_by_components(x: Tensor, layout: str, segment: Segment) -> Tensor:
    flat = x[:, segment.start : segment.stop]
    if layout == "mul_ir":
        return flat.reshape(x.shape[0], segment.mul, segment.ir.dim)
    return flat.reshape(x.shape[0], segment.ir.dim, segment.mul).transpose(1, 2)
