"""A SevenNet says where the time of its forces goes, and at which line a trace of it ends."""

from __future__ import annotations

import torch

from benchmarks.networks import sevenn
from tests.clients.inspected import check_explained, check_traced
from tpgen.networks.conversion.convert import convert


def test_products_are_explained_with_their_backward_passes() -> None:
    case = sevenn(8, torch.float64, hidden="8x0e+4x1e", layers=2)
    convert(case.model)
    paths = check_explained(case)
    assert {"1_convolution.convolution", "1_self_interaction_1.linear"} <= {*paths}


def test_a_trace_names_the_line_of_sevenn() -> None:
    case = sevenn(8, torch.float64, hidden="8x0e+4x1e", layers=2)
    convert(case.model)
    check_traced(case, r"sequential.py:\d+ .*atomic_numbers")
