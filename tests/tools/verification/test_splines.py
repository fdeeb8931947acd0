"""Networks whose weights of edges are splines: laws of values hold for these, laws of training for their nets."""

from __future__ import annotations

import math

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn

from tests.machine import needs_compiler
from tests.tools.verification.messages import CUTOFF, HARMONICS, TURNS, Messages, skewed
from tpgen.functions import spline
from tpgen.functions.bessel import CutBessel, cut_bessel
from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.operations.splines import has_splined_nets
from tpgen.tools.verification.verify import WITHOUT_SPLINES, Verification, verify

pytestmark = [needs_compiler, pytest.mark.usefixtures("double")]
TABLES = ("forces", "stress", "repeated", "threads", "memory", "smooth")


class Radial(Messages):
    """Weights by a net of Bessel functions of lengths."""

    shape = CutBessel(math.sqrt(2 / CUTOFF), CUTOFF, 6)

    def __init__(self) -> None:
        super().__init__()
        self.radial = FullyConnectedNet([8, 16, 12], nn.functional.silu)
        self.register_buffer("frequencies", torch.arange(1, 9) * math.pi / CUTOFF)

    def messages(self, edges: Tensor, ends: Tensor, species: Tensor) -> Tensor:
        rows, _ = cut_bessel(edges.norm(dim=-1, keepdim=True), self.frequencies, self.shape)
        harmonics = o3.spherical_harmonics(HARMONICS, edges, True, "component")
        return self.product(self.embedding[species][ends[0]], harmonics, self.radial(rows))


def verified(*laws: str) -> Verification:
    torch.manual_seed(0)
    network = convert(Radial(), radial="spline")
    report = verify(network, skewed(), only=laws, **TURNS)
    assert has_splined_nets(network)
    return report


def test_no_law_accuses_a_network_with_splines() -> None:
    report = verified(*TABLES, "first order", "parameters", "compiled", "stock")
    assert report.passed, str(report)
    by_nets = {finding.law for finding in report.findings if finding.why == WITHOUT_SPLINES}
    assert by_nets == {"first order", "parameters", "compiled", "stock"}


def test_wrong_slopes_of_splines_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    call = spline._run_spline_kernel
    monkeypatch.setattr(
        spline, "_run_spline_kernel", lambda s, r, g: call(s, r, g) if g is None else 1.0001 * call(s, r, g)
    )
    assert verified("forces", "stress").failed == ("forces", "stress")
