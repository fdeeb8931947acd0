"""Calls that the runtime in C++ launches on GPUs, and what stays in Python of them: to remember orders of rows.

Python launches a kernel once, which loads it, and enters it here.  Rows of edges and of elements are sorted, and their
indices checked, where a call with new ones is made: by Python's launch.  Calls with known ones are launched in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tpgen.form.call import Call as Slots
from tpgen.kernels.arguments import Edges
from tpgen.kernels.runtime.call import ELEMENTS, FormCall, ProductCall, sweeps_of
from tpgen.kernels.runtime.native.runtime import NOTHING, Runtime
from tpgen.kernels.runtime.signature import CallSignature, native_fields


class Launched:
    """The calls of one form on GPUs."""

    def __init__(self, native: Runtime) -> None:
        self._native = native
        # kernels that take edges sorted, by the type of device and the mask
        self._sorting: dict[tuple[str, int], Any] = {}
        # calls of a polynomial: numbers, kernels, and the first of the tensors that count elements
        self._forms: dict[tuple[str, torch.dtype, str], tuple[int, Any, int]] = {}

    def enter_sorting(self, kernel: Any, like: Tensor, mask: int) -> None:
        """Remember a kernel that the runtime knows, which takes edges sorted."""
        self._sorting[like.device.type, mask] = kernel

    def enter_form(self, text: str, call: Slots, signature: CallSignature, kernel: Any, like: Tensor) -> None:
        """Give the kernels of a polynomial's call to the runtime."""
        number = self._native.add_form(like.dtype, 0, False, *native_fields(signature), f"{text} {call}")
        if number != NOTHING:
            self._native.set_form_launch(number, *kernel.launch(like))
            counted = [shape.counts for _, shape in signature.given]
            place = counted.index(ELEMENTS) if ELEMENTS in counted else 0
            self._forms[str(call), like.dtype, like.device.type] = (number, kernel, place)

    def on_edges(self, call: ProductCall, number: int, check: bool) -> Sequence[Tensor] | None:
        """The open slots of a product on edges; nothing where they are new, None where it is not launched here."""
        x1, x2, w, g, src, dst, _, mask, nodes = call
        kernels = [k for one in sweeps_of(mask) if (k := self._sorting.get((x1.device.type, one)))]
        if src is None or dst is None or len(kernels) < len(sweeps_of(mask)):
            return None
        if not x1.dim() or (g is not None and not g.dim()):
            return ()
        edges = Edges(src, dst, x1.shape[0], nodes if g is None else g.shape[0], check)
        found = [kernel.recall(edges, x1) for kernel in kernels]
        if any(one is None for one in found):
            return ()
        orders = {one.owner: one.order for one in found}
        ends = found[0].src, found[0].dst
        return self._native.sorted(x1, x2, w, number, mask, g, *ends, nodes, orders.get("x1"), orders.get("out"))

    def of_form(self, call: FormCall) -> Sequence[Tensor] | None:
        """The open slots of a polynomial's call; nothing where its index is new, None where it is not launched here."""
        tensors, index = call.tensors, call.elements
        known = self._forms.get((call.call, tensors[0].dtype, tensors[0].device.type)) if tensors else None
        if known is None:
            return None
        number, kernel, place = known
        if index is None:
            return self._native.form(tensors, None, number)
        order = kernel.recall(index, tensors[place].shape[0], tensors[0]) if tensors[place].dim() else None
        return self._native.sorted_form(tensors, index, number, *order) if order else ()
