"""`Linear`: a planned, emitted and compiled equivariant linear layer, a drop-in for `e3nn.o3.Linear`.

Annotations here are objects, not strings: TorchScript reads them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Optional

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor, nn

from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.backends import Runner, check_backend
from tpgen.compiler.closed_form import run_form
from tpgen.compiler.config import MODULE_FIELDS, Choice, Config
from tpgen.emitter.emit import emit_form
from tpgen.errors import InputError, PlanError
from tpgen.form.linear import linear_form, split_linear_layout
from tpgen.nn.channels import Pieces, merge_channels, split_channels
from tpgen.nn.checks import (
    autocasting,
    check_broadcast,
    check_index,
    check_operand,
    check_options,
    check_parameter,
    widest_dtype,
)
from tpgen.nn.state import output_mask_of, without_programs
from tpgen.planner.linear import LinearPlan, make_linear_plan
from tpgen.planner.plan import segments


@compile_mode("script")
class Linear(nn.Module):
    r"""Equivariant linear layer, :math:`z_{w,i} = \sum_p \alpha_p \sum_u W_p[u, w]\, x_{u,i} + b_w`.

    Each instruction joins a segment of the input to one of the output with the same irrep, by a matrix over copies.

    Parameters
    ----------
    irreps_in, irreps_out
        `e3nn.o3.Irreps`, or anything its constructor takes.
    f_in, f_out
        numbers of channels: operands are ``(…, f_in, in)`` and ``(…, f_out, out)`` then, and weights join every
        channel with every one.
    internal_weights, shared_weights
        whether the module owns its weights and biases; whether all rows use the same.
    instructions
        tuples ``(i_in, i_out)``; all that join equal irreps where left out.
    biases
        whether scalar outputs (0e) have biases: one flag for all, or one for each entry of ``irreps_out``.
    path_normalization
        ``element`` or ``path``.
    layout
        ``mul_ir`` (e3nn's: copies outside) or ``ir_mul`` (components outside), one name or one for each end.
    strategy
        ``einsum``, ``grouped``, ``unrolled``, ``kernel`` or ``auto``; `choice` says what was taken and why.
    backend
        ``eager``, ``script``, ``inductor``, ``aot_eager`` or ``cudagraphs``; compiled at the first call.
    dynamic, fullgraph, mode
        passed to `torch.compile` by the backends that use it.

    Raises
    ------
    PlanError
        names the instruction that breaks a rule.
    InputError
        at a call, where a tensor does not fit.

    Example
    -------
    >>> linear = Linear("8x0e + 4x1o", "16x0e + 4x1o", biases=True)
    >>> linear(torch.randn(10, 20)).shape
    torch.Size([10, 28])
    >>> linear
    Linear(8x0e+4x1o -> 16x0e+4x1o | 144 weights)
    """

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
        irreps_in: Any,
        irreps_out: Any,
        *,
        f_in: int | None = None,
        f_out: int | None = None,
        internal_weights: bool | None = None,
        shared_weights: bool | None = None,
        instructions: Sequence[Sequence[int]] | None = None,
        biases: bool | Sequence[bool] = False,
        path_normalization: str = "element",
        _optimize_einsums: bool | None = None,
        **options: Any,
    ) -> None:
        shared = shared_weights is None or shared_weights
        plan = make_linear_plan(irreps_in, irreps_out, instructions, biases, f_in, f_out, path_normalization, shared)
        self._setup(plan, internal_weights, **options)

    @classmethod
    def from_plan(cls, plan: LinearPlan, internal_weights: bool | None = None, **options: Any) -> "Linear":
        """The module of a plan.

        >>> Linear.from_plan(make_linear_plan("2x0e", "3x0e"))
        Linear(2x0e -> 3x0e | 6 weights)
        """
        linear = cls.__new__(cls)
        linear._setup(plan, internal_weights, **options)
        return linear

    def _setup(
        self,
        plan: LinearPlan,
        internal_weights: bool | None,
        **options: Any,
    ) -> None:
        check_options((name for name in options if name not in _FIELDS), _OPTIONS)
        super().__init__()
        self.plan = plan
        self.irreps_in, self.irreps_out = plan.irreps_in, plan.irreps_out
        self.instructions = list(plan.instructions)
        self.weight_numel, self.bias_numel = plan.weight_numel, plan.bias_numel
        self.shared_weights = plan.shared_weights
        self.internal_weights = plan.shared_weights if internal_weights is None else internal_weights
        if self.internal_weights and not plan.shared_weights:
            raise PlanError(
                "internal weights are the same for every row: set shared_weights=True, or internal_weights=False"
            )
        config = Config(**options)
        check_backend(config)
        self._config = config  # as asked: what `auto` comes to follows the module to other dtypes and devices
        self.layout = split_linear_layout(config.layout)
        self.backend = config.backend
        self._shapes(plan)
        self._parameters_of(plan)
        self.choice: Choice = self._choose()
        self._write_program()
        self.register_state_dict_post_hook(without_programs)

    def _shapes(self, plan: LinearPlan) -> None:
        """What a call needs to know, as TorchScript can read it."""
        self._in_dim, self._out_dim = plan.irreps_in.dim, plan.irreps_out.dim
        self._channels = plan.f_in is not None
        self._f_out = plan.f_out or 1
        before = [[ir.dim if layout == "ir_mul" else 1 for _, ir in irreps] for irreps, layout in self._ends()]
        self._in_pieces, self._out_pieces = (
            [(mul_ir.dim, n) for mul_ir, n in zip(irreps, found, strict=True)]
            for (irreps, _), found in zip(self._ends(), before, strict=True)
        )
        live = [path.weight.shape for path in plan.paths]
        self._weight_pieces = [(u * w, u) for u, w in live]
        self._merged_weight_pieces = [(u * w * self._f_out, 1) for u, w in live]

    def _ends(self) -> tuple[tuple[Any, str], tuple[Any, str]]:
        return (self.irreps_in, self.layout[0]), (self.irreps_out, self.layout[1])

    def _parameters_of(self, plan: LinearPlan) -> None:
        pair = () if plan.f_in is None else (plan.f_in, plan.f_out)
        self._own("weight", torch.randn(*pair, self.weight_numel) if self.weight_numel else None)
        self._own("bias", torch.zeros(*pair[1:], self.bias_numel) if self.bias_numel else None)
        self.register_buffer("output_mask", output_mask_of(plan))
        biased = [torch.arange(s.start, s.stop) for s in segments(plan.irreps_out) if plan.biases[s.index]]
        self.register_buffer("_bias_index", torch.cat([torch.empty(0, dtype=torch.int64), *biased]), persistent=False)

    def _own(self, name: str, values: Tensor | None) -> None:
        """A parameter where weights are internal, else an empty buffer: TorchScript wants something to be there."""
        if values is None or not self.internal_weights:
            self.register_buffer(name, torch.empty(0))
        else:
            self.register_parameter(name, nn.Parameter(values))

    # --- programs -----------------------------------------------------------------------------------------------

    def _choose(self) -> Choice:
        like = self.output_mask
        return choose_strategy(self.plan.flat, replace(self._config, dtype=like.dtype, device=str(like.device)))

    def _write_program(self) -> None:
        form, strategy = linear_form(self.plan, self.layout), self.choice.strategy
        program = emit_form(form, strategy, title=f"forward of {self.plan.digest}, {strategy}").module()
        self._forward_program = program.to(device=self.output_mask.device, dtype=self.output_mask.dtype)
        self._compiled: Runner | None = None

    def _runner(self) -> Runner:
        if self.backend == "eager":
            return self._forward_program
        if self._compiled is None:
            self._compiled = run_form(
                linear_form(self.plan, self.layout),
                self._forward_program,
                replace(self._config, strategy=self.choice.strategy),
                self.output_mask,
            )
        return self._compiled

    # --- evaluation ---------------------------------------------------------------------------------------------

    def forward(self, features: Tensor, weight: Optional[Tensor] = None, bias: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """The layer at ``features (…, in)``, or ``(…, f_in, in)`` where there are channels; returns ``(…, out)``.

        ``weight`` is ``(numel,)``, or ``(…, numel)`` where weights are not shared; with channels ``(f_in, f_out)``
        stand before ``numel``.  ``bias`` is ``(bias_numel,)`` in the same way, with ``f_out`` before.  Both may be left
        out where weights are internal; where they are given they take their place for this call.
        """
        if torch.jit.is_scripting():
            own_w = self._scripted(weight, self.weight, self.weight_numel)
            own_b = self._scripted(bias, self.bias, self.bias_numel)
            return self._biased(self._apart(self._forward_program(*self._together(features, own_w))), own_b)
        w, b = self._given(weight, self.weight, self.weight_numel), self._given(bias, self.bias, self.bias_numel)
        x, w, b = self._fit(features, w, b)
        if self._channels:
            x, w = self._together(x, w)
        if autocasting(x.device):  # in the widest of their dtypes already: round nothing inside
            with torch.autocast(x.device.type, enabled=False):
                return self._biased(self._apart(self._runner()(x, w)), b)
        return self._biased(self._apart(self._runner()(x, w)), b)

    def _scripted(self, value: Optional[Tensor], own: Tensor, numel: int) -> Tensor:  # noqa: UP045
        if value is None:
            if numel > 0 and not self.internal_weights:
                raise RuntimeError("this layer has no weights and biases of its own: give weight, and bias")
            return own
        assert value.size(-1) == numel, "weight or bias has a wrong number of entries"
        return value

    def _given(self, value: Tensor | None, own: Tensor, numel: int) -> Tensor:
        if value is None and numel > 0 and not self.internal_weights:
            biases = f" and bias with {self.bias_numel}" if self.bias_numel else ""
            raise InputError(
                "this layer has no weights and biases of its own (internal_weights=False): "
                f"give weight with {self.weight_numel} entries{biases}"
            )
        if value is not None and not isinstance(value, Tensor):
            raise InputError(f"weight and bias must be tensors, got {type(value).__name__}")
        return own if value is None else value

    def _together(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Channels of x and of the weights as copies."""
        if self._channels:
            x = merge_channels(x, self._in_pieces)
            if w.size(-1) > 0:
                w = merge_channels(merge_channels(w, self._weight_pieces), self._merged_weight_pieces)
            else:  # no weights: none of these axes is one of rows
                w = w.new_empty(w.shape[:-3] + (0,))
        return x, w

    def _apart(self, out: Tensor) -> Tensor:
        return split_channels(out, self._f_out, self._out_pieces) if self._channels else out

    def _biased(self, out: Tensor, bias: Tensor) -> Tensor:
        if self.bias_numel == 0:
            return out
        everywhere = torch.zeros(bias.shape[:-1] + (self._out_dim,), dtype=bias.dtype, device=bias.device)
        return out + everywhere.index_add(-1, self._bias_index, bias)

    def _fit(self, x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Check the tensors of a call; under autocast bring them to one dtype."""
        like, plan = self.output_mask, self.plan
        dtype = like.dtype
        if autocasting(like.device):
            dtype = widest_dtype(like, x, w, b)
            x, w, b = x.to(dtype), w.to(dtype), b.to(dtype)
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
                check_parameter(name, value, shape, self.shared_weights, dtype, like.device)
        if not self.shared_weights and not torch.compiler.is_compiling():
            axes = 1 + len(pair)
            batches = [x.shape[: x.dim() - max(1, axes - 1)], w.shape[: w.dim() - axes]]
            check_broadcast({"features": x, "weight": w}, batches)
            if self.bias_numel:
                batches[1] = b.shape[: b.dim() - max(1, axes - 1)]
                check_broadcast({"features": x, "bias": b}, batches)
        return x, w, b

    # --- weights ------------------------------------------------------------------------------------------------

    def weight_view_for_instruction(self, instruction: int, weight: Tensor | None = None) -> Tensor:
        """View of the weights of one instruction, in its ``path_shape`` after batch dimensions and channels.

        Raises `InputError` for an instruction that is a bias.
        """
        index = check_index(instruction, len(self.instructions))
        if index >= len(self.plan.weight_slices):
            raise InputError(f"instruction {index} is a bias, {self.instructions[index]}: it has no weights to view")
        where = self.plan.weight_slices[index]
        flat = self._given(weight, self.weight, self.weight_numel)
        return flat[..., where.start : where.stop].view(flat.shape[:-1] + where.shape)

    def weight_views(self, weight: Tensor | None = None, yield_instruction: bool = False) -> Iterator[Any]:
        """Views of the weights of every instruction, in order.

        With ``yield_instruction`` yields ``(index, instruction, view)``.
        """
        for index in range(len(self.plan.weight_slices)):
            view = self.weight_view_for_instruction(index, weight)
            yield (index, self.instructions[index], view) if yield_instruction else view

    # --- a well-behaved module ------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.irreps_in} -> {self.irreps_out} | {self.weight_numel} weights)"

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear":
        super()._apply(fn, recurse)
        self._compiled = None  # a scripted program holds the constants it was made with
        choice = self._choose()
        if choice != self.choice:
            self.choice = choice
            self._write_program()
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Plan, options and tensors; the program is written again where the state is restored."""
        state = {name: value for name, value in self.__dict__.items() if name != "_compiled"}
        state["_modules"] = {name: m for name, m in self._modules.items() if name != "_forward_program"}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._write_program()


_FIELDS = tuple(name for name in MODULE_FIELDS if name != "streams")
_OPTIONS = ("internal_weights", *_FIELDS)
