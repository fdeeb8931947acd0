"""A small analytic potential, right, and wrong in every way that a law of networks is there to see."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ATOMS = 5


class Pairs(nn.Module):
    """Gaussians of all distances, weighted by what stands at both ends; forces by autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.3, -0.4]))

    def forward(self, positions: Tensor, charges: Tensor) -> dict[str, Tensor]:
        with torch.enable_grad():
            positions = positions if positions.requires_grad else positions.detach().requires_grad_()
            energy = self.energy(positions, charges)
            (slope,) = torch.autograd.grad(energy, positions, create_graph=True)
        return {"energy": energy, "forces": -slope}

    def energy(self, x: Tensor, q: Tensor) -> Tensor:
        away = x[:, None] - x[None, :]
        squares = away.square().sum(-1)
        wells = self.depth[0] * torch.exp(-0.3 * squares) + self.depth[1] * torch.exp(-0.1 * squares)
        return (wells * q[:, None] * q[None, :]).sum()


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x, q = torch.randn(ATOMS, 3, generator=generator), 0.5 + torch.rand(ATOMS, generator=generator)
    return x.to(dtype), q.to(dtype)


class Outside(Pairs):
    """Energy and forces as they are, spoilt after they were made."""

    def forward(self, positions: Tensor, charges: Tensor) -> dict[str, Tensor]:
        return self.spoilt(super().forward(positions, charges), positions)

    def spoilt(self, found: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError


class Upside(Outside):
    def spoilt(self, found, x):
        return {**found, "forces": -found["forces"]}


class Pushed(Outside):
    """Forces that are no slope: each point is driven around an axis."""

    def spoilt(self, found, x):
        return {**found, "forces": found["forces"] + 0.05 * torch.linalg.cross(x, x.roll(1, 0))}


class Noisy(Outside):
    def spoilt(self, found, x):
        return {**found, "forces": found["forces"] + 1e-9 * torch.randn_like(x)}


class Threaded(Outside):
    def spoilt(self, found, x):
        return {**found, "forces": found["forces"] * (1.0 + 1e-6 * torch.get_num_threads())}


class Compiled(Outside):
    def spoilt(self, found, x):
        return {**found, "energy": found["energy"] * (1.001 if torch.compiler.is_compiling() else 1.0)}


class Anchored(Pairs):
    def energy(self, x, q):
        return super().energy(x, q) + 0.01 * x.square().sum()


class Ordered(Pairs):
    def energy(self, x, q):
        return super().energy(x, q) + 0.01 * (x[0] - x[-1]).square().sum()


class Tilted(Pairs):
    def energy(self, x, q):
        return super().energy(x, q) + 0.01 * (x[:, None] - x[None, :])[..., 2].square().sum()


class Handed(Pairs):
    """A mirror image has another energy: only parity sees it."""

    def energy(self, x, q):
        centred = x - x.mean(0)
        return super().energy(x, q) + 0.01 * torch.linalg.det(centred[:3])


class Cliff(Pairs):
    """A step of the energy, which the forces do not know of, a little further out than the points are."""

    def energy(self, x, q):
        spread = (x - x.mean(0)).square().sum()
        return super().energy(x, q) + 0.2 * torch.floor(400.0 * spread).detach() / 400.0


class _Steep(torch.autograd.Function):
    """A square whose slope is a little off, or whose second derivative is."""

    @staticmethod
    def forward(ctx, x, slope, curve):
        ctx.save_for_backward(x)
        ctx.slope, ctx.curve = slope, curve
        return x.square()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _Slope.apply(g, x, ctx.slope, ctx.curve), None, None


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, x, slope, curve):
        ctx.save_for_backward(g, x)
        ctx.curve = curve
        return 2.0 * slope * g * x

    @staticmethod
    def backward(ctx, h):
        g, x = ctx.saved_tensors
        return 2.0 * h * x, 2.0 * ctx.curve * h * g, None, None


class Steep(Pairs):
    slope, curve = 1.001, 1.0

    def energy(self, x, q):
        away = x[:, None] - x[None, :]
        return super().energy(x, q) + 0.1 * _Steep.apply(away, self.slope, self.curve).sum()


class Curved(Steep):
    slope, curve = 1.0, 1.01


class _Lopsided(torch.autograd.Function):
    """Its first derivative is zero, and its second is no symmetric matrix."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * _Leaning.apply(x)


class _Leaning(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx, h):
        return 0.01 * h.roll(1, 0)


class Lopsided(Pairs):
    def energy(self, x, q):
        return super().energy(x, q) + _Lopsided.apply(x)


class Forgetful(Pairs):
    """A state without one of the parameters."""

    def state_dict(self, *args, **keywords):
        return {name: x for name, x in super().state_dict(*args, **keywords).items() if name != "depth"}

    def load_state_dict(self, state, strict=True):
        return super().load_state_dict(state, strict=False)


class Shifting(Pairs):
    """A file that holds the parameters in half precision."""

    def __getstate__(self):
        state = dict(self.__dict__)
        state["_parameters"] = {name: nn.Parameter(p.half().to(p)) for name, p in self._parameters.items()}
        return state
