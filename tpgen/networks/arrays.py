"""Arrays of numpy in a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tpgen.base._torch import pytree, replaced_attribute
from tpgen.base.errors import DeployError
from tpgen.networks.dependent import running_user_line

NEEDS_NUMBERS = (
    "numpy needs the numbers of a tensor{line}: write this line as a function of tensors, arrays and numbers outside "
    "of the network, which a program calls as it is"
)
WRITES = (
    "forward writes into an array of numpy{line}: do it in a function of tensors, arrays and numbers outside of the "
    "network, on a copy"
)
KEEPS = "forward keeps an array of numpy in the attribute {name}: keep a tensor"
OTHER_NUMBERS = "forward computes other numbers of an array in a trace: choose by isinstance, not by the class"
_FROM_ARRAYS = (torch.tensor, torch.as_tensor, torch.asarray)  # torch.from_numpy asks no mode
_METHODS = frozenset(
    (
        *("T", "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "compress", "conj", "copy", "cumprod"),
        *("cumsum", "diagonal", "dot", "flatten", "imag", "max", "mean", "min", "nonzero", "prod", "ravel", "real"),
        *("repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace"),
        *("transpose", "var"),
    )
)

_recorder: ContextVar[Any] = ContextVar("recorder of calls of numpy", default=None)


@contextmanager
def active_array_recorder(recorder: Any) -> Iterator[None]:
    """Let ``recorder`` take this thread's numpy calls on traced arrays inside the block."""
    before = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(before)


def current_array_recorder() -> Any:
    """This thread's recorder, or None."""
    return _recorder.get()


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Proxy of a numpy array, or number, in a trace."""

    __slots__ = ("_tensor", "_versions", "is_number")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Tensor, is_number: bool = False, sources: Sequence[Tensor] = ()) -> None:
        self._tensor, self.is_number = tensor.detach(), is_number
        self._versions = [(x, x._version) for x in sources]

    @property
    def may_view(self) -> bool:
        """Whether the array may view a tensor."""
        return bool(self._versions)

    @property
    def tensor(self) -> Tensor:
        """Tensor without a graph; `DeployError` if a viewed tensor was written to."""
        if any(x._version != version for x, version in self._versions):
            _raise_deploy_error(WRITES)
        return self._tensor

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what isinstance asks
        return self.dtype.type if self.is_number else np.ndarray

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        if method == "at":
            _raise_deploy_error(WRITES)
        return _record_numpy_call(ufunc if method == "__call__" else getattr(ufunc, method), args, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, options: Any) -> Any:
        return _record_numpy_call(function, args, options)

    def __array__(self, *_args: Any, **_options: Any) -> Any:  # nobody would see what reads the numbers
        _raise_deploy_error(NEEDS_NUMBERS)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _METHODS:
            _raise_deploy_error(NEEDS_NUMBERS)
        method = getattr(np.ndarray, name)
        return (
            partial(_record_numpy_method_call, method, self)
            if callable(method)
            else _record_numpy_call(getattr, (self, name), {})
        )

    def __getitem__(self, index: Any) -> Any:
        return _record_numpy_call(np.ndarray.__getitem__, (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        _raise_deploy_error(WRITES)

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(len(self)))

    def __len__(self) -> int:
        return int(tensor_read_by_python(self).shape[0])

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
        return np.dtype(str(self._tensor.dtype).removeprefix("torch."))

    def item(self) -> Any:
        """The only entry."""
        return tensor_read_by_python(self).item()

    def __bool__(self) -> bool:
        return bool(tensor_read_by_python(self))

    def __int__(self) -> int:
        return int(tensor_read_by_python(self))

    def __float__(self) -> float:
        return float(tensor_read_by_python(self))

    def __index__(self) -> int:
        return int(tensor_read_by_python(self))


def tensor_read_by_python(array: TracedArray) -> Tensor:
    """Tensor of a traced array whose numbers Python reads; may restart the trace."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.restart_if_function_is_opaque()
    return array.tensor


