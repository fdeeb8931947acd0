"""Lives of small models of a project, with random arguments, as `tests.attacks.lives` has those of e3nn's networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.networks import Case
from tests.attacks.calls import Arguments, Subject
from tests.attacks.counts import ATTACKS, SEED
from tests.attacks.lives import LENGTH, live
from tests.clients.checks import arguments
from tpgen.base._torch import pytree

ATTACKED = ATTACKS if "ATTACKS" in os.environ else 10
OF_TENSORS = ("vmap", "forwards", "func.vjp", "batched rows")  # calls of networks whose arguments are tensors
ATOMS = (1, 2, 3, 8)


def check_lives(
    name: str,
    build: Callable[..., Case],
    options: Mapping[str, Sequence[Any]],
    outputs: Sequence[str],
    never: Sequence[str],
) -> None:
    """Attack models of random options, one after the other, with structures of several sizes, edges left out."""
    usual = {option: values[0] for option, values in options.items()}

    @cache
    def case(atoms: int) -> Case:
        """A structure, which is the same whatever the model."""
        return build(atoms, torch.float64, **usual)

    def given(random: Random) -> Arguments:
        atoms = random.choice(ATOMS)
        args, more = arguments(case(atoms))
        edges = case(atoms).edges
        kept = random.choice([edges, edges, edges // 2, 1, 0])
        return Arguments(_fewer(args, edges, kept), more, atoms)

    for start in range(0, ATTACKED, LENGTH):
        seed = SEED + start // LENGTH
        random = Random(seed)
        chosen = {option: random.choice(values) for option, values in options.items()}
        said = ", ".join(f"{option}={getattr(value, '__name__', value)}" for option, value in chosen.items())
        try:
            model = build(ATOMS[-1], torch.float64, **chosen).model
        except Exception:
            continue  # stock has no such model

        def made(_random: Random, model: nn.Module = model) -> nn.Module:
            return deepcopy(model)

        subject = Subject(f"{name} of {said}", made, given, outputs, (*OF_TENSORS, *never))
        live(subject, f"models, {name}", min(LENGTH, ATTACKED - start), seed)


def _fewer(args: Any, edges: int, kept: int) -> Any:
    """Arguments with the first of the edges alone: of all tensors that have one row or column for each."""

    def narrowed(x: Any) -> Any:
        if not isinstance(x, Tensor) or edges not in x.shape or edges < 20 or kept >= edges:
            return x
        return x.narrow(x.shape.index(edges), 0, kept).clone()

    return pytree.tree_map(narrowed, args)
