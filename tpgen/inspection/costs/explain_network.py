"""Explain every product of a network at once: its calls, their rows, and what share of the time it takes.

>>> import torch, tpgen
>>> from tpgen.inspection.costs.roofline import Ceilings
>>> network = torch.nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), torch.nn.ReLU())
>>> found = explain_network(network, [torch.randn(5, 6)], ceilings=Ceilings(1e10, 1e11))
>>> [(p.module, p.calls, p.explanation.rows) for p in found.products]
[('0', 1, 5)]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from tpgen.drawing.charts import share_bar
from tpgen.errors import TpgenError, check_known
from tpgen.inspection.clock import ROUGH, Timing, clock_of, device_of, seconds_of
from tpgen.inspection.costs.explain import explain
from tpgen.inspection.costs.explanation import Explanation
from tpgen.inspection.costs.roofline import Ceilings
from tpgen.inspection.report.values import check_call, reason
from tpgen.inspection.stages.calls import request_of
from tpgen.kernels.cuda.chips import chip_named
from tpgen.networks.frames import undisturbed
from tpgen.nn.planned import PlannedModule
from tpgen.notebook import Shown, html_table, lines
from tpgen.text import duration, quantity, table

_WARM, _ROUNDS = 2, 9  # forwards that are not timed, and that are


@dataclass(frozen=True)
class ProductInNetwork:
    """A product: its module, the totals of its calls in one forward, and the explanation of its largest call."""

    module: str
    calls: int
    explanation: Explanation
    flops: int
    bytes: int
    predicted_seconds: float | None
    seconds: float | None = None  # measured
    gpu_seconds: dict[str, float] = field(default_factory=dict)  # passes on a named GPU, predicted; none: no kernel

    @property
    def on_gpu(self) -> float:
        """Both passes on the named GPU."""
        return sum(self.gpu_seconds.values())


@dataclass(frozen=True)
class NetworkExplanation(Shown):
    """All products of a network that one forward calls; ``seconds`` is the whole forward, measured.

    ``gpu`` is the one that was named, whose times are predicted.
    """

    network: str
    products: tuple[ProductInNetwork, ...]
    not_called: tuple[str, ...]
    seconds: float | None = None
    gpu: str = ""
    spread: float = 0.0  # of the times of the forward

    @property
    def share(self) -> float | None:
        """The part of the forward's time that its products take."""
        return sum(p.seconds or 0.0 for p in self.products) / self.seconds if self.seconds else None

    @property
    def largest(self) -> ProductInNetwork:
        """The product with the most operations in one forward."""
        if not self.products:
            raise TpgenError(f"{self.network} calls no product in one forward; it holds {', '.join(self.not_called)}")
        return max(self.products, key=lambda p: p.flops)

    def __getitem__(self, module: str) -> Explanation:
        found = {p.module: p.explanation for p in self.products}
        check_known("product", [module], found)
        return found[module]

    def to_json(self) -> str:
        """Everything that is known, as JSON; what was not measured is null."""
        return json.dumps({**asdict(self), "share": self.share}, indent=1)

    def _rows(self) -> list[list[str]]:
        """The cells, heads first."""
        columns = ["module", "product", "paths", "strategy", "calls", "rows", "FLOP", "bytes", "bound by", "predicted"]
        rows = [_row(p) for p in self.products]
        if self.seconds:
            columns += ["measured", "of forward"]
            for row, p in zip(rows, self.products, strict=True):
                row += [duration(p.seconds), f"{100 * (p.seconds or 0) / self.seconds:.0f} %"]
        if self.gpu:
            columns += [f"{self.gpu} forward", "backward"]
            for row, p in zip(rows, self.products, strict=True):
                row += [duration(p.gpu_seconds.get(name)) for name in ("forward", "backward")]
        return [columns, *rows]

    def _head(self) -> str:
        return f"{self.network}: {len(self.products)} product{'s' * (len(self.products) != 1)} called in one forward"

    def _foot(self) -> list[str]:
        found = [f"not called: {', '.join(self.not_called)}"] if self.not_called else []
        if self.seconds:
            found.append(f"forward: {duration(self.seconds)}, {100 * (self.share or 0):.0f} % of it in products")
        if self.spread > ROUGH:
            found.append(
                f"times of one forward lie {100 * self.spread:.0f} % apart: the machine is busy, all times are rough"
            )
        return found + (self._gpu_foot() if self.gpu else [])

    def _gpu_foot(self) -> list[str]:
        """Time of the products together on the named GPU, which of them takes most, and which have no kernel."""
        with_kernel = [p for p in self.products if p.gpu_seconds]
        found = []
        if with_kernel:
            passes = {name: sum(p.gpu_seconds[name] for p in with_kernel) for name in with_kernel[0].gpu_seconds}
            most, whole = max(with_kernel, key=lambda p: p.on_gpu), sum(passes.values())
            told = ", ".join(f"{name} {duration(seconds)}" for name, seconds in passes.items())
            launches = sum(p.calls * p.explanation.on_gpu.launches for p in with_kernel if p.explanation.on_gpu)
            found += [
                f"products on {self.gpu}: {told}, predicted, not measured; "
                f"{100 * most.on_gpu / whole:.0f} % of it in {most.module or '(itself)'}",
                f"they are {launches} launches, each of which costs some microseconds beside that",
            ]
        for p in self.products:
            if not p.gpu_seconds and p.explanation.on_gpu:
                found.append(f"{p.module or '(itself)'} on {self.gpu}: {p.explanation.on_gpu}")
        return found

    def __str__(self) -> str:
        return "\n".join([self._head(), table(self._rows()), *self._foot()])

    def _repr_html_(self) -> str:
        bars: dict[str, Sequence[float]] = {
            "FLOP": [p.flops for p in self.products],
            "bytes": [p.bytes for p in self.products],
            "measured": [p.seconds or 0.0 for p in self.products],
        }
        return lines(self._head()) + html_table(self._rows(), range(2), bars) + lines(*self._foot()) + self._picture()

    def _picture(self) -> str:
        """Share of the forward that each product takes, measured; else of what is predicted of all, or computed."""
        names = [p.module or "(itself)" for p in self.products]
        if self.seconds:
            times = [p.seconds or 0.0 for p in self.products]
            said, rest = "time of the forward, measured", "not in products"
            return lines(said) + share_bar([*zip(names, times, strict=True)], self.seconds, rest)
        predicted = [p.predicted_seconds for p in self.products]
        values = [value for value in predicted if value is not None]
        said = "time of the products, predicted at least"
        if len(values) < len(predicted):
            said, values = "FLOP of the products", [float(p.flops) for p in self.products]
        return lines(said) + share_bar([*zip(names, values, strict=True)], sum(values))