def is_numeric_array(x: Any) -> bool:
    """Whether a tensor can hold a plain numpy array or number."""
    if type(x) is TracedArray:
        return False
    return (type(x) is np.ndarray or isinstance(x, np.generic)) and x.dtype.kind in "biufc"


def _record_numpy_call(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    recorder = _recorder.get()
    if recorder is None or options.get("out") is not None or any(isinstance(x, Tensor) for x in args):
        _raise_deploy_error(NEEDS_NUMBERS if options.get("out") is None else WRITES)
    recorder.restart_if_function_is_opaque()
    return recorder.record_call_as_input(function, args, options)


def _record_numpy_method_call(method: Any, *args: Any, **options: Any) -> Any:
    return _record_numpy_call(method, args, options)


def _raise_deploy_error(reason: str) -> NoReturn:
    error = DeployError(reason.format(line=running_user_line()))
    recorder = _recorder.get()
    raise error if recorder is None else recorder.restart_or_keep_error(error)


class TracedArrayMode(TorchFunctionMode):
    """Makes ``tensor.numpy()`` give a `TracedArray`, and `torch.tensor` take one."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), options: dict[str, Any] | None = None
    ) -> Any:
        recorder, named = _recorder.get(), options or {}
        if recorder is not None and any(type(x) is TracedArray for x in pytree.tree_leaves((args, named))):
            if function not in _FROM_ARRAYS or type(args[0]) is not TracedArray:
                _raise_deploy_error(NEEDS_NUMBERS)
            return _convert_traced_array_to_tensor(function, *args, **named)
        if recorder is None or function not in (Tensor.numpy, Tensor.__array__) or not running_user_line():
            return function(*args, **named)
        recorder.restart_if_function_is_opaque()
        if function is Tensor.__array__:
            _raise_deploy_error(NEEDS_NUMBERS)
        return _wrap_tensor_in_traced_array(*args, **named)


def _wrap_tensor_in_traced_array(x: Tensor, *, force: bool = False) -> TracedArray:
    if x.requires_grad and not force:
        raise RuntimeError("a tensor that requires a gradient has no array: use tensor.detach().numpy()")
    return TracedArray(x, sources=(x,))


def _convert_traced_array_to_tensor(torch_conversion: Any, array: TracedArray, *_args: Any, **options: Any) -> Tensor:
    x = _tensor_of_same_memory(array)
    dtype, device = options.get("dtype") or x.dtype, options.get("device") or x.device
    copied = x.to(device, dtype, copy=torch_conversion is torch.tensor or bool(options.get("copy")))
    return copied.requires_grad_(bool(options.get("requires_grad")))


def wrap_from_numpy(from_numpy: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """Wrap `torch.from_numpy` to take traced arrays, too."""
    return lambda x: _tensor_of_same_memory(x) if type(x) is TracedArray else from_numpy(x)


def _tensor_of_same_memory(array: TracedArray) -> Tensor:
    # whoever writes into the tensor of a view would write into the viewed tensor, too
    recorder = _recorder.get()
    if recorder is not None and array.may_view:
        recorder.shared.append((array.tensor, array.tensor._version))
    return array.tensor


def refuse_traced_arrays_in_attributes(modules: Iterable[nn.Module]) -> None:
    """Raise `DeployError` if a module has one."""
    found = [(m, name, x) for m in modules for name, x in vars(m).items() if type(x) is TracedArray]
    for module, name, x in found:
        setattr(module, name, x.tensor.numpy())
    if found:
        raise DeployError(KEEPS.format(name=found[0][1]))


@contextmanager
def record_lines_that_call_numpy() -> Iterator[list[str]]:
    """Record lines of user code that call ``Tensor.numpy``."""
    lines: list[str] = []

    def wrap_numpy_method(numpy: Callable[..., Any]) -> Callable[..., Any]:
        def note_line_and_convert(x: Tensor, **options: Any) -> Any:
            lines.extend(filter(None, [running_user_line()]))
            return numpy(x, **options)

        return note_line_and_convert

    with replaced_attribute(Tensor, "numpy", wrap_numpy_method):
        yield lines
