"""Costs that a plan does not tell: memory held at once, and the time of each path alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tpgen.inspection.clock import best_seconds
from tpgen.inspection.stages.dump import Request, example_arguments
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Path, Plan, make_plan


def peak_bytes(request: Request) -> int:
    """The most that a program holds at once besides its operands: intermediates and the result, by shapes alone.

    The program runs on fake tensors, so nothing is computed.  Views cost nothing; what a library or a kernel keeps as
    scratch space is not in it.
    """
    emission = request.emission()
    watch = _Watched(request.module(emission))
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        shapes = _shapes(request, emission.arguments)
        watch.run(*(torch.empty(shape, dtype=request.dtype, device=request.device) for shape in shapes))
    return watch.peak


def _shapes(request: Request, names: Iterable[str]) -> list[tuple[int, ...]]:
    plan, rows = request.plan, request.rows
    dims = {"x1": plan.irreps_in1.dim, "x2": plan.irreps_in2.dim, "w": plan.weight_numel, "g": plan.irreps_out.dim}
    return [(dims[name],) if name == "w" and plan.shared_weights else (rows, dims[name]) for name in names]


class _Watched(fx.Interpreter):
    """Runs a graph and keeps count of the memory that its values own."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.peak = 0
        self._given: set[int] = {t.untyped_storage()._cdata for t in module.buffers()}

    def run_node(self, n: fx.Node) -> object:
        result = super().run_node(n)
        if n.op in ("placeholder", "get_attr"):
            self._given.update(self._storages(result))
        else:
            held: dict[int, int] = self._storages(result)
            for value in self.env.values():
                held.update(self._storages(value))
            self.peak = max(self.peak, sum(size for key, size in held.items() if key not in self._given))
        return result

    def _storages(self, value: object) -> dict[int, int]:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            return {storage._cdata: storage.nbytes()}
        if isinstance(value, (tuple, list)):
            return {key: size for item in value for key, size in self._storages(item).items()}
        return {}


_ROUNDS = 4


def seconds_of_paths(request: Request, seconds: float) -> dict[int, float]:
    """The time of every path as a product of its own, in the strategy of the whole.

    Their sum is more than the whole: what paths share is done anew for each.  All paths are timed in turn, and again:
    what else the machine does for a while then falls on no path alone.
    """
    calls = {path.index: _call_of(request, path) for path in request.plan.paths}
    with torch.no_grad():
        rounds = [
            {index: best_seconds(call, request.device, seconds / _ROUNDS) for index, call in calls.items()}
            for _ in range(_ROUNDS)
        ]
    return {index: min(times[index] for times in rounds) for index in calls}


def _call_of(request: Request, path: Path) -> Callable[[], object]:
    alone = Request(
        path_alone(request.plan, path),
        layout=request.layout,
        dtype=request.dtype,
        device=request.device,
        rows=request.rows,
    )
    # graphs run eagerly: compiling each path alone would take minutes
    product = TensorProduct.from_plan(
        alone.plan, internal_weights=False, layout=alone.layout, strategy=request.strategy
    ).to(device=alone.device, dtype=alone.dtype)
    operands = example_arguments(alone, ("x1", "x2", "w"))
    return lambda: product(*operands)


def path_alone(plan: Plan, path: Path) -> Plan:
    """The product of one path, on its three segments alone.

    >>> from tpgen.planner.presets import channelwise
    >>> plan = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")
    >>> print(*path_alone(plan, plan.paths[1]).paths[0].ls)
    1 1 0
    """
    return make_plan(
        str(path.in1), str(path.in2), str(path.out), [(0, 0, 0, path.mode.name, path.weight is not None)],
        irrep_normalization=plan.irrep_normalization, path_normalization=plan.path_normalization,
        shared_weights=plan.shared_weights,
    )  # fmt: skip
