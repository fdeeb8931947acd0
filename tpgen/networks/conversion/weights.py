"""Products of edges, postponed until code sums by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from tpgen.base._torch import is_tracing, saved_tensor_hooks, without_functions
from tpgen.kernels.rows import DESTINATIONS, EDGES
from tpgen.kernels.runtime.call import FORWARD, FormCall
from tpgen.kernels.runtime.forms import forms
from tpgen.networks.conversion.gathers import GatheredRows, get_source_of_postponed_rows, is_index_in_range
from tpgen.networks.conversion.late_weights import (
    WORTH_LATE,
    LateWeights,
    can_sum_before_last_layer,
    plan_sum_before_last_layer,
)
from tpgen.networks.conversion.postponed import (
    REST,
    Postponed,
    compute_if_postponed,
    count_down_to_zero,
    swap_tensors_if_possible,
)
from tpgen.networks.recording import ComputedInput, encode_size, recorded_program
from tpgen.networks.sizes import size_in_example
from tpgen.nn.autocast import is_autocasting
from tpgen.nn.plain_tensors import are_plain, is_traced

_Function = Callable[..., Tensor]

# Numbers of a product's rows from which on a sum of these by its kernel takes less time, without gradients and with.
WORTH_SUMMING = (1_500_000, 250_000)
_MOST = 0.7  # the share of nodes with rows up to which sums of the others, zeros, are left out


@dataclass(frozen=True)
class LastLayer:
    """Last layer of a net: ``multiply(h, *parameters)`` equals ``h @ matrix(*parameters)``.

    ``adds``: the matrix ends with a row of biases.  The last ``factors`` operands multiply results.
    """

    multiply: _Function
    matrix: _Function
    adds: bool = False
    factors: int = 0

    def __call__(self, h: Tensor, *operands: Tensor) -> Tensor:
        parameters, factors = _split_off_last_operands(self.factors, operands)
        return _multiply_rows_by_factors(self.multiply(h, *parameters), factors)


class _PostponedWeights(Postponed):
    """Weights of edges ``(edges, numel)``: postponed results of a last layer."""

    RULES: ClassVar[dict[Any, Callable[..., Any]]] = {}


class PostponedRows(Postponed):
    """Postponed products of edges ``(edges, out)``, maybe of postponed weights."""

    RULES: ClassVar[dict[Any, Callable[..., Any]]] = {}
    weights: Any

    def compute_values(self) -> Tensor:
        """Compute products now; the product postpones no call for a while."""
        product: Any = self.made.function
        product.program.rest = REST
        w = self._compute_weights_if_unwritten()
        return (
            super().compute_values()
            if w is None
            else self.made.call_in_recorded_state(partial(product.multiply_edges, w))
        )

    def _compute_weights_if_unwritten(self) -> Tensor | None:
        # those of the product, whose hooks run; None where somebody has written to them since
        product: Any = self.made.function
        w = self.weights
        if product.layer is _NO_LAYER:
            return w
        if isinstance(w, Postponed) and w.made.function is product.layer:
            w = w.become_plain_tensor()
        return None if isinstance(w, Postponed) or w._version else w

    def sum_by_node(self, nodes: Tensor, count: Any) -> Any:
        """Sums ``(count, out)`` of the rows by node; NotImplemented if computed rows are no slower."""
        if not self.made.state_is_unchanged:
            return NotImplemented
        sums: Any = self._sum_before_last_layer(nodes, count) if _are_weights_postponed(self.weights) else None
        sums = self._sum_products_by_node_in_kernel(nodes, count) if sums is None else sums
        self.used = sums is not NotImplemented
        return sums

    def _sum_before_last_layer(self, nodes: Tensor, count: Any) -> Tensor | None:
        product: Any = self.made.function
        hidden = self.made.operands[2].shape[1] + product.layer.adds
        program, source = recorded_program(), get_source_of_postponed_rows(self.made.operands[0])
        has_numbers = are_plain(source) or (program is not None and not program.traced)
        places, nodes, found = _renumber_nodes_with_edges(nodes, count, has_numbers)
        known = size_in_example(found)
        late = plan_sum_before_last_layer(product.program.plan, hidden)
        edges = size_in_example(nodes.shape[0])
        is_differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (source, *self.made.operands[1:]))
        if late is None or not late.is_sum_first_faster(edges, known, hidden, is_differentiated):
            return None
        sums = self.made.call_in_recorded_state(partial(product.sum_before_last_layer, late, nodes, found))
        return sums if places is None else sums.new_zeros(count, sums.shape[1]).index_add(0, places, sums)

    def _sum_products_by_node_in_kernel(self, nodes: Tensor, count: Any) -> Any:
        product: Any = self.made.function
        w = self._compute_weights_if_unwritten()
        if (
            w is None
            or not _runs_generated_kernel(product.program)
            or not are_plain(get_source_of_postponed_rows(self.made.operands[0]), w)
        ):
            return NotImplemented
        return self.made.call_in_recorded_state(partial(product.sum_by_node_in_kernel, w, nodes, count))


@dataclass(frozen=True)
class _EdgeProduct:
    """Products of edges with a last layer's weights."""

    program: Any
    layer: LastLayer  # as the weights are when the product is taken
    factors: int = 0  # of the rows of the product, the last operands

    def __call__(self, x: Tensor, y: Tensor, *operands: Tensor) -> Tensor:
        return self.multiply_edges(self.layer(*_split_off_last_operands(self.factors, operands)[0]), x, y, *operands)

    def multiply_edges(self, w: Tensor, x: Tensor, y: Tensor, *operands: Tensor) -> Tensor:
        """Tensor products of edges with weights ``w``, times factors among ``operands``."""
        return _multiply_rows_by_factors(
            self.program.forward(compute_if_postponed(x), y, w), _split_off_last_operands(self.factors, operands)[1]
        )

    def sum_by_node_in_kernel(
        self, w: Tensor, nodes: Tensor, count: int, x: Tensor, y: Tensor, *operands: Tensor
    ) -> Tensor:
        """Tensor products of edges, summed by node in one kernel call."""
        y = _multiply_rows_by_factors(y, _split_off_last_operands(self.factors, operands)[1])
        taken = x.get_source_and_index() if isinstance(x, GatheredRows) else None
        if taken is None:
            call = FormCall(
                (compute_if_postponed(x), y, w), (nodes,), self.program.kernel_text, FORWARD, (DESTINATIONS,), count
            )
        else:
            x, senders = taken
            call = FormCall((x, y, w), (senders, nodes), self.program.kernel_text, FORWARD, EDGES, count)
        return forms.compute(call)[0]

    def sum_before_last_layer(
        self, plans: LateWeights, nodes: Tensor, count: Any, x: Tensor, y: Tensor, h: Tensor, *operands: Tensor
    ) -> Tensor:
        """Tensor products of edges, summed by node before the last layer makes weights."""
        parameters, factors = _split_off_last_operands(self.layer.factors + self.factors, operands)
        h = torch.cat([h, h.new_ones(h.shape[0], 1)], 1) if self.layer.adds else h
        return plans.sum_by_node(
            compute_if_postponed(x),
            _multiply_rows_by_factors(y, factors),
            h,
            self.layer.matrix(*parameters),
            nodes,
            count,
        )