def _row(product: ProductInNetwork) -> list[str]:
    found = product.explanation
    return [
        product.module or "(itself)",
        found.product,
        str(len(found.paths)),
        found.strategy,
        str(product.calls),
        f"{found.rows:,}",
        quantity(product.flops, ""),
        quantity(product.bytes, "B"),
        found.bound or "-",
        duration(product.predicted_seconds),
    ]


def explain_network(
    network: nn.Module,
    inputs: Sequence[Any],
    *,
    measure: bool = False,
    ceilings: Ceilings | None = None,
    gpu: str | None = None,
) -> NetworkExplanation:
    """Explain each product and linear layer that a forward of the network calls, for the rows it is called with.

    Operations, bytes and predictions are sums over the calls of a product.  The network runs once, without gradients
    and in evaluation mode, to see the calls; with ``measure`` some more times, for the time of every product in its
    place and of the whole.  ``ceilings`` and ``gpu`` are those of `explain`: with ``gpu`` (A100, H200, ...) the table
    says what the kernels of each product should take there, and what they take together.

    Raises `TpgenError` for a network without products of tpgen's, and for inputs that it does not take.
    """
    check_call("explain_network(network, [x, y])", network, inputs)
    held = {path: m for path, m in network.named_modules() if isinstance(m, PlannedModule)}
    if not held:
        raise TpgenError(
            f"{type(network).__name__} holds no product of tpgen's; tpgen.convert(network) takes e3nn's products over"
        )
    watch = _Watch(device_of(network, inputs))
    with undisturbed(network), watch.on(held):
        try:
            network(*inputs)
        except Exception as error:  # whatever the network says of its inputs
            raise TpgenError(
                f"the network fails on the inputs given ({reason(error)}); give inputs it takes"
            ) from error
        seen = {path: tuple(calls) for path, calls in watch.calls.items()}
        seconds: dict[str, float] = {}
        whole = Timing((), 0)
        if measure:
            seconds, whole = _measured(network, inputs, watch)
    products = tuple(
        replace(_explained(path, module, seen[path], ceilings, gpu), seconds=seconds.get(path))
        for path, module in held.items()
        if path in seen
    )
    named = chip_named(gpu).name if gpu else ""
    not_called = tuple(p for p in held if p not in seen)
    forward = whole.median if measure else None
    return NetworkExplanation(type(network).__name__, products, not_called, forward, named, whole.spread)


