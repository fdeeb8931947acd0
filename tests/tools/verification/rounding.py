"""Narrower casts are caught, which a float64 copy has none of; honest rounding of large numbers is not accused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification.newcomers import DROPPED, SINGLE, Narrow, narrow, narrow_rows
from tests.tools.verification.planted import Given, Planted
from tests.tools.verification.strangers import VECTORS, Layer, layer, rows
from tests.tools.verification.suspicious import CUTOFF, Cluster, of
from tpgen.tools.verification.rounding import DRAWS_OTHERS, UNNAMED_CAST


def _autocast(self: Layer) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (self.mix @ torch.eye(4, dtype=self.mix.dtype)).to(self.mix.dtype)


class Tabled(Layer):
    """Weights in the dtype of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.ones(4, 4, dtype=torch.float16)

    def weight(self) -> Tensor:
        return (self.mix.to(self.table) * self.table).to(self.mix)


def _weighted(cast: Any) -> Any:
    return of(weights=lambda self, edges, *ends: cast(Cluster.weights(self, edges, *ends)).to(edges.dtype))


def crowd() -> Given:
    """A thousand atoms, on a grid from which they are moved a little."""
    drawn = torch.Generator().manual_seed(0)
    x = torch.cartesian_prod(*[torch.arange(10.0)] * 3) + 0.2 * torch.rand(1000, 3, generator=drawn)
    near = torch.cdist(x, x) < CUTOFF
    return x, torch.arange(1000) % 3, *near.fill_diagonal_(False).nonzero().T.clone()


def _raised(self: Cluster, *given: Tensor) -> Tensor:
    return Cluster.energy(self, *given) + 1e4


def _raised_and_lowered(self: Cluster, *given: Tensor) -> Tensor:
    return Cluster.energy(self, *given) + 1e4 - 1e4


def _features(self: Layer, v: Tensor) -> Tensor:
    drawn = torch.randn(4, 16, generator=torch.Generator().manual_seed(7), dtype=SINGLE)
    return v * drawn[:, :1].to(v)


def _of_layer(methods: Any, why: str = "", **more: Any) -> Planted:
    made = methods if isinstance(methods, type) else layer(**methods)
    options = {"given": narrow_rows, "dtype": SINGLE, "default": SINGLE, "said": VECTORS, **more}
    return Planted("precision", made, why=why, **options)


def _of_cluster(made: type[nn.Module], why: str = "", given: Any = narrow, **more: Any) -> Planted:
    return Planted("precision", made, given, why, **{"dtype": SINGLE, "default": SINGLE, **more})


FAULTS: dict[str, Planted] = {
    "weights under an autocast": _of_layer({"weight": _autocast}, "autocast to bfloat16"),
    "results in half precision": _of_layer(
        {"forward": lambda self, x: Layer.forward(self, x).half().to(x)}, "Tensor.half to float16"),
    "weights in the dtype of a table": _of_layer(Tabled, UNNAMED_CAST),
    "edges in bfloat16": _of_cluster(_weighted(lambda w: w.to(torch.bfloat16)), "Tensor.to to bfloat16"),
    "forces alone in half precision": _of_cluster(
        of(told=lambda self, e, f: {"energy": e, "forces": f.half().to(f)}), "Tensor.half to float16", part="forces"),
    "a large energy in half precision": _of_cluster(
        of(energy=lambda self, *given: _raised(self, *given).bfloat16().to(given[0])), "Tensor.bfloat16"),
    "weights of a float64 network in float32": _of_layer(
        {"weight": lambda self: self.mix.float().sin().double()}, "Tensor.float to float32",
        given=rows, dtype=torch.float64),
}  # fmt: skip

TOLD: dict[str, Planted] = {
    "a small energy beside large numbers": _of_cluster(
        of(energy=_raised_and_lowered), "small beside numbers that it is made of: float32 rounds it by"
    ),
    "features of a seed": _of_layer({"scaled": _features}, DRAWS_OTHERS),
}

RIGHT: dict[str, Planted] = {
    "a layer": _of_layer(Layer),
    "a layer in half precision": _of_layer(Layer, dtype=torch.float16),
    "a float64 layer": _of_layer(Layer, given=rows, dtype=torch.float64),
    "dropout": _of_layer(DROPPED),
    "one-hot rows in float32": _of_cluster(Narrow),
    "energies added up in float64": _of_cluster(of(energy=lambda self, *given: Cluster.energy(self, *given).double())),
    "large energies of a thousand atoms": _of_cluster(of(energy=_raised), given=crowd),
}
