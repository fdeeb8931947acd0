"""Faults that a reader who had not seen the laws planted, what may be meant and is told, and right ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from e3nn import o3
from torch import Tensor, nn

from tests.tools.verification.lattices import CUTOFF, Lattice, neighbours, of, single, triclinic
from tests.tools.verification.planted import Given, Planted, Potential, changed
from tests.tools.verification.potentials import Pairs
from tpgen.base._e3nn import default_dtype

# --- potentials -------------------------------------------------------------------------------------------------------


def alike() -> Given:
    """A batch of two crystals of three atoms."""
    a, b = triclinic(3), triclinic(3, seed=1, scale=1.05)
    joined = [torch.cat([x, y]) for x, y in zip(a[:2], b[:2], strict=True)]
    ends, counts, species = torch.cat([a[2], b[2] + 3], 1), torch.cat([a[3], b[3]]), torch.cat([a[4], b[4]])
    return *joined, ends, counts, species, torch.arange(6) // 3


def upright() -> Given:
    """A cell one of whose vectors is as long as the cutoff, and a list that is longer."""
    cell = torch.diag(torch.tensor([CUTOFF, 3.2, 3.4], dtype=torch.float64))
    positions = torch.tensor([[0.1, 0.0, 0.2], [1.4, 1.7, 1.6]], dtype=torch.float64)
    edges = neighbours(0.85 * positions, 0.85 * cell)
    return positions, cell[None], *edges, torch.arange(2), torch.zeros(2, dtype=torch.long)


def near() -> Given:
    """Points that attract each other, two of them so much that they meet."""
    positions = torch.tensor([[0.0, 0, 0], [0.31, 0, 0], [3.0, 1.0, 0]], dtype=torch.float64)
    return positions, torch.ones(3, dtype=torch.float64)


def _centred(self: Lattice, positions: Tensor) -> Tensor:
    positions.data.sub_(positions.data.mean(0))
    return Lattice.asked(self, positions)


class Unique(Lattice):
    """Species by their order among those that are there."""

    def forward(self, positions, cell, edge_index, unit_shifts, species, batch):
        species = torch.unique(species, return_inverse=True)[1]
        return super().forward(positions, cell, edge_index, unit_shifts, species, batch)


class Modes(Lattice):
    """Energies of atoms alone in evaluation only."""

    def pooled(self, site, batch, graphs):
        return super().pooled(site if self.training else site + 0.5, batch, graphs)


class Offset(Lattice):
    """Large energies of atoms alone, and a well of some ripples: long steps do not see these, and short ones round."""

    def __init__(self):
        super().__init__()
        self.alone = nn.Parameter(torch.tensor([-13587.25, -7873.5, -20111.0]))

    def weights(self, edges, ends, species):
        return super().weights(edges, ends, species) * (1 + 0.01 * torch.cos(20.0 * edges.norm(dim=-1)))


def _twice_smooth(self: Lattice, r: Tensor) -> Tensor:
    u = (r / CUTOFF).clamp(max=1.0)
    return 1 - 10 * u**3 + 15 * u**4 - 6 * u**5


class Attracted(Pairs):
    def energy(self, x, q):
        i, j = torch.triu_indices(len(x), len(x), 1)
        return -self.depth.square().sum() * (q[i] * q[j] / (x[i] - x[j]).norm(dim=-1)).sum()


# --- layers -----------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Channels of vectors, mixed, each as long as its norm says."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(4) + 0.1 * torch.arange(16.0).reshape(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.begin()
        v = torch.einsum("nci,cd->ndi", x.reshape(-1, 4, 3), self.weight())
        return self.scaled(v).reshape(-1, 12)

    def begin(self) -> None:
        pass

    def weight(self) -> Tensor:
        return self.mix

    def scaled(self, v: Tensor) -> Tensor:
        return v * torch.sigmoid(v.square().sum(-1, keepdim=True))


layer = partial(changed, Layer)


def _seeds(begin: Callable[[int], Any], draw: Callable[[], Any]) -> type[Layer]:
    def seeded(self: Layer) -> None:
        begin(0)
        draw()

    return layer(begin=seeded)


def _by_row(self: Layer, v: Tensor) -> Tensor:
    return v * (1.0 + 0.5 * (torch.arange(len(v)) % 2).to(v)).reshape(-1, 1, 1)


def _roots(self: Layer, v: Tensor) -> Tensor:
    """Numbers where a vector vanishes, whose gradients are none."""
    return v * v.square().sum(-1, keepdim=True).sqrt().tanh()


class Kept(Layer):
    """Scaled weights, made once in evaluation."""

    held: Tensor | None = None

    def weight(self):
        if self.training:
            return 1.5 * self.mix
        if self.held is None:
            self.held = (1.5 * self.mix).detach()
        return self.held


class Asked(Kept):
    """Weights that are made anew where others are there."""

    version = -1

    def weight(self):
        if self.version != self.mix._version:
            self.version, self.held = self.mix._version, None
        return super().weight()


class Plain(Layer):
    """Weights as an attribute, and a constant that no result depends on."""

    def __init__(self):
        super().__init__()
        self.further, self.unused = {"weight": 2.0 * torch.ones(4, 4).double()}, torch.ones(3)

    def weight(self):
        return self.mix + self.further["weight"]


class Lengths(nn.Module):
    """Directions of vectors, and of no vector at all none."""

    def forward(self, v: Tensor) -> Tensor:
        return v / v.norm(dim=-1, keepdim=True)


def rows() -> Given:
    return (torch.randn(7, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64),)


def arrows() -> Given:
    return (torch.randn(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64),)


VECTORS = {"irreps_in": "4x1o", "irreps_out": "4x1o"}
ARROWS = {"irreps_in": "1o", "irreps_out": "1o"}


def _of_layer(law: str, made: type[nn.Module], why: str = "", given: Callable[[], Given] = rows, **more) -> Planted:
    return Planted(law, made, given, why, said=VECTORS if given is rows else ARROWS, **more)


FAULTS: dict[str, Planted] = {
    "positions moved behind autograd's back": Planted(
        "surroundings", of(asked=_centred), triclinic, "a call changes the memory of positions"),
    "a seed, and odd draws": _of_layer(
        "surroundings", _seeds(torch.manual_seed, lambda: torch.randn(4, 4)), "changes the seed of random numbers"),
    "a seed of numpy": _of_layer("surroundings", _seeds(np.random.seed, np.random.rand), "numpy's random numbers"),
    "a seed of Python": _of_layer("surroundings", _seeds(random.seed, random.random), "Python's random numbers"),
    "graphs of equal sizes alone": Planted(
        "batch", of(pooled=lambda self, site, batch, graphs: site.view(graphs, -1).sum(1)), alike,
        "each is taken alone, and two that are alike together"),
    "species by their order in the batch": Planted("batch", Unique, triclinic),
    "an element by the row": _of_layer("permutation", layer(scaled=_by_row)),
    "a mean over the number of rows": _of_layer("permutation", layer(scaled=lambda self, v: v / len(v))),
    "directions of vectors that vanish": _of_layer(
        "finite", layer(scaled=lambda self, v: v / v.norm(dim=-1, keepdim=True))),
    "gradients of vectors that vanish": _of_layer("finite", layer(scaled=_roots)),
    "weights kept in evaluation": _of_layer("history", Kept),
    "weights kept, given in evaluation": _of_layer("history", Kept, training=False),
}  # fmt: skip

TOLD: dict[str, Planted] = {  # what may be meant: it is said, and not accused
    "no rows": _of_layer(
        "finite", layer(scaled=lambda self, v: v.reshape(len(v), -1, 3)), "the network does not take it: RuntimeError"),
    "rows that know of each other": _of_layer(
        "permutation", layer(scaled=lambda self, v: v - v.mean(0)), "rows know of each other"),
    "directions": _of_layer("finite", Lengths, "no numbers where v vanish, which may be directions", arrows),
    "weights that nothing saves": _of_layer(
        "saved", Plain, "results depend on further.weight, tensors that are neither parameters nor buffers"),
    "another energy in evaluation": Planted(
        "repeated", Modes, triclinic, "training and evaluation differ: energy by 1.5e+00; it may be meant"),
    "edges on the cutoff": Planted("third order", of(envelope=_twice_smooth), upright, "on a kink: it holds where"),
    "points that fall into each other": Planted("conservation", Attracted, near, "forces grow to more than 10 times"),
    "another default dtype": Planted(
        "repeated", Lattice, single, "no gradients where the default dtype is float64", dtype=torch.float32),
}  # fmt: skip

RIGHT: dict[str, Planted] = {
    "large energies of atoms alone": Planted("forces", Offset, single, dtype=torch.float32),
    "weights made anew": _of_layer("history", Asked, training=False),
}


# --- what runs without gradients alone, and what a call leaves behind -------------------------------------------------


class Product(nn.Module):
    """Rows times a product of two matrices: right."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a @ self.b)


