"""Swap of e3nn's `BatchNorm`: one kernel in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from e3nn.nn import BatchNorm
from e3nn.o3 import Irreps
from torch import Tensor, nn

from tpgen.base.remember import remembered
from tpgen.functions.batch_norm import NormTable, batch_norm, can_build_norm, make_norm_table
from tpgen.networks.conversion.obstacles import why_patched
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept
from tpgen.nn.plain_tensors import are_plain

_NOW = "one kernel in training, one pass in evaluation, but e3nn's own code where numbers are traced"


class ConvertedBatchNorm(BatchNorm):
    """An `e3nn.nn.BatchNorm`, computed by tpgen; traced, transformed or compiled, e3nn's code runs."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize as e3nn's `BatchNorm`; training updates running statistics."""
        held = [x for x in (self.running_var, self.weight) if x is not None]
        usual = not torch.compiler.is_compiling() and are_plain(input, *held) and input.numel() > 0
        usual = usual and all(x.dtype == input.dtype for x in held)
        if not usual or (self.training and not can_build_norm(input.dtype)):
            return super().forward(input)
        table = _get_cached_norm_table(self.irreps, self.normalization)
        weight = self.running_var.new_ones(len(table.divisor)) if self.weight is None else self.weight
        bias = getattr(self, "bias", None)  # e3nn 0.6 has no such attribute where there is no bias
        # e3nn reads no bias without scalars: its gradient is None
        bias = torch.zeros_like(self.running_mean) if bias is None or not len(bias) else bias
        rows = input.reshape(-1, input.shape[-1])
        made = self._normalize_rows_in_training if self.training else self._normalize_rows_in_evaluation
        return made(table, rows, weight, bias).view(input.shape)

    def _normalize_rows_in_training(self, table: NormTable, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out, mean, variance = batch_norm(table, rows, weight, bias, self.eps)
        with torch.no_grad():
            for kept, now in ((self.running_mean, mean), (self.running_var, variance)):
                kept.copy_((1 - self.momentum) * kept + self.momentum * now)  # lerp has another infinity
        return out

    def _normalize_rows_in_evaluation(self, table: NormTable, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        scale = ((self.running_var + self.eps).rsqrt() * weight)[table.copy]
        shift = bias - self.running_mean * scale[table.scalars]
        return torch.addcmul(scale.new_zeros(len(scale)).index_copy(0, table.scalars, shift), rows, scale)


@remembered("tables of norms")
def _get_cached_norm_table(irreps: Irreps, normalization: str) -> NormTable:
    copies = [(irrep.dim, irrep.is_scalar()) for mul, irrep in irreps for _ in range(mul)]
    return make_norm_table(copies, normalization)


def find_batch_norm_swap(module: nn.Module, options: Mapping[str, Any]) -> SwapOrKept | None:
    """`ClassSwap` that converts e3nn's `BatchNorm`, or `KeptModule`; None for other modules."""
    if type(module) is not BatchNorm:
        return None
    other = "of instances, or of the largest norm" if module.instance or module.reduce != "mean" else None
    why = why_patched(module) or other
    return KeptModule(module, why) if why else ClassSwap(module, ConvertedBatchNorm, _NOW)
