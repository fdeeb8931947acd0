"""Data-dependent operations, such as `nonzero`, as inputs of a program."""

# A number that is no count must equal the example's.

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tpgen.base._torch import DispatchMode, has_kernel, pytree
from tpgen.base.errors import DeployError
from tpgen.networks.draws import GeneratorUseCheck, RandomDraw, draws_numbers_of_known_shape
from tpgen.networks.reach import FINDING_CODE, OWN_CODE, TORCH_CODE
from tpgen.networks.recording import LEAST_SIZE, ComputedInput, Recording, encode_count, encode_size, is_size

_aten = torch.ops.aten
# code and the operations that it asks for
_BETWEEN = (TORCH_CODE, f"{Path(np.__file__).parent}{os.sep}", *FINDING_CODE)
# where an operation has one of these, torch knows its results without numbers
_WITHOUT_NUMBERS = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
_KNOWN = ("aten", "prim", "prims", "tpgen")  # namespaces of operations


class DataDependentMode(DispatchMode):
    """Makes results of data-dependent operators, as ``nonzero``, inputs of the traced program."""

    def __init__(self, program: Recording) -> None:
        super().__init__()
        self._program = program
        # of masks, which are kept, in each version
        self._columns: dict[tuple[int, int], tuple[Tensor, Sequence[Tensor]]] = {}
        self.order = GeneratorUseCheck()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        if raised[0] is None:
            self.order.check_generator_unused()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function is _aten.native_dropout.default:  # tpgen's code may call it for the network
            return _record_dropout_as_program_input(self, *args, **options)
        if draws_numbers_of_known_shape(function):
            return _record_draw_as_program_input(self, function, *args, **options)
        rule = _RULES.get(function) or (_record_result_as_program_input if _is_data_dependent(function) else None)
        if rule is None or not _file_and_line_of_user_code():
            return function(*args, **options)
        return rule(self, function, *args, **options)

    def get_or_compute_input(
        self,
        operation: Any,
        compute: Callable[..., Any],
        sources: Sequence[Tensor],
        make_input: Callable[[Any], ComputedInput],
    ) -> Any:
        """Program input in place of an operation's result; without one, the computed result."""
        return self._program.get_or_compute(
            f"{operation} at {_file_and_line_of_user_code()}", compute, sources, make_input
        )

    def mask_indices(self, mask: Tensor) -> Sequence[Tensor]:
        """Indices of a mask's true entries, by axis."""
        key = id(mask), mask._version
        if key not in self._columns:
            self._columns[key] = mask, _record_result_as_program_input(self, _aten.nonzero.default, mask).unbind(1)
        return self._columns[key][1]


def _record_result_as_program_input(mode: DataDependentMode, function: Any, *args: Any, **options: Any) -> Any:
    leaves, spec = pytree.tree_flatten((args, options))
    tensors = {n: x for n, x in enumerate(leaves) if isinstance(x, Tensor)}
    sizes = {n: encode_size(x) for n, x in enumerate(leaves) if is_size(x)}
    rest = [None if n in tensors or n in sizes else x for n, x in enumerate(leaves)]

    def call_on_tensors(*sources: Tensor) -> Any:
        whole = list(rest)
        for n, x in zip((*tensors, *sizes), sources, strict=True):
            whole[n] = x.shape[0] if n in sizes else x
        given, named = pytree.tree_unflatten(whole, spec)
        return function(*given, **named)

    def make_computed_input(example_result: Any) -> ComputedInput:
        _, results = pytree.tree_flatten(example_result)
        return ComputedInput(
            lambda *sources: pytree.tree_leaves(call_on_tensors(*sources)),
            lambda *sources: pytree.tree_unflatten(list(sources), results),
        )

    return mode.get_or_compute_input(
        function, call_on_tensors, [*tensors.values(), *sizes.values()], make_computed_input
    )


def _index_by_recorded_mask(
    mode: DataDependentMode, function: Any, x: Tensor, indices: Sequence[Tensor | None], *values_and_flags: Any
) -> Any:
    # rows by a mask as rows by indices
    whole: list[Tensor | None] = []
    for index in indices:
        masked = index is not None and index.dtype in (torch.bool, torch.uint8)
        whole += mode.mask_indices(index) if masked else [index]  # type: ignore[arg-type]
    return function(x, whole, *values_and_flags)


