"""Models of random arguments after whatever happens to a network, beside stock ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from benchmarks.networks import Case, mace, nequip, sevenn
from tests.attacks.calls import Arguments, Subject
from tests.attacks.counts import ATTACKS, SEED
from tests.attacks.lives import LENGTH, live
from tests.clients.checks import arguments
from tests.clients.projects import BLOCKS, PROJECTS, WITH_PAIRS
from tpgen.base._torch import pytree

ATTACKED = ATTACKS if "ATTACKS" in os.environ else 10
OF_TENSORS = ("vmap", "forwards", "func.vjp", "batched rows")  # calls of networks whose arguments are tensors
ATOMS = (1, 2, 3, 8)


@dataclass(frozen=True)
class Kind:
    """A project's models: its name, what builds one, its options, the first of each usual, and calls it never takes."""

    name: str
    build: Any
    options: Mapping[str, tuple[Any, ...]]
    never: tuple[str, ...] = ("torch.compile",)


KINDS = {
    "mace": Kind(
        "MACE",
        mace,
        {
            "block": BLOCKS,
            "first": BLOCKS,
            "hidden": ("1x0e", "4x0e", "3x0e+3x1o", "2x0e+2x1o+2x2e", "5x0e+5x1o"),
            "correlation": (1, 2, 3),
            "max_ell": (1, 2, 3),
            "num_interactions": (1, 2, 3),
            "num_bessel": (1, 8),
            "radial_MLP": ([8], [5, 7], [16, 16, 16]),
            "radial_type": ("bessel", "gaussian", "chebyshev"),
            "MLP_irreps": (o3.Irreps("1x0e"), o3.Irreps("6x0e")),
            "gate": (nn.functional.silu, nn.functional.tanh, None),
            "pair_repulsion": (False, False, True),
            "distance_transform": ("None", "None", "Agnesi", "Soft"),
            "apply_cutoff": (True, True, False),
            "use_reduced_cg": (True, False),
            "use_so3": (False, False, True),
            "use_agnostic_product": (False, False, True),
            "use_last_readout_only": (False, False, True),
            "use_edge_irreps_first": (False, True),
            "edge_irreps": (None, None, o3.Irreps("3x0e+3x1o"), o3.Irreps("2x0e")),
            "keep_last_layer_irreps": (False, True),
        },
    ),
    "nequip": Kind(
        "NequIP",
        nequip,
        {"features": (1, 2, 5), "l_max": (1, 2), "layers": (1, 2)},
        ("float", "torch.compile", "compile_step", "compile_training"),  # a model casts to its own dtype
    ),
    "sevenn": Kind(
        "SevenNet",
        sevenn,
        {
            "hidden": ("2x0e", "4x0e+2x1e", "3x0e+2x1e+1x2e", "8x0e+4x1e+2x2e", "4x0e+2x0o+2x1o+1x1e"),
            "layers": (2, 3),
            "is_parity": (False, False, True),
            "self_connection_type": ("linear", "nequip"),
            "use_bias_in_linear": (False, True),
            "readout_as_fcn": (False, False, True),
            "act_radial": ("silu", "tanh", "ssp"),
            "weight_nn_hidden_neurons": ([8], [16, 16]),
            "_normalize_sph": (True, False),
            "train_denominator": (False, True),
            "train_shift_scale": (False, True),
        },
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("project", WITH_PAIRS)
def test_a_converted_model_is_the_stock_one(project: str) -> None:
    """Models of random options, one after the other, with structures of several sizes, edges left out."""
    kind = KINDS[project]
    usual = {option: values[0] for option, values in kind.options.items()}

    @cache
    def case(atoms: int) -> Case:
        """A structure, which is the same whatever the model."""
        return kind.build(atoms, torch.float64, **usual)

    def given(random: Random) -> Arguments:
        atoms = random.choice(ATOMS)
        args, more = arguments(case(atoms))
        edges = case(atoms).edges
        kept = random.choice([edges, edges, edges // 2, 1, 0])
        return Arguments(_fewer(args, edges, kept), more, atoms)

    for start in range(0, ATTACKED, LENGTH):
        seed = SEED + start // LENGTH
        random = Random(seed)
        chosen = {option: random.choice(values) for option, values in kind.options.items()}
        said = ", ".join(f"{option}={getattr(value, '__name__', value)}" for option, value in chosen.items())
        try:
            model = kind.build(ATOMS[-1], torch.float64, **chosen).model
        except Exception:
            continue  # stock has no such model

        def made(_random: Random, model: nn.Module = model) -> nn.Module:
            return deepcopy(model)

        never = (*OF_TENSORS, *kind.never)
        subject = Subject(f"{kind.name} of {said}", made, given, PROJECTS[project].outputs, never)
        live(subject, f"models, {kind.name}", min(LENGTH, ATTACKED - start), seed)


def _fewer(args: Any, edges: int, kept: int) -> Any:
    """Arguments with the first of the edges alone: of all tensors that have one row or column for each."""

    def narrowed(x: Any) -> Any:
        if not isinstance(x, Tensor) or edges not in x.shape or edges < 20 or kept >= edges:
            return x
        return x.narrow(x.shape.index(edges), 0, kept).clone()

    return pytree.tree_map(narrowed, args)