class KeptProduct(Product):
    """Without gradients the product of matrices is made once."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().forward(x)
        if getattr(self, "kept", None) is None:
            self.kept = self.a @ self.b
        return x @ self.kept


class KeptFromThere(Product):
    """What a call without gradients has made serves those with them."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            self.kept = self.a @ self.b
        return x @ getattr(self, "kept", self.a @ self.b)


class Clipped(Product):
    """Without gradients it writes into its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if torch.is_grad_enabled() else x.relu_())


class Seeded(Product):
    """Without gradients it seeds random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            torch.manual_seed(1)
        return super().forward(x)


class Chunked(Product):
    """Without gradients it computes whole chunks of four rows alone."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return (
            y if torch.is_grad_enabled() else torch.cat([y[: len(y) // 4 * 4], torch.zeros_like(y[len(y) // 4 * 4 :])])
        )


class _ByInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        x, w = ctx.saved_tensors
        return (g @ w.T, x.T @ g) if ctx.needs_input_grad[0] else (None, None)


class ByInput(Product):
    """Weights get gradients where the input gets one."""

    def forward(self, x: Tensor) -> Tensor:
        return _ByInput.apply(x, self.a)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g if g.is_contiguous() else g


class Packed(Product):
    """A backward that reads a cotangent as if its numbers lay side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return _Packed.apply(super().forward(x))


