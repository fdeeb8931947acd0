"""`SymmetricContraction`, as in MACE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any, ClassVar

import torch
from e3nn.o3 import Irrep, Irreps
from torch import Tensor, nn
from typing_extensions import Unpack

from tpgen.base.errors import PlanError, check_known, unknown
from tpgen.compiler.config import RunOptions
from tpgen.emitter.leaf import record_leaf_call
from tpgen.nn.polynomial_module import PolynomialModule, check_checkpoint_shape, check_own_options, common_multiplicity
from tpgen.planner.contraction import drop_multiplicities, list_contraction_paths, make_contraction_plan
from tpgen.planner.generalized import MAX_DEGREE, Entries, generalized_couplings
from tpgen.planner.instruction import parse_irreps
from tpgen.planner.normalization import IRREP_NORMALIZATIONS, PATH_NORMALIZATIONS

Correlation = int | Mapping[Any, int]


class SymmetricContraction(PolynomialModule):
    r"""MACE's symmetric contraction: products of node features with themselves, weighted by element.

    .. math:: z_k = \sum_\nu \sum_p w^{\nu}_{e,p} \sum_{i \ldots j} U^{\nu p}_{k, i \ldots j}\; x_i \cdots x_j

    for every row (of element e) and channel, with degrees :math:`\nu` from 1 to ``correlation``.

    Couplings U are chained Wigner 3j symbols in MACE's order and normalisation.  MACE checkpoints load.

    Parameters
    ----------
    irreps_in, irreps_out
        such as ``128x0e+128x1o``, with one copy of every irrep per channel.
    correlation
        highest degree, 1 to 4, or a mapping from output irreps to degrees.
    irrep_normalization, path_normalization, shared_weights
        accepted as by MACE, without effect.
    use_reduced_cg
        must be False: cuequivariance defines MACE's reduced basis.
    internal_weights
        whether the module owns weights (the default).
    num_elements
        number of elements; None shares weights among all rows.
    strategy, backend, dynamic, fullgraph, mode, max_bytes
        as for `Polynomial`.

    Raises
    ------
    PlanError
        for unequal multiplicities, or degrees other than 1 to 4.
    OptionError
        for an unknown option.
    InputError
        for a wrong tensor.

    Example
    -------
    >>> contraction = SymmetricContraction("8x0e+8x1o", "8x0e+8x1o", correlation=3, num_elements=2, strategy="einsum")
    >>> x, elements = torch.randn(5, 8, 4), torch.tensor([0, 1, 1, 0, 1])
    >>> contraction(x, elements).shape
    torch.Size([5, 32])
    """

    _index: ClassVar[str] = "y"

    def __init__(
        self,
        irreps_in: Irreps | str,
        irreps_out: Irreps | str,
        correlation: Correlation,
        irrep_normalization: str | None = "component",
        path_normalization: str | None = "element",
        use_reduced_cg: bool | None = False,
        internal_weights: bool | None = None,
        shared_weights: bool | None = None,
        num_elements: int | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        check_own_options(options, "use_reduced_cg", "internal_weights", "shared_weights", "num_elements")
        _check_normalizations(irrep_normalization, path_normalization)
        if use_reduced_cg:
            raise PlanError(
                "use_reduced_cg: the reduced basis of MACE is computed by "
                "cuequivariance, with conventions of its own: give "
                "use_reduced_cg=False, and train or load weights of the full basis"
            )
        irreps_in, irreps_out = parse_irreps(irreps_in, "irreps_in"), parse_irreps(irreps_out, "irreps_out")
        remedy = ": bring them to one with a linear layer"
        channels = common_multiplicity("irreps_in and irreps_out", irreps_in, irreps_out, remedy=remedy)
        degrees = _list_degrees_of_outputs(irreps_out, correlation)
        plan = make_contraction_plan(irreps_in, irreps_out, degrees)  # highest degree first for each output irrep
        super().__init__(plan, channels, num_elements, internal_weights is None or internal_weights, **options)
        self.irreps_in, self.irreps_out, self.degrees = irreps_in, irreps_out, degrees
        self.contractions = nn.ModuleList()
        if self.internal_weights:
            self.contractions.extend(
                _Weights(list_contraction_paths(irreps_in, mul_ir.ir, degree), num_elements or 1, channels)
                for mul_ir, degree in zip(irreps_out, degrees, strict=True)
            )

    def forward(self, x: Tensor, y: Tensor | None = None, weights: list[Tensor] | None = None) -> Tensor:
        """Contract ``x (rows, channels, components)``; returns ``(rows, irreps_out.dim)``.

        ``y`` is every row's element: one-hot ``(rows, elements)`` or int64 ``(rows,)``; None without elements.
        ``weights`` replace internal ones: `weight_shapes` preceded by the number of elements (without: 1 or rows).
        """
        if not isinstance(x, Tensor):
            node = record_leaf_call(self, x, y, weights)
            if node is not None:
                return node
        return self._check_operands_and_run((x,), y, weights)

    def _own_weights(self) -> list[Tensor]:
        return [w for c in self.contractions for w in c.yield_used_weights()]  # type: ignore[operator]

    def extra_repr(self) -> str:
        elements = "" if self.num_elements is None else f", {self.num_elements} elements"
        return (
            f"{self.irreps_in} -> {self.irreps_out}, degrees "
            f"{', '.join(map(str, self.degrees))}{elements}, {self.choice}"
        )

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        """Load MACE's weights, with signs for tpgen's couplings."""
        for n, (mul_ir, degree) in enumerate(zip(self.irreps_out, self.degrees, strict=True)):
            at = f"{prefix}contractions.{n}."
            for nu in range(1, degree + 1):
                coupling = state_dict.pop(f"{at}U_matrix_{nu}", None)
                key = at + ("weights_max" if nu == degree else f"weights.{degree - 1 - nu}")
                if self.internal_weights and key in state_dict:
                    part = self.contractions[n]
                    check_checkpoint_shape(key, state_dict[key], (part.weights_max, *part.weights)[degree - nu])  # type: ignore[misc]
                if coupling is not None and key in state_dict:
                    signs = find_path_signs(key, coupling, self.irreps_in, mul_ir.ir, nu)
                    state_dict[key] = state_dict[key] * signs.to(state_dict[key]).unsqueeze(-1)
            for key in [k for k in state_dict if k.startswith(at) and k.endswith("_zeroed")]:
                del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *args)


class _Weights(nn.Module):
    """Weights into one output irrep, under MACE's names."""

    def __init__(self, paths: list[list[Entries]], elements: int, channels: int) -> None:
        super().__init__()
        self._live = [any(found) for found in paths]
        made = [_make_weight_parameter(elements, found, channels) for found in paths]
        self.weights = nn.ParameterList(made[:-1][::-1])
        self.weights_max = made[-1]

    def yield_used_weights(self) -> Iterator[Tensor]:
        """Yield weights of non-zero terms, highest degree first."""
        for parameter, live in zip((self.weights_max, *self.weights), reversed(self._live), strict=True):
            if live:
                yield parameter


