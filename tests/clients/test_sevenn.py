"""SevenNet itself: its model, and its scripting."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from subprocess import run
from types import SimpleNamespace

import pytest
import torch

from benchmarks.networks import sevenn
from tests.clients.checks import check_everything
from tpgen.networks.conversion.convert import convert


def test_a_model_is_converted_and_equal() -> None:
    check_everything(sevenn(27, torch.float64, hidden="8x0e+4x1e+2x2e"))


def test_a_converted_model_scripts() -> None:
    from e3nn.util import jit

    torch.set_default_dtype(torch.float32)
    case = sevenn(27, torch.float32, hidden="8x0e+4x1e+2x2e")
    case.model.eval_type_map = False  # the types are given, as a deployed model has them
    wanted = case.run(case.model, False)
    scripted = jit.script(convert(case.model))
    found = case.run(scripted, False)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-4, atol=1e-4)


def test_its_export_for_lammps_writes_a_converted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function itself; its model comes from here, as a checkpoint takes a training run to make."""
    import sevenn._keys as keys
    from sevenn.scripts import deploy as program

    torch.set_default_dtype(torch.float32)
    case = sevenn(27, torch.float32, hidden="8x0e+4x1e+2x2e")
    config = {keys.TYPE_MAP: {1: 0, 6: 1}, keys.CUTOFF: 4.0, keys.NUM_SPECIES: 2}
    given, found = dict(case.batch), []
    for name, change in (("stock", deepcopy), ("converted", lambda model: convert(deepcopy(model)))):
        made = SimpleNamespace(build_model=lambda *_, change=change, **__: change(case.model), config=dict(config))
        monkeypatch.setattr(program, "load_checkpoint", lambda _file, made=made: made)
        program.deploy("no.pth", file := str(tmp_path / f"{name}.pt"))
        given[keys.EDGE_VEC] = given[keys.EDGE_VEC].detach().requires_grad_()
        found.append(torch.jit.load(file)(dict(given)))
    for name in (keys.PRED_TOTAL_ENERGY, keys.ATOMIC_ENERGY):
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-5, atol=1e-5)
    alone = run([sys.executable, "-c", f"import torch; torch.jit.load({file!r})"], capture_output=True, text=True)
    assert "Unknown builtin op: tpgen::" in alone.stderr
