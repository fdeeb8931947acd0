"""Signatures of calls; parameter slots."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import chain, product, repeat
from operator import getitem, is_not
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import is_functorch_wrapped_tensor, pytree
from tpgen.base.errors import DeployError, InputError
from tpgen.kernels.runtime.native.identity import (
    can_test_identity,
    group_names_by_dict,
    make_identity_test,
    read_watched_names,
)
from tpgen.networks.objects import EnclosingObject, ObjectParts, enclosing_object, has_attributes, rebuild_objects
from tpgen.nn.plain_tensors import count_writes

_PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device}  # nobody can write to


def is_plain(x: Any) -> bool:
    """Whether a value is an immutable constant."""
    return type(x) in _PLAIN or isinstance(x, Enum)


@dataclass(frozen=True)
class Signature:
    """Structure and constants of a call's arguments, without tensor values."""

    spec: pytree.TreeSpec
    constants: tuple[tuple[int, type, Any], ...]  # leaves that are no tensors, with their places
    beside: tuple = field(compare=False, repr=False)  # what a network can decide by, too

    @staticmethod
    def split_call(args: tuple, options: dict[str, Any]) -> tuple[Signature, list[Tensor]]:
        """Split a call into signature and distinct tensors."""
        leaves, spec = _flatten_arguments(args, options)
        constants = tuple((n, type(x), x) for n, x in enumerate(leaves) if not isinstance(x, Tensor))
        for _, kind, x in constants:
            if not (is_plain(x) or isinstance(x, (type, EnclosingObject))):
                raise InputError(
                    "a step takes tensors and plain constants, in tuples, lists, dicts and attributes of objects, got "
                    f"{kind.__name__}: give the tensors that it holds, as to_dict() does"
                )
        tensors = {id(x): x for x in leaves if isinstance(x, Tensor)}
        order = {place: n for n, place in enumerate(tensors)}
        places = tuple(order[id(x)] for x in leaves if isinstance(x, Tensor))
        return Signature(spec, constants, (places, *_list_default_dtype_and_tensor_flags(tensors.values()))), list(
            tensors.values()
        )

    def in_order(self, tensors: list[Tensor], like: Signature) -> tuple[Signature, list[Tensor]]:
        """Signature and tensors, with dict keys ordered as in ``like``."""
        if self.spec == like.spec:
            return self, tensors
        return Signature.split_call(
            *_reorder_dicts(self.arguments(tensors), like.arguments(range(like.spec.num_leaves)))
        )

    def need(self, like: Signature) -> None:
        """Raise `InputError` unless nesting, names, constants and types equal those of ``like``."""
        if self != like:
            raise InputError(
                f"a step is for calls like its example, but this one {_describe_difference_of_calls(self, like)}: give "
                "the same names and constants, or compile another step"
            )

    def asks_otherwise(self, like: Signature) -> bool:
        """Whether a call differs from ``like`` only in requires_grad flags."""
        (places, dtype, *kinds), (same_places, same_dtype, *_) = self.beside, like.beside
        return (places, dtype) == (same_places, same_dtype) and not any(any(unusual) for _, *unusual in kinds)

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """Rebuild a call's arguments and keywords around other tensors."""
        rest, known = iter(self.beside[0]), {n: x for n, _, x in self.constants}
        leaves = [known[n] if n in known else tensors[next(rest)] for n in range(self.spec.num_leaves)]
        return rebuild_objects(pytree.tree_unflatten(leaves, self.spec))


def _reorder_dicts(x: Any, like: Any) -> Any:
    kind = type(x)
    if kind is not type(like):
        return x
    if kind in (dict, OrderedDict) and x.keys() == like.keys():
        return kind((name, _reorder_dicts(x[name], of)) for name, of in like.items())
    if kind in (list, tuple) and len(x) == len(like):
        return kind(map(_reorder_dicts, x, like))
    return x


def _describe_difference_of_calls(one: Signature, like: Signature) -> str:
    given, wanted = _describe_leaves_by_path(one), _describe_leaves_by_path(like)
    lacks, more = ([path for path in of if path not in other] for of, other in ((wanted, given), (given, wanted)))
    said = [f"{word} {', '.join(paths)}" for word, paths in (("lacks", lacks), ("has also", more)) if paths]
    changed = [path for path in given if path in wanted and given[path] != wanted[path]]
    said += [f"has {given[path]} as {path}, not {wanted[path]}" for path in changed]
    return " and ".join(said) or f"has the nesting {one.spec}, not {like.spec}"


