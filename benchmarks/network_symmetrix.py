r"""symmetrix, a MACE written by hand in C++ with Kokkos, as a network that `benchmarks.network_measures` calls.

It is measured where it is installed in MACE's environment, from https://github.com/wcwitt/symmetrix:

    .clients/mace/bin/python -m benchmarks.network_measures mace --size "128x0e, MACE-OFF's blocks" \
        --modes spline symmetrix --inference
"""

from __future__ import annotations

import hashlib
import json
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.networks import Case


class Symmetrix(nn.Module):
    """Energies, forces and stress of a MACE by symmetrix, for the structure of a case.

    Its list of neighbours is sorted by the first atom, as engines have it; that is done once.  Vectors are made of
    positions in every call.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        dtype, batch = case.batch["positions"].dtype, case.batch
        self.evaluator = _evaluator(case.model, "MACEKokkos" if dtype == torch.float64 else "MACEKokkosFloat")
        senders, receivers = batch["edge_index"]
        self.order = torch.argsort(receivers, stable=True)
        self.j, self.i = senders[self.order], receivers[self.order]
        self.types = batch["node_attrs"].argmax(1).to(torch.int32).numpy()
        self.counts = torch.bincount(self.i, minlength=len(self.types)).to(torch.int32).numpy()
        self.neighbours = self.j.to(torch.int32).numpy()
        self.types_of_neighbours = self.types[self.neighbours]

    def forward(self, data: dict[str, Tensor], training: bool, compute_stress: bool) -> dict[str, Tensor]:
        positions = data["positions"].detach()
        vectors = (positions[self.j] - data["shifts"].detach()[self.order] - positions[self.i]).double()
        self.evaluator.compute_node_energies_forces(
            len(self.types), self.types, self.counts, self.neighbours, self.types_of_neighbours,
            vectors.numpy().ravel(), vectors.norm(dim=1).numpy(),
        )  # fmt: skip
        of_pairs = np.asarray(self.evaluator.node_forces).reshape(-1, 3)[: len(self.j)]
        forces = torch.zeros(len(self.types), 3, dtype=torch.float64)
        pushed = torch.from_numpy(of_pairs)
        forces.index_add_(0, self.j, pushed).index_add_(0, self.i, pushed, alpha=-1)
        energy = torch.tensor([np.sum(self.evaluator.node_energies)])
        found = {"energy": energy, "forces": forces}
        if compute_stress:
            found["stress"] = -(pushed.T @ vectors)[None] / data["cell"].detach().double().det().abs()
        return {name: x.to(positions.dtype) for name, x in found.items()}


def _evaluator(model: nn.Module, kind: str) -> Any:
    """symmetrix's own object for a model."""
    from symmetrix import symmetrix

    if not symmetrix._kokkos_is_initialized():
        symmetrix._init_kokkos()
    model = deepcopy(model).double()
    digest = hashlib.sha256(b"".join(x.numpy(force=True).tobytes() for x in model.state_dict().values())).hexdigest()
    written = Path(gettempdir()) / f"symmetrix-{digest[:16]}.json"  # it takes minutes to write
    if not written.exists():
        part = written.with_suffix(".part")  # one that is not whole must not be found
        part.write_text(json.dumps(_extracted(model)))
        part.replace(written)
    return getattr(symmetrix, kind)(str(written))


def _extracted(model: nn.Module) -> dict[str, Any]:
    """The model as symmetrix's converter describes it, which reads a file and the default dtype."""
    from symmetrix.extract_mace_data import extract_mace_data

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with TemporaryDirectory() as folder:
            torch.save(model, Path(folder) / "mace.model")
            return extract_mace_data(Path(folder) / "mace.model", model.atomic_numbers.tolist())  # type: ignore[operator]
    finally:
        torch.set_default_dtype(before)
