"""Files for LAMMPS, where no project is needed."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tpgen._version import __version__
from tpgen.base.errors import InputError, OptionError
from tpgen.networks.conversion.operations.pairs import (
    count_convolution_output_rows,
    gradients_count_in_pairs,
    limit_convolutions_to_local_rows,
    take_first_rows,
)
from tpgen.networks.conversion.projects import lammps

ASKED = 2  # exchanges that ask whose the ghosts are


class Project:
    """A project's class: exchanges the features of atoms once, and their gradient."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 3)
        self.rows = 0
        self.in_pairs = False

    def compute_forces(self, data: Any) -> None:
        self.in_pairs = gradients_count_in_pairs()
        rows = torch.ones(data.ntotal, 3)
        self.rows = count_convolution_output_rows(rows)
        data.forward_exchange(rows, torch.empty_like(rows), 3)
        data.reverse_exchange(rows, torch.empty_like(rows), 3)


class Converted(lammps.ConvertedForLammps, Project):
    def build_model_once(self, data: Any) -> None:
        pass


class Data:
    def __init__(self, local: int, total: int, pairs: int) -> None:
        self.nlocal, self.ntotal, self.npairs = local, total, pairs
        self.elems = torch.zeros(total, dtype=torch.int32)
        self.pair_i = self.rij = self.eatoms = self.update_pair_forces_gpu = None
        self.seen: list[tuple[str, tuple[int, ...], float]] = []

    def forward_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        """Ghosts are atoms of another rank."""
        self.seen.append(("forward", tuple(rows.shape), rows.sum().item()))
        out.copy_(rows)
        out[self.nlocal :] += 1

    def reverse_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        self.seen.append(("reverse", tuple(rows.shape), rows.sum().item()))
        out.copy_(rows)


def test_convolutions_return_local_rows() -> None:
    model, data = Converted(), Data(4, 9, 12)
    model.compute_forces(data)
    assert (model.rows, len(data.seen[ASKED:])) == (4, 2)
    assert count_convolution_output_rows(torch.ones(9, 3)) == 9  # afterwards all again


def test_a_rank_without_atoms_exchanges_zeros() -> None:
    data = Data(0, 5, 0)
    Converted().compute_forces(data)
    assert data.seen[ASKED:] == [("forward", (5, 3), 0.0), ("reverse", (5, 3), 0.0)]
    alone = Data(0, 0, 0)
    Converted().compute_forces(alone)
    assert not alone.seen


@pytest.mark.parametrize("takes", [True, False])
def test_edges_count_in_pairs_where_the_model_has_pairs(takes: bool) -> None:
    model = Converted()
    model.model.takes_pairs = takes  # type: ignore[assignment]
    model.compute_forces(Data(4, 9, 12))
    assert model.in_pairs == takes


def test_rows_that_are_all_are_not_cut_off() -> None:
    rows = torch.ones(3, 2, requires_grad=True)
    assert take_first_rows(rows, 3) is rows
    assert take_first_rows(rows, 2).shape == (2, 2)


def test_rows_are_all_again_after_an_error() -> None:
    with suppress(ZeroDivisionError), limit_convolutions_to_local_rows(2):
        assert count_convolution_output_rows(torch.ones(9, 3)) == 2
        _ = 1 // 0
    assert count_convolution_output_rows(torch.ones(9, 3)) == 9


def test_a_file_says_in_one_line_that_another_tpgen_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    torch.save(Converted(), file)
    file.seek(0)
    assert torch.load(file, weights_only=False).model.weight.shape == (3, 1)
    monkeypatch.setattr(lammps, "__version__", "0.0.1")
    file.seek(0)
    with pytest.raises(InputError, match=f"written by tpgen {__version__}, and 0.0.1 is installed here: write it anew"):
        torch.load(file, weights_only=False)


def test_the_project_is_the_only_one_that_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    there = {"mace", "sevenn"}
    monkeypatch.setattr(lammps, "find_spec", lambda name: name if name in there else None)
    for project, said in ((None, "mace, sevenn is; name one by --project"), ("nequip", "nequip is not")):
        with pytest.raises(OptionError, match=said):
            lammps.write_for_lammps(tmp_path / "a", tmp_path / "b", project)
    there.clear()
    with pytest.raises(OptionError, match="none of mace, nequip, sevenn is"):
        lammps.write_for_lammps(tmp_path / "a", tmp_path / "b", None)


def test_lammps_s_own_package_is_asked_for_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def missing(_: str) -> Any:
        raise ImportError("LAMMPS ML-IAP has to be installed. See the page")

    monkeypatch.setattr(lammps, "find_spec", bool)
    monkeypatch.setattr(lammps, "resolve_name", missing)
    with pytest.raises(
        OptionError, match=r"^nequip's class .* here \(LAMMPS ML-IAP has to be installed\): install .*$"
    ):
        lammps.write_for_lammps(tmp_path / "a", tmp_path / "b", "nequip")
