"""What modules of a planned form share: options, programs of each direction, and what runs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn
from typing_extensions import Self

from tpgen.compiler.backends import Runner, check_backend
from tpgen.compiler.closed_form import run_form
from tpgen.compiler.config import Config
from tpgen.emitter.emit import Emission
from tpgen.form.form import Form
from tpgen.nn.programs import ProgramModule
from tpgen.nn.state import output_mask_of, without_programs

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
        if self.backend == "eager":  # no wrapper, and no bookkeeping in the way of torch.compile around us
            return program
        if direction not in self._runners:
            config = replace(self._config, strategy=self.choice.strategy)
            self._runners[direction] = run_form(self._form(direction), program, config, self.output_mask)
        return self._runners[direction]

    # --- a well-behaved module ------------------------------------------------------------------------------------

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