def _identity(w: Tensor) -> Tensor:
    return w


_NO_LAYER = LastLayer(_identity, _identity)  # of weights that no last layer makes


def _split_off_last_operands(count: int, operands: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    return operands[: len(operands) - count], operands[len(operands) - count :]


def _multiply_rows_by_factors(rows: Tensor, factors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.mul, factors, rows)


def _renumber_nodes_with_edges(
    node_of_edge: Tensor, node_count: Any, has_values: bool
) -> tuple[Tensor | None, Tensor, Any]:
    # the nodes that have rows, the place of each row's node among these, and their number; where most have, all
    found: Any = None
    if has_values and node_of_edge.numel() and is_index_in_range(node_of_edge, node_count):
        have = _find_which_nodes_have_edges(node_of_edge, node_count)
        found = _list_and_number_nodes(have, node_of_edge) if int(have.sum()) <= _MOST * node_count else None
    program = recorded_program()
    if program is not None:
        sources = node_of_edge, encode_size(node_count)
        found = program.get_or_compute("nodes with edges", lambda *_: found, sources, lambda _: _NODES_WITH_EDGES)
    return (None, node_of_edge, node_count) if found is None else (*found, found[0].shape[0])


def _find_which_nodes_have_edges(node_of_edge: Tensor, node_count: int) -> Tensor:
    return node_of_edge.new_zeros(node_count, dtype=torch.bool).index_fill_(0, node_of_edge, True)


def _list_and_number_nodes(have_edges: Tensor, node_of_edge: Tensor) -> list[Tensor]:
    return [have_edges.nonzero()[:, 0], (have_edges.cumsum(0) - 1).index_select(0, node_of_edge)]


def _list_and_renumber_nodes_with_edges(node_of_edge: Tensor, node_range: Tensor) -> list[Tensor] | None:
    if not is_index_in_range(node_of_edge, len(node_range)):
        return None
    return _list_and_number_nodes(_find_which_nodes_have_edges(node_of_edge, len(node_range)), node_of_edge)


_NODES_WITH_EDGES = ComputedInput(_list_and_renumber_nodes_with_edges, lambda *found: found)


def _are_weights_postponed(w: Any) -> bool:
    return isinstance(w, _PostponedWeights) and w.is_uncomputed


def _can_postpone_call_on(*tensors: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or is_autocasting(tensors[0].device):
        return False
    if len({x.dtype for x in tensors}) > 1 or is_tracing() or any(x.is_inference() for x in tensors):
        return False
    return are_plain(*tensors) or all(map(is_traced, tensors))


def compute_or_postpone_weights(last_layer: LastLayer, h: Tensor, *parameters: Tensor) -> Tensor:
    """Weights of edges from a last layer, postponed if that may save time."""
    if h.dim() == 2 and _can_postpone_call_on(h, *parameters):
        edges, hidden = h.shape
        width = parameters[0].numel() // max(hidden, 1)  # of a matrix, whichever way it lies
        known = size_in_example(edges)
        if can_sum_before_last_layer(h) and (known is None or known * hidden * width >= WORTH_LATE):
            return _PostponedWeights.make_postponed(last_layer, (h, *parameters), (edges, width))
    return last_layer(h, *parameters)


def multiply_or_postpone_edges(product_module: Any, x: Tensor, y: Tensor, w: Any, hooked: bool = False) -> Tensor:
    """Tensor products of edges, postponed if a sum by node may follow, unless ``hooked``."""
    of_rows, source = not hooked and _are_matrices_of_equal_length(x, y, w), get_source_of_postponed_rows(x)
    if (
        of_rows
        and _are_weights_postponed(w)
        and w.made.state_is_unchanged
        and _can_postpone_call_on(source, y, w.made.operands[0])
    ):
        return _postpone_edge_products(
            product_module, x, y, w, _EdgeProduct(product_module, w.made.function), w.made.operands
        )
    w = compute_if_postponed(w)
    if of_rows and _is_worth_postponing_products(product_module, source, x, y, w):
        return _postpone_edge_products(product_module, x, y, w, _EdgeProduct(product_module, _NO_LAYER), (w,))
    return product_module.forward(compute_if_postponed(x), y, w)


def _is_worth_postponing_products(product_module: Any, source: Tensor, x: Tensor, y: Tensor, w: Tensor) -> bool:
    # guards of torch.compile ask irreps what they do not tell; a checkpoint must save the same when it runs again
    if torch.compiler.is_compiling() or saved_tensor_hooks(True) is not None:
        return False
    tracked = torch.is_grad_enabled() and (x.requires_grad or y.requires_grad or w.requires_grad)
    rows = size_in_example(x.shape[0])
    if rows is not None and rows * product_module.plan.irreps_out.dim < WORTH_SUMMING[tracked]:
        return False
    if not are_plain(source, y, w) or not _can_postpone_call_on(source, y, w):
        return False
    if not _runs_generated_kernel(product_module) or not product_module.are_valid_rows(x, y, w):
        return False
    return count_down_to_zero(product_module, "rest")


def _are_matrices_of_equal_length(x: Any, y: Any, w: Any) -> bool:
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and isinstance(w, Tensor)):  # as fx traces them
        return False
    return x.dim() == y.dim() == w.dim() == 2 and x.shape[0] == y.shape[0] == w.shape[0]


def _postpone_edge_products(
    product_module: Any, x: Tensor, y: Tensor, w: Tensor, product: _EdgeProduct, weight_operands: Sequence[Tensor]
) -> Tensor:
    rows = PostponedRows.make_postponed(
        product, (x, y, *weight_operands), (x.shape[0], product_module.plan.irreps_out.dim)
    )
    rows.weights = w
    return rows


def _runs_generated_kernel(product_module: Any) -> bool:
    return product_module.choice.strategy == "kernel" and bool(product_module.kernel_text)


# -- what networks do with them ----------------------------------------------------------------------------------------


def _multiply_postponed_by_factor(input: Any, other: Any, *, out: Any = None) -> Any:
    made: Any
    made, other = (input, other) if isinstance(input, Postponed) and input.is_uncomputed else (other, input)
    factor = _convert_factor_to_column(made, other) if out is None else None
    if factor is None:
        return NotImplemented
    function: Any = made.made.function
    cls: Any = type(made)
    scaled = replace(function, factors=function.factors + 1)
    found = cls.make_postponed(scaled, (*made.made.operands, factor), made.shape)
    found.made.within, made.used = made.made.within, True
    if cls is PostponedRows:
        found.weights = made.weights
    return found


def _divide_postponed_by_factor(input: Any, other: Any, *, rounding_mode: Any = None, out: Any = None) -> Any:
    by_zero = isinstance(other, (int, float)) and other == 0
    if not isinstance(input, Postponed) or isinstance(other, Postponed) or by_zero or rounding_mode is not None:
        return NotImplemented
    return _multiply_postponed_by_factor(input, 1 / other, out=out)


def _multiply_postponed_in_place(postponed: Any, other: Any) -> Any:
    # the tensor is another function from now on; products that were taken before keep theirs
    found = (
        _multiply_postponed_by_factor(postponed, other)
        if isinstance(postponed, Postponed) and postponed.is_uncomputed
        else NotImplemented
    )
    if found is not NotImplemented:
        with without_functions():
            return postponed if swap_tensors_if_possible(postponed, found) else NotImplemented
    return found


def _convert_factor_to_column(postponed: Any, factor: Any) -> Tensor | None:
    # what rows that wait are multiplied by, as a column: a number, or one for each row; None for another factor
    if not postponed.made.state_is_unchanged:
        return None
    if isinstance(factor, (int, float)):
        return postponed.made.operands[0].new_full((1, 1), factor)
    if not isinstance(factor, Tensor) or isinstance(factor, Postponed):
        return None
    if not _can_postpone_call_on(factor, get_source_of_postponed_rows(postponed.made.operands[0])):
        return None
    if factor.dim() == 0:
        return factor.reshape(1, 1).clone()
    return factor.clone() if factor.shape == (postponed.shape[0], 1) else None


def _scatter_add_postponed_rows(input: Any, dim: int, index: Any, src: Any, *, in_place: bool, out: Any = None) -> Any:
    rows = isinstance(src, PostponedRows) and not isinstance(input, Postponed) and dim in (0, -2) and out is None
    if not rows or index.dim() != 2 or index.stride(1) != 0 or index.shape != src.shape:
        return NotImplemented
    return _add_sums_of_postponed_rows(input, index.select(1, 0), src, in_place)


def _index_add_postponed_rows(
    input: Any, dim: int, index: Any, source: Any, *, in_place: bool, alpha: float = 1, out: Any = None
) -> Any:
    rows = isinstance(source, PostponedRows) and not isinstance(input, Postponed) and dim in (0, -2) and alpha == 1
    return (
        _add_sums_of_postponed_rows(input, index, source, in_place)
        if rows and index.dim() == 1 and out is None
        else NotImplemented
    )


def _add_sums_of_postponed_rows(out: Tensor, nodes: Tensor, rows: PostponedRows, in_place: bool) -> Any:
    if out.dim() != 2 or out.shape[1] != rows.shape[1] or out.dtype != rows.dtype or nodes.dtype != torch.int64:
        return NotImplemented
    sums = rows.sum_by_node(nodes, out.shape[0])
    if sums is NotImplemented:
        return sums
    return out.add_(sums) if in_place else out + sums


for _class in (_PostponedWeights, PostponedRows):
    _class.RULES.update(
        dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _multiply_postponed_by_factor)
    )
    _class.RULES.update(dict.fromkeys((torch.div, Tensor.div, Tensor.__truediv__), _divide_postponed_by_factor))
    _class.RULES.update(dict.fromkeys((Tensor.mul_, Tensor.__imul__), _multiply_postponed_in_place))
for _add, _takes_it in ((_scatter_add_postponed_rows, "scatter_add"), (_index_add_postponed_rows, "index_add")):
    PostponedRows.RULES[getattr(torch, _takes_it)] = partial(_add, in_place=False)
    PostponedRows.RULES[getattr(Tensor, _takes_it)] = partial(_add, in_place=False)
    PostponedRows.RULES[getattr(Tensor, _takes_it + "_")] = partial(_add, in_place=True)
