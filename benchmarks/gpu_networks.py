"""Whole MACE and NequIP steps on this machine's GPU, stock, with cuEquivariance and converted: a step of `make gpu`.

Those that can be imported in this environment; energy, forces and stress of a lattice of atoms, in float32, from
Python and as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch
from torch import nn

from benchmarks.gpu_checks import relative
from benchmarks.gpu_clock import recorded, seconds_of
from benchmarks.networks import SIZES, Case
from tpgen.base.text import duration, table
from tpgen.networks.conversion.convert import convert

Row = dict[str, Any]
_ALIKE = 1e-3  # forces, relative to the largest of stock's


def stock(project: str, model: nn.Module) -> nn.Module:
    return model


def converted(project: str, model: nn.Module) -> nn.Module:
    return convert(model, program=False)


def by_program(project: str, model: nn.Module) -> nn.Module:
    return convert(model, program=True)


def with_cuequivariance(project: str, model: nn.Module) -> nn.Module:
    """By the project's own way to it."""
    if project == "mace":
        from mace.cli.convert_e3nn_cueq import run

        return run(model, device="cuda", return_model=True)
    from nequip.model.modify_utils import modify

    return modify(model, [{"modifier": "enable_CuEquivariance"}]).to("cuda")


WAYS: dict[str, Callable[[str, nn.Module], nn.Module]] = {
    "stock": stock,
    "cuEquivariance": with_cuequivariance,
    "converted": converted,
    "program": by_program,
}
PROJECTS = ("mace", "nequip")


def why_not(project: str, way: str) -> str | None:
    """Why a network cannot be measured in this environment."""
    wanted = [project, *(["cuequivariance_torch"] if way == "cuEquivariance" else [])]
    missing = [name for name in wanted if find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def network_rows(project: str, atoms: int, device: str, seconds: float) -> Iterator[Row]:
    """A row for each way; one that fails or gives other forces than stock says so."""
    case: Case | None = None
    wanted: torch.Tensor | None = None
    for way, change in WAYS.items():
        row: Row = {"network": project, "way": way, "atoms": atoms}
        if reason := why_not(project, way):
            yield row | {"reason": reason}
            continue
        try:
            case = case or _on(device, next(iter(SIZES[project].values()))(atoms, torch.float32))
            step = partial(case.run, change(project, deepcopy(case.model)), False)
            forces = step()["forces"].detach()
            wanted = forces if wanted is None else wanted
            error = relative(forces, wanted)
            row |= {"edges": case.edges, "error": error}
            yield row | ({"seconds": seconds_of(step, device, seconds)} if error < _ALIKE else {"reason": "is wrong"})
            if way == "program" and error < _ALIKE:
                yield row | {"way": "program, edges change"} | _in_dynamics(step, case, device, seconds)
            elif device == "cuda" and error < _ALIKE:
                row["way"] = f"{way}, CUDA graph"
                yield row | _as_graph(step, wanted, seconds)
        except Exception as fault:
            yield row | {"reason": f"{type(fault).__name__}: {fault}"[:200]}


def _as_graph(step: Callable[[], dict[str, torch.Tensor]], wanted: torch.Tensor, seconds: float) -> Row:
    """The same step, recorded once: what launches cost is left out."""
    (forces,), replay = recorded(lambda: [step()["forces"]])
    replay()
    error = relative(forces, wanted)
    timed = {"seconds": seconds_of(replay, "cuda", seconds)} if error < _ALIKE else {"reason": "is wrong"}
    return {"error": error} | timed


def _in_dynamics(step: Callable[[], dict[str, torch.Tensor]], case: Case, device: str, seconds: float) -> Row:
    """The same step where each call lacks some of the last edges, as lists of neighbours change."""
    of_edges = {name: list(x.shape).index(case.edges) for name, x in case.batch.items() if case.edges in x.shape}
    whole, calls = {name: case.batch[name] for name in of_edges}, count()

    def changed() -> None:
        left = case.edges - next(calls) % (case.edges // 100 + 2)
        case.batch.update({name: x.narrow(of_edges[name], 0, left) for name, x in whole.items()})
        step()

    try:
        taken = seconds_of(changed, device, seconds)
        error = relative(step()["forces"].detach(), case.run(case.model, False)["forces"].detach())
        return {"error": error} | ({"seconds": taken} if error < _ALIKE else {"reason": "is wrong"})
    finally:
        case.batch.update(whole)


def _on(device: str, case: Case) -> Case:
    """A case on a device: its call reads the batch that is moved there in place."""
    for name, x in case.batch.items():
        case.batch[name] = x.to(device)
    return replace(case, model=case.model.to(device))


def network_table(rows: list[Row]) -> str:
    heads = ("network", "atoms", "edges", "way", "a step")
    times = [duration(row["seconds"]) if "seconds" in row else row["reason"][:60] for row in rows]
    cells = [(r["network"], r["atoms"], r.get("edges", ""), r["way"], t) for r, t in zip(rows, times, strict=True)]
    return table([heads, *cells], left=(0, 3))
