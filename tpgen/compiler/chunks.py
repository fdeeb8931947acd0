"""Run programs and their gradients in chunks of rows, to limit memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base._torch import is_legacy_batchedtensor
from tpgen.base.errors import InputError
from tpgen.base.remember import Shelf
from tpgen.compiler.backends import Runner
from tpgen.compiler.closed_form import is_transformed
from tpgen.compiler.footprint import Footprint, run_on_fake_tensors
from tpgen.kernels.runtime.registration import Differentiable, record_call

Depth = int | None  # axes of a tensor behind those of the batch; None where it has no rows of its own
_numbers = count()
# bytes of all rows together and of each, by the number of a program, which gradients, and all sizes but the cut one
_measured: Shelf[tuple, tuple[int, int]] = Shelf("bytes of rows computed some at a time")
_FEW, _MORE = 16, 32  # rows that a program is measured with: what it takes is a constant and so much a row


class BatchShape(NamedTuple):
    """Batch dimensions; ``axis``, the longest, is chunked."""

    shape: tuple[int, ...]
    axis: int

    @property
    def rows(self) -> int:
        """Size of the chunked axis."""
        return self.shape[self.axis]

    def find_chunked_axis(self, x: Tensor, axes_behind_batch: Depth) -> int | None:
        """A tensor's chunked axis, or None if shared or broadcast."""
        axis = -1 if axes_behind_batch is None else self.axis - len(self.shape) + x.dim() - axes_behind_batch
        return None if axis < 0 or x.shape[axis] == 1 else axis


class _ResultAxes(NamedTuple):
    """A result's number of axes behind the batch; for a gradient, the argument's index."""

    depth: Depth
    argument: int | None = None


@dataclass(frozen=True)
class _FunctionOfRows:
    """Function of tensors that can run on chunks of rows."""

    run: Callable[..., Sequence[Tensor]]  # of the program and the arguments
    given: tuple[Depth, ...]
    results: tuple[_ResultAxes, ...]
    key: tuple
    order: int = 0  # of derivatives

    def make_gradient_function(self, has_cotangent: Sequence[bool], wanted: Sequence[int]) -> _FunctionOfRows:
        """Make the function (arguments, cotangents of flagged results) -> gradients of ``wanted`` arguments."""

        def compute_gradients_of_rows(program: Runner, *arguments: Tensor) -> Sequence[Tensor]:
            """Differentiate ``self.run`` by autograd; ``arguments`` end with cotangents."""
            point, cotangents = list(arguments[: len(self.given)]), arguments[len(self.given) :]
            further = torch.is_grad_enabled()  # inside of gradients of these
            with torch.enable_grad():
                for n in wanted:
                    if not (further and point[n].requires_grad):
                        point[n] = point[n].detach().requires_grad_()
                made = [x for x, yes in zip(self.run(program, *point), has_cotangent, strict=True) if yes]
                pairs = [(x, c) for x, c in zip(made, cotangents, strict=True) if x.requires_grad]
                at = [point[n] for n in wanted]
                if not pairs:
                    return [torch.zeros_like(x) for x in at]
                results, along = zip(*pairs, strict=True)
                return torch.autograd.grad(results, at, along, create_graph=further, materialize_grads=True)

        given = self.given + tuple(x.depth for x, yes in zip(self.results, has_cotangent, strict=True) if yes)
        made = tuple(_ResultAxes(self.given[n], n) for n in wanted)
        return _FunctionOfRows(
            compute_gradients_of_rows, given, made, (*self.key, tuple(has_cotangent), tuple(wanted)), self.order + 1
        )


