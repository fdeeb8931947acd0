"""Calls that C++ launches on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor

from tpgen.form.call import Call
from tpgen.kernels.rows import RowIndex
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.native.runtime import CppRuntime
from tpgen.kernels.runtime.signature import CallSignature

_CALLS = 32  # on parts of the same tensors, at most


class _CachedLaunchArguments(NamedTuple):
    """Arguments of earlier launches on the same index tensors."""

    wholes: tuple[ref[Tensor], ...]
    versions: tuple[int, ...]
    # by rows and parts: indices in int64 where they are copies; orders, and which have one; the stream that knows
    # these; rows of out
    known: dict[tuple, tuple]


class GpuLauncher:
    """Launches GPU kernels of one form from C++, with cached indices and sort orders."""

    def __init__(self, runtime: CppRuntime) -> None:
        """Make a launcher without kernels."""
        self._native = runtime
        # kernels by their number and device, with the tensor that says how many rows each of their rules points into
        self._kernels: dict[tuple[int, int], tuple[Any, tuple[int | None, ...]]] = {}
        self._seen: dict[tuple[int, ...], _CachedLaunchArguments] = {}  # by the tensors that indices are parts of

    def register_kernel(self, number: int, call: Call, signature: CallSignature, kernel: Any, example: Tensor) -> None:
        """Register a GPU kernel by number, for the device of ``example``."""
        counted = [shape.counts for _, shape in signature.given]
        places = tuple(counted.index(r.into) if r.into in counted else None for r in signature.rules)
        self._kernels[number, example.get_device()] = kernel, places

    def launch_call(
        self, call: FormCall, kernels: Sequence[tuple[int, int]], check_indices: bool
    ) -> Sequence[Tensor] | None:
        """Launch a call's kernels; return results, empty for new indices, None for unregistered kernels.

        ``kernels``: number and tensor count of each.
        """
        # indices of a call before are found again in this one frame of Python: fifty take as long as the launch
        tensors, at, _, text, _, nodes, ordered = call
        device = tensors[0].get_device()
        for number, _ in kernels:
            if (number, device) not in self._kernels:
                return None
        wholes, places, key = list[Tensor](), list[int](), list[Any]((text, nodes))  # loops have no frames
        for x in tensors:
            key.append(x.shape)
        for x in at:
            if x.layout is not torch.strided:
                return ()
            whole = x if x._base is None else x._base
            wholes.append(whole)
            places.append(id(whole))
            key += x.shape, x.stride(), x.storage_offset(), x.dtype
        seen = None if ordered else self._seen.get(tuple(places))
        known = None if seen is None else seen.known.get(tuple(key))
        if seen is not None and known is not None:
            wide, orders, which, stream, nodes = known
            dense = []
            for old, version, whole, x, y in zip(seen.wholes, seen.versions, wholes, at, wide, strict=True):
                if old() is whole and version == whole._version:
                    dense.append(x if y is None else y)
            if len(dense) == len(at):
                made = list[Tensor]()
                for number, count in kernels:
                    results = self._native.form([*tensors[:count], *dense, *orders], number, nodes, which, stream)
                    if not results:
                        break
                    made += results
                else:
                    return made
        return self._launch_with_cached_sort_orders(
            call, kernels, check_indices, wholes, None if ordered else tuple(key)
        )

    def _launch_with_cached_sort_orders(
        self,
        call: FormCall,
        kernels: Sequence[tuple[int, int]],
        check_indices: bool,
        base_tensors: Sequence[Tensor],
        key: tuple | None,
    ) -> Sequence[Tensor]:
        device, found = call.tensors[0].get_device(), []
        for number, count in kernels:
            kernel, places = self._kernels[number, device]
            if len(call.tensors) < count or not all(call.tensors[n].dim() for n in places if n is not None):
                return ()
            indices = [
                _with_row_count(index, call, n, check_indices) for index, n in zip(call.indices, places, strict=True)
            ]
            known = kernel.get_cached_indices(indices, call.tensors[0])
            if known is None:
                return ()
            found.append(known)
        stream = found[0].stream
        orders = [next((x for x in by if x is not None), None) for by in zip(*(k.orders for k in found), strict=True)]
        which, sorts = sum(1 << n for n, x in enumerate(orders) if x is not None), [x for x in orders if x is not None]
        made = run_kernels_in_cpp(self._native.form, call, kernels, [*found[0].indices, *sorts], which)
        if made and stream is not None and key is not None:
            wide = [None if x is y else x for x, y in zip(found[0].indices, call.at, strict=True)]
            self._cache_launch_arguments(
                base_tensors, key, (wide, sorts, which, stream, _count_output_rows(call, kernels))
            )
        return made

    def _cache_launch_arguments(self, base_tensors: Sequence[Tensor], key: tuple, arguments: tuple) -> None:
        # facts last while the index tensors live unchanged
        place, versions = tuple(map(id, base_tensors)), tuple(x._version for x in base_tensors)
        seen = self._seen.get(place)
        if (
            seen is None
            or seen.versions != versions
            or any(r() is not x for r, x in zip(seen[0], base_tensors, strict=True))
        ):
            forget = partial(self._seen.pop, place)  # which is called with the reference, and returns it
            self._seen[place] = seen = _CachedLaunchArguments(tuple(ref(x, forget) for x in base_tensors), versions, {})
        if len(seen.known) >= _CALLS:
            seen.known.clear()
        seen.known[key] = arguments


def _with_row_count(index: RowIndex, call: FormCall, place: int | None, check: bool) -> RowIndex:
    size = index.size if place is None else call.tensors[place].shape[0]
    return index._replace(size=size, check=index.rule.checked(check))


def _count_output_rows(call: FormCall, kernels: Sequence[tuple[int, int]]) -> int:
    if len(kernels) > 1 and kernels[-1][1] < len(call.tensors):  # out alone does not read itself
        g = call.tensors[kernels[-1][1]]
        return g.shape[0] if g.dim() else 0
    return call.nodes


def run_kernels_in_cpp(
    run_kernel: Callable[..., list[Tensor]],
    call: FormCall,
    kernels: Sequence[tuple[int, int]],
    indices: Sequence[Tensor],
    sorted_bits: int = -1,
) -> Sequence[Tensor]:
    """Run each kernel of a call by C++ function ``run_kernel``; empty after a fault.

    ``sorted_bits`` mark indices with sort orders.
    """
    nodes, made = _count_output_rows(call, kernels), list[Tensor]()
    for number, count in kernels:
        results = run_kernel([*call.tensors[:count], *indices], number, nodes, sorted_bits)
        if not results:
            return ()
        made += results
    return made
