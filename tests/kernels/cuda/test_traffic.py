"""What kernels ask of memory, counted request by request in the stand-in: every number once, in few sectors."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import pytest
import torch

from tests.kernels.cuda.named import QUICK, Kernel
from tests.kernels.cuda.polynomials.test_calls import CALLS, Case
from tests.kernels.cuda.standin import Library, StandIn, Traffic
from tests.machine import needs_compiler
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.planner.problems import POLYNOMIALS

pytestmark = needs_compiler
WAYS = {90: 2, 80: 1, 70: 0}  # how rows are copied
EDGES, NODES = 24, 4
# Sectors of 32 bytes for each request, relative to the fewest that hold its bytes; docs/gpu.md says why some take more.
MOST = 1.1
MORE = {"article": 1.33, "harmonics": 4.9}
# The same of shared memory: the time of a request relative to one without conflicts between banks.
CONFLICTS = {"products": 1.05, "convolutions": 1.05, "mixing": 2.0, "linear": 3.9, "polynomials": 1.1}


def ratio(counts: Mapping[str, Traffic], *names: str) -> float:
    counted = [counts[name] for name in names]
    return sum(c.answered for c in counted) / max(1, sum(c.fewest for c in counted))


def operands_of(source: CudaSource, indexed: bool) -> dict[str, torch.Tensor]:
    """Two steps for each of two blocks, or some edges of a few nodes."""
    p = source.placement
    rows = dict.fromkeys(p.dim, EDGES if indexed else 4 * p.rows)
    rows |= {slot: NODES for slot in ("x1", "out") if indexed}
    shared = p.schedule.shared_weights
    return {s: torch.randn((n,) * (not (s == "w" and shared)) + (p.dim[s],)) for s, n in rows.items()}


def check(kernel: Kernel, source: CudaSource, counts: Mapping[str, Traffic]) -> None:
    p, tensors = source.placement, [name for name in counts if name != "shared"]
    most = MORE.get(kernel.problem, MOST)
    assert ratio(counts, *tensors) <= most, (str(kernel), counts)
    assert ratio(counts, "shared") <= CONFLICTS[kernel.family], (str(kernel), counts)
    rows = EDGES if kernel.indexed else 4 * p.rows
    moved = [*p.row_operands, *(f"d_{slot}" for slot in p.results)]
    wanted = {name: rows * p.row_bytes(name.removeprefix("d_")) for name in moved}
    wanted |= {f"d_{p.owner}": NODES * p.row_bytes(p.owner)} if p.owner else {}
    assert {name: counts[name].bytes for name in wanted} == wanted, f"{kernel} moves rows more than once"


def check_all(cases: list[tuple[Kernel, int]], folder: Path) -> None:
    sources = [kernel.source(arch) for kernel, arch in cases]
    stand_in = StandIn(sources, [WAYS[arch] for _, arch in cases], folder, counted=True)
    for n, (kernel, _) in enumerate(cases):
        edges = tuple(torch.randint(NODES, (2, EDGES))) if kernel.indexed else None
        stand_in.run(n, operands_of(sources[n], kernel.indexed), edges)
        check(kernel, sources[n], stand_in.library.traffic)


def test_every_number_comes_once_and_in_few_sectors(tmp_path: Path) -> None:
    check_all(list(zip(QUICK, cycle((80, 90)))), tmp_path)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_ask_for_few_sectors(name: str, tmp_path: Path) -> None:
    problem = POLYNOMIALS[name]
    kinds = ("one", "elements", "rows") if problem.plan.weights else ("one",)
    calls = [Case(name, problem.plan, call, "float32", problem.channels, "one") for call in CALLS]
    stand_in = StandIn([case.source for case in calls], [0] * len(calls), tmp_path, counted=True)
    for n, kind in product(range(len(calls)), kinds):
        case = replace(calls[n], weights=kind)
        stand_in.run_polynomial(n, case.given, case.index, case.sizes)
        counts = stand_in.library.traffic
        tensors = [area for area in counts if area != "shared"]
        assert ratio(counts, *tensors) <= MORE.get(name, MOST), (case, counts)
        assert ratio(counts, "shared") <= CONFLICTS["polynomials"], (case, counts)


# What one warp does with ``from``, ``to`` and shared memory; its bytes, sectors or rounds, and the fewest of them.
PLACES = {
    "side by side": ("to[n] = from[n];", {"from": (128, 4, 4), "to": (128, 4, 4)}),
    "one number for all": ("to[n] = from[3];", {"from": (4, 1, 1)}),
    "out of place": ("to[n] = from[n + 1];", {"from": (128, 5, 4)}),
    "each in a sector": ("to[n] = from[n * 8];", {"from": (128, 32, 4)}),
    "lanes that leave a loop wait": (
        "for (int row = 0; row < 3; ++row) for (int m = n; m < 36; m += 32) to[m] = from[row * 36 + m];",
        {"from": (3 * 144, 16, 15), "to": (3 * 144, 15, 15)},
    ),
    "lanes take turns": ("if (n % 2) to[n] = from[n]; else to[n] = from[n];", {"from": (128, 8, 4)}),
    "no bank twice": ("s[n * 3] = 1;", {"shared": (128, 1, 1)}),
    "each bank twice": ("s[n * 2] = 1;", {"shared": (128, 2, 1)}),
    "one bank": ("s[n * 32] = 1;", {"shared": (128, 32, 1)}),
    "a copy of the engine": (
        "if (n == 0) { engine::bulk_out(to + 4, s, 64); } engine::bulk_drain();",
        {"to": (64, 3, 2)},
    ),
}
_ALONE = """extern "C" const char* run_{n}(const float* from, float* to) {{
  return launch([=] {{ const int n = threadIdx.x; float* const s = (float*)shared_memory(); {text} }}, 1, 32, 4096, 0);
}}
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Library:
    text = "".join(_ALONE.format(n=n, text=text) for n, (text, _) in enumerate(PLACES.values()))
    return Library(text, tmp_path_factory.mktemp("places"), counted=True)


@pytest.mark.parametrize("what", PLACES)
def test_requests_are_counted_as_a_device_counts_them(what: str, places: Library) -> None:
    tensors = {"from": torch.zeros(256), "to": torch.zeros(256)}
    with places.watching(tensors):
        places.call(f"run_{list(PLACES).index(what)}", *(ctypes.c_void_p(x.data_ptr()) for x in tensors.values()))
    found = {name: tuple(places.traffic[name]) for name in PLACES[what][1]}
    assert found == PLACES[what][1]
