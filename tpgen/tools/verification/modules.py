"""Subjects of tpgen's modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tpgen.emitter.polynomial import EDGE_ARGUMENTS
from tpgen.form.polynomial import flatten_operand, make_scalar_form, unflatten_operand
from tpgen.form.reference import reference_product
from tpgen.form.sampling import random_operands
from tpgen.nn.linear import Linear
from tpgen.nn.polynomial_module import PolynomialModule, find_row_shape_of_operand
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.equivariance import representation_matrix
from tpgen.planner.plan import OUT, Operand
from tpgen.tools.verification.moments import compare_linear_moments, compare_product_moments
from tpgen.tools.verification.subject import (
    Frame,
    Run,
    Subject,
    TensorsByName,
    compiled_name_prefix,
    draw_derangement,
    make_frame,
)

_NODES = 5


def _normal_in_dtype(dtype: torch.dtype, generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).double()


def _common_subject_fields(module: Any, like: Tensor) -> dict[str, Any]:
    layouts = tuple(getattr(module, "layout", ()))
    layout = layouts[0] if len(set(layouts)) == 1 else ",".join(layouts)
    settings = ", ".join(filter(None, (module.choice.strategy, getattr(module, "backend", ""), layout)))
    return {"module": module, "dtype": like.dtype, "device": like.device, "settings": settings}


def _product_subject(product: TensorProduct, rows: int) -> Subject:
    plan, like, (first, second, out) = product.plan, product.output_mask, product.layout
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(_NODES, (2, rows), generator=generator) if product.edges else None
    names = ("x1", "x2", "w") if product.weight_numel else ("x1", "x2")
    by_row = [n for n in names if not (n == "x1" and product.edges) and not (n == "w" and plan.shared_weights)]

    def draw_operands() -> TensorsByName:
        found = random_operands(plan, rows, names, generator=generator, dtype=like.dtype)
        nodes = {"x1": _normal_in_dtype(like.dtype, generator, _NODES, plan.irreps_in1.dim)} if product.edges else {}
        return {**{name: x.double() for name, x in found.items()}, **nodes}

    def call_with_ends(ends: Tensor | None) -> Callable[[Run, TensorsByName], TensorsByName]:
        if ends is None:
            return lambda run, x: {"out": run(*x.values())}
        on = ends.to(like.device)
        return lambda run, x: {"out": run(x["x1"], x["x2"], x.get("w"), *on)}

    def reference_results(x: TensorsByName) -> TensorsByName:
        x1 = x["x1"] if ends is None else x["x1"][ends[0]]
        found = reference_product(plan, x1, x["x2"], x.get("w"), layout=product.layout)
        nodes = found if ends is None else found.new_zeros(_NODES, found.shape[1]).index_add(0, ends[1], found)
        return {"out": nodes}

    def results_and_expected_of_permuted_graph(subject: Subject) -> tuple[TensorsByName, TensorsByName]:
        assert ends is not None
        nodes, edges = draw_derangement(_NODES), draw_derangement(rows)
        number = torch.argsort(nodes)  # the new number of each node
        moved = {name: x[edges] if name in by_row else x for name, x in subject.given.items()}
        got = replace(subject, call=call_with_ends(number[ends[:, edges]]))({**moved, "x1": subject.given["x1"][nodes]})
        return got, {name: y[nodes] for name, y in subject(subject.given).items()}

    constant = plan.weight_numel > 0 and not all(i.has_weight for i in plan.instructions)
    on = f", {rows} edges of {_NODES} nodes" if product.edges else ""
    return Subject(
        kind="convolution" if product.edges else "product",
        title=f"{plan.irreps_in1} x {plan.irreps_in2} -> {plan.irreps_out}{on}",
        call=call_with_ends(ends),
        given=draw_operands(),
        others=draw_operands(),
        turns={"x1": make_frame(plan.irreps_in1, first), "x2": make_frame(plan.irreps_in2, second)},
        results={"out": make_frame(plan.irreps_out, out)},
        linear={name: (name,) for name in names if name != "w" or not constant},
        affine={"w": ("w",)} if constant else {},
        reference=reference_results,
        results_of_reordered_rows=results_and_expected_of_permuted_graph
        if product.edges
        else partial(_results_and_expected_of_permuted_rows, rows, by_row),
        moments=None if product.edges else partial(compare_product_moments, product),
        **_common_subject_fields(product, like),
    )


def _results_and_expected_of_permuted_rows(
    rows: int,
    row_operands: Sequence[str],
    subject: Subject,
    call_in_order: Callable[[Tensor], Callable] | None = None,
    rows_are_summed: bool = False,
) -> tuple[TensorsByName, TensorsByName]:
    # rows are independent: permuted rows give permuted results, unless these are sums of rows
    order = draw_derangement(rows)
    moved = replace(subject, call=call_in_order(order)) if call_in_order else subject
    got = moved({name: x[order] if name in row_operands else x for name, x in subject.given.items()})
    return got, {name: y if rows_are_summed else y[order] for name, y in subject(subject.given).items()}


def _linear_subject(layer: Linear, rows: int) -> Subject:
    plan, like = layer.plan, layer.output_mask
    generator = torch.Generator().manual_seed(0)
    channels = () if plan.f_in is None else (plan.f_in,)
    pair = () if plan.f_in is None else (plan.f_in, plan.f_out)
    elements = (layer.num_elements or 3) if plan.by_element else 0
    index = torch.randint(elements, (rows,), generator=generator) if elements else None
    each = (elements,) if elements else () if plan.shared_weights else (rows,)
    shapes = {"x": (rows, *channels, plan.irreps_in.dim), "w": (*each, *pair, plan.weight_numel)}
    if plan.bias_numel:
        shapes["b"] = (*each, *pair[1:], plan.bias_numel)

    def draw_operands() -> TensorsByName:
        return {name: _normal_in_dtype(like.dtype, generator, *shape) for name, shape in shapes.items()}

    def call_in_order(row_order: Tensor | slice) -> Callable[[Run, TensorsByName], TensorsByName]:
        at = {} if index is None else {"index": index[row_order].to(like.device)}
        return lambda run, x: {"out": run(*x.values(), **at)}

    return Subject(
        kind="linear layer",
        title=f"{plan.irreps_in} -> {plan.irreps_out}",
        call=call_in_order(slice(None)),
        given=draw_operands(),
        others=draw_operands(),
        turns={"x": make_frame(plan.irreps_in, layer.layout[0])},
        results={"out": make_frame(plan.irreps_out, layer.layout[1])},
        linear={"x, b": ("x", "b"), "w, b": ("w", "b")} if plan.bias_numel else {"x": ("x",), "w": ("w",)},
        reference=partial(_linear_reference, layer, index),
        moments=partial(compare_linear_moments, layer),
        results_of_reordered_rows=partial(
            _results_and_expected_of_permuted_rows,
            rows,
            ("x",) if plan.shared_weights else tuple(shapes),
            call_in_order=call_in_order,
        ),
        **_common_subject_fields(layer, like),
    )


def _linear_reference(layer: Linear, index: Tensor | None, x: TensorsByName) -> TensorsByName:
    # every channel to every channel, as layers without channels; weights of elements as those of each row
    plan = layer.plan
    if index is not None:
        plan, x = plan.remade(shared_weights=False), {n: y if n == "x" else y[index] for n, y in x.items()}
    pairs = x["w"]
    if plan.f_in is None:
        out = reference_product(plan, x["x"], pairs, layout=layer.layout)
    else:
        columns = [
            [reference_product(plan, x["x"][:, i], pairs[..., i, o, :], layout=layer.layout) for i in range(plan.f_in)]
            for o in range(plan.f_out or 0)
        ]
        out = torch.stack([torch.stack(column).sum(0) for column in columns], 1)
    if "b" in x:
        bias = x["b"].expand(*out.shape[:-1], plan.bias_numel)
        out = out.index_add(-1, layer._bias_index.cpu(), bias)
    return {"out": out}


def _polynomial_subject(module: PolynomialModule, rows: int) -> Subject:
    plan, like = module.plan, module._like
    generator = torch.Generator().manual_seed(0)
    channels, elements = module.channels, module.num_elements
    index = torch.randint(elements, (rows,), generator=generator) if elements else None
    names, at = _parameter_name_of_each_weight(module), dict(module._ends)
    ends = dict(zip(EDGE_ARGUMENTS, torch.randint(_NODES, (2, rows), generator=generator), strict=True)) if at else {}

    def draw_operands(uses_parameters: bool) -> TensorsByName:
        counts = {o.name: _NODES if o.name in at else rows for o in plan.inputs}
        found = {
            o.name: _normal_in_dtype(like.dtype, generator, counts[o.name], *find_row_shape_of_operand(o, channels))
            for o in plan.inputs
        }
        for o, name in zip(plan.weights, names, strict=True):
            parameter = module.get_parameter(name) if name else None
            shape = (elements or 1, o.dim, channels) if parameter is None else tuple(parameter.shape)
            stored = None if parameter is None or not uses_parameters else parameter.detach().to("cpu", torch.float64)
            found[o.name] = _normal_in_dtype(like.dtype, generator, *shape) if stored is None else stored
        return found

    def reference_results(x: TensorsByName) -> TensorsByName:
        found = {o.name: x[o.name] if index is None else x[o.name][index] for o in plan.weights}
        found |= {name: x[name][ends[end]] for name, end in at.items() if name != OUT}
        out = _polynomial_reference(module, {**x, **found})
        return {"out": out.new_zeros(_NODES, out.shape[1]).index_add(0, ends[at[OUT]], out) if OUT in at else out}

    def call_in_order(row_order: Tensor | slice) -> Callable[[Run, TensorsByName], TensorsByName]:
        used = {
            name: ends[end][row_order].to(like.device) for end, name in EDGE_ARGUMENTS.items() if end in at.values()
        }
        if OUT in at:
            used["num_nodes"] = _NODES
        return partial(
            _call_polynomial, module, names, None if index is None else index[row_order].to(like.device), used
        )

    form = make_scalar_form(plan)
    single = {o.name: (o.name,) for o in plan.inputs if form.degree(o.name) == 1}
    weights = {"weights": tuple(o.name for o in plan.weights)} if plan.weights else {}
    constant = any(not term.weight for term in plan.terms)
    return Subject(
        kind="polynomial",
        title=f"{', '.join(f'{o.name}: {o.irreps}' for o in plan.inputs)} -> {plan.out.irreps}, {channels} channels",
        call=call_in_order(slice(None)),
        given=draw_operands(uses_parameters=True),
        others=draw_operands(uses_parameters=False),
        turns={o.name: _polynomial_frame(o) for o in plan.inputs},
        results={"out": _polynomial_frame(plan.out)},
        linear={} if constant else weights,
        affine={**single, **(weights if constant else {})},  # what lacks an input is a constant to it
        degrees={o.name: form.degree(o.name) for o in plan.inputs if form.degree(o.name) > 1},
        reference=reference_results,
        results_of_reordered_rows=partial(
            _results_and_expected_of_permuted_rows,
            rows,
            [o.name for o in plan.inputs if o.name not in at],
            call_in_order=call_in_order,
            rows_are_summed=OUT in at,
        ),
        slack=2.0,  # more factors than a product has
        **_common_subject_fields(module, like),
    )


def _parameter_name_of_each_weight(module: PolynomialModule) -> list[str]:
    # no name for weights that calls take as arguments
    names = {id(p): name for name, p in module.named_parameters()}
    if not names:
        return [""] * len(module.plan.weights)
    return [names[id(p)] for p in module._choose_given_or_own_weights(None, 0)]


def _polynomial_frame(o: Operand) -> Frame:
    def turned(x: Tensor, matrix: Tensor) -> Tensor:
        flat = unflatten_operand(o, x.flatten(1) if o.channels and o.layout == "channel" else x)
        return flatten_operand(o, flat @ representation_matrix(o.irreps, matrix).T).reshape(x.shape)

    return Frame(str(o.irreps), turned)


def _call_polynomial(
    module: PolynomialModule,
    names: list[str],
    index: Tensor | None,
    ends: Mapping[str, Any],
    run: Run,
    x: TensorsByName,
) -> TensorsByName:
    inputs = [x[o.name] for o in module.plan.inputs]
    weights = [x[o.name] for o in module.plan.weights]
    keywords: dict[str, Any] = {**ends, **({"weights": weights} if weights and not any(names) else {})}
    if index is not None:
        keywords[module._index] = index
    if not any(names):
        return {"out": run(*inputs, **keywords)}
    held = {compiled_name_prefix(run) + name: w for name, w in zip(names, weights, strict=True)}
    return {"out": functional_call(run, held, tuple(inputs), keywords)}  # type: ignore[arg-type]


def _polynomial_reference(module: PolynomialModule, x: TensorsByName) -> Tensor:
    plan = module.plan
    values = {o.name: unflatten_operand(o, x[o.name]).movedim(-1, 0) for o in plan.operands if o.name != OUT}
    gradient = make_scalar_form(plan).gradient(OUT)
    rows = x[plan.inputs[0].name].shape[0]
    zero = torch.zeros(rows, module.channels, dtype=torch.float64)
    parts = [gradient[k].at(values) + zero if k in gradient else zero for k in range(plan.out.dim)]
    return flatten_operand(plan.out, torch.stack(parts, -1))


SUBJECTS: dict[type[nn.Module], Callable[[Any, int], Subject]] = {
    TensorProduct: _product_subject,
    Linear: _linear_subject,
    PolynomialModule: _polynomial_subject,
}


def build_module_subject(module: nn.Module, rows: int) -> Subject | None:
    """Build a tpgen module's subject; None for other modules."""
    for cls, made in SUBJECTS.items():
        if isinstance(module, cls):
            return made(module, rows)
    return None
