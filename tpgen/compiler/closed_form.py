"""Forms whose derivatives, of any order, are separate programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import (
    DispatchModeKey,
    add_batch_dim,
    dispatch_mode,
    has_tangents,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    is_tracing,
    transform_level,
    without_modes,
)
from tpgen.emitter.emit import Emission, emit_form
from tpgen.form.derivative import pull_back
from tpgen.form.form import Form
from tpgen.kernels.runtime.registration import (
    Differentiable,
    leave_legacy_vmap,
    record_call,
    unwrap_legacy_batched_tensors,
)

_Program = Callable[..., Any]  # returns a tuple of tensors
Compile = Callable[[torch.nn.Module], _Program]
_Slots = tuple[int, ...]  # positions among the slots of the form


class ClosedForm(Differentiable[Any]):
    """Programs of a form, one per set of computed slots, compiled at first use.

    ``like`` gives dtype and device.  ``copies`` clones results that the next run overwrites.
    """

    def __init__(self, form: Form, strategy: str, like: Tensor, compile_program: Compile, copies: bool = False) -> None:
        self._form = form
        self._strategy = strategy
        self._like = like
        self._compile = compile_program
        self._copies = copies
        self._programs: dict[tuple[_Slots, _Slots], _Program] = {}
        self._graphs: dict[tuple[_Slots, _Slots], nn.Module] = {}
        self._opened = form.slots.index(form.opened)
        self.shared = tuple(not form.row(slot) for slot in form.slots)
        # slots that not every path reads, such as the weights
        self.partly_read = {n for n, s in enumerate(form.slots) if form.reading(s) != form}

    def __call__(self, *arguments: Any) -> Tensor:
        """Evaluate at operands, indices, and row counts of an indexed result; differentiable."""
        count, indices = len(self._form.slots) - 1, len(self._form.indices)
        point = (*arguments[: self._opened], None, *arguments[self._opened : count])
        rows = Rows(arguments[count : count + indices], self._row_counts(point, arguments[count + indices :]))
        return self.open((self._opened,), (), rows, point)[0]

    def open(self, opened: _Slots, read: _Slots, rows: Rows, point: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """Compute ``opened`` slots, differentiably, by paths that read slots ``read``."""
        given = [x for x in point if x is not None]
        if any(map(is_legacy_batchedtensor, given)):
            return self._open_under_old_vmap(opened, read, rows, point)
        if is_transformed(given):
            return self._call_program_of_slots(self._get_graph_module, opened, read, rows, point)
        if not torch.is_grad_enabled():  # autograd's bookkeeping costs as much as a small product
            return self.run(opened, read, rows, point)
        with torch.no_grad():
            made = self.run(opened, read, rows, point)
        return record_call(self, made, (opened, read, rows), *point)

    def call(self, point: Sequence[Any], rest: tuple) -> tuple:
        """Join operands and other arguments to a call."""
        return point, *rest

    def should_ask_for_used_gradients(self, call: Any) -> bool:
        """Never: unused gradients cost less than asking autograd."""
        return False  # an operand that is absent has no node to ask

    def pull_back(self, call: Any, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Compute wanted gradients by opening the form."""
        point, opened, read, rows = call

        def evaluate(read_too: tuple[int, ...], moved: Sequence[Tensor | None], slots: tuple[int, ...]) -> list[Tensor]:
            both = tuple(sorted({*read, *read_too} & self.partly_read))
            values = self.open(slots, both, rows, moved)
            return [
                _sum_gradient_to_operand_shape(x, None if self.shared[n] else point[n])
                for n, x in zip(slots, values, strict=True)
            ]

        return pull_back(evaluate, point, opened, cotangents, [n for n, yes in enumerate(wanted) if yes])

    def _row_counts(self, point: Sequence[Tensor | None], open_slot_counts: Sequence[int]) -> dict[str, int]:
        # of tensors at the point, or given for open slots
        indexed = [
            (index, x) for slot, x in zip(self._form.slots, point, strict=True) if (index := self._form.index(slot))
        ]
        found = {index: x.shape[0] for index, x in indexed if x is not None}
        return {**found, **dict(zip([index for index, x in indexed if x is None], open_slot_counts, strict=True))}

    def run(self, opened: _Slots, read: _Slots, rows: Rows, point: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """Compute ``opened`` slots without autograd."""
        # detached: the compiled program is for values alone, its derivatives are other programs
        values = [None if x is None else x.detach() for x in point]
        results = self._call_program_of_slots(self._get_compiled_program, opened, read, rows, values)
        return tuple(x.clone() for x in results) if self._copies else results

    def _open_under_old_vmap(
        self, opened: _Slots, read: _Slots, rows: Rows, point: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        # torch's older vmap lacks rules for some operators: use that of torch.func
        with leave_legacy_vmap() as level:
            _, dims, below = unwrap_legacy_batched_tensors(level, point)
            found = torch.vmap(lambda *moved: self.open(opened, read, rows, moved), tuple(dims))(*below)
            return tuple(add_batch_dim(x, 0, level) for x in found)

    def _call_program_of_slots(
        self,
        program_for: Callable[[_Slots, _Slots], _Program],
        opened: _Slots,
        read: _Slots,
        rows: Rows,
        point: Sequence[Tensor | None],
    ) -> tuple[Tensor, ...]:
        # where a single slot is open, nothing reads what stands there
        given = [x for n, x in enumerate(point) if opened != (n,) and x is not None]
        indices = dict.fromkeys(index for n in opened if (index := self._form.index(self._form.slots[n])))
        return program_for(opened, read)(*given, *rows.indices, *(rows.sizes[index] for index in indices))

    def _get_graph_module(self, opened: _Slots, read: _Slots) -> nn.Module:
        # the program as a graph of torch's operators, which every transform knows
        key = (opened, read)
        if key not in self._graphs:
            with without_modes():  # its constants have values, also where a call has none
                module = self.emission(opened, read).module()
                self._graphs[key] = module.to(device=self._like.device, dtype=self._like.dtype)
        return self._graphs[key]

    def _get_compiled_program(self, opened: _Slots, read: _Slots) -> _Program:
        key = (opened, read)
        if key not in self._programs:
            self._programs[key] = self._compile(self._get_graph_module(opened, read))
        return self._programs[key]

    def emission(self, opened: _Slots, read: _Slots = ()) -> Emission:
        """Write the program that computes ``opened`` slots by paths that read slots ``read``."""
        form = self._form.reading(*(self._form.slots[n] for n in read))
        forms = tuple(form.open(*form.slots[n]) for n in opened)
        names = ", ".join("*".join(f.opened) for f in forms)
        return emit_form(forms, self._strategy, title=f"{names} of {form.plan.digest}, {self._strategy}")


def is_transformed(tensors: Sequence[Tensor]) -> bool:
    """Whether a transform, trace or tangent needs plain torch operators."""
    return any(map(is_functorch_wrapped_tensor, tensors)) or (
        not torch.compiler.is_compiling()
        and (
            is_tracing()
            or transform_level() is not None  # tensors that a transformed function closes over are plain ones
            or has_tangents()
            or dispatch_mode(DispatchModeKey.PROXY) is not None
            or any(isinstance(size, torch.SymInt) for x in tensors for size in x.shape)
        )
    )


@dataclass(frozen=True)
class Rows:
    """Row indices, and row counts of indexed operands."""

    indices: Sequence[Tensor]
    sizes: dict[str, int]


def _sum_gradient_to_operand_shape(gradient: Tensor, operand: Tensor | None) -> Tensor:
    # a gradient summed over the batch dimensions that broadcast its operand
    if operand is None or gradient.shape == operand.shape:
        return gradient
    return gradient.sum_to_size(operand.shape)
