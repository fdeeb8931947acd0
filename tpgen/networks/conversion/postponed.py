"""Tensors that compute their numbers when code first reads any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import swap_tensors

from tpgen.base._torch import pytree, saved_tensor_hooks, throw_on_access, without_functions, wrapper_of
from tpgen.base.errors import InputError
from tpgen.networks.conversion.species import pull_back_gradients
from tpgen.nn.plain_tensors import count_writes

_Function = Callable[..., Tensor]

REST = 60  # calls that are not postponed after one whose numbers were read

_ANSWERED = ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "is_cuda")
# What a tensor without numbers answers, and what one that stands in for it does.
_SHAPES = {
    *(getattr(Tensor, name).__get__ for name in _ANSWERED),
    *(getattr(Tensor, name) for name in ("size", "dim", "numel", "__len__", "is_floating_point", "is_complex")),
}
_CASTS = {Tensor.to, Tensor.float, Tensor.double, Tensor.cpu, Tensor.type_as}
_HOOKS = {Tensor.register_hook, Tensor.retain_grad}
_LIKES = {Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, Tensor.expand_as, torch.zeros_like}


def _call_directly(function: Callable[[], Tensor]) -> Tensor:
    return function()


@dataclass
class PostponedCall:
    """A function, its operands, and autograd state and write counts at the call."""

    function: _Function
    operands: tuple[Tensor, ...]
    tracked: bool
    hooks: Any  # of saved tensors, as checkpoints have them
    writes: list[int]
    within: Callable[[Callable[[], Tensor]], Tensor] = (
        _call_directly  # what computes the numbers, as a watch of calls does
    )
    value: Tensor | None = None  # of a call that could not wait

    @classmethod
    def record_call(cls, function: _Function, operands: Sequence[Tensor]) -> PostponedCall:
        """Record a call in the present autograd state."""
        return cls(
            function, tuple(operands), torch.is_grad_enabled(), saved_tensor_hooks(True), _count_writes(operands)
        )

    @property
    def state_is_unchanged(self) -> bool:
        """Whether autograd's state is as at the call."""
        return torch.is_grad_enabled() == self.tracked and saved_tensor_hooks(True) == self.hooks

    @property
    def is_written_to(self) -> bool:
        """Whether code wrote to an operand after the call."""
        return _count_writes(self.operands) != self.writes

    def compute_before_write(self) -> None:
        """Compute and keep the call's value, before a write to an operand."""
        if self.value is None and not self.is_written_to:
            self.value = self.call_in_recorded_state(self.function)

    def call_in_recorded_state(self, function: _Function) -> Tensor:
        """``function(*operands)`` in the recorded autograd state; raises `InputError` after a write."""
        if function is self.function and self.value is not None:
            return self.value
        if self.is_written_to:
            raise InputError(
                "a tensor that rows or weights of edges, or their product, are made from was written to before "
                "something used these: write to a copy, or leave the module that makes them out, "
                "convert(network, keep=...)"
            )
        inference = torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
        # a checkpoint that began since would miss, when it runs again, what is saved here
        saving = (
            nullcontext()
            if saved_tensor_hooks(True) in (None, self.hooks)
            else saved_tensors_hooks(_identity, _identity)
        )
        with inference, torch.set_grad_enabled(self.tracked), torch.autocast("cpu", enabled=False), saving:
            return self.within(partial(function, *self.operands))


def _count_writes(operands: Sequence[Tensor]) -> list[int]:
    with without_functions():  # an operand may be postponed as well
        return [*map(count_writes, operands)]


def _identity(x: Tensor) -> Tensor:
    return x


