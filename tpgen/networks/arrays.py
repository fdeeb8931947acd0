"""Arrays of numpy in a trace: tensors, of which each operation or user function is a finding."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tpgen.base._torch import disabled_modes, pytree, replaced_attribute
from tpgen.base.errors import DeployError
from tpgen.networks.dependent import Dependent, caller_line
from tpgen.networks.parts import attributes_of
from tpgen.networks.reach import PLAIN_KINDS
from tpgen.networks.recording import LEAST_SIZE, Finding, Recording, encode_count, encode_size, is_size
from tpgen.networks.user_functions import FunctionNotedError, UserFunctions, relayed

_FIXED_KINDS = (*PLAIN_KINDS, np.ndarray, np.generic, np.dtype, type, BuiltinFunctionType, np.ufunc)
_OF_PYTHON = ("builtins", "functools")  # methods and calls with arguments hold others
_FROM_ARRAYS = (torch.tensor, torch.as_tensor, torch.asarray)  # torch.from_numpy asks no mode
_NEEDS_ARRAY = (
    "numpy needs the numbers of a tensor{line}: write this line as a function of tensors or arrays outside of the "
    "network, which a program calls as it is"
)
_WRITES = (
    "forward writes into an array of numpy{line}: do it in a function of tensors or arrays outside of the network, "
    "which a program calls as it is"
)


class ArrayFindings(Dependent):
    """`Dependent` that also finds results of numpy, and of user functions that call numpy."""

    def __init__(self, functions: UserFunctions, program: Recording) -> None:
        super().__init__(program)
        self._functions, self._stack = functions, ExitStack()

    def __enter__(self) -> Any:
        entered = super().__enter__()
        self._stack.enter_context(_ArrayMode())
        self._stack.enter_context(replaced_attribute(torch, "from_numpy", _wrap_from_numpy))
        self._stack.enter_context(_active_findings(self))
        for code in self._functions.whole:
            self._stack.enter_context(relayed(code, _record_or_call))
        return entered

    def __exit__(self, *raised: Any) -> None:
        self._stack.close()
        super().__exit__(*raised)

    def begin_again_by_function(self) -> None:
        """Note any user function around an operation of numpy, and begin again."""
        code = self._functions.outermost()
        if code is not None:
            self._functions.note(code)
            raise FunctionNotedError

    def following(self, code: CodeType | None, reason: str) -> BaseException:
        """Error that follows a function, or, without one, refuses."""
        if code is None:
            return DeployError(reason.format(line=caller_line()))
        self._functions.note(code)
        return FunctionNotedError()

    def record(self, function: Any, args: Sequence[Any], options: dict[str, Any], code: CodeType | None = None) -> Any:
        """Results of a function of tensors and arrays, as a finding."""
        call = _NumpyCall.split(function, args, options)
        if not all(map(_is_fixed, call.leaves)):
            raise self.following(code, _NEEDS_ARRAY)

        def make_finding(made: Any) -> Finding:
            outcome = _Outcome.describe(made)
            if outcome is None:
                raise self.following(code, _NEEDS_ARRAY)
            return Finding(partial(_find_by_numpy, call, outcome), outcome.restore)

        def run_example(*tensors: Tensor) -> Any:
            with disabled_modes(), _active_findings(None):
                copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]
                made = call.run(copies)
                changed = not all(map(_are_equal, copies, tensors))
            if changed:
                raise self.following(code, _WRITES)
            return made

        name = getattr(function, "__qualname__", repr(function))
        return pytree.tree_map(_wrap_array, self.find(name, run_example, [*call.sources.values()], make_finding))


_findings: ContextVar[ArrayFindings | None] = ContextVar("findings that follow arrays of numpy", default=None)


@contextmanager
def _active_findings(findings: ArrayFindings | None) -> Iterator[None]:
    before = _findings.set(findings)
    try:
        yield
    finally:
        _findings.reset(before)


def _record_or_call(plain: FunctionType, *args: Any, **options: Any) -> Any:
    findings = _findings.get()
    if findings is None or not any(map(_holds_tensor, pytree.tree_leaves((args, options)))):
        return plain(*args, **options)
    return findings.record(plain, args, options, plain.__code__)


@dataclass(frozen=True)
class _NumpyCall:
    """Call of a function: leaves of the arguments, with None for each source: a tensor, an array or a size."""

    function: Any
    leaves: list[Any]
    spec: pytree.TreeSpec
    sources: dict[int, Tensor]  # by place
    restored: dict[int, Callable[[Tensor], Any]]  # from sources

    @staticmethod
    def split(function: Any, args: Sequence[Any], options: dict[str, Any]) -> _NumpyCall:
        leaves, spec = pytree.tree_flatten((tuple(args), options))
        kinds = {n: kind for n, x in enumerate(leaves) if (kind := _source_kind(x)) is not None}
        sources = {n: kind.encode(leaves[n]) for n, kind in kinds.items()}
        rest = [None if n in kinds else x for n, x in enumerate(leaves)]
        return _NumpyCall(function, rest, spec, sources, {n: kind.restore for n, kind in kinds.items()})

    def run(self, sources: Sequence[Tensor]) -> Any:
        before = sys.gettrace()
        sys.settrace(None)  # a function that is called as it is may read anything
        try:
            with disabled_modes(), _active_findings(None):
                leaves = list(self.leaves)
                for (n, restore), x in zip(self.restored.items(), sources, strict=True):
                    leaves[n] = restore(x)
                args, options = pytree.tree_unflatten(leaves, self.spec)
                return self.function(*args, **options)
        finally:
            sys.settrace(before)


class _Kind(NamedTuple):
    """How a trace holds an argument or a result as a tensor."""

    encode: Callable[[Any], Tensor]
    restore: Callable[[Tensor], Any]


_TENSOR = _Kind(lambda x: x, lambda x: x)
_ARRAY = _Kind(lambda x: x.tensor, lambda x: x.detach().numpy()[()])  # without axes: a number of numpy
_SIZE = _Kind(encode_size, lambda x: x.shape[0])
_ARRAY_OF_RESULTS = _Kind(lambda x: _tensor_of_array(x), lambda x: TracedArray(x))
_COUNT_OF_RESULTS = _Kind(encode_count, lambda x: x.shape[0] - LEAST_SIZE)


def _source_kind(x: Any) -> _Kind | None:
    if type(x) is TracedArray:
        return _ARRAY
    return _TENSOR if isinstance(x, Tensor) else _SIZE if is_size(x) else None


def _result_kind(x: Any) -> _Kind | None:
    if isinstance(x, Tensor):
        return _TENSOR
    return _ARRAY_OF_RESULTS if _holds_numbers(x) else _COUNT_OF_RESULTS if is_size(x) else None


@dataclass(frozen=True)
class _Outcome:
    """Structure of a function's results, with None in the place of tensors, arrays and counts."""

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
        return (
            None if differentiable or not all(isinstance(x, PLAIN_KINDS) for x in rest) else _Outcome(rest, spec, kinds)
        )

    def tensors(self, results: Any) -> list[Tensor] | None:
        """Tensors of results with this structure, else None."""
        if _Outcome.describe(results) != self:
            return None
        leaves = pytree.tree_leaves(results)
        return [kind.encode(leaves[n]) for n, kind in self.kinds.items()]

    def restore(self, *tensors: Tensor) -> Any:
        """Results of tensors, with a `TracedArray` for each array."""
        leaves = list(self.leaves)
        for (n, kind), x in zip(self.kinds.items(), tensors, strict=True):
            leaves[n] = kind.restore(x)
        return pytree.tree_unflatten(leaves, self.spec)