def _select_by_recorded_mask(mode: DataDependentMode, _function: Any, x: Tensor, mask: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    return _aten.index.Tensor(x, list(mode.mask_indices(mask)))


def _record_number_as_program_input(mode: DataDependentMode, function: Any, x: Tensor) -> Any:
    # a count as a size of a tensor, any other number as it was

    def make_input_of_number(example_number: Any) -> ComputedInput:
        if type(example_number) is int and example_number >= 0:
            return ComputedInput(lambda x: _count_as_tensors(function(x)), lambda sized: sized.shape[0] - LEAST_SIZE)
        fixed = not isinstance(example_number, int)  # else it hardly ever is that of the example
        line = _format_source_line(*_file_and_line_of_user_code().rsplit(":", 1))
        return ComputedInput(
            lambda x: [] if function(x) == example_number else None, lambda: example_number, fixed=fixed, line=line
        )

    return mode.get_or_compute_input(function, function, (x,), make_input_of_number)


def _record_draw_as_program_input(mode: DataDependentMode, function: Any, *args: Any, **options: Any) -> Tensor:
    draw = RandomDraw(function, args, options)
    mode.order.check_generator_unused()
    numbers = mode.get_or_compute_input(
        function, draw.draw_numbers, [draw.shape_as_tensor()], lambda _: draw.as_computed_input()
    )
    mode.order.note_generator_state()
    return args[0].copy_(numbers) if function._schema.is_mutable else numbers


def _record_dropout_as_program_input(
    mode: DataDependentMode, x: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    # the mask that torch draws outside of a trace
    if not train:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = _record_draw_as_program_input(mode, _aten.bernoulli_.float, torch.empty_like(x), 1 - p)
    return x * (mask / (1 - p) if p < 1 else mask), mask.bool()


def _count_as_tensors(count: int) -> list[Tensor] | None:
    return [encode_count(count)] if count >= 0 else None


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.index.Tensor: _index_by_recorded_mask,
    _aten.index_put.default: _index_by_recorded_mask,
    _aten.index_put_.default: _index_by_recorded_mask,
    _aten._index_put_impl_.default: _index_by_recorded_mask,
    _aten.masked_select.default: _select_by_recorded_mask,
    _aten._local_scalar_dense.default: _record_number_as_program_input,
}


def _is_data_dependent(function: Any) -> bool:
    # whether sizes of results depend on numbers, or torch does not know them
    if torch.Tag.dynamic_output_shape in function.tags:
        return True
    if function.namespace in _KNOWN or function._schema.is_mutable:
        return False
    return not any(map(partial(has_kernel, function.name()), _WITHOUT_NUMBERS))


def _file_and_line_of_user_code() -> str:
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    name = frame.f_code.co_filename
    return "" if name.startswith(OWN_CODE) else f"{name}:{frame.f_lineno}"


def running_user_line() -> str:
    """Source text of the running line of user code, or ""."""
    place = _file_and_line_of_user_code()
    return _format_source_line(*place.rsplit(":", 1)) if place else ""


def user_line_of_error(error: BaseException) -> str:
    """Source text of an error's last line of user code, or ""."""
    found = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((TORCH_CODE, OWN_CODE))
    ]
    return _format_source_line(found[-1].filename, found[-1].lineno) if found else ""


def _format_source_line(file: str, number: Any) -> str:
    return f" (at {Path(file).name}, line {number}: {linecache.getline(file, int(number)).strip()})"


ASKS_FOR_NUMBER = (
    "forward asks for a number of a tensor{line}, as .item(), float() and if do, and a program would hold for this "
    "number alone: compute with the tensor itself, choose by torch.where, or ask outside of forward and give the "
    "result as an argument"
)
_SAID = {  # what torch says of values, and plain words
    ".numpy() is not supported": "forward makes an array of numpy{line}, and a program is made of torch's operations "
    "alone: compute by torch there, or outside of forward and give the result as an argument",
    "Could not guard on data-dependent": ASKS_FOR_NUMBER,
}


@contextmanager
def explain_data_dependent_errors() -> Iterator[None]:
    """Turn torch's errors of data-dependent code into `DeployError`."""
    try:
        yield
    except Exception as error:
        said = next((words for start, words in _SAID.items() if start in str(error)), None)
        if said is None:
            raise
        raise DeployError(said.format(line=user_line_of_error(error))) from error
