"""Modules of tpgen under test."""

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
from tpgen.tools.verification.moments import compare_mean_squares_of_linear_layer, compare_mean_squares_of_product
from tpgen.tools.verification.subject import (
    CallableModule,
    ModuleUnderTest,
    TensorsByName,
    TransformationRule,
    compiled_name_prefix,
    draw_derangement,
    make_transformation_rule,
)

_NODES = 5


def _normal_in_dtype(dtype: torch.dtype, generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).double()


def _make_common_fields_of_module_under_test(module: Any, tensor_like: Tensor) -> dict[str, Any]:
    layouts = tuple(getattr(module, "layout", ()))
    layout = layouts[0] if len(set(layouts)) == 1 else ",".join(layouts)
    settings = ", ".join(filter(None, (module.choice.strategy, getattr(module, "backend", ""), layout)))
    return {"module": module, "dtype": tensor_like.dtype, "device": tensor_like.device, "settings": settings}


def _build_tested_product(product: TensorProduct, row_count: int) -> ModuleUnderTest:
    plan, like, (first, second, out) = product.plan, product.output_mask, product.layout
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(_NODES, (2, row_count), generator=generator) if product.edges else None
    names = ("x1", "x2", "w") if product.weight_numel else ("x1", "x2")
    by_row = [n for n in names if not (n == "x1" and product.edges) and not (n == "w" and plan.shared_weights)]

    def draw_operands() -> TensorsByName:
        found = random_operands(plan, row_count, names, generator=generator, dtype=like.dtype)
        nodes = {"x1": _normal_in_dtype(like.dtype, generator, _NODES, plan.irreps_in1.dim)} if product.edges else {}
        return {**{name: x.double() for name, x in found.items()}, **nodes}

    def make_call_on_edges(edge_ends: Tensor | None) -> Callable[[CallableModule, TensorsByName], TensorsByName]:
        if edge_ends is None:
            return lambda run, x: {"out": run(*x.values())}
        on = edge_ends.to(like.device)
        return lambda run, x: {"out": run(x["x1"], x["x2"], x.get("w"), *on)}

    def compute_reference_results(operands: TensorsByName) -> TensorsByName:
        x1 = operands["x1"] if ends is None else operands["x1"][ends[0]]
        found = reference_product(plan, x1, operands["x2"], operands.get("w"), layout=product.layout)
        nodes = found if ends is None else found.new_zeros(_NODES, found.shape[1]).index_add(0, ends[1], found)
        return {"out": nodes}

    def compute_results_and_expected_of_permuted_graph(subject: ModuleUnderTest) -> tuple[TensorsByName, TensorsByName]:
        assert ends is not None
        nodes, edges = draw_derangement(_NODES), draw_derangement(row_count)
        number = torch.argsort(nodes)  # the new number of each node
        moved = {name: x[edges] if name in by_row else x for name, x in subject.given.items()}
        got = replace(subject, call=make_call_on_edges(number[ends[:, edges]]))(
            {**moved, "x1": subject.given["x1"][nodes]}
        )
        return got, {name: y[nodes] for name, y in subject(subject.given).items()}

    constant = plan.weight_numel > 0 and not all(i.has_weight for i in plan.instructions)
    on = f", {row_count} edges of {_NODES} nodes" if product.edges else ""
    return ModuleUnderTest(
        kind="convolution" if product.edges else "product",
        title=f"{plan.irreps_in1} x {plan.irreps_in2} -> {plan.irreps_out}{on}",
        call=make_call_on_edges(ends),
        given=draw_operands(),
        others=draw_operands(),
        turns={
            "x1": make_transformation_rule(plan.irreps_in1, first),
            "x2": make_transformation_rule(plan.irreps_in2, second),
        },
        results={"out": make_transformation_rule(plan.irreps_out, out)},
        linear={name: (name,) for name in names if name != "w" or not constant},
        affine={"w": ("w",)} if constant else {},
        reference=compute_reference_results,
        results_of_reordered_rows=compute_results_and_expected_of_permuted_graph
        if product.edges
        else partial(_compute_results_and_expected_of_permuted_rows, row_count, by_row),
        moments=None if product.edges else partial(compare_mean_squares_of_product, product),
        **_make_common_fields_of_module_under_test(product, like),
    )


def _compute_results_and_expected_of_permuted_rows(
    row_count: int,
    names_of_row_operands: Sequence[str],
    subject: ModuleUnderTest,
    make_call_in_row_order: Callable[[Tensor], Callable] | None = None,
    rows_are_summed: bool = False,
) -> tuple[TensorsByName, TensorsByName]:
    # rows are independent: permuted rows give permuted results, unless these are sums of rows
    order = draw_derangement(row_count)
    moved = replace(subject, call=make_call_in_row_order(order)) if make_call_in_row_order else subject
    got = moved({name: x[order] if name in names_of_row_operands else x for name, x in subject.given.items()})
    return got, {name: y if rows_are_summed else y[order] for name, y in subject(subject.given).items()}


