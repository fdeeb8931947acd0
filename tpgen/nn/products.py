"""Products that derive their instructions, under e3nn's names."""

# `TensorSquare.forward` takes one operand less than its base; said here, as TorchScript reads type comments inside it
# mypy: disable-error-code=override

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Optional

import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor
from typing_extensions import Unpack

from tpgen.compiler.config import ProductOptions
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.presets import elementwise, full, fully_connected, tensor_square

_TO_PLAN = ("in1_var", "in2_var", "out_var", "path_normalization", "shared_weights")
# Flags of e3nn's code generator that mean nothing here, accepted so that calls written for e3nn work.
_E3NN_FLAGS = ("compile_left_right", "_specialized_code", "_optimize_einsums")


class PresetOptions(ProductOptions, total=False):
    """Keywords of preset products."""

    in1_var: Sequence[float] | None
    in2_var: Sequence[float] | None
    out_var: Sequence[float] | None
    shared_weights: bool | None
    internal_weights: bool | None
    compile_left_right: bool
    _specialized_code: bool | None
    _optimize_einsums: bool | None


class FilteringOptions(PresetOptions, total=False):
    """Keywords of preset products with ``filter_ir_out``."""

    path_normalization: str | None


def _split_into_plan_and_module_options(
    options: Mapping[str, Any], irrep_normalization: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    options = {name: value for name, value in options.items() if name not in _E3NN_FLAGS}
    planning = {name: options.pop(name) for name in _TO_PLAN if name in options}
    planning["irrep_normalization"] = irrep_normalization
    planning = {name: value for name, value in planning.items() if value is not None}
    if planning.get("shared_weights") is False:
        options.setdefault("internal_weights", False)
    options.setdefault("internal_weights", None)
    return planning, options


class _PresetProduct(TensorProduct):
    """Base of preset products."""

    @classmethod
    def from_plan(
        cls, plan: Plan, internal_weights: bool | None = None, **options: Unpack[ProductOptions]
    ) -> TensorProduct:
        """Build a plain `TensorProduct`: a plan may break the preset's rule."""
        return TensorProduct.from_plan(plan, internal_weights, **options)


@compile_mode("script")
class FullyConnectedTensorProduct(_PresetProduct):
    r"""Every allowed path, every copy with every copy: :math:`z_w = \sum_{uv} w_{uvw}\, x_u \otimes y_v + \dots`

    Parameters are those of `TensorProduct` without ``instructions``.

    >>> FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "1o")
    FullyConnectedTensorProduct(2x0e+1x1o x 1x0e+1x1o -> 1x1o | 3 paths | 3 weights)
    """

    def __init__(
        self,
        irreps_in1: Irreps | str,
        irreps_in2: Irreps | str,
        irreps_out: Irreps | str,
        irrep_normalization: str | None = None,
        path_normalization: str | None = None,
        **options: Unpack[PresetOptions],
    ) -> None:
        planning, told = _split_into_plan_and_module_options(
            {**options, "path_normalization": path_normalization}, irrep_normalization
        )
        self._set_up_from_plan(fully_connected(irreps_in1, irreps_in2, irreps_out, **planning), **told)


class _PresetWithIrrepFilter(_PresetProduct):
    """Base of unweighted preset products, with ``filter_ir_out``."""

    _preset: ClassVar[Callable[..., Plan]]

    def __init__(
        self,
        irreps_in1: Irreps | str,
        irreps_in2: Irreps | str,
        filter_ir_out: Iterable[Any] | None = None,
        irrep_normalization: str | None = None,
        **options: Unpack[FilteringOptions],
    ) -> None:
        planning, told = _split_into_plan_and_module_options(options, irrep_normalization)
        self._set_up_from_plan(self._preset(irreps_in1, irreps_in2, filter_ir_out, **planning), **told)


@compile_mode("script")
class ElementwiseTensorProduct(_PresetWithIrrepFilter):
    r"""Copy by copy, without weights: :math:`z_u = x_u \otimes y_u`.

    >>> ElementwiseTensorProduct("5x1o + 5x1e", "10x1e", ["0e", "0o"])
    ElementwiseTensorProduct(5x1o+5x1e x 10x1e -> 5x0o+5x0e | 10 paths | 0 weights)
    """

    _preset = staticmethod(elementwise)


@compile_mode("script")
class FullTensorProduct(_PresetWithIrrepFilter):
    r"""Every copy with every copy, without weights: :math:`z_{uv} = x_u \otimes y_v`.

    >>> FullTensorProduct("2x1o", "3x0e")
    FullTensorProduct(2x1o x 3x0e -> 6x1o | 6 paths | 0 weights)
    """

    _preset = staticmethod(full)


@compile_mode("script")
class TensorSquare(_PresetProduct):
    """The product of a tensor with itself, each symmetric pair once.

    Without ``irreps_out``, outputs stay separate and unweighted; else the square is fully connected.

    >>> TensorSquare("1o")
    TensorSquare(1x1o -> 1x0e+1x2e | 2 paths | 0 weights)
    """

    def __init__(
        self,
        irreps_in: Irreps | str,
        irreps_out: Irreps | str | None = None,
        filter_ir_out: Iterable[Any] | None = None,
        irrep_normalization: str | None = None,
        **options: Unpack[FilteringOptions],
    ) -> None:
        planning, told = _split_into_plan_and_module_options(options, irrep_normalization)
        self._set_up_from_plan(tensor_square(irreps_in, irreps_out, filter_ir_out, **planning), **told)

    def _set_up_from_plan(self, plan: Plan, internal_weights: bool | None, **options: Any) -> None:
        super()._set_up_from_plan(plan, internal_weights, **options)
        self.irreps_in = plan.irreps_in1

    def forward(self, x: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Square of ``x (…, in)``; weights as in `TensorProduct.forward`."""
        if torch.jit.is_scripting():  # which knows no super()
            return self._forward_program(x, x, self._check_weight_in_script(weight))
        return super().forward(x, x, weight)

    def __repr__(self) -> str:
        ends = f"{self.irreps_in} -> {self.irreps_out.simplify()}"
        return f"{type(self).__name__}({ends} | {self._count_weighted_paths()} paths | {self.weight_numel} weights)"
