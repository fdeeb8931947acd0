"""Explain every product of a network.

>>> import torch, tpgen
>>> from tpgen.tools.inspection.costs.roofline import Ceilings
>>> network = torch.nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), torch.nn.ReLU())
>>> found = explain_network(network, [torch.randn(5, 6)], ceilings=Ceilings(1e10, 1e11))
>>> [(p.module, p.calls, p.explanation.rows) for p in found.products]
[('0', 1, 5)]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from tpgen.base.clock import ROUGH, Timing, choose_clock, find_device, time_calls
from tpgen.base.drawing.charts import draw_stacked_bar
from tpgen.base.errors import TpgenError, check_known
from tpgen.base.notebook import Shown, div_lines, html_table
from tpgen.base.text import duration, plural, quantity, table
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.conversion.convert import convert
from tpgen.networks.copies import copy_of
from tpgen.tools.inspection.costs.explain import explain
from tpgen.tools.inspection.costs.explanation import Explanation
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.costs.stopwatch import BOOKKEEPING
from tpgen.tools.inspection.costs.watched import (
    BACKWARD,
    CODE,
    FORWARD,
    CallWatch,
    ProductCall,
    WatchedModule,
    WatchedRun,
    find_planned_modules,
    preserve_network_state,
)
from tpgen.tools.inspection.report.values import check_module_and_inputs, describe_error
from tpgen.tools.inspection.stages.calls import resolve_request

_WARM, _ROUNDS = 2, 9  # calls that are not timed, and that are
_MOST_CLASSES = 6  # in a table


@dataclass(frozen=True)
class ProductInNetwork:
    """A product's total costs in a network's call."""

    module: str
    calls: int
    explanation: Explanation
    flops: int
    bytes: int
    predicted_seconds: float | None
    seconds: float | None = None  # forward, measured
    backward: int = 0  # passes backwards through it
    backward_seconds: float | None = None

    @property
    def both_seconds(self) -> float:
        """Measured seconds forward and backward, else 0."""
        return (self.seconds or 0.0) + (self.backward_seconds or 0.0)


@dataclass(frozen=True)
class OtherCodeTime:
    """Seconds in a module class, without submodules."""

    name: str
    seconds: float


@dataclass(frozen=True)
class NetworkExplanation(Shown):
    """Costs of products and other code in a network's call."""

    network: str
    products: tuple[ProductInNetwork, ...]
    not_called: tuple[str, ...]
    seconds: float | None = None  # of call and backward
    spread: float = 0.0  # of the times of the call
    inside: bool = False  # the network differentiates by itself (forces)
    others: tuple[OtherCodeTime, ...] = ()  # of the time outside of products
    copied: bool = False  # of a stock network, a converted copy is explained

    @property
    def share(self) -> float | None:
        """Products' share of the call's time."""
        return sum(p.both_seconds for p in self.products) / self.seconds if self.seconds else None

    @property
    def largest(self) -> ProductInNetwork:
        """Product with the most operations."""
        if not self.products:
            raise TpgenError(f"{self.network} calls no product in one call; it holds {', '.join(self.not_called)}")
        return max(self.products, key=lambda p: p.flops)

    def __getitem__(self, module: str) -> Explanation:
        """A module's explanation."""
        found = {p.module: p.explanation for p in self.products}
        check_known("product", [module], found)
        return found[module]

    def to_json(self) -> str:
        """All values as JSON; null if unmeasured."""
        return json.dumps({**asdict(self), "share": self.share}, indent=1)

    def _product_table_rows(self) -> list[list[str]]:
        columns = ["module", "product", "paths", "strategy", "calls", "backward", "rows"]
        columns += ["FLOP", "bytes", "bound by", "predicted"]
        rows = [_make_table_row_of_product(p) for p in self.products]
        if self.seconds:
            columns += ["forward", "backward", "of call"]
            for row, p in zip(rows, self.products, strict=True):
                share = f"{100 * p.both_seconds / self.seconds:.0f} %"
                row += [duration(p.seconds), duration(p.backward_seconds), share]
        return [columns, *rows]

    def _other_code_table_rows(self) -> list[list[str]]:
        rows = [[c.name, duration(c.seconds), f"{100 * c.seconds / (self.seconds or 1):.0f} %"] for c in self.others]
        return [["code outside of products", "time", "of call"], *rows] if rows else []

    def _head_line(self) -> str:
        copied = " of a converted copy" if self.copied else ""
        return f"{self.network}: {plural(len(self.products), 'product')} called in one call{copied}"

    def _footer_lines(self) -> list[str]:
        found = [f"not called: {', '.join(self.not_called)}"] if self.not_called else []
        if self.seconds:
            whole = "call" if self.inside or not any(p.backward for p in self.products) else "forward and backward"
            found.append(f"{whole}: {duration(self.seconds)}, {100 * (self.share or 0):.0f} % of it in products")
        if self.spread > ROUGH:
            found.append(
                f"times of one call lie {100 * self.spread:.0f} % apart: the machine is busy, all times are rough"
            )
        return found

    def __str__(self) -> str:
        others = [table(rows)] if (rows := self._other_code_table_rows()) else []
        return "\n".join([self._head_line(), table(self._product_table_rows()), *self._footer_lines(), *others])

    def _repr_html_(self) -> str:
        bars: dict[str, Sequence[float]] = {
            "FLOP": [p.flops for p in self.products],
            "bytes": [p.bytes for p in self.products],
            "of call": [p.both_seconds for p in self.products],
        }
        return (
            div_lines(self._head_line())
            + html_table(self._product_table_rows(), range(2), bars)
            + div_lines(*self._footer_lines())
            + (html_table(rows, range(1), {}) if (rows := self._other_code_table_rows()) else "")
            + self._draw_product_shares_html()
        )

    def _draw_product_shares_html(self) -> str:
        names = [p.module or "(itself)" for p in self.products]
        if self.seconds:
            times = [p.both_seconds for p in self.products]
            said, rest = "time of the call, measured", "not in products"
            return div_lines(said) + draw_stacked_bar([*zip(names, times, strict=True)], self.seconds, rest)
        predicted = [p.predicted_seconds for p in self.products]
        values = [value for value in predicted if value is not None]
        said = "time of the products, predicted at least"
        if len(values) < len(predicted):
            said, values = "FLOP of the products", [float(p.flops) for p in self.products]
        return div_lines(said) + draw_stacked_bar([*zip(names, values, strict=True)], sum(values))


