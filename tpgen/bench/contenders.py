"""Contenders: who takes part.  A new one is one row of `CONTENDERS`; strategies and backends bring theirs along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch

from tpgen.bench.peers import (
    build_cuequivariance,
    build_e3nn,
    build_loop,
    build_openequivariance,
    build_streamed_loop,
    with_weights,
)
from tpgen.bench.tasks import TimedProduct
from tpgen.emitter.strategies import STRATEGIES
from tpgen.errors import TpgenError, unknown
from tpgen.form.form import Layout
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan

Builder = Callable[[Plan, torch.dtype, torch.device], TimedProduct]

_BACKENDS = ("eager", "script", "inductor", "cudagraphs")
_CUDA_ONLY = ("cudagraphs",)
_NO_DOUBLE = {"double": "torch.compile has no double backward"}
_LACKS: dict[str, dict[str, str]] = {"inductor": _NO_DOUBLE, "cudagraphs": _NO_DOUBLE}


@dataclass(frozen=True)
class Contender:
    """One way to compute a product.

    ``name`` is ``family/backend``.  ``build`` returns ``(x1, x2, w) -> out``; it raises a `TpgenError` that says why
    where it cannot be had for a plan or on a machine.  ``lacks`` says why a task is left out.
    """

    name: str
    build: Builder = field(repr=False)
    layout: Layout = "mul_ir"
    cuda_only: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict, repr=False)

    def obstacle(self, task: str, device: torch.device) -> str | None:
        """Why it does not take part in a task on a device; None where it does."""
        if self.cuda_only and device.type != "cuda":
            return "needs a CUDA device"
        return self.lacks.get(task)


def build_tpgen(plan: Plan, dtype: torch.dtype, device: torch.device, **options: Any) -> TimedProduct:
    """tpgen's module of a plan, with weights from outside."""
    module = TensorProduct.from_plan(plan, internal_weights=False, **options)
    return with_weights(plan, module.to(dtype=dtype, device=device))


def _row(family: str, backend: str, build: Callable[..., TimedProduct]) -> Contender:
    return Contender(
        f"{family}/{backend}",
        partial(build, backend=backend),
        cuda_only=backend in _CUDA_ONLY,
        lacks=_LACKS.get(backend, {}),
    )


def _tpgen_row(strategy: str, backend: str, layout: Layout = "mul_ir", streams: int = 0) -> Contender:
    suffix = f"-{layout}" if layout != "mul_ir" else "-streams" if streams else ""
    build = partial(build_tpgen, strategy=strategy, layout=layout, streams=streams)
    row = _row(f"tpgen-{strategy}{suffix}", backend, build)
    return replace(row, layout=layout, cuda_only=row.cuda_only or streams > 0, lacks={})


_STRATEGIES = (*STRATEGIES, "auto")
_ALL = (
    *(_row("e3nn", backend, build_e3nn) for backend in _BACKENDS),
    *(_row("loop", backend, build_loop) for backend in _BACKENDS if backend != "script"),
    Contender("loop-streams/eager", build_streamed_loop, cuda_only=True),
    *(_tpgen_row(strategy, backend) for strategy in _STRATEGIES for backend in _BACKENDS),
    *(_tpgen_row(strategy, backend, "ir_mul") for strategy in _STRATEGIES for backend in ("eager", "inductor")),
    _tpgen_row("einsum", "eager", streams=4),
    Contender("cuequivariance/eager", build_cuequivariance),
    Contender("cuequivariance-ir_mul/eager", partial(build_cuequivariance, layout="ir_mul"), layout="ir_mul"),
    Contender("openequivariance/eager", build_openequivariance, cuda_only=True),
)

CONTENDERS: dict[str, Contender] = {contender.name: contender for contender in _ALL}
# Who takes part where nobody is named: e3nn in its three forms against what tpgen does by itself.
DEFAULT_CONTENDERS = ("e3nn/script", "e3nn/eager", "e3nn/inductor", "loop/eager", "tpgen-auto/*", "cuequivariance/*")


def select_contenders(patterns: Iterable[str] = ()) -> tuple[Contender, ...]:
    """The contenders whose names match one of the patterns; `DEFAULT_CONTENDERS` for none.

    A `TpgenError` lists the names where a pattern matches nobody.

    >>> [contender.name for contender in select_contenders(["e3nn/[es]*"])]
    ['e3nn/eager', 'e3nn/script']
    """
    wanted = tuple(patterns) or DEFAULT_CONTENDERS
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in CONTENDERS):
            raise TpgenError(unknown("contender", pattern, CONTENDERS))
    return tuple(c for name, c in CONTENDERS.items() if any(fnmatchcase(name, pattern) for pattern in wanted))
