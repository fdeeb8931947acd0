"""Small products that cover the whole mode table, and tensors for them.

Every case has paths of scalar and non-scalar degrees, two paths into one output, the cross product (1, 1, 1), a
multiplicity of one, and an output that no path reaches.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb, prod

import torch
from e3nn.o3 import Irrep
from torch import Tensor

from tpgen.form.form import Layout
from tpgen.form.reference import reference_product
from tpgen.form.sampling import random_operands
from tpgen.planner.modes import MODES
from tpgen.planner.plan import Plan
from tpgen.planner.product import make_plan

ROWS = 3
LAYOUTS: tuple[Layout, ...] = ("mul_ir", "ir_mul", ("ir_mul", "mul_ir", "ir_mul"))
STRATEGIES = ("einsum", "grouped", "unrolled")
TOLERANCE = 1e-12  # in float64, relative to the largest entry
_EQUAL = [mode.name for mode in MODES.values() if mode.in1 == mode.in2]  # modes whose inputs have equal multiplicities
_TRIPLES = ("0e 0e 0e", "0e 1o 1o", "1o 0e 1o", "1o 1o 0e", "1o 1o 1e", "1o 2e 1o", "2e 1o 1o", "2e 2e 0e", "1o 1o 2e")


@dataclass(frozen=True)
class Case:
    """One mode, weighted or not, weights shared by all rows or not."""

    mode: str
    weighted: bool
    shared: bool = True

    @property
    def plan(self) -> Plan:
        return _case_plan(self)

    def __str__(self) -> str:
        return f"{self.mode}-{'weighted' if self.weighted else 'plain'}-{'shared' if self.shared else 'rows'}"


CASES = tuple(
    Case(mode.name, weighted, shared)
    for mode in MODES.values()
    for weighted in (True, False)
    for shared in (True, False)
    if (weighted or not mode.needs_weight) and (weighted or shared)
)


# one product with all eight modes, several paths into one output, and weights of paths and segments
MIXED = (
    "3x0e + 3x1o + 2x1e",
    "3x0e + 3x1o + 2x2e",
    "3x0e + 3x1o + 9x1o + 3x1e + 6x1e + 1x2e + 2x0e",
    [
        (0, 0, 0, "uuu", False, 0.5),
        (1, 1, 0, "uvu", True, 2.0),
        (0, 1, 1, "uvv", True, 0.1),
        (1, 0, 1, "uvw", True),
        (0, 1, 2, "uvuv", False, 3.0),
        (1, 1, 3, "uvu<v", True, 0.7),
        (0, 0, 6, "u<vw", True, 1.3),
        (2, 2, 3, "uvw", True, 1.1),
        (2, 2, 4, "uuw", True, 0.0),
        (1, 1, 5, "uuw", False, 0.9),
        (1, 1, 6, "uvw", True, 0.4),
    ],
)


@cache
def _case_plan(case: Case) -> Plan:
    muls1, muls2 = {"0e": 3, "1o": 2, "2e": 1}, {"0e": 2, "1o": 1, "2e": 2}
    if case.mode in _EQUAL:
        muls1 = muls2 = {"0e": 3, "1o": 3, "2e": 3 if "<" in case.mode else 1}
    triples = [t for t in map(str.split, _TRIPLES) if case.mode not in _EQUAL or muls1[t[0]] == muls2[t[1]]]
    in1, in2 = list(muls1), list(muls2)
    out: dict[tuple[int, str], int] = {}
    instructions = []
    for n, (ir1, ir2, ir3) in enumerate(triples):
        mul = out_mul(case.mode, muls1[ir1], muls2[ir2], 2 if case.weighted else 1)
        segment = out.setdefault((mul, ir3), len(out))
        instructions.append((in1.index(ir1), in2.index(ir2), segment, case.mode, case.weighted, 1.0 + 0.25 * n))
    irreps_out = [(mul, Irrep(ir)) for mul, ir in out]
    return make_plan(
        [(mul, Irrep(ir)) for ir, mul in muls1.items()],
        [(mul, Irrep(ir)) for ir, mul in muls2.items()],
        [*irreps_out, (2, Irrep("0o"))],
        instructions,
        shared_weights=case.shared,
    )


def out_mul(mode: str, mul1: int, mul2: int, free: int) -> int:
    """The output multiplicity that a mode asks for; ``free`` where it may be anything."""
    sizes = {"u": mul1, "v": mul2, "p": comb(mul1, 2)}
    return prod(sizes.get(letter, free) for letter in MODES[mode].out)


def random_arguments(seed: int, among: Collection[str] = tuple(MODES), copies: int = 1) -> tuple[tuple, dict]:
    """Arguments of a random valid product, modes mixed: positional (irreps and instructions) and keywords.

    They fit e3nn's `TensorProduct` and `make_plan` alike.  Multiplicities are ``copies`` times 1 to 3.
    """
    rng = random.Random(seed)
    degrees = ["0e", "0o", "1e", "1o", "2e"]
    in1 = [(copies * rng.choice([1, 2, 3]), Irrep(rng.choice(degrees))) for _ in range(rng.randint(1, 3))]
    in2 = [(copies * rng.choice([1, 2, 3]), Irrep(rng.choice(degrees))) for _ in range(rng.randint(1, 3))]
    out: list[tuple[int, Irrep]] = [(1, Irrep("3o"))]
    instructions = []
    for _ in range(rng.randint(1, 8)):
        i1, i2 = rng.randrange(len(in1)), rng.randrange(len(in2))
        (mul1, ir1), (mul2, ir2) = in1[i1], in2[i2]
        modes = [m for m in MODES if m in among and (mul1 == mul2 or m not in _EQUAL)]
        modes = [m for m in modes if mul1 > 1 or m not in ("uvu<v", "u<vw")]
        mode = rng.choice(modes)
        weighted = MODES[mode].needs_weight or rng.random() < 0.6
        free = rng.choice([1, 2]) if weighted else 1
        segment = (out_mul(mode, mul1, mul2, free), rng.choice(list(ir1 * ir2)))
        if segment not in out or rng.random() < 0.2:
            out.append(segment)
        i_out = rng.choice([i for i, s in enumerate(out) if s == segment])
        instructions.append((i1, i2, i_out, mode, weighted, rng.choice([1.0, 0.3, 2.0, 0.0])))
    keywords = {
        "irrep_normalization": rng.choice(["component", "norm", "none"]),
        "path_normalization": rng.choice(["element", "path", "none"]),
        "in1_var": [rng.choice([0.5, 1.0, 3.0]) for _ in in1],
        "in2_var": [rng.choice([0.5, 1.0, 3.0]) for _ in in2],
        "out_var": [rng.choice([0.5, 1.0, 3.0]) for _ in out],
        "shared_weights": rng.random() < 0.5,
    }
    return (in1, in2, out, instructions), keywords


def operands(plan: Plan, rows: int = ROWS, requires_grad: bool = False) -> dict[str, Tensor]:
    """Random float64 tensors x1, x2, w of a plan."""
    return {name: x.requires_grad_(requires_grad) for name, x in random_operands(plan, rows).items()}


def reference_right(plan: Plan, x2: Tensor, w: Tensor, layout: Layout = "mul_ir") -> Tensor:
    """``right`` by its definition: the product of every unit vector, ``(z, in1, out)``."""
    rows, dim = x2.shape[0], plan.irreps_in1.dim
    unit = torch.eye(dim, dtype=x2.dtype).repeat(rows, 1)
    x2, w = (x if x is w and plan.shared_weights else x.repeat_interleave(dim, 0) for x in (x2, w))
    return reference_product(plan, unit, x2, w, layout=layout).reshape(rows, dim, -1)


def assert_close(got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> None:
    """Equal up to ``tolerance`` times the largest entry (or one), and of the same shape and dtype."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.numel() == 0:
        return
    error = (got - want).abs().max().item()
    assert error <= tolerance * max(1.0, want.abs().max().item()), f"largest error {error:.3g}"


def derivatives(result: Tensor, inputs: Sequence[Tensor], orders: int = 2) -> list[Tensor]:
    """A result, and gradients by the inputs up to an order, each of the sines of those before."""
    found, last = [result], [result]
    for order in range(1, orders + 1):
        total = torch.stack([x.sin().sum() for x in last]).sum()
        last = list(torch.autograd.grad(total, inputs, create_graph=order < orders))
        found += last
    return found


def run_python(code: str, **variables: str) -> str:
    """What the code prints in a process of its own, where strings hash differently than here."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
