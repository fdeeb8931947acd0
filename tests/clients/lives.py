"""Lives of small models of a project, with random arguments, as `tests.attacks.lives` has those of e3nn's networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.networks import Case
from tests.attacks.calls import Arguments, Subject
from tests.attacks.counts import ATTACKS, SEED, compared
from tests.attacks.lives import LENGTH, live
from tests.clients.checks import arguments
from tpgen._torch import pytree

ATTACKED = ATTACKS if "ATTACKS" in os.environ else 10
OF_TENSORS = ("vmap", "forwards", "func.vjp", "batched rows")  # calls of networks whose arguments are tensors
ATOMS = (1, 2, 3, 8)


def check_lives(
    name: str,
    build: Callable[..., Case],
    options: Sequence[dict[str, Any]],
    outputs: Sequence[str],
    never: Sequence[str],
) -> None:
    """Attack models of one set of options after the other, each with structures of several sizes, edges left out."""

    @cache
    def case(atoms: int, chosen: int) -> Case:
        return build(atoms, torch.float64, **options[chosen])

    for start in range(0, ATTACKED, LENGTH):
        seed = SEED + start // LENGTH
        chosen = Random(seed).randrange(len(options))

        def make(_random: Random, chosen: int = chosen) -> nn.Module:
            return deepcopy(case(ATOMS[-1], chosen).model)

        def given(random: Random, chosen: int = chosen) -> Arguments:
            atoms = random.choice(ATOMS)
            args, more = arguments(case(atoms, chosen))
            edges = case(atoms, chosen).edges
            kept = random.choice([edges, edges, edges // 2, 1, 0])
            return Arguments(_fewer(args, edges, kept), more, atoms)

        subject = Subject(f"{name} {options[chosen]}", make, given, outputs, (*OF_TENSORS, *never))
        compared[f"models, {name}"] += live(subject, min(LENGTH, ATTACKED - start), seed)


def _fewer(args: Any, edges: int, kept: int) -> Any:
    """Arguments with the first of the edges alone: of all tensors that have one row or column for each."""

    def narrowed(x: Any) -> Any:
        if not isinstance(x, Tensor) or edges not in x.shape or edges < 20 or kept >= edges:
            return x
        return x.narrow(x.shape.index(edges), 0, kept).clone()

    return pytree.tree_map(narrowed, args)
