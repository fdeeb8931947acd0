"""The plan of a linear layer as a table: the text of its first stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpgen.drawing.path_map import PathMap, Route
from tpgen.text import table

if TYPE_CHECKING:
    from tpgen.planner.linear import LinearPath, LinearPlan


def linear_plan_lines(plan: LinearPlan) -> list[tuple[str, int | None]]:
    """The lines of a plan's text, each with the path it is of, where it is of one."""
    rows = [("path", "in", "out", "weights", "coefficient", "flops"), *map(_row, plan.paths)]
    head, *found = table(rows, left=(1, 2)).split("\n")
    above: list[tuple[str, int | None]] = [(text, None) for text in (*title(plan).split("\n"), "", head)]
    paths = [(text, path.index) for text, path in zip(found, plan.paths, strict=True)]
    if not paths:
        return [*((text, None) for text in title(plan).split("\n")), ("", None), (_no_path(plan), None)]
    return [*above, *paths, ("", None), (f"per row {plan.flops} flops", None)]


def title(plan: LinearPlan) -> str:
    """What the text begins with."""
    shared = "shared" if plan.shared_weights else "per row"
    channels = "" if plan.f_in is None else f", {plan.f_in} -> {plan.f_out} channels"
    biases = f", {plan.bias_numel} biases" if plan.bias_numel else ""
    return (
        f"linear {plan.digest}: {plan.irreps_in} -> {plan.irreps_out}{channels}\n"
        f"{plan.path_normalization} normalisation, {plan.weight_numel} weights {shared}{biases}"
    )


def _no_path(plan: LinearPlan) -> str:
    """Said in the place of a table that would be empty."""
    rest = "biases alone" if plan.bias_numel else "zero"
    return f"no path, as no input has the irrep of an output that it is joined to: the output is {rest}"


def linear_map(plan: LinearPlan) -> PathMap:
    """Which segment each path joins with which."""
    routes = (
        Route(p.index, (("in", p.in1.index),), (("out", p.out.index),), f"path {p.index}: {p.in1} → {p.out}", p.flops)
        for p in plan.paths
    )
    return PathMap({"in": tuple(map(str, plan.irreps_in))}, {"out": tuple(map(str, plan.irreps_out))}, tuple(routes))


def _row(path: LinearPath) -> tuple[str, ...]:
    weights = f"{path.weight.start}:{path.weight.stop}"
    return str(path.index), str(path.in1), str(path.out), weights, f"{path.coefficient:.6g}", str(path.flops)
