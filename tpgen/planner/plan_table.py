"""A plan as a table: the text of the first stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpgen.drawing.path_map import PathMap, Route, path_picture
from tpgen.notebook import html_table, lines
from tpgen.text import table

if TYPE_CHECKING:
    from tpgen.planner.plan import Path, Plan

_HEADER = ("path", "in1", "in2", "out", "mode", "weights", "coefficient", "coupling", "flops", "bytes")


def plan_table(plan: Plan, itemsize: int = 4) -> str:
    """The plan as text: a title, one row per path, a line of totals.

    ``flops`` and ``bytes`` are per row of the batch; bytes count the segments that the path reads and
    writes, at ``itemsize`` bytes a number.
    """
    return "\n".join(text for text, _ in plan_lines(plan, itemsize))


def plan_lines(plan: Plan, itemsize: int = 4) -> list[tuple[str, int | None]]:
    """The lines of `plan_table`, each with the index of the path that it is of; None where it is of the whole plan."""
    cells = [_HEADER, *(tuple(path_row(plan, path, itemsize).values()) for path in plan.paths)]
    header, *rows = table(cells, left=range(1, 5)).split("\n")
    return [
        *((text, None) for text in (*title(plan).split("\n"), "", header)),
        *zip(rows, (path.index for path in plan.paths), strict=True),
        ("", None),
        (totals(plan, itemsize), None),
    ]


def plan_html(plan: Plan) -> str:
    """The same for a notebook, with a map of the paths: bars say how operations and bytes divide among them."""
    cells = [path_row(plan, path, 4) for path in plan.paths]
    bars = {_HEADER.index(name): [float(row[name]) for row in cells] for name in ("flops", "bytes")}
    rows = [_HEADER, *(tuple(row.values()) for row in cells)]
    shown = html_table(rows, left=range(1, 5), bars=bars) + lines(totals(plan)) + path_picture(plan_map(plan))
    return lines(*title(plan).split("\n")) + shown


def plan_map(plan: Plan) -> PathMap:
    """Which segments meet in which path, and what it computes."""
    routes = (
        Route(
            p.index,
            (("in1", p.in1.index), ("in2", p.in2.index)),
            (("out", p.out.index),),
            f"path {p.index}: {p.in1} x {p.in2} → {p.out} ({p.mode.name})",
            p.flops,
        )
        for p in plan.paths
    )
    inputs = {"in1": tuple(map(str, plan.irreps_in1)), "in2": tuple(map(str, plan.irreps_in2))}
    return PathMap(inputs, {"out": tuple(map(str, plan.irreps_out))}, tuple(routes))


def title(plan: Plan) -> str:
    weights = "shared" if plan.shared_weights else "per row"
    return (
        f"plan {plan.digest}: {plan.irreps_in1} x {plan.irreps_in2} -> {plan.irreps_out}\n"
        f"{plan.irrep_normalization}/{plan.path_normalization} normalisation, {plan.weight_numel} weights {weights}"
    )


def totals(plan: Plan, itemsize: int = 4) -> str:
    if not plan.paths:
        return "no path: the output is zero" + (
            f" ({len(plan.instructions)} empty dropped)" if plan.instructions else ""
        )
    nonzeros, dense = sum(p.nonzeros for p in plan.paths), sum(p.dense for p in plan.paths)
    dropped = len(plan.instructions) - len(plan.paths)
    return (
        f"{len(plan.paths)} paths"
        + (f" ({dropped} empty dropped)" if dropped else "")
        + f", coupling {nonzeros}/{dense} non-zero, "
        f"per row {plan.flops} flops, {plan.row_bytes(itemsize)} bytes (each operand once)"
    )


def path_row(plan: Plan, path: Path, itemsize: int = 4) -> dict[str, str]:
    """The cells of one path, by column name."""
    weight = path.weight
    numbers = sum(segment.stop - segment.start for segment in (path.in1, path.in2, path.out))
    if weight and not plan.shared_weights:
        numbers += weight.stop - weight.start
    cells = (
        str(path.index),
        *(str(segment) for segment in (path.in1, path.in2, path.out)),
        path.mode.name,
        f"{weight.start}:{weight.stop}" if weight else "-",
        f"{path.coefficient:.6g}",
        f"{path.nonzeros}/{path.dense}",
        str(path.flops),
        str(numbers * itemsize),
    )
    return dict(zip(_HEADER, cells, strict=True))
