"""Figures by matplotlib without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpgen.base.errors import TpgenError
from tpgen.base.text import quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Make an empty matplotlib figure, sized in inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise TpgenError("pictures need matplotlib; install it with: pip install matplotlib") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def label_log_axes_plainly(panel: Any) -> None:
    """Label logarithmic axes plainly: 0.1, 1, 10, 1 k."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(10.0, subs=(1.0,), numticks=9))
        axis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value, "").strip()))
        axis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, path: str | Path, dpi: int = 130) -> None:
    """Write a figure in the format of the path's suffix, reproducibly."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    kind = Path(path).suffix.lower()
    figure.savefig(path, dpi=dpi, metadata=_WITHOUT_DATE.get(kind))


_WITHOUT_DATE = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
