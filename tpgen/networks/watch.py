"""Checks for changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tpgen.kernels.runtime.native.identity import (
    ABSENT,
    WatchedNames,
    can_test_identity,
    group_names_by_dict,
    make_identity_test,
    read_watched_names,
)
from tpgen.kernels.runtime.native.words import (
    MemoryWord,
    read_cell_pointer,
    read_class_pointer,
    read_dict_order_words,
    read_dict_pointer,
    read_function_pointers,
    read_list_words,
    read_mro_pointer,
    read_slot_words,
)
from tpgen.networks.parts import (
    FUNCTION,
    LIST,
    PartsOf,
    attribute_names,
    attributes_of,
    bases_of,
    body_of,
    class_table,
    closure_cell_content,
    items_of,
    names_of_class,
    slot_names,
)
from tpgen.networks.reach import PLAIN_KINDS, RecordedEntry, RecordedObject

_MemoryAndNames = tuple[Sequence[MemoryWord | None] | None, Sequence[WatchedNames]]  # nothing where nobody can say

# a function that says whether all is unmoved, but for objects that it does not see; None where nobody can say
_NativeCheckAndRest = tuple[Callable[[], bool] | None, Sequence[RecordedObject]]


class Watch:
    """Recorded dict entries, objects and tensors, checked for changes."""

    def __init__(
        self, places: Sequence[RecordedEntry], wholes: Sequence[RecordedObject], tensors: Sequence[Tensor]
    ) -> None:
        self._places, self._wholes = places, wholes
        self._tables = group_names_by_dict((of.table, of.name) for of in places)
        self._tensors = [(x, x.detach().clone(), x.requires_grad) for x in tensors]
        self._unmoved: _NativeCheckAndRest = None, ()

    def is_unchanged(self) -> bool:
        """Whether everything recorded is unchanged."""
        unmoved, unseen = self._unmoved
        if unmoved is not None and unmoved() and not unseen and not self._tensors:
            return True
        return self._are_recorded_values_equal()

    def _are_recorded_values_equal(self) -> bool:
        unmoved, unseen = self._unmoved
        if self._tensors and not all(map(_is_tensor_unchanged, self._tensors)):
            return False
        if unmoved is not None and unmoved():
            return all(map(_is_whole_unchanged, unseen))
        looked = (
            self._make_native_check()
        )  # before the rest is compared: what changes meanwhile has moved, or is compared
        if not (all(map(is_unchanged, self._places)) and all(map(_is_whole_unchanged, self._wholes))):
            return False
        self._unmoved = looked
        return True

    def _make_native_check(self) -> _NativeCheckAndRest:
        if not can_test_identity():
            return None, ()
        words: list[MemoryWord] = []
        tables, unseen = read_watched_names(self._tables), list[RecordedObject]()
        for whole in self._wholes:
            found, names = _SEEN.get(whole.parts, _nothing_to_watch)(whole.x)
            known = [word for word in found or () if word is not None]
            if found is None or len(known) < len(found):
                unseen.append(whole)
            else:
                words += known
                tables += names
        return make_identity_test(words, tables), unseen

    def changed_names_and_keys(self) -> list[tuple[str, int]]:
        """Names and keys of changed entries and objects."""
        moved = [(place.name, 0) for place in self._places if not is_unchanged(place)]
        return moved + [(whole.name, whole.key) for whole in self._wholes if not _is_whole_unchanged(whole)]


def is_unchanged(place: RecordedEntry) -> bool:
    """Whether a place still has the recorded value."""
    return _are_parts_identical(place.table.get(place.name, ABSENT), place.value)


def _is_whole_unchanged(whole: RecordedObject) -> bool:
    return _are_parts_identical(whole.parts(whole.x), whole.value)


def _is_tensor_unchanged(tensor_before_and_flag: tuple[Tensor, Tensor, bool]) -> bool:
    x, before, asks = tensor_before_and_flag
    if x.requires_grad is not asks or x.dtype != before.dtype or x.shape != before.shape:
        return False
    return torch.equal(x, before) or torch.equal(_view_as_bytes(x), _view_as_bytes(before))


def _view_as_bytes(x: Tensor) -> Tensor:
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def _are_parts_identical(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_are_parts_identical, one, other))
    return isinstance(one, PLAIN_KINDS) and one == other


# -- objects as words and names ----------------------------------------------------------------------------------------


def _memory_and_names_to_watch_in_object(x: Any) -> _MemoryAndNames:
    held = getattr(x, "__dict__", None)
    names, slots = [] if held is None else [_watch_all_names_of_dict(held)], slot_names(type(x))
    values = [getattr(x, name) for name in slots if hasattr(x, name)]
    own: list[MemoryWord | None] = list((read_slot_words(x, values) or (None,)) if slots else ())
    return (*own, read_class_pointer(x), *([] if held is None else [read_dict_pointer(x)])), names


def _memory_and_names_to_watch_in_dict(x: dict[Any, Any]) -> _MemoryAndNames:
    if type(x) is OrderedDict:
        return read_dict_order_words(x), [_watch_all_names_of_dict(x)]
    return ((), [_watch_all_names_of_dict(x)]) if type(x) is dict else _nothing_to_watch(x)


def _watch_all_names_of_dict(x: dict[Any, Any]) -> WatchedNames:
    pairs = list(dict.items(x))  # in the order of a dict, of an ordered one too
    return WatchedNames(x, [name for name, _ in pairs], [value for _, value in pairs], whole=True)


def _nothing_to_watch(_x: Any) -> _MemoryAndNames:
    return None, ()


_SEEN: dict[PartsOf, Callable[[Any], _MemoryAndNames]] = {
    FUNCTION: lambda x: (read_function_pointers(x), ()),
    LIST: lambda x: (read_list_words(x), ()) if type(x) is list else _nothing_to_watch(x),
    closure_cell_content: lambda x: (read_cell_pointer(x), ()),
    bases_of: lambda x: ([read_mro_pointer(x)], ()),
    names_of_class: lambda x: ((), [_watch_all_names_of_dict(class_table(x))]),
    body_of: lambda x: ([read_class_pointer(x), read_dict_pointer(x)], ()),
    attribute_names: lambda x: _memory_and_names_to_watch_in_dict(object.__getattribute__(x, "__dict__")),
    items_of: _memory_and_names_to_watch_in_dict,
    attributes_of: _memory_and_names_to_watch_in_object,
}
