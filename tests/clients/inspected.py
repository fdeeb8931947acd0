"""What every converted project says of itself: its products with their times, and where a trace of it ends."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from benchmarks.networks import Case
from tests.clients.checks import arguments, assert_same, results
from tpgen.base.errors import TraceError
from tpgen.networks.tracer import trace_network
from tpgen.tools.inspection.costs.explain_network import explain_network
from tpgen.tools.inspection.costs.roofline import Ceilings


def check_explained(case: Case) -> list[str]:
    """Each product of a converted model has its time, forward and backward; returns their paths."""
    wanted = results(case, deepcopy(case.model))
    paths: list[str] = []
    for training in (False, True):
        given, keywords = arguments(case, training)
        found = explain_network(
            case.model.train(training), given, keywords, measure=training, ceilings=Ceilings(1e10, 1e11)
        )
        assert found.inside, "it takes its forces"
        assert all(p.seconds for p in found.products) or not training
        passed = [p.module for p in found.products if p.backward]
        assert len(passed) > len(found.products) / 2, found
        assert all(bool(p.backward_seconds) == (training and bool(p.backward)) for p in found.products)
        paths += passed
    assert_same(results(case, case.model), wanted)
    return paths


def check_traced(case: Case, line: str) -> None:
    """A trace of a converted model ends at a line of the client's, which the error names, as that of the stock one."""
    with pytest.raises(TraceError, match=rf"cannot trace .*{line}"):
        trace_network(case.model)
    with pytest.raises((torch.fx.proxy.TraceError, TypeError)):
        torch.fx.symbolic_trace(case.model)
    assert isinstance(nn.Module.__call__, type(check_traced)), "torch is as it was"
