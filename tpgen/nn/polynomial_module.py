"""Base of polynomials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from e3nn.o3 import Irreps
from torch import Tensor, nn
from typing_extensions import Unpack

from tpgen.base.errors import InputError, PlanError, unknown
from tpgen.compiler.backends import Runner
from tpgen.compiler.config import RUN_FIELDS, Config, RunOptions
from tpgen.compiler.run import make_row_runner
from tpgen.emitter.emit import Emission
from tpgen.emitter.polynomial import EDGE_ARGUMENTS, NODES, Ends, emit_polynomial
from tpgen.emitter.scripted import make_scriptable_caller
from tpgen.form.polynomial import PolynomialForm
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.placement.polynomial import PolynomialPlacement
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.kernels.runtime.polynomials import describe_polynomial, parse_polynomial_call
from tpgen.kernels.sweep.monomials import PolynomialSweep
from tpgen.nn.autocast import is_autocasting, run_without_autocast
from tpgen.nn.checks import (
    check_edge_index,
    check_edge_index_fits,
    check_num_elements,
    check_range,
    parse_element_index,
    refuse_unknown_options,
)
from tpgen.nn.edges import EdgeOrder
from tpgen.nn.planned import PlannedModule
from tpgen.planner.plan import OUT, Operand, Plan


class PolynomialModule(PlannedModule):
    """Base of modules that run a planned polynomial; subclasses own weights and parse inputs."""

    _programs: ClassVar[tuple[str, ...]] = ("_forward_program",)
    _place: ClassVar[str] = "_like"
    _graph: ClassVar[str] = "einsum"
    _like: Tensor  # nothing but where the module is, and its dtype
    _index: ClassVar[str] = "index"  # the argument of a call that says the element of every row
    channels: int
    num_elements: int | None
    internal_weights: bool
    weight_shapes: list[tuple[int, int]]  # paths and channels of each tensor of weights
    _ends: Ends = ()  # operands of a convolution, and the ends of edges that find their rows

    def __init__(
        self,
        plan: Plan,
        channels: int,
        num_elements: int | None,
        internal_weights: bool,
        ends: Ends = (),
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__()
        if num_elements is not None:
            check_num_elements(num_elements)
        self.plan, self.channels, self.num_elements = plan, channels, num_elements
        self._indexed, self._ends = num_elements is not None, ends
        self._shapes = {o.name: find_row_shape_of_operand(o, channels) for o in plan.inputs}
        self.weight_shapes = [(o.dim, channels) for o in plan.weights]
        self.internal_weights = internal_weights
        self._check_and_set_config(Config(**options))
        self._register_exact_constants({"_like": np.zeros(0)})
        self._choose_strategy_and_generate_programs()

    # -- stages --

    @property
    def form(self) -> PolynomialForm:
        """Scalar form whose gradients are output and derivatives."""
        return describe_polynomial(self.plan).form

    def sweep(self, call: str = "forward") -> PolynomialSweep:
        """One row's straight-line program for ``forward``, ``backward`` or a call's text."""
        return describe_polynomial(self.plan).sweep(parse_polynomial_call(self.plan, call))

    def placement(self, call: str = "forward", dtype: torch.dtype = torch.float32) -> PolynomialPlacement:
        """Kernel placement (tasks, scratch) of a call."""
        return describe_polynomial(self.plan).placement(parse_polynomial_call(self.plan, call), dtype)

    @property
    def graph(self) -> Emission:
        """Fx graph of the current strategy."""
        return emit_polynomial(self.plan, self.choice.strategy, self._indexed, self._ends)

    def code(self, call: str = "forward", dtype: torch.dtype = torch.float32) -> GeneratedSource:
        """Generated C++ of a call."""
        return describe_polynomial(self.plan).source(parse_polynomial_call(self.plan, call), dtype)

    # -- inspection --

    def inspection_options(self) -> dict[str, Any]:
        return {"channels": self.channels, "elements": self.num_elements or 1, **super().inspection_options()}

    def meta_operands(self, rows: int, nodes: int | None = None) -> list[Tensor]:
        """A call's operands and indices on the meta device."""
        ends = dict(self._ends)
        if not ends:
            self._refuse_nodes(nodes)
        shapes: list[tuple[int, ...]] = [
            (rows if nodes is None or name not in ends else nodes, *shape) for name, shape in self._shapes.items()
        ]
        if not self.internal_weights:
            shapes += [(self.num_elements or 1, *shape) for shape in self.weight_shapes]
        indices = bool(self.num_elements) + len(self._edge_arguments)
        index = [torch.empty(rows, dtype=torch.int64, device="meta") for _ in range(indices)]
        return [*(self._meta_tensor_of_own_dtype(*shape) for shape in shapes), *index]

    @property
    def _edge_arguments(self) -> list[str]:
        return [name for end, name in EDGE_ARGUMENTS.items() if end in dict(self._ends).values()]

    def count_rows_and_nodes(self, *args: Any, **kwargs: Any) -> tuple[int, int | None]:
        return (args[0] if args else kwargs["x"]).shape[0], None

    def call_on_operands(self, *operands: Tensor) -> Tensor:
        """Call with inputs, weights, element index and edge ends."""
        given, inputs = list(operands), len(self.plan.inputs)
        keywords: dict[str, Any] = {name: given.pop() for name in reversed(self._edge_arguments)}
        if self.num_elements:
            keywords[self._index] = given.pop()
        if given[inputs:]:
            keywords["weights"] = given[inputs:]
        return self(*given[:inputs], **keywords)

    # -- programs --

    def _emit_program(self, direction: str) -> Emission:
        return self.graph

    def _make_runner(self, direction: str, program: nn.Module, config: Config) -> Runner:
        ends = dict(self._ends)
        if config.strategy == "kernel" and not ends:  # it keeps nothing
            config = replace(config, max_bytes=None)
        inputs = [None if name in ends else len(shape) for name, shape in self._shapes.items()]
        weights = [None if self._indexed else 2 for _ in self.plan.weights]
        indices = [0] * (self._indexed + len(self._edge_arguments))
        return make_row_runner(program, config, self._like, [*inputs, *weights, *indices], None if OUT in ends else 1)

    # -- evaluation --

    def _check_operands_and_run(self, tensors: Sequence[Tensor], index: Any, weights: Any, *edges: Any) -> Tensor:
        given = {name: self._check_and_convert_dtype(name, x) for name, x in zip(self._shapes, tensors, strict=True)}
        ends = _find_edge_indices_of_call(self._ends, given, *edges) if edges else []
        first = next(iter(given))
        rows, of = (ends[0].shape[0], "edges") if self._ends else (given[first].shape[0], first)
        for name, shape in self._shapes.items():
            self._check_shape_of_input(name, shape, given[name], rows, of)
        if self.num_elements is not None:
            if index is None:
                raise InputError(
                    f"{self._index}: weights of {self.num_elements} elements need the element of every row"
                )
            index = parse_element_index(self._index, index, self.num_elements, rows, of)
        elif index is not None:
            raise InputError(
                f"{self._index}: this module has no elements: leave it out, or construct it with num_elements (and a "
                "Polynomial with weights='element')"
            )
        return self._run_program([*given.values(), *self._choose_given_or_own_weights(weights, rows)], index, ends)

    def _check_shape_of_input(self, name: str, row_shape: tuple[int, ...], x: Tensor, rows: int, rows_of: str) -> None:
        if x.dim() != len(row_shape) + 1 or x.shape[1:] != row_shape:
            raise InputError(f"{name}: must have shape (rows, {', '.join(map(str, row_shape))}), got {tuple(x.shape)}")
        if x.shape[0] != rows and name not in dict(self._ends):
            why = "one for each edge" if self._ends else f"as {rows_of} has"
            raise InputError(f"{name}: must have {rows} rows{',' if self._ends else ''} {why}, got {x.shape[0]}")

    def _run_program(self, tensors: Sequence[Tensor], index: Tensor | None, edges: Sequence[Any] = ()) -> Tensor:
        if index is None:
            return run_without_autocast(self._get_current_runner(), *tensors, *edges)
        if self.choice.strategy != "kernel":
            self._check_elements(index)
        try:
            return run_without_autocast(self._get_current_runner(), *tensors, index, *edges)
        except InputError:  # a kernel checks by itself, and knows no names of arguments
            self._check_elements(index)
            raise

    def _check_elements(self, index: Tensor) -> None:
        assert self.num_elements is not None
        check_range(self._index, index, self.num_elements, noun="elements")

    def _check_given_weights(self, given: Any, rows: int) -> list[Tensor]:
        shapes = self.weight_shapes
        if not isinstance(given, (list, tuple)) or len(given) != len(shapes):
            got = len(given) if isinstance(given, (list, tuple)) else type(given).__name__
            raise InputError(f"weights: give {len(shapes)} tensors, one for each of weight_shapes, got {got}")
        fitted = [self._check_and_convert_dtype(f"weights[{n}]", w) for n, w in enumerate(given)]
        for n, (w, shape) in enumerate(zip(fitted, shapes, strict=True)):
            self._check_shape_of_weights(f"weights[{n}]", w, shape, rows)
        if any(w.shape[0] != fitted[0].shape[0] for w in fitted):  # some are of all rows, some of each
            return [w.expand(rows, -1, -1) for w in fitted]
        return fitted

    def _check_shape_of_weights(self, name: str, w: Tensor, shape: tuple[int, int], rows: int) -> None:
        count = self.num_elements
        if w.dim() == 3 and w.shape[1:] == shape and w.shape[0] in ((1, rows) if count is None else (count,)):
            return
        first, rule = f"1 or {rows}", "one set for all rows, or one for each of them"
        if count is not None:
            first, rule = str(count), f"a set for each of the {count} elements that it was constructed with"
        raise InputError(f"{name}: must have shape ({first}, {shape[0]}, {shape[1]}), {rule}, got {tuple(w.shape)}")

    def __prepare_scriptable__(self) -> nn.Module:
        names = {id(p): name for name, p in self.named_parameters()}
        own = [names[id(w)] for w in self._own_weights()] if self.internal_weights else None
        return make_scriptable_caller(
            self, "_forward_program", self.plan, self._index if self._indexed else "", self._ends, own
        )

    def _own_weights(self) -> list[Tensor]:
        raise NotImplementedError

    def _choose_given_or_own_weights(self, given: Any, rows: int) -> list[Tensor]:
        return (
            self._own_weights() if given is None and self.internal_weights else self._check_given_weights(given, rows)
        )

    def _check_and_convert_dtype(self, name: str, x: Any) -> Tensor:
        x = as_floating_tensor(name, x, self._like.dtype)
        if self._like.is_meta and not x.is_meta and not any(True for _ in self.parameters()):
            self._adapt_constants_to_dtype_and_device(x)  # left there by a load, as no state says anything of it
        like = self._like
        if is_autocasting(like.device) and torch.promote_types(x.dtype, like.dtype) == like.dtype:
            x = x.to(like.dtype)
        if x.dtype != like.dtype or x.device != like.device:
            raise InputError(
                f"{name}: the module is {like.dtype} on {like.device} but {name} "
                f"is {x.dtype} on {x.device}; convert one of "
                "them with .to()"
            )
        return x


