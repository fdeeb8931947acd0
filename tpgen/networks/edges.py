"""Gathers and sums fused with products."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any, NamedTuple, cast

import torch
from torch import fx

import tpgen.kernels.runtime.ops  # noqa: F401  registers what graphs call
from tpgen.form.call import Slot
from tpgen.kernels.placement.nodes import takes_sums_of_nodes
from tpgen.kernels.rows import DESTINATIONS, EDGES, INDEX_DTYPES, RULES, RowIndex, RowRule
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.networks.simplify import insert_call, insert_index_from_begin, sizes_as_text

_WIDE = 16  # columns, from which on a sum of rows is torch's
_aten, _form = torch.ops.aten, torch.ops.tpgen.form.default


class GatherOrSum(NamedTuple):
    """Matched gather or sum: edge rows, node rows, index, number of nodes."""

    rows: fx.Node
    others: fx.Node
    at: fx.Node
    count: Any = None  # a number, or a node of the graph; that of the others' own, if none


class _RuleMatch(NamedTuple):
    """Row index for a product call, with the replaced gathers and sums."""

    by: RowIndex
    gathered: dict[Slot, fx.Node]
    summed: dict[Slot, fx.Node]


def fuse_gathers_and_sums(graph: fx.Graph) -> None:
    """Fuse gathers before and sums after product calls into the calls."""
    for node in graph.find_nodes(op="call_function", target=_form):
        call = FormCall.from_arguments(*node.args, **node.kwargs)
        if not kernels_of(call.description).description.any_level and not _is_summed_by_node(call):
            _fuse_gathers_and_sums_into_call(graph, node, call)
    graph.eliminate_dead_code()


def _is_summed_by_node(call: FormCall) -> bool:
    # whether a kernel of sums by node, which finds no rows of its inputs, computes a product's call
    rules, first = tuple(index.rule for index in call.indices), cast("Any", call.tensors[0])
    description: Any = kernels_of(call.description).description
    return rules == (DESTINATIONS,) and takes_sums_of_nodes(description.schedule(first.meta["val"].dtype), rules)


def write_wide_sums_as_library_calls(graph: fx.Graph) -> None:
    """Write sums of wide rows as scatters, which Inductor leaves to torch."""
    for node in list(graph.nodes):
        found = match_sum(node) if node.target in (_aten.index_add.default, _aten.index_put.default) else None
        if found is None or node.meta["val"].dim() != 2:
            continue
        columns = node.meta["val"].shape[1]
        if isinstance(columns, int) and columns >= _WIDE and found.at.meta["val"].dtype == torch.int64:
            with graph.inserting_before(node):
                at = found.at
                if node.target is _aten.index_put.default:
                    at = insert_index_from_begin(graph, at, node.args[0])
                column = insert_call(graph, _aten.unsqueeze.default, at, 1)
                index = insert_call(graph, _aten.expand.default, column, [-1, columns])
                scattered = insert_call(graph, _aten.scatter_add.default, node.args[0], 0, index, found.rows)
            node.replace_all_uses_with(scattered)
    graph.eliminate_dead_code()


def _fuse_gathers_and_sums_into_call(graph: fx.Graph, node: fx.Node, call: FormCall) -> None:
    known = {index.rule: index for index in call.indices}
    dtype = call.tensors[0].meta["val"].dtype  # type: ignore[attr-defined]
    taken = [rule for rule in EDGES if not kernels_of(call.description).unsupported_rules((rule,), dtype, "cpu")]
    found = [
        x for rule in taken if rule not in known if (x := _match_gathers_and_sums_of_rule(node, call, rule)) is not None
    ]
    if not found:
        return
    gathered = {slot: x for each in found for slot, x in each.gathered.items()}
    tensors: Any = [gathered.get(slot, x) for slot, x in zip(call.slots.given, call.tensors, strict=True)]
    known.update({each.by.rule: each.by for each in found})
    indices = [known[rule] for rule in RULES.values() if rule in known]
    with graph.inserting_before(_first_reader_of_result_values(node)):
        made = insert_call(graph, _form, *call._replace(tensors=tensors).with_indices(indices).to_arguments())
        results = [insert_call(graph, getitem, made, n) for n in range(len(call.slots.opened))]
    totals = {slot: total for each in found for slot, total in each.summed.items()}
    for user in list(node.users):
        place: Any = user.args[1]
        _redirect_row_count_and_dtype_reads(user, found[0].by.tensor, tensors[0])
        totals.get(call.slots.opened[place], user).replace_all_uses_with(results[place])


def _first_reader_of_result_values(node: fx.Node) -> fx.Node:
    # the first node that reads numbers of a call's results: where all that a sum needs is there
    users = (user for result in node.users for user in result.users if not reads_only_metadata(user))
    return min(users, default=node)


def _redirect_row_count_and_dtype_reads(result: fx.Node, row_source: Any, dtype_source: Any) -> None:
    # let who asks for the rows of a result, or its dtype, ask what has as many, and another tensor
    for user in list(result.users):
        if reads_only_metadata(user):
            user.args = (row_source if user.target is _aten.sym_size.int else dtype_source, *user.args[1:])


def reads_only_metadata(node: fx.Node) -> bool:
    """Whether a node reads a tensor's dtype or row count alone."""
    return node.target is _aten.new_zeros.default or bool(node.target is _aten.sym_size.int and node.args[1] == 0)