class NetworkCall(NamedTuple):
    """The rows of one call; of a convolution they are its edges, and it has nodes as well."""

    rows: int
    nodes: int | None


def _explained(
    path: str, product: PlannedModule, calls: Sequence[NetworkCall], ceilings: Ceilings | None, gpu: str | None
) -> ProductInNetwork:
    """The largest call explained, and the costs of all summed."""
    largest = max(calls, key=lambda call: call.rows)
    found = explain(product, rows=max(largest.rows, 1), nodes=largest.nodes, ceilings=ceilings, gpu=gpu)
    requests = [replace(request_of(product), rows=c.rows) for c in calls]
    costs = [(r.flops, r.bytes(c.nodes)) for r, c in zip(requests, calls, strict=True)]
    predicted = sum(found.ceilings.seconds(*cost) for cost in costs) if found.ceilings else None
    flops, moved = (sum(column) for column in zip(*costs, strict=True))
    on_gpu = _gpu_seconds(product, calls, gpu) if gpu else {}
    return ProductInNetwork(path, len(calls), found, flops, moved, predicted, gpu_seconds=on_gpu)


def _gpu_seconds(product: PlannedModule, calls: Sequence[NetworkCall], gpu: str) -> dict[str, float]:
    """Each pass over all calls, as the model of a GPU's kernels predicts it; nothing where there is no kernel."""
    found: dict[str, float] = {}
    for call, times in Counter(calls).items():
        made = replace(request_of(product), rows=call.rows).on(gpu, call.nodes)
        for name, one in made.passes.items():
            found[name] = found.get(name, 0.0) + times * one.seconds
    return found


@dataclass
class _Watch:
    """Notes the rows and the time of each call of products."""

    device: str
    calls: dict[str, list[NetworkCall]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, products: dict[str, PlannedModule]) -> Iterator[None]:
        own = {path: vars(product).get("forward") for path, product in products.items()}
        for path, product in products.items():  # no hooks: converted layers call the forward of theirs directly
            vars(product)["forward"] = partial(self._noted, path, product, product.forward)
        try:
            yield
        finally:
            for path, product in products.items():
                del product.forward
                if own[path] is not None:
                    vars(product)["forward"] = own[path]

    def _noted(self, path: str, product: PlannedModule, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        read = clock_of(self.device)
        start = read(self.device)
        out = forward(*args, **kwargs)
        self.seconds[path] = self.seconds.get(path, 0.0) + read(self.device) - start
        self.calls.setdefault(path, []).append(NetworkCall(*product.rows_of(*args, **kwargs)))
        return out


def _measured(network: nn.Module, inputs: Sequence[Any], watch: _Watch) -> tuple[dict[str, float], Timing]:
    """Median seconds of every product, and the times of the whole forward."""
    of_products: dict[str, list[float]] = {}
    whole = []
    for turn in range(_WARM + _ROUNDS):
        watch.seconds.clear()
        took = seconds_of(lambda: network(*inputs), watch.device, clock=clock_of(watch.device))
        if turn >= _WARM:
            whole.append(took)
            for path, seconds in watch.seconds.items():
                of_products.setdefault(path, []).append(seconds)
    return {path: Timing(tuple(times), 1).median for path, times in of_products.items()}, Timing(tuple(whole), 1)
