"""MACE's symmetric contraction, computed by a generated kernel from the weights where MACE has them.

Annotations here are objects, not strings: TorchScript reads them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.conversion.swap import Finding, Kept, Swap
from tpgen.errors import TpgenError
from tpgen.kernels.polynomial.runtime import forward_call, why_no_kernel
from tpgen.nn.symmetric_contraction import SymmetricContraction, coupling_signs

_KIND = "SymmetricContraction"


@compile_mode("script")
class MaceContraction(nn.Module):
    """MACE's symmetric contraction of features ``(nodes, channels, components)`` and one-hot elements.

    Elements that are no one-hot rows, or that need a gradient, go MACE's own way.
    """

    _tpgen_signs: list[list[float]]  # of the paths of each weight, highest degree first; empty where there is no path

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The contraction, as MACE's."""
        if not picks_one(y):
            return torch.cat([contraction(x, y) for contraction in self.contractions], dim=-1)  # type: ignore[union-attr]
        tensors, n = [x], 0
        for contraction in self.contractions:  # type: ignore[union-attr]
            weights = [contraction.weights_max]
            for weight in contraction.weights:
                weights.append(weight)
            for weight in weights:
                signs = self._tpgen_signs[n]
                if len(signs) > 0:
                    tensors.append(_signed(weight, signs))
                n += 1
        return torch.ops.tpgen.polynomial(tensors, y.argmax(dim=1), self._tpgen_plan, self._tpgen_call)[0]


def _signed(weight: Tensor, signs: list[float]) -> Tensor:
    if min(signs) > 0:
        return weight
    return weight * torch.tensor(signs, dtype=weight.dtype, device=weight.device).unsqueeze(-1)


def picks_one(y: Tensor) -> bool:
    """Whether rows are one-hot and need no gradient, so that they say which weights to take and nothing else."""
    if y.requires_grad:
        return False
    if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
        if torch.compiler.is_compiling():  # which cannot look at values: a model's elements are one-hot
            return True
    return bool((y.amax(dim=1) == 1).all()) and int(y.count_nonzero()) == y.size(0)


def contraction_swap(module: Any) -> Finding:
    """What becomes of MACE's `SymmetricContraction`."""
    try:
        plan, signs = _planned(module)
    except TpgenError as error:
        return Kept(module, f"tpgen cannot plan it: {error}")
    like = module.contractions[0].weights_max
    why = why_no_kernel(plan, like.dtype, like.device)
    if why:
        return Kept(module, f"without a kernel: {why}")
    extra = {"_tpgen_plan": plan.to_json(), "_tpgen_call": str(forward_call(plan)), "_tpgen_signs": signs}
    return Swap(module, MaceContraction, "tpgen polynomial, kernel (weights by element, each monomial once)", extra)


def _planned(module: Any) -> tuple[Any, list[list[float]]]:
    """The plan of a contraction, and the sign that each of its weights goes with, highest degree first."""
    outputs = zip(module.irreps_out, module.contractions, strict=True)
    degrees = {str(mul_ir.ir): contraction.correlation for mul_ir, contraction in outputs}
    elements = module.contractions[0].weights_max.shape[0]
    ours = SymmetricContraction(
        module.irreps_in, module.irreps_out, degrees, num_elements=elements, internal_weights=False, strategy="einsum"
    )
    return ours.plan, [signs for n in range(len(ours.degrees)) for signs in _signs(module, n, ours.plan)]


def _signs(module: Any, n: int, plan: Any) -> Iterator[list[float]]:
    names = {operand.name for operand in plan.weights}
    contraction, output = module.contractions[n], module.irreps_out[n].ir
    for degree in range(contraction.correlation, 0, -1):
        if f"w{n}_{degree}" in names:
            couplings = getattr(contraction, f"U_matrix_{degree}")
            yield coupling_signs(f"U_matrix_{degree}", couplings, module.irreps_in, output, degree).tolist()
        else:
            yield []


def is_contraction(module: nn.Module) -> bool:
    """Whether a module is MACE's own, and stock."""
    return type(module).__module__.startswith("mace.") and type(module).__name__ == _KIND
