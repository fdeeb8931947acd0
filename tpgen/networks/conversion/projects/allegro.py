r"""Allegro (package ``nequip-allegro``): products of strided features as polynomials.

.. math:: z_{euk} = \sum w_{up} C^p_{ijk}\, x_{eui}\, y_{n(e)uj}
"""

# Annotations are objects here, not strings: TorchScript reads them.

import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from allegro.nn._strided import Contracter
from e3nn.o3 import Irreps
from torch import Tensor, nn

from tpgen.kernels.runtime.batched import run_polynomial
from tpgen.networks.conversion.notices import can_kernels_take, can_kernels_take_or_warn
from tpgen.networks.conversion.obstacles import make_plan_or_kept_module, make_polynomial_attributes, why_patched
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, name_class_with_package
from tpgen.nn.plain_tensors import count_writes, is_traced
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
from tpgen.planner.read import read_plan

_NOW = "tpgen polynomial, kernel (all paths at once, no tensor of weights and couplings)"
_OWN = "Allegro's own code (the loaded couplings are none of tpgen's)"
_FOREIGN = (
    "of couplings that tpgen does not generate: instructions or a normalisation of its own, or couplings rounded to "
    "bfloat16 (convert it in float32, then cast)"
)
_ROUNDING = 1e-5  # of couplings that were made in float32


class TpgenContracter(Contracter):
    """Allegro's product; Allegro's code runs on devices and in dtypes without kernels."""

    _nequip_custom_ops_libs: ClassVar[tuple[str, ...]] = ("tpgen",)
    _tpgen_plan: str
    _tpgen_call: str
    _tpgen_planned: bool  # whether the couplings are those of the plan
    _tpgen_version: int  # of the couplings when that was asked last: torch counts what is written to a tensor
    _tpgen_sizes: list[int]  # paths to each segment of the output

    def forward(self, x1: Tensor, x2: Tensor, idxs: Tensor) -> Tensor:
        """Allegro's product of edge features ``x1`` with node features ``x2[idxs]``."""
        x1 = x1.reshape(-1, self.mul, self.base_dim1)
        x2 = x2.reshape(-1, self.mul, self.base_dim2)
        if not torch.jit.is_scripting():
            traced = torch.compiler.is_compiling() or is_traced(self.w3j)  # without numbers to compare
            if not traced and count_writes(self.w3j) != self._tpgen_version:
                self._fall_back_if_couplings_differ(self.w3j, "a product", "were written to")
        if not self._tpgen_planned or not can_kernels_take_or_warn(x1, "Allegro's products run Allegro's own code"):
            return self._contract_conv(x1, x2, idxs)
        given = [x1, x2.index_select(0, idxs)]
        for weights in self._split_weights_by_output_segment():
            given.append(weights)
        found = run_polynomial(given, None, self._tpgen_plan, self._tpgen_call)
        return found.view(-1, self.mul, self.base_dim_out)

    def _split_weights_by_output_segment(self) -> list[Tensor]:
        # ``(1, paths, channels)`` each; without channels all get the same
        weights = self.weights
        if not self.path_channel_coupling:
            weights = weights.reshape(1, self.num_paths).expand(self.mul, self.num_paths)
        return weights.reshape(self.mul, self.num_paths).t().unsqueeze(0).split(self._tpgen_sizes, dim=1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load; Allegro's code runs from now on if loaded couplings differ."""
        loaded: Tensor = state_dict.get(f"{prefix}w3j", self.w3j)  # type: ignore[assignment]
        self._fall_back_if_couplings_differ(loaded, prefix[:-1], "were loaded")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._tpgen_version = count_writes(self.w3j)

    def _fall_back_if_couplings_differ(self, couplings: Tensor, module_name: str, cause: str) -> None:
        # within rounding of their dtype, are these the couplings that the kernel was made for?
        ours = _make_couplings_like_w3j_buffer(read_plan(self._tpgen_plan), self)
        limit = max(_ROUNDING, torch.finfo(couplings.dtype).eps)
        self._tpgen_version = count_writes(self.w3j)
        self._tpgen_planned = couplings.shape == ours.shape and not _differ_by_more_than(ours, couplings, limit)
        if not self._tpgen_planned:
            warnings.warn(
                f"{module_name} is computed by Allegro's own code from now on: its couplings {cause}, and are none of "
                "tpgen's; load or change them before you convert",
                stacklevel=3,
            )


def _describe_contracter_backend(contracter: Any, swap_attributes: Mapping[str, Any]) -> str:
    if not swap_attributes["_tpgen_planned"]:
        return _OWN
    like = contracter.w3j
    return _NOW if can_kernels_take(like) else f"Allegro's own code (kernels take no {like.dtype} on {like.device})"


def find_allegro_swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[SwapOrKept]:
    """Yield a `ClassSwap` or `KeptModule` per `Contracter` of Allegro."""
    for module in network.modules():
        if type(module) is Contracter:
            yield _find_contracter_swap(module, options)
        elif isinstance(module, Contracter) and type(module) is not TpgenContracter:
            yield KeptModule(module, f"a {name_class_with_package(type(module))}, which another modifier has put there")


def _find_contracter_swap(contracter: Any, options: dict[str, Any]) -> SwapOrKept:
    if why := why_patched(contracter):
        return KeptModule(contracter, why)
    plan = make_plan_or_kept_module(contracter, options, partial(_plan_contracter, contracter), contracter.w3j)
    if isinstance(plan, KeptModule):
        return plan
    couplings = _make_couplings_like_w3j_buffer(plan, contracter)
    if couplings.shape != contracter.w3j.shape or _differ_by_more_than(couplings, contracter.w3j):
        return KeptModule(contracter, _FOREIGN)
    extra = {
        **make_polynomial_attributes(plan),
        "_tpgen_planned": True,
        "_tpgen_version": count_writes(contracter.w3j),
        "_tpgen_sizes": [operand.dim for operand in plan.weights],
    }
    return ClassSwap(
        contracter, TpgenContracter, _describe_contracter_backend, extra, lambda: contracter.w3j.copy_(couplings)
    )


def _plan_contracter(contracter: Any) -> Plan:
    ends = {"x": contracter.irreps_in1, "y": contracter.irreps_in2, OUT: contracter.irreps_out}
    operands = [Operand(name, Irreps([(1, ir) for _, ir in irreps]), "channel") for name, irreps in ends.items()]
    return make_polynomial_plan(
        operands, [PolynomialTerm(("x", "y"), k, f"w{k}") for k in range(len(contracter.irreps_out))]
    )


def _make_couplings_like_w3j_buffer(plan: Plan, contracter: Any) -> Tensor:
    # constants of the plan in float64, in the shape of Allegro's ``w3j``
    found = [path.entries or {} for path in plan.paths]
    couplings = torch.zeros(len(found), *(plan.operand(name).dim for name in ("x", "y", OUT)), dtype=torch.float64)
    for n, path in enumerate(found):
        for (k, i, j), value in path.items():
            couplings[n, i, j, k] = value
    if contracter.w3j_is_ij_diagonal:
        couplings = couplings.diagonal(dim1=1, dim2=2).transpose(1, 2)
    return couplings.squeeze(0) if len(found) == 1 else couplings


def _differ_by_more_than(a: Tensor, b: Tensor, limit: float = _ROUNDING) -> bool:
    return not torch.allclose(a.double(), b.to(a.device).double(), rtol=0, atol=limit)
