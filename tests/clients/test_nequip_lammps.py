"""NequIP and Allegro in LAMMPS: ranks and ghosts, as its Python interface has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.networks import Case, allegro, lattice, nequip
from tests.clients.ranks import assert_ranks_agree, check_without_lammps, interface
from tpgen.networks.conversion.convert import conversion_report
from tpgen.networks.conversion.projects.lammps import write_for_lammps


@pytest.mark.parametrize("make", [partial(nequip, features=8, l_max=1), partial(allegro, features=8, scalars=8)])
def test_ranks_compute_what_one_of_stock_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[..., Case], rows: list[int]
) -> None:
    with interface():
        from nequip.integrations.lammps_mliap import lmp_mliap_wrapper as stock

        def built(*_: Any, **__: Any) -> Any:
            """In the place of what reads a checkpoint: the same model each time, as its seed is given."""
            model = make(48, torch.float64).model
            made.append(model)
            return model

        made: list[Any] = []
        monkeypatch.setattr(stock, "load_saved_model", built)
        (tmp_path / "best.ckpt").write_bytes(b"read by nobody here")
        write_for_lammps(tmp_path / "best.ckpt", tmp_path / "fast.pt", "nequip")
        structure = lattice(48, torch.float64)
        fast = partial(torch.load, tmp_path / "fast.pt", weights_only=False)
        whole = partial(stock.NequIPLAMMPSMLIAPWrapper, str(tmp_path / "best.ckpt"), "sole_model", compile=False)
        assert_ranks_agree(structure, structure.species, whole, fast, 1e-10, rows)
        assert bool(rows) == (make.func is nequip)
        loaded = fast()
        loaded._initialize_model(None)
        assert conversion_report(loaded.model).replaced


def test_the_command_line_asks_for_lammps_s_package(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "nequip.integrations.lammps_mliap.lmp_mliap_wrapper"
    check_without_lammps(monkeypatch, "nequip", own, "tpgen.networks.conversion.projects.nequip_lammps")
