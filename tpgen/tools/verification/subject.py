"""Modules under verification."""

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
from tpgen.tools.verification.precision import copy_in_float64, run_in_float64

TensorsByName = dict[str, Tensor]
Turn = Callable[[Tensor, Tensor], Tensor]  # a tensor and an orthogonal matrix of three rows
Run = Callable[..., Any]  # the module, or what stands in for it
Moments = Callable[[], Mapping[str, tuple[Tensor, Tensor] | str]]


@dataclass(frozen=True)
class Frame:
    """Turn of a tensor's last ``axes`` under rotations; with ``moves``, translations shift entries."""

    said: str
    turn: Turn
    moves: bool = False
    axes: int = 0


def _turn_vectors(x: Tensor, matrix: Tensor) -> Tensor:
    if x.shape[-1:] != (3,):
        raise InputError(f"the last axis of {tuple(x.shape)} must have 3 entries to be points or vectors")
    return x @ matrix.T


def _turn_tensors(x: Tensor, matrix: Tensor) -> Tensor:
    if x.shape[-2:] != (3, 3):
        raise InputError(
            f"the last axes of {tuple(x.shape)} must be (3, 3) to be a tensor of rank two: give six numbers of a "
            "stress as a matrix, or say None of it"
        )
    return matrix @ x @ matrix.T


FRAMES: dict[str, Frame] = {
    "cartesian_points": Frame("points", _turn_vectors, moves=True, axes=1),
    "cartesian_vectors": Frame("vectors", _turn_vectors, axes=1),
    "cartesian_tensors": Frame("tensors of rank two", _turn_tensors, axes=2),
}
STILL = Frame("stays", lambda x, matrix: x)


def make_frame(declared: Any, layout: str = "mul_ir") -> Frame:
    """Frame of a name in `FRAMES`, of irreps, or of None (invariant).

    >>> make_frame("2x0e+1o").said, make_frame(None).said, make_frame("cartesian_points").moves
    ('2x0e+1x1o', 'stays', True)
    """
    if declared is None:
        return STILL
    if isinstance(declared, str) and declared in FRAMES:
        return FRAMES[declared]
    irreps = parse_irreps(declared, "irreps")
    axes = 0 if irreps.dim == 1 else 1  # a scalar may be one number for each entry
    return Frame(str(irreps), lambda x, matrix: _turn_irreps(x, irreps, layout, matrix), axes=axes)


def _turn_irreps(x: Tensor, irreps: Any, layout: str, matrix: Tensor) -> Tensor:
    if x.dim() == 0 and irreps.dim == 1:
        return _turn_irreps(x.reshape(1), irreps, layout, matrix).reshape(())
    if irreps.dim == 1 and (x.shape[-1] != 1 or x.dim() == 1):  # one scalar for each entry
        return _turn_irreps(x.unsqueeze(-1), irreps, layout, matrix).squeeze(-1)
    if x.shape[-1] != irreps.dim:
        raise InputError(f"the last axis of {tuple(x.shape)} must have {irreps.dim} entries to be {irreps}")
    return _turn_by_segment(x, irreps, layout, layout, matrix)


def change_layout(x: Tensor, irreps: Irreps, layout: str, to: str) -> Tensor:
    """Rearrange a tensor's last axis from ``layout`` to layout ``to``.

    >>> change_layout(torch.arange(6.0), Irreps("2x1o"), "mul_ir", "ir_mul")
    tensor([0., 3., 1., 4., 2., 5.])
    """
    return _turn_by_segment(x, irreps, layout, to, None)


def _turn_by_segment(x: Tensor, irreps: Irreps, layout: str, target_layout: str, matrix: Tensor | None) -> Tensor:
    # segment by segment: the matrix of all irreps would be large
    pieces = []
    for (mul, ir), where in zip(irreps, irreps.slices(), strict=True):
        shape, transposed = ((mul, ir.dim), False) if layout == "mul_ir" else ((ir.dim, mul), True)
        piece = x[..., where].reshape(*x.shape[:-1], *shape)
        piece = piece.transpose(-1, -2) if transposed else piece
        if matrix is not None:
            piece = piece @ representation_matrix(Irreps([(1, ir)]), matrix).T
        piece = piece if target_layout == "mul_ir" else piece.transpose(-1, -2)
        pieces.append(piece.flatten(-2))
    return torch.cat(pieces, dim=-1) if pieces else x


def name_leaf(path: Sequence[Any]) -> str:
    """Name a pytree leaf by path; fields look like dict keys.

    >>> name_leaf([pytree.SequenceKey(1), pytree.GetAttrKey("energy")])
    "[1]['energy']"
    """
    return "".join(f"[{key.name!r}]" if isinstance(key, pytree.GetAttrKey) else str(key) for key in path)


