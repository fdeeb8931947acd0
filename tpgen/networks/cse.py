"""Elimination of common subexpressions and dead code."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx, nn

from tpgen.emitter.graph_writer import make_hashable

_IN_PLACE_OPERATORS = {
    *("iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub"),
    *("itruediv", "ixor", "setitem"),
}
_PURE_HOMES = ("torch", "_operator", "math", "builtins", "tpgen", "e3nn")


def cse(graph: fx.Graph, module: nn.Module) -> int:
    """Merge equal pure calls and parameter reads in place; return the number of removed nodes.

    Nothing merges across a write into a tensor, or among the written tensor's ancestors.  Code outside torch, e3nn and
    tpgen counts as a write.
    """
    writers = {node for node in graph.nodes if _may_write_to_tensor(node, module)}
    written = _find_ancestor_nodes({source for node in writers for source in node.all_input_nodes})
    known: dict[Any, fx.Node] = {}
    removed = 0
    for node in list(graph.nodes):
        # another mode of autograd, say, changes the conditions under which what follows is computed
        if node in writers or (node.op == "call_function" and node.is_impure(impure_random=False)):
            known.clear()
        elif node not in written and _is_pure_call(node):
            key = (node.op, node.target, make_hashable(node.args), make_hashable(node.kwargs))
            first = known.setdefault(key, node)
            if first is not node:
                _add_module_paths_of_dropped_node(first, node)
                node.replace_all_uses_with(first)
                graph.erase_node(node)
                removed += 1
    return removed


def dce(graph: fx.Graph, module: nn.Module) -> None:
    """Remove unused nodes of inlined programs."""
    for node in reversed(list(graph.nodes)):
        inlined = "tpgen" in node.meta or node.op == "get_attr"
        if inlined and not node.users and _is_pure_call(node) and not _may_write_to_tensor(node, module):
            graph.erase_node(node)


def _add_module_paths_of_dropped_node(kept: fx.Node, dropped: fx.Node) -> None:
    # the node that stays says whose work it does as well
    paths = (*_module_paths(kept), *_module_paths(dropped))
    kept.meta["shared_by"] = tuple(dict.fromkeys(paths))


def _module_paths(node: fx.Node) -> tuple[str, ...]:
    return node.meta.get("shared_by", (node.meta.get("module_path", ""),))


def _find_ancestor_nodes(nodes: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return found


def _may_write_to_tensor(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return _is_module_of_unknown_code(type(called).__module__) or bool(getattr(called, "inplace", False))
    if node.op not in ("call_method", "call_function"):
        return False
    schema = getattr(node.target, "_schema", None)  # of an operator of a library
    mutable = schema is not None and schema.is_mutable
    if node.op == "call_function" and (mutable or _is_module_of_unknown_code(_module_of_called_function(node))):
        return True
    name = _name_of_called_function(node)
    if getattr(node.target, "__module__", None) == "_operator":  # where and_ and not_ write nothing
        return name in _IN_PLACE_OPERATORS
    in_place = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    return in_place or "out" in node.kwargs or bool(node.kwargs.get("inplace", False))


def _module_of_called_function(node: fx.Node) -> str:
    return getattr(node.target, "__module__", None) or "torch"


def _is_module_of_unknown_code(module_name: str) -> bool:
    return module_name.split(".")[0] not in _PURE_HOMES or module_name.startswith("torch.jit")


def _is_pure_call(node: fx.Node) -> bool:
    if node.op == "get_attr":
        return True
    if node.op == "call_method":
        return not _is_name_of_random_function(str(node.target))
    if node.op != "call_function" or "training" in node.kwargs or "dropout_p" in node.kwargs:
        return False
    return (
        not _is_module_of_unknown_code(_module_of_called_function(node))
        and not node.is_impure()
        and not _is_name_of_random_function(_name_of_called_function(node))
    )


def _name_of_called_function(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", "")


@cache
def _is_name_of_random_function(name: str) -> bool:
    if "dropout" in name or name in ("gumbel_softmax", "multi_head_attention_forward", "rrelu"):
        return True
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() and not name.startswith("__") else None
    if packet is None:
        return False
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in packet.overloads())
