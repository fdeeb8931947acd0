"""Weights of edges by cubic splines of lengths instead of nets, for inference."""

# A spline takes three multiplications per weight, a net 64.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tpgen.base.errors import OptionError
from tpgen.functions.lengths import RowsByLength, find_registered_lengths
from tpgen.functions.spline import SLOPE_ERROR, Spline, can_run_spline, evaluate_spline, make_spline
from tpgen.networks.conversion.swap import ClassSwap

SPLINED = "_tpgen_splined"  # attribute of nets: whether they may be splines
_Net = Callable[[Tensor], Tensor]
_BEYOND = 10  # cutoffs: lists of neighbours with a skin have edges beyond one, and a network that fails far longer ones
_PROGRAMS = "; its net in programs of compile_step and deploy"
_made: WeakKeyDictionary[nn.Module, tuple[tuple, Spline]] = WeakKeyDictionary()


def allow_splines_in_swaps(swaps: Iterable[ClassSwap]) -> list[ClassSwap]:
    """Swaps whose nets of lengths may use splines; raises `OptionError` without such nets."""
    found = [
        replace(swap, now=_describe_net_or_spline_backend, extra={**swap.extra, SPLINED: True})
        if hasattr(swap.cls, SPLINED)
        else swap
        for swap in swaps
    ]
    if not any(SPLINED in swap.extra for swap in found):
        raise OptionError(
            "radial='spline' is for networks whose weights of edges are made of lengths by nets that tpgen converts, "
            "as those of MACE, NequIP and SevenNet: there is none here; leave radial out"
        )
    return found


def has_splined_nets(network: nn.Module) -> bool:
    return bool(_list_splined_nets(network))


def find_largest_spline_error(network: nn.Module) -> float:
    """Largest slope error of splines in use, relative to the largest slope."""
    made = [_made[net][1].slopes_error for net in _list_splined_nets(network) if net in _made]
    return max((error for error in made if error <= SLOPE_ERROR), default=0.0)


@contextmanager
def disable_splines(network: nn.Module) -> Iterator[None]:
    """Let nets run without splines inside the context."""
    nets = _list_splined_nets(network)
    try:
        for net in nets:
            setattr(net, SPLINED, False)
        yield
    finally:
        for net in nets:
            setattr(net, SPLINED, True)


def _list_splined_nets(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if getattr(module, SPLINED, False)]


def _describe_net_or_spline_backend(net: nn.Module, _extra: Any) -> str:
    _, spline = _made.get(net, (None, None))
    if spline is None:
        return (
            f"cubic splines of lengths (made at the first call, slopes within {SLOPE_ERROR:.0e} of the largest)"
            + _PROGRAMS
        )
    if not spline.slopes_error <= SLOPE_ERROR:
        return f"its net: no splines of lengths have slopes within {SLOPE_ERROR:.0e}; {spline}"
    return str(spline) + _PROGRAMS


def choose_net_or_spline(net: Any, evaluate_net: _Net, x: Tensor) -> tuple[_Net, Tensor]:
    """``evaluate_net`` and ``x``, or a spline and the lengths behind ``x``.

    The spline if requested, accurate, with a kernel, and if ``x`` depends on lengths alone.
    """
    if not getattr(net, SPLINED):
        return evaluate_net, x
    lengths = find_registered_lengths(x) if can_run_spline(x) else None
    if lengths is None or not _are_lengths_within_spline(lengths):
        return evaluate_net, x
    constants = (*net.parameters(), *lengths.constants)
    spline = _reuse_or_make_spline(net, evaluate_net, lengths, constants)
    if not spline.slopes_error <= SLOPE_ERROR:
        return evaluate_net, x
    return lambda r: evaluate_spline(spline, r, constants), lengths.column


def _are_lengths_within_spline(lengths: RowsByLength) -> bool:
    # whether splines are of all these lengths: with what ends, of so many ends at most, as more may be no number
    return bool((lengths.column.detach() <= lengths.end * (_BEYOND if lengths.ends else 1)).all())


def _reuse_or_make_spline(
    net: nn.Module, evaluate_net: _Net, lengths: RowsByLength, constants: tuple[Tensor, ...]
) -> Spline:
    state = (lengths.shape, lengths.column.dtype, *map(_compute_length_and_checksums, constants))
    known, spline = _made.get(net, (None, None))
    if spline is None or known != state:
        with torch.no_grad():
            wide = {f"net.{name}": p.double() for name, p in net.named_parameters()}
            of_lengths = _NetAsFunctionOfLengths(net, evaluate_net, lengths.rows)
            spline = make_spline(lambda r: functional_call(of_lengths, wide, (r,)), lengths.start, lengths.end)
        spline = spline.to(lengths.column.dtype)
        _made[net] = state, spline
    return spline


def _compute_length_and_checksums(x: Tensor) -> tuple:
    # changes with the numbers, also if these are written through ``.data``, which torch does not count
    x = x.detach().flatten()
    numbers = x.norm(), x @ torch.linspace(1, 2, len(x), dtype=x.dtype)
    return len(x), *(float(number).hex() for number in numbers)  # as texts, of which NaN equals itself


class _NetAsFunctionOfLengths(nn.Module):
    """A net on rows computed from lengths."""

    def __init__(self, net: nn.Module, compute: _Net, rows_of_lengths: _Net) -> None:
        super().__init__()
        self.net, self.compute, self.rows = net, compute, rows_of_lengths

    def forward(self, r: Tensor) -> Tensor:
        return self.compute(self.rows(r))