def _match_gathers_and_sums_of_rule(node: fx.Node, call: FormCall, rule: RowRule) -> _RuleMatch | None:
    # how a rule finds all rows of its operand in a call; None where it does not
    given: dict[Slot, Any] = {
        slot: match_gather(x)
        for slot, x in zip(call.slots.given, call.tensors, strict=True)
        if slot.operand == rule.operand
    }
    sums: dict[Slot, Any] = {
        slot: _match_only_sum(node, n) for n, slot in enumerate(call.slots.opened) if slot.operand == rule.operand
    }
    moved: list[Any] = [*given.values(), *sums.values()]
    if not moved or None in moved or len({x.at for x in moved}) > 1:
        return None
    index, count = moved[0].at, _node_count_if_rows_agree(given, sums)
    first = _first_reader_of_result_values(node)
    if (
        count is None
        or index.meta["val"].dtype not in rule.dtypes
        or any(_is_defined_after(x, first) for x in (index, count))
    ):
        return None
    wanted = RowIndex(rule, index, count)
    return _RuleMatch(
        wanted, {slot: x.others for slot, x in given.items()}, {slot: x.others for slot, x in sums.items()}
    )


def _node_count_if_rows_agree(gathers: dict[Slot, Any], sums: dict[Slot, Any]) -> Any:
    # how many rows the index points into, where no gathered tensor says so; None where not all agree
    sizes = {str(x.others.meta["val"].shape[0]) for x in (*gathers.values(), *sums.values())}
    if len(sizes) > 1:
        return None
    return 0 if gathers else next(x.count for x in sums.values())


def _is_defined_after(x: Any, node: fx.Node) -> bool:
    return isinstance(x, fx.Node) and not bool(x < node)


def match_gather(x: Any) -> GatherOrSum | None:
    """Match a gather of whole rows."""
    found = _GATHERS[x.target](x) if x.op == "call_function" and x.target in _GATHERS else None
    return found if found is not None and _is_match_of_whole_rows(found) else None


def match_sum(x: fx.Node) -> GatherOrSum | None:
    """Match a sum of whole rows by an index."""
    found = _SUMS[x.target](x) if x.op == "call_function" and x.target in _SUMS else None
    return found if found is not None and _is_match_of_whole_rows(found) else None


def _match_only_sum(node: fx.Node, result_number: int) -> GatherOrSum | None:
    # the only use of a result, where that is a sum; for its kind, or how many rows there are, others may ask too
    uses = [user for result in node.users if result.args[1] == result_number for user in result.users]
    reads = [user for user in uses if not reads_only_metadata(user)]
    (only,) = reads if len(reads) == 1 else (None,)
    return match_sum(only) if only is not None else None


def _is_match_of_whole_rows(match: GatherOrSum) -> bool:
    # whether the index moves each row once, with all of its numbers
    values = [node.meta["val"] for node in (match.at, match.rows, match.others)]
    index = values[0]
    if index.dtype not in INDEX_DTYPES or any(x.device.type != "cpu" for x in values):
        return False
    at, rows, others = map(sizes_as_text, (match.at, match.rows, match.others))
    return len(at) == 1 and len(others) >= 2 and rows == [*at, *others[1:]]


