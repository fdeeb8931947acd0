"""Whole networks of MACE, NequIP and SevenNet on a lattice of atoms, and of e3nn, built as their users build them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import tpgen  # noqa: F401  (before e3nn: MACE's version needs that with torch 2.6 and later)

SPACING, CUTOFF, JITTER, ELEMENTS = 2.5, 5.0, 0.12, 4


@dataclass(frozen=True)
class Structure:
    """Atoms of a perturbed periodic lattice, and all pairs within the cutoff."""

    positions: Tensor
    species: Tensor
    cell: Tensor
    edges: Tensor  # (2, pairs): from, to
    shifts: Tensor  # of the pair's second atom, in cells


@dataclass(frozen=True)
class Case:
    """A model, the arguments of its call, and what of its result is energy, forces and stress."""

    model: nn.Module
    run: Callable[[nn.Module, bool], dict[str, Tensor]]
    batch: dict[str, Tensor]
    edges: int


def lattice(atoms: int, dtype: torch.dtype) -> Structure:
    """A simple cubic lattice in a box as near to a cube as can be; from 64 atoms on, 29 neighbours each."""
    sides = torch.tensor(_sides(atoms))
    generator = torch.Generator().manual_seed(0)
    grid = torch.stack(torch.meshgrid(*map(torch.arange, sides.tolist()), indexing="ij"), -1).reshape(-1, 3).double()
    positions = SPACING * grid + JITTER * torch.randn(atoms, 3, generator=generator, dtype=torch.float64)
    lengths = SPACING * sides.double()
    difference = positions[None, :] - positions[:, None]
    wraps = -torch.round(difference / lengths)
    near = (difference + wraps * lengths).norm(dim=-1) < CUTOFF
    near.fill_diagonal_(False)
    edges = torch.nonzero(near).T.contiguous()
    shifts = wraps[edges[0], edges[1]]
    species = torch.randint(ELEMENTS, (atoms,), generator=generator)
    return Structure(positions.to(dtype), species, torch.diag(lengths).to(dtype), edges, shifts.to(dtype))


def molecules(atoms: int, count: int, dtype: torch.dtype) -> list[Structure]:
    """Molecules of so many atoms: those of a lattice without its cell, each shaken in its own way."""
    s = lattice(27, torch.float64)
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        positions = s.positions[:atoms] * 0.6 + JITTER * torch.randn(atoms, 3, generator=generator, dtype=torch.float64)
        near = (torch.cdist(positions, positions) < CUTOFF).fill_diagonal_(False)
        edges = torch.nonzero(near).T.contiguous()
        shifts = torch.zeros(edges.shape[1], 3, dtype=dtype)
        found.append(Structure(positions.to(dtype), s.species[:atoms], torch.zeros(3, 3).to(dtype), edges, shifts))
    return found


def joined(structures: list[Structure]) -> Structure:
    """Structures as one, with numbers of atoms that go on, and cells below each other."""
    edges = [s.edges + n * len(s.positions) for n, s in enumerate(structures)]
    rest = {
        name: torch.cat([getattr(s, name) for s in structures]) for name in ("positions", "species", "cell", "shifts")
    }
    return Structure(edges=torch.cat(edges, 1), **rest)


def _sides(atoms: int) -> tuple[int, int, int]:
    """The box of so many atoms: 8, 8, 8 for 512, and 10, 10, 20 for 2,000."""
    first = _divisor(atoms, round(atoms ** (1 / 3)))
    second = _divisor(atoms // first, round((atoms // first) ** 0.5))
    return first, second, atoms // first // second


def _divisor(number: int, most: int) -> int:
    return next(d for d in range(most, 0, -1) if number % d == 0)


# --- the projects -----------------------------------------------------------------------------------------------------


def mace(
    atoms: int,
    dtype: torch.dtype,
    hidden: str = "128x0e+128x1o",
    block: str = "RealAgnosticResidualInteractionBlock",
    first: str = "",
    count: int = 0,
    **options: Any,
) -> Case:
    """A MACE for a lattice, or for so many molecules in one batch; ``options`` are those of its own constructor."""
    from e3nn import o3
    from mace.modules import ScaleShiftMACE, interaction_classes

    torch.manual_seed(0)
    usual = partial(
        ScaleShiftMACE, r_max=CUTOFF, num_bessel=8, num_polynomial_cutoff=5, max_ell=3, num_interactions=2,
        num_elements=ELEMENTS,
        interaction_cls=interaction_classes[block], interaction_cls_first=interaction_classes[first or block],
        hidden_irreps=o3.Irreps(hidden), MLP_irreps=o3.Irreps("16x0e"), atomic_energies=torch.zeros(ELEMENTS).numpy(),
        avg_num_neighbors=28.0, atomic_numbers=[1, 6, 7, 8], correlation=3, gate=torch.nn.functional.silu,
        atomic_inter_scale=1.0, atomic_inter_shift=0.0, radial_MLP=[64, 64, 64],
    )  # fmt: skip
    model = usual(**options)
    s = joined(molecules(atoms, count, dtype)) if count else lattice(atoms, dtype)
    graphs = count or 1
    batch = {
        "positions": s.positions, "cell": s.cell, "edge_index": s.edges, "unit_shifts": s.shifts,
        "shifts": s.shifts @ s.cell[:3], "batch": torch.arange(graphs).repeat_interleave(atoms),
        "node_attrs": torch.nn.functional.one_hot(s.species, ELEMENTS).to(dtype),
        "ptr": torch.arange(graphs + 1) * atoms, "head": torch.zeros(graphs, dtype=torch.int64),
    }  # fmt: skip
    stress = not count  # molecules have none

    def run(network: nn.Module, training: bool) -> dict[str, Tensor]:
        found = network(dict(batch), training=training, compute_stress=stress)
        return {name: found[name] for name in ("energy", "forces", *(["stress"] if stress else []))}

    return Case(model, run, batch, s.edges.shape[1])


def nequip(atoms: int, dtype: torch.dtype, features: int = 64, l_max: int = 2, layers: int = 3) -> Case:
    from nequip.model import NequIPGNNModel

    return _of_nequip(NequIPGNNModel, atoms, dtype, num_layers=layers, l_max=l_max, num_features=features)


def allegro(
    atoms: int, dtype: torch.dtype, features: int = 32, scalars: int = 64, l_max: int = 2, coupled: bool = True
) -> Case:
    """Allegro, which comes as an extension of NequIP."""
    from allegro.model import AllegroModel

    return _of_nequip(
        AllegroModel, atoms, dtype, num_layers=2, l_max=l_max, num_tensor_features=features,
        num_scalar_features=scalars, tp_path_channel_coupling=coupled,
        radial_chemical_embed={"_target_": "allegro.nn.TwoBodyBesselScalarEmbed", "num_bessels": 8},
    )  # fmt: skip


def _of_nequip(build: Callable[..., nn.Module], atoms: int, dtype: torch.dtype, **options: Any) -> Case:
    from nequip.data import AtomicDataDict as keys
    from nequip.utils.global_state import set_global_state

    set_global_state()
    s = lattice(atoms, dtype)
    model = build(
        seed=0, model_dtype=str(dtype).removeprefix("torch."), r_max=CUTOFF, type_names=["H", "C", "N", "O"],
        parity=True, avg_num_neighbors=28.0, per_type_energy_scales=1.0, per_type_energy_shifts=0.0, **options,
    )  # fmt: skip
    batch = {
        keys.POSITIONS_KEY: s.positions, keys.CELL_KEY: s.cell[None], keys.EDGE_INDEX_KEY: s.edges,
        keys.EDGE_CELL_SHIFT_KEY: s.shifts, keys.ATOM_TYPE_KEY: s.species,
        keys.BATCH_KEY: torch.zeros(len(s.positions), dtype=torch.int64),
        keys.NUM_NODES_KEY: torch.tensor([len(s.positions)]), keys.PBC_KEY: torch.ones(1, 3, dtype=torch.bool),
    }  # fmt: skip
    results = {"energy": keys.TOTAL_ENERGY_KEY, "forces": keys.FORCE_KEY, "stress": keys.STRESS_KEY}

    def run(network: nn.Module, training: bool) -> dict[str, Tensor]:
        found = _set(network, training)(dict(batch))
        return {name: found[key] for name, key in results.items()}

    return Case(model, run, batch, s.edges.shape[1])


def sevenn(atoms: int, dtype: torch.dtype, hidden: str = "128x0e+64x1e+32x2e", layers: int = 5, **options: Any) -> Case:
    """A SevenNet for a lattice; ``options`` are those of its configuration, by the names of its keys."""
    import sevenn._keys as keys
    from sevenn._const import DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG
    from sevenn.model_build import build_E3_equivariant_model

    torch.manual_seed(0)
    s = lattice(atoms, dtype)
    scalars = hidden.partition("+")[0]
    copies = int(scalars.removesuffix("x0e"))
    config = dict(DEFAULT_E3_EQUIVARIANT_MODEL_CONFIG)
    config |= {
        keys.CUTOFF: CUTOFF, keys.NUM_SPECIES: ELEMENTS, keys.NODE_FEATURE_MULTIPLICITY: copies, keys.LMAX: 2,
        keys.IS_PARITY: False, keys.NUM_CONVOLUTION: layers, keys.CONV_DENOMINATOR: 28.0, keys.SHIFT: 0.0,
        keys.SCALE: 1.0, keys.IRREPS_MANUAL: [scalars, *(layers - 1) * [hidden], scalars],
        keys.SELF_CONNECTION_TYPE: "linear", keys.TYPE_MAP: {1: 0, 6: 1, 7: 2, 8: 3},
        keys.CHEMICAL_SPECIES: ["H", "C", "N", "O"], **options,
    }  # fmt: skip
    model = build_E3_equivariant_model(config).to(dtype)
    model.set_is_batch_data(False)
    if dtype == torch.float64:  # one-hot elements are float32, whatever the model is
        model.get_submodule("onehot_idx_to_onehot").register_forward_hook(_widen)
    batch = {
        keys.POS: s.positions, keys.CELL: s.cell, keys.EDGE_IDX: s.edges, keys.CELL_SHIFT: s.shifts,
        keys.ATOMIC_NUMBERS: torch.tensor([1, 6, 7, 8])[s.species], keys.NODE_FEATURE: s.species,
        keys.CELL_VOLUME: torch.linalg.det(s.cell), keys.NUM_ATOMS: torch.tensor(len(s.positions)),
        keys.EDGE_VEC: s.positions[s.edges[1]] - s.positions[s.edges[0]] + s.shifts @ s.cell,
    }  # fmt: skip
    results = {"energy": keys.PRED_TOTAL_ENERGY, "forces": keys.PRED_FORCE, "stress": keys.PRED_STRESS}

    def run(network: nn.Module, training: bool) -> dict[str, Tensor]:
        given = dict(batch)
        given[keys.EDGE_VEC] = given[keys.EDGE_VEC].clone().requires_grad_()
        found = _set(network, training)(given)
        return {name: found[key] for name, key in results.items()}

    return Case(model, run, batch, s.edges.shape[1])


def _set(network: nn.Module, training: bool) -> nn.Module:
    """In the mode of a task; that goes through all modules, so only where it changes."""
    return network if network.training == training else network.train(training)


def _widen(_module: nn.Module, _given: Any, data: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in data.items()}


# project -> what a size of it is called -> the case of so many atoms; the first is the one that is meant without a name
class _Potential(nn.Module):
    """The energy of a network, and forces."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        positions = data["pos"].detach().requires_grad_()
        energy = self.network({**data, "pos": positions}).sum()
        (slopes,) = torch.autograd.grad(energy, positions, create_graph=self.training)
        return {"energy": energy, "forces": -slopes}


