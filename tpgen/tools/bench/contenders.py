"""Contenders: tpgen, and libraries to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import e3nn
import numpy as np
import torch
from torch import Tensor, nn

from tpgen.base.errors import BackendError, TpgenError, unknown
from tpgen.compiler.backends import compile_program
from tpgen.compiler.config import Config
from tpgen.emitter.strategies import STRATEGIES
from tpgen.form.form import Layout
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.coupling import wigner_3j
from tpgen.planner.plan import Path, Plan
from tpgen.tools.bench.tasks import TimedProduct
from tpgen.tools.verification.laws import build_e3nn_product

Builder = Callable[[Plan, torch.dtype, torch.device], TimedProduct]


@contextmanager
def _set_e3nn_jit_scripting(scripted: bool) -> Iterator[None]:
    # a process-wide default of e3nn decides whether products are scripted
    before = e3nn.get_optimization_defaults()
    # "inductor" is a jit_mode too, but one that compiles nothing: an eager module is compiled from outside instead
    chosen = {"jit_mode": "script" if scripted else "eager"} if "jit_mode" in before else {"jit_script_fx": scripted}
    e3nn.set_optimization_defaults(**chosen)
    try:
        yield
    finally:
        e3nn.set_optimization_defaults(**{name: before[name] for name in chosen})


def build_e3nn_module(plan: Plan, scripted: bool = False) -> nn.Module:
    """Build e3nn's product with external weights, scripted or eager."""
    with _set_e3nn_jit_scripting(scripted):
        return build_e3nn_product(plan)


def _build_timed_e3nn_product(plan: Plan, dtype: torch.dtype, device: torch.device, backend: str) -> TimedProduct:
    module = build_e3nn_module(plan, scripted=backend == "script").to(dtype=dtype, device=device)
    return ignore_weights_unless_needed(
        plan, module if backend == "script" else compile_program(module, Config(backend=backend))
    )


def ignore_weights_unless_needed(plan: Plan, product: Any) -> TimedProduct:
    """A call with weights, which a product without weights ignores."""
    return product if plan.weight_numel else lambda x1, x2, w: product(x1, x2)


class _InstructionForDynamo(NamedTuple):
    equation: str
    in1: tuple[int, int, int, int]  # start, stop, multiplicity, dimension
    in2: tuple[int, int, int, int]
    out: int  # segment
    weight: tuple[int, int] | None
    weight_shape: tuple[int, ...]
    paired: bool


def _make_instruction_for_dynamo(plan: Plan, path: Path) -> _InstructionForDynamo:
    in1, in2 = ((s.start, s.stop, s.mul, s.ir.dim) for s in (path.in1, path.in2))
    letters = ["z" + path.mode.in1 + "i", "z" + path.mode.in2 + "j", "ijk"]
    if path.weight is not None:
        letters.append(("" if plan.shared_weights else "z") + path.mode.weight)
    where = (path.weight.start, path.weight.stop) if path.weight else None
    shape = path.weight.shape if path.weight else ()
    equation = f"{','.join(letters)}->z{path.mode.out}k"
    return _InstructionForDynamo(equation, in1, in2, path.out.index, where, shape, path.mode.paired)


