"""As little of MACE as its adapter sees: interaction blocks that gather, multiply and sum, or leave it to one call.

The classes say that they come from ``mace``, which is how an adapter finds its project.
"""

from __future__ import annotations

import torch
from e3nn import o3
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.planner.generalized import generalized_couplings

ELEMENTS, CHANNELS = 3, 4
HIDDEN = o3.Irreps(f"{CHANNELS}x0e+{CHANNELS}x1o")
HARMONICS = o3.Irreps("0e+1o+2e")


def of_mace(cls: type) -> type:
    cls.__module__ = "mace.modules.blocks"
    return cls


@of_mace
@compile_mode("script")
class Interaction(nn.Module):
    """Features of neighbours times harmonics, summed; and a skip that knows the element."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [(i, j) for i in range(len(HIDDEN)) for j in range(len(HARMONICS))]
        paths = [(i, j, ir) for i, j in pairs for ir in HIDDEN[i].ir * HARMONICS[j].ir if ir.l <= 1]
        instructions = [(i, j, k, "uvu", True) for k, (i, j, _) in enumerate(paths)]
        middle = o3.Irreps([(CHANNELS, ir) for _, _, ir in paths])
        self.conv_tp = o3.TensorProduct(
            HIDDEN, HARMONICS, middle, instructions, shared_weights=False, internal_weights=False
        )
        self.conv_tp_weights = nn.Linear(1, self.conv_tp.weight_numel)
        self.linear = o3.Linear(middle, HIDDEN)
        self.skip_tp = o3.FullyConnectedTensorProduct(HIDDEN, o3.Irreps(f"{ELEMENTS}x0e"), HIDDEN)

    def forward(
        self, node_attrs: Tensor, node_feats: Tensor, lengths: Tensor, sh: Tensor, edge_index: Tensor
    ) -> Tensor:
        weights = self.conv_tp_weights(lengths)
        if hasattr(self, "conv_fusion"):
            message = self.conv_tp(node_feats, sh, weights, edge_index)
        else:
            each = self.conv_tp(node_feats[edge_index[0]], sh, weights)
            message = torch.zeros(node_feats.shape[0], each.shape[1], dtype=each.dtype)
            message = message.index_add(0, edge_index[1], each)
        return self.linear(message) + self.skip_tp(node_feats, node_attrs)


@of_mace
@compile_mode("script")
class Contraction(nn.Module):
    """Features times themselves, coupled to one irrep and weighted by the element, in degrees 2 and 1."""

    def __init__(self, output: str, flipped: bool) -> None:
        super().__init__()
        one = o3.Irreps([(1, ir) for _, ir in HIDDEN])
        self.correlation = 2
        for degree in (1, 2):
            couplings = torch.from_numpy(generalized_couplings([one] * degree, o3.Irrep(output)))
            couplings = couplings if couplings.dim() == degree + 2 else couplings.unsqueeze(0)
            self.register_buffer(f"U_matrix_{degree}", (-couplings if flipped else couplings).to(torch.float64))
        self.weights_max = nn.Parameter(torch.randn(ELEMENTS, self.U_matrix_2.shape[-1], CHANNELS))
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(ELEMENTS, self.U_matrix_1.shape[-1], CHANNELS))])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        square = torch.einsum("kijp,be,epc,bci,bcj->bck", self.U_matrix_2.to(x.dtype), y, self.weights_max, x, x)
        for weight in self.weights:
            square = square + torch.einsum("kip,be,epc,bci->bck", self.U_matrix_1.to(x.dtype), y, weight, x)
        return square.flatten(1)


@compile_mode("script")
class SymmetricContraction(nn.Module):
    def __init__(self, flipped: bool = False) -> None:
        super().__init__()
        self.irreps_in = self.irreps_out = HIDDEN
        self.contractions = nn.ModuleList([Contraction(str(ir), flipped) for _, ir in HIDDEN])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([contraction(x, y) for contraction in self.contractions], dim=-1)


SymmetricContraction.__module__ = "mace.modules.symmetric_contraction"


class reshape_irreps(nn.Module):
    """Rows in e3nn's order as ``(rows, copies, components)``."""

    def __init__(self, irreps: o3.Irreps, cueq_config: object = None) -> None:
        super().__init__()
        self.irreps, self.cueq_config = o3.Irreps(irreps), cueq_config
        self.dims = [ir.dim for _, ir in self.irreps]
        self.muls = [mul for mul, _ in self.irreps]

    def forward(self, tensor: Tensor) -> Tensor:
        found, at = [], 0
        for mul, dim in zip(self.muls, self.dims, strict=True):
            found.append(tensor[:, at : at + mul * dim].reshape(tensor.shape[0], mul, dim))
            at += mul * dim
        return torch.cat(found, dim=-1)


reshape_irreps.__module__ = "mace.modules.irreps_tools"


@of_mace
@compile_mode("script")
class Potential(nn.Module):
    """Two interactions, an energy, and forces where positions are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(ELEMENTS, HIDDEN.dim)
        self.interactions = nn.ModuleList([Interaction(), Interaction()])
        self.readout = o3.Linear(HIDDEN, "0e")

    def forward(self, positions: Tensor, node_attrs: Tensor, edge_index: Tensor, training: bool) -> list[Tensor]:
        if not positions.requires_grad:
            positions = positions.clone().requires_grad_()
        vectors = positions[edge_index[1]] - positions[edge_index[0]]
        lengths = vectors.norm(dim=1, keepdim=True)
        sh = torch.cat([torch.ones_like(lengths), vectors, vectors[:, :1] * vectors, vectors[:, 1:] ** 2], dim=1)
        features = self.embedding(node_attrs)
        for interaction in self.interactions:
            features = interaction(node_attrs, features, lengths, sh, edge_index)
        energy = self.readout(features).sum()
        forces = torch.autograd.grad(
            [energy], [positions], retain_graph=training, create_graph=training, allow_unused=True
        )[0]
        assert forces is not None
        return [energy.unsqueeze(0), -forces]


def arguments(nodes: int = 5, edges: int = 17, dtype: torch.dtype = torch.float32, training: bool = True) -> tuple:
    generator = torch.Generator().manual_seed(1)
    species = torch.randint(ELEMENTS, (nodes,), generator=generator)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    edge_index[1] = torch.where(edge_index[0] == edge_index[1], (edge_index[1] + 1) % nodes, edge_index[1])
    positions = torch.randn(nodes, 3, generator=generator, dtype=dtype)
    return positions, nn.functional.one_hot(species, ELEMENTS).to(dtype), edge_index, training
