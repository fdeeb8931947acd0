"""Write the page: a template, its style and its script from the package, and a sheet for each product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import Unpack

from tpgen.base.errors import TpgenError, check_known
from tpgen.base.text import quantity
from tpgen.tools.inspection.costs.explain_network import explain_network
from tpgen.tools.inspection.costs.explanation import ExplainedOptions
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.explorer.sheet import Sheet, product_sheet
from tpgen.tools.inspection.stages.calls import Inspected

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # that of this system: until Python 3.12 nothing else can be inherited from


class Page(_Path):
    """The path of a page, which a notebook shows as the page itself.

    >>> Page("made/explorer.html")._repr_html_()
    '<iframe class="explorer" src="made/explorer.html" title="explorer.html" width="100%" height="600"></iframe>'
    """

    def _repr_html_(self) -> str:
        source, title = escape(self.as_posix()), escape(self.name)
        return f'<iframe class="explorer" src="{source}" title="{title}" width="100%" height="600"></iframe>'


def write_explorer(
    subject: Inspected,
    path: str | Path,
    *,
    rows: int = 1000,
    measure: bool = False,
    inductor: bool = False,
    **options: Unpack[ExplainedOptions],
) -> Page:
    """Write the explorer of a product, a linear layer, a polynomial or a plan into one HTML file, and return its path.

    Jupyter shows the page, where the call is the last line of a cell.

    ``measure`` runs the product and each path alone; ``inductor`` adds its output, for which it compiles for seconds.
    ``options`` are those of `tpgen.tools.inspection.costs.explain.explain`.  The page of a polynomial shows its terms
    where others have paths.  A stage that cannot be had is on the page with the reason.
    """
    return _write(path, lambda: explorer_page(subject, rows, measure, inductor, **options))


def write_network_explorer(
    network: nn.Module,
    inputs: Sequence[Any],
    path: str | Path,
    *,
    products: Sequence[str] = (),
    rows: int | None = None,
    measure: bool = False,
    inductor: bool = False,
    ceilings: Ceilings | None = None,
) -> Page:
    """Write the explorer of all products that a network calls into one HTML file, and return its path.

    Each is explained for the rows that the network calls it with, or for ``rows``; that with the most operations is
    shown first.  ``products`` are names of modules, where not all are wanted.

    Raises `TpgenError` for a network without products of tpgen's, and for names of what it does not call.
    """

    def page() -> str:
        found = explain_network(network, inputs, ceilings=ceilings)
        shown = {p.module: p for p in found.products if not products or p.module in products}
        check_known("product", products, [p.module for p in found.products])
        sheets = {}
        for name, product in shown.items():
            options: ExplainedOptions = {"ceilings": ceilings}
            if product.explanation.nodes is not None:  # a convolution, between as many nodes as in the network
                options["nodes"] = product.explanation.nodes
            module, count = network.get_submodule(name), rows or product.explanation.rows
            sheets[name] = product_sheet(module, count, measure, inductor, **options)
        first = max(shown.values(), key=lambda p: p.flops, default=None)
        labels = {
            p.module: f"{p.module or '(itself)'}: {len(p.explanation.paths)} paths, {quantity(p.flops, 'FLOP')}"
            for p in found.products
        }
        return _page(sheets, first.module if first else found.largest.module, found.network, labels)

    return _write(path, page)


def explorer_page(
    subject: Inspected,
    rows: int = 1000,
    measure: bool = False,
    inductor: bool = False,
    **options: Unpack[ExplainedOptions],
) -> str:
    """The page as text; see `write_explorer`."""
    sheet = product_sheet(subject, rows, measure, inductor, **options)
    return _page({"": sheet}, "", sheet.title)


def _page(sheets: Mapping[str, Sheet], first: str, title: str, labels: Mapping[str, str] | None = None) -> str:
    template = Template(_text("sheet.html"))
    return Template(_text("page.html")).substitute(
        title=escape(title),
        css=_text("explorer.css"),
        script=_text("explorer.js"),
        choice=_choice(labels or {}, first) if len(sheets) > 1 else "",
        sheets="".join(sheet.html(name, template) for name, sheet in sheets.items()),
    )


def _choice(labels: Mapping[str, str], first: str) -> str:
    options = "".join(
        f'<option value="{escape(name)}"{" selected" * (name == first)}>{escape(label)}</option>'
        for name, label in labels.items()
    )
    return f'<select id="product" aria-label="product">{options}</select>'


def _text(name: str) -> str:
    return files("tpgen.tools.inspection.explorer").joinpath(name).read_text(encoding="utf-8")


def _write(path: str | Path, page: Callable[[], str]) -> Page:
    """The page in a file; what the path names is checked before the page is made."""
    path = Page(path)
    if path.is_dir():
        raise TpgenError(
            f"the explorer is one file and {str(path)!r} is a folder: name a file in it, like explorer.html"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), encoding="utf-8")
    return path
