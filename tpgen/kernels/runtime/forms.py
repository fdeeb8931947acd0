r"""The operator ``tpgen::form``: any call of a form, and the one rule that makes its derivatives calls again.

The gradients of a form L at a point, pulled back along cotangents :math:`c_s` of each, are the gradients of

.. math:: \sum_s \langle c_s, \partial L/\partial s\rangle,

a call at one more level (`tpgen.form.call`).  Kernels of polynomials take calls at any levels.  Of a product there are
kernels of calls at one level, which read every tensor once, where the same sum by ``tpgen::gradients`` takes a call for
each cotangent; where there is no such kernel, and for derivatives beyond, calls are expanded into those (`expanded`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tpgen.form.call import Call, LevelFreeCall, Slot, expanded
from tpgen.kernels.runtime import call as products
from tpgen.kernels.runtime.batching import fold_batch
from tpgen.kernels.runtime.call import FormCall, mask_of
from tpgen.kernels.runtime.registration import Operator, Unfold, added, define, register
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.sweep.terms import SLOTS, raised_call
from tpgen.remember import remembered

_INDICES = "Tensor? edge_src, Tensor? edge_dst, str description, str call, Tensor? index=None, SymInt num_nodes=0"
SCHEMAS = (
    f"form(Tensor[] tensors, {_INDICES}) -> Tensor[]",
    "polynomial(Tensor[] tensors, Tensor? index, str description, str call) -> Tensor[]",  # in programs of 0.1
)
for _schema in SCHEMAS:
    define(_schema)
_form = torch.ops.tpgen.form.default


def call_form(call: FormCall) -> Sequence[Tensor]:
    """The opened slots of any call, recorded for autograd where something asks for it."""
    return _forms.form(call)


def second_order(
    call: products.ProductCall, cotangents: Mapping[str, Tensor], opened: tuple[str, ...]
) -> Sequence[Tensor]:
    """The opened slots of the sum over cotangents of the form where each stands in the place of its operand."""
    assert call.g is not None
    text = _text(opened, tuple(cotangents))
    tensors = [call.x1, call.x2, call.w, call.g, *cotangents.values()]
    return _forms.form(FormCall(tensors, call.src, call.dst, call.description, text))


@remembered("calls of second derivatives")
def _text(opened: tuple[str, ...], raised: tuple[str, ...]) -> str:
    return str(raised_call(opened, raised))


class _Forms(Operator[FormCall]):
    """Calls of a form with their tensors as a list."""

    indices = 3

    def split(self, call: FormCall) -> tuple[tuple[Tensor | None, ...], tuple]:
        tensors, src, dst, description, text, elements, nodes = call
        return (*tensors, src, dst, elements), (description, text, nodes)

    def call(self, tensors: Sequence[Any], rest: tuple) -> FormCall:
        *tensors, src, dst, elements = tensors
        description, text, nodes = rest
        return FormCall(tensors, src, dst, description, text, elements, nodes)

    def evaluate(self, call: FormCall) -> list[Tensor]:
        return list(_form(*call))

    def run(self, call: FormCall) -> list[Tensor]:
        kernels = kernels_of(call.description)
        if not kernels.expands(call):
            return kernels.run(call)
        kernels.check(call)
        return _filled(call, _expanded(call, call.slots, call.tensors))

    def redispatch(self, keys: Any, call: FormCall) -> list[Tensor]:
        return list(_form.redispatch(keys, *call))

    def shapes(self, call: FormCall) -> list[Tensor]:
        signature, counts = kernels_of(call.description).check(call)
        return [call.tensors[0].new_empty(shape) for shape in signature.shapes(call.tensors, counts)]

    def ahead(self, call: FormCall, wanted: Sequence[bool]) -> None:
        kernels, own = kernels_of(call.description), call.slots
        if kernels.description.any_level and not own.levels:
            derived = _pulled_back(call.call, (True,) * len(own.opened), tuple(wanted))
            kernels.build_together((call.call, derived), call.tensors[0], call.indexed)

    def pull_back(
        self, call: FormCall, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        there = [c for c in cotangents if c is not None]
        if not there or not any(wanted):
            return [None] * len(call.tensors)
        text = _pulled_back(call.call, tuple(c is not None for c in cotangents), tuple(wanted))
        found = iter(self._derived(call, text, [*call.tensors, *there]))
        return [next(found) if yes else None for yes in wanted]

    def push_forward(self, call: FormCall, tangents: Sequence[Tensor | None]) -> Sequence[Tensor]:
        text = str(call.slots.pushed_forward([t is not None for t in tangents]))
        return _filled(call, self._derived(call, text, [*call.tensors, *(t for t in tangents if t is not None)]))

    def _derived(self, call: FormCall, text: str, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The opened slots of a derivative of a call, given these tensors; None where a slot is zero."""
        if kernels_of(call.description).description.any_level:
            return self.form(call._replace(tensors=tensors, call=text))
        return _expanded(call, Call.parse(text), tensors)

    def quick(self, call: FormCall) -> Sequence[Tensor]:
        return kernels_of(call.description).quick_form(call)

    def needs_grad(self, call: FormCall) -> bool:
        return any(x.requires_grad for x in call.tensors)

    def fold(self, size: int, dims: Sequence[int | None], call: FormCall) -> tuple[FormCall, Unfold]:
        return fold_batch(size, dims, call)


