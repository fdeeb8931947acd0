"""Modules under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.base.errors import InputError
from tpgen.networks.copies import copy_of
from tpgen.planner.equivariance import representation_matrix
from tpgen.planner.instruction import parse_irreps
from tpgen.tools.verification.findings import NotCompared
from tpgen.tools.verification.precision import copy_in_float64, wrap_call_in_float64

ROLES = ("energy", "forces", "stress", "virial")  # of a potential's results
TensorsByName = dict[str, Tensor]
RotateTensor = Callable[[Tensor, Tensor], Tensor]  # a tensor and an orthogonal matrix of three rows
CallableModule = Callable[..., Any]  # the module, or what stands in for it
CompareMeanSquares = Callable[[], Mapping[str, tuple[Tensor, Tensor] | str]]


@dataclass(frozen=True)
class TransformationRule:
    """How a tensor's last ``axes`` transform under rotations; with ``moves``, translations shift entries."""

    said: str
    turn: RotateTensor
    moves: bool = False
    axes: int = 0


def _rotate_vectors(vectors: Tensor, rotation: Tensor) -> Tensor:
    if vectors.shape[-1:] != (3,):
        raise InputError(f"the last axis of {tuple(vectors.shape)} must have 3 entries to be points or vectors")
    return vectors @ rotation.T


def _rotate_rank_two_tensors(tensors: Tensor, rotation: Tensor) -> Tensor:
    if tensors.shape[-2:] != (3, 3):
        raise InputError(
            f"the last axes of {tuple(tensors.shape)} must be (3, 3) to be a tensor of rank two: give six numbers of a "
            "stress as a matrix, or say None of it"
        )
    return rotation @ tensors @ rotation.T


TRANSFORMATION_RULES: dict[str, TransformationRule] = {
    "cartesian_points": TransformationRule("points", _rotate_vectors, moves=True, axes=1),
    "cartesian_vectors": TransformationRule("vectors", _rotate_vectors, axes=1),
    "cartesian_tensors": TransformationRule("tensors of rank two", _rotate_rank_two_tensors, axes=2),
}
INVARIANT = TransformationRule("stays", lambda x, matrix: x)


def make_transformation_rule(kind_or_irreps: str | Irreps | None, layout: str = "mul_ir") -> TransformationRule:
    """Rule of a kind such as ``cartesian_points``, of irreps, or of None (invariant).

    >>> make_transformation_rule("2x0e+1o").said, make_transformation_rule("cartesian_points").moves
    ('2x0e+1x1o', True)
    """
    if kind_or_irreps is None:
        return INVARIANT
    if isinstance(kind_or_irreps, str) and kind_or_irreps in TRANSFORMATION_RULES:
        return TRANSFORMATION_RULES[kind_or_irreps]
    irreps = parse_irreps(kind_or_irreps, "irreps")
    axes = 0 if irreps.dim == 1 else 1  # a scalar may be one number for each entry
    return TransformationRule(
        str(irreps), lambda x, matrix: _rotate_irreps_features(x, irreps, layout, matrix), axes=axes
    )


def _rotate_irreps_features(features: Tensor, irreps: Any, layout: str, rotation: Tensor) -> Tensor:
    if features.dim() == 0 and irreps.dim == 1:
        return _rotate_irreps_features(features.reshape(1), irreps, layout, rotation).reshape(())
    if irreps.dim == 1 and (features.shape[-1] != 1 or features.dim() == 1):  # one scalar for each entry
        return _rotate_irreps_features(features.unsqueeze(-1), irreps, layout, rotation).squeeze(-1)
    if features.shape[-1] != irreps.dim:
        raise InputError(f"the last axis of {tuple(features.shape)} must have {irreps.dim} entries to be {irreps}")
    return _rotate_and_relayout_segments(features, irreps, layout, layout, rotation)