def _build_tested_linear_layer(layer: Linear, row_count: int) -> ModuleUnderTest:
    plan, like = layer.plan, layer.output_mask
    generator = torch.Generator().manual_seed(0)
    channels = () if plan.f_in is None else (plan.f_in,)
    pair = () if plan.f_in is None else (plan.f_in, plan.f_out)
    elements = (layer.num_elements or 3) if plan.by_element else 0
    index = torch.randint(elements, (row_count,), generator=generator) if elements else None
    each = (elements,) if elements else () if plan.shared_weights else (row_count,)
    shapes = {"x": (row_count, *channels, plan.irreps_in.dim), "w": (*each, *pair, plan.weight_numel)}
    if plan.bias_numel:
        shapes["b"] = (*each, *pair[1:], plan.bias_numel)

    def draw_operands() -> TensorsByName:
        return {name: _normal_in_dtype(like.dtype, generator, *shape) for name, shape in shapes.items()}

    def make_call_in_row_order(row_order: Tensor | slice) -> Callable[[CallableModule, TensorsByName], TensorsByName]:
        at = {} if index is None else {"index": index[row_order].to(like.device)}
        return lambda run, x: {"out": run(*x.values(), **at)}

    return ModuleUnderTest(
        kind="linear layer",
        title=f"{plan.irreps_in} -> {plan.irreps_out}",
        call=make_call_in_row_order(slice(None)),
        given=draw_operands(),
        others=draw_operands(),
        turns={"x": make_transformation_rule(plan.irreps_in, layer.layout[0])},
        results={"out": make_transformation_rule(plan.irreps_out, layer.layout[1])},
        linear={"x, b": ("x", "b"), "w, b": ("w", "b")} if plan.bias_numel else {"x": ("x",), "w": ("w",)},
        reference=partial(_compute_linear_layer_reference, layer, index),
        moments=partial(compare_mean_squares_of_linear_layer, layer),
        results_of_reordered_rows=partial(
            _compute_results_and_expected_of_permuted_rows,
            row_count,
            ("x",) if plan.shared_weights else tuple(shapes),
            make_call_in_row_order=make_call_in_row_order,
        ),
        **_make_common_fields_of_module_under_test(layer, like),
    )


def _compute_linear_layer_reference(
    layer: Linear, element_index: Tensor | None, operands: TensorsByName
) -> TensorsByName:
    # every channel to every channel, as layers without channels; weights of elements as those of each row
    plan = layer.plan
    if element_index is not None:
        plan, operands = (
            plan.remade(shared_weights=False),
            {n: y if n == "x" else y[element_index] for n, y in operands.items()},
        )
    pairs = operands["w"]
    if plan.f_in is None:
        out = reference_product(plan, operands["x"], pairs, layout=layer.layout)
    else:
        columns = [
            [
                reference_product(plan, operands["x"][:, i], pairs[..., i, o, :], layout=layer.layout)
                for i in range(plan.f_in)
            ]
            for o in range(plan.f_out or 0)
        ]
        out = torch.stack([torch.stack(column).sum(0) for column in columns], 1)
    if "b" in operands:
        bias = operands["b"].expand(*out.shape[:-1], plan.bias_numel)
        out = out.index_add(-1, layer._bias_index.cpu(), bias)
    return {"out": out}


