"""Shares of the time of a step, drawn from the figures of `benchmarks.small_shares`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.network_picture import CONVERTED, PROGRAM, STOCK
from tpgen.tools.inspection.figures import new_figure, save_figure

FIGURES = Path("docs/pictures/small_systems.json")
NAMES = {"mace": "MACE, 96x0e+96x1o", "nequip": "NequIP, 2 layers, l = 3"}
KERNELS, PRODUCTS, LOOPS, TORCH, PYTHON = "kernels", "matrix products", "fused loops", "torch", "Python"
PARTS = {KERNELS: "#0b6e99", PRODUCTS: "#5aa9c9", LOOPS: "#d1622b", TORCH: "#c9c4b8", PYTHON: "#8a8f98"}
MODES = (STOCK, CONVERTED, PROGRAM)


def bars(project: str, mode: str) -> dict[int, dict[str, float]]:
    """Seconds of each part of a step, by the number of atoms."""
    rows = json.loads(FIGURES.read_text())["rows"]
    found = {row["atoms"]: row["parts"] for row in rows if (row["project"], row["mode"]) == (project, mode)}
    return dict(sorted(found.items()))


def draw_shares(path: Path) -> None:
    figure = new_figure(9.2, 5.2)
    panels = figure.subplots(len(NAMES), len(MODES), sharex=True, sharey=True)
    for row, (project, name) in zip(panels, NAMES.items(), strict=True):
        for panel, mode in zip(row, MODES, strict=True):
            _panel(panel, bars(project, mode))
            panel.set_title(f"{name}: {mode}", fontsize=9)
    figure.supylabel("share of a step of energy, forces and stress, and its milliseconds", fontsize=9)
    figure.supxlabel("atoms", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(PARTS), frameon=False, fontsize=9)
    save_figure(figure, path)


def _panel(panel: Any, found: dict[int, dict[str, float]]) -> None:
    wholes, bottom = [sum(parts.values()) for parts in found.values()], [0.0] * len(found)
    for part, colour in PARTS.items():
        shares = [100 * parts[part] / whole for parts, whole in zip(found.values(), wholes, strict=True)]
        panel.bar(range(len(found)), shares, bottom=bottom, color=colour, label=part, width=0.85)
        bottom = [a + b for a, b in zip(bottom, shares, strict=True)]
    for place, whole in enumerate(wholes):
        panel.text(place, 102, f"{1e3 * whole:,.0f}" if whole > 0.01 else f"{1e3 * whole:.1f}", ha="center", fontsize=7)
    panel.set_xticks(range(len(found)), [f"{atoms:,}" for atoms in found], fontsize=7)
    panel.set_yticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"], fontsize=7)
    panel.set_ylim(0, 112)
    panel.spines[["top", "right"]].set_visible(False)
