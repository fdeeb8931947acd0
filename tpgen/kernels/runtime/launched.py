"""Calls that the runtime in C++ launches on GPUs, and what stays in Python of them: to remember orders of rows.

Python launches a kernel once, which loads it, and enters it here.  Rows of edges and of elements are sorted, and their
indices checked, where a call with new ones is made: by Python's launch.  Calls with known ones are launched in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from tpgen.form.call import Call as Slots
from tpgen.kernels.arguments import Edges
from tpgen.kernels.runtime.call import ELEMENTS, FormCall, ProductCall, sweeps_of
from tpgen.kernels.runtime.native.runtime import Runtime
from tpgen.kernels.runtime.signature import CallSignature

_CALLS = 32  # on parts of the same tensors, at most


class _Seen(NamedTuple):
    """Calls on edges whose ends are parts of two tensors, or on elements that are of one, in these versions."""

    one: ref[Tensor]
    other: ref[Tensor]
    versions: tuple[int, int]
    # by rows and parts: ends in int64 where they are copies, the orders, and the stream to which these are known
    known: dict[tuple, tuple]


class Launched:
    """The calls of one form on GPUs."""

    def __init__(self, native: Runtime) -> None:
        self._native = native
        # kernels that take edges sorted, by the type of device and the mask
        self._sorting: dict[tuple[str, int], Any] = {}
        # rows of calls that were launched, by the tensors that both ends of edges, or their elements, are parts of
        self._seen: dict[tuple[int, int], _Seen] = {}
        # calls of a polynomial: numbers, kernels, and the first of the tensors that count elements
        self._forms: dict[tuple[str, torch.dtype, int], tuple[int, Any, int]] = {}

    def enter_sorting(self, kernel: Any, like: Tensor, mask: int) -> None:
        """Remember a kernel that the runtime knows, which takes edges sorted."""
        self._sorting[like.device.type, mask] = kernel

    def enter_form(self, number: int, call: Slots, signature: CallSignature, kernel: Any, like: Tensor) -> None:
        """Remember a polynomial's call that the runtime knows, with what orders its rows."""
        counted = [shape.counts for _, shape in signature.given]
        place = counted.index(ELEMENTS) if ELEMENTS in counted else 0
        self._forms[str(call), like.dtype, like.get_device()] = (number, kernel, place)

    def on_edges(self, call: ProductCall, number: int, check: bool) -> Sequence[Tensor] | None:
        """The open slots of a product on edges; nothing where they are new, None where it is not launched here.

        Edges of a call before are found again in this one frame of Python: fifty take as long as the launch.
        """
        x1, x2, w, g, src, dst, _, mask, nodes, *given = call
        if src is None or dst is None:
            return None
        if src.layout is not torch.strided or dst.layout is not torch.strided:
            return ()
        one, other = src if src._base is None else src._base, dst if dst._base is None else dst._base
        wholes, rows = (id(one), id(other)), (mask, nodes, x1.shape, None if g is None else g.shape)
        parts = src.shape, src.stride(), src.storage_offset(), src.dtype, dst.stride(), dst.storage_offset(), dst.dtype
        seen = self._seen.get(wholes)
        if given == [None, None] and seen is not None and seen.one() is one and seen.other() is other:
            known = seen.known.get((rows, parts))
            if known is not None and seen.versions == (one._version, other._version):
                wide_src, wide_dst, *orders = known
                ends = src if wide_src is None else wide_src, dst if wide_dst is None else wide_dst
                made = self._native.sorted(x1, x2, w, number, mask, g, *ends, nodes, *orders)
                if made:
                    return made
        return self._on_known_edges(call, number, check, (one, other), (rows, parts))

    def _on_known_edges(
        self, call: ProductCall, number: int, check: bool, wholes: tuple[Tensor, Tensor], key: tuple
    ) -> Sequence[Tensor] | None:
        """Launch a call by what kernels know of each end of its edges; remember that where it stays known."""
        x1, x2, w, g, src, dst, _, mask, nodes, *given = call
        kernels = [k for one in sweeps_of(mask) if (k := self._sorting.get((x1.device.type, one)))]
        if src is None or dst is None or len(kernels) < len(sweeps_of(mask)):
            return None
        if not x1.dim() or (g is not None and not g.dim()):
            return ()
        edges = Edges(src, dst, x1.shape[0], nodes if g is None else g.shape[0], check, given[0], given[1])
        found = [known for kernel in kernels if (known := kernel.recall(edges, x1))]
        if len(found) < len(kernels):
            return ()
        ends, stream = found[0][:2], found[0].stream
        orders = [next((x for x in by if x is not None), None) for by in zip(*(k[2:4] for k in found), strict=True)]
        made = self._native.sorted(x1, x2, w, number, mask, g, *ends, nodes, *orders)
        if made and stream is not None and given == [None, None]:
            wide = [None if x is given else x for x, given in zip(ends, (src, dst), strict=True)]
            self._remember(wholes, key, (*wide, *orders, stream))
        return made

    def _remember(self, wholes: tuple[Tensor, Tensor], key: tuple, known: tuple) -> None:
        """Keep what is known of edges as long as their tensors live and nobody writes to them."""
        place, versions = (id(wholes[0]), id(wholes[1])), (wholes[0]._version, wholes[1]._version)
        seen = self._seen.get(place)
        if seen is None or seen.versions != versions or seen.one() is not wholes[0] or seen.other() is not wholes[1]:
            forget = partial(self._seen.pop, place)  # which is called with the reference, and returns it
            self._seen[place] = seen = _Seen(ref(wholes[0], forget), ref(wholes[1], forget), versions, {})
        if len(seen.known) >= _CALLS:
            seen.known.clear()
        seen.known[key] = known

    def of_form(self, call: FormCall) -> Sequence[Tensor] | None:
        """The open slots of a polynomial's call; nothing where its index is new, None where it is not launched here.

        An index of a call before is found again in this one frame of Python, as edges are.
        """
        tensors, index = call.tensors, call.elements
        entered = self._forms.get((call.call, tensors[0].dtype, tensors[0].get_device())) if tensors else None
        if entered is None:
            return None
        if index is None:
            return self._native.form(tensors, None, entered[0])
        whole = index._base
        if whole is None:
            whole = index
        place = id(whole)
        seen = self._seen.get((place, place))
        if seen is not None and seen.one() is whole and seen.versions[0] == whole._version:
            # of how many elements, and in int64, is said by the size of the order, which C++ compares
            known = seen.known.get((index.shape, index.stride(), index.storage_offset()))
            if known is not None:
                made = self._native.sorted_form(tensors, index, entered[0], *known)
                if made:
                    return made
        return self._on_known_elements(tensors, index, entered, whole)

    def _on_known_elements(
        self, tensors: Sequence[Tensor], index: Tensor, entered: tuple[int, Any, int], whole: Tensor
    ) -> Sequence[Tensor]:
        """Launch a call by what kernels know of its rows' elements; remember that where it stays known."""
        number, kernel, place = entered
        if index.layout is not torch.strided or not tensors[place].dim():
            return ()
        found = kernel.recall(index, tensors[place].shape[0], tensors[0])
        if found is None:
            return ()
        made = self._native.sorted_form(tensors, index, number, found.order)
        if made and found.stream is not None:
            self._remember((whole, whole), (index.shape, index.stride(), index.storage_offset()), found)
        return made