def _describe_leaves_by_path(signature: Signature) -> dict[str, str]:
    known = {n: f"{x!r} ({kind.__name__})" for n, kind, x in signature.constants}
    leaves = [known.get(n, "a tensor") for n in range(signature.spec.num_leaves)]
    pairs, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(leaves, signature.spec))
    return {_write_argument_path(path): said for path, said in pairs}


def _write_argument_path(path: Sequence[Any]) -> str:
    _, first, *rest = path
    name = f"argument {first.idx}" if isinstance(first, pytree.SequenceKey) else str(first.key)
    return name + pytree.keystr(tuple(rest))


def tensors_by_name(signature: Signature) -> dict[str, int]:
    """Numbers of a call's tensors by dict key, attribute or position, unless ambiguous."""
    rest, constants = iter(signature.beside[0]), {n for n, _, _ in signature.constants}
    leaves = [None if n in constants else next(rest) for n in range(signature.spec.num_leaves)]
    pairs, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(leaves, signature.spec), lambda x: x is None)
    keys = [(_name_of_path_entry(path[-1]), n) for path, n in pairs if n is not None]
    counts = Counter(x for pair in keys for x in pair)
    return {name: n for name, n in keys if counts[name] == counts[n] == 1}


def _name_of_path_entry(entry: Any) -> str:
    return (
        f"argument {entry.idx}"
        if isinstance(entry, pytree.SequenceKey)
        else str(getattr(entry, "key", getattr(entry, "name", "")))
    )


