"""Results as leaves and structure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.base.errors import DeployError
from tpgen.networks.objects import EnclosingObject, ObjectParts, has_attributes, rebuild_objects, split_objects
from tpgen.networks.signature import is_plain

_ROUNDING = 100.0  # units in the last place of the largest result


class Given:
    """Placeholder for a result's leaf that is the call's n-th tensor."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __repr__(self) -> str:
        return f"Given({self.place})"


class _DataclassFields:
    """Pytree node of a dataclass instance."""

    def __init__(
        self, dataclass_type: type, field_values: dict[str, Any], other_attributes: tuple[tuple[str, Any], ...]
    ) -> None:
        self.kind, self.values, self.beside = dataclass_type, field_values, other_attributes


pytree.register_pytree_node(
    _DataclassFields,
    lambda x: (list(x.values.values()), (x.kind, tuple(x.values), x.beside)),
    lambda values, context: _DataclassFields(context[0], dict(zip(context[1], values, strict=True)), context[2]),
    flatten_with_keys_fn=lambda x: (
        [(pytree.MappingKey(name), value) for name, value in x.values.items()],
        (x.kind, tuple(x.values), x.beside),
    ),
)


def are_equal_results(leaves: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Test whether floating tensors among leaves agree to half the narrowest digits; dtypes may differ."""
    pairs = [(x, y) for x, y in zip(leaves, wanted, strict=True) if _has_floating_numbers(y)]
    largest = max((float(y.abs().max()) for _, y in pairs), default=0.0)
    eps = max((torch.finfo(y.dtype).eps for _, y in pairs), default=0.0)  # arrays of numpy may widen numbers
    for x, y in pairs:
        limit = eps**0.5 * float(y.abs().max()) + _ROUNDING * eps * largest  # forces may vanish
        if x.shape != y.shape or not float((x - y).abs().max()) <= limit:
            return False
    return True


def _has_floating_numbers(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.numel() > 0


def flatten(result: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Flatten nested containers, dataclasses and objects into leaves and structure."""
    return pytree.tree_flatten(pytree.tree_map(_convert_object_to_pytree_node, result))


def unflatten(leaves: Iterable[Any], spec: pytree.TreeSpec) -> Any:
    """Rebuild a result from leaves."""
    whole = pytree.tree_unflatten(leaves, spec)
    if _has_only_containers(spec):  # as most networks return
        return whole
    return pytree.tree_map(rebuild_objects, closed_fields(whole), is_leaf=_is_object_parts)


def _has_only_containers(spec: pytree.TreeSpec) -> bool:
    return spec.type not in (_DataclassFields, ObjectParts) and all(map(_has_only_containers, spec.children()))


def leaf_constants(leaves: Sequence[Any]) -> dict[int, Any]:
    """Constant leaves by position; `DeployError` for leaves that vary or hide tensors."""
    rest = {n: x for n, x in enumerate(leaves) if not isinstance(x, Tensor)}
    for x in rest.values():
        if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise DeployError(
                "the network returns a size of a tensor as a number, which a program cannot: return tensors"
            )
        usual = is_plain(x) or isinstance(x, (type, torch.Size, Given, EnclosingObject))
        if not (usual or (callable(x) and not has_attributes(x))):
            raise DeployError(
                f"the network returns an object of class {type(x).__name__}, whose tensors a program does not see: "
                "return tensors, in tuples, lists, dicts or attributes of objects"
            )
    return rest


def values(result: Any, owned_tensors: Iterable[Tensor]) -> Any:
    """Detach a result's tensors, copying those that share memory with ``owned_tensors``."""
    leaves, spec = flatten(result)
    memory = {memory_address(x) for x in owned_tensors}
    return unflatten([_detached_copy_if_shared(x, memory) if isinstance(x, Tensor) else x for x in leaves], spec)


def _detached_copy_if_shared(x: Tensor, memory: set[int]) -> Tensor:
    return x.detach().clone() if memory_address(x) in memory else x.detach()


def memory_address(x: Tensor) -> int:
    """Return where a tensor's memory begins."""
    return x.untyped_storage().data_ptr() if x.layout == torch.strided else 0


def opened_fields(value: Any) -> Any:
    """Replace dataclasses by pytree nodes; `closed_fields` inverts."""
    return pytree.tree_map(_convert_dataclass_to_pytree_node, value, is_leaf=_is_dataclass)


def closed_fields(value: Any) -> Any:
    """Rebuild dataclasses of `opened_fields`."""
    return pytree.tree_map(_rebuild_dataclass, value, is_leaf=lambda x: isinstance(x, _DataclassFields))


def _is_object_parts(x: Any) -> bool:
    return isinstance(x, ObjectParts)


def _is_dataclass(x: Any) -> bool:
    return is_dataclass(x) and not isinstance(x, (type, nn.Module))


def _convert_dataclass_to_pytree_node(leaf: Any) -> Any:
    if not _is_dataclass(leaf):
        return leaf
    held = {field.name: getattr(leaf, field.name) for field in fields(leaf)}
    beside = tuple((name, x) for name, x in getattr(leaf, "__dict__", {}).items() if name not in held)
    return _DataclassFields(type(leaf), {name: opened_fields(x) for name, x in held.items()}, beside)


def _convert_object_to_pytree_node(leaf: Any) -> Any:
    found = _convert_dataclass_to_pytree_node(leaf)
    if found is leaf:
        return split_objects(leaf) if has_attributes(leaf) else leaf
    for each in pytree.tree_leaves(found, is_leaf=lambda x: isinstance(x, _DataclassFields) and bool(x.beside)):
        if isinstance(each, _DataclassFields):
            raise DeployError(
                f"the network returns a {each.kind.__name__} with {', '.join(sorted(dict(each.beside)))} beside its "
                "fields, which a program would lose: make a field of each"
            )
    return found


def _rebuild_dataclass(x: Any) -> Any:
    if not isinstance(x, _DataclassFields):
        return x
    # a frozen one has no other way, and one with an __init__ has computed its fields
    instance: Any = object.__new__(x.kind)
    for name, value in {**x.values, **dict(x.beside)}.items():
        object.__setattr__(instance, name, closed_fields(value))
    return instance
