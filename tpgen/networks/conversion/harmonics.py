"""Swap of e3nn's spherical harmonics."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from e3nn import o3
from e3nn.o3 import _spherical_harmonics as _stock_code
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.kernels.runtime.batched import run_polynomial
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.networks.conversion.notices import can_gpu_program_kernels_take
from tpgen.networks.conversion.obstacles import (
    copy_method_under_name,
    list_overriding_names,
    make_plan_or_kept_module,
    make_polynomial_attributes,
    why_module_unconvertible,
)
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, name_class_with_package
from tpgen.planner.harmonics import make_harmonics_plan

_NAME = name_class_with_package(o3.SphericalHarmonics)
_STOCK_PROGRAM = "sph_func"  # since e3nn 0.5
_NOW = "tpgen polynomial, kernel (float32 and float64 on the CPU, e3nn's own elsewhere)"


def run_harmonics(tensors: list[Tensor], shared: list[Tensor], dim: int, description: str, call: str) -> Tensor:
    """Evaluate a polynomial of one channel, without weights; returns ``(..., dim)``.

    ``tensors``: ``(..., components)``; ``shared``, operands without channels, last in the plan: ``(components,)``.
    ``description``: the plan as JSON; ``call``: its `forward_call` as text.
    """
    # rows as channels of one row: vectors of a kernel run over channels, and one channel would fill one lane of each
    given = [x.reshape(1, -1) for x in tensors] + [x.reshape(1, -1) for x in shared]
    found = run_polynomial(given, None, description, call)
    return found.reshape(list(tensors[0].shape[:-1]) + [dim])


@compile_mode("script")
class ConvertedSphericalHarmonics(o3.SphericalHarmonics):
    """An `e3nn.o3.SphericalHarmonics`, computed by tpgen."""

    stock = copy_method_under_name(o3.SphericalHarmonics.forward, "stock")

    def forward(self, x: Tensor) -> Tensor:
        """Spherical harmonics of ``x (..., 3)``, by a polynomial kernel if possible."""
        on_gpu = False
        if not torch.jit.is_scripting():
            x = as_floating_tensor("x", x, torch.get_default_dtype())
            on_gpu = can_gpu_program_kernels_take(x)  # a program takes no scripted functions
        if not (x.is_cpu or on_gpu) or x.dtype not in (torch.float32, torch.float64) or x.size(-1) != 3:
            return self.stock(x)
        if self.normalize:
            x = nn.functional.normalize(x, dim=-1)
        return run_harmonics([x], [x.new_ones(1)], self._tpgen_dim, self._tpgen_plan, self._tpgen_call)

    def __getstate__(self) -> dict[str, Any]:
        # e3nn 0.5 holds a scripted function, which torch can neither copy nor pickle
        scripted = isinstance(self.__dict__.get(_STOCK_PROGRAM), torch.jit.ScriptFunction)
        return {**self.__dict__, **({_STOCK_PROGRAM: None} if scripted else {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if state.get(_STOCK_PROGRAM, self) is None:
            self.sph_func = _stock_code._spherical_harmonics


def find_harmonics_swap(module: nn.Module, options: Mapping[str, Any]) -> SwapOrKept | None:
    """`ClassSwap` that converts e3nn's `SphericalHarmonics`, or `KeptModule`; None for other modules."""
    if isinstance(module, torch.jit.ScriptModule):
        scripted = getattr(module, "original_name", "") == "SphericalHarmonics"
        return KeptModule(module, "scripted harmonics: convert the network before it is scripted") if scripted else None
    if not isinstance(module, o3.SphericalHarmonics):
        return None
    if list_overriding_names(module, o3.SphericalHarmonics):
        return KeptModule(
            module, f"a subclass of {_NAME}, whose own code a swap would skip: let it hold a SphericalHarmonics"
        )
    why = why_module_unconvertible(module, {o3.SphericalHarmonics: ConvertedSphericalHarmonics}, _STOCK_PROGRAM)
    if why:
        return KeptModule(module, why)
    asked: Any = module
    make = partial(make_harmonics_plan, str(asked.irreps_in[0].ir), asked._ls_list, asked.normalization)
    plan = make_plan_or_kept_module(module, options, make)
    if isinstance(plan, KeptModule):
        return plan
    return ClassSwap(
        module, ConvertedSphericalHarmonics, _NOW, {"_tpgen_dim": plan.out.dim, **make_polynomial_attributes(plan)}
    )
