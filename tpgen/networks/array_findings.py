"""Results of numpy, and of user functions that call numpy, as findings."""

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
    ArrayMode,
    TracedArray,
    active_findings,
    current_findings,
    is_array,
    wrap_from_numpy,
)
from tpgen.networks.dependent import Dependent, caller_line
from tpgen.networks.recording import LEAST_SIZE, Finding, Recording, encode_count, encode_size, is_size
from tpgen.networks.user_functions import FunctionNotedError, UserFunctions, relayed

# arguments and results that a program may keep: nobody can change these
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.dtype, torch.dtype, torch.device)


class ArrayFindings(Dependent):
    """`Dependent` that also finds results of numpy."""

    def __init__(self, functions: UserFunctions, program: Recording) -> None:
        super().__init__(program)
        self._functions, self._stack = functions, ExitStack()
        self._refused: DeployError | None = None
        self._calls = 0
        self.shared: list[tuple[Tensor, int]] = []  # tensors of views, with their versions

    def __enter__(self) -> Any:
        entered = super().__enter__()
        self._stack.enter_context(ArrayMode())
        self._stack.enter_context(replaced_attribute(torch, "from_numpy", wrap_from_numpy))
        self._stack.enter_context(active_findings(self))
        for code in self._functions.whole:
            self._stack.enter_context(relayed(code, _record_or_call))
        return entered

    def __exit__(self, *raised: Any) -> None:
        self._stack.close()
        super().__exit__(*raised)
        if raised[0] is None and any(x._version != version for x, version in self.shared):
            raise DeployError(WRITES.format(line=""))
        if self._refused is not None and not isinstance(raised[1], FunctionNotedError):
            raise self._refused  # the network may have caught the error

    def begin_again_by_function(self) -> None:
        """Begin again if a user function can be called whole."""
        self._functions.have_arrays = True
        code = self._functions.outermost()
        if code is not None:
            self._functions.take_whole_or_follow(code)
            raise FunctionNotedError

    def refusal(self, error: DeployError) -> DeployError:
        """Refuse, unless a user function can be called whole."""
        self.begin_again_by_function()
        self._refused = self._refused or error
        return error

    def _following(self, code: CodeType | None, reason: str) -> BaseException:
        # the error that follows a function, or, without one, refuses
        if code is None:
            return self.refusal(DeployError(reason.format(line=caller_line())))
        self._functions.take_whole_or_follow(code)
        return FunctionNotedError()

    def record(self, function: Any, args: Sequence[Any], options: dict[str, Any], code: CodeType | None = None) -> Any:
        """Results of a function, as a finding."""
        name = getattr(function, "__qualname__", repr(function))
        call = _NumpyCall.split(function, args, options, (tuple, _Slice) if code else (tuple, list, _Slice))
        if call is None:
            raise self._following(code, NEEDS_NUMBERS)
        self._calls += 1
        kept = call.kept()
        if self._program.traced and self._functions.kept.get(self._calls) != kept:
            raise self._following(code, NEEDS_NUMBERS)
        self._functions.kept[self._calls] = kept

        def make_finding(made: Any) -> Finding:
            outcome = _Outcome.describe(made)
            if outcome is None:
                raise self._following(code, NEEDS_NUMBERS)
            return Finding(partial(_find_by_numpy, call, outcome), outcome.restore)

        def run_example(*sources: Tensor) -> Any:
            try:
                found, again = (call.run(sources, may_view=code is None) for _ in range(2))
            except Exception as error:  # which the network may catch
                self._refused = self._refused or DeployError(f"{name} fails: {first_line(error)}")
                raise
            if found is None or again is None:
                raise self._following(code, WRITES)
            if not _are_equal_results(found, again):  # such as a function that counts its calls
                raise self._following(code, NEEDS_NUMBERS)
            return found

        sources = list(call.sources.values())
        found = self.find(name, run_example, sources, make_finding)
        return pytree.tree_map(partial(_wrap_array, sources if code is None else ()), found[0])


