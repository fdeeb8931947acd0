"""Values of an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpgen.tools.inspection.costs.roofline import Ceilings


@dataclass(frozen=True)
class PathExplanation:
    """Segments, coefficient, costs per row and code of a path or polynomial term."""

    index: int
    in1: str
    in2: str
    out: str
    mode: str
    weight: tuple[int, int] | None  # start and stop in the flat weight
    weight_shape: tuple[int, ...]
    coefficient: float
    factors: dict[str, float]  # numbers that multiply to the coefficient
    nonzeros: int
    dense: int
    flops: int
    bytes: int
    strategy: str
    how: str
    seconds: float | None = None  # the path alone, measured
    in3: str = ""
    in4: str = ""
    operand: str = ""  # which of several tensors of weights it reads
    constant: str = ""  # where it comes from, if it is no 3j symbol
    entries: tuple[int, ...] = ()  # of the constants of a term that are not zero, by path
    monomials: int = 0  # products of components, each once

    @property
    def couples(self) -> str:
        """Segments, as ``in1 × in2 → out``."""
        return f"{' × '.join(filter(None, (self.in1, self.in2, self.in3, self.in4)))} → {self.out}"

    @property
    def density(self) -> float:
        """Share of nonzero coupling entries."""
        return self.nonzeros / self.dense if self.dense else 1.0

    @property
    def weights(self) -> str:
        """Range of weights as text; empty without."""
        return f"{self.operand} {self.weight[0]}:{self.weight[1]}".strip() if self.weight else ""


@dataclass(frozen=True)
class ExplanationValues:
    """Costs of a product, its paths and settings; times are seconds for the batch."""

    product: str
    digest: str
    normalization: str
    rows: int
    dtype: str
    device: str
    layout: tuple[str, ...]
    backend: str
    strategy: str
    reason: str
    paths: tuple[PathExplanation, ...]
    dropped: int
    flops: int  # of the batch
    bytes: int  # of the batch: each operand once
    peak_bytes: int  # of a call without gradients, beside its operands
    training_bytes: int  # of one with all gradients
    ceilings: Ceilings | None
    forward_seconds: float | None = None  # measured
    backward_seconds: float | None = None  # measured, forward and backward
    nodes: int | None = None  # of a convolution, whose rows are edges
    noun: str = "path"  # for a row of the table
    channels: int = 0  # of a polynomial
    elements: int = 0  # of its weights
    monomials: int = 0  # of its form: pairs of a product of components and an output
    coefficients: int = 0  # different numbers among what multiplies them
    operations: Mapping[str, int] = field(default_factory=dict)  # of a row and channel in its sweep, for each call

    @property
    def batch(self) -> str:
        """Batch sizes in words."""
        rows = f"{self.rows:,} rows" if self.nodes is None else f"{self.rows:,} edges of {self.nodes:,} nodes"
        channels = f" of {self.channels} channels" if self.channels else ""
        return rows + channels + (f", {self.elements} elements" if self.elements > 1 else "")

    @property
    def roofline_points(self) -> list[tuple[PathExplanation, float, float]]:
        """Each path with operations per byte and per second."""
        ceilings, rows = self.ceilings, self.rows
        if ceilings is None:
            return []
        live = [p for p in self.paths if p.flops]
        times = [p.seconds or ceilings.least_seconds(rows * p.flops, rows * p.bytes) for p in live]
        return [(p, p.flops / p.bytes, rows * p.flops / seconds) for p, seconds in zip(live, times, strict=True)]

    @property
    def rates(self) -> dict[str, float]:
        """A product's operations per second, ``predicted`` and ``measured``."""
        times = {"predicted": self.predicted_seconds, "measured": self.forward_seconds}
        return {name: self.flops / seconds for name, seconds in times.items() if seconds}

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def predicted_seconds(self) -> float | None:
        """Least forward seconds under the ceilings."""
        return self.ceilings.least_seconds(self.flops, self.bytes) if self.ceilings else None

    @property
    def bound(self) -> str | None:
        """Limiting resource: ``memory`` or ``arithmetic``."""
        if not self.ceilings:
            return None
        return "memory" if self.intensity < self.ceilings.ridge else "arithmetic"
