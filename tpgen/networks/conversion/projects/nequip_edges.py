"""NequIP's functions of lengths by a kernel, and nets of edges once per pair."""

# Given vectors or lengths that require gradients use no pairs.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from nequip.data import AtomicDataDict as keys
from nequip.nn.embedding import BesselEdgeLengthEncoding, EdgeLengthNormalizer, SphericalHarmonicEdgeAttrs
from nequip.nn.embedding.cutoffs import PolynomialCutoff
from nequip.nn.misc import ApplyFactor
from nequip.nn.mlp import ScalarMLPFunction
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.emitter.leaf import has_proxy
from tpgen.functions.bessel import CutBessel, can_run_bessel_kernel, cut_bessel, name_cut_bessel_code
from tpgen.functions.lengths import find_registered_lengths, register_lengths
from tpgen.networks.conversion.obstacles import allows_kernels, is_hooked_or_patched
from tpgen.networks.conversion.operations.pairs import (
    FEEDS,
    copy_edge_pair_marks,
    gradients_count_in_pairs,
    mark_edge_pairs,
    run_once_per_pair,
)
from tpgen.networks.conversion.operations.splines import choose_net_or_spline
from tpgen.networks.conversion.radial import TAKER, feeds_product_taking_pairs
from tpgen.networks.conversion.swap import ClassSwap
from tpgen.networks.recording import recorded_program

_VECTORS = (keys.EDGE_VECTORS_KEY, keys.EDGE_LENGTH_KEY)
_computed: Any = WeakTensorKeyDictionary()  # those that NequIP made of positions, or lengths of vectors, itself


class _RemembersComputedEdges:
    """Mixin: remembers edge vectors and lengths that the module adds to ``data``."""

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        if torch.compiler.is_compiling() or has_proxy(data):
            return super().__call__(data)  # type: ignore[misc]
        before = [data.get(name) for name in _VECTORS]
        data = super().__call__(data)  # type: ignore[misc]
        for name, given in zip(_VECTORS, before, strict=True):
            if name in data and data[name] is not given:
                _computed[data[name]] = True
        return data


class TpgenEdgeLengthNormalizer(_RemembersComputedEdges, EdgeLengthNormalizer):
    """NequIP's lengths of edges, remembered."""


class TpgenSphericalHarmonicEdgeAttrs(_RemembersComputedEdges, SphericalHarmonicEdgeAttrs):
    """NequIP's harmonics of edges, with remembered vectors."""


