r"""Operators: calls of a form, and the one rule that makes their derivatives calls again.

The gradients of a form L at a point, pulled back along cotangents :math:`c_s` of each, are the gradients of

.. math:: \sum_s \langle c_s, \partial L/\partial s\rangle,

a call at one more level (`tpgen.form.call`).  Kernels of polynomials take calls at any levels.  Of a product there are
kernels of calls at one level, which read every tensor once, where the same sum by calls without levels takes one for
each cotangent; where there is no such kernel, and for derivatives beyond, calls are expanded into those.

``tpgen::form`` is any call.  Those of products without levels are known to graphs as ``tpgen::product`` and
``tpgen::gradients``, in a fixed number of arguments: so many small ones are made that a list shows.  Where kernels take
edges by owner, graphs have ``tpgen::order`` of receivers or, for gradients, ``tpgen::orders`` of both ends, and
``tpgen::sorted`` is the product or its gradients.

They are registered below the level of Python classes: for autograd, for forward mode, for torch.func's
transforms, and with shapes for tracing, so a compiled or exported program holds them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base._torch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from tpgen.base.remember import remembered
from tpgen.form.call import Call, Slot
from tpgen.form.derivative import CallPart, parts_of, summed_parts
from tpgen.kernels.cuda import orders
from tpgen.kernels.runtime.batching import fold_batch
from tpgen.kernels.runtime.call import CALLS, ORDERS, OUT, SLOT_BITS, FormCall, ProductCall, opening_text
from tpgen.kernels.runtime.registration import Operator, Unfold, added, define, define_function, register
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.traced import share_equal_calls
from tpgen.kernels.sweep.terms import SLOTS, raised_call

_EDGES = "Tensor? edge_src=None, Tensor? edge_dst=None"
_INDICES = "Tensor? edge_src, Tensor? edge_dst, str description, str call, Tensor? index=None, SymInt num_nodes=0"
SCHEMAS = (
    f"product(Tensor x1, Tensor x2, Tensor w, str description, {_EDGES}, SymInt num_nodes=0) -> Tensor",
    f"gradients(Tensor x1, Tensor x2, Tensor w, Tensor g, str description, int mask, {_EDGES}) -> Tensor[]",
    f"form(Tensor[] tensors, {_INDICES}) -> Tensor[]",
)
_ON_SORTED_EDGES = (
    "sorted(Tensor x1, Tensor x2, Tensor w, Tensor? g, str description, int mask, Tensor edge_src, Tensor edge_dst, "
    "SymInt num_nodes, Tensor? by_src, Tensor? by_dst) -> Tensor[]",
    "order(Tensor index, SymInt owners) -> Tensor",
    "orders(Tensor edge_src, Tensor edge_dst, SymInt sources, SymInt num_nodes) -> Tensor",
)
for _schema in (*SCHEMAS, *_ON_SORTED_EDGES):
    define(_schema)
_product, _gradients = torch.ops.tpgen.product.default, torch.ops.tpgen.gradients.default
_form, _sorted = torch.ops.tpgen.form.default, torch.ops.tpgen.sorted.default


class _Forms(Operator[FormCall]):
    """Calls of a form with their tensors as a list."""

    indices = 5

    def split(self, call: FormCall) -> tuple[tuple[Tensor | None, ...], tuple]:
        tensors, src, dst, description, text, elements, nodes, *orders = call
        return (*tensors, src, dst, elements, *orders), (description, text, nodes)

    def call(self, tensors: Sequence[Any], rest: tuple) -> FormCall:
        *tensors, src, dst, elements, by_src, by_dst = tensors
        description, text, nodes = rest
        return FormCall(tensors, src, dst, description, text, elements, nodes, by_src, by_dst)

    def evaluate(self, call: FormCall, keys: Any = None) -> list[Tensor]:
        return _dispatched(*_in_graphs(call), keys)

    def run(self, call: FormCall) -> list[Tensor]:
        kernels = kernels_of(call.description)
        if not kernels.expands(call):
            return kernels.run(call)
        kernels.check(call)
        return [x for x in _filled(call, _expanded(call)) if x is not None]  # all that is opened has been given

    def shapes(self, call: FormCall) -> list[Tensor]:
        signature, _, counts = kernels_of(call.description).check(call)
        return [call.tensors[0].new_empty(shape) for shape in signature.shapes(call.tensors, counts)]

    def ahead(self, call: FormCall, wanted: Sequence[bool]) -> None:
        kernels, own = kernels_of(call.description), call.slots
        if own.levels or own.opened != (Slot("out"),):
            return
        derived = _pulled_back(call.call, (True,), tuple(wanted))
        parts = () if kernels.description.any_level else _sum_of(derived).parts
        more = [opening_text(_mask(part.opened)) for part in parts] or [derived]
        kernels.build_together((call.call, *more), call.tensors[0], call.indexed)
        kernels.sort_together(call)

    def pull_back(
        self, call: FormCall, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        there = [c for c in cotangents if c is not None]
        if not there or not any(wanted):
            return [None] * len(call.tensors)
        text = _pulled_back(call.call, tuple(c is not None for c in cotangents), tuple(wanted))
        found = iter(self._derived(call, text, [*call.tensors, *there]))
        return [next(found) if yes else None for yes in wanted]

    def push_forward(self, call: FormCall, tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        if all(t is None for t in tangents):
            return _filled(call, [None] * len(call.slots.opened))
        text = str(call.slots.pushed_forward([t is not None for t in tangents]))
        return _filled(call, self._derived(call, text, [*call.tensors, *(t for t in tangents if t is not None)]))

    def _derived(self, call: FormCall, text: str, tensors: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The opened slots of a derivative of a call, given these tensors; None where a slot is zero."""
        derived, kernels = call._replace(tensors=tensors, call=text), kernels_of(call.description)
        if kernels.description.any_level:
            return self.form(derived)
        if _sum_of(text).fuses and not kernels.expands(derived) and not _transformed(tensors):
            return self.form(derived)
        return _expanded(derived)

    def quick(self, call: FormCall) -> Sequence[Tensor]:
        return kernels_of(call.description).quick_form(call)

    def needs_grad(self, call: FormCall) -> bool:
        return any(x.requires_grad for x in call.tensors)

    def fold(self, size: int, dims: Sequence[int | None], call: FormCall) -> tuple[FormCall, Unfold]:
        return fold_batch(size, dims, call)


