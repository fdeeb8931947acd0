"""Swaps of e3nn's tensor products, also for convolutions (`make_convolution_swap`)."""

# Annotations are objects here, not strings: TorchScript reads them.

from collections.abc import Mapping
from functools import partial
from typing import Any, Optional

import torch
from e3nn import o3
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.base._e3nn import default_dtype
from tpgen.base.errors import TpgenError
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.networks.conversion.gathers import Gatherable
from tpgen.networks.conversion.obstacles import find_stock_class, why_module_unconvertible
from tpgen.networks.conversion.species import make_species_product
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept
from tpgen.networks.conversion.weights import multiply_or_postpone_edges
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.from_e3nn import plan_e3nn_product
from tpgen.nn.planned import PROGRAM
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan

SPECIES = "_tpgen_species"  # where it holds how to compute by species
STOCK_PROGRAM = "_compiled_main_left_right"


def _cast_integers_to_dtype_of(name: str, x: Tensor, like: Tensor) -> Tensor:
    if not torch.jit.is_scripting():
        return as_floating_tensor(name, x, like.dtype)
    return x if x.is_floating_point() or x.is_complex() else x.to(like.dtype)


class _ConvertedProductBase(o3.TensorProduct):
    """Base of converted tensor products."""

    def forward(self, x: Tensor, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Product of ``x`` and ``y`` as e3nn's; integers are cast; an unscripted result is `Gatherable`."""
        x, y = (
            _cast_integers_to_dtype_of("x", x, self.output_mask),
            _cast_integers_to_dtype_of("y", y, self.output_mask),
        )
        if self.weight_numel == 0:
            return self._tpgen.forward(x, y, None)
        w = self._get_weights(weight)
        if not torch.jit.is_scripting():
            hooked = bool(self._forward_hooks or self._backward_hooks)
            return Gatherable.make_gatherable_if_possible(
                self._tpgen, multiply_or_postpone_edges(self._tpgen, x, y, w, hooked)
            )
        return self._tpgen.forward(x, y, w)


@compile_mode("script")
class ConvertedTensorProduct(_ConvertedProductBase):
    """An `e3nn.o3.TensorProduct`, computed by tpgen."""


@compile_mode("script")
class ConvertedFullyConnectedTensorProduct(_ConvertedProductBase, o3.FullyConnectedTensorProduct):
    """An `e3nn.o3.FullyConnectedTensorProduct`, computed by tpgen."""


@compile_mode("script")
class ProductBySpecies(o3.FullyConnectedTensorProduct):
    """A fully connected product with scalars as second input: one-hot rows select weights."""

    def forward(self, x: Tensor, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Product of ``x`` and ``y`` as e3nn's; one-hot rows of ``y`` select matrices by species."""
        x, y = (
            _cast_integers_to_dtype_of("x", x, self.output_mask),
            _cast_integers_to_dtype_of("y", y, self.output_mask),
        )
        w = self._get_weights(weight)
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
            if not torch.compiler.is_compiling():
                found = self._tpgen_species.multiply_by_one_hot(x, w, y)
                if found is None:
                    found = self._tpgen.forward(x, y, w)
                return Gatherable.make_gatherable_if_possible(self._tpgen, found)
        return self._tpgen.forward(x, y, w)


@compile_mode("script")
class ConvertedElementwiseTensorProduct(_ConvertedProductBase, o3.ElementwiseTensorProduct):
    """An `e3nn.o3.ElementwiseTensorProduct`, computed by tpgen."""


@compile_mode("script")
class ConvertedFullTensorProduct(_ConvertedProductBase, o3.FullTensorProduct):
    """An `e3nn.o3.FullTensorProduct`, computed by tpgen."""


@compile_mode("script")
class ConvertedTensorSquare(o3.TensorSquare):
    """An `e3nn.o3.TensorSquare`, computed by tpgen."""

    def forward(self, x: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Product of ``x`` with ``x`` as e3nn's; integers are cast."""
        x = _cast_integers_to_dtype_of("x", x, self.output_mask)
        if self.weight_numel == 0:
            return self._tpgen.forward(x, x, None)
        return self._tpgen.forward(x, x, self._get_weights(weight))


CONVERTED: dict[type[nn.Module], type[nn.Module]] = {
    o3.TensorProduct: ConvertedTensorProduct,
    o3.FullyConnectedTensorProduct: ConvertedFullyConnectedTensorProduct,
    o3.ElementwiseTensorProduct: ConvertedElementwiseTensorProduct,
    o3.FullTensorProduct: ConvertedFullTensorProduct,
    o3.TensorSquare: ConvertedTensorSquare,
}
_NAMES = tuple(cls.__name__ for cls in CONVERTED)


def find_product_swap(module: nn.Module, options: Mapping[str, Any]) -> SwapOrKept | None:
    """`ClassSwap` that converts a product of e3nn, or `KeptModule`; None for other modules."""
    if isinstance(module, torch.jit.ScriptModule):
        return _make_kept_module_if_scripted(module, getattr(module, "original_name", ""))
    if not isinstance(module, o3.TensorProduct):
        return None
    plan = _plan_product_or_keep_module(module)
    return plan if isinstance(plan, KeptModule) else _make_product_swap(module, plan, options)


def _make_kept_module_if_scripted(module: nn.Module, class_name: str) -> KeptModule | None:
    if class_name in _NAMES:
        return KeptModule(module, f"a scripted {class_name}: convert the network before it is scripted")
    if hasattr(module, PROGRAM):
        return KeptModule(
            module, f"a scripted {class_name}, which computes with tpgen already: it cannot be taken apart any more"
        )
    return None


def _plan_product_or_keep_module(product: nn.Module) -> Plan | KeptModule:
    if why := why_module_unconvertible(product, CONVERTED, STOCK_PROGRAM):
        return KeptModule(product, why)
    try:
        return plan_e3nn_product(product)
    except TpgenError as error:
        return KeptModule(product, f"tpgen cannot plan it: {error}")


def _make_product_swap(module: nn.Module, plan: Plan, options: Mapping[str, Any]) -> ClassSwap:
    program = TensorProduct.from_plan(plan, False, **options).follow_owner_of_parameters(module)
    exact = partial(make_couplings_exact, module)
    stock = find_stock_class(module, CONVERTED)
    if stock is o3.FullyConnectedTensorProduct and (by_species := make_species_product(plan, options)):
        return ClassSwap(
            module, ProductBySpecies, describe_product_by_element, {PROGRAM: program, SPECIES: by_species}, exact
        )
    return ClassSwap(module, CONVERTED[stock], describe_product, {PROGRAM: program}, exact)


def make_convolution_swap(
    module: nn.Module,
    cls: type[nn.Module],
    options: Mapping[str, Any],
    held: str | None = None,
    paired: bool = False,
) -> SwapOrKept:
    """`ClassSwap` of a module to a convolution ``cls`` (gather, product, sum), or `KeptModule`.

    The product is the module, or its child ``held``.  ``paired``: module and holder are restored together.
    """
    product = module if held is None else module.get_submodule(held)
    plan = _plan_product_or_keep_module(product)
    if isinstance(plan, KeptModule):
        return plan
    conv = TensorProductConv.from_plan(plan, False, **options).follow_owner_of_parameters(product)
    covers = () if held is None else (held,)
    return ClassSwap(
        module,
        cls,
        _describe_convolution_backend,
        {PROGRAM: conv},
        partial(make_couplings_exact, product),
        covers,
        paired,
    )


def _describe_convolution_backend(_module: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    choice = swap_attributes[PROGRAM].choice
    how = "gather, product and sum in one" if choice.strategy == "kernel" else choice.reason
    return f"tpgen convolution, {choice.strategy} ({how}){_describe_why_no_kernel_runs(swap_attributes[PROGRAM])}"


def describe_product(_module: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    """Report text on a product: its strategy, and a missing kernel."""
    return f"tpgen {swap_attributes[PROGRAM].choice}{_describe_why_no_kernel_runs(swap_attributes[PROGRAM])}"


def _describe_why_no_kernel_runs(product: Any) -> str:
    why = _why_no_product_kernel(product.plan, product) if product.choice.strategy == "kernel" else None
    return f": none runs as it is, {why}" if why else ""


def describe_product_by_element(module: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    """Report text on a product with one-hot rows."""
    missing = _why_no_product_kernel(swap_attributes[SPECIES].plan, swap_attributes[PROGRAM])
    return describe_product(module, swap_attributes) + ("" if missing else "; by element where rows are one-hot")


def _why_no_product_kernel(plan: Any, product: Any) -> str | None:
    return why_kernel_unsupported(plan, dtype=product.output_mask.dtype, device=product.output_mask.device)


def make_couplings_exact(product: Any) -> None:
    """Replace e3nn's code of a product by code with float64 couplings."""
    with default_dtype(torch.float64):
        fresh = o3.TensorProduct(
            product.irreps_in1,
            product.irreps_in2,
            product.irreps_out,
            [(*i[:5], i[5] ** 2) for i in product.instructions],  # final coefficients, so nothing is normalised again
            irrep_normalization="none",
            path_normalization="none",
            shared_weights=product.shared_weights,
            internal_weights=False,
        )
    setattr(product, STOCK_PROGRAM, getattr(fresh, STOCK_PROGRAM).to(product.output_mask.device))
