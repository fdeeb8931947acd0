"""Whole networks of other projects, stock against converted: energy, forces and stress, and a training step.

    .clients/mace/bin/python benchmarks/networks.py mace --atoms 64 --threads 1
    .clients/nequip/bin/python benchmarks/networks.py nequip --atoms 512
    .clients/sevenn/bin/python benchmarks/networks.py sevenn

Each project has an environment of its own (``make clients``).  Stock and converted are called in turn, and medians of
the ratios are shown.  ``--agree`` compares energies, forces, stress and the gradients of a force loss in float64.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tpgen import conversion_report, convert  # before e3nn: MACE's version needs that with torch 2.6 and later

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


def lattice(atoms: int, dtype: torch.dtype) -> Structure:
    """A simple cubic lattice of ``atoms`` = n³, some 28 neighbours each."""
    n = round(atoms ** (1 / 3))
    generator = torch.Generator().manual_seed(0)
    grid = torch.stack(torch.meshgrid(*3 * [torch.arange(n)], indexing="ij"), -1).reshape(-1, 3).double()
    positions = SPACING * grid + JITTER * torch.randn(n**3, 3, generator=generator, dtype=torch.float64)
    cell = SPACING * n * torch.eye(3, dtype=torch.float64)
    difference = positions[None, :] - positions[:, None]
    wraps = -torch.round(difference / (SPACING * n))
    near = (difference + wraps * SPACING * n).norm(dim=-1) < CUTOFF
    near.fill_diagonal_(False)
    edges = torch.nonzero(near).T.contiguous()
    shifts = wraps[edges[0], edges[1]]
    species = torch.randint(ELEMENTS, (n**3,), generator=generator)
    return Structure(positions.to(dtype), species, cell.to(dtype), edges, shifts.to(dtype))


# --- the projects -----------------------------------------------------------------------------------------------------


def mace(
    atoms: int, dtype: torch.dtype, hidden: str = "128x0e+128x1o", block: str = "RealAgnosticResidualInteractionBlock"
) -> Case:
    from e3nn import o3
    from mace.modules import ScaleShiftMACE, interaction_classes

    torch.manual_seed(0)
    model = ScaleShiftMACE(
        r_max=CUTOFF, num_bessel=8, num_polynomial_cutoff=5, max_ell=3, num_interactions=2, num_elements=ELEMENTS,
        interaction_cls=interaction_classes[block], interaction_cls_first=interaction_classes[block],
        hidden_irreps=o3.Irreps(hidden), MLP_irreps=o3.Irreps("16x0e"), atomic_energies=torch.zeros(ELEMENTS).numpy(),
        avg_num_neighbors=28.0, atomic_numbers=[1, 6, 7, 8], correlation=3, gate=torch.nn.functional.silu,
        atomic_inter_scale=1.0, atomic_inter_shift=0.0, radial_MLP=[64, 64, 64],
    )  # fmt: skip
    s = lattice(atoms, dtype)
    batch = {
        "positions": s.positions, "cell": s.cell, "edge_index": s.edges, "unit_shifts": s.shifts,
        "shifts": s.shifts @ s.cell, "batch": torch.zeros(len(s.positions), dtype=torch.int64),
        "node_attrs": torch.nn.functional.one_hot(s.species, ELEMENTS).to(dtype),
        "ptr": torch.tensor([0, len(s.positions)]), "head": torch.zeros(1, dtype=torch.int64),
    }  # fmt: skip

    def run(network: nn.Module, training: bool) -> dict[str, Tensor]:
        found = network(dict(batch), training=training, compute_stress=True)
        return {name: found[name] for name in ("energy", "forces", "stress")}

    return Case(model, run)


def nequip(atoms: int, dtype: torch.dtype, features: int = 64, l_max: int = 2) -> Case:
    from nequip.data import AtomicDataDict as keys
    from nequip.model import NequIPGNNModel
    from nequip.utils.global_state import set_global_state

    set_global_state()

    s = lattice(atoms, dtype)
    model = NequIPGNNModel(
        seed=0, model_dtype=str(dtype).removeprefix("torch."), r_max=CUTOFF, type_names=["H", "C", "N", "O"],
        num_layers=3, l_max=l_max, parity=True, num_features=features, avg_num_neighbors=28.0,
        per_type_energy_scales=1.0, per_type_energy_shifts=0.0,
    )  # fmt: skip
    batch = {
        keys.POSITIONS_KEY: s.positions, keys.CELL_KEY: s.cell[None], keys.EDGE_INDEX_KEY: s.edges,
        keys.EDGE_CELL_SHIFT_KEY: s.shifts, keys.ATOM_TYPE_KEY: s.species,
        keys.BATCH_KEY: torch.zeros(len(s.positions), dtype=torch.int64),
        keys.NUM_NODES_KEY: torch.tensor([len(s.positions)]), keys.PBC_KEY: torch.ones(1, 3, dtype=torch.bool),
    }  # fmt: skip
    results = {"energy": keys.TOTAL_ENERGY_KEY, "forces": keys.FORCE_KEY, "stress": keys.STRESS_KEY}

    def run(network: nn.Module, training: bool) -> dict[str, Tensor]:
        found = network.train(training)(dict(batch))
        return {name: found[key] for name, key in results.items()}

    return Case(model, run)


def sevenn(atoms: int, dtype: torch.dtype, hidden: str = "128x0e+64x1e+32x2e") -> Case:
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
        keys.IS_PARITY: False, keys.NUM_CONVOLUTION: 5, keys.CONV_DENOMINATOR: 28.0, keys.SHIFT: 0.0, keys.SCALE: 1.0,
        keys.IRREPS_MANUAL: [scalars, *4 * [hidden], scalars],
        keys.SELF_CONNECTION_TYPE: "linear", keys.TYPE_MAP: {1: 0, 6: 1, 7: 2, 8: 3},
        keys.CHEMICAL_SPECIES: ["H", "C", "N", "O"],
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
        found = network.train(training)(given)
        return {name: found[key] for name, key in results.items()}

    return Case(model, run)


def _widen(_module: nn.Module, _given: Any, data: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in data.items()}


CASES: dict[str, Callable[..., Case]] = {"mace": mace, "nequip": nequip, "sevenn": sevenn}


# --- measuring --------------------------------------------------------------------------------------------------------


def evaluation(case: Case, network: nn.Module) -> None:
    case.run(network, False)


def training(case: Case, network: nn.Module) -> None:
    found = case.run(network, True)
    loss = torch.stack([(x * torch.sin(x.detach())).sum() for x in found.values()]).sum()
    network.zero_grad()
    loss.backward()


TASKS = {"energy+forces+stress": evaluation, "training step": training}


def in_turn(case: Case, networks: dict[str, nn.Module], seconds: float) -> None:
    for task, step in TASKS.items():
        for network in networks.values():
            for _ in range(2):
                step(case, network)
        times: dict[str, list[float]] = {name: [] for name in networks}
        until = time.perf_counter() + seconds
        while len(times["stock"]) < 3 or time.perf_counter() < until:
            for name, network in networks.items():
                start = time.perf_counter()
                step(case, network)
                times[name].append(time.perf_counter() - start)
        for name, found in times.items():
            ratios = [a / b for a, b in zip(times["stock"], found, strict=True)]
            print(f"{task:22} {name:10} {1e3 * statistics.median(found):9.1f} ms  {statistics.median(ratios):5.2f}×")


def agreement(case: Case, networks: dict[str, nn.Module]) -> None:
    found, gradients = {}, {}
    for name, network in networks.items():
        found[name] = case.run(network, True)
        network.zero_grad()
        found[name]["forces"].square().sum().backward()
        gradients[name] = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    for key in found["stock"]:
        print(f"{key:22} relative difference {_relative(found['stock'][key], found['converted'][key]):.1e}")
    worst = max(_relative(g, gradients["converted"][n]) for n, g in gradients["stock"].items())
    print(f"{'gradients (forces²)':22} relative difference {worst:.1e}")


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-300))


def profile(case: Case, network: nn.Module, rows: int = 25) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    for task, step in TASKS.items():
        step(case, network)
        with profiler(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(3):
                step(case, network)
        print(task, found.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", choices=CASES)
    parser.add_argument("--atoms", type=int, default=64, help="a cube: 64, 216, 512, ...")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each task")
    parser.add_argument("--agree", action="store_true", help="compare in float64 instead of measuring")
    parser.add_argument("--profile", action="store_true", help="show the operators of the converted network instead")
    parser.add_argument("--report", action="store_true", help="show what was converted")
    asked: Any = parser.parse_args()
    torch.set_num_threads(asked.threads)
    dtype = torch.float64 if asked.agree else torch.float32
    torch.set_default_dtype(dtype)
    case = CASES[asked.project](asked.atoms, dtype)
    networks = {"stock": case.model, "converted": convert(deepcopy(case.model))}
    if asked.report:
        print(conversion_report(networks["converted"]))
    print(f"{asked.project}, {asked.atoms} atoms, {dtype}, {asked.threads} threads")
    if asked.agree:
        agreement(case, networks)
    elif asked.profile:
        profile(case, networks["converted"])
    else:
        in_turn(case, networks, asked.seconds)


if __name__ == "__main__":
    main()
