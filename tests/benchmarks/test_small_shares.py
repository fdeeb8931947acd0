"""Where the time of a step goes: parts from what a profiler saw, and the picture of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import small_picture
from benchmarks.networks import SIZES
from benchmarks.small_picture import KERNELS, LOOPS, MODES, NAMES, PARTS, PRODUCTS, PYTHON, TORCH, bars
from benchmarks.small_shares import SIZES_SHOWN, measure, parts_of, shares


def test_what_is_shown_is_a_size_that_there_is() -> None:
    assert all(size in SIZES[project] for project, size in SIZES_SHOWN.items())
    assert set(NAMES) == set(SIZES_SHOWN)


def test_what_the_profiler_slows_down_is_scaled_to_the_step() -> None:
    events = [
        ("tpgen_native::form", 2.0),
        ("aten::bmm", 0.25),
        ("aoti_torch_cpu_addmm_out", 0.75),
        ("graph_0_cpp_fused_add_0", 1.0),
        ("aten::add", 3.0),
    ]
    found = shares(7.0, 9.0, events)
    assert found == pytest.approx({KERNELS: 2.0, PRODUCTS: 1.0, LOOPS: 1.0, TORCH: 1.8, PYTHON: 1.2})
    assert sum(found.values()) == pytest.approx(7.0)
    assert shares(3.0, 9.0, events)[TORCH] == 0


def test_a_call_is_taken_apart() -> None:
    x = torch.randn(300, 300)
    found = parts_of(lambda: torch.mm(x, x))
    assert set(found) == set(PARTS)
    assert found[PRODUCTS] > 0 == found[KERNELS]
    assert min(found.values()) >= 0


def test_the_picture_is_drawn_from_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {part: n + 1e-3 for n, part in enumerate(PARTS)}
    rows = [
        {"project": project, "atoms": atoms, "mode": mode, "parts": parts}
        for project in SIZES_SHOWN
        for atoms in (40, 8)
        for mode in MODES
    ]
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(small_picture, "FIGURES", file)
    assert [*bars("mace", MODES[0])] == [8, 40]
    small_picture.draw_shares(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_without_the_projects_nothing_is_measured_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path, [40]) is None
    assert "mace IS NOT MEASURED" in capsys.readouterr().err
