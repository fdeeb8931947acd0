"""Networks without tpgen operators."""

from __future__ import annotations

from torch import nn

from tpgen.base.errors import DeployError
from tpgen.networks.conversion.swap import undo_swaps
from tpgen.networks.copies import copy_of
from tpgen.nn.planned import PlannedModule


def portable(network: nn.Module) -> nn.Module:
    """Copy a network into one of PyTorch operators only, with equal parameters and state_dict.

    Products and layers use strategy ``grouped``, polynomials ``einsum``; the copy undoes `tpgen.convert`.

    >>> import tpgen
    >>> network = nn.Sequential(tpgen.TensorSquare("2x1o", strategy="kernel"))
    >>> portable(network)[0].choice.strategy, network[0].choice.strategy
    ('grouped', 'kernel')
    """
    if not isinstance(network, nn.Module):
        raise DeployError(f"portable takes a network, a torch.nn.Module, got {type(network).__name__}")
    made = copy_of(network)
    undo_swaps(made)
    for module in made.modules():
        if isinstance(module, PlannedModule):
            module.regenerate_programs_without_kernels()
    return made
