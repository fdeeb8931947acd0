"""The emulator finds what a device would do wrong: small kernels with one fault each, and one without."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.emulator.machine import launch
from tests.kernels.cuda.emulator.memory import Arena, Fault
from tests.kernels.cuda.emulator.parse import parse
from tests.machine import needs_nvrtc
from tpgen.kernels.cuda.nvrtc import need_nvrtc

pytestmark = needs_nvrtc
_TEXT = """extern __shared__ float tpgen_shared[];
extern "C" __global__ void f(const float* x, float* y) {{
  const int t = threadIdx.x, b = blockIdx.x;
  float* const s = tpgen_shared;
  {body}
}}"""
FAULTS = {
    "beside a tensor": ("y[64 * b + t] = x[t + 1 + 63 * (t / 63)];", "thread 63 reads beside a tensor"),
    "two blocks": ("y[t] = x[t];", "writes what another block writes"),
    "no barrier": ("s[t] = x[t]; y[64 * b + t] = s[63 - t];", "has just been"),
    "no barrier of a warp": ("s[t] = x[t]; y[64 * b + t] = s[t ^ 1];", "has just been"),
    "one place": ("s[t / 2] = x[t]; __syncthreads(); y[64 * b + t] = s[t / 2];", "writes with another one"),
    "far away": (
        "s[t + 64] = x[t]; __syncthreads(); y[64 * b + t] = s[t + 64];",
        "shared memory: 4 bytes at .* leave it",
    ),
    "not aligned": ("float2 p = *(float2*)(x + 1); y[64 * b + t] = p.x + p.y;", "which is no multiple"),
    "half a warp": ("if (t % 2) y[64 * b + t] = __shfl_xor_sync(~0u, x[t], 1);", "a shuffle without all lanes"),
}


def run(body: str) -> Tensor:
    """What 2 blocks of 64 threads write, of the numbers from 0 to 63."""
    arena = Arena(1 << 14, 4)
    x, y = arena.place(torch.arange(64.0)), arena.place(torch.full((128,), torch.nan))
    given = [ctypes.c_void_p(z.data_ptr()) for z in (x, y)]
    launch(parse(need_nvrtc().ptx(_TEXT.format(body=body), 90)), "f", arena, given, (2, 64, 256))
    return y


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_found(what: str) -> None:
    body, why = FAULTS[what]
    with pytest.raises(Fault, match=why):
        run(body)


def test_lanes_that_part_meet_again() -> None:
    """Loops of different lengths, a warp's and a block's barrier, a shuffle."""
    body = (
        "float a = x[t]; for (int n = 0; n < t % 5; ++n) a += x[n]; s[t] = a; __syncwarp(); a = s[t ^ 3];"
        "__syncthreads(); s[t] = __shfl_xor_sync(~0u, a, 8); __syncthreads(); y[64 * b + t] = s[63 - t] * (b + 1);"
    )
    t = torch.arange(64)
    sums = t + torch.tensor([0.0, 0, 1, 3, 6])[t % 5]
    want = sums[(63 - t) ^ 8 ^ 3]
    assert torch.equal(run(body), torch.cat([want, 2 * want]))