def _make_table_row_of_product(product: ProductInNetwork) -> list[str]:
    found = product.explanation
    return [
        product.module or "(itself)",
        found.product,
        str(len(found.paths)),
        found.strategy,
        str(product.calls),
        str(product.backward),
        f"{found.rows:,}",
        quantity(product.flops, ""),
        quantity(product.bytes, "B"),
        found.bound or "-",
        duration(product.predicted_seconds),
    ]


@bypassing_programs()
def explain_network(
    network: nn.Module,
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    *,
    measure: bool = False,
    ceilings: Ceilings | None = None,
) -> NetworkExplanation:
    """Explain each product, linear layer and polynomial in a call ``network(*inputs, **keywords)``.

    A backward pass follows unless the network differentiates by itself.  Buffers, gradients and random numbers are
    restored.  ``measure`` times products and other code.  A stock network is copied and converted.

    Raises `TpgenError` if the network fails.
    """
    check_module_and_inputs("explain_network(network, [x, y])", network, inputs)
    given, network = network, convert_if_stock(network)
    held = find_planned_modules(network)
    watch = CallWatch.make_for_modules(network, held, find_device(network, inputs))
    run = WatchedRun(network, tuple(inputs), dict(keywords or {}), watch)
    with preserve_network_state(network), watch.recording():
        try:
            run()
        except Exception as error:  # whatever the network says of its inputs
            raise TpgenError(
                f"the network fails on the inputs given ({describe_error(error)}); give inputs it takes"
            ) from error
        seen = {path: tuple(calls) for path, calls in watch.calls.items()}
        passes = dict(watch.passes)
        times, whole = _median_seconds_of_parts_and_call(run) if measure else ({}, Timing((), 0))
    products = tuple(
        replace(
            _explain_product_in_network(path, watched, seen[path], ceilings),
            backward=passes.get(path, 0),
            seconds=times.get((FORWARD, path)),
            backward_seconds=times.get((BACKWARD, path)),
        )
        for path, watched in held.items()
        if path in seen
    )
    return NetworkExplanation(
        type(network).__name__,
        products,
        tuple(path for path in held if path not in seen),
        whole.median if measure else None,
        whole.spread,
        run.inside,
        _list_seconds_of_other_code(times, whole.median) if measure else (),
        network is not given,
    )


def convert_if_stock(network: nn.Module) -> nn.Module:
    """The network if tpgen's modules are inside, else a converted copy."""
    if find_planned_modules(network):
        return network
    try:
        copied = copy_of(network)
    except Exception as error:
        raise TpgenError(
            f"{type(network).__name__} cannot be copied ({describe_error(error)}): convert it first"
        ) from error
    return convert(copied, program=False)


def _explain_product_in_network(
    path: str, watched: WatchedModule, calls: Sequence[ProductCall], ceilings: Ceilings | None
) -> ProductInNetwork:
    largest = max(calls, key=lambda call: call.rows)
    subject, options = watched.make_explain_arguments(largest)
    found = explain(subject, rows=max(largest.rows, 1), nodes=largest.nodes, ceilings=ceilings, **options)
    request = resolve_request(subject, **options)
    requests = [replace(request, rows=c.rows) for c in calls]
    costs = [(r.flops, r.count_bytes(c.nodes)) for r, c in zip(requests, calls, strict=True)]
    predicted = sum(found.ceilings.least_seconds(*cost) for cost in costs) if found.ceilings else None
    flops, moved = (sum(column) for column in zip(*costs, strict=True))
    return ProductInNetwork(path, len(calls), found, flops, moved, predicted)


def _median_seconds_of_parts_and_call(run: WatchedRun) -> tuple[dict[Any, float], Timing]:
    device = run.watch.stopwatch.device
    found: dict[Any, list[float]] = {}
    whole = []
    for turn in range(_WARM + _ROUNDS):
        run.watch.clear()
        took = time_calls(run, device, clock=choose_clock(device))
        seconds = dict(run.watch.stopwatch.seconds)
        if turn >= _WARM:
            whole.append(took - seconds.pop(BOOKKEEPING, 0.0))
            for part, spent in seconds.items():
                found.setdefault(part, []).append(spent)
    return {part: Timing(tuple(times), 1).median for part, times in found.items()}, Timing(tuple(whole), 1)


def _list_seconds_of_other_code(times: Mapping[Any, float], call_seconds: float) -> tuple[OtherCodeTime, ...]:
    classes = [OtherCodeTime(name, seconds) for (kind, name), seconds in times.items() if kind == CODE]
    classes.sort(key=lambda found: -found.seconds)
    rest = sum(found.seconds for found in classes[_MOST_CLASSES:])
    more = [OtherCodeTime(f"{len(classes) - _MOST_CLASSES} more", rest)] if rest else []
    return (
        *classes[:_MOST_CLASSES],
        *more,
        OtherCodeTime("autograd, between modules", max(call_seconds - sum(times.values()), 0)),
    )