def find_row_shape_of_operand(operand: Operand, channels: int) -> tuple[int, ...]:
    """Shape of one row of an operand."""
    if not operand.channels:
        return (operand.dim,)
    return (channels, operand.dim) if operand.layout == "channel" else (channels * operand.dim,)


def common_multiplicity(name: str, *irreps: Irreps, remedy: str = "") -> int:
    """Multiplicity of all irreps, the number of channels; `PlanError` if there are several."""
    multiplicities = {mul for each in irreps for mul, _ in each}
    if len(multiplicities) != 1 or 0 in multiplicities:
        raise PlanError(
            f"{name} must have one multiplicity throughout, the number of channels, got "
            f"{' and '.join(map(str, irreps))}{remedy}"
        )
    return multiplicities.pop()


def check_own_options(given: Iterable[str], *others: str) -> None:
    """Raise `OptionError` for a keyword beyond run options and ``others``."""
    refuse_unknown_options((name for name in given if name not in RUN_FIELDS), (*others, *RUN_FIELDS))


def check_checkpoint_shape(key: str, stored: Any, own: Tensor) -> None:
    """Raise `InputError` if a checkpoint's weights have another shape."""
    if isinstance(stored, Tensor) and stored.shape != own.shape:
        raise InputError(
            f"{key}: the checkpoint has shape (elements, paths, channels) = {tuple(stored.shape)}, and this module "
            f"{tuple(own.shape)}: construct it as the checkpoint's was, with its irreps, terms or correlation, and "
            "number of elements"
        )