forms = _Forms()


def _in_graphs(call: FormCall) -> tuple[Any, tuple]:
    """The operator by which graphs know a call, and its arguments."""
    fixed = call.fixed()
    if fixed is None or kernels_of(call.description).description.any_level:
        return _form, call[: -len(ORDERS)]
    return _of_product(fixed)


def _of_product(call: ProductCall) -> tuple[Any, tuple]:
    x1, x2, w, g, src, dst, description, mask, nodes, by_src, by_dst = call
    if by_src is not None or by_dst is not None:
        return _sorted, (x1, x2, w, g, description, mask, src, dst, nodes, by_src, by_dst)
    if g is None:
        return _product, (x1, x2, w, description, src, dst, nodes)
    return _gradients, (x1, x2, w, g, description, mask, src, dst)


def _dispatched(operator: Any, arguments: tuple, keys: Any) -> list[Tensor]:
    made = operator(*arguments) if keys is None else operator.redispatch(keys, *arguments)
    return [made] if isinstance(made, Tensor) else list(made)


def _transformed(tensors: Sequence[Tensor]) -> bool:
    return any(is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x) for x in tensors)


@remembered("calls of gradients")
def _pulled_back(call: str, cotangents: tuple[bool, ...], wanted: tuple[bool, ...]) -> str:
    """The call of the gradients, as text: small polynomials notice how it is made."""
    return str(Call.parse(call).pulled_back(cotangents, wanted))


