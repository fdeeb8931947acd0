"""Rows are sorted by owner as torch sorts them, by one thread and by parts on several."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.kernels.test_products import on_threads
from tests.machine import needs_compiler
from tpgen.kernels.build import build
from tpgen.kernels.cpp.generate import ENTRY
from tpgen.kernels.cpp.prelude import header_text

pytestmark = needs_compiler
MOST_OF_ONE_THREAD = 131_072  # rows


@pytest.fixture(scope="module")
def sort() -> Callable[..., int]:
    """An entry that checks an index and sorts rows by it; 0 if a number is out of range, else the number of parts."""
    headers = "\n".join(header_text(name) for name in ("threads", "system", "indices", "order"))
    body = f"""typedef long long i64;
{headers}
extern "C" __attribute__((visibility("default")))
int {ENTRY}(void* at, void* first, void* order, i64 rows, i64 owners, i64 how) {{
  const RowIndex index = {{at, owners, how}};
  if (!inside(index, rows, owners)) return 0;
  sort_rows(index, rows, owners, (i64*)first, (i64*)order);
  const i64 parts = parts_for(rows, owners);
  return parts > 1 ? parts : 1;
}}
"""
    return build.load_kernel(body, numbers=3)


def compute_order(sort: Callable[..., int], index: Tensor, owners: int) -> tuple[list[Tensor], int]:
    first, order = torch.full((owners + 1,), -1), torch.full((len(index),), -1)
    narrow = 2 * (index.dtype == torch.int32)
    done = sort(index.data_ptr(), first.data_ptr(), order.data_ptr(), len(index), owners, narrow)
    return [first, order], done


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("owners", [1, 7, 5_000, MOST_OF_ONE_THREAD + 5])
@pytest.mark.parametrize("rows", [0, 1, 999, MOST_OF_ONE_THREAD, MOST_OF_ONE_THREAD + 1, 13 * MOST_OF_ONE_THREAD])
def test_rows_are_in_order(rows: int, owners: int, dtype: torch.dtype, sort: Callable[..., int]) -> None:
    """By as many parts as rows and owners are worth; threads without a core of their own need more rows."""
    index = torch.randint(owners, (rows,), generator=torch.Generator().manual_seed(rows)).to(dtype)
    wanted = [torch.bincount(index, minlength=owners).cumsum(0), torch.sort(index, stable=True).indices]
    for threads in (1, 2, 3):
        (first, order), done = on_threads(threads, lambda: compute_order(sort, index, owners))
        assert first[0] == 0
        assert torch.equal(first[1:], wanted[0])
        assert torch.equal(order, wanted[1])
        most = MOST_OF_ONE_THREAD * (1 if threads <= len(os.sched_getaffinity(0)) else 4 * threads)
        parts = min(threads, rows // 16_384, rows // (4 * (owners + 1))) if rows > most else 1
        assert done == max(parts, 1)


@pytest.mark.parametrize("rows", [0, MOST_OF_ONE_THREAD + 1])
def test_rows_of_one_owner_or_of_none(rows: int, sort: Callable[..., int]) -> None:
    owners = 7 if rows else 0
    (first, order), _ = on_threads(2, lambda: compute_order(sort, torch.full((rows,), 3), owners))
    assert torch.equal(order, torch.arange(rows))
    assert first.tolist() == ([0] * 4 + [rows] * 4 if rows else [0])


@pytest.mark.parametrize("rows", [5, MOST_OF_ONE_THREAD + 1])
@pytest.mark.parametrize(
    "wrong, dtype",
    [*product([-1, 7, -(2**31), 2**31 - 1], [torch.int64, torch.int32]), (2**32 + 3, torch.int64)],
    ids=str,
)
def test_a_number_out_of_range_is_found(wrong: int, rows: int, dtype: torch.dtype, sort: Callable[..., int]) -> None:
    for place in (0, rows // 2, rows - 1):
        index = torch.zeros(rows, dtype=dtype)
        index[place] = wrong
        assert on_threads(2, lambda index=index: compute_order(sort, index, 7))[1] == 0
