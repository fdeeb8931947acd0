"""Equivariant polynomials that users write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor, nn
from typing_extensions import Unpack

from tpgen.base.errors import InputError, OptionError, PlanError, unknown
from tpgen.compiler.config import RunOptions
from tpgen.emitter.leaf import record_leaf_call
from tpgen.nn.checks import check_plan
from tpgen.nn.edges import EdgeOrder
from tpgen.nn.polynomial_module import (
    PolynomialModule,
    check_checkpoint_shape,
    check_own_options,
    common_multiplicity,
    parse_edge_ends,
)
from tpgen.planner.instruction import parse_irreps
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import (
    POLYNOMIAL,
    PolynomialTerm,
    generated_couplings,
    make_polynomial_plan,
    sort_entries,
)

_WEIGHTS = ("shared", "element", "given", "none")


class Polynomial(PolynomialModule):
    r"""Equivariant polynomial of several tensors, row by row and channel by channel.

    .. math:: z_k = \sum_\text{terms} \sum_p w_p \sum_{i \ldots j} U^p_{k, i \ldots j}\; a_i \cdots b_j

    Parameters
    ----------
    tensors
        irreps of each input by name, with one copy of every irrep per channel, or one for all.
    irreps_out
        irreps of the output, with one copy per channel.
    terms
        tuples of names, repeated for powers: all couplings of their product to the output; or ``(names, table)``
        with constants ``{(k, i, ..., j): value}``, k a component of the output, i, ..., j of the tensors.
    weights
        ``shared`` by all rows, by ``element``, ``given`` to each call, or ``none``.
    num_elements
        number of elements, for weights by element.
    layout
        ``mul_ir``, ``ir_mul`` or ``channel`` ``(rows, channels, components)``, or a mapping from names (also ``out``).
    edges
        makes a convolution over edges: maps names of tensors to the end, ``src`` or ``dst``, that selects rows, and
        ``out`` to the end that sums results.
    strategy
        ``kernel``, ``einsum``, ``unrolled`` or ``auto``; see `choice`.
    backend, dynamic, fullgraph, mode
        as for `TensorProduct`.
    max_bytes
        limit of a graph's or convolution's memory beyond operands and results.

    Raises
    ------
    PlanError
        for an unknown tensor, a term without equivariant map, or a table that is not equivariant.
    OptionError
        for an unknown option.
    InputError
        for a wrong tensor.

    Example
    -------
    Features squared, coupled with harmonics:

    >>> tensors = {"x": "8x0e+8x1o", "y": "0e+1o"}
    >>> product = Polynomial(tensors, "8x0e+8x1o", [("x", "x", "y"), ("x",)], strategy="einsum")
    >>> product(torch.randn(5, 32), torch.randn(5, 4)).shape
    torch.Size([5, 32])

    A dot product:

    >>> dot = Polynomial({"a": "4x1o", "b": "4x1o"}, "4x0e", [(("a", "b"), {(0, i, i): 1.0 for i in range(3)})],
    ...                  weights="none", strategy="einsum")
    >>> dot(torch.ones(1, 12), torch.ones(1, 12))
    tensor([[3., 3., 3., 3.]])

    A convolution over edges:

    >>> conv = Polynomial(tensors, "8x0e+8x1o", [("x", "x", "y")], edges={"x": "src", "out": "dst"}, strategy="einsum")
    >>> src, dst = torch.randint(5, (2, 12))
    >>> conv(torch.randn(5, 32), torch.randn(12, 4), edge_src=src, edge_dst=dst).shape
    torch.Size([5, 32])
    """

    def __init__(
        self,
        tensors: Mapping[str, Irreps | str],
        irreps_out: Irreps | str,
        terms: Iterable[Any],
        *,
        weights: str = "shared",
        num_elements: int | None = None,
        layout: str | Mapping[str, str] = "mul_ir",
        edges: Mapping[str, str] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        check_own_options(options, "weights", "num_elements", "layout", "edges")
        if weights not in _WEIGHTS:
            raise OptionError(f"weights: {unknown('kind', weights, _WEIGHTS)}")
        if (weights == "element") != (num_elements is not None):
            raise OptionError(
                "num_elements is the number of weights by element: give it with weights='element', and there alone"
            )
        _check_argument_types(tensors, terms, layout)
        irreps = {name: parse_irreps(text, name) for name, text in tensors.items()}
        irreps[OUT] = parse_irreps(irreps_out, OUT)
        channels = common_multiplicity("out:", irreps[OUT])
        operands = [_make_operand(name, value, channels, layout) for name, value in irreps.items()]
        if weights == "none" and not any(o.channels for o in operands if o.name != OUT):
            raise PlanError(
                f"out: nothing tells its {channels} channels apart, as every tensor is one copy that all share: "
                "give a tensor with as many copies, weights, or an output with one copy of every irrep"
            )
        written = [t for n, term in enumerate(terms) for t in _parse_user_term(n, term, operands, weights != "none")]
        plan = make_polynomial_plan(operands, written)
        if weights == "element" and not plan.weights:
            raise PlanError("weights: by element, and no term has any: give terms weights, or weights='none'")
        self._set_up_from_plan(plan, channels, num_elements, weights == "given", edges, **options)

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        channels: int,
        *,
        num_elements: int | None = None,
        internal_weights: bool = True,
        edges: Mapping[str, str] | None = None,
        **options: Unpack[RunOptions],
    ) -> Polynomial:
        """Build the module of a plan; without internal weights, calls give weights.

        >>> from tpgen.planner.contraction import make_contraction_plan
        >>> plan = make_contraction_plan(Irreps("0e+1o"), Irreps("0e"), [2])
        >>> Polynomial.from_plan(plan, channels=8, strategy="einsum")(torch.randn(5, 8, 4)).shape
        torch.Size([5, 8])
        """
        check_own_options(options, "num_elements", "internal_weights", "edges")
        check_plan(plan, {POLYNOMIAL: "make_polynomial_plan or make_contraction_plan"})
        if channels < 1:
            raise PlanError(f"channels: a polynomial has one at least, got {channels}")
        made = cls.__new__(cls)
        made._set_up_from_plan(
            plan, channels, num_elements, bool(plan.weights) and not internal_weights, edges, **options
        )
        return made

    def _set_up_from_plan(
        self,
        plan: Plan,
        channels: int,
        num_elements: int | None,
        weights_are_given: bool,
        edges: Mapping[str, str] | None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__(
            plan, channels, num_elements, not weights_are_given, parse_edge_ends(edges or {}, plan), **options
        )
        self.irreps_in = {o.name: _irreps_of_channels(o, channels) for o in plan.inputs}
        self.irreps_out = _irreps_of_channels(plan.out, channels)
        self.weights = nn.ParameterDict()
        if not weights_are_given:
            for o in plan.weights:
                self.weights[o.name] = nn.Parameter(torch.randn(num_elements or 1, o.dim, channels) / o.dim**0.5)

    def forward(
        self,
        *tensors: Tensor,
        index: Tensor | None = None,
        weights: Sequence[Tensor] | None = None,
        edge_src: Tensor | EdgeOrder | None = None,
        edge_dst: Tensor | None = None,
        num_nodes: int | None = None,
        check_index: bool = True,
        **named: Tensor,
    ) -> Tensor:
        """Evaluate the polynomial of ``tensors (rows, dim)``, in order or by name; returns ``(rows, out)``.

        ``index`` is every row's element, int64 ``(rows,)`` or one-hot.  ``weights`` replace internal ones:
        `weight_shapes` preceded by the number of elements, 1 (shared by all rows) or rows.  Edge arguments are those of
        `TensorProductConv`.
        """
        tensors = self._order_tensors_as_inputs(tensors, named) if named else tensors
        if len(tensors) != len(self.irreps_in):
            raise InputError(
                f"a call takes {len(self.irreps_in)} tensors ({', '.join(self.irreps_in)}), got {len(tensors)}"
            )
        if not isinstance(tensors[0], Tensor):
            said = {"edge_src": edge_src, "edge_dst": edge_dst, "num_nodes": num_nodes} if self._ends else {}
            node = record_leaf_call(self, *tensors, index=index, weights=weights, **said)
            if node is not None:
                return node
        return self._check_operands_and_run(tensors, index, weights, edge_src, edge_dst, num_nodes, check_index)

    def _order_tensors_as_inputs(self, tensors: tuple[Tensor, ...], named: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        rest = [*self.irreps_in][len(tensors) :]
        if sorted(rest) != sorted(named):
            raise InputError(
                f"a call takes the tensors {', '.join(self.irreps_in)}, in this order or by name: after {len(tensors)} "
                f"in order, give {', '.join(rest) or 'none'}; got {', '.join(named)}"
            )
        return (*tensors, *(named[name] for name in rest))

    def _own_weights(self) -> list[Tensor]:
        return list(self.weights.values())

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        for name, ours in self.weights.items():
            check_checkpoint_shape(f"{prefix}weights.{name}", state_dict.get(f"{prefix}weights.{name}"), ours)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        inputs = ", ".join(f"{name}: {irreps}" for name, irreps in self.irreps_in.items())
        return f"{inputs} -> {self.irreps_out}, {len(self.plan.terms)} terms, {self.choice}"


def _check_argument_types(tensors: Any, terms: Any, layout: Any) -> None:
    if not isinstance(tensors, Mapping) or not tensors or OUT in tensors:
        raise PlanError(
            f"tensors: must map the names of one tensor or more to irreps, such as {{'x': '8x0e'}}, and {OUT!r} is "
            f"none of them, got {str(tensors)[:60]}"
        )
    if isinstance(terms, (str, Mapping)) or not isinstance(terms, Iterable):
        raise PlanError(f"terms: must be a list of terms, such as [('x', 'x')], got {str(terms)[:60]}")
    if not isinstance(layout, (str, Mapping)):
        raise PlanError(f"layout: must be a name, or map names of tensors to such names, got {str(layout)[:60]}")
    for name in layout if isinstance(layout, Mapping) else ():
        if name not in (*tensors, OUT):
            raise PlanError(f"layout: {unknown('tensor', name, (*tensors, OUT))}")


def _make_operand(name: str, irreps: Irreps, channels: int, layouts: str | Mapping[str, str]) -> Operand:
    copies = {mul for mul, _ in irreps}
    if copies not in ({channels}, {1}):
        raise PlanError(
            f"{name}: must have {channels} copies of every irrep as the output "
            f"has, one for each channel, or one copy that "
            f"all channels share, got {irreps}"
        )
    one = Irreps([(1, ir) for _, ir in irreps])
    kind = layouts if isinstance(layouts, str) else layouts.get(name, "mul_ir")
    return Operand(name, one, kind, channels=copies == {channels})


def _irreps_of_channels(o: Operand, channels: int) -> Irreps:
    return Irreps([(channels if o.channels else 1, ir) for _, ir in o.irreps])


def _parse_user_term(term_index: int, term: Any, operands: Sequence[Operand], weighted: bool) -> list[PolynomialTerm]:
    # a term as its user wrote it: as it is, with a table, or coupled to every segment of the output it reaches
    if isinstance(term, PolynomialTerm):
        if term.weight and not weighted:
            raise PlanError(
                f"term {term_index}: has weights {term.weight!r}, and the polynomial has none: weights='none'"
            )
        return [term]
    if isinstance(term, (list, tuple)) and len(term) == 2 and not isinstance(term[1], str):
        names, table = term
        _check_types_of_table_term(term_index, names, table)
        if not table:
            raise PlanError(f"term {term_index}: its table is empty: leave the term out")
        return [
            PolynomialTerm(tuple(names), weight=f"w{term_index}" if weighted else None, table=(sort_entries(table),))
        ]
    if not isinstance(term, (list, tuple)) or not all(isinstance(name, str) for name in term):
        raise PlanError(f"term {term_index}: must be a tuple of names, or (names, table), got {str(term)[:60]}")
    names = tuple(term)
    known = {o.name: o for o in operands}
    reached = [k for k, (_, ir) in enumerate(known[OUT].irreps) if _has_any_coupling(names, str(ir), known)]
    return [
        PolynomialTerm(names, k, f"w{term_index}_{k}" if weighted else None)
        for k in reached or [0]  # of a term that reaches nothing the plan says so
    ]


def _check_types_of_table_term(term_index: int, names: Any, table: Any) -> None:
    if not isinstance(table, Mapping):
        raise PlanError(
            f"term {term_index}: a table is a mapping {{(k, i, ..., j): value}}, got {type(table).__name__}: give the "
            "entries that are not zero"
        )
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise PlanError(
            f"term {term_index}: a table has a tuple of names before it, such as ('x', 'y'), got {str(names)[:60]!r}"
        )


def _has_any_coupling(names: tuple[str, ...], output: str, operands: Mapping[str, Operand]) -> bool:
    if not 1 <= len(names) <= 4 or any(name not in operands or name == OUT for name in names):
        return True  # planning says what is wrong
    return any(generated_couplings(tuple(str(operands[name].irreps) for name in names), output, names, "independent"))
