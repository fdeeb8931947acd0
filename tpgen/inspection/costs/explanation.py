"""What is known of a product or a linear layer, as a value: what each path costs, and the totals of a batch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath

from tpgen.inspection.costs.explain_text import explanation_html, explanation_text
from tpgen.inspection.costs.gpu import OnGpu
from tpgen.inspection.costs.pictures import draw_explanation
from tpgen.inspection.costs.roofline import Ceilings, UnderCeilings
from tpgen.inspection.costs.roofline_picture import roofline
from tpgen.notebook import Shown

ROWS = 1000  # of a batch, unless given
SECONDS = 0.25  # for each measured time


@dataclass(frozen=True)
class PathExplanation:
    """One path: what it couples, what scales it, what it costs per row, how it is written.

    That of a linear layer has no second input, mode and coupling: they are empty, and 0.
    """

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

    @property
    def couples(self) -> str:
        """The segments that meet, and the one they reach."""
        return f"{' × '.join(filter(None, (self.in1, self.in2)))} → {self.out}"

    @property
    def density(self) -> float:
        """Share of the coupling entries that are not zero."""
        return self.nonzeros / self.dense if self.dense else 1.0


@dataclass(frozen=True)
class Explanation(Shown, UnderCeilings):
    """A product or a linear layer, explained; times are for the whole batch and in seconds."""

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
    on_gpu: OnGpu | None = None

    def to_json(self) -> str:
        """Everything that is known, as JSON; what was not measured is null."""
        return json.dumps({**asdict(self), **self.derived}, indent=1)

    def plot(self, path: str | FilePath) -> None:
        """Draw costs of each path, and the product under the machine's ceilings; a `TpgenError` without matplotlib."""
        draw_explanation(self, path)

    def __str__(self) -> str:
        return explanation_text(self)

    def _repr_html_(self) -> str:
        return explanation_html(self, roofline(self, self.paths))
