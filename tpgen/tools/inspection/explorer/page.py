"""The explorer's page."""

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
from tpgen.tools.inspection.costs.explain_network import convert_if_stock, explain_network
from tpgen.tools.inspection.costs.explanation import ExplainedOptions
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.costs.watched import find_planned_modules
from tpgen.tools.inspection.explorer.sheet import ProductSheet, make_product_sheet
from tpgen.tools.inspection.report.values import check_module_and_inputs
from tpgen.tools.inspection.stages.calls import Inspected

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # that of this system: until Python 3.12 nothing else can be inherited from


class Page(_Path):
    """Path of an HTML page, which notebooks show.

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
    """Write the explorer of a product, linear layer, polynomial or plan into one HTML file; return the path.

    ``measure`` times product and paths; ``inductor`` adds Inductor's code (seconds).  ``options`` are `explain`'s.
    """
    return _write_page_file(path, lambda: make_explorer_page(subject, rows, measure, inductor, **options))


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
    """Write the explorer of a network's products into one HTML file; return the path.

    ``products`` selects modules; ``rows`` replaces those of calls.
    """

    def make_page_html() -> str:
        check_module_and_inputs('write_network_explorer(network, [x, y], "page.html")', network, inputs)
        converted = convert_if_stock(network)
        found = explain_network(converted, inputs, ceilings=ceilings)
        held = find_planned_modules(converted)
        shown = {p.module: p for p in found.products if not products or p.module in products}
        check_known("product", products, [p.module for p in found.products])
        sheets = {}
        for name, product in shown.items():
            options: ExplainedOptions = {"ceilings": ceilings}
            if product.explanation.nodes is not None:  # a convolution, between as many nodes as in the network
                options["nodes"] = product.explanation.nodes
            module, count = held[name].program or held[name].plan, rows or product.explanation.rows
            sheets[name] = make_product_sheet(module, count, measure, inductor, **options)
        first = max(shown.values(), key=lambda p: p.flops, default=None)
        labels = {
            p.module: f"{p.module or '(itself)'}: {len(p.explanation.paths)} paths, {quantity(p.flops, 'FLOP')}"
            for p in found.products
        }
        return _write_page_html(sheets, first.module if first else found.largest.module, found.network, labels)

    return _write_page_file(path, make_page_html)


def make_explorer_page(
    subject: Inspected,
    rows: int = 1000,
    measure: bool = False,
    inductor: bool = False,
    **options: Unpack[ExplainedOptions],
) -> str:
    """Make `write_explorer`'s page as HTML text."""
    sheet = make_product_sheet(subject, rows, measure, inductor, **options)
    return _write_page_html({"": sheet}, "", sheet.title)


def _write_page_html(
    sheets: Mapping[str, ProductSheet], selected: str, title: str, labels: Mapping[str, str] | None = None
) -> str:
    template = Template(_read_asset("sheet.html"))
    return Template(_read_asset("page.html")).substitute(
        title=escape(title),
        css=_read_asset("explorer.css"),
        script=_read_asset("explorer.js"),
        choice=_write_product_menu_html(labels or {}, selected) if len(sheets) > 1 else "",
        sheets="".join(sheet.html(name, template) for name, sheet in sheets.items()),
    )


def _write_product_menu_html(labels: Mapping[str, str], selected: str) -> str:
    options = "".join(
        f'<option value="{escape(name)}"{" selected" * (name == selected)}>{escape(label)}</option>'
        for name, label in labels.items()
    )
    return f'<select id="product" aria-label="product">{options}</select>'


def _read_asset(name: str) -> str:
    return files("tpgen.tools.inspection.explorer").joinpath(name).read_text(encoding="utf-8")


def _write_page_file(path: str | Path, make_html: Callable[[], str]) -> Page:
    path = Page(path)  # checked before the page is made
    if path.is_dir():
        raise TpgenError(
            f"the explorer is one file and {str(path)!r} is a folder: name a file in it, like explorer.html"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(make_html(), encoding="utf-8")
    return path
