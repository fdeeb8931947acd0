"""Weights in one flat tensor: a module's own, or given to each call, and views of them by instruction.

Annotations here are objects, not strings: TorchScript reads them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
from torch import Tensor, nn

from tpgen.emitter.constants import Constants
from tpgen.errors import InputError, PlanError
from tpgen.nn.checks import check_index


class FlatWeights(Constants):
    """Weights of a plan, side by side in one tensor.

    Subclasses say what a call lacks that gives none (`_lack`), and make flat what it gives (`_given_weight`).
    """

    plan: Any
    instructions: list[Any]

    def _lack(self) -> str:
        raise NotImplementedError

    def _given_weight(self, weight: Tensor | Sequence[Tensor] | None) -> Tensor:
        raise NotImplementedError

    def _decide_ownership(self, internal_weights: bool, shared_weights: bool) -> None:
        if internal_weights and not shared_weights:
            raise PlanError(
                "internal weights are the same for every row: set shared_weights=True, or internal_weights=False"
            )
        self.internal_weights, self.shared_weights = internal_weights, shared_weights

    def _own(self, name: str, make: Callable[..., Tensor], *shape: int) -> None:
        """A parameter where weights are internal, else an empty buffer: TorchScript wants something to be there."""
        if self.internal_weights and shape[-1] > 0:
            self.register_parameter(name, nn.Parameter(make(*shape)))
        else:
            self._hold({name: np.zeros(0)}, persistent=True)

    def _given(self, value: Tensor | None, own: Tensor, numel: int) -> Tensor:
        """Return what a call gives, else what the module has."""
        if value is None and numel > 0 and not self.internal_weights:
            raise InputError(self._lack())
        if value is not None and not isinstance(value, Tensor):
            raise InputError(f"weight and bias must be tensors, got {type(value).__name__}")
        return own if value is None else value

    def _scripted_given(self, value: Optional[Tensor], own: Tensor, numel: int) -> Tensor:  # noqa: UP045 (TorchScript reads it)
        """`_given`, as TorchScript can run it."""
        if value is None:
            if numel > 0 and not self.internal_weights:
                raise RuntimeError("this module has no weights of its own: give weight, and bias where it has biases")
            return own
        assert value.size(-1) == numel, "weight or bias has a wrong number of entries"
        return value

    def weight_view_for_instruction(self, instruction: int, weight: Tensor | None = None) -> Tensor:
        """View of the weights of one instruction, in its ``path_shape`` after batch dimensions and channels.

        Raises `InputError` where the instruction has no weights.
        """
        index, slices = check_index(instruction, len(self.instructions)), self.plan.weight_slices
        if index >= len(slices):  # biases stand after the paths
            raise InputError(f"instruction {index} is a bias, {self.instructions[index]}: it has no weights to view")
        where = slices[index]
        if where is None:
            raise InputError(f"instruction {index} {self.instructions[index]} has no weights to view")
        flat = self._given_weight(weight)
        return flat[..., where.start : where.stop].view(flat.shape[:-1] + where.shape)

    def weight_views(self, weight: Tensor | None = None, yield_instruction: bool = False) -> Iterator[Any]:
        """Views of the weights of every weighted instruction, in order.

        With ``yield_instruction`` yields ``(index, instruction, view)``.
        """
        for index, where in enumerate(self.plan.weight_slices):
            if where is not None:
                view = self.weight_view_for_instruction(index, weight)
                yield (index, self.instructions[index], view) if yield_instruction else view
