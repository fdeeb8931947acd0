"""Stock, converted and one program over the number of atoms, drawn from the figures of `benchmarks.network_sizes`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tpgen.inspection.figures import new_figure, save_figure

FIGURES = Path("docs/pictures/networks.json")
STOCK, CONVERTED, PROGRAM = "stock", "converted", "one program"
NAMES = {"mace": "MACE, 128x0e+128x1o", "nequip": "NequIP, l = 2, 64 features"}
CURVES = {  # mode: what it is called, its colour, how it is drawn
    STOCK: ("stock", "#8a8f98", "o-"),
    CONVERTED: ("the same network, converted", "#0b6e99", "o-"),
    PROGRAM: ("converted, as one program (one line more)", "#d1622b", "o--"),
}

Curve = dict[int, float]  # seconds by number of atoms


def curves(project: str) -> dict[str, Curve]:
    """What was measured of a project, by mode."""
    rows = [row for row in json.loads(FIGURES.read_text())["rows"] if row["project"] == project]
    found = {mode: {row["atoms"]: row["seconds"] for row in rows if row["mode"] == mode} for mode in CURVES}
    return {mode: dict(sorted(curve.items())) for mode, curve in found.items() if curve}


def draw_networks(path: Path) -> None:
    figure = new_figure(9.2, 3.9)
    for panel, (project, name) in zip(figure.subplots(1, 2, sharey=True), NAMES.items(), strict=True):
        _panel(panel, curves(project))
        panel.set_title(name, fontsize=11)
    figure.supylabel("energy, forces and stress: ms a step", fontsize=10)
    save_figure(figure, path)


def _panel(panel: Any, found: dict[str, Curve]) -> None:
    for mode, curve in found.items():
        label, colour, style = CURVES[mode]
        panel.loglog([*curve], [1e3 * s for s in curve.values()], style, color=colour, lw=2.2, ms=5, label=label)
    stock, ours = found[STOCK], found[CONVERTED]  # what one line of code gives
    _, colour, _ = CURVES[CONVERTED]
    for atoms in _some([*stock]):
        ends = (atoms, 1e3 * ours[atoms]), (atoms, 1e3 * stock[atoms])
        panel.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": colour, "alpha": 0.6})
        middle = 1e3 * (ours[atoms] * stock[atoms]) ** 0.5
        panel.text(atoms * 1.06, middle, f"{stock[atoms] / ours[atoms]:.0f}×", color=colour, fontsize=12, va="center")
    panel.set_xticks([*stock], [f"{atoms:,}" for atoms in stock], fontsize=9)
    panel.minorticks_off()
    least = min(s for curve in found.values() for s in curve.values())
    panel.set_ylim(1e3 * least / 2, 1e3 * max(stock.values()) * 12)  # room for the legend
    panel.set_yticks(
        ticks := [t for t in (1, 10, 100, 1000, 10000) if t < 2e3 * max(stock.values())], map("{:,}".format, ticks)
    )
    panel.set_xlim(min(stock) / 1.4, max(stock) * 1.9)
    panel.set_xlabel("atoms")
    panel.grid(axis="y", alpha=0.25)
    panel.legend(frameon=False, fontsize=9, loc="upper left")
    panel.spines[["top", "right"]].set_visible(False)


def _some(atoms: list[int]) -> list[int]:
    """Three of many numbers, where an arrow says how many times as fast: stock was called more than once there."""
    often = [number for number in atoms if number <= json.loads(FIGURES.read_text())["once above"]]
    return often if len(often) < 4 else [often[0], often[len(often) // 2], often[-1]]