def _make_weight_parameter(elements: int, paths: list[Entries], channels: int) -> nn.Parameter:
    # MACE has a weight for every chain, also where all of them vanish between equal tensors, and one where none is
    if not any(paths):
        return nn.Parameter(torch.zeros(elements, max(1, len(paths)), channels), requires_grad=False)
    return nn.Parameter(torch.randn(elements, len(paths), channels) / len(paths))


def _list_degrees_of_outputs(irreps_out: Irreps, correlation: Correlation) -> list[int]:
    names = [str(ir) for _, ir in irreps_out]
    by_irrep = (
        _parse_degree_by_irrep(correlation, names)
        if isinstance(correlation, Mapping)
        else dict.fromkeys(names, correlation)
    )
    for degree in by_irrep.values():
        if not isinstance(degree, int) or isinstance(degree, bool) or not 1 <= degree <= MAX_DEGREE:
            raise PlanError(f"correlation must be a whole number from 1 to {MAX_DEGREE}, got {degree!r}")
    return [by_irrep[name] for name in names]


def _parse_degree_by_irrep(correlation: Mapping[Any, int], outputs: list[str]) -> dict[str, int]:
    by_irrep: dict[str, int] = {}
    for key, degree in correlation.items():
        name = _parse_irrep_name(key)
        if name not in outputs:
            raise PlanError(f"correlation: {unknown('output irrep', name, dict.fromkeys(outputs))}")
        if name in by_irrep:
            raise PlanError(f"correlation: {name} is there twice: give every output irrep one degree")
        by_irrep[name] = degree
    missing = [name for name in dict.fromkeys(outputs) if name not in by_irrep]
    if missing:
        raise PlanError(f"correlation: must have a degree for every output irrep, and {', '.join(missing)} has none")
    return by_irrep


