"""Tables of operands that hold NaN, infinities and zeros, and what two functions make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

# "huge": a number whose square has no place in the dtype
KINDS = ("nan", "inf", "-inf", "huge", "zero")
Function = Callable[..., Tensor | tuple[Tensor, ...]]


def number(kind: str, dtype: torch.dtype) -> float:
    """The number of a kind in a dtype."""
    return torch.finfo(dtype).max ** 0.6 if kind == "huge" else 0.0 if kind == "zero" else float(kind)


def spoiled(operands: Sequence[Tensor], kind: str) -> Iterator[tuple[int, list[Tensor]]]:
    """For each operand: its place, and all of them, with a number of a kind in the middle of that one.

    Zero fills the whole row, so that a vector has no length.
    """
    for n in range(len(operands)):
        copies = [x.detach().clone() for x in operands]
        own = copies[n]
        if kind == "zero" and own.dim() > 1:
            own[len(own) // 2] = 0
        else:
            own.view(-1)[own.numel() // 2] = number(kind, own.dtype)
        yield n, copies


def derivatives(function: Function, operands: Sequence[Tensor], orders: int = 2) -> dict[str, Tensor]:
    """The values of a function, and its gradients up to an order, by every operand that has one."""
    own = [x.detach().clone().requires_grad_() for x in operands]
    given = function(*own)
    found, made = (given,) if isinstance(given, Tensor) else given, {}
    made.update({f"value {n}": x for n, x in enumerate(found)})
    for order in range(1, orders + 1):
        generator = torch.Generator().manual_seed(order)
        cotangents = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in found]
        found = torch.autograd.grad(found, own, cotangents, create_graph=order < orders, materialize_grads=True)
        made.update({f"gradient {order} by {n}": x for n, x in enumerate(found)})
        found = tuple(x for x in found if x.requires_grad)
    return {name: x.detach() for name, x in made.items()}


def differences(found: Tensor, wanted: Tensor, limit: float) -> str:
    """What of a result is not as it is wanted: where NaN and infinities are, and all other numbers; empty if all is."""
    for name, kind in (("NaN", torch.isnan), ("infinite", torch.isinf)):
        if not torch.equal(kind(found), kind(wanted)):
            return f"{name} at {kind(found).nonzero().tolist()[:4]}, wanted at {kind(wanted).nonzero().tolist()[:4]}"
    infinite, finite = torch.isinf(wanted), torch.isfinite(wanted)
    if not torch.equal(found[infinite], wanted[infinite]):
        return "infinities of other signs"
    apart = (found - wanted)[finite].abs()
    return "" if not len(apart) or apart.max() <= limit * wanted[finite].abs().max() else f"off by {apart.max():.0e}"


def compare(found: dict[str, Tensor], wanted: dict[str, Tensor], limit: float) -> list[str]:
    """A line for each result that is not as it is wanted."""
    assert found.keys() == wanted.keys()
    lines = ((name, differences(found[name], x, limit)) for name, x in wanted.items())
    return [f"{name}: {line}" for name, line in lines if line]


def spread_further(found: Tensor, wanted: Tensor, limit: float) -> str:
    """What of a result is not as a dense definition has it, which multiplies by couplings that are zero; empty if none.

    Rows that are no numbers are the same, and so are the numbers of all others.  Within a row a definition may have
    more NaN, never fewer.
    """
    ours, theirs = (~torch.isfinite(x) for x in (found, wanted))
    if not torch.equal(ours | theirs, theirs):
        return f"no number at {(ours & ~theirs).nonzero().tolist()[:4]}, where the definition has one"
    rows = [x.reshape(len(x), -1).any(1) if x.dim() > 1 else x.any() for x in (ours, theirs)]
    if not torch.equal(*rows):
        return "rows without a number: " + ", ".join(str(x.tolist()) for x in rows)
    apart = (found - wanted)[~theirs].abs()
    return "" if not len(apart) or apart.max() <= limit * wanted[~theirs].abs().max() else f"off by {apart.max():.0e}"
