"""Run kernels: check the tensors, allocate the open slots, call the compiled function.

This is the plain computation below autograd; `tpgen.kernels.operators.ops` wraps it into operators.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property

import torch
from torch import Tensor

from tpgen.errors import BackendError, InputError
from tpgen.kernels.cpp.generate import FAULTS
from tpgen.kernels.libraries.compiler import DTYPES
from tpgen.kernels.native.runtime import NOTHING, runtime
from tpgen.kernels.operators.call import OUT, X1, Call, slots_in
from tpgen.kernels.operators.description import Description, read_description
from tpgen.kernels.operators.memory import LARGE
from tpgen.kernels.operators.targets import Edges, Kernel, KernelTarget, devices, target_of
from tpgen.kernels.sweep.terms import SLOTS
from tpgen.remember import remembered


class Product:
    """The kernels of one description, built when first needed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.description: Description = read_description(text)
        self.dims = self.description.dims
        self.shared = self.description.plan.shared_weights
        self.live = bool(self.description.form.live_terms)
        self._kernels: dict[tuple[int, torch.dtype, bool, str], Kernel] = {}
        self._native: Callable[..., list[Tensor]] | None = None  # the operator of the runtime, once it has a kernel
        self._number = NOTHING
        self._entering = threading.Lock()

    def quick(self, call: Call) -> Sequence[Tensor]:
        """The open slots of a usual call whose kernel is built, by the runtime; nothing for others, nor at faults."""
        if not self._native:
            return ()
        x1, x2, w, g, src, dst, _, mask, nodes = call
        if src is None and dst is None:
            return self._native(x1, x2, w, self._number, mask, g)
        if type(nodes) is not int:  # of a trace, which must not be asked how many
            return ()
        return self._native(x1, x2, w, self._number, mask, g, src, dst, nodes)

    def kernel(self, mask: int, dtype: torch.dtype, indexed: bool, device: str) -> Kernel:
        """The function that opens the slots of a mask."""
        key = (mask, dtype, indexed, device)
        found = self._kernels.get(key)
        if found is None:
            load = _need_target(device).load
            found = self._kernels[key] = load(self.description, slots_of(mask), dtype, indexed)
            self._enter(mask, dtype, indexed, getattr(found, "address", None))
        return found

    def _enter(self, mask: int, dtype: torch.dtype, indexed: bool, address: int | None) -> None:
        """Give a kernel to the runtime, where there is one that can call it."""
        native = runtime() if address else None
        if native is None or address is None or self.widens(mask, dtype, indexed):
            return
        with self._entering:
            if self._number == NOTHING:
                self._number = native.number(self._text, self.dims, self.shared, self.description.check_index, LARGE)
        if self._number != NOTHING:
            native.set_kernel(self._number, indexed, dtype, mask, address)
            self._native = native.run

    def build_together(self, masks: Sequence[int], dtype: torch.dtype, indexed: bool, device: str) -> None:
        """Build the kernels of calls with these masks and operands side by side, where more than one is missing."""
        keys = ((m, torch.float32 if self.widens(m, dtype, indexed, device) else dtype, indexed, device) for m in masks)
        missing = [key for key in keys if key[0] and key not in self._kernels]
        if len(missing) > 1 and self.live:
            with ThreadPoolExecutor(len(missing)) as pool:
                list(pool.map(lambda key: self.kernel(*key), missing))

    def widens(self, mask: int, dtype: torch.dtype, indexed: bool, device: str = "cpu") -> bool:
        """Whether a call on bfloat16 computes on float32 copies of its operands."""
        if not indexed or dtype != torch.bfloat16 or not mask & (X1 | OUT):
            return False
        target = target_of(device)
        return target is not None and target.rounds_sums and self._rounds_between_tiles

    @cached_property
    def _rounds_between_tiles(self) -> bool:
        """Whether sums over edges go through memory, where bfloat16 would round each part."""
        return self.description.schedule(torch.bfloat16).name == "batch"

    def check(self, call: Call) -> None:
        """Raise `InputError` where a tensor does not fit."""
        rows, x1 = call.x2.shape[0] if call.x2.dim() else 0, call.x1
        if call.indexed != (call.dst is not None):
            raise InputError("edge_src needs edge_dst: give both for a convolution, none for a product of rows")
        nowhere = all(x.is_meta for x in call.tensors())  # shapes alone are asked for
        counts = (None if call.indexed else rows, rows, rows, call.rows if call.indexed else rows)
        for name, x, dim, count in zip(SLOTS, call.point, self.dims, counts, strict=True):
            if x is not None:
                self._check_one(name, x, dim, count, x1, nowhere)
        if call.src is not None and call.dst is not None:
            _check_index("edge_src", call.src, rows, x1.device)
            _check_index("edge_dst", call.dst, rows, x1.device)
            if call.nodes < 0:
                raise InputError(f"num_nodes must not be negative, got {call.nodes}")

    def _fits(self, call: Call) -> bool:
        """The same for rows without edges, in few steps and without saying what is wrong."""
        x1, x2, w, g = call.x1, call.x2, call.w, call.g
        d1, d2, dw, dout = self.dims
        rows, dtype, device = x1.shape[0] if x1.dim() else 0, x1.dtype, x1.device
        return (
            dtype in DTYPES
            and target_of(device.type) is not None
            and x1.shape == (rows, d1)
            and x2.shape == (rows, d2)
            and w.shape == ((dw,) if self.shared else (rows, dw))
            and dtype == x2.dtype == w.dtype
            and device == x2.device == w.device
            and (g is None or (g.shape == (rows, dout) and g.dtype == dtype and g.device == device))
        )

    def _check_one(self, name: str, x: Tensor, dim: int, count: int | None, x1: Tensor, nowhere: bool) -> None:
        shape, dtype = x.shape, x1.dtype
        if name == "w" and self.shared:
            fits = len(shape) == 1 and shape[0] == dim
        else:
            fits = len(shape) == 2 and shape[1] == dim and (count is None or shape[0] == count)
        if not (fits or (name == "w" and dim == 0 and 0 in shape)):
            wanted = (
                f"({dim},), shared by all rows"
                if name == "w" and self.shared
                else f"({'rows' if count is None else count}, {dim})"
            )
            raise InputError(f"{name} must have shape {wanted}, got {tuple(shape)}")
        if x.dtype not in DTYPES:
            raise InputError(
                f"{name} is {_short(x.dtype)}, and kernels compute in float32, float64 or bfloat16: convert it with "
                ".float() or .bfloat16() (a module with its operands), or use strategy='grouped', which takes any dtype"
            )
        if x.dtype != dtype:
            raise InputError(f"{name} must be {_short(dtype)} as x1 is, got {_short(x.dtype)}: convert one of them")
        if target_of(x.device.type) is None and not nowhere:
            raise InputError(
                f"{name} must be on {devices()}, where the kernels run, got {x.device}; move it, or use "
                "strategy='unrolled'"
            )
        if x.device != x1.device:
            raise InputError(f"{name} must be on {x1.device} as x1 is, got {x.device}: move one of them")

    def run(self, call: Call) -> list[Tensor]:
        """The open slots of a call, in slot order."""
        mask, dtype = call.mask, call.x1.dtype
        if not 0 < mask < 16:
            raise InputError(f"mask must have one to four of the bits 1 (x1), 2 (x2), 4 (w), 8 (out), got {mask}")
        made = self.quick(call)
        if made:
            return list(made)
        if call.src is not None or call.dst is not None or not self._fits(call):
            self.check(call)
        if call.indexed and mask & X1 and mask & OUT:  # two ends of a gather: a sweep in each order
            return self.run(call.opening(mask & ~OUT)) + self.run(call.opening(OUT))
        if self.widens(mask, dtype, call.indexed, call.x1.device.type):
            g = None if call.g is None else call.g.float()
            wide = call._replace(x1=call.x1.float(), x2=call.x2.float(), w=call.w.float(), g=g)
            return [x.bfloat16() for x in self.run(wide)]
        device = call.x1.device.type
        results = self._results(call, _need_target(device).empty)
        made = [x for x in results if x is not None]
        if not self.live:  # no path, nothing to compile
            return [x.zero_() for x in made]
        kernel = self.kernel(mask, dtype, call.indexed, device)
        torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
        operands = [None if x is None else _dense(x) for x in call.point]
        fault = kernel(operands, results, call.x2.shape[0], self._edges(call))
        if fault:
            raise _fault(fault, call)
        return made

    def _results(self, call: Call, empty: Callable[..., Tensor]) -> list[Tensor | None]:
        """Room for the open slots, None for the others."""
        shapes = [(call.rows, self.dims[3]) if x is None else x.shape for x in call.point]
        opened = slots_in(call.mask)
        kind = call.x1.dtype, call.x1.device
        return [empty(shape, *kind) if n in opened else None for n, shape in enumerate(shapes)]

    def _edges(self, call: Call) -> Edges | None:
        if call.src is None or call.dst is None:
            return None
        return Edges(_dense(call.src), _dense(call.dst), call.x1.shape[0], call.rows, self.description.check_index)