class TpgenBesselEdgeLengthEncoding(BesselEdgeLengthEncoding):
    """NequIP's radial functions by a kernel; marks pairs of opposite edges."""

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        if torch.compiler.is_compiling() or has_proxy(data) or _has_hooked_or_patched_module(self):
            return super().__call__(data)
        asked = self._may_need_single_edge_gradients(data)
        alike = keys.EDGE_TYPE_KEY not in data  # else cutoffs may differ by direction
        if recorded_program() is not None and keys.EDGE_VECTORS_KEY in data and alike and not asked:
            return self._embed_lengths_once_per_pair(data)
        rows = _embed_lengths_by_kernel(self, data[self.norm_length_field]) if self._tpgen_kernels else None
        if rows is None:
            data = super().__call__(data)
        else:
            data[keys.EDGE_CUTOFF_KEY] = rows[1].to(self._output_dtype)  # the order of what is added stays, too
            data[self.edge_invariant_field] = rows[0].to(self._output_dtype)
            lengths = find_registered_lengths(rows[0])
            if lengths is not None:
                register_lengths(data[self.edge_invariant_field], lengths)
        if keys.EDGE_VECTORS_KEY in data and not asked:
            mark_edge_pairs(
                data[self.edge_invariant_field], data[keys.EDGE_INDEX_KEY], data[keys.EDGE_VECTORS_KEY], alike
            )
        return data

    def _embed_lengths_once_per_pair(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        # what costs most with few atoms, in a program
        lengths = data[self.norm_length_field]
        mark_edge_pairs(lengths, data[keys.EDGE_INDEX_KEY], data[keys.EDGE_VECTORS_KEY])
        compute = super().__call__
        for name in (keys.EDGE_CUTOFF_KEY, self.edge_invariant_field):

            def field_of_lengths(x: Tensor, name: str = name) -> Tensor:
                return compute({self.norm_length_field: x})[name]

            data[name] = run_once_per_pair(field_of_lengths, lengths)
        copy_edge_pair_marks(lengths, data[self.edge_invariant_field])
        return data

    def _may_need_single_edge_gradients(self, data: dict[str, Tensor]) -> bool:
        if gradients_count_in_pairs():
            return False
        given = [name for name in _VECTORS if name in data and data[name] not in _computed]
        return any(name in data and data[name].requires_grad for name in (keys.EDGE_CELL_SHIFT_KEY, *given))


def _embed_lengths_by_kernel(encoding: Any, lengths: Tensor) -> tuple[Tensor, Tensor] | None:
    # radial functions and cutoff of lengths; None without a kernel
    frequencies, given = encoding.bessel_weights, lengths
    lengths = lengths.to(torch.promote_types(given.dtype, frequencies.dtype))  # as NequIP's own product of both
    if not (_is_bessel_with_polynomial_cutoff(encoding) and can_run_bessel_kernel(lengths, frequencies)):
        return None
    if given.dtype != lengths.dtype and not _is_cutoff_finite(encoding.cutoff, given):
        return None
    # b sinc(b x), where sinc(x) = sin(πx) / (πx)
    shape = CutBessel(1 / math.pi, 1.0, int(encoding.cutoff.p), limit=True)
    return cut_bessel(lengths, math.pi * frequencies.flatten(), shape)


def _is_cutoff_finite(cutoff: Any, lengths: Tensor) -> bool:
    # in the dtype of the lengths, in which NequIP computes the cutoff
    return bool((lengths.detach() < torch.finfo(lengths.dtype).max ** (1 / (cutoff.p + 4))).all())


def _is_bessel_with_polynomial_cutoff(encoding: Any) -> bool:
    return type(encoding.cutoff) is PolynomialCutoff and float(encoding.cutoff.p).is_integer()


def _describe_encoding_backend(encoding: Any, swap_attributes: Mapping[str, Any]) -> str:
    own = (
        name_cut_bessel_code()
        if swap_attributes["_tpgen_kernels"] and _is_bessel_with_polynomial_cutoff(encoding)
        else "its own code"
    )
    return f"{own}; {FEEDS}"


class TpgenApplyFactor(ApplyFactor):
    """NequIP's `ApplyFactor`, which keeps marks of pairs of opposite edges."""

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = data[self.in_field]
        data = super().__call__(data)
        if not _has_hooked_or_patched_module(self):
            copy_edge_pair_marks(rows, data[self.out_field])
            lengths = find_registered_lengths(rows)
            if lengths is not None:
                register_lengths(data[self.out_field], lengths.scale_rows(float(self.factor)))
        return data


class TpgenScalarMLPFunction(ScalarMLPFunction):
    """NequIP's net of scalars, once per pair of opposite edges unless hooked."""

    _tpgen_splined = False

    def __call__(self, x: Tensor) -> Tensor:
        if _has_hooked_or_patched_module(self):
            return super().__call__(x)
        compute, given = choose_net_or_spline(self, super().__call__, x)
        return run_once_per_pair(compute, given, feeds_product_taking_pairs(self), marked=x)


def _has_hooked_or_patched_module(module: nn.Module) -> bool:
    return any(map(is_hooked_or_patched, module.modules()))


_COMPUTING: dict[type, type[nn.Module]] = {
    EdgeLengthNormalizer: TpgenEdgeLengthNormalizer,
    SphericalHarmonicEdgeAttrs: TpgenSphericalHarmonicEdgeAttrs,
}


def find_nequip_edge_swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[ClassSwap]:
    """Yield a `ClassSwap` per net of edges, and per module that computes inputs of nets."""
    blocks: list[Any] = [m for m in network.modules() if isinstance(getattr(m, "edge_mlp", None), ScalarMLPFunction)]
    fields = {m.edge_invariant_field for m in network.modules() if type(m) is BesselEdgeLengthEncoding}
    if not (blocks and fields):
        return
    for module in network.modules():
        if type(module) in _COMPUTING:
            yield ClassSwap(module, _COMPUTING[type(module)], "")
        elif type(module) is BesselEdgeLengthEncoding:
            yield ClassSwap(
                module,
                TpgenBesselEdgeLengthEncoding,
                _describe_encoding_backend,
                {"_tpgen_kernels": allows_kernels(options)},
            )
        elif type(module) is ApplyFactor and module.in_field in fields:
            yield ClassSwap(module, TpgenApplyFactor, "")
    for block in blocks:
        if type(block.edge_mlp) is ScalarMLPFunction:
            yield ClassSwap(block.edge_mlp, TpgenScalarMLPFunction, "", {TAKER: (block, "edge_mlp", "tp_scatter")})
