"""Fuse gathers and scatter sums of a traced graph into product kernels.

``product(x[src], y, w)`` summed to rows ``dst`` becomes one kernel call on x, which stores no row of an edge; gradients
alike.  `_GATHERS` and `_SUMS` list the PyTorch operators.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import fx

from tpgen.form.call import Slot
from tpgen.kernels.rows import EDGES, INDEX_DTYPES, RULES, RowIndex, RowRule
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.networks.simplify import insert, sizes_as_text

_aten, _form = torch.ops.aten, torch.ops.tpgen.form.default


class _Moved(NamedTuple):
    """A gather or a sum: rows of edges, rows of nodes, the index between both, and the number of nodes."""

    rows: fx.Node
    others: fx.Node
    at: fx.Node
    count: Any = None  # a number, or a node of the graph; that of the others' own, if none


class _Found(NamedTuple):
    """A row rule for a call, with the gathers and sums that the rule replaces, by slot."""

    by: RowIndex
    gathered: dict[Slot, fx.Node]
    summed: dict[Slot, fx.Node]


def find_rows(graph: fx.Graph) -> None:
    """Fuse gathers before and sums after product calls into the calls, as row rules."""
    for node in graph.find_nodes(op="call_function", target=_form):
        call = FormCall.read(*node.args, **node.kwargs)
        if not kernels_of(call.description).description.any_level:
            _find(graph, node, call)
    graph.eliminate_dead_code()


def _find(graph: fx.Graph, node: fx.Node, call: FormCall) -> None:
    known = {index.rule: index for index in call.indices}
    dtype = call.tensors[0].meta["val"].dtype  # type: ignore[attr-defined]
    taken = [rule for rule in EDGES if not kernels_of(call.description).untaken((rule,), dtype, "cpu")]
    found = [x for rule in taken if rule not in known if (x := _by_rule(node, call, rule)) is not None]
    if not found:
        return
    gathered = {slot: x for each in found for slot, x in each.gathered.items()}
    tensors: Any = [gathered.get(slot, x) for slot, x in zip(call.slots.given, call.tensors, strict=True)]
    known.update({each.by.rule: each.by for each in found})
    indices = [known[rule] for rule in RULES.values() if rule in known]
    with graph.inserting_before(_first_use(node)):
        made = insert(graph, _form, *call._replace(tensors=tensors).found_by(indices).arguments())
        results = [insert(graph, getitem, made, n) for n in range(len(call.slots.opened))]
    totals = {slot: total for each in found for slot, total in each.summed.items()}
    for user in list(node.users):
        place: Any = user.args[1]
        _ask_others(user, found[0].by.tensor, tensors[0])
        totals.get(call.slots.opened[place], user).replace_all_uses_with(results[place])


def _first_use(node: fx.Node) -> fx.Node:
    # the first node that reads numbers of a call's results: where all that a sum needs is there
    users = (user for result in node.users for user in result.users if not _asks_for_kind(user))
    return min(users, default=node)


def _ask_others(result: fx.Node, index: Any, like: Any) -> None:
    # let who asks for the rows of a result, or its dtype, ask what has as many, and another tensor
    for user in list(result.users):
        if _asks_for_kind(user):
            user.args = (index if user.target is _aten.sym_size.int else like, *user.args[1:])


def _asks_for_kind(node: fx.Node) -> bool:
    # whether a node asks for the dtype of a tensor, or how many rows there are, and reads no numbers
    return node.target is _aten.new_zeros.default or bool(node.target is _aten.sym_size.int and node.args[1] == 0)


def _by_rule(node: fx.Node, call: FormCall, rule: RowRule) -> _Found | None:
    # how a rule finds all rows of its operand in a call; None where it does not
    given: dict[Slot, Any] = {
        slot: _gathered(x)
        for slot, x in zip(call.slots.given, call.tensors, strict=True)
        if slot.operand == rule.operand
    }
    sums: dict[Slot, Any] = {
        slot: _summed(node, n) for n, slot in enumerate(call.slots.opened) if slot.operand == rule.operand
    }
    moved: list[Any] = [*given.values(), *sums.values()]
    if not moved or None in moved or len({x.at for x in moved}) > 1:
        return None
    index, count = moved[0].at, _count(given, sums)
    first = _first_use(node)
    if count is None or index.meta["val"].dtype not in rule.dtypes or any(_is_behind(x, first) for x in (index, count)):
        return None
    wanted = RowIndex(rule, index, count)
    return _Found(wanted, {slot: x.others for slot, x in given.items()}, {slot: x.others for slot, x in sums.items()})


def _count(given: dict[Slot, Any], sums: dict[Slot, Any]) -> Any:
    # how many rows the index points into, where no tensor that is given says so; None where not all agree
    sizes = {str(x.others.meta["val"].shape[0]) for x in (*given.values(), *sums.values())}
    if len(sizes) > 1:
        return None
    return 0 if given else next(x.count for x in sums.values())


def _is_behind(x: Any, node: fx.Node) -> bool:
    return isinstance(x, fx.Node) and not bool(x < node)


def _gathered(x: Any) -> _Moved | None:
    found = _GATHERS[x.target](x) if x.op == "call_function" and x.target in _GATHERS else None
    return found if found is not None and _is_whole(found) else None


def _summed(node: fx.Node, place: int) -> _Moved | None:
    # the only use of a result, where that is a sum; for its kind, or how many rows there are, others may ask too
    uses = [user for result in node.users if result.args[1] == place for user in result.users]
    reads = [user for user in uses if not _asks_for_kind(user)]
    (only,) = reads if len(reads) == 1 else (None,)
    found = _SUMS[only.target](only) if only is not None and only.target in _SUMS else None
    return found if found is not None and _is_whole(found) else None


def _is_whole(found: _Moved) -> bool:
    # whether the index moves each row once, with all of its numbers
    values = [node.meta["val"] for node in (found.at, found.rows, found.others)]
    index = values[0]
    if index.dtype not in INDEX_DTYPES or any(x.device.type != "cpu" for x in values):
        return False
    at, rows, others = map(sizes_as_text, (found.at, found.rows, found.others))
    return len(at) == 1 and len(others) == 2 and rows == [*at, others[1]]


# -- how torch writes them ---------------------------------------------------------------------------------------------


def _by_index(node: fx.Node) -> _Moved | None:
    x, indices = node.args[:2]
    return _Moved(node, x, indices[0]) if len(indices) == 1 else None  # type: ignore[arg-type,index]


def _by_select(node: fx.Node) -> _Moved | None:
    x, axis, index = node.args[:3]
    return _Moved(node, x, index) if axis == 0 else None  # type: ignore[arg-type]


def _by_gather(node: fx.Node) -> _Moved | None:
    x, axis, index = node.args[:3]
    column = _column(index, node)
    return _Moved(node, x, column) if axis == 0 and column is not None else None  # type: ignore[arg-type]


def _by_table(node: fx.Node) -> _Moved | None:
    table, index = node.args[:2]
    return _Moved(node, table, index) if len(node.args) == 2 else None  # type: ignore[arg-type]


def _into(node: fx.Node, zeros: Any, index: Any, rows: Any) -> _Moved | None:
    count = _rows_of_zeros(zeros)
    return None if count is None or index is None else _Moved(rows, node, index, count)


def _by_index_add(node: fx.Node) -> _Moved | None:
    zeros, axis, index, rows = node.args
    return _into(node, zeros, index, rows) if axis == 0 and not node.kwargs else None


def _by_scatter_add(node: fx.Node) -> _Moved | None:
    zeros, axis, index, rows = node.args
    return _into(node, zeros, _column(index, rows), rows) if axis == 0 else None


def _by_index_put(node: fx.Node) -> _Moved | None:
    zeros, indices, rows, adds = (*node.args, False)[:4]
    return _into(node, zeros, indices[0], rows) if adds is True and len(indices) == 1 else None  # type: ignore[arg-type,index]


def _by_table_gradient(node: fx.Node) -> _Moved | None:
    rows, index, count, missing, scaled = node.args
    return None if scaled or missing != -1 else _Moved(rows, node, index, count)  # type: ignore[arg-type]


_GATHERS: dict[Any, Callable[[fx.Node], _Moved | None]] = {
    _aten.index.Tensor: _by_index,
    _aten.index_select.default: _by_select,
    _aten.gather.default: _by_gather,
    _aten.embedding.default: _by_table,
}
_SUMS: dict[Any, Callable[[fx.Node], _Moved | None]] = {
    _aten.index_add.default: _by_index_add,
    _aten.scatter_add.default: _by_scatter_add,
    _aten.index_put.default: _by_index_put,
    _aten.embedding_dense_backward.default: _by_table_gradient,
}


def _column(index: Any, rows: Any) -> Any:
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


def _rows_of_zeros(node: Any) -> Any:
    # how many rows zeros have, as a number or a node; None where a tensor is something else
    if node.target is _aten.zeros.default:
        return node.args[0][0]
    if node.target is _aten.new_zeros.default:
        return node.args[1][0]
    if node.target is _aten.full.default and node.args[1] == 0:
        return node.args[0][0]
    return None
