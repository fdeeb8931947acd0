"""Explain every product of a network at once: its calls, their rows, and what share of the time it takes.

>>> import torch, tpgen
>>> from tpgen.inspection.ceilings import Ceilings
>>> network = torch.nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), torch.nn.ReLU())
>>> found = explain_network(network, [torch.randn(5, 6)], ceilings=Ceilings(1e10, 1e11))
>>> [(p.module, p.calls, p.explanation.rows) for p in found.products]
[('0', 1, 5)]
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import prod
from statistics import median
from typing import Any

from torch import Tensor, nn

from tpgen.errors import TpgenError
from tpgen.inspection.ceilings import Ceilings
from tpgen.inspection.explain import Explanation, explain
from tpgen.inspection.explain_text import duration, quantity
from tpgen.inspection.frames import undisturbed
from tpgen.inspection.report.values import reason, table
from tpgen.nn.tensor_product import TensorProduct

_WARM, _ROUNDS = 2, 9  # forwards that are not timed, and that are


@dataclass(frozen=True)
class ProductInNetwork:
    """A product: its module, its calls in one forward, and the explanation for the rows of its largest call."""

    module: str
    calls: int
    explanation: Explanation
    seconds: float | None = None  # of all its calls in one forward, measured


@dataclass(frozen=True)
class NetworkExplanation:
    """All products of a network that one forward calls; ``seconds`` is the whole forward, measured."""

    network: str
    products: tuple[ProductInNetwork, ...]
    not_called: tuple[str, ...]
    seconds: float | None = None

    @property
    def share(self) -> float | None:
        """The part of the forward's time that its products take."""
        return sum(p.seconds or 0.0 for p in self.products) / self.seconds if self.seconds else None

    @property
    def largest(self) -> ProductInNetwork:
        """The product with the most operations in one forward."""
        return max(self.products, key=lambda p: p.calls * p.explanation.flops)

    def __getitem__(self, module: str) -> Explanation:
        return next(p.explanation for p in self.products if p.module == module)

    def to_json(self) -> str:
        """Everything that is known, as JSON; what was not measured is null."""
        return json.dumps({**asdict(self), "share": self.share}, indent=1)

    def __str__(self) -> str:
        columns = ["module", "product", "paths", "strategy", "calls", "rows", "FLOP", "bytes", "bound by", "predicted"]
        rows = [_row(p) for p in self.products]
        if self.seconds:
            columns += ["measured", "of forward"]
            rows = [(*r, *_times(p, self.seconds)) for r, p in zip(rows, self.products, strict=True)]
        called = f"{len(self.products)} product{'s' * (len(self.products) != 1)} called in one forward"
        lines = [f"{self.network}: {called}", table([columns, *rows])]
        if self.not_called:
            lines.append(f"not called: {', '.join(self.not_called)}")
        if self.seconds:
            lines.append(f"forward: {duration(self.seconds)}, {100 * (self.share or 0):.0f} % of it in products")
        return "\n".join(lines)


def _row(product: ProductInNetwork) -> tuple[str, ...]:
    found = product.explanation
    return (
        product.module or "(itself)",
        found.product,
        str(len(found.paths)),
        found.strategy,
        str(product.calls),
        f"{found.rows:,}",
        quantity(found.flops, ""),
        quantity(found.bytes, "B"),
        found.bound or "-",
        duration(found.predicted_seconds),
    )


def _times(product: ProductInNetwork, whole: float) -> tuple[str, str]:
    return duration(product.seconds), f"{100 * (product.seconds or 0) / whole:.0f} %"


def explain_network(
    network: nn.Module, inputs: Sequence[Any], *, measure: bool = False, ceilings: Ceilings | None = None
) -> NetworkExplanation:
    """Explain each product that a forward of the network calls, for the rows it is called with.

    The network runs once, without gradients and in evaluation mode, to see the calls; with ``measure`` some more times,
    for the time of every product in its place and of the whole.  ``ceilings`` are those of `explain`.

    Raises `TpgenError` for a network without products of tpgen's, and for inputs that it does not take.
    """
    held = {path: m for path, m in network.named_modules() if isinstance(m, TensorProduct)}
    if not held:
        raise TpgenError(
            f"{type(network).__name__} holds no product of tpgen's; tpgen.convert(network) takes e3nn's products over"
        )
    watch = _Watch()
    with undisturbed(network), watch.on(held):
        try:
            network(*inputs)
        except Exception as error:  # whatever the network says of its inputs
            raise TpgenError(
                f"the network fails on the inputs given ({reason(error)}); give inputs it takes"
            ) from error
        seen = {path: tuple(rows) for path, rows in watch.rows.items()}
        seconds: dict[str, float] = {}
        whole = None
        if measure:
            seconds, whole = _measured(network, inputs, watch)
    products = tuple(
        ProductInNetwork(path, len(seen[path]), _explained(module, max(seen[path]), ceilings), seconds.get(path))
        for path, module in held.items()
        if path in seen
    )
    return NetworkExplanation(type(network).__name__, products, tuple(p for p in held if p not in seen), whole)


def _explained(product: TensorProduct, rows: int, ceilings: Ceilings | None) -> Explanation:
    return explain(product, rows=max(rows, 1), ceilings=ceilings)


@dataclass
class _Watch:
    """Notes the rows and the time of each call of products."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def on(self, products: dict[str, TensorProduct]) -> Iterator[None]:
        hooks = []
        for path, product in products.items():
            started: list[float] = []

            def before(module: Any, args: Any, started: list[float] = started) -> None:
                started.append(time.perf_counter())

            def after(module: Any, args: Any, out: Any, path: str = path, started: list[float] = started) -> None:
                self.seconds[path] = self.seconds.get(path, 0.0) + time.perf_counter() - started.pop()
                self.rows.setdefault(path, []).append(_rows(args))

            hooks += [product.register_forward_pre_hook(before), product.register_forward_hook(after)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _rows(args: Sequence[Any]) -> int:
    """The rows of a call: of the operand with most of them, since others are broadcast or gathered."""
    return max((prod(a.shape[:-1]) for a in args if isinstance(a, Tensor) and a.dim() > 1), default=1)


def _measured(network: nn.Module, inputs: Sequence[Any], watch: _Watch) -> tuple[dict[str, float], float]:
    """Median seconds of every product, and of the whole forward."""
    of_products: dict[str, list[float]] = {}
    whole = []
    for turn in range(_WARM + _ROUNDS):
        watch.seconds.clear()
        start = time.perf_counter()
        network(*inputs)
        if turn >= _WARM:
            whole.append(time.perf_counter() - start)
            for path, seconds in watch.seconds.items():
                of_products.setdefault(path, []).append(seconds)
    return {path: median(times) for path, times in of_products.items()}, median(whole)
