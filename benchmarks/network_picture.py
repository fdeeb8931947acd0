"""Stock, converted, one program and symmetrix over the number of atoms, as `benchmarks.network_sizes` measured it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tpgen.tools.inspection.figures import new_figure, save_figure

FIGURES = Path("docs/pictures/networks.json")
STOCK, COMPILED, SYMMETRIX, CONVERTED, PROGRAM = "stock", "stock, compiled", "symmetrix", "converted", "one program"
NAMES = {"mace": "MACE, 128 channels, l = 1", "nequip": "NequIP, l = 2, 64 features"}
CURVES = {  # mode: what it is called, its colour, how it is drawn
    STOCK: ("stock, uncompiled", "#8a8f98", "o-"),
    COMPILED: ("stock, compiled", "#4d525b", "o--"),
    SYMMETRIX: ("symmetrix (C++ by hand)", "#7a4fa3", "s:"),
    CONVERTED: ("converted", "#0b6e99", "o-"),
    PROGRAM: ("converted and compiled", "#d1622b", "o--"),
}

Curve = dict[int, float]  # seconds by number of atoms


def curves(project: str) -> dict[str, Curve]:
    """What was measured of a project, by mode."""
    rows = [row for row in json.loads(FIGURES.read_text())["rows"] if row["project"] == project]
    found = {mode: {row["atoms"]: row["seconds"] for row in rows if row["mode"] == mode} for mode in CURVES}
    return {mode: dict(sorted(curve.items())) for mode, curve in found.items() if curve}


def draw_networks(path: Path) -> None:
    """Draw both networks with few and large words: the page of a phone is some four inches wide."""
    figure = new_figure(6.2, 4.2)
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (project, name) in zip(panels, NAMES.items(), strict=True):
        _panel(panel, curves(project))
        panel.set_title(name, fontsize=11.5)
    figure.supylabel("ms for energy, forces and stress", fontsize=11)
    measured = json.loads(FIGURES.read_text())
    figure.suptitle("{machine}, one thread, {dtype}".format(**measured), fontsize=9, color="#555555")
    named = panels[0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=2, frameon=False, fontsize=11)
    save_figure(figure, path, dpi=200)


def _panel(panel: Any, found: dict[str, Curve]) -> None:
    for mode, curve in found.items():
        label, colour, style = CURVES[mode]
        shown = {"color": colour, "lw": 2.2, "ms": 5, "label": label, "zorder": 3 if mode == CONVERTED else 2}
        panel.loglog([*curve], [1e3 * s for s in curve.values()], style, **shown)
    stock, ours = fastest(found[STOCK], found.get(COMPILED, {})), found[CONVERTED]  # what one line of code gives
    _, colour, _ = CURVES[CONVERTED]
    often = _some([*stock])
    for atoms in often:
        ends = (atoms, 1e3 * ours[atoms]), (atoms, 1e3 * stock[atoms])
        panel.annotate("", *ends, arrowprops={"arrowstyle": "->", "color": colour, "alpha": 0.6})
        ratio = stock[atoms] / ours[atoms]
        said = f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×"
        panel.text(atoms / 1.15, 1.9e3 * found[STOCK][atoms], said, color=colour, fontsize=15, ha="center")
    named = sorted({*often, max(stock)})
    panel.set_xticks(named, [f"{atoms:,}" for atoms in named], fontsize=11)
    panel.minorticks_off()
    most = 1e3 * max(stock.values())
    panel.set_yticks(ticks := [t for t in (1, 10, 100, 1000, 10000) if t < 2 * most], map("{:,}".format, ticks))
    panel.tick_params(axis="y", labelsize=11)
    panel.set_xlim(min(stock) / 2.4, max(stock) * 1.9)
    panel.set_xlabel("atoms", fontsize=11)
    panel.grid(axis="y", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def fastest(*modes: Curve) -> Curve:
    """The least time of stock's modes for each number of atoms that any has."""
    return {atoms: min(mode[atoms] for mode in modes if atoms in mode) for atoms in modes[0]}


def _some(atoms: list[int]) -> list[int]:
    """Three of many numbers, where an arrow says how many times as fast: stock was called more than once there."""
    often = [number for number in atoms if number <= json.loads(FIGURES.read_text())["once above"]]
    return often if len(often) < 4 else [often[0], often[len(often) // 2], often[-1]]
