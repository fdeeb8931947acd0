"""Named linear layers, for tests and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tpgen.planner.linear import LinearPlan, make_linear_plan


@dataclass(frozen=True)
class LinearProblem:
    """A linear layer of a known network."""

    name: str
    about: str
    irreps_in: str
    irreps_out: str
    rows: int = 1000  # nodes of a usual batch

    @cached_property
    def plan(self) -> LinearPlan:
        return make_linear_plan(self.irreps_in, self.irreps_out)


_MACE, _NEQUIP = "128x0e+128x1o", "64x0e+64x0o+64x1e+64x1o+64x2e+64x2o"
_ALL = (
    LinearProblem("mace-linear", "MACE medium, features before an interaction", _MACE, _MACE),
    LinearProblem("mace-readout", "MACE medium, energies out of features", _MACE, "0e"),
    LinearProblem("nequip-linear", "NequIP, features up to degree 2 of both parities", _NEQUIP, _NEQUIP),
)

LINEARS: dict[str, LinearProblem] = {problem.name: problem for problem in _ALL}
