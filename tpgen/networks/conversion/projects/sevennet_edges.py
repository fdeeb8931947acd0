"""SevenNet's functions of lengths by a kernel, nets once per pair, and outputs in programs."""

# Models with virials of atoms use no pairs.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sevenn._keys as keys
import torch
from sevenn.nn.edge_embedding import BesselBasis, EdgeEmbedding, EdgePreprocess, PolynomialCutoff
from sevenn.nn.force_output import ForceStressOutputFromEdge
from sevenn.nn.linear import AtomReduce
from torch import Tensor, nn

from tpgen.functions.bessel import CutBessel, can_run_bessel_kernel, cut_bessel, name_cut_bessel_code
from tpgen.networks.conversion.obstacles import allows_kernels, is_hooked_or_patched
from tpgen.networks.conversion.operations.pairs import FEEDS, gradients_count_in_pairs, mark_edge_pairs
from tpgen.networks.conversion.swap import ClassSwap
from tpgen.nn.plain_tensors import is_traced

_GIVEN = (keys.POS, keys.CELL, keys.CELL_SHIFT)
# what the embedding of the versions known here reads and writes, by the names in its code: another one runs as it is
_ADDS = (
    *("KEY", "EDGE_VEC", "torch", "linalg", "norm", "EDGE_LENGTH", "basis_function", "cutoff_function", "unsqueeze"),
    *("EDGE_EMBEDDING", "spherical", "EDGE_ATTR"),
)


class TpgenEdgeEmbedding(EdgeEmbedding):
    """SevenNet's edge embedding by a kernel; marks pairs of opposite edges."""

    def __call__(self, data: Any) -> Any:
        if torch.compiler.is_compiling() or not (self._tpgen_kernels and _embed_edges_by_kernel(self, data)):
            data = super().__call__(data)
        vectors = data[keys.EDGE_VEC]
        if isinstance(vectors, Tensor) and _may_mark_edge_pairs(self, data, vectors):
            mark_edge_pairs(data[keys.EDGE_EMBEDDING], data[keys.EDGE_IDX], vectors)
        return data


def _embed_edges_by_kernel(embedding: Any, data: Any) -> bool:
    """Add lengths, radial functions and harmonics to ``data``; False without a kernel."""
    basis, cutoff = embedding.basis_function, embedding.cutoff_function
    if not _is_bessel_with_polynomial_cutoff(embedding) or any(map(is_hooked_or_patched, embedding.modules())):
        return False
    vectors = data[keys.EDGE_VEC]
    lengths = torch.linalg.norm(vectors, dim=-1)
    if not can_run_bessel_kernel(lengths, basis.coeffs):
        return False
    shape = CutBessel(basis.prefactor, cutoff.cutoff_length, int(cutoff.p), ends=False)
    data[keys.EDGE_LENGTH] = lengths
    data[keys.EDGE_EMBEDDING] = cut_bessel(lengths, basis.coeffs, shape)[0]
    data[keys.EDGE_ATTR] = embedding.spherical(vectors)
    return True


def _is_bessel_with_polynomial_cutoff(embedding: Any) -> bool:
    # whether functions are multiplied by a polynomial cutoff of a whole power, and all else is as it is known here
    return (
        EdgeEmbedding.forward.__code__.co_names == _ADDS
        and type(embedding.basis_function) is BesselBasis
        and type(embedding.cutoff_function) is PolynomialCutoff
        and float(embedding.cutoff_function.p).is_integer()
    )


def _describe_embedding_backend(embedding: Any, swap_attributes: Mapping[str, Any]) -> str:
    own = (
        name_cut_bessel_code()
        if swap_attributes["_tpgen_kernels"] and _is_bessel_with_polynomial_cutoff(embedding)
        else "its own code"
    )
    return f"{own}; {FEEDS}"


def _may_mark_edge_pairs(embedding: Any, data: Any, vectors: Tensor) -> bool:
    # nothing is differentiated by single edges, or only by SevenNet's own outputs
    (holder,) = embedding._tpgen_holder
    beside = list(holder.children())
    outputs = [m for m in beside if type(m) in (ForceStressOutputFromEdge, TpgenForceStress)]
    if any(getattr(out, "use_atomic_virial", False) for out in outputs) or any(
        map(is_hooked_or_patched, embedding.modules())
    ):
        return False
    computed = any(type(m) is EdgePreprocess for m in beside)  # of positions: nobody gave them, who may ask about them
    if computed or gradients_count_in_pairs() or not (torch.is_grad_enabled() and vectors.requires_grad):
        return True
    asked = any(isinstance(x, Tensor) and x.requires_grad for x in (data[n] for n in _GIVEN if n in data))
    return bool(outputs) and not asked


def find_sevennet_edge_swaps(network: nn.Module, options: Mapping[str, Any]) -> Iterator[ClassSwap]:
    """Yield a `ClassSwap` per edge embedding, to mark opposite edges."""
    holders = {m: holder for holder in network.modules() for m in holder.children() if type(m) is EdgeEmbedding}
    for module, holder in holders.items():
        extra = {"_tpgen_holder": (holder,), "_tpgen_kernels": allows_kernels(options)}
        yield ClassSwap(module, TpgenEdgeEmbedding, _describe_embedding_backend, extra)


_SMALLEST = 1e-3  # volumes below it, of cells that are none, count as this
_AXES = (0, 1, 2, 0, 1, 2), (0, 1, 2, 1, 2, 0)  # of the six components of a virial


class TpgenAtomReduce(AtomReduce):
    """SevenNet's energies by structure, for any number in compiled programs."""

    def __call__(self, data: Any) -> Any:
        energies = data[self.key_input]
        if not (self._is_batch_data and is_traced(energies)):
            return super().__call__(data)
        made = energies.new_zeros(data[keys.NUM_ATOMS].shape[0])
        data[self.key_output] = made.index_add(0, data[keys.BATCH], energies.squeeze(1)) * self.constant
        return data


class TpgenForceStress(ForceStressOutputFromEdge):
    """SevenNet's forces and stress, for any sizes in compiled programs."""

    def __call__(self, data: Any) -> Any:
        return _compute_forces_and_stress(self, data) if is_traced(data[self.key_edge]) else super().__call__(data)


def _compute_forces_and_stress(output: Any, data: Any) -> Any:
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
    data[output.key_stress] = -_sum_virial_by_structure(output, data, virial) / volume.unsqueeze(-1)
    return data


def _sum_virial_by_structure(output: Any, data: Any, virial: Tensor) -> Tensor:
    if not output._is_batch_data:
        return virial.sum(0)
    return virial.new_zeros(data[keys.NUM_ATOMS].shape[0], 6).index_add(0, data[keys.BATCH], virial)


def find_size_free_output_swaps(network: Any) -> Iterator[ClassSwap]:
    """Yield a `ClassSwap` per output module, for compiled programs of any size."""
    kinds: dict[type, type[nn.Module]] = {AtomReduce: TpgenAtomReduce, ForceStressOutputFromEdge: TpgenForceStress}
    for module in network.modules():
        if type(module) in kinds and not is_hooked_or_patched(module):
            yield ClassSwap(module, kinds[type(module)], "its own code, of any sizes in programs")