def _flatten_arguments(args: tuple, options: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    # leaves and structure of arguments, as `tree_flatten` finds them in more time
    leaves: list[Any] = []
    nested: list[Any] = []
    if _collect_leaves((args, options), leaves, nested, set()):
        return leaves, _spec_of_nodes_in_preorder(tuple(nested))
    return pytree.tree_flatten((args, options))


def _collect_leaves(
    values: Iterable[Any], leaves: list[Any], nodes_in_preorder: list[Any], seen: set[int], around: tuple[Any, ...] = ()
) -> bool:
    # False at an unknown or shared object
    for x in values:
        kind = type(x)
        if isinstance(x, (Tensor, Enum)) or kind in _PLAIN:
            leaves.append(x)
            nodes_in_preorder.append(None)
        elif id(x) in seen:
            return False
        elif kind is dict:
            seen.add(id(x))
            nodes_in_preorder.append((kind, tuple(x)))
            if not _collect_leaves(x.values(), leaves, nodes_in_preorder, seen, around):
                return False
        elif kind is list or kind is tuple:
            nodes_in_preorder.append((kind, range(len(x))))
            if not _collect_leaves(x, leaves, nodes_in_preorder, seen, around):
                return False
        elif has_attributes(x):
            seen.add(id(x))
            nodes_in_preorder.append((kind, tuple(vars(x))))
            if not _collect_leaves(vars(x).values(), leaves, nodes_in_preorder, seen, (*around, x)):
                return False
        elif isinstance(x, type) or (found := enclosing_object(x, around)) is not None:
            leaves.append(x if isinstance(x, type) else found)
            nodes_in_preorder.append(None)
        else:
            return False
    return True


@lru_cache(256)
def _spec_of_nodes_in_preorder(nested: tuple[tuple[type, Sequence[Any]] | None, ...]) -> pytree.TreeSpec:
    rest = iter(nested)

    def build_next_subtree() -> Any:
        container = next(rest)
        if container is None:
            return 0
        kind, names = container
        if kind is list or kind is tuple:
            return kind(build_next_subtree() for _ in names)
        held = {name: build_next_subtree() for name in names}
        return held if kind is dict else ObjectParts(kind, held)

    return pytree.tree_structure((build_next_subtree(), build_next_subtree()))


def _list_default_dtype_and_tensor_flags(tensors: Any) -> Iterator[Any]:
    yield torch.get_default_dtype()
    for x in tensors:
        yield x.requires_grad, x.is_neg(), x.is_conj(), is_functorch_wrapped_tensor(x)


class ParameterSlots:
    """Module dicts' entries for a network's distinct parameters and buffers, except in TorchScript modules.

    With ``gradients``, programs differentiate by tensors that require gradients.
    """

    def __init__(self, network: nn.Module, gradients: bool) -> None:
        places: dict[int, list[tuple[dict, str]]] = {}
        names: dict[int, str] = {}
        own: dict[int, bool] = {}
        named = {p: m for p, m in network.named_modules() if not type(m).__module__.startswith("torch.jit")}
        self.modules = list(named.values())
        # parameters first: their numbers stay in a copy by pickle, in which e3nn's modules share no buffers
        for kind, (path, module) in product(("_parameters", "_buffers"), named.items()):
            held = getattr(module, kind)
            for name, x in held.items():
                if x is not None:
                    places.setdefault(id(x), []).append((held, name))
                    own.setdefault(id(x), kind == "_buffers")
                    names.setdefault(id(x), f"{path}.{name}".removeprefix("."))
        self._places, self._names, self.gradients = list(places.values()), list(names.values()), gradients
        self._own = list(own.values())  # whether each is a buffer
        self._first = [held for (held, _), *_ in self._places], [name for (_, name), *_ in self._places]
        self._tied = [of for of in self._places if len(of) > 1]
        self._tables = group_names_by_dict(chain.from_iterable(self._places))
        self._unmoved: Callable[[], bool] | None = None
        self._last: list[Tensor] = []

    def is_unchanged(self) -> bool:
        """Whether every slot holds a tensor, and tied slots the same one."""
        if self._unmoved is not None and self._unmoved():
            return True
        looked = (
            make_identity_test((), read_watched_names(self._tables)) if can_test_identity() else None
        )  # before places are compared
        if not self._are_slots_filled_and_tied():
            return False
        last = self._read_slots()
        if looked is not None and looked():
            self._unmoved, self._last = looked, last
        return True

    def _are_slots_filled_and_tied(self) -> bool:
        if not all(map(is_not, map(dict.get, *self._first), repeat(None))):
            return False
        return all(held.get(name) is of[0][0][of[0][1]] for of in self._tied for held, name in of)

    def tensors(self) -> list[Tensor]:
        """Current tensors of the slots."""
        return list(self._last) if self._unmoved is not None and self._unmoved() else self._read_slots()

    def _read_slots(self) -> list[Tensor]:
        return list(map(getitem, *self._first))

    @property
    def names(self) -> list[str]:
        """Names of the slots, by the first module of each tensor."""
        return list(self._names)

    def gradient_flags(self) -> list[bool]:
        """For each tensor, whether programs differentiate by the tensor."""
        return [self.gradients and x.requires_grad for x in self.tensors()]

    @contextmanager
    def restored(self, parameters: bool = False) -> Iterator[list[int]]:
        """Undo the block's writes into buffers; yield the buffers' numbers, complete after the block.

        ``parameters``: undo all.  Raises `DeployError` if the block writes to parameters, or replaces a
        tensor.
        """
        before = [
            (x, count_writes(x), x.detach().clone() if own or parameters else None)
            for x, own in zip(self.tensors(), self._own, strict=True)
        ]
        written: list[int] = []
        try:
            yield written
        finally:
            for n, (x, writes, held) in enumerate(before):
                if held is None and count_writes(x) != writes:
                    written.append(n)
                elif held is not None and not (count_writes(x) == writes and torch.equal(x, held)):  # not all count
                    written.append(n)
                    x.data.copy_(held)
        for n, ((x, *_), now) in enumerate(zip(before, self.tensors(), strict=True)):
            if now is not x or (n in written and not self._own[n]):
                raise DeployError(
                    f"the network writes into {self._names[n]}, which a program would not: call .eval() on the module "
                    "that does, or use the network as it is"
                )

    @contextmanager
    def holding(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Put ``tensors`` into the slots inside the block."""
        before = self.tensors()
        self._fill_slots(tensors)
        try:
            yield
        finally:
            self._fill_slots(before)

    def _fill_slots(self, tensors: Sequence[Tensor]) -> None:
        for places, x in zip(self._places, tensors, strict=True):
            for held, name in places:
                held[name] = x
