"""A small analytic potential, right, and wrong in every way that a law of networks is there to see."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification.planted import Given, Planted, Potential, changed

ATOMS = 5


class Pairs(Potential):
    """Gaussians of all distances, weighted by what stands at both ends; forces by autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Parameter(torch.tensor([1.3, -0.4]))

    def forward(self, positions: Tensor, charges: Tensor) -> dict[str, Tensor]:
        return self.of(positions, charges)

    def energy(self, x: Tensor, q: Tensor) -> Tensor:  # type: ignore[override]
        away = x[:, None] - x[None, :]
        squares = away.square().sum(-1)
        wells = self.depth[0] * torch.exp(-0.3 * squares) + self.depth[1] * torch.exp(-0.1 * squares)
        return (wells * q[:, None] * q[None, :]).sum()


def inputs(dtype: torch.dtype = torch.float64) -> Given:
    generator = torch.Generator().manual_seed(5)
    x, q = torch.randn(ATOMS, 3, generator=generator), 0.5 + torch.rand(ATOMS, generator=generator)
    return x.to(dtype), q.to(dtype)


of = partial(changed, Pairs)


def also(term: Any) -> type[Pairs]:
    """A potential with a further energy of the points."""
    return of(energy=lambda self, x, q: Pairs.energy(self, x, q) + term(x))


def away(x: Tensor) -> Tensor:
    return x[:, None] - x[None, :]


def _driven(self: Pairs, x: Tensor, q: Tensor) -> dict[str, Tensor]:
    found = Potential.of(self, x, q)
    return {**found, "forces": found["forces"] + 0.05 * torch.linalg.cross(x, x.roll(1, 0))}


def _cliff(x: Tensor) -> Tensor:
    """A step of the energy, which the forces do not know of, a little further out than the points are."""
    spread = (x - x.mean(0)).square().sum()
    return 0.2 * torch.floor(400.0 * spread).detach() / 400.0


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


def _planted(law: str, made: Any, part: str = "") -> Planted:
    return Planted(law, made, inputs, part=part, default=torch.float32)


FAULTS: dict[str, Planted] = {
    "forces of the other sign": _planted("forces", of(told=lambda self, e, f: {"energy": e, "forces": -f})),
    "forces that drive points around an axis": _planted("conservation", of(of=_driven)),
    "noise of forces": _planted(
        "repeated", of(told=lambda self, e, f: {"energy": e, "forces": f + 1e-9 * torch.randn_like(f)})),
    "forces by the number of threads": _planted("threads", of(
        told=lambda self, e, f: {"energy": e, "forces": f * (1.0 + 1e-6 * torch.get_num_threads())})),
    "another energy when compiled": _planted("compiled", of(told=lambda self, e, f: {
        "energy": e * (1.001 if torch.compiler.is_compiling() else 1.0), "forces": f})),
    "an anchor at the origin": _planted("translation", also(lambda x: 0.01 * x.square().sum())),
    "the first and the last point": _planted("permutation", also(lambda x: 0.01 * (x[0] - x[-1]).square().sum())),
    "heights": _planted("equivariant", also(lambda x: 0.01 * away(x)[..., 2].square().sum())),
    "a mirror image, which parity alone sees": _planted(
        "equivariant", also(lambda x: 0.01 * torch.linalg.det((x - x.mean(0))[:3])), "parity"),
    "a cliff": _planted("conservation", also(_cliff)),
    "a slope that is a little off": _planted(
        "first order", also(lambda x: 0.1 * _Steep.apply(away(x), 1.001, 1.0).sum())),
    "a second derivative that is a little off": _planted(
        "second order", also(lambda x: 0.1 * _Steep.apply(away(x), 1.0, 1.01).sum())),
    "second derivatives that are no symmetric matrix": _planted(
        "Hessian", also(lambda x: _Lopsided.apply(x))),
    "a state without a parameter": _planted("saved", Forgetful),
    "a file in half precision": _planted("saved", Shifting),
}  # fmt: skip