class LoopOverInstructions(nn.Module):
    """Tensor product by one einsum per instruction."""

    def __init__(self, plan: Plan) -> None:
        """Register a plan's coupling tensors as buffers."""
        super().__init__()
        self.steps = [_make_instruction_for_dynamo(plan, path) for path in plan.paths]
        self.out_dims = [mul * ir.dim for mul, ir in plan.irreps_out]
        for n, path in enumerate(plan.paths):
            self.register_buffer(f"coupling_{n}", torch.tensor(wigner_3j(*path.ls) * path.coefficient))
            if path.mode.paired:
                self.register_buffer(f"pairs_{n}", torch.triu_indices(path.in1.mul, path.in1.mul, 1))

    def forward(self, x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        """Tensor product of ``x1`` and ``x2`` with weights ``w``."""
        results = self.compute_instruction_results(x1, x2, w)
        blocks = []
        for segment, dim in enumerate(self.out_dims):
            found = [result for step, result in zip(self.steps, results, strict=True) if step.out == segment]
            blocks.append(sum(found[1:], found[0]) if found else x1.new_zeros(len(x1), dim))
        return torch.cat(blocks, dim=1)

    def compute_instruction_results(self, x1: Tensor, x2: Tensor, w: Tensor) -> list[Tensor]:
        """Flat result of each instruction."""
        return [self.compute_instruction_result(n, x1, x2, w) for n in range(len(self.steps))]

    def compute_instruction_result(self, n: int, x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        """Result of instruction ``n``, with flattened components."""
        step = self.steps[n]
        a, b = _cut_segment(x1, step.in1), _cut_segment(x2, step.in2)
        if step.paired:
            first, second = getattr(self, f"pairs_{n}")
            a, b = a[:, first], b[:, second]
        operands = [a, b, getattr(self, f"coupling_{n}")]
        if step.weight is not None:
            flat = w[..., step.weight[0] : step.weight[1]]
            operands.append(flat.reshape(flat.shape[:-1] + step.weight_shape))
        return torch.einsum(step.equation, *operands).flatten(1)


def _cut_segment(x: Tensor, segment: tuple[int, int, int, int]) -> Tensor:
    start, stop, mul, dim = segment
    return x[:, start:stop].reshape(-1, mul, dim)


class _InstructionLoopOnCudaStreams(LoopOverInstructions):
    def __init__(self, plan: Plan, streams: int = 4) -> None:
        super().__init__(plan)
        self.streams = [torch.cuda.Stream() for _ in range(min(streams, len(self.steps)))]

    def compute_instruction_results(self, x1: Tensor, x2: Tensor, w: Tensor) -> list[Tensor]:
        """Flat result of each instruction, on CUDA streams."""
        main = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(main)
        found = []
        for n in range(len(self.steps)):
            with torch.cuda.stream(self.streams[n % len(self.streams)]):
                found.append(self.compute_instruction_result(n, x1, x2, w))
        for stream in self.streams:
            main.wait_stream(stream)
        for result in found:
            result.record_stream(main)
        return found


def build_instruction_loop(
    plan: Plan,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    loop_class: type[LoopOverInstructions] = LoopOverInstructions,
) -> TimedProduct:
    """Build a `LoopOverInstructions`, compiled by a backend."""
    return compile_program(loop_class(plan).to(dtype=dtype, device=device), Config(backend=backend))


def _build_cuequivariance_product(
    plan: Plan, dtype: torch.dtype, device: torch.device, layout: Literal["mul_ir", "ir_mul"] = "mul_ir"
) -> TimedProduct:
    if find_spec("cuequivariance_torch") is None:
        raise BackendError("not installed: pip install cuequivariance-torch (and its kernels for CUDA)")
    import cuequivariance as cue
    import cuequivariance_torch as cuet

    modes = {(path.mode.name, path.weight is not None) for path in plan.paths}
    kind = next(iter(modes)) if len(modes) == 1 else None
    if kind not in _CUE_KINDS:
        raise BackendError("has weighted channelwise (uvu) and fully connected (uvw) products only")
    in1, in2, out = (cue.Irreps("O3", str(i)) for i in (plan.irreps_in1, plan.irreps_in2, plan.irreps_out))
    kept = [cue.O3(l=ir.l, p=ir.p) for ir in sorted({ir for _, ir in plan.irreps_out})]
    method = {"method": "naive"} if device.type == "cpu" else {}
    product = getattr(cuet, _CUE_KINDS[kind])(
        in1, in2, kept if kind == ("uvu", True) else out, layout=getattr(cue, layout), device=device, dtype=dtype,
        shared_weights=plan.shared_weights, internal_weights=False, **method,
    )  # fmt: skip
    if product.weight_numel != plan.weight_numel or str(product.irreps_out) != str(out):
        raise BackendError("orders or chooses the paths of this product in another way")
    if not plan.shared_weights:
        return product
    return lambda x1, x2, w: product(x1, x2, w.unsqueeze(0))


_CUE_KINDS = {("uvu", True): "ChannelWiseTensorProduct", ("uvw", True): "FullyConnectedTensorProduct"}


def _build_openequivariance_product(plan: Plan, dtype: torch.dtype, device: torch.device) -> TimedProduct:
    problem = build_openequivariance_problem(plan, dtype)
    import openequivariance as oeq

    return oeq.TensorProduct(problem, torch_op=True).to(device)


def build_openequivariance_problem(plan: Plan, dtype: torch.dtype) -> Any:
    """Make OpenEquivariance's ``TPProblem`` of a plan."""
    if find_spec("openequivariance") is None:
        raise BackendError("not installed: pip install openequivariance")
    if dtype not in (torch.float32, torch.float64):
        raise BackendError("computes in float32 and float64 only")
    kept = all(p.mode.name == "uvu" and p.weight is not None and p.in2.mul == 1 for p in plan.paths)
    if not kept or plan.shared_weights:
        raise BackendError(
            "orders weights as e3nn does only for uvu, with weights of each row and single copies of input 2"
        )
    import openequivariance as oeq

    number = np.dtype(str(dtype).removeprefix("torch.")).type
    return oeq.TPProblem(
        oeq.Irreps(str(plan.irreps_in1)), oeq.Irreps(str(plan.irreps_in2)), oeq.Irreps(str(plan.irreps_out)),
        [tuple(instruction[:6]) for instruction in plan.instructions],
        shared_weights=False, internal_weights=False, irrep_dtype=number, weight_dtype=number,
        irrep_normalization=plan.irrep_normalization, path_normalization=plan.path_normalization,
    )  # fmt: skip


_BACKENDS = ("eager", "script", "inductor", "cudagraphs")
_CUDA_ONLY = ("cudagraphs",)
_NO_DOUBLE = {"double": "torch.compile has no double backward"}
_LACKS: dict[str, dict[str, str]] = {"inductor": _NO_DOUBLE, "cudagraphs": _NO_DOUBLE}


@dataclass(frozen=True)
class Contender:
    """One implementation of a product, named ``family/backend``."""

    name: str
    build: Builder = field(repr=False)  # returns ``(x1, x2, w) -> out``, or raises a `TpgenError` that says why not
    layout: Layout = "mul_ir"
    cuda_only: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict, repr=False)  # why a task is left out

    def why_task_cannot_run(self, task: str, device: torch.device) -> str | None:
        """Why a task cannot run on a device, or None."""
        if self.cuda_only and device.type != "cuda":
            return "needs a CUDA device"
        return self.lacks.get(task)


def _build_tpgen_product(plan: Plan, dtype: torch.dtype, device: torch.device, **options: Any) -> TimedProduct:
    module = TensorProduct.from_plan(plan, internal_weights=False, **options)
    return ignore_weights_unless_needed(plan, module.to(dtype=dtype, device=device))


def _make_contender(family: str, backend: str, build_product: Callable[..., TimedProduct]) -> Contender:
    return Contender(
        f"{family}/{backend}",
        partial(build_product, backend=backend),
        cuda_only=backend in _CUDA_ONLY,
        lacks=_LACKS.get(backend, {}),
    )


def _make_tpgen_contender(strategy: str, backend: str, layout: Layout = "mul_ir", streams: int = 0) -> Contender:
    suffix = f"-{layout}" if layout != "mul_ir" else "-streams" if streams else ""
    build = partial(_build_tpgen_product, strategy=strategy, layout=layout, streams=streams)
    row = _make_contender(f"tpgen-{strategy}{suffix}", backend, build)
    return replace(row, layout=layout, cuda_only=row.cuda_only or streams > 0, lacks={})


_STRATEGIES = (*STRATEGIES, "auto")
_ALL = (
    *(_make_contender("e3nn", backend, _build_timed_e3nn_product) for backend in _BACKENDS),
    *(_make_contender("loop", backend, build_instruction_loop) for backend in _BACKENDS if backend != "script"),
    Contender(
        "loop-streams/eager",
        partial(build_instruction_loop, backend="eager", loop_class=_InstructionLoopOnCudaStreams),
        cuda_only=True,
    ),
    *(_make_tpgen_contender(strategy, backend) for strategy in _STRATEGIES for backend in _BACKENDS),
    *(
        _make_tpgen_contender(strategy, backend, "ir_mul")
        for strategy in _STRATEGIES
        for backend in ("eager", "inductor")
    ),
    _make_tpgen_contender("einsum", "eager", streams=4),
    Contender("cuequivariance/eager", _build_cuequivariance_product),
    Contender("cuequivariance-ir_mul/eager", partial(_build_cuequivariance_product, layout="ir_mul"), layout="ir_mul"),
    Contender("openequivariance/eager", _build_openequivariance_product, cuda_only=True),
)

CONTENDERS: dict[str, Contender] = {contender.name: contender for contender in _ALL}
# Who takes part where nobody is named: e3nn in its three forms against what tpgen does by itself.
DEFAULT_CONTENDERS = ("e3nn/script", "e3nn/eager", "e3nn/inductor", "loop/eager", "tpgen-auto/*", "cuequivariance/*")


def select_contenders(patterns: Iterable[str] = ()) -> tuple[Contender, ...]:
    """Select contenders by name patterns; default: `DEFAULT_CONTENDERS`.

    >>> [contender.name for contender in select_contenders(["e3nn/[es]*"])]
    ['e3nn/eager', 'e3nn/script']
    """
    wanted = tuple(patterns) or DEFAULT_CONTENDERS
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in CONTENDERS):
            raise TpgenError(unknown("contender", pattern, CONTENDERS))
    return tuple(c for name, c in CONTENDERS.items() if any(fnmatchcase(name, pattern) for pattern in wanted))
