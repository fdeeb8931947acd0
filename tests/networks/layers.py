"""A network of products that have something in common."""

import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import nn

import tpgen
from tpgen.planner.presets import channelwise


class Layers(nn.Module):
    """Channelwise products that read the same spherical harmonics."""

    def __init__(self, strategy: str = "einsum", count: int = 3) -> None:
        super().__init__()
        irreps = o3.Irreps("4x0e+4x1o")
        plan = channelwise(irreps, "0e+1o", "0e+1o+1e")
        self.products, self.mixes = nn.ModuleList(), nn.ModuleList()
        for _ in range(count):
            product = tpgen.TensorProduct.from_plan(plan, strategy=strategy)
            self.products.append(product)
            self.mixes.append(o3.Linear(product.irreps_out, irreps))
        self.radial = FullyConnectedNet([3, 8, plan.weight_numel], torch.nn.functional.silu)
        self.act = nn.ReLU()

    def forward(self, x, edge, lengths):
        y = o3.spherical_harmonics(o3.Irreps("0e+1o"), edge, normalize=True)
        w = self.radial(lengths)
        for product, mix in zip(self.products, self.mixes, strict=True):
            x = mix(product(x, y, w)) + x.new_ones(len(x), 1)
        return self.act(x)


def layer_inputs(rows: int = 7, dtype: torch.dtype = torch.float64) -> tuple:
    return torch.randn(rows, 16, dtype=dtype), torch.randn(rows, 3, dtype=dtype), torch.randn(rows, 3, dtype=dtype)


def by_path(graph: torch.fx.Graph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        found.setdefault(node.meta["module_path"], []).append(node.op)
    return found
