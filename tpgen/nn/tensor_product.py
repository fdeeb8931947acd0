"""Equivariant tensor products."""

# annotations are objects, not strings: TorchScript reads them

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from math import prod
from typing import Any, ClassVar, Optional

import torch
from e3nn import o3
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor, nn
from typing_extensions import Self, Unpack

from tpgen.base.errors import InputError, TpgenError
from tpgen.compiler.config import MODULE_FIELDS, Config, ModuleOptions, ProductOptions
from tpgen.emitter.leaf import record_leaf_call
from tpgen.emitter.streams import restoring_stream
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.nn.autocast import is_autocasting, run_without_autocast, widen_to_one_dtype
from tpgen.nn.checks import check_batches, check_operand, check_plan, check_weight, join_weights, refuse_unknown_options
from tpgen.nn.form_module import FormModule
from tpgen.planner.plan import Plan
from tpgen.planner.product import PRODUCT, make_plan


class _MissingProgram(nn.Module):
    def forward(self, y: Tensor, w: Tensor) -> Tensor:
        raise RuntimeError("this program was not written: construct the product with compile_right=True")


@compile_mode("script")
class TensorProduct(FormModule):
    r"""Equivariant tensor product of weighted paths, :math:`z = \sum_p \alpha_p\, w_p\, (x \otimes y)_p`, as e3nn's.

    An instruction couples two input segments to an output segment by a real Wigner 3j symbol; its mode pairs copies
    (docs/concepts.md).

    Parameters
    ----------
    irreps_in1, irreps_in2, irreps_out
        any values that `e3nn.o3.Irreps` takes.
    instructions
        tuples ``(i_in1, i_in2, i_out, mode, has_weight[, path_weight])``, mode one of ``uvw, uvu, uvv, uuw, uuu, uvuv,
        uvu<v, u<vw``.
    in1_var, in2_var, out_var
        variance of each entry of irreps (1 by default).
    irrep_normalization
        unit of variance 1: ``component`` (the default), ``norm`` or ``none``.
    path_normalization
        unit of equal weight in a sum: ``element`` (the default), ``path`` or ``none``.
    internal_weights
        whether the module owns weights; by default, if shared.
    shared_weights
        whether all rows share weights (the default).
    compile_left_right
        accepted as by e3nn, without effect.
    compile_right
        write `right`'s program at construction, not at first use.
    layout
        ``mul_ir`` (e3nn's: copies outside) or ``ir_mul`` (components outside), one for all or one per operand.
    strategy
        ``einsum``, ``grouped``, ``unrolled``, ``kernel`` or ``auto``; see `choice`.
    backend
        ``eager``, ``script``, ``inductor``, ``aot_eager`` or ``cudagraphs``; compiled at the first call.
    streams
        number of CUDA streams for independent paths (0: none).
    dynamic, fullgraph, mode
        arguments of `torch.compile`.
    max_bytes
        limit of a graph's memory beyond operands and results, kept by batches of rows.

    Raises
    ------
    PlanError
        names the instruction that breaks a rule.
    InputError
        for a wrong tensor.

    Example
    -------

    >>> product = TensorProduct("16x1o", "1x1o", "16x0e + 16x1e",
    ...                         [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", True)], shared_weights=False)
    >>> x, y = torch.randn(10, 48), torch.randn(10, 3)
    >>> product(x, y, torch.randn(10, product.weight_numel)).shape
    torch.Size([10, 64])
    """

    weight: Tensor
    output_mask: Tensor
    directions: ClassVar[dict[str, str]] = {"forward": "forward", "right": "right"}  # what each program emits

    def __init__(
        self,
        irreps_in1: Irreps | str,
        irreps_in2: Irreps | str,
        irreps_out: Irreps | str,
        instructions: Sequence[Sequence],
        in1_var: Sequence[float] | Tensor | None = None,
        in2_var: Sequence[float] | Tensor | None = None,
        out_var: Sequence[float] | Tensor | None = None,
        irrep_normalization: str | None = None,
        path_normalization: str | None = None,
        internal_weights: bool | None = None,
        shared_weights: bool | None = None,
        compile_left_right: bool = True,
        compile_right: bool = False,
        normalization: str | None = None,
        _specialized_code: bool | None = None,
        _optimize_einsums: bool | None = None,
        **options: Unpack[ModuleOptions],
    ) -> None:
        if normalization is not None:
            warnings.warn("normalization is deprecated, use irrep_normalization", DeprecationWarning, stacklevel=2)
            irrep_normalization = normalization
        plan = make_plan(
            irreps_in1,
            irreps_in2,
            irreps_out,
            instructions,
            in1_var=in1_var,  # type: ignore[arg-type]  # a tensor of numbers is a sequence of them
            in2_var=in2_var,  # type: ignore[arg-type]
            out_var=out_var,  # type: ignore[arg-type]
            irrep_normalization=irrep_normalization or "component",
            path_normalization=path_normalization or "element",
            shared_weights=shared_weights is None or shared_weights,
        )
        if shared_weights is False and internal_weights is None:
            internal_weights = False
        self._set_up_from_plan(plan, internal_weights, compile_right=compile_right, **options)

    @classmethod
    def from_plan(cls, plan: Plan, internal_weights: bool | None = None, **options: Unpack[ProductOptions]) -> Self:
        """Build the module of a plan, such as a preset's.

        >>> from tpgen.planner.presets import channelwise
        >>> TensorProduct.from_plan(channelwise("8x0e+8x1o", "0e+1o", "0e+1o"))
        TensorProduct(8x0e+8x1o x 1x0e+1x1o -> 16x0e+16x1o | 32 paths | 32 weights)
        """
        check_plan(plan, {PRODUCT: "tpgen.make_plan"})
        product = cls.__new__(cls)
        product._set_up_from_plan(plan, internal_weights, **options)
        return product

    def _set_up_from_plan(
        self,
        plan: Plan,
        internal_weights: bool | None,
        *,
        compile_right: bool = False,
        **options: Unpack[ModuleOptions],
    ) -> None:
        refuse_unknown_options(name for name in options if name not in MODULE_FIELDS)
        super().__init__()
        config = Config(**options)
        if internal_weights is None:
            internal_weights = plan.shared_weights and any(i.has_weight for i in plan.instructions)
        self._set_plan_attributes(plan, internal_weights, config.layout)
        self._add_parameter_or_empty_buffer("weight", torch.randn, self.weight_numel)
        self.irreps_in1, self.irreps_in2 = plan.irreps_in1, plan.irreps_in2
        self._in1_dim, self._in2_dim = plan.irreps_in1.dim, plan.irreps_in2.dim
        self.streams = config.streams
        self._set_config_and_generate_programs(config)
        if compile_right:
            self._right_program = self._make_program_module("right")

    # --- programs -----------------------------------------------------------------------------------------------

    def _generate_programs(self) -> None:
        super()._generate_programs()
        kernel = self.choice.strategy == "kernel" and self.backend != "script" and not self.streams
        self.kernel_text = describe(self.plan, self.layout) if kernel else ""
        right = self._modules.get("_right_program") or _MissingProgram()
        self._right_program = right if isinstance(right, _MissingProgram) else self._make_program_module("right")

    def _generate_right_program_if_missing(self) -> None:
        if isinstance(self._right_program, _MissingProgram):
            if torch.compiler.is_compiling():  # writing is no tensor code: torch.compile cannot trace it
                raise InputError(
                    "the program of right is not written yet, and torch.compile cannot trace the writing: "
                    "construct the product with compile_right=True, or call right once before"
                )
            self._right_program = self._make_program_module("right")

    # --- evaluation ---------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045 (TorchScript reads it)
        """Multiply ``x (…, in1)`` and ``y (…, in2)``, with broadcast; returns ``(…, out)``.

        ``weight`` is ``(numel,)``, or ``(…, numel)`` if not shared, or a list of one tensor per weighted instruction;
        given weights replace internal ones.
        """
        # Five routes, the narrowest first.  TorchScript must see no other.  The usual call is tried before anything is
        # looked at, since small products are overhead.  What an fx trace sees is one node.  Plain rows go to the
        # program unchecked; all else is checked and brought to one dtype first.
        if torch.jit.is_scripting():
            return self._forward_program(x, y, self._check_weight_in_script(weight))
        made = self._try_kernel(self.kernel_text, x, y, weight)
        if made is not None:
            return made
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and (weight is None or isinstance(weight, Tensor))):
            node = record_leaf_call(self, x, y, weight)
            if node is not None:
                return node
        w = self._check_weight_or_take_own(weight)
        if not torch.compiler.is_compiling() and self.are_valid_rows(x, y, w):
            return self._get_current_runner("forward")(x, y, w)
        x, y, w = self._check_and_convert_operands({"x": (x, self._in1_dim), "y": (y, self._in2_dim)}, w)
        return self._check_batches_and_run("forward", x, y, w)

    @torch.jit.export
    def right(self, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Product as a matrix on x: ``out = einsum("…i,…ik->…k", x, right(y))``.

        ``y`` is ``(…, in2)``, the result ``(…, in1, out)``; weights are those of `forward`.
        """
        if torch.jit.is_scripting():
            return self._right_program(y, self._check_weight_in_script(weight))
        self._generate_right_program_if_missing()
        w = self._check_weight_or_take_own(weight)
        y, w = self._check_and_convert_operands({"y": (y, self._in2_dim)}, w)
        return self._check_batches_and_run("right", y, w)

    def are_valid_rows(self, x: Tensor, y: Tensor, w: Tensor) -> bool:
        """Whether operands are 2-D rows of right sizes, dtype and device."""
        like = self.output_mask
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() == 2) or self.streams:
            return False
        rows = x.shape[0]
        return (
            x.shape[1] == self._in1_dim
            and y.shape == (rows, self._in2_dim)
            and (self.shared_weights or w.shape == (rows, self.weight_numel))
            and x.dtype == y.dtype == w.dtype == like.dtype
            and x.layout == y.layout == w.layout == torch.strided
            and x.device == y.device == w.device == like.device
            and not is_autocasting(like.device)
        )

    def _check_batches_and_run(self, direction: str, *operands: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():  # which may not know yet whether two sizes are equal
            check_batches(operands)
        return self._run_program(direction, *operands)

    def _run_program(self, direction: str, *operands: Any) -> Tensor:
        if self.streams:
            with restoring_stream(operands[0].device):
                return self._get_current_runner(direction)(*operands)
        return run_without_autocast(self._get_current_runner(direction), *operands)

    def _check_and_convert_operands(self, operands_and_dims: dict[str, tuple[Tensor, int]], w: Tensor) -> list[Tensor]:
        like = self.output_mask
        operands_and_dims = {
            name: (as_floating_tensor(name, x, like.dtype), dim) for name, (x, dim) in operands_and_dims.items()
        }
        w = as_floating_tensor("weight", w, like.dtype)
        if not self.weight_numel and (w.dtype, w.device) != (like.dtype, like.device):
            w = like.new_empty(w.shape)  # no numbers: they fit as they are
        dtype, (w, *operands) = widen_to_one_dtype(like, w, *(x for x, _ in operands_and_dims.values()))
        for (name, (_, dim)), x in zip(operands_and_dims.items(), operands, strict=True):
            irreps = self.irreps_in1 if name == "x" else self.irreps_in2
            check_operand(name, x, dim, irreps, dtype, like.device)
        if self.weight_numel:
            check_operand("weight", w, self.weight_numel, None, dtype, like.device)
        return [*operands, w]

    # --- weights ------------------------------------------------------------------------------------------------

    def _missing_weights_message(self) -> str:
        rows = "" if self.shared_weights else " for each row"
        return (
            "this product has no weights of its own (internal_weights=False): "
            f"give weight with {self.weight_numel} entries{rows}"
        )

    def _check_weight_or_take_own(self, weight: Tensor | Sequence[Tensor] | None) -> Tensor:
        if weight is None:
            return self._choose_given_or_own_value(None, self.weight, self.weight_numel)
        if not isinstance(weight, Tensor):
            weight = join_weights(weight, self.plan)
        check_weight(weight, self.weight_numel, self.shared_weights, self.internal_weights)
        return weight

    def _check_weight_in_script(self, weight: Optional[Tensor]) -> Tensor:  # noqa: UP045
        if weight is not None and self.shared_weights:
            assert weight.dim() == 1, "weights are shared by all rows: give one axis"
        elif weight is not None:
            assert weight.dim() > 1, "weights are not shared: give a batch dimension"
        return self._choose_given_or_own_value_in_script(weight, self.weight, self.weight_numel)

    # --- a well-behaved module ------------------------------------------------------------------------------------

    def visualize(
        self, weight: Tensor | None = None, plot_weight: bool = True, aspect_ratio: float | str = 1, ax: Any = None
    ) -> tuple[Any, Any]:
        """Draw the paths with matplotlib, as e3nn does; return ``(figure, axes)``.

        With ``plot_weight``, available weights colour the paths.
        """
        if aspect_ratio != "auto" and not isinstance(aspect_ratio, (int, float)):
            raise TpgenError(f"aspect_ratio must be a number or 'auto', got {aspect_ratio!r}")
        if find_spec("matplotlib") is None:
            raise TpgenError("drawing a product needs matplotlib; install it with: pip install matplotlib")
        weight = self.weight if weight is None and self.internal_weights else weight
        sizes = None if weight is None or not plot_weight else weight.detach().float()  # numpy has no bfloat16
        coloured = sizes is not None and bool(sizes.any())
        return o3.TensorProduct.visualize(self, sizes if coloured else None, coloured, aspect_ratio, ax)

    def meta_operands(self, rows: int, nodes: int | None = None) -> list[Tensor]:
        """A call's operands on the meta device."""
        self._refuse_nodes(nodes)
        return [
            self._meta_tensor_of_own_dtype(rows, n) for n in (self._in1_dim, self._in2_dim)
        ] + self._make_meta_weights(rows)

    def _make_meta_weights(self, rows: int) -> list[Tensor]:
        if self.internal_weights or not self.weight_numel:
            return []
        return [self._meta_tensor_of_own_dtype(*(() if self.shared_weights else (rows,)), self.weight_numel)]

    def __repr__(self) -> str:
        ends = f"{self.irreps_in1.simplify()} x {self.irreps_in2.simplify()} -> {self.irreps_out.simplify()}"
        return f"{type(self).__name__}({ends} | {self._count_weighted_paths()} paths | {self.weight_numel} weights)"

    def _count_weighted_paths(self) -> int:
        return sum(prod(i.path_shape) for i in self.instructions)

    def __prepare_scriptable__(self) -> "TensorProduct":
        self._generate_right_program_if_missing()
        return self

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        for key in [k for k in state_dict if k.startswith(prefix + "_compiled_main_")]:  # couplings that e3nn stores
            del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *args)
