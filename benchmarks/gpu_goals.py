"""The goals of kernels on a GPU: which of them `make gpu` found to be reached, and which it could not ask."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpgen.planner.problems import PROBLEMS

Row = dict[str, Any]
ROWS = 40_000
SHARES = {"products": 0.80, "convolutions": 0.60}  # of a copy's bandwidth, on channelwise problems
LAUNCH = 3e-6  # seconds that a call in a CUDA graph takes besides an empty kernel
LIBRARIES = {"cuEquivariance": "cuequivariance", "OpenEquivariance": "openequivariance"}
E3NN = 10.0  # times as fast as e3nn, scripted, in geometric mean
OURS = "tpgen-auto"


@dataclass(frozen=True)
class Goal:
    """What is to be reached, whether it is, None where that was not measured, and the figures or the reason."""

    what: str
    reached: bool | None
    note: str

    def __str__(self) -> str:
        found = {True: "reached", False: "not reached", None: "not measured"}[self.reached]
        return f"{self.what}: {found}, {self.note}"


def goals(times: Sequence[Row], rivals: Sequence[Row], launch: Row) -> list[Goal]:
    """All goals, from the rows of the measurements."""
    return [
        *(_share(kind, least, times) for kind, least in SHARES.items()),
        _launch(launch),
        *(_library(name, family, rivals) for name, family in LIBRARIES.items()),
        _e3nn(rivals),
    ]


def _share(kind: str, least: float, times: Sequence[Row]) -> Goal:
    """Channelwise problems of many rows, where the device was timed without Python."""
    what = f"{kind} reach {least:.0%} of a copy's bandwidth, of channelwise problems at {ROWS:,} rows"
    mine = [row for row in times if _counts(row) and row["task"].startswith("conv") == (kind == "convolutions")]
    if not mine:
        return Goal(what, None, "there was no time, no such rows, or no GPU")
    worst = min(mine, key=lambda row: row["share of copy"])
    enough = sum(row["share of copy"] >= least for row in mine)
    where = f"{worst['problem']} {worst['layout']} {worst['task']}"
    return Goal(what, enough == len(mine), f"{enough} of {len(mine)}, the least {worst['share of copy']:.0%}: {where}")


def _counts(row: Row) -> bool:
    suite = PROBLEMS[row["problem"]].suite
    return suite == "channelwise" and row["rows"] == ROWS and bool(row.get("held")) and "share of copy" in row


def _launch(launch: Row) -> Goal:
    what = f"a call in a CUDA graph takes less than {1e6 * LAUNCH:.0f} us besides an empty kernel"
    if not launch:
        return Goal(what, None, "there was no time, or no GPU")
    call, empty, eager = (1e6 * launch[key] for key in ("call", "empty kernel", "eager"))
    note = f"{call:.1f} us of one row, {empty:.1f} us an empty kernel, {eager:.1f} us a call from Python"
    return Goal(what, call - empty < 1e6 * LAUNCH, note)


def _library(name: str, family: str, rivals: Sequence[Row]) -> Goal:
    what = f"at least as fast as {name} on each problem, products"
    found = dict(_ratios(family, rivals))
    if not found:
        return Goal(what, None, _why_not(family, rivals))
    worst = min(found, key=lambda key: found[key])
    note = f"{sum(ratio >= 1 for ratio in found.values())} of {len(found)}, the least {found[worst]:.2f} times: "
    return Goal(what, found[worst] >= 1, note + " ".join(worst))


def _e3nn(rivals: Sequence[Row]) -> Goal:
    what = f"{E3NN:.0f} times as fast as e3nn, scripted, in geometric mean"
    found = [ratio for _, ratio in _ratios("e3nn", rivals)]
    if not found:
        return Goal(what, None, _why_not("e3nn", rivals))
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return Goal(what, mean >= E3NN, f"{mean:.1f} times over {len(found)} tasks, the least {min(found):.1f}")


def _ratios(family: str, rivals: Sequence[Row]) -> Iterator[tuple[tuple[str, str], float]]:
    """How many times faster than a library, for each task that both have; the better layout of either counts.

    Times are the device's; where Python could not be kept out of one, all are from Python.
    """
    for key in dict.fromkeys((row["problem"], row["task"]) for row in rivals):
        rows = [row for row in rivals if (row["problem"], row["task"]) == key and row["median"]]
        mine, theirs = ([row for row in rows if _of(name, row)] for name in (OURS, family))
        if mine and theirs:
            clock = "median" if all(row["held"] for row in mine + theirs) else "eager"
            yield key, min(row[clock] for row in theirs) / min(row[clock] for row in mine)


def _of(family: str, row: Row) -> bool:
    return row["contender"].split("/")[0] in (family, f"{family}-ir_mul")


def _why_not(family: str, rivals: Sequence[Row]) -> str:
    reasons = [row["reason"] for row in rivals if _of(family, row) and row["reason"]]
    return reasons[0] if reasons else "there was no time"
