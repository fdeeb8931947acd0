"""A NequIP model says where the time of its forces goes, and at which line a trace of it ends."""

from __future__ import annotations

import torch

from benchmarks.networks import nequip
from tests.clients.inspected import check_explained, check_traced
from tpgen.networks.conversion.convert import convert


def test_products_are_explained_with_their_backward_passes() -> None:
    case = nequip(8, torch.float64, features=8, l_max=1, layers=2)
    convert(case.model)
    paths = check_explained(case)
    assert {f"model.func.layer1_convnet.conv.{name}" for name in ("tp_scatter", "linear_1", "sc")} <= {*paths}


def test_a_trace_names_the_line_of_nequip() -> None:
    case = nequip(8, torch.float64, features=8, l_max=1, layers=2)
    convert(case.model)
    check_traced(case, r"graph_model.py:\d+ .*in data")
