"""Modules of a planned form: programs of each direction, and what runs them."""

from __future__ import annotations

from inspect import signature
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tpgen.compiler.backends import Runner
from tpgen.compiler.config import Config
from tpgen.compiler.run import run_form
from tpgen.emitter.emit import Emission
from tpgen.form.form import Form
from tpgen.nn.planned import PlannedModule
from tpgen.nn.state import output_mask_of, without_programs


class FormModule(PlannedModule):
    """A plan whose form is written by a strategy and run by a backend.

    Subclasses give the form (`_form`) and the program (`_emission`) of each direction.
    """

    output_mask: Tensor
    layout: tuple[str, ...]
    _programs: ClassVar[tuple[str, ...]] = ("_forward_program", "_right_program")
    _place: ClassVar[str] = "output_mask"
    _graph: ClassVar[str] = "grouped"

    def _form(self, direction: str) -> Form:
        raise NotImplementedError

    def _emission(self, direction: str) -> Emission:
        raise NotImplementedError

    def _configure(self, config: Config) -> None:
        """Take the options, once plan, layout and weights are set, and write the programs."""
        self._take(config)
        self._hold({"output_mask": output_mask_of(self.plan)}, persistent=True)
        self._rewrite()
        self.register_state_dict_post_hook(without_programs)

    def _write_programs(self) -> None:
        self._forward_program = self._program("forward")

    def _program(self, direction: str) -> nn.Module:
        like = self.output_mask
        return self._emission(direction).module().to(device=like.device, dtype=like.dtype)

    def _run_by(self, direction: str, program: nn.Module, config: Config) -> Runner:
        return run_form(self._form(direction), program, config, self.output_mask)

    def asked(self) -> dict[str, Any]:
        return {"layout": self.layout, **super().asked()}

    def rows_of(self, *args: Any, **kwargs: Any) -> tuple[int, int | None]:
        given = signature(type(self).forward).bind(self, *args, **kwargs).arguments
        if self.edges:
            nodes = given["x"].shape[0]
            return given["y"].shape[0], max(nodes, given.get("num_nodes") or nodes)
        channels = self.plan.arguments.get("f_in") is not None
        inner = {"x": 1, "y": 1, "features": 1 + channels, "weight": 1 + 2 * channels}  # axes of one row
        rows = [x.shape[: x.dim() - axes] for name, axes in inner.items() if isinstance(x := given.get(name), Tensor)]
        return prod(torch.broadcast_shapes(*rows)), None
