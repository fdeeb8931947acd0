"""Loss and gradients as one program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tpgen.base._torch import foreach_mul
from tpgen.base.errors import InputError, TpgenError
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.results import flatten, unflatten, values
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step import Step
from tpgen.networks.step_program import WRITING, BuiltOnce, Program, is_recorded


def compile_training(network: nn.Module, loss: Callable[..., Any], *args: Any, **options: Any) -> Training:
    """Compile a network's loss and the gradients of all parameters into one program.

    ``loss(network, *args, **options)`` returns the scalar loss, or a tuple or dict whose first tensor is the loss.
    ``args`` and ``options`` are an example, by default the first call.

    The resulting module returns the values of ``loss``; ``backward()`` passes the computed gradients through autograd,
    as optimisers and `torch.nn.parallel.DistributedDataParallel` expect.

    Other constants or dict keys raise `InputError`.  The network computes calls beyond the program.  Raises
    `DeployError` for a network that no program can compute.

    >>> def loss(network, x, y):
    ...     return (network(x) - y).square().mean()
    >>> training = compile_training(nn.Linear(3, 1), loss)
    >>> training(torch.ones(5, 3), torch.ones(5, 1)).backward()  # doctest: +SKIP
    >>> training.network.weight.grad.shape  # doctest: +SKIP
    torch.Size([1, 3])
    """
    training = Training(network, loss)
    if args or options:
        training.build(*args, **options)
    return training


class Loss(nn.Module):
    """Module that computes a network's loss."""

    def __init__(self, network: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *args: Any, **options: Any) -> Any:
        """Values of ``loss``."""
        with bypassing_programs():
            return self.loss(self.network, *args, **options)


class Training(BuiltOnce, Loss):
    """Loss module run by one program; without gradients, by a `Step`."""

    _of_program = ("_program", "_scripted", "_trained", "_step")
    _step: Step

    def build(self, *args: Any, **options: Any) -> None:
        """Build the program for calls like an example."""
        signature, tensors = Signature.split_call(args, options)
        slots = ParameterSlots(self.network, gradients=True)
        title = f"the training of {type(self.network).__name__}"
        self._scripted = [p for p in self.network.parameters() if all(p is not x for x in slots.tensors())]
        try:
            self._program = Program.build_from_example(
                title, self._compute_loss_and_gradients, slots, signature, tensors
            )
        except _NoGradientsError as error:
            warnings.warn(f"{title} has no gradients ({error}): the network itself serves calls", stacklevel=2)
            self._program = _EagerCalls(signature, slots)
        self._trained = self._training_mode_and_gradient_flags(slots, self._scripted)

    def forward(self, *args: Any, **options: Any) -> Any:
        """Values of ``loss``."""
        if not torch.is_grad_enabled():
            return self._compute_loss_without_gradients(*args, **options)
        signature, tensors = Signature.split_call(args, options)
        recorded, found = is_recorded(tensors), None
        with torch.no_grad():
            program = self._build_or_reuse_program(*args, **options)
            found = program.run(signature, tensors, recorded)
        if found is not None:
            return self._attach_gradients(program, *found)
        with WRITING.lock:  # while another thread writes, stand-ins are in the places of parameters
            found = super().forward(*args, **options)
        return found if recorded else _detach_all_but_loss(found, [*tensors, *program.slots.tensors()])

    def _compute_loss_without_gradients(self, *args: Any, **options: Any) -> Any:
        step = vars(self).get("_step")
        if step is None or step.network is not self.network or step.loss is not self.loss:
            step = Step(Loss(self.network, self.loss), None)
            vars(self)["_step"] = step  # no part of the module: it holds no more
        return step(*args, **options)

    def _is_current(self) -> bool:
        program = self._program
        return (
            program is not None
            and program.is_unchanged()
            and self._trained == self._training_mode_and_gradient_flags(program.slots, self._scripted)
        )

    def _training_mode_and_gradient_flags(self, slots: ParameterSlots, scripted: Sequence[Tensor]) -> Any:
        return self.network.training, list(map(attrgetter("requires_grad"), (*slots.tensors(), *scripted)))

    def _compute_loss_and_gradients(self, *args: Any, **options: Any) -> tuple[Any, Sequence[Tensor | None]]:
        found = self.loss(self.network, *args, **options)
        first = _check_and_get_loss(found)
        parameters = [x for x in ParameterSlots(self.network, gradients=True).tensors() if x.requires_grad]
        if len(parameters) < sum(x.requires_grad for x in self.network.parameters()):
            raise InputError("parameters of TorchScript modules are no inputs of a program: freeze these, or use eager")
        if not first.requires_grad:
            return found, [None] * len(parameters)
        try:
            return found, torch.autograd.grad(first, parameters, allow_unused=True)
        except RuntimeError as error:
            if _FREED in str(error):  # in evaluation, as of forces without create_graph
                raise _NoGradientsError(_FREED.lower()) from error
            raise

    def _attach_gradients(self, program: Program, results: Any, gradients: Sequence[Tensor | None]) -> Any:
        parameters = (x for x in program.slots.tensors() if x.requires_grad)
        pairs = [(x, g) for x, g in zip(parameters, gradients, strict=True) if g is not None]
        if not pairs:
            return results
        leaves, spec = flatten(results)
        place = next(n for n, x in enumerate(leaves) if isinstance(x, Tensor))
        leaves[place] = _KnownGradients.apply(leaves[place], [g for _, g in pairs], *(x for x, _ in pairs))
        return unflatten(leaves, spec)


_FREED = "Trying to backward through the graph a second time"


class _NoGradientsError(TpgenError):
    """Raised if the network has freed its loss's graph."""


@dataclass(frozen=True)
class _EagerCalls:
    """Placeholder of a program: the network computes all calls."""

    signature: Signature
    slots: ParameterSlots

    def is_unchanged(self) -> bool:
        """Whether the slots are unchanged."""
        return self.slots.is_unchanged()

    def run(self, signature: Signature, tensors: list[Tensor], _recorded: bool) -> None:
        """Check the call's signature; compute nothing."""
        signature.in_order(tensors, self.signature)[0].need(self.signature)


def _detach_all_but_loss(results: Any, owned_tensors: Sequence[Tensor]) -> Any:
    # results of which the loss alone, the first, has gradients
    (leaves, _), (beside, spec) = flatten(results), flatten(values(results, owned_tensors))
    place = next((n for n, x in enumerate(leaves) if isinstance(x, Tensor)), None)
    if place is not None:
        beside[place] = leaves[place]
    return unflatten(beside, spec)


def _check_and_get_loss(results: Any) -> Tensor:
    first = next((x for x in flatten(results)[0] if isinstance(x, Tensor)), None)
    if first is None or first.numel() != 1:
        described = type(results).__name__ if first is None else f"a tensor of shape {tuple(first.shape)}"
        raise InputError(f"loss: must return one number or have it first, got {described}: return the mean or the sum")
    return first


class _KnownGradients(torch.autograd.Function):
    """Loss with known parameter gradients, for autograd."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *_parameters: Tensor) -> Tensor:
        """Return the loss, and save the gradients."""
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple:
        """Scale the saved gradients by the loss's cotangent."""
        return None, None, *foreach_mul(ctx.saved_tensors, g.reshape(()))
