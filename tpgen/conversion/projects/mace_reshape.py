"""MACE's change of layout between a linear layer and a symmetric contraction, by a kernel that moves whole vectors.

MACE cuts rows ``(copies, components)`` of each irrep apart and joins them as ``(copies, components of all)``: a copy of
short pieces, and its gradient a tensor of zeros for each irrep.  As a polynomial of degree one it is one pass, and so
is every derivative.

Annotations here are objects, not strings: TorchScript reads them.
"""

from typing import Any

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.conversion.obstacles import replaced
from tpgen.conversion.swap import Kept, Swap, SwapOrKept
from tpgen.kernels.runtime.batched import run_polynomial
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.kernels.runtime.targets import kernel_supported
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan

_KIND = "reshape_irreps"
_NOW = "tpgen polynomial, kernel (float32 and float64 on the CPU, slices elsewhere)"


@compile_mode("script")
class MaceReshape(nn.Module):
    """Rows in e3nn's order as ``(rows, copies, components)``."""

    dims: list[int]
    _tpgen_plan: str
    _tpgen_call: str
    _tpgen_copies: int
    _tpgen_dim: int  # of all components

    def forward(self, tensor: Tensor) -> Tensor:
        """As MACE's."""
        shape = [tensor.size(0), self._tpgen_copies, self._tpgen_dim]
        if tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64):
            return run_polynomial([tensor], None, self._tpgen_plan, self._tpgen_call).view(shape)
        parts = tensor.split([self._tpgen_copies * dim for dim in self.dims], dim=1)
        return torch.cat([part.reshape(shape[:2] + [-1]) for part in parts], dim=-1)


def layout_plan(irreps: Irreps) -> Plan:
    """The polynomial of degree one that copies all components of a channel, from one layout to the other.

    >>> layout_plan(Irreps("0e + 1o")).out.dim
    4
    """
    copied = tuple(((k, k), 1.0) for k in range(irreps.dim))
    operands = [Operand("x", irreps, "mul_ir"), Operand(OUT, irreps, "channel")]
    return make_polynomial_plan(operands, [PolynomialTerm(("x",), table=(copied,))])


def is_reshape(module: nn.Module) -> bool:
    """Whether a module is MACE's own, in e3nn's layout, and has more than one irrep of as many copies."""
    return (
        type(module).__module__.startswith("mace.")
        and type(module).__name__ == _KIND
        and getattr(module, "cueq_config", None) is None
        and len(module.muls) > 1  # type: ignore[arg-type]
        and len(set(module.muls)) == 1  # type: ignore[arg-type]
    )


def reshape_swap(module: Any, options: dict[str, Any]) -> SwapOrKept | None:
    """Return the swap of a `reshape_irreps`; None where no kernel runs, which a report leaves out."""
    strategy = options.get("strategy", "auto")
    plan = layout_plan(Irreps([(1, ir) for _, ir in module.irreps]))
    if strategy not in ("auto", "kernel") or kernel_supported(plan):
        return None
    if why := replaced(module):
        return Kept(module, why)
    extra = {
        "_tpgen_plan": plan.to_json(),
        "_tpgen_call": str(forward_call(plan)),
        "_tpgen_copies": module.muls[0],
        "_tpgen_dim": plan.out.dim,
    }
    return Swap(module, MaceReshape, _NOW, extra)
