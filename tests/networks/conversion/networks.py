"""Small networks of e3nn's modules, to be converted, and what tests ask of them."""

from __future__ import annotations

import torch
from e3nn import o3
from torch import Tensor, nn

GRAPHS = {"strategy": "grouped"}
VECTORS = ("2x1o", "1o", "2x1e")


def attributes(network: nn.Module) -> dict[str, set[str]]:
    """Everything that modules hold, by name."""
    return {
        name: {*m.__dict__, *m._modules, *m._buffers, *m._parameters, type(m).__name__}
        for name, m in network.named_modules()
        if "_compiled" not in name  # e3nn's own programs
    }


class Mixed(nn.Module):
    """One product of each class, one of them under two names, weights internal, of each row, and none."""

    def __init__(self) -> None:
        super().__init__()
        self.full = o3.FullTensorProduct("2x0e+1o", "0e+1o")
        irreps = self.full.irreps_out.simplify()
        self.connected = o3.FullyConnectedTensorProduct(irreps, "0e+1o", "3x0e+2x1o")
        self.again = self.connected
        chosen = [(0, 1, 0, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 1, "uvu", False)]
        self.rest = nn.ModuleList(
            [
                o3.TensorProduct("3x0e+2x1o", "0e+1o", "3x1o+2x1o", [chosen[0], chosen[1]], shared_weights=False),
                o3.ElementwiseTensorProduct("3x1o+2x1o", "5x0e"),
                o3.TensorSquare("5x1o", "2x0e+2e"),
            ]
        )

    def forward(self, x: Tensor, y: Tensor, w: Tensor) -> dict[str, Tensor]:
        z = self.rest[0](self.connected(self.full(x, y), y), y, w)
        z = self.rest[1](z, z.new_ones(len(z), 5))
        return {"squares": self.rest[2](z), "vectors": z}


def mixed_inputs(rows: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(rows, dim, dtype=dtype) for dim in (5, 4, 5))  # type: ignore[return-value]


class Scaled(o3.FullyConnectedTensorProduct):
    """A subclass with a forward and a parameter of its own."""

    def __init__(self, *irreps: str) -> None:
        super().__init__(*irreps)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.scale * super().forward(x, y, weight)


class Layer(nn.Module):
    """A product and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("2x1o", "1o", "2x1e+0e")
        self.linear = o3.Linear("2x1e+0e", "3x1e+0e")

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(self.product(x, y))