def last_dict_key(name: str) -> str:
    """Last dict key in a leaf's name, else the name.

    >>> last_dict_key("data['positions']"), last_dict_key("positions")
    ('positions', 'positions')
    """
    return name.rpartition("['")[2].removesuffix("']") if name.endswith("']") else name


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


def compiled_name_prefix(run: Run) -> str:
    """Prefix of parameter names by `torch.compile`, if any."""
    return "_orig_mod." if hasattr(run, "_orig_mod") else ""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A module under verification, float64 operands on the CPU, and facts for laws.

    ``call`` runs the module, or a substitute, on operands in the module's dtype.
    """

    kind: str
    title: str
    module: nn.Module
    call: Callable[[Run, TensorsByName], TensorsByName]
    given: TensorsByName
    others: TensorsByName = field(default_factory=dict)  # a second draw, where a law needs two
    dtype: torch.dtype
    device: torch.device
    turns: Mapping[str, Frame] = field(default_factory=dict)  # operands and results that turn; the others stay
    results: Mapping[str, Frame] = field(default_factory=dict)
    linear: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # operands that it is linear in together
    affine: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the same but for a constant
    degrees: Mapping[str, int] = field(default_factory=dict)  # operands in which it is a polynomial, and how high
    reference: Callable[[TensorsByName], TensorsByName] | None = None
    moments: Moments | None = None
    # results of rows in another order, and what they should be
    results_of_reordered_rows: Callable[[Subject], tuple[TensorsByName, TensorsByName]] | None = None
    points: str | None = None  # where a potential has its positions, energy, forces, cell and stress
    energy: str | None = None
    by_elimination: bool = False  # it has another name than an energy's, and is the one number that is returned
    forces: str | None = None
    cell: str | None = None
    stress: str | None = None
    is_virial: bool = False  # it is no stress, but this times the volume, of the other sign
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
    reading: Any = ""  # a `Reading` of a network's arguments, or why there is none
    call_arguments: Callable[[TensorsByName], Any] | None = None  # of a network's call, in their tuples and dicts
    outcomes: tuple[str, ...] = ()  # the names of a network's results
    # the call that goes on with random numbers, if it draws some
    drawing: Callable[[Run, TensorsByName], TensorsByName] | None = None
    floors: Mapping[str, float] = field(default_factory=dict)  # of results: errors that rounding makes in any case

    def __call__(self, operands: TensorsByName, run: Run | None = None) -> TensorsByName:
        """Call the module, or ``run``; return float64 copies of results on the CPU."""
        found = self.call(self.module if run is None else run, self.module_operands(operands))
        return {name: y.to("cpu", torch.float64, copy=True) for name, y in found.items()}

    def fresh_copy(self) -> nn.Module:
        """Copy the module as before any call; raises `NotCompared` if impossible."""
        if self.fresh is None:
            raise NotCompared("the network cannot be copied")
        return copy_of(self.fresh)

    def in_float64(self) -> Subject:
        """Subject of a float64 copy; raises `NotCompared` if none runs."""
        if self.dtype == torch.float64 and self.exact is None:
            return self
        if self.inexact:
            raise NotCompared(self.inexact)
        copy = self.exact() if self.exact else copy_in_float64(self.module)
        call = run_in_float64(self.call) if self.narrow else self.call
        return replace(self, module=copy, dtype=torch.float64, exact=None, call=call, narrow=False)

    def with_advancing_randomness(self) -> Subject:
        """Subject whose calls draw new random numbers."""
        return self if self.drawing is None else replace(self, call=self.drawing, drawing=None)

    def in_evaluation(self) -> Subject:
        """Subject of a copy in evaluation mode."""
        module, fresh = copy_of(self.module).eval(), self.fresh_copy().eval()
        return replace(self, module=module, fresh=fresh, exact=lambda: copy_in_float64(fresh))

    def module_operands(self, operands: TensorsByName) -> TensorsByName:
        """Copy operands to the module's device and dtype."""
        own = {n: x.to(self.device, self.dtype if x.is_floating_point() else x.dtype) for n, x in operands.items()}
        return {name: x if x.requires_grad else x.detach().clone() for name, x in own.items()}

    def arguments(self) -> TensorsByName:
        """Copy all tensors of a call for the module, integers included."""
        return {**self.module_operands(self.given), **clone_tensors(self.fixed)}

    def detached_results(self, module: Run, operands: TensorsByName) -> TensorsByName:
        """Call ``module`` on prepared operands; return detached float64 results on the CPU."""
        return copy_detached_in_float64(self.call(module, operands))

    def result_frame(self, name: str) -> Frame:
        return self.results.get(name, STILL)
