"""Kernel calls without Python."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, fx

import tpgen.kernels.runtime.ops  # noqa: F401  registers what programs call
from tpgen.base.errors import BackendError
from tpgen.base.remember import Shelf
from tpgen.form.call import Slot
from tpgen.kernels.rows import RowRules, find_index, join_rule_names
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.native.runtime import load_cpp_runtime
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.kernels.runtime.signature import CallSignature
from tpgen.networks.simplify import insert_call
from tpgen.planner.plan import OUT

_named: Shelf[int, tuple[Kernels, str, RowRules]] = Shelf("calls of programs by name")


def call_kernels_by_number(graph: fx.Graph) -> None:
    """Build a graph's kernels, and let C++ call the kernels by number.

    Raises `BackendError` without the C++ runtime or a kernel.
    """
    for node in list(graph.nodes):
        if node.target is torch.ops.tpgen.form.default:
            _replace_by_numbered_kernel_calls(graph, node, FormCall.from_arguments(*node.args, **node.kwargs))
    graph.eliminate_dead_code()


def _replace_by_numbered_kernel_calls(graph: fx.Graph, node: fx.Node, call: FormCall) -> None:
    signature, names = _build_numbered_kernels(call)
    found, values = list[fx.Node](), dict(zip(signature.call.opened, node.meta["val"], strict=True))
    indices = [index.tensor for index in call.indices if index.tensor is not None]
    with graph.inserting_before(node):
        given = {
            slot: _replace_row_view_by_strides(graph, x)
            for slot, x in zip(signature.call.given, call.tensors, strict=True)
        }
        g = given.get(Slot(OUT)) if find_index(call.indices, OUT) else None
        nodes = call.nodes if g is None else insert_call(graph, torch.ops.aten.sym_size.int, g, 0)
        for part, name in zip(signature.parts, names, strict=True):
            arguments = ([*(given[slot] for slot in part.given), *indices], name, nodes)
            made = graph.call_function(_get_operator_that_calls_kernel_by_number(), arguments)
            made.meta.update(node.meta, val=[values[slot] for slot in part.opened])
            for n, slot in enumerate(part.opened):
                found.append(graph.call_function(operator.getitem, (made, n)))
                found[-1].meta.update(node.meta, val=values[slot])
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(found[user.args[1]])  # type: ignore[index]


def _build_numbered_kernels(call: FormCall) -> tuple[CallSignature, list[int]]:
    kernels, first = kernels_of(call.description), cast(fx.Node, call.tensors[0]).meta["val"]
    if kernels.lacks_own_kernel(call._replace(tensors=[first])):
        raise BackendError(
            f"call {call.call[:60]!r} has no kernel of its own: use fewer paths, or a mode that keeps copies"
        )
    signature = kernels.signature(call.call, call.rules)
    if not kernels.description.has_live_paths:
        raise BackendError(f"call {call.call[:60]!r} has no path that contributes: leave the product out")
    if kernels.computes_in_float32(signature.call, first.dtype, call.rules, "cpu"):
        raise BackendError(f"a call in {first.dtype} has no kernel of its own: use float32 or float64")
    names = []
    for part in map(str, signature.parts):
        names.append(kernels.build_kernel_with_number(part, first.dtype, call.rules))
        _named[names[-1]] = kernels, part, call.rules
    return signature, names


def _replace_row_view_by_strides(graph: fx.Graph, x: Any) -> Any:
    if x.target is not torch.ops.aten.view.default or x.meta["val"].dim() != 2 or x.meta["val"].shape[0] != 1:
        return x
    rows = x.args[0]
    if rows.op != "call_function" or torch.Tag.pointwise not in getattr(rows.target, "tags", ()):
        return x
    width = graph.call_function(torch.ops.aten.sym_size.int, (x, 1))
    made = graph.call_function(torch.ops.aten.as_strided.default, (rows, [1, width], [width, 1]))
    made.meta["val"] = x.meta["val"]
    return made


@cache
def _get_operator_that_calls_kernel_by_number() -> Any:
    # the operator in C++, whose results' shapes are known from here on
    if load_cpp_runtime() is None:
        raise BackendError(
            "compiled programs call kernels by the runtime in C++, which is not there: unset TPGEN_NATIVE"
        )
    operator = torch.ops.tpgen_native.form.named
    torch.library.register_fake(operator, _fake_results_of_numbered_kernel)
    return operator


def _fake_results_of_numbered_kernel(
    tensors: list[Tensor], name: int, nodes: int = 0, _sorted: int = -1, _stream: int = -1
) -> list[Tensor]:
    kernels, text, rules = _named[name]
    signature = kernels.signature(text, rules)
    count = len(signature.given)
    counts = signature.measure_axes(
        FormCall.from_arguments(tensors[:count], tensors[count:], "", text, join_rule_names(rules), nodes)
    )
    return [tensors[0].new_empty(shape) for shape in signature.result_shapes(tensors, counts)]
