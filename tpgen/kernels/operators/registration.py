"""How operators enter PyTorch: a function for each level of its dispatcher, and what autograd and vmap ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import _C, Tensor

from tpgen.kernels.operators.targets import KERNEL_TARGETS

library = torch.library.Library("tpgen", "DEF")

# dispatch keys of the devices that some target takes: there is nothing between them and a kernel
KERNEL_KEYS = {getattr(_C.DispatchKey, t.device.upper()) for t in KERNEL_TARGETS.values() if t.device}
_DEVICES = ("CPU", "CUDA", "XPU", "MPS")  # where no target is, operators say so, and what to do
# torch.func enters the dispatcher at this key; an operator whose derivative is written in Python is transformed there.
_TRANSFORMS = "FuncTorchDynamicLayerFrontMode"


def register(
    name: str, run: Callable, recorded: Callable, transformed: Callable, batched: Callable, shapes: Callable
) -> None:
    """One operator at every level; ``recorded`` is for autograd, and gets the dispatch keys of the call first."""
    for device in _DEVICES:
        library.impl(name, run, device)
    library.impl(name, recorded, "Autograd", with_keyset=True)
    library.impl(name, transformed, _TRANSFORMS)
    library.impl(name, batched, "Batched")
    torch.library.register_fake(f"tpgen::{name}", shapes, lib=library)


# -- autograd ----------------------------------------------------------------------------------------------------------


def asked_for(possible: Iterable[bool], nodes: Iterable[tuple[Any, int]]) -> list[bool]:
    """Which gradients the running pass wants, of those that are possible, by the nodes behind their tensors."""
    return [yes and _runs(node) for yes, (node, _) in zip(possible, nodes, strict=False)]


def _runs(node: Any) -> bool:
    """Whether the running pass goes on to a node of its graph."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf that `torch.autograd.grad` was asked for
        return True


# -- torch's older vmap: ``torch.autograd.grad(is_grads_batched=True)``, ``vectorize=True`` ----------------------------


@contextmanager
def below_vmap() -> Iterator[int]:
    """The level of the innermost older vmap; what is called inside is one level further out."""
    level = _C._vmapmode_decrement_nesting() + 1
    try:
        yield level
    finally:
        _C._vmapmode_increment_nesting()


def peel(level: int, values: Sequence[Any]) -> tuple[int, list[int | None], list[Any]]:
    """Arguments out of that vmap: the size of the batch, where each has it (first, or not), and those below it."""
    batched: dict[int, Tensor] = {
        # of a tensor that only a level further out has batched this makes one with a batch of one
        n: torch._remove_batch_dim(x, level, 1, 0)
        for n, x in enumerate(values)
        if isinstance(x, Tensor) and _C._functorch.is_legacy_batchedtensor(x)
    }
    size = max(x.shape[0] for x in batched.values())
    below = [batched[n].expand(size, *batched[n].shape[1:]) if n in batched else x for n, x in enumerate(values)]
    return size, [0 if n in batched else None for n in range(len(below))], below


def batch_again(level: int, results: Iterable[Tensor]) -> list[Tensor]:
    """Results whose first axis is the batch, as that vmap takes them."""
    return [torch._add_batch_dim(x, 0, level) for x in results]
