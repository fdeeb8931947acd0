"""SevenNet's sums of energies, forces and stress in a program, which takes numbers of atoms and structures from shapes.

SevenNet reads both as values, and so do calls that are not written down as a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sevenn._keys as keys
import torch
from sevenn.nn.force_output import ForceStressOutputFromEdge
from sevenn.nn.linear import AtomReduce
from torch import Tensor, nn

from tpgen.conversion.obstacles import has_more
from tpgen.conversion.swap import Swap
from tpgen.nn.multilinear import is_traced

_SMALLEST = 1e-3  # volumes below it, of cells that are none, count as this
_AXES = (0, 1, 2, 0, 1, 2), (0, 1, 2, 1, 2, 0)  # of the six components of a virial


class TpgenAtomReduce(AtomReduce):
    """Energy of each structure."""

    def __call__(self, data: Any) -> Any:
        """As SevenNet's."""
        energies = data[self.key_input]
        if not (self._is_batch_data and is_traced(energies)):
            return super().__call__(data)
        made = energies.new_zeros(data[keys.NUM_ATOMS].shape[0])
        data[self.key_output] = made.index_add(0, data[keys.BATCH], energies.squeeze(1)) * self.constant
        return data


class TpgenForceStress(ForceStressOutputFromEdge):
    """Forces and stress, as derivatives by vectors of edges."""

    def __call__(self, data: Any) -> Any:
        """As SevenNet's."""
        return _derived(self, data) if is_traced(data[self.key_edge]) else super().__call__(data)


def _derived(output: Any, data: Any) -> Any:
    vectors, (src, dst) = data[output.key_edge], data[output.key_edge_idx]
    energy, energies = data[output.key_energy].sum(), data[keys.ATOMIC_ENERGY]
    (slope,) = torch.autograd.grad(energy, vectors, create_graph=output.training)
    none = slope.new_zeros(energies.shape[0], 3)
    data[output.key_force] = none.index_add(0, src, slope).index_add(0, dst, slope, alpha=-1)
    first, second = (list(axes) for axes in _AXES)
    virial = slope.new_zeros(energies.shape[0], 6).index_add(0, dst, vectors[:, first] * slope[:, second])
    if output.use_atomic_virial:
        data[output.key_atomic_virial] = -virial
    volume = data[output.key_cell_volume].clamp_min(_SMALLEST)
    data[output.key_stress] = -_summed(output, data, virial) / volume.unsqueeze(-1)
    return data


def _summed(output: Any, data: Any, virial: Tensor) -> Tensor:
    if not output._is_batch_data:
        return virial.sum(0)
    return virial.new_zeros(data[keys.NUM_ATOMS].shape[0], 6).index_add(0, data[keys.BATCH], virial)


def programmed_outputs(network: Any) -> Iterator[Swap]:
    """Swaps of outputs, which read no number as a value in a program."""
    kinds: dict[type, type[nn.Module]] = {AtomReduce: TpgenAtomReduce, ForceStressOutputFromEdge: TpgenForceStress}
    for module in network.modules():
        if type(module) in kinds and not has_more(module):
            yield Swap(module, kinds[type(module)], "its own code, of any sizes in programs")
