"""A converted model says where the time of its forces goes, and at which line of the client's a trace of it ends."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from benchmarks.networks import Case
from tests.clients.checks import arguments, assert_same, results
from tests.clients.projects import PROJECTS, WITH_PAIRS
from tpgen.base.errors import TraceError
from tpgen.networks.conversion.convert import convert
from tpgen.networks.tracer import trace_network
from tpgen.tools.inspection.costs.explain_network import explain_network
from tpgen.tools.inspection.costs.roofline import Ceilings

# some of its products, and the line at which a trace ends
SAID = {
    "mace": (
        ("interactions.1.conv_tp", "interactions.1.linear", "products.0.symmetric_contractions"),
        r"utils.py:\d+ .*in data",
    ),
    "nequip": (
        tuple(f"model.func.layer1_convnet.conv.{name}" for name in ("tp_scatter", "linear_1", "sc")),
        r"graph_model.py:\d+ .*in data",
    ),
    "sevenn": (("1_convolution.convolution", "1_self_interaction_1.linear"), r"sequential.py:\d+ .*atomic_numbers"),
}
explained = pytest.mark.parametrize("project", WITH_PAIRS)


def converted(project: str) -> Case:
    case = PROJECTS[project].make(8, torch.float64)
    convert(case.model)
    return case


@explained
def test_each_product_has_its_time_forward_and_backward(project: str) -> None:
    case, paths = converted(project), set()
    wanted = results(case, deepcopy(case.model))
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
        paths |= {*passed}
    assert_same(results(case, case.model), wanted)
    assert paths >= {*SAID[project][0]}


@explained
def test_a_trace_names_the_line_of_the_client_as_that_of_the_stock_model(project: str) -> None:
    case = converted(project)
    with pytest.raises(TraceError, match=rf"cannot trace .*{SAID[project][1]}"):
        trace_network(case.model)
    with pytest.raises((torch.fx.proxy.TraceError, TypeError)):
        torch.fx.symbolic_trace(case.model)
    assert isinstance(nn.Module.__call__, type(converted)), "torch is as it was"