def parse_edge_ends(edges: Any, plan: Plan) -> Ends:
    """Pairs (operand name, ``src`` or ``dst``) from ``edges``; `PlanError` for wrong names."""
    names = [o.name for o in plan.operands if not o.weights]
    if not isinstance(edges, Mapping):
        raise PlanError(f"edges: must map names of tensors to ends, such as {{'x': 'src'}}, got {str(edges)[:60]}")
    for name, end in edges.items():
        if name not in names:
            raise PlanError(f"edges: {unknown('tensor', name, names)}")
        if end not in EDGE_ARGUMENTS:
            raise PlanError(f"edges: {name} is read at an end of edges: {unknown('end', end, EDGE_ARGUMENTS)}")
    taken = {*EDGE_ARGUMENTS.values(), NODES} & {o.name for o in plan.operands} if edges else ()
    if taken:
        raise PlanError(f"tensors: a convolution has the argument {min(taken)}: give the tensor another name")
    return tuple(edges.items())


def _find_edge_indices_of_call(
    ends: Ends, operands: Mapping[str, Tensor], src: Any, dst: Any, num_nodes: int | None, check_index: bool
) -> list[Any]:
    # checked edge indices of a program, then the number of result rows if edges are summed
    if not ends:
        if src is not None or dst is not None or num_nodes is not None:
            raise InputError(
                "edge_src, edge_dst, num_nodes: this polynomial has no edges: leave them out, or construct it with "
                "edges, such as {'x': 'src', 'out': 'dst'}"
            )
        return []
    if isinstance(src, EdgeOrder):
        src, dst, num_nodes = src.ends(dst, num_nodes)
    at = {end: [name for name, found in ends if found == end] for end in EDGE_ARGUMENTS}
    used = {end: index for end, index in {"src": src, "dst": dst}.items() if at[end]}
    for end, index in used.items():
        check_edge_index(EDGE_ARGUMENTS[end], index)
    counts = {name: operands[name].shape[0] for name, _ in ends if name != OUT and operands[name].dim()}
    into = dict(ends).get(OUT)
    if into and num_nodes is None:
        num_nodes = next((counts[name] for name in (*at[into], *counts) if name in counts), 0)
    if num_nodes is not None and num_nodes < 0:
        raise InputError(f"{NODES}: must not be negative, got {num_nodes}")
    first = next(iter(used.values()))
    for end, index in used.items():
        limits = {f"rows of {name}": counts[name] for name in at[end] if name in counts}
        if end == into:
            limits[NODES] = num_nodes or 0
        what = min(limits, key=limits.__getitem__) if check_index else ""
        like, limit = next(iter(operands.values())), limits.get(what, 0)
        check_edge_index_fits(EDGE_ARGUMENTS[end], index, like, first.numel(), limit, what, check_index)
    return [*(index.long() for index in used.values()), *([num_nodes] if into else [])]
