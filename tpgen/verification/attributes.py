"""Tensors that stand in a network as attributes, which no state_dict holds, and on which results depend."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.verification.subject import Named, Subject

Place = tuple[str, ...]  # names of a module, of its attribute, and of what that holds
CHANGE = 0.1  # of an attribute's entries, relative to the largest or to one


def plain_tensors(subject: Subject) -> list[str]:
    """Names of tensors that are neither parameters nor buffers, and move results where they are other ones."""
    if subject.fresh is None:
        return []
    places = [place for place, _ in _plain(subject.fresh)]
    given = {**subject.own(subject.given), **subject.fixed}
    if not places or not _moves(subject, given, places):
        return []
    return [".".join(filter(None, place)) for place in places if _moves(subject, given, [place])]


def _moves(subject: Subject, given: Named, places: list[Place]) -> bool:
    """Whether results are others when these tensors are."""
    changed = deepcopy(subject.fresh)
    assert changed is not None
    with torch.no_grad():
        for place, x in _plain(changed):
            if place in places:
                x.data.add_(CHANGE * max(1.0, float(x.abs().max())))
    fresh = deepcopy(subject.fresh)
    assert fresh is not None
    try:
        found = subject.called(changed, _copies(given))
    except Exception:  # as of a table that must hold what it holds
        return True
    expected = subject.called(fresh, _copies(given))
    return any(not torch.equal(found[name], y) for name, y in expected.items())


def _copies(given: Named) -> Named:
    return {name: x.clone() for name, x in given.items()}


def _plain(network: nn.Module) -> list[tuple[Place, Tensor]]:
    """Floating tensors among the attributes of modules, also those in lists and dicts."""
    held = {x.data_ptr() for x in (*network.parameters(), *network.buffers()) if x.numel()}
    found: dict[int, tuple[Place, Tensor]] = {}
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for place, x in _tensors((path, name), value):
                if x.is_floating_point() and x.numel() and x.data_ptr() not in held:
                    found.setdefault(id(x), (place, x))
    return list(found.values())


def _tensors(place: Place, value: Any) -> Iterator[tuple[Place, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, (list, tuple)):
        for n, one in enumerate(value):
            yield from _tensors((*place, str(n)), one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _tensors((*place, str(key)), one)