def _parse_irrep_name(key: Any) -> str:
    try:
        return str(Irrep(getattr(key, "ir", key)))
    except (ValueError, TypeError, AssertionError):
        raise PlanError(f"correlation: must map output irreps such as '1o' to degrees, got {key!r}") from None


def _check_normalizations(irrep_normalization: str | None, path_normalization: str | None) -> None:
    if irrep_normalization is not None:
        check_known("irrep_normalization", [irrep_normalization], tuple(IRREP_NORMALIZATIONS), PlanError)
    if path_normalization is not None:
        check_known("path_normalization", [path_normalization], tuple(PATH_NORMALIZATIONS), PlanError)


def fit_coupling_basis(key: str, checkpoint_couplings: Tensor, irreps_in: Irreps, output: Irrep, degree: int) -> Tensor:
    """Express checkpoint paths in our paths, as a matrix ``(theirs, ours)``, up to permutations of inputs.

    Raises `PlanError` for couplings outside our span.
    """
    ours = make_couplings(irreps_in, output, degree)
    checkpoint_couplings = checkpoint_couplings.to("cpu", torch.float64)
    checkpoint_couplings = (
        checkpoint_couplings if checkpoint_couplings.dim() == ours.dim() else checkpoint_couplings.unsqueeze(0)
    )
    if checkpoint_couplings.shape[:-1] != ours.shape[:-1]:
        raise PlanError(
            f"{key}: couplings of shape {tuple(checkpoint_couplings.shape)} are of other irreps than {irreps_in}"
        )
    columns, wanted = (average_over_input_permutations(x).flatten(0, -2) for x in (ours, checkpoint_couplings))
    found = torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
    if (columns @ found - wanted).abs().max() > 1e-5 * wanted.abs().max():
        raise PlanError(f"{key}: the checkpoint's couplings are none of {irreps_in} -> {output} in degree {degree}")
    return found.T


def average_over_input_permutations(couplings: Tensor) -> Tensor:
    """Average couplings ``[component, i_1, ..., i_nu, path]`` over permutations of inputs."""
    inputs = range(1, couplings.dim() - 1)
    turned = [couplings.permute(0, *order, couplings.dim() - 1) for order in permutations(inputs)]
    return torch.stack(turned).mean(0)


def make_couplings(irreps_in: Irreps, output: Irrep, degree: int) -> Tensor:
    """Float64 couplings of all paths to an output, ``[component, i_1, ..., i_nu, path]``."""
    one = [drop_multiplicities(irreps_in)] * degree
    return torch.from_numpy(generalized_couplings(one, output, natural_parity=degree == MAX_DEGREE))


def find_path_signs(key: str, checkpoint_couplings: Tensor, irreps_in: Irreps, output: Irrep, degree: int) -> Tensor:
    """Each checkpoint path's sign relative to ours; raises `PlanError` for other couplings."""
    ours = make_couplings(irreps_in, output, degree)
    if ours.shape[-1] == 0:
        return torch.ones(1, dtype=torch.float64)
    checkpoint_couplings = checkpoint_couplings.to("cpu", torch.float64)
    checkpoint_couplings = (
        checkpoint_couplings if checkpoint_couplings.dim() == ours.dim() else checkpoint_couplings.unsqueeze(0)
    )
    if checkpoint_couplings.shape != ours.shape:
        raise PlanError(
            f"{key}: the checkpoint's couplings have shape {tuple(checkpoint_couplings.shape)}, "
            f"and {irreps_in} -> {output} in degree {degree} "
            f"has {tuple(ours.shape)}: it was made for other irreps, or with use_reduced_cg=True"
        )
    signs = (checkpoint_couplings * ours).flatten(0, -2).sum(0).sign()
    if not torch.allclose(checkpoint_couplings, ours * signs, atol=1e-5):
        raise PlanError(f"{key}: the checkpoint's couplings are none of {irreps_in} -> {output} in degree {degree}")
    return signs