def _find_by_numpy(call: _NumpyCall, outcome: _Outcome, *tensors: Tensor) -> list[Tensor] | None:
    try:
        return outcome.tensors(call.run([x.detach() for x in tensors]))
    except Exception:  # which the network raises itself
        return None


def _holds_tensor(x: Any) -> bool:
    return isinstance(x, Tensor) or type(x) is TracedArray


def _holds_numbers(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype.kind in "biufc"
    return isinstance(x, Tensor)


def _is_fixed(x: Any) -> bool:
    # whether a call may keep an argument: it holds no tensors
    if isinstance(x, FunctionType):
        return x.__closure__ is None
    if isinstance(x, _FIXED_KINDS):
        return True
    plain = hasattr(x, "__dict__") and type(x).__module__ not in _OF_PYTHON
    return plain and all(isinstance(part, _FIXED_KINDS) for part in attributes_of(x))


def _are_equal(x: Tensor, y: Tensor) -> bool:
    return x.detach().numpy().tobytes() == y.detach().numpy().tobytes()  # NaN is equal to itself


def _tensor_of_array(x: Any) -> Tensor:
    return torch.from_numpy(np.array(x))


def _wrap_array(x: Any) -> Any:
    known = type(x) is TracedArray or isinstance(x, Tensor)
    return TracedArray(_tensor_of_array(x)) if not known and _holds_numbers(x) else x


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Array of numpy in a trace: a ``tensor`` without a graph."""

    __slots__ = ("tensor",)
    __class__ = property(lambda _: np.ndarray)  # what isinstance asks
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        if options.get("out") is not None or method == "at":
            _refuse(_WRITES)
        return _record(ufunc if method == "__call__" else getattr(ufunc, method), args, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, options: Any) -> Any:
        return _record(function, args, options)

    def __array__(self, *_args: Any, **_options: Any) -> Any:  # nobody would see what reads the numbers
        _refuse(_NEEDS_ARRAY)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in _METHODS:
            raise AttributeError(f"an array that forward makes of a tensor has no {name} in a trace")
        method = getattr(np.ndarray, name)
        return partial(_record_method, method, self) if callable(method) else _record(getattr, (self, name), {})

    def __getitem__(self, index: Any) -> Any:
        return _record(np.ndarray.__getitem__, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        _refuse(_WRITES)

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(len(self)))

    def __len__(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.tensor.dim()

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.tensor.numel()

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    def item(self) -> Any:
        """Number of an array with one entry."""
        return self.tensor.item()

    def tolist(self) -> Any:
        """Numbers of all entries."""
        return self.tensor.tolist()

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __index__(self) -> int:
        return int(self.tensor)


_METHODS = frozenset(
    (
        *("T", "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "compress", "conj", "copy", "cumprod"),
        *("cumsum", "diagonal", "dot", "flatten", "imag", "max", "mean", "min", "nonzero", "prod", "ravel", "real"),
        *("repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace"),
        *("transpose", "var", "view"),
    )
)


def _record(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    findings = _findings.get()
    if findings is None:  # behind the trace
        raise DeployError(_NEEDS_ARRAY.format(line=caller_line()))
    findings.begin_again_by_function()
    return findings.record(function, args, options)


def _record_method(method: Any, *args: Any, **options: Any) -> Any:
    return _record(method, args, options)


def _refuse(reason: str) -> None:
    findings = _findings.get()
    if findings is not None:
        findings.begin_again_by_function()
    raise DeployError(reason.format(line=caller_line()))


_BETWEEN_BOTH = (Tensor.__array__, Tensor.numpy, *_FROM_ARRAYS)


class _ArrayMode(TorchFunctionMode):
    """Function mode that turns arrays of tensors into traced arrays, and these into tensors."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), options: dict[str, Any] | None = None
    ) -> Any:
        findings, named = _findings.get(), options or {}
        if findings is None or function not in _BETWEEN_BOTH or not caller_line():
            return function(*args, **named)
        if function is Tensor.__array__:
            _refuse(_NEEDS_ARRAY)
        if function is Tensor.numpy:
            findings.begin_again_by_function()
            return _wrap_tensor(*args, **named)
        if args and type(args[0]) is TracedArray:
            return _tensor_of_traced_array(function, args[0].tensor, *args[1:], **named)
        return function(*args, **named)


def _wrap_tensor(x: Tensor, *, force: bool = False) -> TracedArray:
    if x.requires_grad and not force:
        raise RuntimeError("a tensor that requires a gradient has no array: use tensor.detach().numpy()")
    return TracedArray(x)


def _tensor_of_traced_array(function: Any, x: Tensor, *_args: Any, **options: Any) -> Tensor:
    dtype, device = options.get("dtype") or x.dtype, options.get("device") or x.device
    copied = x.to(device, dtype, copy=function is torch.tensor or bool(options.get("copy")))
    return copied.requires_grad_(bool(options.get("requires_grad")))


def _wrap_from_numpy(from_numpy: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    return lambda x: x.tensor if type(x) is TracedArray else from_numpy(x)
