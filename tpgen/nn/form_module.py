"""Base of products and linear layers."""

# annotations are objects, not strings: TorchScript reads them

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from math import prod
from typing import Any, ClassVar, Optional

import numpy as np
import torch
from torch import Tensor, nn

from tpgen.base.errors import InputError, PlanError
from tpgen.compiler.backends import Runner
from tpgen.compiler.config import Config
from tpgen.compiler.run import make_form_runner
from tpgen.emitter.emit import DIRECTIONS, Emission, emit_plan
from tpgen.form.form import expand_layout
from tpgen.kernels.rows import EDGES, RowRules
from tpgen.kernels.runtime.call import FORWARD, FormCall
from tpgen.kernels.runtime.forms import forms
from tpgen.nn.planned import PlannedModule
from tpgen.planner.plan import Plan


class FormModule(PlannedModule):
    """Base of modules that run a planned bilinear form, with all weights in one tensor."""

    output_mask: Tensor
    layout: tuple[str, ...]
    instructions: list[Any]
    streams: int = 0
    rest = rest_of_gathers = 0  # calls in a converted network until its rows, or those gathered of them, may wait again
    _programs: ClassVar[tuple[str, ...]] = ("_forward_program", "_right_program")
    _place: ClassVar[str] = "output_mask"
    _graph: ClassVar[str] = "grouped"

    def _missing_weights_message(self) -> str:
        raise NotImplementedError

    def _check_weight_or_take_own(self, weight: Tensor | Sequence[Tensor] | None) -> Tensor:
        raise NotImplementedError

    # --- construction -------------------------------------------------------------------------------------------

    def _set_plan_attributes(self, plan: Plan, internal_weights: bool, layout: str | tuple[str, ...]) -> None:
        if internal_weights and not plan.shared_weights:
            raise PlanError(
                "internal weights are the same for every row: set shared_weights=True, or internal_weights=False"
            )
        self.plan, self.instructions, self.irreps_out = plan, list(plan.instructions), plan.irreps_out
        self.weight_numel, self.layout = plan.weight_numel, expand_layout(plan, layout)
        self.internal_weights, self.shared_weights = internal_weights, plan.shared_weights

    def _add_parameter_or_empty_buffer(self, name: str, initialize: Callable[..., Tensor], *shape: int) -> None:
        if self.internal_weights and shape[-1] > 0:
            self.register_parameter(name, nn.Parameter(initialize(*shape)))
        else:  # TorchScript needs a tensor
            self._register_exact_constants({name: np.zeros(0)}, persistent=True)

    def _set_config_and_generate_programs(self, config: Config) -> None:
        self._check_and_set_config(config)
        reached = np.array(self.plan.reached, dtype=float)  # by some path
        mask = np.repeat(reached, [mul_ir.dim for mul_ir in self.plan.out.irreps])
        self._register_exact_constants({"output_mask": mask}, persistent=True)
        self._choose_strategy_and_generate_programs()
        self.register_state_dict_post_hook(drop_program_constants)

    # --- programs -----------------------------------------------------------------------------------------------

    def _emit_program(self, direction: str) -> Emission:
        written = self.directions.get(direction, direction)
        return emit_plan(self.plan, written, self.choice.strategy, self.layout, self.streams)

    def _make_runner(self, direction: str, program: nn.Module, config: Config) -> Runner:
        form = DIRECTIONS[self.directions.get(direction, direction)](self.plan, self.layout)
        return make_form_runner(form, program, config, self.output_mask)

    def _try_kernel(
        self,
        kernel_text: str,
        x: Any,
        y: Any,
        weight: Any,
        src: Tensor | None = None,
        dst: Any = None,
        nodes: Any = 0,
        rules: RowRules = EDGES,
    ) -> Tensor | None:
        # run a product's kernel; None on failure, or if operands need checks
        if not torch.compiler.is_compiling():  # whose graphs hold in both modes
            forms.training = self.training
        if weight is not None:
            w = weight if self.weight_numel else None
        else:
            w = (self._parameters if self.internal_weights else self._buffers).get("weight")
        if not kernel_text or not (isinstance(x, Tensor) and isinstance(y, Tensor) and isinstance(w, Tensor)):
            return None
        like = self._buffers["output_mask"]
        if like is None or x.dtype != like.dtype or (weight is None and w.numel() != self.weight_numel):
            return None
        if src is None:
            made = forms.compute_and_record_in_cpp(FormCall((x, y, w), (), kernel_text, FORWARD))
            return made[0] if made else None
        if nodes is None and x.dim():
            nodes = x.shape[0]
        if type(nodes) is not int or not isinstance(src, Tensor) or not isinstance(dst, Tensor):
            return None  # a size that a trace must not be asked, or no tensors
        made = forms.compute_and_record_in_cpp(FormCall((x, y, w), (src, dst), kernel_text, FORWARD, rules, nodes))
        return made[0] if made else None

    # --- inspection ---------------------------------------------------------------------------------------------

    def inspection_options(self) -> dict[str, Any]:
        return {"layout": self.layout, **super().inspection_options()}

    def count_rows_and_nodes(self, *args: Any, **kwargs: Any) -> tuple[int, int | None]:
        """Number of rows, and of nodes or None, of a call."""
        given = signature(type(self).forward).bind(self, *args, **kwargs).arguments
        if self.edges:
            nodes = given["x"].shape[0]
            return given["y"].shape[0], max(nodes, given.get("num_nodes") or nodes)
        channels = self.plan.arguments.get("f_in") is not None
        inner = {"x": 1, "y": 1, "features": 1 + channels, "weight": 1 + 2 * channels}  # axes of one row
        if self.shared_weights:
            del inner["weight"]  # its first axis counts elements, where it has one, and no rows
        rows = [x.shape[: x.dim() - axes] for name, axes in inner.items() if isinstance(x := given.get(name), Tensor)]
        return prod(torch.broadcast_shapes(*rows)), None

    # --- weights ------------------------------------------------------------------------------------------------

    def _choose_given_or_own_value(self, value: Tensor | None, own: Tensor, numel: int) -> Tensor:
        if value is None and numel > 0 and not self.internal_weights:
            raise InputError(self._missing_weights_message())
        if value is not None and not isinstance(value, Tensor):
            raise InputError(f"weight and bias must be tensors, got {type(value).__name__}")
        return own if value is None else value

    def _choose_given_or_own_value_in_script(self, value: Optional[Tensor], own: Tensor, numel: int) -> Tensor:  # noqa: UP045 (TorchScript reads it)
        if value is None:
            if numel > 0 and not self.internal_weights:
                raise RuntimeError("this module has no weights of its own: give weight, and bias where it has biases")
            return own
        assert value.size(-1) == numel, "weight or bias has a wrong number of entries"
        return value

    def weight_view_for_instruction(self, instruction: int, weight: Tensor | None = None) -> Tensor:
        """View an instruction's weights in ``path_shape``, after batch dimensions and channels.

        Raises `InputError` for an instruction without weights.
        """
        count, slices = len(self.instructions), self.plan.weight_slices
        if not -count <= instruction < count:
            raise InputError(f"instruction {instruction} is out of range: this product has {count} instructions")
        index = instruction % count  # which may be counted from the end
        if index >= len(slices):  # biases stand after the paths
            raise InputError(f"instruction {index} is a bias, {self.instructions[index]}: it has no weights to view")
        where = slices[index]
        if where is None:
            raise InputError(f"instruction {index} {self.instructions[index]} has no weights to view")
        flat = self._check_weight_or_take_own(weight)
        return flat[..., where.start : where.stop].view(flat.shape[:-1] + where.shape)

    def weight_views(self, weight: Tensor | None = None, yield_instruction: bool = False) -> Iterator[Any]:
        """Yield a view of each weighted instruction's weights or, if asked, ``(index, instruction, view)``."""
        for index, where in enumerate(self.plan.weight_slices):
            if where is not None:
                view = self.weight_view_for_instruction(index, weight)
                yield (index, self.instructions[index], view) if yield_instruction else view


def drop_program_constants(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    """State_dict post-hook: delete constants of scripted programs."""
    for key in [k for k in state_dict if k.startswith((f"{prefix}_forward_program.", f"{prefix}_right_program."))]:
        del state_dict[key]
