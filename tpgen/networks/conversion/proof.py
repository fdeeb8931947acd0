"""Comparison of a stock and a converted network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._e3nn import default_dtype
from tpgen.base.clock import ROUGH, find_device, time_in_turns
from tpgen.base.errors import TpgenError
from tpgen.base.text import duration, ratio, table
from tpgen.kernels.build.build import count_cores
from tpgen.kernels.build.rehearsal import dry_run_before_compiling
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.conversion.adapters import cast_project_modules_to_float64
from tpgen.networks.conversion.calls import (
    DERIVATIVES,
    OUTPUTS,
    GraphError,
    NamedTensors,
    blame_conversion,
    call_and_compute_gradients,
    call_network,
    compute_derivatives,
    compute_outputs,
    compute_outputs_and_derivatives,
    detach_inputs,
)
from tpgen.networks.conversion.notices import suppress_slow_path_warnings
from tpgen.networks.conversion.operations.splines import disable_splines, has_splined_nets
from tpgen.networks.copies import copy_of

_FLOOR = 1e-6  # tensors below this part of the largest of their order are compared on its scale: zeros but for rounding
LIMIT = 1e-8  # relative to the largest entry of a tensor; what float64 leaves after a deep network is far below
_OUTPUTS = 1e-10  # the same of outputs, in which fewer roundings gather than in derivatives
IN_TRAINING = "derivatives are those in training: in evaluation, as it was given, the network keeps no graph for them"
NOT_TIMED = "gradients are not timed: in evaluation, as it was given, the network keeps no graph for them"
NO_NUMBERS = (
    "stock itself has no numbers in {number} of {of} tensors of its {what}, the first {first}, as edges of length zero "
    "make: what is NaN or infinite in stock is no fault of the conversion, and the rest is compared"
)
_Find = Callable[[nn.Module, Sequence[Any]], dict[str, NamedTensors]]
BUSY = "the machine is busy: measure again, when it is not, for a ratio"


@dataclass(frozen=True)
class _Difference:
    """Largest difference among tensors; relative: to the tensor's largest entry or a floor."""

    what: str
    tensors: int
    absolute: float
    relative: float
    where: str


@dataclass(frozen=True)
class Proof:
    """Differences between a converted and the stock network, with limits."""

    differences: tuple[_Difference, ...]
    limit: float = LIMIT
    outputs: float = _OUTPUTS
    splined: tuple[_Difference, ...] = ()  # of single results by splines, which no limit holds for
    said: tuple[str, ...] = ()  # of the comparison: in which mode, and where stock has no numbers

    @property
    def holds(self) -> bool:
        """Whether differences keep the limits."""
        return all(d.relative <= (self.outputs if d.what == "outputs" else self.limit) for d in self.differences)

    def __str__(self) -> str:
        verdict = "equal" if self.holds else "NOT equal"
        columns = ("largest difference of", "tensors", "absolute", "relative", "in")
        rows = [(d.what, str(d.tensors), f"{d.absolute:.1e}", f"{d.relative:.1e}", d.where) for d in self.differences]
        limits = f"limits {self.outputs:.0e} for outputs, {self.limit:.0e} for derivatives"
        said = f"in float64, stock and converted are {verdict} ({limits})\n{table([columns, *rows])}"
        said = "\n".join([said, *self.said])
        if not self.splined:
            return said
        errors = [(d.what, f"{d.absolute:.1e}", f"{d.relative:.1e}") for d in self.splined]
        errors.insert(0, ("with splines, for which there is no limit", "absolute", "relative"))
        return f"{said}\n\n{table(errors)}"


@dataclass(frozen=True)
class Time:
    """Median seconds of a task in stock and converted network."""

    task: str
    stock: float
    converted: float
    spread: float = 0.0  # of the times of either: the larger

    @property
    def ratio(self) -> float:
        """Stock time divided by converted."""
        return self.stock / self.converted

    @property
    def ratio_text(self) -> str:
        """Text: the ratio, or a remark if times vary."""
        return ratio(self.ratio) if self.spread <= ROUGH else f"times lie {100 * self.spread:.0f} % apart"


