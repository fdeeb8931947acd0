"""Small products to be verified."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.product import make_plan

PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvw", True), (1, 1, 2, "uvu", False)]
PLAN = make_plan("2x0e+2x1o", "0e+1o", "2x0e+2x1o+2x1e", PATHS)
PER_ROW = make_plan(
    "2x1o+1x2e", "1x1o", "2x1e+1x1o", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvw", True)], shared_weights=False
)


def product(strategy: str = "einsum", **options) -> TensorProduct:
    return TensorProduct.from_plan(PLAN, internal_weights=False, strategy=strategy, **options).double()


class Wrong(TensorProduct):
    """A product that is spoilt in one way."""

    def __init__(self, spoil: Callable[[Tensor, Tensor, Tensor], Tensor], right: float = 1.0) -> None:
        self._set_up_from_plan(PLAN, False, strategy="einsum")
        self.double()
        self.spoil, self.right_scale = spoil, right

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.spoil(super().forward(x, y, weight), x, y)

    def right(self, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.right_scale * super().right(y, weight)