# -- how torch writes them ---------------------------------------------------------------------------------------------


def _is_first(axis: Any, x: Any) -> bool:
    return axis in (0, -x.meta["val"].dim())


def _match_gather_by_index(node: fx.Node) -> GatherOrSum | None:
    x, indices = node.args[:2]
    return GatherOrSum(node, x, indices[0]) if len(indices) == 1 else None  # type: ignore[arg-type,index]


def _match_gather_by_index_select(node: fx.Node) -> GatherOrSum | None:
    x, axis, index = node.args[:3]
    return GatherOrSum(node, x, index) if _is_first(axis, x) else None  # type: ignore[arg-type]


def _match_gather_by_torch_gather(node: fx.Node) -> GatherOrSum | None:
    x, axis, index = node.args[:3]
    column = _row_index_behind_expanded_index(index, node)
    return GatherOrSum(node, x, column) if _is_first(axis, x) and column is not None else None  # type: ignore[arg-type]


def _match_gather_by_embedding(node: fx.Node) -> GatherOrSum | None:
    table, index = node.args[:2]
    return GatherOrSum(node, table, index) if len(node.args) == 2 else None  # type: ignore[arg-type]


def _match_sum_into_zeros(node: fx.Node, zeros: Any, index: Any, rows: Any) -> GatherOrSum | None:
    count = _row_count_of_zeros_node(zeros)
    return None if count is None or index is None else GatherOrSum(rows, node, index, count)


def _match_sum_by_index_add(index_add: fx.Node) -> GatherOrSum | None:
    zeros, axis, index, rows = index_add.args
    return (
        _match_sum_into_zeros(index_add, zeros, index, rows) if _is_first(axis, rows) and not index_add.kwargs else None
    )


def _match_sum_by_scatter_add(scatter_add: fx.Node) -> GatherOrSum | None:
    zeros, axis, index, rows = scatter_add.args
    return (
        _match_sum_into_zeros(scatter_add, zeros, _row_index_behind_expanded_index(index, rows), rows)
        if _is_first(axis, rows)
        else None
    )


def _match_sum_by_index_put(node: fx.Node) -> GatherOrSum | None:
    zeros, indices, rows, adds = (*node.args, False)[:4]
    return _match_sum_into_zeros(node, zeros, indices[0], rows) if adds is True and len(indices) == 1 else None  # type: ignore[arg-type,index]


def _match_sum_by_embedding_gradient(node: fx.Node) -> GatherOrSum | None:
    rows, index, count, missing, scaled = node.args
    return None if scaled or missing != -1 else GatherOrSum(rows, node, index, count)  # type: ignore[arg-type]


_GATHERS: dict[Any, Callable[[fx.Node], GatherOrSum | None]] = {
    _aten.index.Tensor: _match_gather_by_index,
    _aten.index_select.default: _match_gather_by_index_select,
    _aten.gather.default: _match_gather_by_torch_gather,
    _aten.embedding.default: _match_gather_by_embedding,
}
_SUMS: dict[Any, Callable[[fx.Node], GatherOrSum | None]] = {
    _aten.index_add.default: _match_sum_by_index_add,
    _aten.scatter_add.default: _match_sum_by_scatter_add,
    _aten.index_put.default: _match_sum_by_index_put,
    _aten.embedding_dense_backward.default: _match_sum_by_embedding_gradient,
}


def _row_index_behind_expanded_index(index: Any, rows: Any) -> Any:
    # the index of which a matrix has a copy in each column, of as many columns as the rows
    if index.target is not _aten.expand.default or sizes_as_text(index) != sizes_as_text(rows):
        return None
    column = index.args[0]
    if column.target is _aten.unsqueeze.default and column.args[1] in (1, -1):
        return column.args[0]
    whole = column.target in (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)
    if whole and column.args[0].meta["val"].dim() == 1 and column.meta["val"].shape[1] == 1:
        return column.args[0]
    return None


def _row_count_of_zeros_node(node: Any) -> Any:
    # how many rows zeros have, as a number or a node; None where a tensor is something else
    if node.target is _aten.zeros.default:
        return node.args[0][0]
    if node.target is _aten.new_zeros.default:
        return node.args[1][0]
    if node.target is _aten.full.default and node.args[1] == 0:
        return node.args[0][0]
    return None
