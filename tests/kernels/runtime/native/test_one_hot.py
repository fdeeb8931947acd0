"""Where the ones of one-hot rows are, by C++ and by torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.kernels.runtime.native import one_hot as module
from tpgen.kernels.runtime.native.one_hot import find_one_hot_columns

KINDS = [
    pytest.param(torch.float32, marks=needs_compiler),
    pytest.param(torch.float64, marks=needs_compiler),
    *(torch.bfloat16, torch.int64),  # by torch
]


@pytest.mark.parametrize("dtype", KINDS)
def test_the_columns_of_ones(dtype: torch.dtype) -> None:
    places = torch.tensor([4, 0, 3, 3, 1])
    rows = torch.eye(5)[places].to(dtype)
    assert torch.equal(find_one_hot_columns(rows), places)
    assert torch.equal(find_one_hot_columns(rows.T.contiguous().T), places)
    assert torch.equal(find_one_hot_columns(rows[:, :1].new_ones(3, 1)), torch.zeros(3, dtype=torch.int64))
    assert find_one_hot_columns(rows[:0]).shape == (0,)


@pytest.mark.parametrize(
    "row", [[0, 0, 0], [1, 1, 0], [2, 0, 0], [0.5, 0.5, 0], [1, 0, -1], [1, torch.nan, 0], [torch.nan, 0, 0]]
)
@pytest.mark.parametrize("dtype", KINDS[:2])
def test_one_row_that_is_none_is_enough(dtype: torch.dtype, row: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.eye(3, dtype=dtype)
    assert find_one_hot_columns(torch.cat([rows, torch.tensor([row], dtype=dtype)])) is None
    monkeypatch.setattr(module, "compile_header_function", lambda *_: None)
    assert find_one_hot_columns(torch.cat([rows, torch.tensor([row], dtype=dtype)])) is None


@needs_compiler
def test_rows_that_are_written_to_are_asked_anew() -> None:
    rows: Tensor = torch.eye(3)
    shared = rows.numpy()  # whose writes torch does not count
    assert find_one_hot_columns(rows) is not None
    shared[0] = shared[1]
    assert find_one_hot_columns(rows).tolist() == [1, 1, 2]
    shared[0, 0] = 1
    assert find_one_hot_columns(rows) is None
