"""A small network of messages in a skewed cell, right, and wrong as others could be."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.tools.verification.planted import QUICK, Given, Planted, changed

CUTOFF = 2.2
EXCHANGED = [*range(34), 35, 34]  # of the last row of degree two
HARMONICS, HIDDEN = "0e+1o+2e", "4x0e+4x1o+4x2e"
TURNS = {"irreps_in": {"units": None}}


def skewed() -> Given:
    """Positions, cell, how many cells lie between the ends of each edge, ends, and species, in float64."""
    generator = torch.Generator().manual_seed(3)
    cell = torch.tensor([[3.2, 0.0, 0.0], [0.7, 3.0, 0.0], [-0.4, 0.5, 3.4]], dtype=torch.float64)
    places = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1]]) / 2
    positions = (places.double() + 0.15 * torch.rand(6, 3, generator=generator).double()) @ cell
    units = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0]).double()] * 3)
    lengths = (positions[None, :, None] - positions[:, None, None] + units @ cell).norm(dim=-1)
    source, target, image = ((lengths < CUTOFF) & (lengths > 1e-6)).nonzero().T
    return positions, cell, units[image], torch.stack([source, target]), torch.arange(6) % 3


class Messages(nn.Module):
    """Messages of neighbours, squared and read out: energy, forces, stress by strain, and a dipole."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(3, 4))
        uvu = [(0, i, i, "uvu", True) for i in range(3)]
        self.product = o3.TensorProduct("4x0e", HARMONICS, HIDDEN, uvu, shared_weights=False, internal_weights=False)
        self.radial = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 12))
        self.square = o3.TensorSquare(HIDDEN, "4x0e+2x1o")
        self.readout = o3.Linear("4x0e+2x1o", "0e+1o")

    def forward(self, positions: Tensor, cell: Tensor, units: Tensor, edge_index: Tensor, species: Tensor) -> dict:
        self.begin()
        with torch.enable_grad():
            x = positions if positions.requires_grad else positions.detach().requires_grad_()
            strain = torch.zeros(3, 3, dtype=x.dtype, requires_grad=True)
            bent = torch.eye(3, dtype=x.dtype) + (strain + strain.T) / 2
            place = self.placed(x) @ bent
            edges = place[edge_index[1]] - place[edge_index[0]] + self.shifts(units, self.placed(cell), bent)
            read = self.readout(self.square(self.gathered(self.messages(edges, edge_index, species), edge_index, x)))
            energy = read[:, 0].sum()
            slope, by_strain = self.slopes(energy, x, strain)
        found = {"energy": energy, "forces": -slope, "stress": by_strain / self.volume(cell)}
        return {**found, "dipole": self.dipole(read[:, 1:].sum(0), edges)}

    def begin(self) -> None:
        pass

    def placed(self, x: Tensor) -> Tensor:
        return x

    def shifts(self, units: Tensor, cell: Tensor, bent: Tensor) -> Tensor:
        return units @ cell @ bent

    def envelope(self, u: Tensor) -> Tensor:
        return torch.where(u < 1, (1 - u**2) ** 3, torch.zeros_like(u))

    def messages(self, edges: Tensor, ends: Tensor, species: Tensor) -> Tensor:
        r = edges.norm(dim=-1)
        weights = self.radial(torch.stack([r, r**2, torch.exp(-r)], -1)) * self.envelope(r / CUTOFF).unsqueeze(-1)
        harmonics = o3.spherical_harmonics(HARMONICS, edges, True, "component")
        return self.product(self.embedding[species][ends[0]], harmonics, weights)

    def gathered(self, messages: Tensor, ends: Tensor, x: Tensor) -> Tensor:
        return messages.new_zeros(len(x), messages.shape[1]).index_add(0, ends[1], messages) / 3

    def slopes(self, energy: Tensor, x: Tensor, strain: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(energy, [x, strain], create_graph=True)

    def volume(self, cell: Tensor) -> Tensor:
        return torch.linalg.det(cell).abs()

    def dipole(self, read: Tensor, edges: Tensor) -> Tensor:
        return read


of = partial(changed, Messages)


class Once(torch.autograd.Function):
    """An envelope whose gradient is a constant to autograd."""

    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return torch.where(u < 1, (1 - u**2) ** 3, torch.zeros_like(u))

    @staticmethod
    def backward(ctx, slope):
        u = ctx.saved_tensors[0].detach()
        return slope * torch.where(u < 1, -6 * u * (1 - u**2) ** 2, torch.zeros_like(u))


def _without_the_rest(self, messages, ends, x):
    """Sums in chunks of four, of which the last that is not whole is left out."""
    whole = (len(messages) - 1) // 4 * 4
    return Messages.gathered(self, messages[:whole], ends[:, :whole], x)


def _last_wins(self, messages, ends, x):
    nodes = messages.new_zeros(len(x), messages.shape[1])
    nodes[ends[1]] = messages
    return nodes


def _backward(self, energy, x, strain):
    energy.backward(retain_graph=True)
    return x.grad, strain.grad


def _single(self, edges, ends, species):
    """The product's weights in single precision."""
    return Messages.messages(self, edges, ends, species).float().double()


def _as_rows(self, x):
    """The memory of a tensor, as if it held rows."""
    return torch.as_strided(x, x.shape, (3, 1))


def _double(self):
    torch.set_default_dtype(torch.float64)


def _decay(self):
    with torch.no_grad():
        self.embedding.mul_(1 - 1e-12)


def _planted(laws: str | list[str], made: Any, why: str = "", part: str = "", **more: Any) -> Planted:
    return Planted(laws, made, skewed, why, part, said=TURNS, **more)


FAULTS: dict[str, Planted] = {
    "a cell by columns": _planted("equivariant", of(shifts=lambda self, units, cell, bent: units @ cell.T @ bent)),
    "an axial vector in a polar one": _planted(
        "equivariant", of(dipole=lambda self, read, edges: read + 1e-3 * torch.linalg.cross(edges[0], edges[1]))),
    "two components exchanged": _planted(
        "equivariant", of(gathered=lambda self, m, *rest: Messages.gathered(self, m[:, EXCHANGED], *rest))),
    "messages in single precision": _planted("forces", of(messages=_single)),
    "the volume of an upright box": _planted("stress", of(volume=lambda self, cell: cell.norm(dim=1).prod())),
    "a gradient without a gradient": _planted("first order", of(envelope=lambda self, u: Once.apply(u))),
    "a chunk that is left out": _planted("edges", of(gathered=_without_the_rest)),
    "the last message wins": _planted("edges", of(gathered=_last_wins)),
    "positions read as rows": _planted("memory", of(placed=_as_rows)),
    "gradients left in parameters": _planted(
        "surroundings", of(slopes=_backward), "a call changes the gradient of embedding, the"),
    "a seed that is set": _planted("surroundings", of(begin=lambda self: torch.manual_seed(0))),
    "a default dtype that is set": _planted("surroundings", of(begin=_double)),
    "gradients that stay on": _planted("surroundings", of(begin=lambda self: torch.set_grad_enabled(True))),
    "one thread for the whole process": _planted(
        "surroundings", of(begin=lambda self: torch.set_num_threads(1)), "a call changes the number of threads"),
    "a parameter that a call changes": _planted("surroundings", of(begin=_decay)),
    "couplings made in single precision": _planted("equivariant", Messages, default=torch.float32),
}  # fmt: skip


class Plain(Messages):
    """A number drawn at random that no state_dict holds: a constant, for all that anybody can see."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = float(torch.rand(()))

    def envelope(self, u: Tensor) -> Tensor:
        return self.scale * super().envelope(u)


# --- unusual, and right -----------------------------------------------------------------------------------------------


class Checkpointed(Messages):
    """Messages that are computed again in the backward."""

    def messages(self, *given: Tensor) -> Tensor:
        return checkpoint(super().messages, *given, use_reentrant=False)


class Flattened(Messages):
    """A view, which some memory does not allow: that is said, and not silently wrong."""

    def placed(self, x: Tensor) -> Tensor:
        return x.view(-1).view(-1, 3)


class Drawing(Messages):
    """Random numbers that come to nothing."""

    def envelope(self, u: Tensor) -> Tensor:
        return super().envelope(u) + 0.0 * torch.rand_like(u)


class Within(Messages):
    """Settings of its own, which it takes back."""

    def messages(self, *given: Tensor) -> Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return super().messages(*given)
        finally:
            torch.set_num_threads(before)


AWKWARD: dict[str, Planted] = {
    name: _planted(QUICK, made)
    for name, made in {
        "right": Messages,
        "messages computed again": Checkpointed,
        "a view of the positions": Flattened,
        "random numbers that come to nothing": Drawing,
        "settings that are taken back": Within,
    }.items()
}
SEEN = ["equivariant", "stress", "edges", "memory", "surroundings", "history"]
UNSEEN: dict[str, Planted] = {  # what no law can see: it may be meant
    "nodes relative to the mean of all": _planted(
        SEEN, of(gathered=lambda self, *given: (m := Messages.gathered(self, *given)) - m.mean(0))
    ),
    "a random number that is not saved": _planted(SEEN, Plain),
}
TOLD: dict[str, Planted] = {
    "a view of the positions": _planted(
        "memory", Flattened, "it does not take them: view size is not compatible", "with axes in another order"
    ),
}
