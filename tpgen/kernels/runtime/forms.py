"""Operators of forms: ``tpgen::form`` computes calls, ``tpgen::order`` sorts indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base._torch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from tpgen.base.remember import remembered
from tpgen.form.call import Call, Slot
from tpgen.form.derivative import CallPart, list_call_parts, sum_call_parts
from tpgen.kernels.cuda import orders
from tpgen.kernels.rows import ELEMENTS, SHARED
from tpgen.kernels.runtime.batching import fold_vmap_batch
from tpgen.kernels.runtime.call import FormCall, product_call_text
from tpgen.kernels.runtime.registration import (
    Operator,
    Unfold,
    add_results,
    define_operator,
    define_operator_without_derivatives,
    register_operator,
)
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.traced import merge_equal_operator_calls
from tpgen.kernels.sweep.terms import SLOTS, make_second_derivative_call
from tpgen.planner.plan import OUT

FORM = (
    'form(Tensor[] tensors, Tensor[]? indices, str description, str call, str rows="", SymInt nodes=0, str ordered="")'
    " -> Tensor[]"
)
_ORDER = "order(Tensor index, SymInt owners, Tensor? other=None, SymInt others=0) -> Tensor"
for _schema in (FORM, _ORDER):
    define_operator(_schema)
_form = torch.ops.tpgen.form.default
# Asking which gradients are wanted costs as long as the gradients of so many numbers.
_WORTH_ASKING = 2**14
_WEIGHTS = (SHARED, ELEMENTS.into)  # what tensors count whose gradients training alone asks for


class _FormOperator(Operator):
    """The operator ``tpgen::form``: products, polynomials and derivatives of both."""

    training = True  # of the module that called last: which gradients' kernels are built beside that of a first call

    def evaluate(self, call: FormCall, keys: Any = None) -> list[Tensor]:
        return _form(*call.to_arguments()) if keys is None else _form.redispatch(keys, *call.to_arguments())

    def run_kernels(self, call: FormCall) -> list[Tensor]:
        """Compute a call's results by generated kernels."""
        kernels = kernels_of(call.description)
        if not kernels.lacks_own_kernel(call):
            return kernels.run(call)
        kernels.check_tensors(call)
        found = _replace_none_by_zeros(call, _compute_by_sum_of_kernel_calls(call))
        return [x for x in found if x is not None]  # all that is opened has been given

    def empty_results(self, call: FormCall) -> list[Tensor]:
        signature, counts = kernels_of(call.description).check_tensors(call)
        return [call.tensors[0].new_empty(shape) for shape in signature.result_shapes(call.tensors, counts)]

    def build_kernels_ahead(self, call: FormCall, wanted_gradients: Sequence[bool]) -> None:
        """Build kernels of a call and of wanted gradients; sort edges."""
        kernels, own = kernels_of(call.description), call.slots
        if own.levels or own.opened != (Slot("out"),):
            return
        if not self.training:
            given = kernels.signature(call.call, call.rules).given
            wanted_gradients = [
                yes and g.shape.counts not in _WEIGHTS for g, yes in zip(given, wanted_gradients, strict=True)
            ]
        more: list[str] = []
        if True in wanted_gradients:
            derived = _text_of_gradient_call(call.call, (True,), tuple(wanted_gradients))
            parts = () if kernels.description.any_level else _expand_to_kernel_calls(derived).parts
            more = [product_call_text(*(SLOTS[n] for n in part.opened)) for part in parts] or [derived]
        kernels.build_kernels_in_parallel((call.call, *more), call.tensors[0], call.rules)
        kernels.sort_edges_ahead(call)

    def pull_back(
        self, call: FormCall, cotangents: Sequence[Tensor | None], wanted_gradients: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """Compute wanted gradients of tensors from cotangents of results; None for others."""
        given, wanted_gradients = [c for c in cotangents if c is not None], tuple(wanted_gradients)
        if not given or True not in wanted_gradients:
            return [None] * len(call.tensors)
        held = (True,) * len(given)  # small calls notice a second list
        if len(given) < len(cotangents):
            held = tuple([c is not None for c in cotangents])
        found = self._compute_derivative(
            call, _text_of_gradient_call(call.call, held, wanted_gradients), (*call.tensors, *given)
        )
        if False not in wanted_gradients:
            return found
        rest = iter(found)
        return [next(rest) if yes else None for yes in wanted_gradients]

    def push_forward(self, call: FormCall, tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Compute tangents of results from tangents of tensors."""
        if all(t is None for t in tangents):
            return _replace_none_by_zeros(call, [None] * len(call.slots.opened))
        text = str(call.slots.pushed_forward([t is not None for t in tangents]))
        return _replace_none_by_zeros(
            call, self._compute_derivative(call, text, [*call.tensors, *(t for t in tangents if t is not None)])
        )

    def _compute_derivative(
        self, call: FormCall, derivative_text: str, tensors: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        # None for a slot that is zero
        kernels = kernels_of(call.description)
        own = kernels.description.any_level
        lowered = None if own else _reduce_to_one_kernel_call(derivative_text)
        derived = FormCall(tensors, call.at, call.description, lowered or derivative_text, *call[4:])
        if (
            own
            or lowered
            or (
                _expand_to_kernel_calls(derivative_text).fuses_second_derivatives
                and not kernels.lacks_own_kernel(derived)
                and not _is_any_transformed(tensors)
            )
        ):
            return self.compute(derived)
        return _compute_by_sum_of_kernel_calls(derived)

    def compute_in_cpp(self, call: FormCall) -> Sequence[Tensor]:
        return kernels_of(call.description).compute_in_cpp(call)

    def should_ask_for_used_gradients(self, call: FormCall) -> bool:
        """Whether to ask autograd which gradients are used: for polynomials and large operands."""
        if kernels_of(call.description).description.any_level:
            return True
        numbers = call.tensors[0].numel() + call.tensors[2].numel()
        return not isinstance(numbers, int) or numbers >= _WORTH_ASKING  # a symbol while torch traces

    def fold(self, size: int, dims: Sequence[int | None], call: FormCall) -> tuple[FormCall, Unfold]:
        return fold_vmap_batch(size, dims, call)


forms = _FormOperator()


def _is_any_transformed(tensors: Sequence[Tensor]) -> bool:
    return any(is_functorch_wrapped_tensor(x) or is_legacy_batchedtensor(x) for x in tensors)


@remembered("calls of gradients")
def _text_of_gradient_call(call: str, cotangents: tuple[bool, ...], wanted: tuple[bool, ...]) -> str:
    # as text: small polynomials notice the time of building a call
    return str(Call.parse(call).pulled_back(cotangents, wanted))


def _replace_none_by_zeros(call: FormCall, results: Sequence[Tensor | None]) -> list[Tensor | None]:
    # None remains where no tensor tells a shape
    like = {slot.operand: x for slot, x in zip(call.slots.given, call.tensors, strict=True)}
    pairs = [(like.get(slot.operand), x) for slot, x in zip(call.slots.opened, results, strict=True)]
    return [torch.zeros_like(given) if x is None and given is not None else x for given, x in pairs]


# -- products: what has no kernel of its own ---------------------------------------------------------------------------


class _KernelCallSum(NamedTuple):
    """A product's derivative as a sum of products and first derivatives."""

    parts: tuple[CallPart, ...]
    fuses_second_derivatives: bool


@remembered("calls as sums of calls without levels")
def _expand_to_kernel_calls(call_text: str) -> _KernelCallSum:
    call = Call.parse(call_text)
    parts, raised = list_call_parts(call, SLOTS), tuple(slot.operand for slot in call.given if slot.levels)
    return _KernelCallSum(
        parts,
        len(parts) > 1 and call == make_second_derivative_call(tuple(slot.operand for slot in call.opened), raised),
    )


@remembered("calls without levels in the place of derivatives")
def _reduce_to_one_kernel_call(call_text: str) -> str | None:
    # not of a sum of several, nor where something is in another place than the cotangent's own
    parts = _expand_to_kernel_calls(call_text).parts
    if len(parts) != 1 or parts[0].raised != (SLOTS.index(OUT),):
        return None
    (part,) = parts
    same = part.point == (*range(len(SLOTS)),) and part.results == (*range(len(part.opened)),)
    return product_call_text(*(SLOTS[n] for n in part.opened)) if same else None


def _compute_by_sum_of_kernel_calls(call: FormCall) -> list[Tensor | None]:
    # None for a slot that is zero
    product = kernels_of(call.description).product_description
    empty = {n for n, dim in enumerate(product.dims) if not dim}

    def compute_product_or_gradient(
        raised_operands: tuple[int, ...], operand_values: Sequence[Any], computed_operands: tuple[int, ...]
    ) -> Sequence[Tensor]:
        # unweighted paths do not depend on what stands in the weights' place
        text = product.text_with_weighted_paths if SLOTS.index("w") in raised_operands else call.description
        names, tensors = tuple(SLOTS[n] for n in computed_operands), list(operand_values)
        g = tensors.pop() if names == (OUT,) else None  # its rows alone are needed
        nodes = call.nodes if g is None else g.shape[0]
        return forms.compute(
            call._replace(tensors=tensors, description=text, call=product_call_text(*names), nodes=nodes)
        )

    # no path reads an operand without numbers: a layer's second inputs
    parts = [part for part in _expand_to_kernel_calls(call.call).parts if empty.isdisjoint(part.raised)]
    return sum_call_parts(parts, call.tensors, len(call.slots.opened), compute_product_or_gradient, add_results)


register_operator(forms, "form")


# -- rows by owner -----------------------------------------------------------------------------------------------------


def _argsort_edges_by_node(
    index: Tensor, nodes: int, other_index: Tensor | None = None, other_nodes: int = 0
) -> Tensor:
    if other_index is None:
        return orders.sort_by_owner(index, nodes).packed
    return orders.sort_by_both_ends(other_index, index, other_nodes, nodes)


def _make_empty_edge_order(
    index: Tensor, nodes: int, other_index: Tensor | None = None, other_nodes: int = 0
) -> Tensor:
    more = 0 if other_index is None else other_nodes + 1 + other_index.shape[0]
    return index.new_empty(nodes + 1 + index.shape[0] + more, dtype=torch.int64)


define_operator_without_derivatives("order", _argsort_edges_by_node, _make_empty_edge_order)
merge_equal_operator_calls("order")