def gate_points(atoms: int, dtype: torch.dtype, name: str, copies: int = 32, layers: int = 2) -> Case:
    """An example network of e3nn's own, which finds its edges itself, of a ball of atoms with 10 neighbours each."""
    from importlib import import_module

    torch.manual_seed(0)
    hidden = "+".join(f"{copies}x{degree}{parity}" for degree in range(3) for parity in "eo")
    network = import_module(f"e3nn.nn.models.{name}").Network(
        irreps_in="4x0e", irreps_hidden=hidden, irreps_out="0e", irreps_node_attr="0e", irreps_edge_attr="0e+1o+2e",
        layers=layers, max_radius=2.0, number_of_basis=10, radial_layers=1, radial_neurons=64, num_neighbors=10.0,
        num_nodes=float(atoms),
    )  # fmt: skip
    directions = nn.functional.normalize(torch.randn(atoms, 3, dtype=dtype), dim=1)
    positions = directions * (torch.rand(atoms, 1, dtype=dtype) * atoms * 0.8).pow(1 / 3)
    data = {"pos": positions, "x": torch.rand(atoms, 4, dtype=dtype), "z": torch.ones(atoms, 1, dtype=dtype)}
    edges = int((torch.cdist(positions, positions) < 2.0).sum()) - atoms

    def run(potential: nn.Module, training: bool) -> dict[str, Tensor]:
        potential.train(training)
        return potential(dict(data))

    return Case(_Potential(network).eval(), run, data, edges)


SIZES: dict[str, dict[str, Callable[[int, torch.dtype], Case]]] = {
    "mace": {
        "128x0e+128x1o": mace,
        "128x0e": partial(mace, hidden="128x0e"),
        "96x0e+96x1o": partial(mace, hidden="96x0e+96x1o"),
        "128x0e+128x1o, a molecule": partial(mace, count=1),
        "128x0e+128x1o, 8 molecules": partial(mace, count=8),
        "64x0e+64x1o+64x2e": partial(mace, hidden="64x0e+64x1o+64x2e"),
        # the blocks that symmetrix takes
        **{
            f"{hidden}, MACE-OFF's blocks": partial(mace, hidden=hidden, first="RealAgnosticInteractionBlock")
            for hidden in ("128x0e+128x1o", "128x0e")
        },
    },
    "nequip": {
        "l=2, 64 features": nequip,
        "l=3, 32 features": partial(nequip, features=32, l_max=3),
        "2 layers, l=3, 32 features": partial(nequip, features=32, l_max=3, layers=2),
        "Allegro": allegro,
    },
    "sevenn": {"SevenNet-0": sevenn},
    "e3nn": {name: partial(gate_points, name=name) for name in ("gate_points_2101", "gate_points_2102")},
}
