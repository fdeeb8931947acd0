"""Postponed gathers of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor

from tpgen.base._torch import saved_tensor_hooks
from tpgen.networks.conversion.postponed import REST, Postponed, count_down_to_zero
from tpgen.nn.plain_tensors import PlainTensor, are_plain

# ``x[index]`` takes six times as long as `torch.index_select`; a kernel that sums by node needs no gathered rows.
# Gathered numbers from which on it takes less time to select rows than torch's indexing does, and to let them wait.
WORTH_SELECTING, WORTH_WAITING = 50_000, 250_000


class Gatherable(PlainTensor):
    """A layer's results ``(rows, width)``, whose rows ``x[index]`` are gathered fast, or postponed.

    Printing, copying or saving makes the object a plain `Tensor`.
    """

    _tpgen_layer: Any  # the program that made it

    @staticmethod
    def make_gatherable_if_possible(layer: Any, x: Tensor) -> Tensor:
        """Make a layer's results ``x`` a `Gatherable`; return ``x``."""
        if type(x) is Tensor and x.dim() == 2 and not torch.compiler.is_compiling() and are_plain(x):
            x.__class__ = Gatherable
            x._tpgen_layer = layer  # type: ignore[attr-defined]
        return x

    def __getitem__(self, index: Any) -> Tensor:
        return _gather_rows_or_postpone(self, index, super().__getitem__)

    def index_select(self, dim: Any, index: Any) -> Tensor:
        """As torch's; rows are gathered fast, or postponed."""
        if dim in (0, -2):
            return _gather_rows_or_postpone(self, index, lambda index: super(Gatherable, self).index_select(0, index))
        return super().index_select(dim, index)

    def detach(self) -> Tensor:
        # of the same class, for parameters made of it
        return Gatherable.make_gatherable_if_possible(self._tpgen_layer, super().detach())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._turn_into_plain_tensor().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._turn_into_plain_tensor().__deepcopy__(memo)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return self._turn_into_plain_tensor().__repr__(**options)

    def _turn_into_plain_tensor(self) -> Any:
        self._compute_postponed_gathers()
        del self._tpgen_layer
        self.__class__ = Tensor  # type: ignore[assignment]
        return self

    def _compute_postponed_gathers(self) -> None:
        for waiting in self.__dict__.pop("_tpgen_waiting", ()):
            if (call := waiting()) is not None:
                call.compute_before_write()


def _wrap_in_place_method_to_gather_first(method_name: str) -> Callable[..., Any]:
    write = getattr(Tensor, method_name)

    def compute_gathers_and_write(self: Gatherable, *args: Any, **options: Any) -> Any:
        self._compute_postponed_gathers()
        return write(self, *args, **options)

    return compute_gathers_and_write


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_WRITES = [name for name in dir(Tensor) if name.endswith("_") and not name.endswith("__") and name[0] != "_"]
for _name in ("__setitem__", *(f"__i{name}__" for name in _OPERATORS), *_WRITES):
    setattr(Gatherable, _name, _wrap_in_place_method_to_gather_first(_name))


class GatheredRows(Postponed):
    """Rows ``x[index]`` of a layer's results ``x``, postponed."""

    RULES: ClassVar[dict[Any, Callable[..., Any]]] = {}
    layer: Any

    def compute_values(self) -> Tensor:
        """Gather the rows now; the layer postpones no gather for a while."""
        self.layer.rest_of_gathers = REST
        return super().compute_values()

    def get_source_and_index(self) -> tuple[Tensor, Tensor] | None:
        """``x`` and ``index`` of postponed rows ``x[index]``; None if no longer valid."""
        if not self.is_uncomputed or not self.made.state_is_unchanged or self.made.is_written_to:
            return None
        self.used = True
        x, index = self.made.operands
        return x, index


def get_source_of_postponed_rows(x: Any) -> Any:
    """The results behind postponed rows; other values unchanged."""
    return x.made.operands[0] if isinstance(x, GatheredRows) and x.is_uncomputed else x


def _gather_rows_or_postpone(x: Gatherable, index: Any, torch_gather: Callable[[Any], Tensor]) -> Tensor:
    if type(index) is not Tensor or index.dim() != 1 or index.dtype != torch.int64 or not index.is_cpu:
        return torch_gather(index)
    numbers = index.numel() * x.shape[1]
    if not numbers or numbers < WORTH_SELECTING or torch.compiler.is_compiling() or not are_plain(x):
        return torch_gather(index)
    if not is_index_in_range(index, len(x)):
        return torch_gather(index)
    if numbers >= WORTH_WAITING and _may_postpone_gather(x):
        rows = GatheredRows.make_postponed(_select_rows, (x, index), (len(index), x.shape[1]))
        rows.layer = x._tpgen_layer
        waiting = [one for one in getattr(x, "_tpgen_waiting", ()) if one() is not None]
        x._tpgen_waiting = [*waiting, ref(rows.made)]  # type: ignore[attr-defined]
        return rows
    return _select_rows(x, index)


def _may_postpone_gather(x: Gatherable) -> bool:
    # a checkpoint must save the same when it runs again
    if torch.is_inference_mode_enabled() or x.is_inference() or saved_tensor_hooks(True) is not None:
        return False
    return count_down_to_zero(x._tpgen_layer, "rest_of_gathers")


def _select_rows(x: Tensor, index: Tensor) -> Tensor:
    return torch.index_select(x, 0, index)


def is_index_in_range(index: Tensor, count: int) -> bool:
    """Whether a non-empty index lies in ``range(count)``."""
    least, most = index.aminmax()
    return int(least) >= 0 and int(most) < count
