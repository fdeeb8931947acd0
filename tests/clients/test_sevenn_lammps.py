"""SevenNet in LAMMPS: ranks and ghosts, as its Python interface has them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.networks import lattice, sevenn
from tests.clients.ranks import assert_ranks_agree, check_without_lammps, interface
from tpgen.networks.conversion.projects.lammps import write_for_lammps


@pytest.mark.parametrize("radial", ["net", "spline"])
def test_ranks_compute_what_one_of_stock_does(
    radial: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: list[int]
) -> None:
    """In float32, which SevenNet computes in."""
    torch.set_default_dtype(torch.float32)
    with interface():
        import sevenn._keys as keys
        from sevenn import mliap as stock

        monkeypatch.setattr(stock, "load_checkpoint", lambda _: Checkpoint())
        Checkpoint.config = {keys.CUTOFF: 5.0, keys.CHEMICAL_SPECIES: ["H", "C", "N", "O"]}
        file = tmp_path / "checkpoint.pth"
        file.write_bytes(b"read by nobody here")
        write_for_lammps(file, tmp_path / "fast.pt", "sevenn", radial=radial)
        structure = lattice(48, torch.float64)
        elements = torch.tensor([1, 6, 7, 8])[structure.species]
        assert_ranks_agree(
            structure, elements, lambda: stock.SevenNetMLIAPWrapper(str(file)),
            lambda: torch.load(tmp_path / "fast.pt", weights_only=False), 2e-5, rows,
        )  # fmt: skip
        made = torch.load(tmp_path / "fast.pt", weights_only=False)
        made.build_model_once(None)
        assert all(type(m) is not stock.MLIAPWrappedConvolution for m in made.model.modules())  # which slices all rows
    assert rows


def test_the_command_line_asks_for_lammps_s_package(monkeypatch: pytest.MonkeyPatch) -> None:
    check_without_lammps(monkeypatch, "sevenn", "sevenn.mliap", "tpgen.networks.conversion.projects.sevennet_lammps")


class Checkpoint(SimpleNamespace):
    """In the place of a checkpoint that is read: builds the same model each time."""

    config: dict[str, Any]

    def build_model(self, **_: Any) -> Any:
        return sevenn(48, torch.float32, "8x0e+4x1e+4x2e").model
