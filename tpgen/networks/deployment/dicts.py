"""Networks of dicts as networks of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class OfTensors(nn.Module):
    """Module from tensors to detached tensors, around a network of dicts.

    ``inputs`` and ``outputs`` name dict entries, ``fixed`` holds constant entries, ``options`` further arguments.

    >>> class Energy(nn.Module):
    ...     def forward(self, data, scale):
    ...         x = data["x"].requires_grad_()
    ...         energy = scale * (x**2).sum()
    ...         return {"energy": energy, "forces": -torch.autograd.grad(energy, x)[0]}
    >>> energy, forces = OfTensors(Energy(), ["x"], ["energy", "forces"], scale=0.5)(torch.ones(3))
    >>> energy, forces
    (tensor(1.5000), tensor([-1., -1., -1.]))
    """

    def __init__(
        self,
        network: nn.Module,
        inputs: Sequence[str],
        outputs: Sequence[str],
        fixed: dict[str, Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.network, self.inputs, self.outputs, self.options = network, tuple(inputs), tuple(outputs), options
        self.fixed = tuple(fixed or {})
        for name in self.fixed:
            self.register_buffer(f"fixed_{name}", (fixed or {})[name].detach())

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Outputs of tensors in the order of ``inputs``."""
        given = {name: x.detach() for name, x in zip(self.inputs, tensors, strict=True)}
        given |= {name: getattr(self, f"fixed_{name}") for name in self.fixed}
        with torch.enable_grad():
            found = self.network(given, **self.options)
        return tuple(found[name].detach() for name in self.outputs)