@dataclass(frozen=True)
class Times:
    """Times of tasks in both networks."""

    tasks: tuple[Time, ...]
    rounds: int
    threads: int
    said: tuple[str, ...] = ()  # of tasks that are left out

    def __str__(self) -> str:
        rows = [(t.task, duration(t.stock), duration(t.converted), t.ratio_text) for t in self.tasks]
        head = f"medians, {self.rounds} rounds or more in turn, {self.threads} thread{'s' * (self.threads != 1)}"
        shown = f"{head}\n{table([('task', 'stock', 'converted', 'times as fast'), *rows])}"
        busy = [BUSY] if any(t.spread > ROUGH for t in self.tasks) else []
        return "\n".join([shown, *self.said, *busy])


@bypassing_programs()
def prove_equal(
    stock: nn.Module, converted: nn.Module, make_exact: Iterable[Callable[[], None]], inputs: Sequence[Any]
) -> Proof:
    """Compare outputs and derivatives in float64, cast in place; ``make_exact`` makes stock constants exact."""
    for network in (stock, converted):
        _cast_network_to_float64(network)
    with default_dtype(torch.float64):  # what networks make on the way is float64 too
        with torch.no_grad():
            for refine in make_exact:
                refine()
        theirs, said = _compute_stock_derivatives_and_remarks(stock, inputs)
        find = _compute_derivatives_in_training if said else compute_derivatives
        with disable_splines(converted), blame_conversion(converted), _compile_kernels_ahead(find, converted, inputs):
            ours = find(converted, inputs)
        splined = _find_spline_differences(stock, converted, inputs) if has_splined_nets(converted) else ()
    said += filter(None, (_remark_on_non_finite(what, found) for what, found in theirs.items()))
    differences = (_find_largest_difference(what, theirs[what], ours[what], what != OUTPUTS) for what in theirs)
    return Proof(tuple(differences), splined=splined, said=tuple(said))


def _compile_kernels_ahead(compute: _Find, network: nn.Module, inputs: Sequence[Any]) -> AbstractContextManager[None]:
    return dry_run_before_compiling(bypassing_programs()(lambda: compute(copy_of(network), inputs)), count_cores() + 1)


def _compute_stock_derivatives_and_remarks(
    stock: nn.Module, inputs: Sequence[Any]
) -> tuple[dict[str, NamedTensors], list[str]]:
    # in training mode if evaluation keeps no graph
    try:
        found = compute_derivatives(stock, inputs)
        if stock.training or any(found[what] for what in DERIVATIVES):
            return found, []
    except GraphError:
        if stock.training:
            raise
    return _compute_derivatives_in_training(stock, inputs), [IN_TRAINING]


def _compute_derivatives_in_training(network: nn.Module, inputs: Sequence[Any]) -> dict[str, NamedTensors]:
    # outputs as the network was given, and derivatives in training
    outputs = compute_outputs(network, inputs)
    return {**compute_derivatives(network.train(), inputs), OUTPUTS: outputs}


def _remark_on_non_finite(label: str, stock: NamedTensors) -> str:
    names = [name for name, x in stock.items() if not bool(x.isfinite().all())]
    return NO_NUMBERS.format(what=label, number=len(names), of=len(stock), first=names[0]) if names else ""


def _cast_network_to_float64(network: nn.Module) -> None:
    # cast a network, and what its modules remember of the dtype that they were built in, so that they cast to it
    network.double()
    for module in network.modules():
        for name, value in list(vars(module).items()):
            if value is torch.float32:
                setattr(module, name, torch.float64)
    cast_project_modules_to_float64(network)


@bypassing_programs()
def measure_times(stock: nn.Module, converted: nn.Module, inputs: Sequence[Any], rounds: int = 7) -> Times:
    """Time calls, and calls with gradients, of both networks."""
    both = {"stock": stock, "converted": converted}
    device = find_device(stock, inputs)
    found: list[Time] = []
    said: tuple[str, ...] = ()
    for task, run in _TASKS.items():
        try:
            run(stock, inputs)  # first: whose fault an error is
        except GraphError:
            if stock.training:
                raise
            said = (NOT_TIMED,)
            continue
        with blame_conversion(converted):
            timed = time_in_turns({n: partial(run, net, inputs) for n, net in both.items()}, device, rounds=rounds)
        spread = max(timing.spread for timing in timed.values())
        found.append(Time(task, timed["stock"].median, timed["converted"].median, spread))
    return Times(tuple(found), rounds, torch.get_num_threads(), said)


