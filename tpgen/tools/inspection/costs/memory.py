"""Memory of a call, by shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tpgen.base._torch import pytree
from tpgen.base.errors import InputError, TpgenError
from tpgen.base.text import quantity
from tpgen.compiler.footprint import WORKSPACE, Footprint, run_on_fake_tensors
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.workspace import count_call_workspace


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a module's call; ``given`` alone counts operands and parameters."""

    given: int  # operands and parameters, which are there before
    result: int
    forward: int  # most at once during a call without gradients, the result among it
    kept: int  # held for the backward pass after a call with gradients, beside the result
    training: int  # most at once during forward and backward: result, its gradient, those of operands and parameters

    def __str__(self) -> str:
        facts = [f"{name} {quantity(value, 'B')}" for name, value in vars(self).items()]
        return ", ".join(facts)


def estimate_memory(module: nn.Module, *operands: Any) -> MemoryEstimate:
    """Estimate the peak memory of a call, without and with gradients, without computing.

    ``operands`` may be on ``meta``.  If no result has a gradient, training is the call alone.

    Raises `TpgenError` for a module with a compiling backend, `InputError` for wrong operands.

    >>> import tpgen
    >>> product = tpgen.TensorProduct("8x1o", "1o", "8x0e", [(0, 0, 0, "uvu", True)], strategy="einsum")
    >>> found = estimate_memory(product, torch.empty(1000, 24), torch.empty(1000, 3))
    >>> found.given, found.result
    (108032, 32000)
    >>> found.training >= found.forward >= found.result
    True
    """
    if not isinstance(module, nn.Module):
        raise TpgenError(f"estimate_memory takes a module and the operands of a call, got {type(module).__name__}")
    backends = {str(m.backend) for m in module.modules() if isinstance(getattr(m, "backend", None), str)}
    for backend in sorted(backends - {"eager"}):
        raise TpgenError(
            f"memory is estimated of modules that run as they are written, and backend {backend!r} compiles them anew: "
            "build the module with backend='eager' to ask"
        )
    return run_on_fake_tensors(
        lambda footprint: _EmptyTensorMemoryEstimator(module, operands, footprint).estimate_call_memory()
    )


class _EmptyTensorMemoryEstimator:
    def __init__(self, module: nn.Module, operands: Sequence[Any], footprint: Footprint) -> None:
        """Allocate empty operands and parameters, counted by the active ``footprint``."""
        self.module, self.footprint = module, footprint
        self.operands = [_make_empty_tensor_like(x) if isinstance(x, Tensor) else x for x in operands]
        self.parameters = {name: _make_empty_tensor_like(p, p.requires_grad) for name, p in module.named_parameters()}
        self.before = footprint.now

    def estimate_call_memory(self) -> MemoryEstimate:
        with torch.no_grad():
            result = sum(x.nbytes for x in self._call_and_list_result_tensors())
        forward = self.footprint.peak - self.before
        self.footprint.peak = self.footprint.now
        kept = self._run_backward_and_count_kept_bytes() - result
        return MemoryEstimate(self.before, result, forward, max(kept, 0), self.footprint.peak - self.before)

    def _call_and_list_result_tensors(self) -> list[Tensor]:
        try:
            found = functional_call(self.module, self.parameters, tuple(self.operands))
        except TpgenError:
            raise
        except (TypeError, RuntimeError) as error:
            name = type(self.module).__name__
            raise InputError(f"{name} does not take these operands ({error}): give those of one whole call") from error
        return [x for x in pytree.tree_leaves(found) if isinstance(x, Tensor)]

    def _run_backward_and_count_kept_bytes(self) -> int:
        with torch.enable_grad():
            results = [x for x in self._call_and_list_result_tensors() if x.requires_grad]
        held = self.footprint.now - self.before
        if not results:  # none has a gradient, so there is no backward pass
            return held
        inputs = [x for x in (*self.operands, *self.parameters.values()) if isinstance(x, Tensor) and x.requires_grad]
        torch.autograd.grad(results, inputs, [torch.empty_like(x) for x in results], allow_unused=True)
        return held


def _make_empty_tensor_like(tensor: Tensor, requires_grad: bool | None = None) -> Tensor:
    wanted = tensor.is_floating_point() if requires_grad is None else requires_grad
    device = "cpu" if tensor.is_meta else tensor.device
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.requires_grad_(wanted)


WORKSPACE["tpgen::form"] = lambda *given, **named: count_call_workspace(FormCall.from_arguments(*given, **named))
