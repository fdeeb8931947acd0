"""The slow definition: what a product means, written out term by term with dense couplings.

It is the oracle of every test and of `tpgen verify`; nothing fast is derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tpgen.form.contraction import Contraction, Factor
from tpgen.form.form import Form, Layout, split_layout
from tpgen.form.linear import split_linear_layout
from tpgen.planner.coupling import coupling
from tpgen.planner.linear import LinearPlan
from tpgen.planner.plan import Plan, Segment


def reference_product(plan: Plan, x1: Tensor, x2: Tensor, w: Tensor | None, layout: Layout = "mul_ir") -> Tensor:
    """The product of one batch of rows: ``x1 (z, in1)``, ``x2 (z, in2)``, ``w (numel,)`` or ``(z, numel)``.

    One einsum per path, read off the mode's table row.  Returns ``(z, out)`` in the dtype of x1.
    """
    layouts = split_layout(layout)
    out = [x1.new_zeros(x1.shape[0], mul * ir.dim) for mul, ir in plan.irreps_out]
    for path in plan.paths:
        a, b = _axes(x1, path.in1, layouts[0]), _axes(x2, path.in2, layouts[1])
        if path.mode.paired:
            first, second = torch.triu_indices(path.in1.mul, path.in1.mul, 1)
            a, b = a[:, first], b[:, second]
        c = torch.tensor(coupling(*path.ls), dtype=x1.dtype, device=x1.device)
        equation = f"z{path.mode.in1}i,z{path.mode.in2}j,ijk"
        operands = [a, b, c]
        if path.weight is not None:
            assert w is not None
            equation += "," + ("" if plan.shared_weights else "z") + path.mode.weight
            flat = w[..., path.weight.start : path.weight.stop]
            operands.append(flat.reshape(flat.shape[:-1] + path.weight.shape))
        # unweighted, an axis that only weights fill has size one
        out_axes = "".join(a for a in path.mode.out if path.weight is not None or a not in path.mode.mixing)
        result = torch.einsum(f"{equation}->z{out_axes}k", *operands).reshape(x1.shape[0], -1, path.out.ir.dim)
        if layouts[2] == "ir_mul":
            result = result.transpose(1, 2)
        out[path.out.index] = out[path.out.index] + path.coefficient * result.reshape(x1.shape[0], -1)
    return torch.cat(out, dim=1) if out else x1.new_zeros(x1.shape[0], 0)


def _axes(x: Tensor, segment: Segment, layout: str) -> Tensor:
    """A segment as (z, mul, ir)."""
    flat = x[:, segment.start : segment.stop]
    if layout == "mul_ir":
        return flat.reshape(x.shape[0], segment.mul, segment.ir.dim)
    return flat.reshape(x.shape[0], segment.ir.dim, segment.mul).transpose(1, 2)


def reference_form(
    form: Form,
    given: Mapping[str, Tensor],
    rows: int,
    indices: Mapping[str, Tensor] | None = None,
    size: int = 0,
) -> Tensor:
    """Evaluate a form for the tensors given by slot (``"x1"``, ``"x1*out"``), densely and without rewrites.

    ``indices`` select the rows of indexed operands; ``size`` is how many rows an indexed open slot has.
    Returns the open slot: ``(rows, …)``, ``(size, …)`` where it is indexed, without the batch axis where it is shared.
    """
    indices = indices or {}
    named = {"*".join(slot): form.index(slot) for slot in form.given}
    found = {name: x if (index := named[name]) is None else x[indices[index]] for name, x in given.items()}
    out = _evaluate(form, found, rows)
    opened = form.index(form.opened)
    return out if opened is None else out.new_zeros(size, *out.shape[1:]).index_add(0, indices[opened], out)


def _evaluate(form: Form, given: Mapping[str, Tensor], rows: int) -> Tensor:
    like = next(iter(given.values()))
    out = like.new_zeros(((rows,) if form.row(form.opened) else ()) + form.shape(form.opened))
    for term in form.live_terms:
        c = form.contraction(term)
        operands = [_factor(form, term, c, f, given, like) for f in c.factors]
        result = c.coefficient * torch.einsum(c.equation, *operands)
        block = out
        for axis, name in enumerate(form.opened, start=out.dim() - len(form.opened)):
            start, stop = form.operand(name).segments[term.leg(name).segment]  # type: ignore[union-attr]
            block = block.narrow(axis, start, stop - start)
        block += result.reshape(block.shape)
    return out


def _factor(form: Form, term, c: Contraction, factor: Factor, given: Mapping[str, Tensor], like: Tensor) -> Tensor:
    if not isinstance(factor.source, str):
        return torch.tensor(np.asarray(factor.source.array()), dtype=like.dtype, device=like.device)
    slot = tuple(factor.source.split("*"))
    block = given[factor.source]
    for axis, name in enumerate(slot, start=block.dim() - len(slot)):
        start, stop = form.operand(name).segments[term.leg(name).segment]
        block = block.narrow(axis, start, stop - start)
    batch = block.shape[:1] if form.row(slot) else ()
    return block.reshape(batch + c.shape(factor.letters))


def reference_linear(plan: LinearPlan, x: Tensor, w: Tensor, layout: str | tuple[str, ...] = "mul_ir") -> Tensor:
    """A linear layer of one batch of rows: ``x (z, in)``, ``w (numel,)`` or ``(z, numel)``; no channels, no biases.

    One einsum per path.  Returns ``(z, out)`` in the dtype of x.
    """
    layouts = split_linear_layout(layout)
    out = [x.new_zeros(x.shape[0], mul * ir.dim) for mul, ir in plan.irreps_out]
    for path in plan.paths:
        flat = w[..., path.weight.start : path.weight.stop]
        matrix = flat.reshape(flat.shape[:-1] + path.weight.shape)
        ends = ("uw" if plan.shared_weights else "zuw", "zwi" if layouts[1] == "mul_ir" else "ziw")
        result = torch.einsum(f"zui,{ends[0]}->{ends[1]}", _axes(x, path.in1, layouts[0]), matrix)
        out[path.out.index] = out[path.out.index] + path.coefficient * result.flatten(1)
    return torch.cat(out, dim=1) if out else x.new_zeros(x.shape[0], 0)
