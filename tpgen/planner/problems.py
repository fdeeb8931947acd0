"""Named problems: products of real networks, shared by tests, benchmarks and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tpgen.errors import PlanError, unknown
from tpgen.planner.plan import Plan, make_plan
from tpgen.planner.presets import channelwise, elementwise, fully_connected

SH2, SH3 = "1x0e+1x1o+1x2e", "1x0e+1x1o+1x2e+1x3o"  # spherical harmonics of an edge, up to degree 2 and 3


@dataclass(frozen=True)
class Problem:
    """A product of a known network, with the batch it is usually run on."""

    name: str
    about: str
    rows: int
    make: Callable[[], Plan]
    suite: str

    @cached_property
    def plan(self) -> Plan:
        return self.make()


def _chan(in1: str, in2: str, out: str | None = None) -> Callable[[], Plan]:
    return lambda: channelwise(in1, in2, out or in1)


def _article() -> Plan:
    irreps = "1x0e+2x1o+3x2e"
    return fully_connected(irreps, irreps, irreps)


def _roofline(l1: int, l2: int, l3: int) -> Callable[[], Plan]:
    # even and odd degrees alike: the parity of the output follows from the inputs, all even
    return lambda: make_plan(f"128x{l1}e", f"1x{l2}e", f"128x{l3}e", [(0, 0, 0, "uvu", True)], shared_weights=False)


def _muls(mul: int, irreps: str) -> str:
    return "+".join(f"{mul}x{ir}" for ir in irreps.split("+"))


_ALL = (
    Problem("article", "the product tpgen grew out of: small, fully connected", 32, _article, "small"),
    Problem(
        "mace-medium",
        "MACE medium, first interaction",
        2000,
        _chan(_muls(128, "0e+1o"), SH3, _muls(128, "0e+1o+2e")),
        "channelwise",
    ),
    Problem(
        "mace-large",
        "MACE large, interaction",
        2000,
        _chan(_muls(128, "0e+1o+2e"), SH3, _muls(128, "0e+1o+2e+3o")),
        "channelwise",
    ),
    Problem("nequip-lips", "NequIP, LiPS", 2000, _chan(_muls(32, "0o+0e+1o+1e+2o+2e"), SH2), "channelwise"),
    Problem("nequip-aspirin", "NequIP, aspirin", 2000, _chan(_muls(64, "0o+0e+1o+1e"), "1x0e+1x1o"), "channelwise"),
    Problem("nequip-toluene", "NequIP, toluene", 2000, _chan(_muls(64, "0o+0e+1o+1e+2o+2e"), SH2), "channelwise"),
    Problem(
        "mixed-mul",
        "a multiplicity for each degree, as SevenNet has",
        2000,
        _chan("96x0e+48x1o+16x2e", SH2),
        "channelwise",
    ),
    Problem(
        "diffdock-l1",
        "DiffDock: fully connected, weights of each edge",
        2000,
        lambda: fully_connected(
            "10x1o+10x1e+48x0e+48x0o", "1x0e+1x1o", "10x1o+10x1e+48x0e+48x0o", shared_weights=False
        ),
        "connected",
    ),
    Problem(
        "self-connection",
        "NequIP's self-connection: features with a one-hot type",
        1000,
        lambda: fully_connected(_muls(64, "0e+1o+2e"), "4x0e", _muls(64, "0e+1o+2e")),
        "connected",
    ),
    Problem(
        "e3nn-bench",
        "the product of e3nn's own benchmark",
        1000,
        lambda: fully_connected(*(_muls(8, "0e+1e+2e+3o"),) * 3),
        "connected",
    ),
    Problem(
        "tetris-1",
        "first layer of e3nn's tetris classifier",
        1000,
        lambda: fully_connected(SH3, SH3, "64x0e+24x1e+24x1o+16x2e+16x2o"),
        "small",
    ),
    Problem(
        "elementwise",
        "features with themselves, copy by copy",
        2000,
        lambda: elementwise(*(_muls(64, "0e+1o+2e"),) * 2),
        "elementwise",
    ),
    *(
        Problem(
            f"roofline-{l1}{l2}{l3}", f"one path of degrees {l1}, {l2}, {l3}", 2000, _roofline(l1, l2, l3), "roofline"
        )
        for l1, l2, l3 in ((1, 1, 1), (2, 1, 2), (3, 3, 3), (5, 5, 3), (5, 3, 5), (6, 3, 6), (7, 4, 7), (7, 7, 7))
    ),
)

PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in _ALL}
SUITES: tuple[str, ...] = tuple(dict.fromkeys(problem.suite for problem in _ALL))


def find_problem(name: str) -> Problem:
    """The problem of that name, or a `PlanError` that lists the known ones.

    >>> find_problem("mace-large").plan.weight_numel
    2176
    """
    if name not in PROBLEMS:
        raise PlanError(unknown("problem", name, PROBLEMS))
    return PROBLEMS[name]