@remembered("calls of gradients")
def _pulled_back(call: str, cotangents: tuple[bool, ...], wanted: tuple[bool, ...]) -> str:
    """The call of the gradients, as text: small polynomials notice how it is made."""
    return str(Call.parse(call).pulled_back(cotangents, wanted))


def _filled(call: FormCall, found: Sequence[Tensor | None]) -> list[Tensor]:
    """Results of a call, zeros of the operand's shape where a slot is zero."""
    like = {slot.operand: x for slot, x in zip(call.slots.given, call.tensors, strict=True)}
    pairs = zip(call.slots.opened, found, strict=True)
    return [torch.zeros_like(like[slot.operand]) if x is None else x for slot, x in pairs]


def _expanded(call: FormCall, derived: Call, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """The opened slots of a call of a product, by calls without levels; None where a slot is zero."""
    at = dict(zip(derived.given, tensors, strict=True))
    empty = {n for n, dim in zip(SLOTS, kernels_of(call.description).product.dims, strict=True) if not dim}
    totals: dict[Slot, Tensor] = {}
    for one in expanded(derived, SLOTS):
        if empty.isdisjoint(one.raised):  # no path reads an operand without numbers: a layer's second inputs
            for slot, value in zip(one.opened, _gradients(call, one, at), strict=True):
                totals[slot] = added(totals[slot], value) if slot in totals else value
    return [totals.get(slot) for slot in derived.opened]


def _gradients(call: FormCall, one: LevelFreeCall, at: Mapping[Slot, Tensor]) -> list[Tensor]:
    """A call without levels, its results in the order of what it opens."""
    description = call.description
    if "w" in one.raised:  # unweighted paths do not depend on what stands in the weights' place
        description = kernels_of(description).product.weighted
    x1, x2, w, g = (at.get(one.point.get(name, Slot(name))) for name in SLOTS)
    names = [slot.operand for slot in one.opened]
    if names == ["out"]:
        nodes = call.nodes if g is None else g.shape[0]
        return [torch.ops.tpgen.product(x1, x2, w, description, call.src, call.dst, nodes)]
    mask = mask_of([name in names for name in SLOTS])
    made = torch.ops.tpgen.gradients(x1, x2, w, g, description, mask, call.src, call.dst)
    found = dict(zip([name for name in SLOTS if name in names], made, strict=True))
    return [found[name] for name in names]


def _polynomial_call(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> FormCall:
    """A call from the arguments of ``tpgen::polynomial``."""
    return FormCall(tensors, None, None, description, call, index)


_forms = _Forms()
register(_forms, "form", FormCall)
register(_forms, "polynomial", _polynomial_call)