class ChunkedProgram(Differentiable[Any]):
    """Program run in chunks of rows, within ``max_bytes`` beside operands and result (None: no limit).

    ``run`` is differentiable to ``max_orders``, ``run_plain`` to any order.  Depths: numbers of axes behind the batch.
    """

    def __init__(
        self,
        run: Runner,
        run_plain: Runner,
        argument_depths: Sequence[Depth],
        result_depth: Depth,
        max_bytes: int | None,
        max_orders: float = inf,
        clone_results: bool = False,
    ) -> None:
        self._run, self._plain, self._max_bytes = run, run_plain, max_bytes
        self._given, self._made, self._orders, self._copies = (
            tuple(argument_depths),
            result_depth,
            max_orders,
            clone_results,
        )
        self._number = next(_numbers)

    def __call__(self, *arguments: Any) -> Tensor:
        """Compute the program's result, differentiable."""
        tensors, numbers = arguments[: len(self._given)], arguments[len(self._given) :]
        function = _FunctionOfRows(
            lambda program, *tensors: (program(*tensors, *numbers),),
            self._given,
            (_ResultAxes(self._made),),
            numbers,
        )
        return self.evaluate_differentiably(function, tensors)[0]

    def evaluate_differentiably(self, function: _FunctionOfRows, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
        """Evaluate a function, differentiable to any order."""
        if is_transformed(arguments) or any(map(is_legacy_batchedtensor, arguments)):
            return function.run(self._plain, *arguments)
        if not torch.is_grad_enabled():
            return self.evaluate_in_chunks(function, arguments)
        with torch.no_grad():
            made = self.evaluate_in_chunks(function, arguments)
        return record_call(self, made, (function,), *arguments)

    def call(self, arguments: Sequence[Any], rest: tuple) -> tuple:
        return arguments, *rest

    def pull_back(self, call: Any, cotangents: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Compute wanted gradients in chunks of rows."""
        (arguments, function), there = call, [c for c in cotangents if c is not None]
        places = [n for n, yes in enumerate(wanted) if yes]
        found: list[Tensor | None] = [None] * len(arguments)
        if there and places:
            gradients = function.make_gradient_function([c is not None for c in cotangents], places)
            for n, x in zip(places, self.evaluate_differentiably(gradients, (*arguments, *there)), strict=True):
                found[n] = x
        return found

    def evaluate_in_chunks(self, function: _FunctionOfRows, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
        """Evaluate without autograd, in chunks where the limit asks."""
        arguments = [x.detach() for x in arguments]
        program = self._run if function.order <= self._orders else self._plain
        batch = None if self._max_bytes is None else _find_broadcast_batch_shape(function, arguments)
        size = self._find_largest_rows_per_chunk(function, arguments, batch) if batch else 0
        if batch is None or size >= batch.rows:
            made = function.run(program, *arguments)
            return [x.clone() for x in made] if self._copies else made
        axes = [batch.find_chunked_axis(x, depth) for x, depth in zip(arguments, function.given, strict=True)]
        rooms: list[tuple[Tensor, int | None, torch.dtype]] = []
        for start in range(0, batch.rows, size):
            rows = min(size, batch.rows - start)
            parts = [
                x if axis is None else x.narrow(axis, start, rows) for x, axis in zip(arguments, axes, strict=True)
            ]
            made = function.run(program, *parts)
            rooms = rooms or [
                _allocate_result(r, x, arguments, batch) for r, x in zip(function.results, made, strict=True)
            ]
            for (total, axis, _), x in zip(rooms, made, strict=True):
                if axis is None:
                    total.add_(x)
                else:
                    total.narrow(axis, start, rows).copy_(x)
            del parts, made, x  # which would be held while the next rows are computed
        return tuple(total.to(dtype) for total, _, dtype in rooms)

    # --- how many -----------------------------------------------------------------------------------------------

    def _find_largest_rows_per_chunk(
        self, function: _FunctionOfRows, arguments: Sequence[Tensor], batch: BatchShape
    ) -> int:
        key = self._number, *function.key, *self._list_argument_shapes_for_row_count(function, arguments, batch, _FEW)
        taken = _measured.get(key)
        if taken is None:
            few, more = (self._count_peak_bytes_for_rows(function, arguments, batch, rows) for rows in (_FEW, _MORE))
            each = -((few - more) // (_MORE - _FEW))
            taken = _measured[key] = (max(few - each * _FEW, 0), each)
        fixed, each = taken
        assert self._max_bytes is not None
        size = (self._max_bytes - fixed) // max(each, 1)
        if size < 1:
            raise InputError(
                f"max_bytes: {self._max_bytes} is too little for a single row, which takes {fixed + each} "
                f"bytes beside operands and results (batch {batch.shape}): give as many at least, or use "
                "strategy='kernel', which keeps nothing on the way"
            )
        return size

    def _count_peak_bytes_for_rows(
        self, function: _FunctionOfRows, arguments: Sequence[Tensor], batch: BatchShape, rows: int
    ) -> int:
        # results among them
        def run_and_measure_peak(footprint: Footprint) -> int:
            shapes = self._list_argument_shapes_for_row_count(function, arguments, batch, rows)
            given = [
                torch.empty(shape, dtype=x.dtype, device=x.device) for shape, x in zip(shapes, arguments, strict=True)
            ]
            before = footprint.now
            function.run(self._plain, *given)
            return footprint.peak - before

        return run_on_fake_tensors(run_and_measure_peak)

    @staticmethod
    def _list_argument_shapes_for_row_count(
        function: _FunctionOfRows, arguments: Sequence[Tensor], batch: BatchShape, rows: int
    ) -> Iterator[tuple[int, ...]]:
        for x, depth in zip(arguments, function.given, strict=True):
            axis = batch.find_chunked_axis(x, depth)
            yield tuple(rows if n == axis else size for n, size in enumerate(x.shape))


def _find_broadcast_batch_shape(function: _FunctionOfRows, arguments: Sequence[Tensor]) -> BatchShape | None:
    given = zip(arguments, function.given, strict=True)
    shape = torch.broadcast_shapes(*(x.shape[: x.dim() - depth] for x, depth in given if depth is not None))
    if not shape or max(shape) < 2:
        return None
    return BatchShape(tuple(shape), max(range(len(shape)), key=lambda axis: shape[axis]))


def _allocate_result(
    result: _ResultAxes, part: Tensor, arguments: Sequence[Tensor], batch: BatchShape
) -> tuple[Tensor, int | None, torch.dtype]:
    # allocate a result: (buffer, chunked axis or None for sums, final dtype)
    like = None if result.argument is None else arguments[result.argument]
    axis = batch.axis if like is None else batch.find_chunked_axis(like, result.depth)
    if result.depth is None or axis is None:  # many parts of few digits lose what is small beside their sum
        return torch.zeros_like(part, dtype=torch.promote_types(part.dtype, torch.float32)), None, part.dtype
    shape = (*batch.shape, *part.shape[part.dim() - result.depth :]) if like is None else like.shape
    return part.new_empty(shape), axis, part.dtype
