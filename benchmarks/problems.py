"""Problems that only benchmarks need, beside the named ones."""

from __future__ import annotations

from functools import partial

from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import SH2, Problem, find_problem


def up_to(degree: int, mul: int) -> str:
    """Copies of every degree, with the parity of spherical harmonics."""
    return "+".join(f"{mul}x{n}{'eo'[n % 2]}" for n in range(degree + 1))


def _degrees(degree: int) -> Plan:
    return channelwise(up_to(degree, 16), up_to(degree, 1), up_to(degree, 16))


def _narrow(irreps: str) -> Plan:
    return channelwise(irreps, SH2, irreps)


_ALL = (
    *(
        Problem(f"narrow-{'-'.join(map(str, muls))}", "multiplicities that fill no whole vectors", 2000,
                partial(_narrow, "+".join(f"{mul}x{ir}" for mul, ir in zip(muls, ("0e", "1o", "2e"), strict=True))),
                "narrow")
        for muls in ((48, 20, 6), (12, 12, 12))
    ),
    *(
        Problem(f"degrees-{degree}", f"16 copies of every degree up to {degree}", 1000, partial(_degrees, degree),
                "degrees")
        for degree in (3, 4, 5, 6)
    ),
)  # fmt: skip
OURS = {problem.name: problem for problem in _ALL}


def problem_named(name: str) -> Problem:
    """One of these, or one of `tpgen.planner.problems`; a `PlanError` where neither has it.

    >>> len(problem_named("degrees-6").plan.paths)
    106
    """
    return OURS.get(name) or find_problem(name)