def change_layout(x: Tensor, irreps: Irreps, layout: str, target_layout: str) -> Tensor:
    """Rearrange a tensor's last axis from ``layout`` to layout ``target_layout``.

    >>> change_layout(torch.arange(6.0), Irreps("2x1o"), "mul_ir", "ir_mul")
    tensor([0., 3., 1., 4., 2., 5.])
    """
    return _rotate_and_relayout_segments(x, irreps, layout, target_layout, None)


def _rotate_and_relayout_segments(
    features: Tensor, irreps: Irreps, layout: str, target_layout: str, rotation: Tensor | None
) -> Tensor:
    # segment by segment: the matrix of all irreps would be large
    pieces = []
    for (mul, ir), where in zip(irreps, irreps.slices(), strict=True):
        shape, transposed = ((mul, ir.dim), False) if layout == "mul_ir" else ((ir.dim, mul), True)
        piece = features[..., where].reshape(*features.shape[:-1], *shape)
        piece = piece.transpose(-1, -2) if transposed else piece
        if rotation is not None:
            piece = piece @ representation_matrix(Irreps([(1, ir)]), rotation).T
        piece = piece if target_layout == "mul_ir" else piece.transpose(-1, -2)
        pieces.append(piece.flatten(-2))
    return torch.cat(pieces, dim=-1) if pieces else features


def format_leaf_path(path: Sequence[Any]) -> str:
    """Name a pytree leaf by path; fields look like dict keys.

    >>> format_leaf_path([pytree.SequenceKey(1), pytree.GetAttrKey("energy")])
    "[1]['energy']"
    """
    return "".join(f"[{key.name!r}]" if isinstance(key, pytree.GetAttrKey) else str(key) for key in path)


def last_dict_key(leaf_name: str) -> str:
    """Last dict key in a leaf's name, else the name.

    >>> last_dict_key("data['positions']"), last_dict_key("positions")
    ('positions', 'positions')
    """
    return leaf_name.rpartition("['")[2].removesuffix("']") if leaf_name.endswith("']") else leaf_name


def clone_tensors(tensors: TensorsByName) -> TensorsByName:
    return {name: x.clone() for name, x in tensors.items()}


def copy_detached_in_float64(tensors: TensorsByName) -> TensorsByName:
    return {name: x.detach().to("cpu", torch.float64, copy=True) for name, x in tensors.items()}


def draw_derangement(size: int) -> Tensor:
    """A permutation without a fixed point.

    >>> draw_derangement(3)
    tensor([1, 2, 0])
    """
    order = torch.randperm(size, generator=torch.Generator().manual_seed(2))
    return torch.empty_like(order).scatter_(0, order, order.roll(1))


def compiled_name_prefix(run: CallableModule) -> str:
    """Prefix of parameter names by `torch.compile`, if any."""
    return "_orig_mod." if hasattr(run, "_orig_mod") else ""


