"""The slow definition of a form: every term as a dense einsum, without rewrites."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tpgen.form.contraction import Contraction, Factor
from tpgen.form.form import Form


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
