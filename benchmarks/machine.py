"""What the machine can do at most: move bytes, and multiply and add."""

from __future__ import annotations

from functools import partial

import torch

from tpgen.base.clock import TimedCall, time_calls
from tpgen.kernels.build import build
from tpgen.kernels.build.compiler import cpu_target
from tpgen.kernels.cpp.generate import ENTRY
from tpgen.kernels.cpp.prelude import header_text


def copy_call(nbytes: int) -> TimedCall:
    """A copy that moves that many bytes, half of them read and half written, into memory that is there already."""
    source = torch.ones(max(1, nbytes // 8))
    result = torch.empty_like(source).copy_(source)
    return lambda: result.copy_(source)


# Independent sums, enough of them to hide the latency of a multiply-add; the results are used, or nothing would run.
_SUMS = 12
_SOURCE = """\
typedef long long i64;
{threads}
typedef float vec __attribute__((vector_size({size})));
extern "C" __attribute__((visibility("default"))) int {entry}(const float*, const float*, const float*, const float*,
    float*, float*, float*, float* out, long long rounds) {{
  char busy = 0; char* const lock = &busy;
  on_threads(2, rounds, 0, [=]() {{  // all of them
    vec sum[{sums}], x, y;
    for (int l = 0; l < {lanes}; ++l) {{ x[l] = out[2]; y[l] = out[3]; }}
    for (int n = 0; n < {sums}; ++n) sum[n] = y + (float)n;
    for (long long r = 0; r < rounds; ++r)
      _Pragma("GCC unroll {sums}") for (int n = 0; n < {sums}; ++n) sum[n] = sum[n] * x + y;
    while (__atomic_test_and_set(lock, __ATOMIC_ACQUIRE)) {{}}
    out[0] += 1;
    for (int n = 0; n < {sums}; ++n) out[1] += sum[n][0];
    __atomic_clear(lock, __ATOMIC_RELEASE);
  }});
  return 0;
}}
"""


def fma_rate(rounds: int = 2_000_000, repeats: int = 5) -> float:
    """Floating-point operations per second of multiply-adds in registers, float32, all threads of torch.

    A `BackendError` where there is no compiler.
    """
    lanes = cpu_target(torch.float32).lanes
    text = _SOURCE.format(threads=header_text("threads"), size=4 * lanes, lanes=lanes, sums=_SUMS, entry=ENTRY)
    function = build.load_kernel(text, addresses=8, numbers=1)
    best, threads = float("inf"), 1.0
    for _ in range(repeats):
        out = torch.tensor([0.0, 0.0, 0.5, 0.25])  # threads, sum, factor, summand
        call = partial(function, *[0] * 7, out.data_ptr(), rounds)
        best = min(best, time_calls(call, torch.device("cpu")))
        threads = float(out[0])
    return 2 * threads * rounds * _SUMS * lanes / best
