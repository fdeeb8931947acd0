"""Frozen plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import prod
from typing import Any

from e3nn.o3 import Irrep, Irreps

from tpgen.base.drawing.path_map import PathMap, Route
from tpgen.base.locks import cached_property
from tpgen.base.notebook import Shown
from tpgen.planner.coupling import count_nonzeros
from tpgen.planner.modes import Mode
from tpgen.planner.normalization import Factors
from tpgen.planner.plan_table import PlanRow, table_html, table_lines
from tpgen.planner.strict import Reader

OUT = "out"  # the name of the output among the operands
ROW, SHARED = "row", "shared"  # how rows find an operand; any other word is the name of an index
ELEMENT = "element"  # the index of weights that rows of one element share


@dataclass(frozen=True)
class Segment:
    """``mul`` copies of one irrep: entries ``start`` to ``stop`` of a flat operand."""

    index: int  # position in the irreps
    start: int
    mul: int
    ir: Irrep

    @property
    def stop(self) -> int:
        return self.start + self.mul * self.ir.dim

    def __str__(self) -> str:
        return f"{self.mul}x{self.ir}"


def list_segments(irreps: Irreps) -> list[Segment]:
    """Segments of a flat operand."""
    found: list[Segment] = []
    start = 0
    for index, (mul, ir) in enumerate(irreps):
        found.append(Segment(index, start, mul, ir))
        start = found[-1].stop
    return found


@dataclass(frozen=True)
class WeightSlice:
    """Part of a weight operand that one path reads."""

    start: int
    shape: tuple[int, ...]
    operand: str = "w"

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape)


@dataclass(frozen=True)
class Operand:
    """Tensor of a plan.  A polynomial's irreps describe one channel; ``channels=False``: all channels share one copy.

    ``rows``: ``row`` (each row has its own), ``shared`` (one for all), or a row index's name.
    """

    name: str
    irreps: Irreps
    layout: str = "mul_ir"
    channels: bool = True
    weights: bool = False
    rows: str = ROW

    @property
    def dim(self) -> int:
        return int(self.irreps.dim)

    @property
    def user_arguments(self) -> tuple:
        """Fields that a user gives."""
        return self.name, self.irreps, self.layout, self.channels

    def __str__(self) -> str:
        kind = "weights" if self.weights else "row" if self.channels else "row, one copy for all channels"
        return f"{self.name}: {self.irreps} ({kind}, {self.layout})"


@dataclass(frozen=True)
class Leg:
    """Part of an operand that a path touches: a segment, or all ``dim`` components."""

    operand: str
    dim: int
    segment: Segment | None = None

    @staticmethod
    def on(operand: str, segment: Segment) -> Leg:
        return Leg(operand, segment.ir.dim, segment)

    @property
    def at(self) -> Segment:
        """This leg's segment, asserted to exist."""
        assert self.segment is not None, f"{self.operand} is read whole"
        return self.segment

    @property
    def numbers(self) -> int:
        """Count of numbers per row."""
        return self.dim if self.segment is None else self.dim * self.segment.mul

    def __str__(self) -> str:
        return self.operand if self.segment is None else str(self.segment)


@dataclass(frozen=True)
class Path:
    """Coupling of input legs into an output leg (last).

    ``entries``: (k, i, ..., j) -> value, by default the Wigner 3j symbol, or the identity of one input.
    """

    index: int  # of the instruction
    mode: Mode
    sizes: tuple[tuple[str, int], ...]  # multiplicity axes
    legs: tuple[Leg, ...]
    weight: WeightSlice | None
    coefficient: float
    factors: Factors = field(default=Factors(1.0, 1.0, 1.0, 1.0), repr=False)
    entries: Mapping[tuple[int, ...], float] | None = field(default=None, repr=False)
    label: str = ""  # where the constant comes from, if it is no 3j symbol

    @property
    def inputs(self) -> tuple[Leg, ...]:
        return self.legs[:-1]

    @property
    def in1(self) -> Segment:
        return self.legs[0].at

    @property
    def in2(self) -> Segment:
        return self.legs[1].at

    @property
    def out(self) -> Segment:
        return self.legs[-1].at

    @property
    def ls(self) -> tuple[int, ...]:
        """Degrees l of the legs."""
        return tuple(leg.at.ir.l for leg in self.legs)

    @property
    def nonzeros(self) -> int:
        """Count of the coupling's non-zero entries; 0 for an identity."""
        if self.entries is not None:
            return len(self.entries)
        return count_nonzeros(*self.ls) if len(self.inputs) > 1 else 0

    @property
    def dense(self) -> int:
        """Count of the coupling's entries; 0 for an identity."""
        return prod(leg.dim for leg in self.legs) if len(self.inputs) > 1 or self.entries is not None else 0

    @property
    def flops(self) -> int:
        """Operations per row (and channel), of couplings and weight."""
        sizes = dict(self.sizes)
        copies = prod(sizes[a] for a in set(self.mode.in1 + self.mode.in2))
        weight = prod(sizes.values()) * self.legs[-1].dim if self.weight else 0
        return 2 * (copies * self.nonzeros + weight)

    @property
    def couples(self) -> str:
        """Text: input segments × ... → output segment."""
        return f"{' × '.join(map(str, self.inputs))} → {self.legs[-1]}"


