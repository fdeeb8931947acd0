"""Calls of kernels in compiled programs: by names, in C++, with no Python between one and the next."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

import tpgen.kernels.runtime.ops  # noqa: F401  registers what programs call
from tpgen.errors import BackendError
from tpgen.form.call import Call
from tpgen.kernels.runtime.call import CALLS, FormCall, ProductCall, opening_text, slots_of
from tpgen.kernels.runtime.native.runtime import runtime
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.kernels.sweep.terms import SLOTS
from tpgen.remember import Shelf

_CALLS = {getattr(torch.ops.tpgen, name).default: call for name, call in CALLS.items()}
_products: Shelf[int, Kernels] = Shelf("products that programs call")
_forms: Shelf[int, tuple[Kernels, str, bool]] = Shelf("other forms that programs call")


def call_by_name(graph: fx.Graph) -> None:
    """Build the kernels of a graph, and let its nodes call them by name.

    Raises `BackendError` where there is no runtime in C++, and for a call without a kernel of its own.
    """
    for node in list(graph.nodes):
        if node.target in _CALLS:
            call = _CALLS[node.target](*node.args)
            if isinstance(call, FormCall) and not kernels_of(call.description).description.any_level:
                call = call.fixed() or call
            (_fixed if isinstance(call, ProductCall) else _listed)(graph, node, call)
    graph.eliminate_dead_code()


def _fixed(graph: fx.Graph, node: fx.Node, call: Any) -> None:
    """A call in a fixed number of arguments, which are nodes."""
    x1, x2, w, g, src, dst, text, mask, nodes, *_ = call
    name, value = _named_product(x1, text, mask, src is not None), node.meta["val"]
    single = isinstance(value, Tensor)
    with graph.inserting_before(node):
        made = graph.call_function(_operators().named_run.default, (x1, x2, w, name, mask, g, src, dst, nodes))
        found = graph.call_function(operator.getitem, (made, 0)) if single else made
    found.meta.update(node.meta)
    made.meta["val"] = [value] if single else value
    node.replace_all_uses_with(found)


def _listed(graph: fx.Graph, node: fx.Node, call: Any) -> None:
    """A call for each kernel, whose results stand in order."""
    kernels, given = kernels_of(call.description), call.tensors[0]
    assert isinstance(given, fx.Node)
    dtype, indexed = given.meta["val"].dtype, call.src is not None
    if kernels.expands(call._replace(tensors=[given.meta["val"]])):
        raise BackendError(
            f"call {call.call[:60]!r} has no kernel of its own: use fewer paths, or a mode that keeps copies"
        )
    found: list[fx.Node] = []
    with graph.inserting_before(node):
        tensors = [_as_memory(graph, x) for x in call.tensors]
        for part in kernels.signature(call.call, indexed).parts:
            name = kernels.named(str(part), dtype, indexed)
            _forms[name] = kernels, str(part), indexed
            made = graph.call_function(
                _operators().named_form.default, (tensors, call.elements, name, call.src, call.dst)
            )
            opened = [node.meta["val"][Call.parse(call.call).opened.index(slot)] for slot in part.opened]
            made.meta.update(node.meta, val=opened)
            for n, value in enumerate(opened):
                found.append(graph.call_function(operator.getitem, (made, n)))
                found[-1].meta.update(node.meta, val=value)
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(found[user.args[1]])  # type: ignore[index]


def _as_memory(graph: fx.Graph, x: Any) -> Any:
    """Rows seen as one row, as memory: then Inductor computes them as rows, by loops that it can vectorise.

    Inductor keeps the strides of what is read as memory.  The view stays beside it, so that rows in another order, of
    which there is no such view, are an error when the program is built.
    """
    if x.target is not torch.ops.aten.view.default or x.meta["val"].dim() != 2 or x.meta["val"].shape[0] != 1:
        return x
    rows = x.args[0]
    if rows.op != "call_function" or torch.Tag.pointwise not in getattr(rows.target, "tags", ()):
        return x
    width = graph.call_function(torch.ops.aten.sym_size.int, (x, 1))
    made = graph.call_function(torch.ops.aten.as_strided.default, (rows, [1, width], [width, 1]))
    made.meta["val"] = x.meta["val"]
    return made


def _named_product(x1: fx.Node, text: str, mask: int, indexed: bool) -> int:
    product, dtype, call = kernels_of(text), x1.meta["val"].dtype, Call.parse(opening_text(mask))
    if not product.description.live or product.widens(call, dtype, indexed, "cpu"):
        raise BackendError(f"a call in {dtype} has no kernel of its own: use float32 or float64")
    name = product.named(str(call), dtype, indexed)
    _products[name] = product
    return name


@cache
def _operators() -> Any:
    """The operators in C++, whose results' shapes are known from here on."""
    if runtime() is None:
        raise BackendError(
            "compiled programs call kernels by the runtime in C++, which is not there: unset TPGEN_NATIVE"
        )
    torch.library.register_fake("tpgen_native::named_run", _shapes)
    torch.library.register_fake("tpgen_native::named_form", _shapes_of_form)
    return torch.ops.tpgen_native


def _shapes(
    x1: Tensor,
    x2: Tensor,
    w: Tensor,
    name: int,
    mask: int,
    g: Tensor | None = None,
    src: Tensor | None = None,
    _dst: Tensor | None = None,
    nodes: int = 0,
) -> list[Tensor]:
    own = nodes if src is not None else x2.shape[0], _products[name].product.dims[3]
    shapes = (own if x is None else x.shape for x in (x1, x2, w, g))
    return [x1.new_empty(shape) for name, shape in zip(SLOTS, shapes, strict=True) if name in slots_of(mask)]


def _shapes_of_form(
    tensors: list[Tensor], index: Tensor | None, name: int, src: Tensor | None = None, dst: Tensor | None = None
) -> list[Tensor]:
    kernels, call, indexed = _forms[name]
    signature = kernels.signature(call, indexed)
    _, counts = signature.sizes(FormCall(tensors, src, dst, "", call, index))
    return [tensors[0].new_empty(shape) for shape in signature.shapes(tensors, counts)]