def _record_or_call(plain: FunctionType, *args: Any, **options: Any) -> Any:
    findings = current_findings()
    leaves = pytree.tree_leaves((args, options))
    if findings is None or not any(isinstance(x, Tensor) or type(x) is TracedArray for x in leaves):
        return plain(*args, **options)
    return findings.record(plain, args, options, plain.__code__)


class _Kind(NamedTuple):
    """How a tensor holds an argument or a result."""

    name: str
    encode: Callable[[Any], Tensor]
    restore: Callable[[Tensor], Any]


def _tensor_of_array(x: Any) -> Tensor:
    return torch.from_numpy(np.array(x))


_TENSOR = _Kind("tensor", lambda x: x, lambda x: x)
_ARRAY = _Kind("array", lambda x: x.tensor, lambda x: x.detach().numpy())
_NUMBER = _Kind("number", lambda x: x.tensor, lambda x: x.detach().numpy()[()])
_SIZE = _Kind("size", encode_size, lambda x: x.shape[0])
_FOUND_ARRAY = _Kind("array", _tensor_of_array, TracedArray)
_FOUND_NUMBER = _Kind("number", _tensor_of_array, partial(TracedArray, is_number=True))
_FOUND_COUNT = _Kind("count", encode_count, lambda x: x.shape[0] - LEAST_SIZE)


def _source_kind(x: Any) -> _Kind | None:
    if type(x) is TracedArray:
        return _NUMBER if x.is_number else _ARRAY
    return _TENSOR if isinstance(x, Tensor) else _SIZE if is_size(x) else None


def _result_kind(x: Any) -> _Kind | None:
    if isinstance(x, Tensor):
        return _TENSOR
    if is_array(x):
        return _FOUND_NUMBER if isinstance(x, np.generic) else _FOUND_ARRAY
    return _FOUND_COUNT if is_size(x) else None


def _can_be_kept(x: Any) -> bool:
    # the text of a size would stay
    plain = type(x) in _PLAIN or isinstance(x, type | np.dtype) or is_array(x)
    return plain and not (isinstance(x, str) and any(map(str.isdigit, x)))


class _Slice(NamedTuple):
    start: Any
    stop: Any
    step: Any


def _open_slices(x: Any) -> Any:
    if type(x) is slice:
        return _Slice(x.start, x.stop, x.step)
    return tuple(map(_open_slices, x)) if type(x) is tuple else x


def _close_slices(x: Any) -> Any:
    if type(x) is _Slice:
        return slice(*x)
    return tuple(map(_close_slices, x)) if type(x) is tuple else x


@dataclass(frozen=True)
class _NumpyCall:
    """Call of a function: leaves of the arguments, with None for each source."""

    function: Any
    leaves: list[Any]
    spec: pytree.TreeSpec
    names: tuple[str, ...]  # of the last arguments
    sources: dict[int, Tensor]  # by place
    kinds: dict[int, _Kind]
    asks: list[bool]  # whether sources require gradients

    @staticmethod
    def split(
        function: Any, args: Sequence[Any], options: dict[str, Any], containers: tuple[type, ...]
    ) -> _NumpyCall | None:
        """Call of arguments; None if a program cannot keep these."""
        given = _open_slices((*args, *options.values()))
        leaves, spec = pytree.tree_flatten(given, is_leaf=lambda x: type(x) not in containers)
        kinds = {n: kind for n, x in enumerate(leaves) if (kind := _source_kind(x)) is not None}
        rest = [None if n in kinds else x for n, x in enumerate(leaves)]
        if not all(map(_can_be_kept, rest)):
            return None
        sources = {n: kind.encode(leaves[n]) for n, kind in kinds.items()}
        asks = [x.requires_grad for x in sources.values()]
        return _NumpyCall(function, rest, spec, tuple(options), sources, kinds, asks)

    def kept(self) -> tuple:
        """All that a program keeps of the call, to compare."""
        rest = [(type(x), x.tobytes(), x.shape, x.dtype) if is_array(x) else (type(x), repr(x)) for x in self.leaves]
        kinds = [(n, kind.name) for n, kind in self.kinds.items()]
        return self.spec, self.names, rest, kinds, getattr(self.function, "__qualname__", "")

    def run(self, sources: Sequence[Tensor], may_view: bool = True) -> tuple[Any] | None:
        """Result as a tuple; None if the function writes into, or views, an argument."""
        with disabled_modes(), active_findings(None), torch.enable_grad():
            copies = [x.detach().clone().requires_grad_(asks) for x, asks in zip(sources, self.asks, strict=True)]
            leaves = [_read_only(x) if isinstance(x, np.ndarray) else x for x in self.leaves]
            for (n, kind), x in zip(self.kinds.items(), copies, strict=True):
                leaves[n] = kind.restore(x)
            args = list(_close_slices(pytree.tree_unflatten(leaves, self.spec)))
            first = len(args) - len(self.names)
            made = self.function(*args[:first], **dict(zip(self.names, args[first:], strict=True)))
            if not (may_view or _are_apart(pytree.tree_leaves(made), copies)):
                return None
            return (made,) if all(map(_are_equal, copies, sources)) else None


