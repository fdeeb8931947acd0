"""Figures by matplotlib, drawn without a display; matplotlib is imported when one is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tpgen.errors import TpgenError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; a `TpgenError` says how to get matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise TpgenError("pictures need matplotlib; install it with: pip install 'tpgen[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: int = 130) -> None:
    """Write a figure; the ending of the path says the format."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
