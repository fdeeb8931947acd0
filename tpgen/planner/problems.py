"""Plans of real networks, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from e3nn.o3 import Irreps

from tpgen.base.errors import PlanError, unknown
from tpgen.base.locks import cached_property
from tpgen.planner.contraction import make_contraction_plan
from tpgen.planner.harmonics import make_harmonics_plan
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan
from tpgen.planner.presets import channelwise, elementwise, fully_connected
from tpgen.planner.product import make_plan

SH2, SH3 = "1x0e+1x1o+1x2e", "1x0e+1x1o+1x2e+1x3o"  # spherical harmonics of an edge, up to degree 2 and 3


@dataclass(frozen=True)
class Problem:
    """Plan of a known network, with usual ``rows``."""

    name: str
    about: str
    rows: int
    make: Callable[[], Plan]
    suite: str
    channels: int = 32  # of a polynomial, whose plan does not say how many there are
    elements: int = 1  # of a polynomial's weights; 1: all rows share them

    @cached_property
    def plan(self) -> Plan:
        return self.make()


def _channelwise_maker(in1: str, in2: str, out: str | None = None) -> Callable[[], Plan]:
    return lambda: channelwise(in1, in2, out or in1)


def _fully_connected_maker(irreps: str) -> Callable[[], Plan]:
    return lambda: fully_connected(irreps, irreps, irreps)


def _one_path_maker(l1: int, l2: int, l3: int) -> Callable[[], Plan]:
    # even and odd degrees alike: the parity of the output follows from the inputs, all even
    return lambda: make_plan(f"128x{l1}e", f"1x{l2}e", f"128x{l3}e", [(0, 0, 0, "uvu", True)], shared_weights=False)


def _contraction_maker(irreps_in: str, irreps_out: str, correlation: int) -> Callable[[], Plan]:
    out = Irreps(irreps_out)
    return lambda: make_contraction_plan(Irreps(irreps_in), out, [correlation] * len(out))


def _turned_features_plan() -> Plan:
    x, y = Irreps("0e+1o"), Irreps("0e+1o+2e")
    operands = [Operand("x", x), Operand("y", y, channels=False), Operand(OUT, x)]
    terms = [PolynomialTerm(names, k, f"w{len(names)}_{k}") for names in (("x", "x", "y"), ("x",)) for k in range(2)]
    return make_polynomial_plan(operands, terms)


def _with_multiplicity(mul: int, irreps: str) -> str:
    return "+".join(f"{mul}x{ir}" for ir in irreps.split("+"))


_ARTICLE, _DOCKED = "1x0e+2x1o+3x2e", "10x1o+10x1e+48x0e+48x0o"
# Channelwise products by name: what it is of, and irreps of features, harmonics and results (those of the features).
_CHANNELWISE: dict[str, tuple[str, ...]] = {
    "mace-medium": (
        "MACE medium, first interaction",
        _with_multiplicity(128, "0e+1o"),
        SH3,
        _with_multiplicity(128, "0e+1o+2e"),
    ),
    "mace-large": (
        "MACE large, interaction",
        _with_multiplicity(128, "0e+1o+2e"),
        SH3,
        _with_multiplicity(128, "0e+1o+2e+3o"),
    ),
    "nequip-lips": ("NequIP, LiPS", _with_multiplicity(32, "0o+0e+1o+1e+2o+2e"), SH2),
    "nequip-aspirin": ("NequIP, aspirin", _with_multiplicity(64, "0o+0e+1o+1e"), "1x0e+1x1o"),
    "nequip-toluene": ("NequIP, toluene", _with_multiplicity(64, "0o+0e+1o+1e+2o+2e"), SH2),
    "mixed-mul": ("a multiplicity for each degree, as SevenNet has", "96x0e+48x1o+16x2e", SH2),
}
_ALL = (
    Problem(
        "article",
        "the product tpgen grew out of: small, fully connected",
        32,
        _fully_connected_maker(_ARTICLE),
        "small",
    ),
    *(
        Problem(name, about, 2000, _channelwise_maker(*ends), "channelwise")
        for name, (about, *ends) in _CHANNELWISE.items()
    ),
    Problem(
        "diffdock-l1",
        "DiffDock: fully connected, weights of each edge",
        2000,
        lambda: fully_connected(_DOCKED, "1x0e+1x1o", _DOCKED, shared_weights=False),
        "connected",
    ),
    Problem(
        "self-connection",
        "NequIP's self-connection: features with a one-hot type",
        1000,
        lambda: fully_connected(_with_multiplicity(64, "0e+1o+2e"), "4x0e", _with_multiplicity(64, "0e+1o+2e")),
        "connected",
    ),
    Problem(
        "e3nn-bench",
        "the product of e3nn's own benchmark",
        1000,
        _fully_connected_maker(_with_multiplicity(8, "0e+1e+2e+3o")),
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
        "a feature times itself, copy by copy",
        2000,
        lambda: elementwise(*(_with_multiplicity(64, "0e+1o+2e"),) * 2),
        "elementwise",
    ),
    *(
        Problem(
            f"roofline-{l1}{l2}{l3}",
            f"one path of degrees {l1}, {l2}, {l3}",
            2000,
            _one_path_maker(l1, l2, l3),
            "roofline",
        )
        for l1, l2, l3 in ((1, 1, 1), (2, 1, 2), (3, 3, 3), (5, 5, 3), (5, 3, 5), (6, 3, 6), (7, 4, 7), (7, 7, 7))
    ),
)

_MACE, _NEQUIP = _with_multiplicity(128, "0e+1o"), _with_multiplicity(64, "0e+0o+1e+1o+2e+2o")
_LINEAR_ENDS: dict[str, tuple[str, str, str]] = {
    "mace-linear": ("MACE medium, features before an interaction", _MACE, _MACE),
    "mace-readout": ("MACE medium, energies out of features", _MACE, "0e"),
    "nequip-linear": ("NequIP, features up to degree 2 of both parities", _NEQUIP, _NEQUIP),
}
_HARMONICS = partial(make_harmonics_plan, "1o", [0, 1, 2, 3], "component")
_CONTRACTION, _SMALL = _contraction_maker("0e+1o+2e+3o", "0e+1o", 3), _contraction_maker("0e+1o", "0e+1o", 3)
_POLYNOMIALS = (
    Problem("mace-contraction", "MACE's symmetric contraction", 512, _CONTRACTION, "polynomial", 128, 10),
    Problem("small-contraction", "the same, small", 512, _SMALL, "polynomial", 32, 2),
    Problem(
        "turned",
        "features squared and turned by the harmonics of a direction",
        2000,
        _turned_features_plan,
        "polynomial",
    ),
    Problem("harmonics", "spherical harmonics of degrees 0 to 3", 2000, _HARMONICS, "polynomial", 1),
)

PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in _ALL}  # of products
LINEARS: dict[str, Problem] = {
    name: Problem(name, about, 1000, partial(make_linear_plan, first, last), "linear")
    for name, (about, first, last) in _LINEAR_ENDS.items()
}
POLYNOMIALS: dict[str, Problem] = {problem.name: problem for problem in _POLYNOMIALS}
SUITES: tuple[str, ...] = tuple(dict.fromkeys(problem.suite for problem in _ALL))


def find_problem(name: str) -> Problem:
    """Product problem of this name; `PlanError` lists known names.

    >>> find_problem("mace-large").plan.weight_numel
    2176
    """
    if name not in PROBLEMS:
        raise PlanError(unknown("problem", name, PROBLEMS))
    return PROBLEMS[name]
