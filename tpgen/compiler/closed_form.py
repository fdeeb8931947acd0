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
    without_dispatch_modes,
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
_Positions = tuple[int, ...]  # positions among the slots of the form


class ClosedForm(Differentiable[Any]):
    """Differentiable form: a program per set of computed operands, compiled at first use.

    ``like`` gives dtype and device.
    """

    def __init__(
        self, form: Form, strategy: str, like: Tensor, compile_program: Compile, clone_results: bool = False
    ) -> None:
        self._form = form
        self._strategy = strategy
        self._like = like
        self._compile = compile_program
        self._copies = clone_results
        self._programs: dict[tuple[_Positions, _Positions], _Program] = {}
        self._graphs: dict[tuple[_Positions, _Positions], nn.Module] = {}
        self._opened = form.slots.index(form.opened)
        self.shared = tuple(not form.row(slot) for slot in form.slots)
        # slots that not every path reads, such as the weights
        self.partly_read = {n for n, s in enumerate(form.slots) if form.keep_terms_that_read(s) != form}

    def __call__(self, *arguments: Any) -> Tensor:
        """Evaluate at operands, indices, and row counts of an indexed result; differentiable."""
        count, indices = len(self._form.slots) - 1, len(self._form.indices)
        point = (*arguments[: self._opened], None, *arguments[self._opened : count])
        rows = RowIndices(
            arguments[count : count + indices], self._count_rows_by_index(point, arguments[count + indices :])
        )
        return self.compute_targets_differentiably((self._opened,), (), rows, point)[0]

    def compute_targets_differentiably(
        self, targets: _Positions, required: _Positions, rows: RowIndices, operands: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Output or gradients at operand positions ``targets``, differentiable; only paths that read ``required``."""
        given = [x for x in operands if x is not None]
        if any(map(is_legacy_batchedtensor, given)):
            return self._compute_targets_under_old_vmap(targets, required, rows, operands)
        if is_transformed(given):
            return self._call_program_of_targets(self._get_graph_module, targets, required, rows, operands)
        if not torch.is_grad_enabled():  # autograd's bookkeeping costs as much as a small product
            return self.compute_targets(targets, required, rows, operands)
        with torch.no_grad():
            made = self.compute_targets(targets, required, rows, operands)
        return record_call(self, made, (targets, required, rows), *operands)

    def call(self, point: Sequence[Any], rest: tuple) -> tuple:
        return point, *rest

    def should_ask_for_used_gradients(self, call: Any) -> bool:
        """Never: unused gradients cost less than asking autograd."""
        return False  # an operand that is absent has no node to ask

    def pull_back(self, call: Any, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Gradients of wanted operands from cotangents of a call's results."""
        point, opened, read, rows = call

        def evaluate_targets(
            more_required: tuple[int, ...], operands: Sequence[Tensor | None], targets: tuple[int, ...]
        ) -> list[Tensor]:
            both = tuple(sorted({*read, *more_required} & self.partly_read))
            values = self.compute_targets_differentiably(targets, both, rows, operands)
            return [
                _sum_gradient_to_operand_shape(x, None if self.shared[n] else point[n])
                for n, x in zip(targets, values, strict=True)
            ]

        return pull_back(evaluate_targets, point, opened, cotangents, [n for n, yes in enumerate(wanted) if yes])

    def _count_rows_by_index(
        self, operands: Sequence[Tensor | None], output_row_counts: Sequence[int]
    ) -> dict[str, int]:
        # of tensors at the point, or given for open slots
        indexed = [
            (index, x) for slot, x in zip(self._form.slots, operands, strict=True) if (index := self._form.index(slot))
        ]
        found = {index: x.shape[0] for index, x in indexed if x is not None}
        return {**found, **dict(zip([index for index, x in indexed if x is None], output_row_counts, strict=True))}

    def compute_targets(
        self, targets: _Positions, required: _Positions, rows: RowIndices, operands: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Output or gradients at operand positions ``targets``, without autograd."""
        # detached: the compiled program is for values alone, its derivatives are other programs
        values = [None if x is None else x.detach() for x in operands]
        results = self._call_program_of_targets(self._get_compiled_program, targets, required, rows, values)
        return tuple(x.clone() for x in results) if self._copies else results

    def _compute_targets_under_old_vmap(
        self, targets: _Positions, required: _Positions, rows: RowIndices, operands: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        # torch's older vmap lacks rules for some operators: use that of torch.func
        with leave_legacy_vmap() as level:
            _, dims, below = unwrap_legacy_batched_tensors(level, operands)
            found = torch.vmap(
                lambda *moved: self.compute_targets_differentiably(targets, required, rows, moved), tuple(dims)
            )(*below)
            return tuple(add_batch_dim(x, 0, level) for x in found)

    def _call_program_of_targets(
        self,
        program_for: Callable[[_Positions, _Positions], _Program],
        targets: _Positions,
        required: _Positions,
        rows: RowIndices,
        operands: Sequence[Tensor | None],
    ) -> tuple[Tensor, ...]:
        # where a single slot is open, nothing reads what stands there
        given = [x for n, x in enumerate(operands) if targets != (n,) and x is not None]
        indices = dict.fromkeys(index for n in targets if (index := self._form.index(self._form.slots[n])))
        return program_for(targets, required)(*given, *rows.indices, *(rows.sizes[index] for index in indices))

    def _get_graph_module(self, targets: _Positions, required: _Positions) -> nn.Module:
        # the program as a graph of torch's operators, which every transform knows
        key = (targets, required)
        if key not in self._graphs:
            with without_dispatch_modes():  # its constants have values, also where a call has none
                module = self.emit_program_of_targets(targets, required).module()
                self._graphs[key] = module.to(device=self._like.device, dtype=self._like.dtype)
        return self._graphs[key]

    def _get_compiled_program(self, targets: _Positions, required: _Positions) -> _Program:
        key = (targets, required)
        if key not in self._programs:
            self._programs[key] = self._compile(self._get_graph_module(targets, required))
        return self._programs[key]

    def emit_program_of_targets(self, targets: _Positions, required: _Positions = ()) -> Emission:
        """Write the program of output or gradients at positions ``targets``; only paths that read ``required``."""
        form = self._form.keep_terms_that_read(*(self._form.slots[n] for n in required))
        forms = tuple(form.open(*form.slots[n]) for n in targets)
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
class RowIndices:
    """Row indices, and row counts of indexed operands."""

    indices: Sequence[Tensor]
    sizes: dict[str, int]


def _sum_gradient_to_operand_shape(gradient: Tensor, operand: Tensor | None) -> Tensor:
    # a gradient summed over the batch dimensions that broadcast its operand
    if operand is None or gradient.shape == operand.shape:
        return gradient
    return gradient.sum_to_size(operand.shape)
