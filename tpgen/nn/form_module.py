"""What modules of a planned form share: options, programs of each direction, and what runs them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from tpgen.compiler.backends import Runner, check_backend
from tpgen.compiler.config import Config
from tpgen.compiler.run import run_form
from tpgen.emitter.emit import Emission
from tpgen.errors import TpgenError
from tpgen.form.form import Form
from tpgen.nn.checks import check_size
from tpgen.nn.programs import ProgramModule
from tpgen.nn.state import output_mask_of, without_programs

if TYPE_CHECKING:
    from tpgen.inspection.costs.memory import MemoryEstimate

_PROGRAMS = {"forward": "_forward_program", "right": "_right_program"}


class FormModule(ProgramModule):
    """A plan whose form is written by a strategy and run by a backend.

    Subclasses give the form (`_form`) and the program (`_emission`) of each direction.
    """

    plan: Any
    output_mask: Tensor
    _programs: ClassVar[tuple[str, ...]] = tuple(_PROGRAMS.values())

    def _form(self, direction: str) -> Form:
        raise NotImplementedError

    def _emission(self, direction: str) -> Emission:
        raise NotImplementedError

    def _configure(self, config: Config) -> None:
        """Take the options, once plan, layout and weights are set, and write the programs."""
        check_backend(config)
        self._config = config  # as asked: what `auto` comes to follows the module to other dtypes and devices
        self.backend = config.backend
        self.register_buffer("output_mask", output_mask_of(self.plan))
        self._rewrite()
        self.register_state_dict_post_hook(without_programs)

    def _config_here(self) -> Config:
        like = self.output_mask
        return replace(self._config, dtype=like.dtype, device=str(like.device))

    def _write_programs(self) -> None:
        self._runners: dict[str, Runner] = {}
        self._forward_program = self._program("forward")

    def _program(self, direction: str) -> nn.Module:
        like = self.output_mask
        return self._emission(direction).module().to(device=like.device, dtype=like.dtype)

    def _runner(self, direction: str) -> Runner:
        program = getattr(self, _PROGRAMS[direction])
        limited = self._config.max_bytes is not None and not torch.compiler.is_compiling()
        if self.backend == "eager" and not limited:  # no wrapper, no bookkeeping in the way of torch.compile around us
            return program
        if direction not in self._runners:
            config = replace(self._config, strategy=self.choice.strategy)
            self._runners[direction] = run_form(self._form(direction), program, config, self.output_mask)
        return self._runners[direction]

    # --- a well-behaved module ------------------------------------------------------------------------------------

    def _operands(self, rows: int, nodes: int | None) -> list[Tensor]:
        """Operands of a call, without values."""
        raise NotImplementedError

    def _no_nodes(self, nodes: int | None) -> None:
        if nodes is not None:
            raise TpgenError(f"nodes={nodes} is for a TensorProductConv, whose rows are edges; leave it out")

    def memory(self, rows: int, nodes: int | None = None) -> MemoryEstimate:
        """The most memory that a call of so many rows takes: `tpgen.estimate_memory` of this module.

        Of a convolution ``rows`` are edges, between ``nodes`` nodes (as many as edges where left out).
        """
        from tpgen.inspection.costs.memory import estimate_memory

        check_size("rows", rows)
        if nodes is not None:
            check_size("nodes", nodes)
        return estimate_memory(self, *self._operands(rows, nodes))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._runners.clear()  # a scripted program holds the constants it was made with
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_runners", None)
        return state

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        before = self.output_mask
        super()._load_from_state_dict(state_dict, prefix, *args)
        if (before.device, before.dtype) != (self.output_mask.device, self.output_mask.dtype):
            self._rewrite()  # tensors were put in the place of others: the constants of programs are where those were
