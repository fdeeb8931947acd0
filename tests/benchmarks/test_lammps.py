"""A LAMMPS that calls models in Python is found by its name, from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lammps import lammps


@pytest.mark.parametrize(("packages", "found"), [("KOKKOS ML-IAP PYTHON", True), ("KOKKOS ML-IAP", False)])
def test_a_program_is_found_by_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: str, found: bool
) -> None:
    (tmp_path / "lmp").write_text(f"#!/bin/sh\necho Installed packages: {packages}\n")
    (tmp_path / "lmp").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMP", "./lmp")
    assert lammps.__wrapped__() == (str(tmp_path / "lmp") if found else None)


def test_a_program_that_is_not_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMP", str(tmp_path / "lmp"))
    assert lammps.__wrapped__() is None
