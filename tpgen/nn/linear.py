"""Equivariant linear layers."""

# annotations are objects, not strings: TorchScript reads them

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Optional

import numpy as np
import torch
from e3nn.o3 import Irreps
from e3nn.util.jit import compile_mode
from torch import Tensor
from typing_extensions import Unpack

from tpgen.base.errors import InputError, PlanError
from tpgen.compiler.config import MODULE_FIELDS, Config, LinearOptions
from tpgen.emitter.leaf import record_leaf_call
from tpgen.kernels.rows import ELEMENTS
from tpgen.kernels.runtime.call import FORWARD, FormCall
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.nn.autocast import run_without_autocast, widen_to_one_dtype
from tpgen.nn.channels import Pieces, merge_channels, split_channels
from tpgen.nn.checks import (
    check_broadcast,
    check_num_elements,
    check_operand,
    check_parameter,
    check_plan,
    check_range,
    parse_element_index,
    refuse_unknown_options,
)
from tpgen.nn.form_module import FormModule
from tpgen.nn.plain_tensors import is_plain_tensor
from tpgen.planner.linear import LINEAR, make_linear_plan
from tpgen.planner.plan import ELEMENT, Plan, list_segments


@compile_mode("script")
class Linear(FormModule):
    r"""Equivariant linear layer, :math:`z_{w,i} = \sum_p \alpha_p \sum_u W_p[u, w]\, x_{u,i} + b_w`, as e3nn's.

    An instruction maps an input segment to an output segment of equal irrep by a matrix over copies.

    Parameters
    ----------
    irreps_in, irreps_out
        irreps of input and output.
    f_in, f_out
        numbers of channels, fully mixed: features are ``(…, f_in, in)`` and results ``(…, f_out, out)``.
    num_elements
        number of elements, each with own weights and biases; a call gives each row's element.
    instructions
        tuples ``(i_in, i_out)``; by default all pairs of equal irreps.
    biases
        whether scalar outputs (0e) have biases: one flag, or one per entry of ``irreps_out``.
    path_normalization
        ``element`` or ``path``.
    internal_weights, shared_weights, layout, strategy, backend, dynamic, fullgraph, mode
        as for `TensorProduct`, also for biases.

    Raises
    ------
    PlanError
        names the instruction that breaks a rule.
    InputError
        for a wrong tensor.

    Example
    -------
    >>> linear = Linear("8x0e + 4x1o", "16x0e + 4x1o", biases=True)
    >>> linear(torch.randn(10, 20)).shape
    torch.Size([10, 28])
    >>> linear
    Linear(8x0e+4x1o -> 16x0e+4x1o | 144 weights)
    >>> by_element = Linear("8x0e", "4x0e", num_elements=3)
    >>> by_element(torch.randn(5, 8), index=torch.tensor([0, 2, 2, 1, 0])).shape
    torch.Size([5, 4])
    """

    __constants__: ClassVar[list[str]] = ["_by_element"]  # TorchScript leaves out what it rules out
    num_elements: Optional[int] = None  # noqa: UP045
    _by_element = False

    weight: Tensor
    bias: Tensor
    output_mask: Tensor
    _bias_index: Tensor
    _in_pieces: Pieces
    _out_pieces: Pieces
    _weight_pieces: Pieces
    _merged_weight_pieces: Pieces

    def __init__(
        self,
        irreps_in: Irreps | str,
        irreps_out: Irreps | str,
        *,
        f_in: int | None = None,
        f_out: int | None = None,
        internal_weights: bool | None = None,
        shared_weights: bool | None = None,
        instructions: Sequence[Sequence[int]] | None = None,
        biases: bool | Sequence[bool] = False,
        path_normalization: str = "element",
        num_elements: int | None = None,
        _optimize_einsums: bool | None = None,
        **options: Unpack[LinearOptions],
    ) -> None:
        shared: bool | str = shared_weights is None or shared_weights
        if isinstance(shared_weights, str) or (num_elements is not None and shared_weights is not None):
            raise PlanError(
                "rows of an element share weights where num_elements says how many there are: leave shared_weights out"
            )
        if num_elements is not None:
            shared = ELEMENT
        plan = make_linear_plan(irreps_in, irreps_out, instructions, biases, f_in, f_out, path_normalization, shared)
        self._set_up_from_plan(plan, internal_weights, num_elements, **options)

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        internal_weights: bool | None = None,
        num_elements: int | None = None,
        **options: Unpack[LinearOptions],
    ) -> "Linear":
        """Build the module of a plan; internal weights of elements need ``num_elements``.

        >>> Linear.from_plan(make_linear_plan("2x0e", "3x0e"))
        Linear(2x0e -> 3x0e | 6 weights)
        """
        check_plan(plan, {LINEAR: "make_linear_plan"})
        linear = cls.__new__(cls)
        linear._set_up_from_plan(plan, internal_weights, num_elements, **options)
        return linear

    def _set_up_from_plan(
        self,
        plan: Plan,
        internal_weights: bool | None,
        num_elements: int | None,
        **options: Unpack[LinearOptions],
    ) -> None:
        refuse_unknown_options((name for name in options if name not in _FIELDS), _OPTIONS)
        super().__init__()
        config = Config(**options)
        by_element = self._by_element = plan.by_element
        own = internal_weights
        if own is None:
            own = num_elements is not None if by_element else plan.shared_weights
        if num_elements is not None:
            check_num_elements(num_elements)
        told = num_elements is not None
        if (told and not by_element) or (by_element and own and not told):
            raise PlanError("num_elements: give it for a plan with weights of elements that the layer is to own")
        self.num_elements = num_elements
        self._set_plan_attributes(plan, own, config.layout)
        self.irreps_in, self.bias_numel = plan.irreps_in, plan.bias_numel
        self._set_dims_and_sizes_of_segments(plan)
        self._add_weight_and_bias(plan)
        self._set_config_and_generate_programs(config)

    def _set_dims_and_sizes_of_segments(self, plan: Plan) -> None:
        self._in_dim, self._out_dim = plan.irreps_in.dim, plan.irreps_out.dim
        self._channels = plan.f_in is not None
        self._f_out = plan.f_out or 1
        self._in_pieces, self._out_pieces = (
            [(mul_ir.dim, mul_ir.ir.dim if layout == "ir_mul" else 1) for mul_ir in irreps]
            for irreps, layout in zip((plan.irreps_in, plan.irreps_out), self.layout, strict=True)
        )
        live = [path.weight.shape for path in plan.paths if path.weight]
        self._weight_pieces = [(u * w, u) for u, w in live]
        self._merged_weight_pieces = [(u * w * self._f_out, 1) for u, w in live]

    def _add_weight_and_bias(self, plan: Plan) -> None:
        pair = () if plan.f_in is None else (plan.f_in, plan.f_out)
        elements = (self.num_elements,) if self._by_element else ()
        self._add_parameter_or_empty_buffer("weight", torch.randn, *elements, *pair, self.weight_numel)
        self._add_parameter_or_empty_buffer("bias", torch.zeros, *elements, *pair[1:], self.bias_numel)
        biased = [np.arange(s.start, s.stop) for s in list_segments(plan.irreps_out) if plan.biases[s.index]]
        self._register_exact_constants({"_bias_index": np.concatenate([np.zeros(0, dtype=np.int64), *biased])})

    # --- programs -----------------------------------------------------------------------------------------------

    def _generate_programs(self) -> None:
        super()._generate_programs()
        alone = not self._channels and self.bias_numel == 0
        kernel = alone and self.choice.strategy == "kernel" and self.backend != "script"
        self.kernel_text = describe(self.plan, self.layout) if kernel else ""

    def meta_operands(self, rows: int, nodes: int | None = None) -> list[Tensor]:
        """A call's operands and element index on the meta device."""
        self._refuse_nodes(nodes)
        pair = () if self.plan.f_in is None else (self.plan.f_in, self.plan.f_out or 1)
        batch = (self.num_elements or 1,) if self._by_element else () if self.shared_weights else (rows,)
        given = [(*batch, *pair, self.weight_numel), (*batch, *pair[1:], self.bias_numel)]
        shapes = [(rows, *pair[:1], self._in_dim), *(() if self.internal_weights else given)]
        index = [torch.empty(rows, dtype=torch.int64, device="meta")] * self._by_element
        return [*(self._meta_tensor_of_own_dtype(*shape) for shape in shapes), *index]

    def inspection_options(self) -> dict[str, Any]:
        return {**super().inspection_options(), **({"elements": self.num_elements or 1} if self._by_element else {})}

    def call_on_operands(self, *operands: Tensor) -> Tensor:
        """Call the layer with operands, the element index last."""
        return self(*operands[:-1], index=operands[-1]) if self._by_element else self(*operands)

    # --- evaluation ---------------------------------------------------------------------------------------------

    def forward(
        self,
        features: Tensor,
        weight: Optional[Tensor] = None,  # noqa: UP045
        bias: Optional[Tensor] = None,  # noqa: UP045
        index: Optional[Tensor] = None,  # noqa: UP045
    ) -> Tensor:
        """Apply the layer to ``features (…, in)``, or ``(…, f_in, in)`` with channels; returns ``(…, out)``.

        ``weight`` is ``(numel,)``, or ``(…, numel)`` if not shared, with ``(f_in, f_out)`` before ``numel`` for
        channels.  ``bias`` is ``(bias_numel,)`` alike, with ``f_out`` before.  Both replace internal weights.  With
        elements, both begin with the number of elements, and ``index`` is each row's element: int64 ``(…,)`` or, except
        in TorchScript, one-hot ``(rows, elements)``.
        """
        if torch.jit.is_scripting():
            own_w = self._choose_given_or_own_value_in_script(weight, self.weight, self.weight_numel)
            own_b = self._choose_given_or_own_value_in_script(bias, self.bias, self.bias_numel)
            x, w = self._merge_channels_of_operands(features, own_w)
            if self._by_element:  # alone, so that TorchScript can rule it out
                assert index is not None, "index: say the element of every row"
                assert index.dtype == torch.int64 and index.shape == x.shape[:-1], "index: must be int64, one a row"  # noqa: PT018
                rows = self._forward_program(x.reshape(-1, x.size(-1)), w, index.reshape(-1))
                return self._add_bias(
                    self._split_channels_of_output(rows.reshape(list(index.shape) + [rows.size(-1)])), own_b, index
                )
            else:  # noqa: RET505
                assert index is None, "index: this layer has no elements"
                return self._add_bias(self._split_channels_of_output(self._forward_program(x, w)), own_b)
        made = self._try_layer_kernel(features, weight, bias, index)
        if made is not None:
            return made
        if not (isinstance(features, Tensor) and (weight is None or isinstance(weight, Tensor))):
            node = record_leaf_call(self, features, weight, bias, index)
            if node is not None:
                return node
        w, b = self._check_weight_or_take_own(weight), self._choose_given_or_own_value(bias, self.bias, self.bias_numel)
        x, w, b = self._check_and_convert_operands(features, w, b)
        elements = self._parse_element_index(x, w, b, index)
        x, w = self._merge_channels_of_operands(x, w)
        return run_without_autocast(self._apply_program_and_bias, x, w, b, *elements)

    def _try_layer_kernel(self, features: Tensor, weight: Any, bias: Any, index: Any = None) -> Optional[Tensor]:  # noqa: UP045
        if torch.compiler.is_compiling() or not self.kernel_text:
            return None
        biased = bias is not None and not (isinstance(bias, Tensor) and bias.numel() == 0)
        if biased or not is_plain_tensor(features) or features.dim() != 2:
            return None
        none = features.new_empty(len(features), 0)
        if not self._by_element:
            return None if index is not None else self._try_kernel(self.kernel_text, features, none, weight)
        own = self._parameters.get("weight")
        if weight is not None or own is None or not (isinstance(index, Tensor) and index.dim() == 1):
            return None
        call = FormCall((features, none, own), (index,), self.kernel_text, FORWARD, (ELEMENTS,))
        made = forms.compute_and_record_in_cpp(call)
        return made[0] if made else None

    def _apply_program_and_bias(self, x: Tensor, w: Tensor, b: Tensor, *index: Tensor) -> Tensor:
        if not index:
            return self._add_bias(self._split_channels_of_output(self._get_current_runner("forward")(x, w)), b)
        batch = x.shape[:-1]
        rows = self._get_current_runner("forward")(x.reshape(-1, x.shape[-1]), w, *index)
        return self._add_bias(
            self._split_channels_of_output(rows.reshape(*batch, rows.shape[-1])), b, index[0].reshape(batch)
        )

    def _count_elements(self, w: Tensor, b: Tensor) -> int:
        return self.num_elements or max([x.shape[0] for x in (w, b) if x.dim() > 1], default=1)

    def _parse_element_index(self, x: Tensor, w: Tensor, b: Tensor, index: Any) -> tuple[Tensor, ...]:
        # the element of every row, on one axis, where there are elements
        if not self._by_element:
            if index is not None:
                raise InputError("index: this layer has no elements: leave it out, or construct it with num_elements")
            return ()
        count, batch = self._count_elements(w, b), x.shape[: x.dim() - 1 - self._channels]
        if index is None:
            raise InputError(f"index: weights of {count} elements need the element of every row")
        if isinstance(index, Tensor) and index.dtype == torch.int64 and index.shape == batch:
            index = index.reshape(-1)
        index = parse_element_index("index", index, count, prod(batch), "features")
        if self.choice.strategy != "kernel" or not self.weight_numel:  # a kernel looks by itself
            check_range("index", index, count, noun="elements")
        return (index,)

    def _merge_channels_of_operands(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        if self._by_element and w.size(-1) == 0:
            w = w.new_empty([0])
        if self._channels:
            x = merge_channels(x, self._in_pieces)
            if w.size(-1) > 0:
                w = merge_channels(merge_channels(w, self._weight_pieces), self._merged_weight_pieces)
            else:  # no weights: none of these axes is one of rows
                w = w.new_empty(w.shape[:-3] + (0,))
        return x, w

    def _split_channels_of_output(self, out: Tensor) -> Tensor:
        return split_channels(out, self._f_out, self._out_pieces) if self._channels else out

    def _add_bias(self, out: Tensor, bias: Tensor, index: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        if self.bias_numel == 0:
            return out
        if index is not None:
            bias = bias.index_select(0, index.reshape(-1)).reshape(index.shape + bias.shape[1:])
        everywhere = torch.zeros(bias.shape[:-1] + (self._out_dim,), dtype=bias.dtype, device=bias.device)
        return out + everywhere.index_add(-1, self._bias_index, bias)

    def _check_and_convert_operands(self, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        like, plan = self.output_mask, self.plan
        named = {"features": x, "weight": w, "bias": b}
        x, w, b = (as_floating_tensor(name, value, like.dtype) for name, value in named.items())
        dtype, (x, w, b) = widen_to_one_dtype(like, x, w, b)
        check_operand("features", x, self._in_dim, self.irreps_in, dtype, like.device, "layer")
        if plan.f_in is not None and (x.dim() < 2 or x.shape[-2] != plan.f_in):
            raise InputError(
                f"features: this layer has channels, so the shape must be (…, {plan.f_in}, {self._in_dim}), "
                f"got {tuple(x.shape)}"
            )
        pair = () if plan.f_in is None else (plan.f_in, plan.f_out)
        for name, value, shape in (
            ("weight", w, (*pair, self.weight_numel)),
            ("bias", b, (*pair[1:], self.bias_numel)),
        ):
            if value.numel() or shape[-1]:
                sets = (self._count_elements(w, b),) if self._by_element else ()
                check_parameter(name, value, (*sets, *shape), self.shared_weights, dtype, like.device)
        if not self.shared_weights and not torch.compiler.is_compiling():
            axes = 1 + len(pair)
            batches = [x.shape[: x.dim() - max(1, axes - 1)], w.shape[: w.dim() - axes]]
            check_broadcast({"features": x, "weight": w}, batches)
            if self.bias_numel:
                batches[1] = b.shape[: b.dim() - max(1, axes - 1)]
                check_broadcast({"features": x, "bias": b}, batches)
        return x, w, b

    # --- weights ------------------------------------------------------------------------------------------------

    def _missing_weights_message(self) -> str:
        biases = f" and bias with {self.bias_numel}" if self.bias_numel else ""
        return (
            "this layer has no weights and biases of its own (internal_weights=False): "
            f"give weight with {self.weight_numel} entries{biases}"
        )

    def _check_weight_or_take_own(self, weight: Any) -> Tensor:
        return self._choose_given_or_own_value(weight, self.weight, self.weight_numel)

    def __repr__(self) -> str:
        elements = f", {self.num_elements} elements" if self.num_elements else ""
        return f"{type(self).__name__}({self.irreps_in} -> {self.irreps_out} | {self.weight_numel} weights{elements})"


_FIELDS = tuple(name for name in MODULE_FIELDS if name != "streams")
_OPTIONS = ("internal_weights", *_FIELDS)