class Postponed(Tensor):
    """``function(*operands)`` of a known shape, computed when code reads the numbers.

    Raises `InputError` after a write to an operand.
    """

    RULES: ClassVar[dict[Any, Callable[..., Any]]] = {}  # functions of torch that need no numbers
    made: PostponedCall
    plain: Tensor | None = None
    used: bool = False  # whether another tensor was computed without the numbers

    @classmethod
    def make_postponed(cls, function: _Function, operands: Sequence[Tensor], shape: Sequence[Any]) -> Any:
        """A postponed tensor of ``function(*operands)``."""
        made = PostponedCall.record_call(function, operands)
        if made.tracked and any(x.requires_grad for x in operands):
            found = _make_tensor_with_postponed_gradient(cls, made, shape, *operands)
        else:
            found = _make_tensor_without_storage(cls, shape, operands[0])
        found.made = made
        return found

    def compute_values(self) -> Tensor:
        """The postponed numbers as a new tensor."""
        return self.made.call_in_recorded_state(self.made.function)

    @property
    def is_uncomputed(self) -> bool:
        return self.plain is None

    def become_plain_tensor(self) -> Tensor:
        """Compute, and become the plain tensor in place; return a new tensor if torch forbids."""
        if self.plain is None:
            with without_functions():
                foreign = self.grad_fn is not None and getattr(self.grad_fn, "made", None) is not self.made
                # what an `autograd.Function` has returned, as a checkpoint does, has the graph of that
                self.plain = self.clone() if foreign else self.compute_values()
                plain, self.plain = self.plain, None
                if swap_tensors_if_possible(self, plain):
                    return self
                self.plain = plain
        return self.plain

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SHAPES:
            with without_functions():
                return func(*args, **kwargs)
        if func in _LIKES:
            args, kwargs = pytree.tree_map_only(Postponed, _expand_empty_number_to_shape, (args, kwargs))
            return func(*args, **kwargs)
        if func in _CASTS and isinstance(args[0], Postponed):
            like, *given = pytree.tree_map_only(Postponed, _expand_empty_number_to_shape, args)
            if func(like, *given, **kwargs) is like:
                return args[0]
        if func in _HOOKS and args[0].used:
            raise InputError(
                "gradients of products of edges that were summed or multiplied before are not computed: put the hook "
                "on before, or leave the product out, convert(network, keep=...)"
            )
        for x in pytree.tree_leaves((args, kwargs)):
            rule = type(x).RULES.get(func) if isinstance(x, Postponed) and x.is_uncomputed else None
            found = NotImplemented if rule is None else rule(*args, **kwargs)
            if found is not NotImplemented:
                return found
        args, kwargs = pytree.tree_map_only(Postponed, Postponed.become_plain_tensor, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func._schema.is_mutable and isinstance(args[0], Postponed):
            raise InputError(f"{func} writes to weights of edges or their product, beneath Python: clone them first")
        args, kwargs = pytree.tree_map_only(Postponed, _compute_numbers_detached, (args, kwargs))
        return func(*args, **kwargs)


def swap_tensors_if_possible(first: Tensor, second: Tensor) -> bool:
    """Swap two tensors in place; return False, without changes, if torch forbids."""
    both = first, second
    before = [(type(x), x.__dict__) for x in both]
    try:
        swap_tensors(first, second)
    except RuntimeError:  # torch may have swapped classes and attributes before it found a profiler's weak reference
        for x, (its_class, attributes) in zip(both, before, strict=True):
            x.__class__, x.__dict__ = its_class, attributes
        return False
    return True


def count_down_to_zero(module: Any, counter_name: str) -> bool:
    """Decrement a module's counter, unless zero; return whether the counter is zero."""
    left = max(getattr(module, counter_name) - 1, 0)
    setattr(module, counter_name, left)
    return left == 0


def compute_if_postponed(x: Any) -> Any:
    """``x``, plain if postponed."""
    return x.become_plain_tensor() if isinstance(x, Postponed) else x


def _make_tensor_without_storage(cls: type[Postponed], shape: Sequence[Any], like: Tensor) -> Any:
    found = wrapper_of(cls, shape, dtype=like.dtype, device=like.device)
    throw_on_access(found)
    return found


def _compute_numbers_detached(x: Postponed) -> Tensor:
    return (x.compute_values() if x.plain is None else x.plain).detach()


def _expand_empty_number_to_shape(x: Postponed) -> Tensor:
    # one number in the place of all
    return x.made.operands[0].new_empty(()).expand(x.shape)


class _PostponedCallFunction(torch.autograd.Function):
    """Tensors without storage, with the gradients of a postponed call."""

    # for what takes these beneath Python's functions

    @staticmethod
    def forward(ctx: Any, cls: type[Postponed], call: PostponedCall, shape: Sequence[Any], *operands: Tensor) -> Any:
        """Tensor of a shape, without storage."""
        ctx.save_for_backward(*operands)
        ctx.made = call
        return _make_tensor_without_storage(cls, shape, operands[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple:
        return None, None, None, *pull_back_gradients(ctx.made.function, ctx.saved_tensors, cotangent)


_make_tensor_with_postponed_gradient = _PostponedCallFunction.apply
