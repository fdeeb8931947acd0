"""Trial training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree


def is_floating(value: Any) -> bool:
    """Whether a value is a floating-point tensor."""
    return isinstance(value, Tensor) and value.is_floating_point()


def is_index(value: Any) -> bool:
    """Whether a value is an integer tensor."""
    return isinstance(value, Tensor) and not (
        value.is_floating_point() or value.is_complex() or value.dtype == torch.bool
    )


def run_forward_and_backward(
    function: Callable[..., Any], inputs: Sequence[Any], parameters: Iterable[Tensor] = ()
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Run forward and backward; return floating results, and gradients of parameters and floating inputs, or None.

    >>> results, gradients = run_forward_and_backward(nn.Linear(2, 1), [torch.ones(3, 2)])
    >>> gradients[0].shape
    torch.Size([3, 2])
    >>> run_forward_and_backward(torch.neg, [torch.ones(3, dtype=torch.int64)])
    ([], None)
    """
    given = pytree.tree_map(lambda a: a.detach().clone().requires_grad_() if is_floating(a) else a, list(inputs))
    wanted = [*(p for p in parameters if p.requires_grad), *filter(is_floating, pytree.tree_leaves(given))]
    out = [leaf for leaf in pytree.tree_leaves(function(*given)) if is_floating(leaf)]
    differentiable = [leaf for leaf in out if leaf.requires_grad]
    results = [leaf.detach() for leaf in out]
    if not differentiable or not wanted:
        return results, None
    total = sum((leaf * torch.cos(leaf.detach())).sum() for leaf in differentiable)  # a cotangent that is not constant
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return results, [g for g in found if g is not None] or None


def call_without_gradients(function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Call without gradients."""
    with torch.no_grad():
        function(*inputs)


@contextmanager
def restore_module_after(module: nn.Module) -> Iterator[None]:
    """Restore a module's buffers and random state after the block."""
    held = [
        (m, name, b, b.detach().clone()) for m in module.modules() for name, b in m._buffers.items() if b is not None
    ]
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for holder, name, buffer, values in held:
                    if not torch.equal(buffer, values):
                        buffer.copy_(values)
                    holder._buffers[name] = buffer


def draws_random_numbers(call: Callable[[], Any]) -> bool:
    """Whether a call draws from torch's random generators.

    >>> draws_random_numbers(lambda: torch.rand(1)), draws_random_numbers(lambda: torch.ones(1))
    (True, False)
    """
    before = _random_states()
    call()
    return any(
        not torch.equal(a, b) for a, b in zip(before, _random_states(), strict=False)
    )  # a first use of a GPU adds one


def _random_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]