@dataclass(frozen=True)
class _Outcome:
    """Structure of results, with None for tensors, arrays and counts."""

    leaves: list[Any]
    spec: pytree.TreeSpec
    kinds: dict[int, _Kind]  # by place

    @staticmethod
    def describe(results: Any) -> _Outcome | None:
        """Description of results; None if a program cannot take these."""
        leaves, spec = pytree.tree_flatten(results)
        kinds = {n: kind for n, x in enumerate(leaves) if (kind := _result_kind(x)) is not None}
        rest = [None if n in kinds else x for n, x in enumerate(leaves)]
        differentiable = any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        plain = all(type(x) in _PLAIN for x in rest)
        return _Outcome(rest, spec, kinds) if plain and not differentiable else None

    def tensors(self, results: Any) -> list[Tensor] | None:
        """Tensors of results with this structure, else None."""
        found = _Outcome.describe(results)
        if found is None or (found.spec, found.kinds) != (self.spec, self.kinds):
            return None
        if str(found.leaves) != str(self.leaves):  # 0.0 is no -0.0, 1 no 1.0
            return None
        leaves = pytree.tree_leaves(results)
        return [kind.encode(leaves[n]) for n, kind in self.kinds.items()]

    def restore(self, *tensors: Tensor) -> Any:
        """Results of tensors, with a `TracedArray` for each array."""
        leaves = list(self.leaves)
        for (n, kind), x in zip(self.kinds.items(), tensors, strict=True):
            leaves[n] = kind.restore(x)
        return pytree.tree_unflatten(leaves, self.spec)


def _find_by_numpy(call: _NumpyCall, outcome: _Outcome, *sources: Tensor) -> list[Tensor] | None:
    try:
        made = call.run(sources)
    except Exception:  # which the network raises itself
        return None
    return None if made is None else outcome.tensors(made)


def _read_only(x: np.ndarray) -> np.ndarray:
    view = x.view()
    view.flags.writeable = False
    return view


def _are_apart(results: Sequence[Any], sources: Sequence[Tensor]) -> bool:
    arrays = [x.detach().numpy() if isinstance(x, Tensor) else x for x in results if isinstance(x, Tensor | np.ndarray)]
    return not any(np.shares_memory(x, y.detach().numpy()) for x in arrays for y in sources)


def _are_equal(x: Tensor, y: Tensor) -> bool:
    if not x.numel():
        return True
    x, y = (z.detach().contiguous().reshape(-1).view(torch.uint8) for z in (x, y))
    return torch.equal(x, y)  # NaN is equal to itself


def _are_equal_results(x: Any, y: Any) -> bool:
    outcome = _Outcome.describe(x)
    if outcome is None:
        return True  # which is refused
    first, second = outcome.tensors(x), outcome.tensors(y)
    return first is not None and second is not None and all(map(_are_equal, first, second))


def _wrap_array(sources: Sequence[Tensor], x: Any) -> Any:
    if type(x) is TracedArray:
        return TracedArray(x.tensor.clone(), x.is_number, sources)
    return TracedArray(_tensor_of_array(x), isinstance(x, np.generic), sources) if is_array(x) else x
