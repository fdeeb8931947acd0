"""NaN, infinities and vectors of no length in what is converted of e3nn's: harmonics, nets of edges, gates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet, Gate
from torch import Tensor, nn

from tests.machine import needs_compiler
from tests.nonfinite import KINDS, derivatives, spoiled, spread_further
from tpgen.base._e3nn import default_dtype
from tpgen.networks.conversion.convert import convert

LIMITS = {torch.float32: 1e-4, torch.float64: 1e-10}
SILU = nn.functional.silu
CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "harmonics": lambda: (o3.SphericalHarmonics([0, 1, 2, 3], normalize=False), torch.randn(5, 3)),
    "harmonics of directions": lambda: (o3.SphericalHarmonics([0, 1, 2, 3], normalize=True), torch.randn(5, 3)),
    "net": lambda: (FullyConnectedNet([4, 8, 8, 6], SILU), torch.randn(5, 4)),
    "gate": lambda: (Gate("4x0e", [SILU], "2x0e+1x0o", [torch.sigmoid, torch.tanh], "2x1o+1x1e"), torch.randn(5, 16)),
}
pytestmark = needs_compiler


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_number_in_the_input(case: str, dtype: torch.dtype) -> None:
    with default_dtype(dtype):
        with torch.random.fork_rng():  # e3nn 0.5 cannot copy its harmonics: the same module is built twice
            network = convert(nn.Sequential(CASES[case]()[0]))
        stock, x = CASES[case]()
    lines = []
    for kind in KINDS:
        for _, given in spoiled([x], kind):
            found, wanted = (derivatives(of, given) for of in (network, stock))
            lines += [
                f"{kind}: {name}: {line}"
                for name, y in wanted.items()
                if (line := spread_further(found[name], y, LIMITS[dtype]))
            ]
    assert not lines, "\n".join(lines)
