"""Results of numpy and of user functions as inputs of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tpgen.base._torch import disabled_modes, pytree, replaced_attribute
from tpgen.base.errors import DeployError, first_line
from tpgen.networks.arrays import (
    NEEDS_NUMBERS,
    WRITES,
    TracedArray,
    TracedArrayMode,
    active_array_recorder,
    current_array_recorder,
    is_numeric_array,
    wrap_from_numpy,
)
from tpgen.networks.dependent import DataDependentMode, running_user_line
from tpgen.networks.recording import LEAST_SIZE, ComputedInput, Recording, encode_count, encode_size, is_size
from tpgen.networks.user_functions import FunctionNotedError, UserFunctions, replace_calls_of_code

# arguments and results that a program may keep: nobody can change these
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.dtype, torch.dtype, torch.device)


class NumpyResultMode(DataDependentMode):
    """`DataDependentMode` that also makes numpy results program inputs."""

    def __init__(self, functions: UserFunctions, program: Recording) -> None:
        super().__init__(program)
        self._functions, self._stack = functions, ExitStack()
        self._refused: DeployError | None = None
        self._calls = 0
        self.shared: list[tuple[Tensor, int]] = []  # tensors of views, with their versions

    def __enter__(self) -> Any:
        entered = super().__enter__()
        self._stack.enter_context(TracedArrayMode())
        self._stack.enter_context(replaced_attribute(torch, "from_numpy", wrap_from_numpy))
        self._stack.enter_context(active_array_recorder(self))
        for code in self._functions.whole:
            self._stack.enter_context(replace_calls_of_code(code, _record_or_call_user_function))
        return entered

    def __exit__(self, *raised: Any) -> None:
        self._stack.close()
        super().__exit__(*raised)
        if raised[0] is None and any(x._version != version for x, version in self.shared):
            raise DeployError(WRITES.format(line=""))
        if self._refused is not None and not isinstance(raised[1], FunctionNotedError):
            raise self._refused  # the network may have caught the error

    def restart_if_function_is_opaque(self) -> None:
        """Raise `FunctionNotedError` if the running user function can run untraced."""
        self._functions.have_arrays = True
        code = self._functions.find_outermost_opaque_candidate()
        if code is not None:
            self._functions.make_opaque_or_traced(code)
            raise FunctionNotedError

    def restart_or_keep_error(self, error: DeployError) -> DeployError:
        """As `restart_if_function_is_opaque`; else return the error."""
        self.restart_if_function_is_opaque()
        self._refused = self._refused or error
        return error

    def _make_restart_or_deploy_error(self, code: CodeType | None, reason: str) -> BaseException:
        # the error that follows a function, or, without one, refuses
        if code is None:
            return self.restart_or_keep_error(DeployError(reason.format(line=running_user_line())))
        self._functions.make_opaque_or_traced(code)
        return FunctionNotedError()

    def record_call_as_input(
        self, function: Any, args: Sequence[Any], options: dict[str, Any], code: CodeType | None = None
    ) -> Any:
        """Call a function on example values; results become program inputs."""
        name = getattr(function, "__qualname__", repr(function))
        call = _FlattenedCall.from_arguments(
            function, args, options, (tuple, _SliceAsTuple) if code else (tuple, list, _SliceAsTuple)
        )
        if call is None:
            raise self._make_restart_or_deploy_error(code, NEEDS_NUMBERS)
        self._calls += 1
        kept = call.constants_to_compare()
        if self._program.traced and self._functions.kept.get(self._calls) != kept:
            raise self._make_restart_or_deploy_error(code, NEEDS_NUMBERS)
        self._functions.kept[self._calls] = kept

        def make_computed_input(example_result: Any) -> ComputedInput:
            structure = _ResultStructure.from_results(example_result)
            if structure is None:
                raise self._make_restart_or_deploy_error(code, NEEDS_NUMBERS)
            return ComputedInput(partial(_call_and_encode_results, call, structure), structure.decode_results)

        def run_example_twice(*sources: Tensor) -> Any:
            try:
                found, again = (call.call_on_copies(sources, may_view=code is None) for _ in range(2))
            except Exception as error:  # which the network may catch
                self._refused = self._refused or DeployError(f"{name} fails: {first_line(error)}")
                raise
            if found is None or again is None:
                raise self._make_restart_or_deploy_error(code, WRITES)
            if not _are_results_equal_bitwise(found, again):  # such as a function that counts its calls
                raise self._make_restart_or_deploy_error(code, NEEDS_NUMBERS)
            return found

        sources = list(call.sources.values())
        found = self.get_or_compute_input(name, run_example_twice, sources, make_computed_input)
        return pytree.tree_map(partial(_wrap_numpy_in_traced_array, sources if code is None else ()), found[0])


def _record_or_call_user_function(plain: FunctionType, *args: Any, **options: Any) -> Any:
    recorder = current_array_recorder()
    leaves = pytree.tree_leaves((args, options))
    if recorder is None or not any(isinstance(x, Tensor) or type(x) is TracedArray for x in leaves):
        return plain(*args, **options)
    return recorder.record_call_as_input(plain, args, options, plain.__code__)


class _TensorEncoding(NamedTuple):
    """Encode and decode arguments or results as tensors."""

    name: str
    encode: Callable[[Any], Tensor]
    decode: Callable[[Tensor], Any]


def _tensor_of_array(x: Any) -> Tensor:
    return torch.from_numpy(np.array(x))


_TENSOR = _TensorEncoding("tensor", lambda x: x, lambda x: x)
_ARRAY = _TensorEncoding("array", lambda x: x.tensor, lambda x: x.detach().numpy())
_NUMBER = _TensorEncoding("number", lambda x: x.tensor, lambda x: x.detach().numpy()[()])
_SIZE = _TensorEncoding("size", encode_size, lambda x: x.shape[0])
_FOUND_ARRAY = _TensorEncoding("array", _tensor_of_array, TracedArray)
_FOUND_NUMBER = _TensorEncoding("number", _tensor_of_array, partial(TracedArray, is_number=True))
_FOUND_COUNT = _TensorEncoding("count", encode_count, lambda x: x.shape[0] - LEAST_SIZE)


def _find_argument_encoding(x: Any) -> _TensorEncoding | None:
    if type(x) is TracedArray:
        return _NUMBER if x.is_number else _ARRAY
    return _TENSOR if isinstance(x, Tensor) else _SIZE if is_size(x) else None


def _find_result_encoding(x: Any) -> _TensorEncoding | None:
    if isinstance(x, Tensor):
        return _TENSOR
    if is_numeric_array(x):
        return _FOUND_NUMBER if isinstance(x, np.generic) else _FOUND_ARRAY
    return _FOUND_COUNT if is_size(x) else None


def _can_be_program_constant(x: Any) -> bool:
    # the text of a size would stay
    plain = type(x) in _PLAIN or isinstance(x, type | np.dtype) or is_numeric_array(x)
    return plain and not (isinstance(x, str) and any(map(str.isdigit, x)))


class _SliceAsTuple(NamedTuple):
    start: Any
    stop: Any
    step: Any


def _replace_slices_by_tuples(x: Any) -> Any:
    if type(x) is slice:
        return _SliceAsTuple(x.start, x.stop, x.step)
    return tuple(map(_replace_slices_by_tuples, x)) if type(x) is tuple else x


def _restore_slices_from_tuples(x: Any) -> Any:
    if type(x) is _SliceAsTuple:
        return slice(*x)
    return tuple(map(_restore_slices_from_tuples, x)) if type(x) is tuple else x


@dataclass(frozen=True)
class _FlattenedCall:
    """Flattened function call, with None in place of tensors, arrays and sizes."""

    function: Any
    leaves: list[Any]
    spec: pytree.TreeSpec
    names: tuple[str, ...]  # of the last arguments
    sources: dict[int, Tensor]  # by place
    kinds: dict[int, _TensorEncoding]
    asks: list[bool]  # whether sources require gradients

    @staticmethod
    def from_arguments(
        function: Any, args: Sequence[Any], options: dict[str, Any], containers: tuple[type, ...]
    ) -> _FlattenedCall | None:
        """Flatten arguments; None if one can be no constant of a program."""
        given = _replace_slices_by_tuples((*args, *options.values()))
        leaves, spec = pytree.tree_flatten(given, is_leaf=lambda x: type(x) not in containers)
        kinds = {n: kind for n, x in enumerate(leaves) if (kind := _find_argument_encoding(x)) is not None}
        rest = [None if n in kinds else x for n, x in enumerate(leaves)]
        if not all(map(_can_be_program_constant, rest)):
            return None
        sources = {n: kind.encode(leaves[n]) for n, kind in kinds.items()}
        asks = [x.requires_grad for x in sources.values()]
        return _FlattenedCall(function, rest, spec, tuple(options), sources, kinds, asks)

    def constants_to_compare(self) -> tuple:
        """Structure and constants of the call."""
        rest = [
            (type(x), x.tobytes(), x.shape, x.dtype) if is_numeric_array(x) else (type(x), repr(x)) for x in self.leaves
        ]
        kinds = [(n, kind.name) for n, kind in self.kinds.items()]
        return self.spec, self.names, rest, kinds, getattr(self.function, "__qualname__", "")

    def call_on_copies(self, source_tensors: Sequence[Tensor], may_view: bool = True) -> tuple[Any] | None:
        """Call on copies; the result as a tuple, or None if the function writes into, or views, an argument."""
        with disabled_modes(), active_array_recorder(None), torch.enable_grad():
            copies = [
                x.detach().clone().requires_grad_(asks) for x, asks in zip(source_tensors, self.asks, strict=True)
            ]
            leaves = [_view_as_read_only(x) if isinstance(x, np.ndarray) else x for x in self.leaves]
            for (n, kind), x in zip(self.kinds.items(), copies, strict=True):
                leaves[n] = kind.decode(x)
            args = list(_restore_slices_from_tuples(pytree.tree_unflatten(leaves, self.spec)))
            first = len(args) - len(self.names)
            made = self.function(*args[:first], **dict(zip(self.names, args[first:], strict=True)))
            if not (may_view or _share_no_memory(pytree.tree_leaves(made), copies)):
                return None
            return (made,) if all(map(_have_equal_bytes, copies, source_tensors)) else None


@dataclass(frozen=True)
class _ResultStructure:
    """Flattened results of a call, with None in place of tensors, arrays and counts."""

    leaves: list[Any]
    spec: pytree.TreeSpec
    kinds: dict[int, _TensorEncoding]  # by place

    @staticmethod
    def from_results(results: Any) -> _ResultStructure | None:
        """Flatten results; None if a program cannot take these."""
        leaves, spec = pytree.tree_flatten(results)
        kinds = {n: kind for n, x in enumerate(leaves) if (kind := _find_result_encoding(x)) is not None}
        rest = [None if n in kinds else x for n, x in enumerate(leaves)]
        differentiable = any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        plain = all(type(x) in _PLAIN for x in rest)
        return _ResultStructure(rest, spec, kinds) if plain and not differentiable else None

    def encode_results(self, results: Any) -> list[Tensor] | None:
        """Encode results as tensors; None if the structure differs."""
        found = _ResultStructure.from_results(results)
        if found is None or (found.spec, found.kinds) != (self.spec, self.kinds):
            return None
        if str(found.leaves) != str(self.leaves):  # 0.0 is no -0.0, 1 no 1.0
            return None
        leaves = pytree.tree_leaves(results)
        return [kind.encode(leaves[n]) for n, kind in self.kinds.items()]

    def decode_results(self, *tensors: Tensor) -> Any:
        """Rebuild results from tensors, with `TracedArray` for arrays."""
        leaves = list(self.leaves)
        for (n, kind), x in zip(self.kinds.items(), tensors, strict=True):
            leaves[n] = kind.decode(x)
        return pytree.tree_unflatten(leaves, self.spec)


def _call_and_encode_results(
    call: _FlattenedCall, structure: _ResultStructure, *source_tensors: Tensor
) -> list[Tensor] | None:
    try:
        made = call.call_on_copies(source_tensors)
    except Exception:  # which the network raises itself
        return None
    return None if made is None else structure.encode_results(made)


def _view_as_read_only(x: np.ndarray) -> np.ndarray:
    view = x.view()
    view.flags.writeable = False
    return view


def _share_no_memory(results: Sequence[Any], tensors: Sequence[Tensor]) -> bool:
    arrays = [x.detach().numpy() if isinstance(x, Tensor) else x for x in results if isinstance(x, Tensor | np.ndarray)]
    return not any(np.shares_memory(x, y.detach().numpy()) for x in arrays for y in tensors)


def _have_equal_bytes(x: Tensor, y: Tensor) -> bool:
    if not x.numel():
        return True
    x, y = (z.detach().contiguous().reshape(-1).view(torch.uint8) for z in (x, y))
    return torch.equal(x, y)  # NaN is equal to itself


def _are_results_equal_bitwise(x: Any, y: Any) -> bool:
    structure = _ResultStructure.from_results(x)
    if structure is None:
        return True  # which is refused
    first, second = structure.encode_results(x), structure.encode_results(y)
    return first is not None and second is not None and all(map(_have_equal_bytes, first, second))


def _wrap_numpy_in_traced_array(viewed_tensors: Sequence[Tensor], x: Any) -> Any:
    if type(x) is TracedArray:
        return TracedArray(x.tensor.clone(), x.is_number, viewed_tensors)
    return TracedArray(_tensor_of_array(x), isinstance(x, np.generic), viewed_tensors) if is_numeric_array(x) else x
