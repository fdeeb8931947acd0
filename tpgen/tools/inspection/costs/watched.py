"""Recorded calls of a network's modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree, replaced_attribute
from tpgen.networks.conversion.postponed import Postponed
from tpgen.networks.conversion.products import ConvertedTensorSquare
from tpgen.networks.conversion.swap import name_class_before_conversion
from tpgen.networks.trial import is_floating, restore_module_after
from tpgen.nn.planned import PROGRAM, PlannedModule
from tpgen.planner.plan import Plan
from tpgen.planner.read import read_plan
from tpgen.tools.inspection.costs.stopwatch import Stopwatch

_PLAN = "_tpgen_plan"  # of converted modules that compute a polynomial: its text
FORWARD, BACKWARD, CODE = "forward", "backward", "code"  # of products, and of other modules


class ProductCall(NamedTuple):
    """Sizes, dtype and device of a product's call; a convolution's rows are edges."""

    rows: int
    nodes: int | None
    channels: int | None = None  # where the plan leaves them open
    dtype: torch.dtype | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class WatchedModule:
    """A module that computes a tensor product, and the plan."""

    module: nn.Module
    program: PlannedModule | None  # none where an operator of the module's forward computes the plan
    plan: Plan

    def describe_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ProductCall:
        """Sizes, dtype and device of a call."""
        names = getattr(self.module, "program_arguments", None)
        if names is not None:  # a convolution, whose arguments are those of a project
            given = dict(zip(names, (*args, *kwargs.values()), strict=True))
            return ProductCall(given["y"].shape[0], given["x"].shape[0])
        if isinstance(self.module, ConvertedTensorSquare):
            x = args[0] if args else kwargs["x"]
            args, kwargs = (x, x), {}
        if self.program is not None:
            return ProductCall(*self.program.count_rows_and_nodes(*args, **kwargs))
        x, dim = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), self.plan.inputs[0].dim
        rows = x.shape[0] if x.dim() > 1 else 1
        return ProductCall(rows, None, x.numel() // max(rows * dim, 1), x.dtype, str(x.device))

    def make_explain_arguments(self, call: ProductCall) -> tuple[PlannedModule | Plan, dict[str, Any]]:
        """Make the subject and options of `explain` for a call."""
        if self.program is not None:
            return self.program, {}
        return self.plan, {
            "strategy": "kernel",
            "channels": call.channels,
            "dtype": call.dtype,
            "device": call.device,
        }


def find_planned_modules(network: nn.Module) -> dict[str, WatchedModule]:
    """Find modules that compute tensor products, by path."""
    found: dict[str, WatchedModule] = {}
    inside: set[nn.Module] = set()
    for path, module in network.named_modules():
        if module in inside or type(module).__module__.startswith("torch.jit"):
            continue
        program = module._modules.get(PROGRAM, module)
        if isinstance(program, PlannedModule):
            found[path] = WatchedModule(module, program, program.plan)
            inside.update(program.modules())
        elif isinstance(text := vars(module).get(_PLAN), str):
            found[path] = WatchedModule(module, None, read_plan(text))
    return found


@dataclass
class CallWatch:
    """Recorded calls of products, and seconds of modules."""

    stopwatch: Stopwatch
    paths: Mapping[nn.Module, str]
    modules: Mapping[str, WatchedModule]
    others: Mapping[nn.Module, str]  # classes
    calls: dict[str, list[ProductCall]] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)  # backwards

    @classmethod
    def make_for_modules(cls, network: nn.Module, modules: Mapping[str, WatchedModule], device: str) -> CallWatch:
        """Make a watch that records a network's modules."""
        inside = {part for watched in modules.values() for part in watched.module.modules()}
        others = {
            m: name_class_before_conversion(m)
            for m in network.modules()
            if m not in inside and not isinstance(m, torch.fx.GraphModule)
        }
        return cls(Stopwatch(device), {watched.module: path for path, watched in modules.items()}, modules, others)

    def clear(self) -> None:
        for noted in (self.calls, self.passes, self.stopwatch):
            noted.clear()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record calls within the context."""
        # no hooks on modules: a converted network would take hooks for a user's own
        with replaced_attribute(nn.Module, "__call__", self._wrap_call_to_record):
            yield

    def _wrap_call_to_record(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_record(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            called = partial(call, module, *args, **kwargs)
            if (path := self.paths.get(module)) is not None:
                out = self._time_product_call(path, called)
                self.calls.setdefault(path, []).append(self.modules[path].describe_call(args, kwargs))
                return out
            if (part := self.others.get(module)) is not None:
                return self.stopwatch.time_call((CODE, part), (CODE, part), called)
            return called()

        return call_and_record

    def _time_product_call(self, path: str, call: Callable[[], Any]) -> Any:
        def count_pass(_: Any) -> None:
            self.passes[path] = self.passes.get(path, 0) + 1

        out = self.stopwatch.time_call((FORWARD, path), (BACKWARD, path), call)
        if isinstance(out, Postponed) and out.is_uncomputed:  # computed when something reads or sums it
            out.made.within = partial(self._time_product_call, path)
        elif isinstance(out, Tensor) and out.grad_fn is not None:
            out.grad_fn.register_prehook(count_pass)
        return out


@dataclass
class WatchedRun:
    """A callable: a network's call, then a backward pass unless the call has one."""

    network: nn.Module
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    watch: CallWatch
    inside: bool = False

    def __call__(self) -> None:
        args, keywords = pytree.tree_map(_copy_argument, (self.inputs, self.keywords))
        given = pytree.tree_leaves((args, keywords))  # before the network writes into them
        with torch.enable_grad():
            out = self.network(*args, **keywords)
            self.inside = bool(self.watch.passes)
            if not self.inside:
                _run_backward(out, [*self.network.parameters(), *given])


def _copy_argument(value: Any) -> Any:
    # networks write into the graphs and tensors that they are given
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy(value)


def _run_backward(returned: Any, leaves: Sequence[Any]) -> None:
    results = [x for x in pytree.tree_leaves(returned) if is_floating(x) and x.requires_grad]
    wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    if results and wanted:
        torch.autograd.grad([x.sum() for x in results], wanted, allow_unused=True)


@contextmanager
def preserve_network_state(network: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients and random numbers on exit."""
    gradients = [(p, p.grad) for p in network.parameters()]
    with restore_module_after(network):
        try:
            for p, _ in gradients:
                p.grad = None
            yield
        finally:
            for p, gradient in gradients:
                p.grad = gradient