_TASKS: dict[str, Callable[[nn.Module, Sequence[Any]], Any]] = {
    "call": lambda network, inputs: call_network(network, detach_inputs(inputs)),
    "call and gradients": call_and_compute_gradients,
}


def _find_spline_differences(stock: nn.Module, converted: nn.Module, inputs: Sequence[Any]) -> tuple[_Difference, ...]:
    theirs, ours = (
        _compute_outputs_and_input_gradients(network.requires_grad_(False), inputs) for network in (stock, converted)
    )
    floor = _compute_least_scale_of_differences(theirs)
    return tuple(
        _Difference(name, 1, *_compute_absolute_and_relative_difference(theirs[name], ours[name], floor), name)
        for name in ours
        if name in theirs
    )


def _compute_outputs_and_input_gradients(network: nn.Module, inputs: Sequence[Any]) -> NamedTensors:
    with suppress_slow_path_warnings():
        try:
            outputs, gradients = compute_outputs_and_derivatives(network, inputs, by_inputs=True, orders=1)
        except TpgenError:
            return compute_outputs_and_derivatives(network, inputs, by_inputs=True, orders=0)[0]
    return outputs | {f"gradient of {name}": g for name, g in gradients.items()}


def _find_largest_difference(
    label: str, stock: NamedTensors, converted: NamedTensors, skip_non_finite_stock: bool = False
) -> _Difference:
    # a gradient of one network alone must be zero
    worst = _Difference(label, len(stock), 0.0, 0.0, "-")
    floor = _compute_least_scale_of_differences(stock)
    for name in stock | converted:
        given = [named[name] for named in (stock, converted) if name in named]
        wanted, got = given if len(given) == 2 else (torch.zeros_like(given[0]), given[0])
        absolute, relative = _compute_absolute_and_relative_difference(wanted, got, floor, skip_non_finite_stock)
        if relative > worst.relative:
            worst = _Difference(
                label, len(stock), absolute, relative, f"{name}{_remark_on_one_sided_nans(wanted, got)}"
            )
    return worst


def _remark_on_one_sided_nans(stock: Tensor, converted: Tensor) -> str:
    sides = {"stock": bool((~stock.isfinite() & converted.isfinite()).any())}
    sides["converted"] = bool((stock.isfinite() & ~converted.isfinite()).any())
    said = [f"no numbers in the {side} network alone" for side, lacks in sides.items() if lacks]
    return f" ({'; '.join(said)})" if said else ""


def _compute_least_scale_of_differences(tensors: NamedTensors) -> float:
    return _FLOOR * max((_compute_largest_entry(x[x.isfinite()]) for x in tensors.values()), default=0.0)


def _compute_absolute_and_relative_difference(
    stock: Tensor, converted: Tensor, floor: float, skip_non_finite_stock: bool = False
) -> tuple[float, float]:
    # the largest difference, absolute and relative to the largest entry
    # a NaN or infinity equals the same value; ``leniently``, any value, as NaNs spread freely into derivatives
    same = ~stock.isfinite() & (skip_non_finite_stock | (stock == converted) | (stock.isnan() & converted.isnan()))
    stock, converted = stock[~same], converted[~same]
    absolute, scale = _compute_largest_entry(stock - converted), max(_compute_largest_entry(stock), floor)
    if math.isfinite(absolute) and scale > 0:
        return absolute, absolute / scale
    return absolute, 0.0 if absolute == 0 else math.inf  # a NaN is not equal to a number, so the worst there is


def _compute_largest_entry(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def copy_network_twice(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Two copies of a network; raises `TpgenError` if impossible."""
    try:
        return copy_of(network), copy_of(network)
    except Exception as error:
        raise TpgenError(
            f"prove and measure work on copies, and {type(network).__name__} cannot be copied: {error}"
        ) from error
