"""Checks of a product's operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, SupportsIndex

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from tpgen.base._torch import is_functorch_wrapped_tensor
from tpgen.base.errors import InputError, OptionError, PlanError, unknown
from tpgen.compiler.config import MODULE_FIELDS
from tpgen.kernels.runtime.native.one_hot import is_one_hot
from tpgen.planner.plan import ELEMENT, Maker, Plan

MODULE_OPTIONS = ("internal_weights", "compile_right", *MODULE_FIELDS)


def refuse_unknown_options(unknown_options: Iterable[str], known: Iterable[str] = MODULE_OPTIONS) -> None:
    """Raise `OptionError` for the first option, listing ``known``."""
    for name in unknown_options:
        raise OptionError(unknown("option", name, known))


def check_plan(plan: object, makers: Mapping[Maker, str]) -> None:
    """Raise `PlanError` unless one of the ``makers`` made ``plan``."""
    if not isinstance(plan, Plan) or plan.maker not in makers:
        got = plan.maker.format if isinstance(plan, Plan) else type(plan).__name__
        raise PlanError(f"from_plan takes a Plan as {' or '.join(makers.values())} makes it, got {got}")


def check_size(name: str, value: object) -> None:
    """Raise `InputError` unless a size is a nonnegative integer."""
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or value.__index__() < 0:
        raise InputError(f"{name} must be a whole number, 0 or more, got {value!r}")


def check_operand(
    name: str,
    x: Tensor,
    dim: int,
    irreps: Irreps | None,
    dtype: torch.dtype,
    device: torch.device,
    module: str = "product",
) -> None:
    """Raise `InputError` unless ``x`` is a dense tensor of given last dimension, dtype and device."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name}: must be a tensor, got {type(x).__name__}")
    _check_is_dense(name, x)
    if x.dim() == 0 or x.shape[-1] != dim:
        got = "no dimension" if x.dim() == 0 else str(x.shape[-1])
        raise InputError(
            f"{name}: the last dimension must be {dim}"
            + (f" ({irreps})" if irreps is not None else "")
            + f", got {got}"
        )
    if x.dtype != dtype:
        convert = f"{name}.to({dtype})"
        if x.dtype.is_floating_point:
            convert = f"{module}.to({x.dtype}), or {convert}"
        raise InputError(
            f"{name}: the {module} is {_dtype_name(dtype)} but {name} is {_dtype_name(x.dtype)}; convert: {convert}"
        )
    if x.device != device:
        raise InputError(
            f"{name}: the {module} is on {device} but {name} is on {x.device}; move one of them with .to(device)"
        )


def _check_is_dense(name: str, x: Tensor) -> None:
    if x.layout != torch.strided:
        kind = str(x.layout).removeprefix("torch.")
        raise InputError(f"{name}: must be a dense tensor, got one of layout {kind}; give {name}.to_dense()")


def check_edge_index(name: str, index: object) -> None:
    """Raise `InputError` unless ``index`` is a dense int64 or int32 tensor."""
    if not isinstance(index, Tensor):
        raise InputError(
            f"{name}: must be a tensor of int64 or int32, got {type(index).__name__}; make one with "
            f"torch.as_tensor({name})"
        )
    if index.dtype not in (torch.int64, torch.int32):
        raise InputError(f"{name}: must be int64 or int32, got {index.dtype}; convert it with {name}.long()")
    _check_is_dense(name, index)


def check_edge_index_fits(
    name: str, index: Tensor, like: Tensor, num_edges: int, num_rows: int, limit_name: str, check_values: bool
) -> None:
    """Raise `InputError` for an edge index of wrong device, shape or, with ``check_values``, range."""
    if index.device != like.device:
        raise InputError(f"{name}: must be on {like.device} as x is, got {index.device}; move one of them with .to()")
    if index.shape != (num_edges,):
        raise InputError(f"{name}: must hold one index for each of the {num_edges} edges, got {tuple(index.shape)}")
    if check_values:
        check_range(name, index, num_rows, f" ({limit_name})")


def check_range(name: str, index: Tensor, count: int, limit_text: str = "", noun: str = "indices") -> None:
    """Raise `InputError` if a value of a readable index is outside ``range(count)``."""
    if index.numel() and can_read_values(index):
        low, high = (int(v) for v in torch.aminmax(index))
        if low < 0 or high >= count:
            raise InputError(f"{name}: {noun} run from 0 to {count - 1}{limit_text}, got {low} to {high}")


def check_num_elements(num_elements: Any) -> None:
    """Raise `PlanError` unless ``num_elements`` is a positive integer."""
    if not isinstance(num_elements, int) or isinstance(num_elements, bool) or num_elements < 1:
        raise PlanError(
            f"num_elements must be 1 or more, or None for weights that all rows share, got {num_elements!r}"
        )


