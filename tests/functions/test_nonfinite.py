"""NaN, infinities, zeros and lengths far beyond the cutoff: kernels of functions say what torch's operations say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from tests.functions.test_bessel import SHAPES
from tests.machine import needs_compiler
from tests.nonfinite import KINDS, Function, compare, derivatives, differences, spoiled
from tpgen.functions import silu as silus
from tpgen.functions.bessel import CutBessel, bessel_by_torch, bessel_values, cut_bessel
from tpgen.functions.gate import gate, gate_by_torch, make_gate_table
from tpgen.functions.spline import evaluate_spline, make_interpolant, make_spline

DTYPES = {torch.float32: 1e-3, torch.float64: 1e-9}
# in units of the cutoff
LENGTHS = (0, 0.3, 1, 1.5, 1e3, 1e5, 1e6, 1e8, 1e10, 1e15, 1e20, 1e30, 1e38, 1e100, 1e160, 1e200, 1e300)
NO_LENGTHS = (math.inf, -math.inf, math.nan)
FREQUENCIES = {"usual": (0.6, 1.3, 1.9), "NaN": (0.6, math.nan, 1.9), "infinite": (0.6, math.inf, 1.9)}
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
pytestmark = needs_compiler


def each(
    function: Function, definition: Function, operands: list[Tensor], dtype: torch.dtype, kinds: Sequence[str] = KINDS
) -> list[str]:
    """What differs for any number of any kind in any operand."""
    own, lines = [x.to(dtype) for x in operands], []
    for kind in kinds:
        for n, given in spoiled(own, kind):
            found, wanted = (derivatives(of, given) for of in (function, definition))
            lines += [f"{kind} in operand {n}: {line}" for line in compare(found, wanted, DTYPES[dtype])]
    return lines


@dtypes
@pytest.mark.parametrize("frequencies", FREQUENCIES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bessel_functions_at_any_length(shape: CutBessel, frequencies: str, dtype: torch.dtype) -> None:
    w, lines = torch.tensor(FREQUENCIES[frequencies], dtype=dtype), []
    for length in (*LENGTHS, *NO_LENGTHS):
        r = torch.tensor([[length], [0.4]], dtype=dtype) * shape.cutoff
        found, wanted = (derivatives(lambda *x, of=of: of(*x, shape), [r, w]) for of in (cut_bessel, bessel_by_torch))
        lines += [f"{length}: {line}" for line in compare(found, wanted, DTYPES[dtype])]
    assert not lines


@dtypes
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_cotangents_of_bessel_functions(shape: CutBessel, dtype: torch.dtype) -> None:
    r = torch.tensor([[0.3], [0.0], [1.5], [0.7]], dtype=dtype, requires_grad=True)
    w, given = (
        torch.tensor(FREQUENCIES["usual"], dtype=dtype),
        [torch.randn(4, 3).to(dtype), torch.randn(4, 1).to(dtype)],
    )
    for kind in ("nan", "zero"):  # infinities cancel in torch's sums
        for _, cotangents in spoiled(given, kind):
            ours, theirs = (
                torch.autograd.grad(of(shape.cutoff * r, w, shape), r, cotangents)[0]
                for of in (cut_bessel, bessel_by_torch)
            )
            assert not differences(ours, theirs, DTYPES[dtype])


@dtypes
def test_arguments_of_waves_too_large_for_the_series_are_those_of_torch(dtype: torch.dtype) -> None:
    """Lengths without an end, as SevenNet has them, and frequencies that training has made large."""
    shape = SHAPES["on and on"]
    for length, frequency in ((1e4 if dtype == torch.float32 else 1e8, 3.0), (2.0, 1e9)):
        r, w = (torch.tensor([[x], [1.0]], dtype=dtype) for x in (length, frequency))
        assert torch.equal(bessel_values(r, w.flatten(), shape)[0], bessel_by_torch(r, w, shape)[0])


def test_beyond_the_end_is_zero_until_the_cutoff_overflows() -> None:
    shape = SHAPES["six"]
    rows = cut_bessel(torch.tensor([[1e3], [1e5], [1e10]]), torch.ones(1), shape)[0]
    assert rows.flatten().isnan().tolist() == [False, False, True]
    assert not rows[:2].any()


@dtypes
def test_silu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silus, "WORTH_SILU", 1)
    assert not each(silus.silu, nn.functional.silu, [torch.randn(5, 7)], dtype)


@dtypes
@pytest.mark.parametrize("place", range(9))
def test_gates(place: int, dtype: torch.dtype) -> None:
    """A number in each scalar, alone or a factor of copies, and in a copy."""
    functions = ("silu", "tanh", "sigmoid", "abs", "relu", "identity", "silu", "tanh", "sigmoid")
    gated = {1: 9, 2: 12, 4: 15, 6: 18}
    copies = [(name, 1 + n / 8, n, gated.get(n, 0), 3 if n in gated else 0) for n, name in enumerate(functions)]
    table, lines = make_gate_table(copies), []
    for number in (*NO_LENGTHS, 0.0, 100.0, -100.0, 800.0, -800.0, 1e30, -1e30):
        for at in (place, gated.get(place, place)):
            x = torch.randn(3, table.dim_in, dtype=dtype)
            x[1, at] = number
            orders = 1 if at != place and math.isinf(number) else 2  # torch's is a sum, in which infinities cancel
            found, wanted = (derivatives(lambda x, of=of: of(table, x), [x], orders) for of in (gate, gate_by_torch))
            lines += [f"{number} at {at}: {line}" for line in compare(found, wanted, DTYPES[dtype])]
    assert not lines


@dtypes
def test_splines(dtype: torch.dtype) -> None:
    spline = make_spline(lambda r: torch.cat([r.sin(), r.cos()], 1), 0.5, 3.0).to(dtype)
    whole = [0.0, 0.7, *LENGTHS[3:], *NO_LENGTHS]
    r = torch.tensor(whole, dtype=dtype).unsqueeze(1)
    found, wanted = (derivatives(of, [r], 1) for of in (lambda r: evaluate_spline(spline, r), make_interpolant(spline)))
    assert not compare(found, wanted, DTYPES[dtype])