def _need_target(device: str) -> KernelTarget:
    """The target of a device that the tensors have been checked to be on."""
    target = target_of(device)
    assert target is not None, device
    return target


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()


def _fault(code: int, call: Call) -> Exception:
    rules = {2: f"0 to {call.x1.shape[0] - 1}, the rows of x1", 3: f"0 to {call.rows - 1}, below num_nodes"}
    index = {2: call.src, 3: call.dst}.get(code)
    if index is not None:
        low, high = (int(x) for x in index.aminmax())
        return InputError(f"{FAULTS[code]}: indices run from {rules[code]}, got {low} to {high}")
    return BackendError(f"a kernel stopped: {FAULTS.get(code, f'fault {code}')}; use smaller batches")


def _check_index(name: str, index: Tensor, rows: int, device: torch.device) -> None:
    if index.dtype not in (torch.int64, torch.int32):
        raise InputError(f"{name} must be int64 or int32, got {index.dtype}: convert it with {name}.long()")
    if tuple(index.shape) != (rows,):
        raise InputError(f"{name} must have shape ({rows},), one index for every row of x2, got {tuple(index.shape)}")
    if index.device != device:
        raise InputError(f"{name} must be on {device} as x1 is, got {index.device}: move it")


@remembered("kernels of products, by description")
def product_of(description: str) -> Product:
    """The product of a description, prepared once per process."""
    return Product(description)


@cache
def slots_of(mask: int) -> tuple[str, ...]:
    """Names of the slots in a mask.

    >>> slots_of(X1 | OUT)
    ('x1', 'out')
    """
    return tuple(SLOTS[n] for n in slots_in(mask))