def parse_element_index(name: str, elements: Any, num_elements: int, rows: int, rows_of: str) -> Tensor:
    """Each row's element as int64, from int64 indices or one-hot rows ``elements``.

    Raises `InputError` unless ``elements`` has ``rows`` rows.
    """
    if not isinstance(elements, Tensor):
        raise InputError(f"{name}: must be a tensor, got {type(elements).__name__}; make one with torch.as_tensor")
    if elements.dtype == torch.bool:
        elements = elements.byte()  # argmax takes no flags
    if elements.dtype == torch.int64 and elements.dim() == 1:
        index = elements
    elif elements.dim() == 2 and elements.shape[1] == num_elements:
        if elements.requires_grad:
            raise InputError(
                f"{name}: says which element a row is, and has no gradient: give {name}.detach(), or int64 indices"
            )
        index = elements.argmax(dim=1)
        if can_read_values(elements) and not is_one_hot(elements):
            raise InputError(
                f"{name}: every row must have a single one and zeros: give one-hot rows, or int64 indices (rows,)"
            )
    else:
        raise InputError(
            f"{name}: must be one-hot (rows, {num_elements}), or int64 (rows,) with elements from 0 to "
            f"{num_elements - 1}, got {elements.dtype} {tuple(elements.shape)}"
        )
    if index.shape[0] != rows:
        raise InputError(f"{name}: must have a row for each of the {rows} rows of {rows_of}, got {index.shape[0]}")
    return index


def check_batches(operands: Sequence[Tensor]) -> None:
    """Raise `InputError` unless batch dimensions of (x,) y and weight broadcast."""
    batches = [x.shape[:-1] for x in operands]
    if all(not batch or batch == batches[0] for batch in batches):  # no batch: shared by all rows
        return
    names = ("x", "y", "weight")[-len(operands) :]
    check_broadcast(dict(zip(names, operands, strict=True)), batches)


def check_broadcast(named: Mapping[str, Tensor], batches: Sequence[torch.Size]) -> None:
    """Raise `InputError` unless the named tensors' batch dimensions broadcast."""
    try:
        torch.broadcast_shapes(*batches)
    except RuntimeError:
        got = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
        raise InputError(f"batch dimensions (all but the last) must be equal or 1 to broadcast, got {got}") from None


def check_weight(weight: Tensor, numel: int, shared: bool, internal: bool) -> None:
    """Raise `InputError` unless a call's weights have the right shape."""
    own = "; it also has weights of its own, leave weight out to use them" if internal else ""
    if numel == 0 and weight.numel() > 0:
        raise InputError(
            f"weight: this product has no weighted path, so it takes no weights, got {tuple(weight.shape)}"
        )
    if shared and weight.shape != (numel,):
        raise InputError(
            f"weight: this product shares its weights between all rows, so the shape must be ({numel},), "
            f"got {tuple(weight.shape)}; for weights of each row construct it with shared_weights=False{own}"
        )
    if not shared and (weight.dim() < 2 or weight.shape[-1] != numel):
        raise InputError(
            f"weight: every row has its own weights (shared_weights=False), so the shape must be (…, {numel}) "
            f"with at least one batch dimension, got {tuple(weight.shape)}"
        )


def check_parameter(
    name: str, value: Tensor, shape: tuple[int, ...], shared: bool | str, dtype: torch.dtype, device: torch.device
) -> None:
    """Raise `InputError` unless weights or biases have ``shape``, after batch axes if not shared."""
    check_operand(name, value, shape[-1], None, dtype, device, "layer")
    entries = ", ".join(map(str, shape))
    if shared == ELEMENT and value.shape != shape:
        raise InputError(
            f"{name}: each element has its own, so for {shape[0]} elements the shape must be ({entries}), "
            f"got {tuple(value.shape)}"
        )
    if shared and value.shape != shape:
        comma = "," if len(shape) == 1 else ""
        raise InputError(
            f"{name}: all rows share it, so the shape must be ({entries}{comma}), got {tuple(value.shape)}; "
            "for one of each row construct the layer with shared_weights=False"
        )
    if not shared and (value.dim() <= len(shape) or value.shape[-len(shape) :] != shape):
        raise InputError(
            f"{name}: every row has its own (shared_weights=False), so the shape must be (…, {entries}) with at least "
            f"one batch dimension, got {tuple(value.shape)}"
        )


def join_weights(weights: Sequence[Tensor], plan: Plan) -> Tensor:
    """Join one tensor per weighted instruction into a flat weight."""
    if not isinstance(weights, (list, tuple)) or not all(isinstance(w, Tensor) for w in weights):
        raise InputError(f"weight: must be a tensor, or a list of tensors, got {type(weights).__name__}")
    shapes = [i.path_shape for i in plan.instructions if i.has_weight]
    if len(weights) != len(shapes):
        raise InputError(
            f"weight: a list must hold one tensor for each of the {len(shapes)} weighted instructions, "
            f"got {len(weights)}"
        )
    flat = []
    for n, (w, shape) in enumerate(zip(weights, shapes, strict=True)):
        batch = () if plan.shared_weights else (-1,)
        if w.numel() % max(1, prod(shape)) or (plan.shared_weights and w.numel() != prod(shape)):
            rule = f"the shape {shape}" if plan.shared_weights else f"the shape (rows, *{shape})"
            raise InputError(f"weight[{n}]: must have {rule}, got {tuple(w.shape)}")
        flat.append(w.reshape(*batch, prod(shape)))
    return torch.cat(flat, dim=-1)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def can_read_values(index: Tensor) -> bool:
    """Whether Python may read a tensor's values: not traced, batched or on "meta"."""
    wrapped = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(index)
    return type(index) is Tensor and index.device.type != "meta" and not wrapped