OF_PATHS, OF_MONOMIALS = "paths", "monomials"  # what forms consist of; rooms that treat these in two ways keep a table


@dataclass(frozen=True, eq=False)
class Maker:
    """Kind of plan: planning function, JSON readers, titles and units."""

    format: str  # of the JSON text
    make: Callable[..., Plan]
    title: Callable[[Plan], str]  # behind the digest
    readers: Mapping[str, Reader]  # of the arguments, from the JSON text
    plan_of_path: Callable[[Plan, Path], Plan] = lambda plan, path: plan  # the plan of one path or term
    flat: Callable[[Plan], Plan] = lambda plan: plan  # what programs compute, where a module does the rest
    form: str = OF_PATHS
    sizes: tuple[str, ...] = ()  # of a call, beside its rows, that plans leave open
    noun: str = "path"  # for one instruction
    unit: str = "row"  # that operations are counted for
    separators: tuple[str, str] = (", ", ": ")  # of the JSON text, which the digest is of


@dataclass(frozen=True)
class Plan(Shown):
    """Plan of a product, linear layer or polynomial; equal plans compute the same function.

    ``arguments`` are attributes too (``plan.irreps_in1``).  ``paths`` omit empty instructions.  ``operands``: inputs,
    weights, last the output.
    """

    maker: Maker = field(compare=False, repr=False)
    arguments: Mapping[str, Any] = field(compare=False)
    instructions: tuple[Any, ...] = field(compare=False, repr=False)
    operands: tuple[Operand, ...] = field(compare=False, repr=False)
    paths: tuple[Path, ...] = field(compare=False, repr=False)
    weight_slices: tuple[WeightSlice | None, ...] = field(default=(), compare=False, repr=False)  # by instruction
    biased: tuple[Segment, ...] = field(default=(), compare=False, repr=False)  # of the output

    def __getattr__(self, name: str) -> Any:
        arguments = self.__dict__.get("arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(f"this plan has no {name!r}; it was made from {', '.join(arguments)}")

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands[:-1] if not o.weights)

    @cached_property
    def weights(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.weights)

    @property
    def out(self) -> Operand:
        return self.operands[-1]

    def operand(self, name: str) -> Operand:
        return next(o for o in self.operands if o.name == name)

    @cached_property
    def weight_numel(self) -> int:
        """Weights per row (in all if shared), of a polynomial per channel."""
        return sum(o.dim for o in self.weights)

    @cached_property
    def by_element(self) -> bool:
        """Whether each row's element selects weights."""
        return any(o.rows == ELEMENT for o in self.weights)

    @cached_property
    def bias_numel(self) -> int:
        """Biases per output channel."""
        return sum(segment.mul for segment in self.biased)

    @cached_property
    def reached(self) -> tuple[bool, ...]:
        """For every output segment, whether a non-zero path or bias exists."""
        legs = [path.legs[-1] for path in self.paths if path.coefficient != 0.0]
        live = {leg.segment.index for leg in legs if leg.segment} | {s.index for s in self.biased if s.mul}
        whole = any(leg.segment is None for leg in legs)
        return tuple(whole or index in live for index in range(len(self.out.irreps)))

    @cached_property
    def by_instruction(self) -> dict[int, tuple[Path, ...]]:
        """Paths by instruction index, without empty instructions."""
        return {index: tuple(found) for index, found in groupby(self.paths, key=lambda path: path.index)}

    @cached_property
    def flat(self) -> Plan:
        """The plan without channels and biases."""
        return self.maker.flat(self)

    @property
    def flops(self) -> int:
        """Operations per row of the forward call."""
        return sum(path.flops for path in self.flat.paths)

    def row_bytes(self, itemsize: int = 4) -> int:
        """Fewest bytes per row: each operand once."""
        return itemsize * sum(o.dim for o in self.operands if o.rows == ROW)

    @cached_property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the JSON text's SHA-256."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """JSON text for `tpgen.planner.read.read_plan`."""
        return self._json_text

    @cached_property
    def _json_text(self) -> str:
        fields = {
            "format": self.maker.format,
            **{name: _to_json_value(value) for name, value in self.arguments.items()},
        }
        return json.dumps(fields, ensure_ascii=True, allow_nan=False, separators=self.maker.separators)

    def remade(self, **changes: Any) -> Plan:
        """A plan with some arguments changed."""
        return self.maker.make(**{**self.arguments, **changes})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple:
        return partial(self.maker.make, **self.arguments), ()

    def __deepcopy__(self, memo: object) -> Plan:
        return self

    @property
    def title(self) -> str:
        return f"{self.maker.format.split('.')[1].split('/')[0]} {self.digest}: {self.maker.title(self)}"

    def lines(self, itemsize: int = 4) -> list[tuple[str, int | None]]:
        """Printed lines, each with instruction index or None."""
        return table_lines(self.title, self.rows(itemsize), self._write_totals_line(itemsize))

    def rows(self, itemsize: int = 4) -> list[PlanRow]:
        """Table rows, one per instruction with paths."""
        return [PlanRow(n, self._make_table_cells(paths, itemsize)) for n, paths in self.by_instruction.items()]

    def _make_table_cells(self, paths: tuple[Path, ...], itemsize: int) -> dict[str, str]:
        path, slices = paths[0], [p.weight for p in paths if p.weight]
        numbers = sum({leg.operand: leg.numbers for leg in path.legs}.values())
        if slices and self.operand(slices[0].operand).rows == ROW:
            numbers += slices[-1].stop - slices[0].start
        name = f"{slices[0].operand} " if slices and len(self.weights) > 1 else ""
        dense = sum(p.dense for p in paths)
        return {
            self.maker.noun: str(path.index),
            **{f"in{n}": str(leg) for n, leg in enumerate(path.inputs, 1)},
            "out": str(path.legs[-1]),
            "mode": path.mode.name,
            "constant": path.label,
            "paths": str(len(paths)) if path.label else "",
            "weights": f"{name}{slices[0].start}:{slices[-1].stop}" if slices else "-",
            "coefficient": "" if path.label else f"{path.coefficient:.6g}",
            "coupling": f"{sum(p.nonzeros for p in paths)}/{dense}" if dense else "",
            "flops": str(sum(p.flops for p in paths)),
            "bytes": str(numbers * itemsize),
        }

    def _write_totals_line(self, itemsize: int = 4) -> str:
        dropped = len(self.instructions) - len(self.biased) - len(self.by_instruction)
        empty = f" ({dropped} empty dropped)" if dropped else ""
        if not self.paths:
            return f"no path: the output is {'biases alone' if self.bias_numel else 'zero'}{empty}"
        nonzeros, dense = sum(p.nonzeros for p in self.paths), sum(p.dense for p in self.paths)
        coupling = f"coupling {nonzeros}/{dense} non-zero, " if dense else ""
        return (
            f"{len(self.paths)} paths{empty}, {coupling}per {self.maker.unit} {self.flops} flops, "
            f"{self.flat.row_bytes(itemsize)} bytes (each operand once)"
        )

    @property
    def map(self) -> PathMap:
        """Diagram of paths from input to output segments."""
        sides = {o.name: self._list_segment_labels(o) for o in self.operands if not o.weights}
        routes = tuple(map(self._make_diagram_route, self.by_instruction.values()))
        return PathMap({o.name: sides[o.name] for o in self.inputs}, {OUT: sides[OUT]}, routes)

    def _list_segment_labels(self, operand: Operand) -> tuple[str, ...]:
        # last the operand itself, if a path reads the whole of it
        segments = [leg.segment for path in self.paths for leg in path.legs if leg.operand == operand.name]
        parts = tuple(map(str, operand.irreps)) if any(segments) or not segments else ()
        return parts if all(segments) else (*parts, operand.name)

    def _make_diagram_route(self, paths: tuple[Path, ...]) -> Route:
        path = paths[0]
        last = {leg.operand: len(self._list_segment_labels(self.operand(leg.operand))) - 1 for leg in path.legs}
        ends = [(leg.operand, leg.segment.index if leg.segment else last[leg.operand]) for leg in path.legs]
        mode = f" ({path.mode.name})" if path.mode.name else ""
        name = f"{self.maker.noun} {path.index}: {path.couples}{mode}"
        return Route(path.index, tuple(dict.fromkeys(ends[:-1])), (ends[-1],), name, sum(p.flops for p in paths))

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.lines())

    def _repr_html_(self) -> str:
        return table_html(self.title, self.rows(), self._write_totals_line(), self.map)


def _to_json_value(value: Any) -> Any:
    # a record is a list of its user's arguments
    value = getattr(value, "user_arguments", value)
    if isinstance(value, Irreps):
        return str(value)
    return [_to_json_value(entry) for entry in value] if isinstance(value, (tuple, list)) else value
