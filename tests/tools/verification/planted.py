"""Networks on their inputs, with the law that is asked of them and what the report must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._e3nn import default_dtype
from tpgen.base._torch import pytree
from tpgen.tools.verification.verify import LAWS, Verification, verify

Given = tuple[Any, ...]
OF_PRODUCTS = {"definition", "e3nn", "right", "linear", "degree", "normalisation"}  # laws
QUICK = [name for name in LAWS if name != "compiled"]  # which takes longer than all the rest


@dataclass(frozen=True)
class Planted:
    """A network, its inputs, and the laws that are asked; ``why`` is a part of what the report says.

    Failures are in parts of a law that have ``part`` in their names.
    """

    laws: str | list[str]
    made: Callable[[], nn.Module]
    given: Callable[[], Given]
    why: str = ""
    part: str = ""
    training: bool = True
    said: dict = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    default: torch.dtype = torch.float64  # of torch, while the network is made and verified

    def verified(self) -> Verification:
        """Report on the network; the caller's own tensors must stay as they were."""
        with default_dtype(self.default):
            given, before = self.given(), self.given()
            network = self.made().to(self.dtype).train(self.training)
            report = verify(network, given, only=self.laws, **self.said)
        assert torch.is_grad_enabled()
        leaves = zip(pytree.tree_leaves(list(given)), pytree.tree_leaves(list(before)), strict=True)
        assert all(torch.equal(x, y) for x, y in leaves if isinstance(x, Tensor)), "the caller's tensors were changed"
        return report


def changed(base: type[nn.Module], **methods: Any) -> Any:
    """A network with other methods."""
    return type("Other", (base,), methods)


class Potential(nn.Module):
    """Energy and forces by one gradient; a `forward` names the arguments, and gives them to `of`."""

    def of(self, positions: Tensor, *rest: Any) -> Any:
        with torch.enable_grad():
            x = self.asked(positions)
            energy = self.summed(self.energy(x, *rest), *rest)
            (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=self.keeps())
        return self.told(energy, -slope)

    def asked(self, positions: Tensor) -> Tensor:
        return positions if positions.requires_grad else positions.detach().requires_grad_()

    def keeps(self) -> bool:
        return True

    def energy(self, x: Tensor, *rest: Any) -> Tensor:
        """Energies of atoms."""
        raise NotImplementedError

    def summed(self, energies: Tensor, *rest: Any) -> Tensor:
        return energies.sum()

    def told(self, energy: Tensor, forces: Tensor) -> Any:
        return {"energy": energy, "forces": forces}