def _filled(call: FormCall, found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Results of a call, zeros of the operand's shape where a slot is zero; None where no tensor says a shape."""
    like = {slot.operand: x for slot, x in zip(call.slots.given, call.tensors, strict=True)}
    pairs = [(like.get(slot.operand), x) for slot, x in zip(call.slots.opened, found, strict=True)]
    return [torch.zeros_like(given) if x is None and given is not None else x for given, x in pairs]


# -- products: what has no kernel of its own ---------------------------------------------------------------------------


class _Sum(NamedTuple):
    """A product's call as a sum of calls without levels, and whether it is one that a single kernel may compute."""

    parts: tuple[CallPart, ...]
    fuses: bool


@remembered("calls as sums of calls without levels")
def _sum_of(text: str) -> _Sum:
    call = Call.parse(text)
    parts, raised = parts_of(call, SLOTS), tuple(slot.operand for slot in call.given if slot.levels)
    return _Sum(parts, len(parts) > 1 and call == raised_call(tuple(slot.operand for slot in call.opened), raised))


def _expanded(call: FormCall) -> list[Tensor | None]:
    """The opened slots of a call by calls without levels; None where a slot is zero."""
    product = kernels_of(call.description).product
    empty = {n for n, dim in enumerate(product.dims) if not dim}

    def evaluate(raised: tuple[int, ...], point: Sequence[Any], opened: tuple[int, ...]) -> Sequence[Tensor]:
        x1, x2, w, g = point
        # unweighted paths do not depend on what stands in the weights' place
        text = product.weighted if SLOTS.index("w") in raised else call.description
        mask, nodes = _mask(opened), call.nodes
        if mask == OUT and g is not None:  # its rows alone are needed
            nodes, g = g.shape[0], None
        if call.elements is not None:
            tensors = (x1, x2, w) if mask == OUT else (x1, x2, w, g)
            return forms.form(FormCall(tensors, None, None, text, opening_text(mask), call.elements))
        ends = call.src, call.dst, text, mask, nodes, call.by_src, call.by_dst
        return product_operator.form(ProductCall(x1, x2, w, g, *ends))

    # no path reads an operand without numbers: a layer's second inputs
    parts = [part for part in _sum_of(call.call).parts if empty.isdisjoint(part.raised)]
    return summed_parts(parts, call.tensors, len(call.slots.opened), evaluate, added)


def _mask(opened: Sequence[int]) -> int:
    return sum(SLOT_BITS[n] for n in opened)


# -- products: the quick way -------------------------------------------------------------------------------------------

# Asking costs as long as the gradients of so many numbers.
_WORTH_ASKING = 2**14


class _Products(Operator[ProductCall]):
    """Calls of products in a fixed number of arguments: what is usual in few steps, all else as the form's call."""

    indices = 4

    def split(self, call: ProductCall) -> tuple[tuple[Tensor | None, ...], tuple]:
        return call[:6] + call[9:], call[6:9]

    def call(self, tensors: Sequence[Any], rest: tuple) -> ProductCall:
        return ProductCall(*tensors[:6], *rest, *tensors[6:])

    def quick(self, call: ProductCall) -> Sequence[Tensor]:
        return kernels_of(call.description).quick(call)

    def needs_grad(self, call: ProductCall) -> bool:
        x1, x2, w, g, *_ = call
        return x1.requires_grad or x2.requires_grad or w.requires_grad or (g is not None and g.requires_grad)

    def asks(self, call: ProductCall) -> bool:
        numbers = call.x1.numel() + call.w.numel()
        return not isinstance(numbers, int) or numbers >= _WORTH_ASKING  # a symbol while torch traces

    def pull_back(
        self, call: ProductCall, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        x1, x2, w, _, src, dst, description, mask, _, *orders = call
        if mask != OUT:
            return forms.pull_back(call.listed(), cotangents, wanted)
        (g,), mask = cotangents, wanted[0] | wanted[1] << 1 | wanted[2] << 2
        if g is None or not mask:
            return (None,) * len(SLOT_BITS)
        rest = iter(self.form(ProductCall(x1, x2, w, g, src, dst, description, mask, 0, *orders)))
        return [*[next(rest) if yes else None for yes in wanted[:3]], None]

    def run(self, call: ProductCall) -> list[Tensor]:
        return kernels_of(call.description).run(call)  # without levels, so by kernels

    def recorded(self, keys: Any, call: ProductCall) -> list[Tensor]:
        return list(self.at_once(call)) or forms.recorded(keys, call.listed())

    def evaluate(self, call: ProductCall, keys: Any = None) -> list[Tensor]:
        return _dispatched(*_of_product(call), keys)

    def transformed(self, call: ProductCall) -> list[Tensor]:
        return forms.transformed(call.listed())

    def batched(self, call: ProductCall) -> list[Tensor]:
        return forms.batched(call.listed())

    def shapes(self, call: ProductCall) -> list[Tensor]:
        return forms.shapes(call.listed())


product_operator = _Products()

_OPERATORS: dict[str, Operator[Any]] = {
    **dict.fromkeys(("product", "gradients", "sorted"), product_operator),
    "form": forms,
}
for _name, _operator in _OPERATORS.items():
    register(_operator, _name, CALLS[_name], single=_name == "product")


# -- edges by owner ----------------------------------------------------------------------------------------------------


def _order(index: Tensor, owners: int) -> Tensor:
    """Places at which each owner's edges begin, and behind them the edges."""
    return orders.order_of(index, owners).whole


def _shape_of_orders(src: Tensor, dst: Tensor, sources: int, nodes: int) -> Tensor:
    return src.new_empty(nodes + sources + 2 + 2 * dst.shape[0], dtype=torch.int64)


define_function("order", _order, lambda index, owners: index.new_empty(owners + 1 + index.shape[0], dtype=torch.int64))
define_function("orders", lambda *call: orders.orders_of(*call), _shape_of_orders)
for _name in ("order", "orders"):
    share_equal_calls(_name)
