"""Figures by matplotlib, drawn without a display; matplotlib is imported when one is made."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
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


def image(figure: Figure, dpi: int = 80) -> str:
    """A figure as an element of HTML that holds it whole."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png")
    return f'<img alt="" src="data:image/png;base64,{b64encode(buffer.getvalue()).decode()}">'


def save_figure(figure: Figure, path: str | Path, dpi: int = 130) -> None:
    """Write a figure; the ending of the path says the format."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
