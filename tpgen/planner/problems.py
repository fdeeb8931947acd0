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
    """Named benchmark: a real network's plan and usual number of rows."""

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


def _make_one_path_plan(l1: int, l2: int, l3: int) -> Plan:
    # even and odd degrees alike: the parity of the output follows from the inputs, all even
    return make_plan(f"128x{l1}e", f"1x{l2}e", f"128x{l3}e", [(0, 0, 0, "uvu", True)], shared_weights=False)


def _contraction_maker(irreps_in: str, irreps_out: str, degree: int) -> Callable[[], Plan]:
    out = Irreps(irreps_out)
    return lambda: make_contraction_plan(Irreps(irreps_in), out, [degree] * len(out))


def _make_features_times_harmonics_plan() -> Plan:
    x, y = Irreps("0e+1o"), Irreps("0e+1o+2e")
    operands = [Operand("x", x), Operand("y", y, channels=False), Operand(OUT, x)]
    terms = [PolynomialTerm(names, k, f"w{len(names)}_{k}") for names in (("x", "x", "y"), ("x",)) for k in range(2)]
    return make_polynomial_plan(operands, terms)


def _with_multiplicity(mul: int, irreps: str) -> str:
    return "+".join(f"{mul}x{ir}" for ir in irreps.split("+"))


_MACE, _NEQUIP = _with_multiplicity(128, "0e+1o"), _with_multiplicity(64, "0e+0o+1e+1o+2e+2o")
_LARGE, _FEATURES = _with_multiplicity(128, "0e+1o+2e"), _with_multiplicity(64, "0e+1o+2e")
_ARTICLE, _DOCKED, _E3NN = "1x0e+2x1o+3x2e", "10x1o+10x1e+48x0e+48x0o", _with_multiplicity(8, "0e+1e+2e+3o")
_LIPS, _ASPIRIN = _with_multiplicity(32, "0o+0e+1o+1e+2o+2e"), _with_multiplicity(64, "0o+0e+1o+1e")
_TOLUENE, _MIXED = _with_multiplicity(64, "0o+0e+1o+1e+2o+2e"), "96x0e+48x1o+16x2e"
_MORE_DEGREES = _with_multiplicity(128, "0e+1o+2e+3o")
_DIFFDOCK = partial(fully_connected, _DOCKED, "1x0e+1x1o", _DOCKED, shared_weights=False)
_TETRIS = partial(fully_connected, SH3, SH3, "64x0e+24x1e+24x1o+16x2e+16x2o")
_SELF_CONNECTION = partial(fully_connected, _FEATURES, "4x0e", _FEATURES)
_DEGREES = ((1, 1, 1), (2, 1, 2), (3, 3, 3), (5, 5, 3), (5, 3, 5), (6, 3, 6), (7, 4, 7), (7, 7, 7))
# (name, what it is of, rows, how it is planned, suite)
_ALL = tuple(
    Problem(*fields)
    for fields in (
        ("article", "the product tpgen grew out of: small, fully connected", 32,
         partial(fully_connected, _ARTICLE, _ARTICLE, _ARTICLE), "small"),
        ("mace-medium", "MACE medium, first interaction", 2000,
         partial(channelwise, _MACE, SH3, _LARGE), "channelwise"),
        ("mace-large", "MACE large, interaction", 2000,
         partial(channelwise, _LARGE, SH3, _MORE_DEGREES), "channelwise"),
        ("nequip-lips", "NequIP, LiPS", 2000, partial(channelwise, _LIPS, SH2, _LIPS), "channelwise"),
        ("nequip-aspirin", "NequIP, aspirin", 2000, partial(channelwise, _ASPIRIN, "0e+1o", _ASPIRIN), "channelwise"),
        ("nequip-toluene", "NequIP, toluene", 2000, partial(channelwise, _TOLUENE, SH2, _TOLUENE), "channelwise"),
        ("mixed-mul", "a multiplicity for each degree, as SevenNet has", 2000,
         partial(channelwise, _MIXED, SH2, _MIXED), "channelwise"),
        ("diffdock-l1", "DiffDock: fully connected, weights of each edge", 2000, _DIFFDOCK, "connected"),
        ("self-connection", "NequIP's self-connection: features with a one-hot type", 1000,
         _SELF_CONNECTION, "connected"),
        ("e3nn-bench", "the product of e3nn's own benchmark", 1000,
         partial(fully_connected, _E3NN, _E3NN, _E3NN), "connected"),
        ("tetris-1", "first layer of e3nn's tetris classifier", 1000, _TETRIS, "small"),
        ("elementwise", "a feature times itself, copy by copy", 2000,
         partial(elementwise, _FEATURES, _FEATURES), "elementwise"),
        *((f"roofline-{l1}{l2}{l3}", f"one path of degrees {l1}, {l2}, {l3}", 2000,
           partial(_make_one_path_plan, l1, l2, l3), "roofline") for l1, l2, l3 in _DEGREES),
    )
)  # fmt: skip

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
        _make_features_times_harmonics_plan,
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
    """Benchmark product of this name; `PlanError` lists known names.

    >>> find_problem("mace-large").plan.weight_numel
    2176
    """
    if name not in PROBLEMS:
        raise PlanError(unknown("problem", name, PROBLEMS))
    return PROBLEMS[name]
