"""A MACE says where the time of its forces goes, and at which line a trace of it ends."""

from __future__ import annotations

import torch

from benchmarks.networks import mace
from tests.clients.inspected import check_explained, check_traced
from tpgen.networks.conversion.convert import convert


def test_products_and_contractions_are_explained_with_their_backward_passes() -> None:
    case = mace(8, torch.float64, hidden="8x0e+8x1o", max_ell=2, correlation=2)
    convert(case.model)
    paths = check_explained(case)
    assert {"interactions.1.conv_tp", "interactions.1.linear", "products.0.symmetric_contractions"} <= {*paths}


def test_a_trace_names_the_line_of_mace() -> None:
    case = mace(8, torch.float64, hidden="8x0e+8x1o", max_ell=2, correlation=2)
    convert(case.model)
    check_traced(case, r"utils.py:\d+ .*in data")