@dataclass(frozen=True, kw_only=True)
class ModuleUnderTest:
    """A module to verify, float64 operands on the CPU, and transformation rules and names for laws."""

    kind: str
    title: str
    module: nn.Module
    call: Callable[[CallableModule, TensorsByName], TensorsByName]  # on operands in the module's dtype
    given: TensorsByName
    others: TensorsByName = field(default_factory=dict)  # a second draw, where a law needs two
    dtype: torch.dtype
    device: torch.device
    turns: Mapping[str, TransformationRule] = field(
        default_factory=dict
    )  # operands and results that turn; the others stay
    results: Mapping[str, TransformationRule] = field(default_factory=dict)
    linear: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # operands that it is linear in together
    affine: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the same but for a constant
    degrees: Mapping[str, int] = field(default_factory=dict)  # operands in which it is a polynomial, and how high
    reference: Callable[[TensorsByName], TensorsByName] | None = None
    moments: CompareMeanSquares | None = None
    # results of rows in another order, and what they should be
    results_of_reordered_rows: Callable[[ModuleUnderTest], tuple[TensorsByName, TensorsByName]] | None = None
    points: str | None = None  # where a potential has its positions, energy, forces, cell and stress
    energy: str | None = None
    by_elimination: bool = False  # it has another name than an energy's, and is the one number that is returned
    forces: str | None = None
    cell: str | None = None
    stress: str | None = None
    virial: str | None = None  # minus the stress times the volume
    unsaid: str = ""  # why forces cannot be told among the results
    fixed: TensorsByName = field(default_factory=dict)  # integer arguments of a network, as which atoms an edge joins
    undeclared: bool = False  # nothing was said of how it turns
    fresh: nn.Module | None = None  # a copy from before the first call
    settings: str = ""
    slack: float = 1.0  # how many products deep it is
    backend: str = "aot_eager"  # that it is compiled with
    exact: Callable[[], nn.Module] | None = None  # a copy in float64
    inexact: str = ""  # why that does not run
    narrow: bool = False  # the module's code names narrower dtypes, which are float64 in that copy
    parsed: Any = ""  # a `ParsedGraphInputs` of a network's arguments, or why there is none
    call_arguments: Callable[[TensorsByName], Any] | None = None  # of a network's call, in their tuples and dicts
    outcomes: tuple[str, ...] = ()  # the names of a network's results
    # the call that goes on with random numbers, if it draws some
    drawing: Callable[[CallableModule, TensorsByName], TensorsByName] | None = None
    floors: Mapping[str, float] = field(default_factory=dict)  # of results: errors that rounding makes in any case

    def __call__(self, operands: TensorsByName, run: CallableModule | None = None) -> TensorsByName:
        """Call the module, or ``run``; return float64 copies of results on the CPU."""
        found = self.call(self.module if run is None else run, self.move_operands_to_module(operands))
        return {name: y.to("cpu", torch.float64, copy=True) for name, y in found.items()}

    def make_fresh_copy(self) -> nn.Module:
        """Copy the module as before any call; raises `NotCompared` if impossible."""
        if self.fresh is None:
            raise NotCompared("the network cannot be copied")
        return copy_of(self.fresh)

    def with_float64_copy(self) -> ModuleUnderTest:
        """Replace the module by a float64 copy; raises `NotCompared` if none runs."""
        if self.dtype == torch.float64 and self.exact is None:
            return self
        if self.inexact:
            raise NotCompared(self.inexact)
        copy = self.exact() if self.exact else copy_in_float64(self.module)
        call = wrap_call_in_float64(self.call) if self.narrow else self.call
        return replace(self, module=copy, dtype=torch.float64, exact=None, call=call, narrow=False)

    def with_advancing_randomness(self) -> ModuleUnderTest:
        """Let every call draw new random numbers."""
        return self if self.drawing is None else replace(self, call=self.drawing, drawing=None)

    def with_copy_in_evaluation_mode(self) -> ModuleUnderTest:
        module, fresh = copy_of(self.module).eval(), self.make_fresh_copy().eval()
        return replace(self, module=module, fresh=fresh, exact=lambda: copy_in_float64(fresh))

    def move_operands_to_module(self, operands: TensorsByName) -> TensorsByName:
        """Copy operands to the module's device and dtype."""
        own = {n: x.to(self.device, self.dtype if x.is_floating_point() else x.dtype) for n, x in operands.items()}
        return {name: x if x.requires_grad else x.detach().clone() for name, x in own.items()}

    def copy_call_arguments(self) -> TensorsByName:
        """Copy all tensors of a call for the module, integers included."""
        return {**self.move_operands_to_module(self.given), **clone_tensors(self.fixed)}

    def detached_results(self, module: CallableModule, operands: TensorsByName) -> TensorsByName:
        """Call ``module`` on prepared operands; return detached float64 results on the CPU."""
        return copy_detached_in_float64(self.call(module, operands))

    def result_rule(self, name: str) -> TransformationRule:
        return self.results.get(name, INVARIANT)