class OneDict(Product):
    """The same dict at each call."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        self.found = getattr(self, "found", {})
        self.found["y"] = super().forward(x)
        return self.found


class Neighbours(nn.Module):
    """A potential that counts its atoms by the ends of edges, or leaves rows of the others as they come."""

    def __init__(self, counts: bool = True) -> None:
        super().__init__()
        self.counts, self.weight = counts, nn.Parameter(torch.tensor([0.3, 0.7]))

    def forward(self, positions: Tensor, species: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        senders, receivers = edge_index
        lengths = (positions[senders] - positions[receivers]).square().sum(1)
        number = int(edge_index.max()) + 1 if self.counts and edge_index.numel() else len(positions) * (not self.counts)
        pairs = torch.zeros(number).index_add(0, receivers[:], (-lengths).exp())
        if not self.counts:
            known = torch.zeros(number, dtype=torch.bool).index_fill(0, receivers, True)
            held = torch.empty(number)
            held[known] = pairs[known]
            pairs = held
        energies = pairs + self.weight[species[:number]]
        return torch.zeros(int(batch.max()) + 1).index_add(0, batch[:number], energies)


class Judged(Potential):
    """A potential of edges with forces, whose degrees, atoms and norms are as a stranger wrote them."""

    KNOWN: ClassVar[dict] = {}

    def __init__(self, norm: type[nn.Module] = nn.Identity, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.radial = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 4)).double()
        self.norm = nn.Identity() if norm is nn.Identity else norm(4).double()
        self.out = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 1)).double()
        self.fault = fault

    def forward(self, positions: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        return self.of(positions, *edge_index)

    def energy(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        if self.fault == "precision":
            torch.set_float32_matmul_precision("highest")
        length = (x[source] - x[target]).norm(dim=-1, keepdim=True)
        sums = x.new_zeros(len(x), 4).index_add(0, target, self.radial(length) * torch.exp(-length.square()))
        features = self.norm(1 + sums / self.degrees(source, target, len(x))[:, None].to(x))
        if self.fault == "last":  # atoms past the last one with edges are left as they are
            known = int(target.max()) + 1
            features = torch.cat([features[:known], 0 * features[known:]])
        return self.out(features)

    def degrees(self, source: Tensor, target: Tensor, number: int) -> Tensor:
        key = source.data_ptr(), len(source), number
        if self.fault != "address" or key not in self.KNOWN:
            self.KNOWN[key] = torch.bincount(target, minlength=number).clamp(min=1).clone()
        return self.KNOWN[key]


class RoundedCouplings(nn.Module):
    """A square of tensors whose couplings were computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        with default_dtype(torch.float32):
            self.square = o3.TensorProduct("2e", "2e", "2e", [(0, 0, 0, "uuu", False)])

    def forward(self, x: Tensor) -> Tensor:
        return self.square(x, x)


