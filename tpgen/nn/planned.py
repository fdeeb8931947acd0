"""Base of planned modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from tpgen.base._torch import without_dispatch_modes
from tpgen.base.errors import TpgenError
from tpgen.base.public import load_public
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.backends import Runner, check_backend
from tpgen.compiler.config import Choice, Config
from tpgen.emitter.constants import Constants
from tpgen.emitter.emit import Emission
from tpgen.emitter.leaf import keep_whole
from tpgen.kernels.runtime.failures import failures_seen
from tpgen.nn.checks import check_size
from tpgen.planner.plan import Plan

PROGRAM = "_tpgen"  # the name of a module that computes for another, in this other


class PlannedModule(Constants):
    """Base of modules that run a plan by generated programs, which pickles omit.

    Subclasses emit programs (`_emit_program`) and make functions that run these (`_make_runner`).
    """

    plan: Plan
    backend: str = "eager"
    edges: ClassVar[bool] = False  # whether rows of a call are edges between nodes
    directions: ClassVar[dict[str, str]] = {}  # what each program emits, of modules whose programs graphs take
    _config: Config  # as asked: what `auto` comes to follows the module to other dtypes and devices
    _runners: dict[str, Runner]  # what runs each program, as far as they were called
    _graph: ClassVar[str]  # the strategy of a program that calls torch's operators alone
    _programs: ClassVar[tuple[str, ...]]  # the submodules that are programs
    _place: ClassVar[str]  # the constant that says where the module is
    _choice: Choice
    _failures: int = 0  # of kernels in this process, when it last chose
    __jit_unused_properties__: ClassVar[list[str]] = ["choice"]
    _holder: tuple[nn.Module, ...] = ()  # the module that it computes for; in a tuple, so that it becomes no child

    def __init__(self) -> None:
        """Let fx record calls as single nodes; register a load_state_dict hook."""
        super().__init__()
        keep_whole(self)
        self.register_load_state_dict_post_hook(adapt_programs)

    def _config_for_own_dtype(self) -> Config:
        like = self.get_buffer(self._place)
        return replace(self._config, dtype=like.dtype, device=str(like.device))

    def _choose_strategy(self) -> Choice:
        return choose_strategy(self.plan.flat, self._config_for_own_dtype())

    def _check_and_set_config(self, config: Config) -> None:
        check_backend(config)
        self._config = config
        self.backend = config.backend

    def _emit_program(self, direction: str) -> Emission:
        raise NotImplementedError

    def _make_program_module(self, direction: str) -> nn.Module:
        like = self.get_buffer(self._place)
        return self._emit_program(direction).module().to(device=like.device, dtype=like.dtype)

    def _generate_programs(self) -> None:
        self._forward_program = self._make_program_module("forward")

    @property
    def choice(self) -> Choice:
        """Current strategy and reason; changes if kernels cannot be built."""
        self._update_strategy_after_kernel_failures()
        return self._choice

    def _update_strategy_after_kernel_failures(self) -> None:
        # choose again where a kernel could not be built since
        if torch.compiler.is_compiling() or self._failures == failures_seen():
            return
        self._failures = failures_seen()
        if self._choose_strategy() != self._choice:
            with without_dispatch_modes():  # constants have values, also where a call has none
                self._choose_strategy_and_generate_programs()

    def _choose_strategy_and_generate_programs(self) -> None:
        self._runners = {}
        self._failures, self._choice = failures_seen(), self._choose_strategy()
        self._generate_programs()

    def _make_runner(self, direction: str, program: nn.Module, config: Config) -> Runner:
        raise NotImplementedError

    def _get_current_runner(self, direction: str = "forward") -> Runner:
        self._update_strategy_after_kernel_failures()
        program = getattr(self, f"_{direction}_program")
        limited = self._config.max_bytes is not None and not torch.compiler.is_compiling()
        if self.backend == "eager" and not limited:  # no wrapper, no bookkeeping in the way of torch.compile around us
            return program.forward  # nor hooks that somebody puts on all modules
        if direction not in self._runners:
            config = replace(self._config, strategy=self._choice.strategy)
            self._runners[direction] = self._make_runner(direction, program, config)
        return self._runners[direction]

    def regenerate_programs_without_kernels(self) -> None:
        """Rewrite the programs with PyTorch operators only."""
        self.backend = "eager"
        self._config = Config(layout=self._config.layout, strategy=self._graph)
        self._choose_strategy_and_generate_programs()

    # --- inspection -----------------------------------------------------------------------------------------------

    def inspection_options(self) -> dict[str, Any]:
        """Inspection keywords: strategy, backend, dtype and device."""
        like = self.get_buffer(self._place)
        where = {"dtype": like.dtype, "device": str(like.device)}
        return {"strategy": self.choice.strategy, "backend": self.backend, **where}

    def meta_operands(self, rows: int, nodes: int | None = None) -> list[Tensor]:
        """A call's operands and indices on the meta device, without internal weights."""
        raise NotImplementedError

    def call_on_operands(self, *operands: Tensor) -> Tensor:
        """Call the module with operands in the order of `meta_operands`."""
        return self(*operands)

    def count_rows_and_nodes(self, *args: Any, **kwargs: Any) -> tuple[int, int | None]:
        """Number of rows of a call, and of a convolution's nodes, else None."""
        raise NotImplementedError

    def _meta_tensor_of_own_dtype(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.get_buffer(self._place).dtype, device="meta")

    def _refuse_nodes(self, nodes: int | None) -> None:
        if nodes is not None:
            raise TpgenError(f"nodes={nodes} is for a TensorProductConv, whose rows are edges; leave it out")

    def explain(self, **options: Any) -> Any:
        """Explain each path's costs, as `tpgen.explain`."""
        return load_public("explain")(self, **options)

    def memory(self, rows: int, nodes: int | None = None) -> Any:
        """Estimate a call's peak memory, as `tpgen.estimate_memory`.

        Rows of a convolution are edges, by default with as many ``nodes``.
        """
        check_size("rows", rows)
        if nodes is not None:
            check_size("nodes", nodes)
        return load_public("estimate_memory")(_OperandCaller(self), *self.meta_operands(rows, nodes))

    # --- places and states ----------------------------------------------------------------------------------------

    def follow_owner_of_parameters(self, owner: nn.Module) -> Self:
        """Take dtype, device and mode from ``owner``, the module with the parameters."""
        self._holder = (owner,)
        self._non_persistent_buffers_set.update(self._buffers)
        mask = owner.get_buffer("output_mask")
        return self.to(device=mask.device, dtype=mask.dtype).train(owner.training)

    def _find_reference_of_dtype_and_device(self) -> Tensor:
        of, name = (self._holder[0], "output_mask") if self._holder else (self, self._place)
        return next((p for p in of.parameters() if p.is_floating_point()), of.get_buffer(name))

    def _adapt_constants_to_dtype_and_device(self, reference: Tensor | None) -> None:
        self._runners.clear()  # a scripted program holds the constants it was made with
        super()._adapt_constants_to_dtype_and_device(reference)
        if self._choose_strategy() != self._choice:  # where another strategy is better, or the only one
            self._choose_strategy_and_generate_programs()
        for name in self._programs:
            program = self._modules.get(name)
            if reference is not None and isinstance(program, Constants):
                program._adapt_constants_to_dtype_and_device(reference)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()  # without what `Module.compile` has left, which runs the module it was made of
        for name in ("_runners", "_choice", "_failures"):  # of this process
            state.pop(name, None)
        state["_modules"] = {name: m for name, m in self._modules.items() if name not in self._programs}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._choose_strategy_and_generate_programs()


class _OperandCaller(nn.Module):
    """Module whose forward is ``module.call_on_operands``."""

    def __init__(self, module: PlannedModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *operands: Tensor) -> Tensor:
        return self.module.call_on_operands(*operands)


def adapt_programs(module: PlannedModule, _keys: Any = None) -> None:
    """Load_state_dict post-hook: adapt programs to a loaded dtype or device."""
    module._adapt_constants_to_dtype_and_device(module._find_reference_of_dtype_and_device())
