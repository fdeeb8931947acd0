"""MACE, NequIP and SevenNet models as networks of five tensors."""

# The tensors are positions, edges, element indices, cell and cell shifts, named as in ``pair_nequip``, in float64, eV
# and Å.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base.errors import DeployError
from tpgen.networks.conversion.adapters import find_package_names_of_modules, list_package_names_of_class_and_bases
from tpgen.networks.conversion.projects.mace_files import read_model

INPUTS = ("pos", "edge_index", "atom_types", "cell", "edge_cell_shift")
OUTPUTS = ("atomic_energy", "total_energy", "forces", "stress", "virial")
WITH_GHOSTS = INPUTS[:3], ("atomic_energy", "forces", "virial")  # inputs and outputs where ghosts are among the atoms
Structure = dict[str, Tensor]
_VOIGT = (0, 3, 5, 3, 1, 4, 5, 4, 2)  # of xx yy zz xy yz zx


@dataclass(frozen=True)
class Model:
    """Description of a project's model: elements, cutoff, inputs, outputs, evaluation function."""

    elements: tuple[str, ...]
    cutoff: float
    compute: Callable[[nn.Module, Structure], Sequence[Tensor]]  # of `OUTPUTS`
    metadata: dict[str, str] = field(default_factory=dict)  # of its own
    inputs: tuple[str, ...] = INPUTS
    outputs: tuple[str, ...] = OUTPUTS
    few_alike: bool = False  # whether branches and squeezes for 0 or 1 edges change no number

    def manifest_entries(self) -> dict[str, Any]:
        """Entries of ``manifest.json``."""
        units = {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å³", "length": "Å"}
        named = {"elements": list(self.elements), "cutoff": self.cutoff, "units": units}
        return {**named, "inputs": list(self.inputs), "outputs": list(self.outputs)}

    def describe_for_readme(self) -> str:
        """Describe inputs and results for the README."""
        shift, ends = ("", " of local atoms i") if "cell" not in self.inputs else (" + edge_cell_shift @ cell", "")
        return (
            f"You get {', '.join(f'`{name}`' for name in self.outputs)}, in eV and Å.\n\n`atom_types` counts from 0 in "
            f"{', '.join(self.elements)}. An edge (i, j) has the vector `pos[j] - pos[i]{shift}`; "
            f"give all edges{ends} below {self.cutoff} Å, in both directions."
        )

    def pair_nequip_metadata(self) -> dict[str, str]:
        """Package metadata for ``pair_nequip``."""
        return {
            **self.metadata,
            "r_max": repr(self.cutoff),
            "num_types": str(len(self.elements)),
            "type_names": " ".join(self.elements),
            "model_dtype": "float64",
            "allow_tf32": "0",
            "nequip_aoti_inputs": " ".join(self.inputs),
            "nequip_aoti_outputs": " ".join(self.outputs),
        }

    def make_example_inputs(self) -> list[Tensor]:
        """Tensors ``inputs`` of a perturbed cube of eight atoms."""
        generator = torch.Generator().manual_seed(0)
        places = torch.cartesian_prod(*3 * [torch.arange(2)]).double()
        shaken = places + 0.05 * torch.randn(places.shape, generator=generator, dtype=torch.float64)
        positions = 0.4 * self.cutoff * shaken
        edges = (torch.cdist(positions, positions) < self.cutoff).fill_diagonal_(False).nonzero().T.contiguous()
        types, cell = torch.arange(len(places)) % len(self.elements), 4 * self.cutoff * torch.eye(3).double()
        return [positions, edges, types, cell[None], torch.zeros(edges.shape[1], 3).double()][: len(self.inputs)]

    def with_ghosts(self, network: nn.Module) -> Model:
        """A copy for atoms and ghosts, without a cell; `DeployError` unless Allegro."""
        if "allegro" not in find_package_names_of_modules(network):
            raise DeployError(
                f"{type(network).__name__} passes messages between atoms, so ghosts would need those of their own "
                "neighbours: only Allegro is deployed with ghosts"
            )
        inputs, outputs = WITH_GHOSTS
        return replace(self, inputs=inputs, outputs=outputs)


class OfStructures(nn.Module):
    """Module from a structure's tensors to a `Model`'s outputs."""

    def __init__(self, network: nn.Module, model: Model) -> None:
        super().__init__()
        self.network, self.compute, self.inputs, self.outputs = network, model.compute, model.inputs, model.outputs
        self.dtype = next(p.dtype for p in network.parameters() if p.is_floating_point())

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Outputs, detached, in float64, of a structure's tensors ``inputs``."""
        given = dict(zip(self.inputs, tensors, strict=True))
        if "cell" not in given:
            positions, edges = given["pos"], given["edge_index"]
            given |= {
                "cell": torch.eye(3).to(positions)[None],
                "edge_cell_shift": positions.new_zeros(edges.shape[1], 3),
            }
        given = {name: x.to(self.dtype) if x.is_floating_point() else x for name, x in given.items()}
        with torch.enable_grad():
            found = self.compute(self.network, {name: x.detach() for name, x in given.items()})
        results = dict(zip(OUTPUTS, found, strict=True))
        return tuple(results[name].detach().double() for name in self.outputs)


def describe_model(network: nn.Module) -> Model:
    """Describe a MACE, NequIP or SevenNet network; `DeployError` for others."""
    packages = list_package_names_of_class_and_bases(network)
    for project, (_, make) in _PROJECTS.items():
        if project in packages:
            return make(network)
    raise DeployError(
        f"{type(network).__name__} is no model of {', '.join(_PROJECTS)}, whose inputs are known: give the tensors of "
        "one call as inputs"
    )


def read_model_file(project: str, source: Path) -> nn.Module:
    """Read a network from a MACE, NequIP or SevenNet file."""
    return _PROJECTS[project][0](source).eval()


def _compute_mace_outputs(network: nn.Module, structure: Structure) -> Sequence[Tensor]:
    positions, edges, types, cell, shifts = (structure[name] for name in INPUTS)
    elements = len(network.atomic_numbers)  # type: ignore[arg-type]
    batch = torch.zeros_like(types)
    data = {
        "positions": positions, "edge_index": edges, "cell": cell[0], "unit_shifts": shifts, "shifts": shifts @ cell[0],
        "node_attrs": nn.functional.one_hot(types, elements).to(positions.dtype), "batch": batch,
        "ptr": types.new_zeros(2), "head": types.new_zeros(1),
    }  # fmt: skip
    found = network(data, training=False, compute_virials=True, compute_stress=True)
    energies, energy = found["node_energy"].unsqueeze(1), found["energy"].unsqueeze(1)
    return energies, energy, found["forces"], found["stress"], found["virials"]


def _describe_nequip_model(network: Any) -> Model:
    held = network if hasattr(network, "metadata") else next(iter(network.values()))
    known = dict(held.metadata)
    return Model(
        tuple(known["type_names"].split()), float(known["r_max"]), _compute_nequip_outputs, known, few_alike=True
    )


def _compute_nequip_outputs(network: nn.Module, structure: Structure) -> Sequence[Tensor]:
    found = network(dict(structure))
    return [found[name] for name in OUTPUTS]


def _describe_sevennet_model(network: Any) -> Model:
    network.set_is_batch_data(False)
    numbers = {place: number for number, place in network.type_map.items()}
    elements = _list_chemical_symbols([numbers[n] for n in range(len(numbers))])
    return Model(
        elements, float(network.cutoff), _compute_sevennet_outputs, few_alike=True
    )  # its kernels take no empty tensors


def _compute_sevennet_outputs(network: Any, structure: Structure) -> Sequence[Tensor]:
    positions, (src, dst), types, cell, shifts = (structure[name] for name in INPUTS)
    vectors = (positions[dst] - positions[src] + shifts @ cell[0]).requires_grad_()
    places = torch.tensor([number for number, _ in sorted(network.type_map.items(), key=lambda item: item[1])])
    volume = torch.linalg.det(cell[0]).abs()
    data = {
        "x": types, "atomic_numbers": places[types], "edge_index": structure["edge_index"], "edge_vec": vectors,
        "cell_volume": volume, "num_atoms": torch.ones_like(types).sum(), "pos": positions,
    }  # fmt: skip
    found = network(data)
    stress = -found["inferred_stress"].reshape(6)[list(_VOIGT)].reshape(1, 3, 3)
    energy = found["inferred_total_energy"].reshape(1, 1)
    return found["atomic_energy"], energy, found["inferred_force"], stress, -stress * volume.clamp_min(1e-3)


def _list_chemical_symbols(numbers: Sequence[int]) -> tuple[str, ...]:
    symbols = import_module("ase.data").chemical_symbols  # which all of these projects have
    return tuple(symbols[n] for n in numbers)


# project -> what reads its file, and what says which model a network is
_PROJECTS: dict[str, tuple[Callable[[Path], nn.Module], Callable[[Any], Model]]] = {
    "mace": (
        read_model,
        lambda network: Model(
            _list_chemical_symbols(network.atomic_numbers.tolist()), float(network.r_max), _compute_mace_outputs
        ),
    ),
    "nequip": (
        lambda source: import_module("nequip.model.saved_models.load_utils").load_saved_model(str(source)),
        _describe_nequip_model,
    ),
    "sevenn": (
        lambda source: import_module("sevenn.util").model_from_checkpoint(str(source))[0],
        _describe_sevennet_model,
    ),
}