class Meeting(Potential):
    """A smooth potential of pairs, some of which fly by each other closely."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        single = torch.float32  # as the stranger drew them
        self.net = nn.Sequential(nn.Linear(1, 8, dtype=single), nn.SiLU(), nn.Linear(8, 1, dtype=single)).double()

    def forward(self, positions: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        return self.of(positions, *edge_index)

    def energy(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        length = (x[source] - x[target]).norm(dim=-1, keepdim=True)
        return self.net(length) * torch.exp(-length.square())


def seven() -> Given:
    torch.manual_seed(0)
    Meeting()  # the points that a stranger drew after it
    edges = torch.tensor([[0, 1, 1, 2, 3, 4, 5, 6, 2, 0], [1, 0, 2, 1, 4, 3, 6, 5, 6, 3]])
    return torch.randn(7, 3, dtype=torch.float32).double(), edges


def rows_of_four() -> Given:
    return (torch.randn(6, 4, generator=torch.Generator().manual_seed(0)),)


def with_a_lone_atom() -> Given:
    """A graph whose second atom has no edge."""
    positions = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    edges = torch.tensor([[0, 2, 2, 3, 3, 4, 0, 4], [2, 0, 3, 2, 4, 3, 4, 0]])
    return positions, torch.tensor([0, 1, 1, 0, 1]), edges, torch.zeros(5, dtype=torch.long)


def _of_four(law: str, made: type[nn.Module], why: str = "") -> Planted:
    return Planted(law, made, rows_of_four, why, said={"irreps_in": ["4x0e"], "irreps_out": ["4x0e"]})


FAULTS |= {
    "kept without gradients": _of_four("history", KeptProduct),
    "kept from a call without gradients": _of_four("history", KeptFromThere),
    "input written to without gradients": _of_four("history", Clipped),
    "seeded without gradients": _of_four("surroundings", Seeded, "seed"),
    "whole chunks without gradients": _of_four("permutation", Chunked),
    "gradients by the input's": _of_four("parameters", ByInput),
    "cotangents side by side": _of_four("parameters", Packed),
    "one dict": Planted(
        "history", OneDict, rows_of_four, said={"irreps_in": ["4x0e"], "irreps_out": {"y": "4x0e"}}),
    "atoms by edges": Planted("permutation", Neighbours, with_a_lone_atom),
    "a lone atom by edges": Planted("batch", Neighbours, with_a_lone_atom),
    "rows that nobody writes": Planted("finite", lambda: Neighbours(counts=False), with_a_lone_atom),
    "degrees by address": Planted("history", lambda: Judged(fault="address"), seven),
    "atoms after the last with edges": Planted("permutation", lambda: Judged(fault="last"), seven),
    "precision of matrix products": Planted("surroundings", lambda: Judged(fault="precision"), seven, "precision"),
    "couplings of float32": Planted(
        "equivariant", RoundedCouplings, lambda: (torch.randn(6, 5, generator=torch.Generator().manual_seed(0)),),
        "set_default_dtype(torch.float64)", said={"irreps_in": ["2e"], "irreps_out": ["2e"]}),
}  # fmt: skip
RIGHT |= {
    "points that meet": Planted("conservation", Meeting, seven),
    "rows by a product of matrices": _of_four("history", Product),
    **{
        f"forces of a layer norm, {law}": Planted(law, lambda: Judged(nn.LayerNorm), seven)
        for law in ("second order", "Hessian", "third order")
    },
}