def _build_tested_polynomial(module: PolynomialModule, row_count: int) -> ModuleUnderTest:
    plan, like = module.plan, module._like
    generator = torch.Generator().manual_seed(0)
    channels, elements = module.channels, module.num_elements
    index = torch.randint(elements, (row_count,), generator=generator) if elements else None
    names, at = _list_parameter_name_of_each_weight(module), dict(module._ends)
    ends = (
        dict(zip(EDGE_ARGUMENTS, torch.randint(_NODES, (2, row_count), generator=generator), strict=True)) if at else {}
    )

    def draw_operands(keep_parameter_values: bool) -> TensorsByName:
        counts = {o.name: _NODES if o.name in at else row_count for o in plan.inputs}
        found = {
            o.name: _normal_in_dtype(like.dtype, generator, counts[o.name], *find_row_shape_of_operand(o, channels))
            for o in plan.inputs
        }
        for o, name in zip(plan.weights, names, strict=True):
            parameter = module.get_parameter(name) if name else None
            shape = (elements or 1, o.dim, channels) if parameter is None else tuple(parameter.shape)
            stored = (
                None if parameter is None or not keep_parameter_values else parameter.detach().to("cpu", torch.float64)
            )
            found[o.name] = _normal_in_dtype(like.dtype, generator, *shape) if stored is None else stored
        return found

    def compute_reference_results(operands: TensorsByName) -> TensorsByName:
        found = {o.name: operands[o.name] if index is None else operands[o.name][index] for o in plan.weights}
        found |= {name: operands[name][ends[end]] for name, end in at.items() if name != OUT}
        out = _compute_polynomial_reference(module, {**operands, **found})
        return {"out": out.new_zeros(_NODES, out.shape[1]).index_add(0, ends[at[OUT]], out) if OUT in at else out}

    def make_call_in_row_order(row_order: Tensor | slice) -> Callable[[CallableModule, TensorsByName], TensorsByName]:
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
    return ModuleUnderTest(
        kind="polynomial",
        title=f"{', '.join(f'{o.name}: {o.irreps}' for o in plan.inputs)} -> {plan.out.irreps}, {channels} channels",
        call=make_call_in_row_order(slice(None)),
        given=draw_operands(keep_parameter_values=True),
        others=draw_operands(keep_parameter_values=False),
        turns={o.name: _make_transformation_rule_of_operand(o) for o in plan.inputs},
        results={"out": _make_transformation_rule_of_operand(plan.out)},
        linear={} if constant else weights,
        affine={**single, **(weights if constant else {})},  # what lacks an input is a constant to it
        degrees={o.name: form.degree(o.name) for o in plan.inputs if form.degree(o.name) > 1},
        reference=compute_reference_results,
        results_of_reordered_rows=partial(
            _compute_results_and_expected_of_permuted_rows,
            row_count,
            [o.name for o in plan.inputs if o.name not in at],
            make_call_in_row_order=make_call_in_row_order,
            rows_are_summed=OUT in at,
        ),
        slack=2.0,  # more factors than a product has
        **_make_common_fields_of_module_under_test(module, like),
    )


def _list_parameter_name_of_each_weight(module: PolynomialModule) -> list[str]:
    # no name for weights that calls take as arguments
    names = {id(p): name for name, p in module.named_parameters()}
    if not names:
        return [""] * len(module.plan.weights)
    return [names[id(p)] for p in module._choose_given_or_own_weights(None, 0)]


def _make_transformation_rule_of_operand(operand: Operand) -> TransformationRule:
    def rotate_operand_rows(x: Tensor, matrix: Tensor) -> Tensor:
        flat = unflatten_operand(operand, x.flatten(1) if operand.channels and operand.layout == "channel" else x)
        return flatten_operand(operand, flat @ representation_matrix(operand.irreps, matrix).T).reshape(x.shape)

    return TransformationRule(str(operand.irreps), rotate_operand_rows)


def _call_polynomial(
    module: PolynomialModule,
    weight_parameter_names: list[str],
    element_index: Tensor | None,
    edge_arguments: Mapping[str, Any],
    run: CallableModule,
    operands: TensorsByName,
) -> TensorsByName:
    inputs = [operands[o.name] for o in module.plan.inputs]
    weights = [operands[o.name] for o in module.plan.weights]
    keywords: dict[str, Any] = {
        **edge_arguments,
        **({"weights": weights} if weights and not any(weight_parameter_names) else {}),
    }
    if element_index is not None:
        keywords[module._index] = element_index
    if not any(weight_parameter_names):
        return {"out": run(*inputs, **keywords)}
    held = {compiled_name_prefix(run) + name: w for name, w in zip(weight_parameter_names, weights, strict=True)}
    return {"out": functional_call(run, held, tuple(inputs), keywords)}  # type: ignore[arg-type]


def _compute_polynomial_reference(module: PolynomialModule, operands: TensorsByName) -> Tensor:
    plan = module.plan
    values = {o.name: unflatten_operand(o, operands[o.name]).movedim(-1, 0) for o in plan.operands if o.name != OUT}
    gradient = make_scalar_form(plan).gradient(OUT)
    rows = operands[plan.inputs[0].name].shape[0]
    zero = torch.zeros(rows, module.channels, dtype=torch.float64)
    parts = [gradient[k].at(values) + zero if k in gradient else zero for k in range(plan.out.dim)]
    return flatten_operand(plan.out, torch.stack(parts, -1))


SUBJECTS: dict[type[nn.Module], Callable[[Any, int], ModuleUnderTest]] = {
    TensorProduct: _build_tested_product,
    Linear: _build_tested_linear_layer,
    PolynomialModule: _build_tested_polynomial,
}


def build_tested_tpgen_module(module: nn.Module, row_count: int) -> ModuleUnderTest | None:
    """Wrap a tpgen module with random operands for laws; None for other modules."""
    for cls, made in SUBJECTS.items():
        if isinstance(module, cls):
            return made(module, row_count)
    return None
