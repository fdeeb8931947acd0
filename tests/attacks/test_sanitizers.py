"""Generated C++ and the native runtime under AddressSanitizer and UndefinedBehaviorSanitizer.

A small corpus of products, convolutions, linear layers and polynomials, forward and backward.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import needs_compiler
from tpgen.kernels.build.compiler import find_compiler

pytestmark = [pytest.mark.slow, needs_compiler]

CORPUS = """
import re, sys, torch, tpgen
from e3nn.nn import Gate
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.kernels.build import build
if sys.argv[1] == "planted":  # scratch memory of one number
    right = build.load_kernel
    def less(text, *rest):
        assert "scratch_room(" in text
        return right(re.sub(r"scratch_room\\(\\d+\\)", "scratch_room(1)", text), *rest)
    build.load_kernel = less
torch.manual_seed(0)
def step(f, *given):
    given = [x.requires_grad_() for x in given]
    torch.autograd.grad(f(*given).sin().sum(), given)
rows = 19
for plan in (channelwise("17x0e+5x1o", "0e+1o", "0e+1o"), fully_connected("3x0e+2x1o", "0e+1o", "2x0e+3x1o")):
    product = tpgen.TensorProduct.from_plan(plan, internal_weights=False, strategy="kernel")
    w = (plan.weight_numel,) if plan.shared_weights else (rows, plan.weight_numel)
    step(product, *(torch.randn(shape) for shape in ((rows, plan.irreps_in1.dim), (rows, plan.irreps_in2.dim), w)))
conv = tpgen.TensorProductConv.from_plan(channelwise("17x0e", "0e+1o", "0e+1o"), strategy="kernel")
src, dst = torch.randint(5, (2, rows))
x, y, w = torch.randn(5, 17), torch.randn(rows, 4), torch.randn(rows, conv.weight_numel)
step(lambda *given: conv(*given, src, dst), x, y, w)
linear = tpgen.Linear("17x0e+3x1o", "5x0e+6x1o", strategy="kernel")
step(linear, torch.randn(rows, 26))
by_element = tpgen.Linear("17x0e+3x1o+9x1o", "5x0e+6x1o+8x0e", num_elements=7, strategy="kernel")
for count in (1, rows, 5_000):  # some elements have no rows, others those of several tasks
    at = torch.randint(2, (count,)) * 4
    step(lambda x, w: by_element(x, w, index=at), torch.randn(count, 53), torch.randn(7, by_element.weight_numel))
gate = tpgen.convert(Gate("17x0e+2x0o", [torch.sigmoid, torch.tanh], "20x0e", [torch.relu], "17x1o+3x2e"))
step(lambda x: torch.autograd.grad(gate(x).sin().sum(), x, create_graph=True)[0], torch.randn(rows, gate.irreps_in.dim))
contraction = tpgen.SymmetricContraction("5x0e+5x1o", "5x0e+5x1o", correlation=2, num_elements=3, strategy="kernel")
element = torch.arange(rows) % 2  # one element has no rows
step(lambda x: contraction(x, element), torch.randn(rows, 5, 4))
for bad in (-1, 7):  # refused before anything is read
    src[3] = at[3] = bad
    layer = lambda: by_element(torch.ones(5_000, 53), index=at)
    for call in (lambda: conv(x.detach(), y.detach(), w.detach(), src, dst), layer):
        try:
            call()
        except tpgen.TpgenError:
            continue
        raise SystemExit("an index out of range was taken")
print("nothing found")
"""


def run(kind: str, folder: Path) -> subprocess.CompletedProcess[str]:
    found = find_compiler()
    assert found is not None
    compiler = os.environ.get("TPGEN_CXX") or "g++"
    libraries = [
        subprocess.run([compiler, f"-print-file-name=lib{name}.so"], capture_output=True, text=True).stdout.strip()
        for name in ("asan", "ubsan")
    ]
    if not all(Path(library).is_absolute() for library in libraries):
        pytest.skip(f"{compiler} has no libasan.so and libubsan.so beside it")
    wrapper = folder / "cxx"
    wrapper.write_text(
        f'#!/bin/sh\nexec {compiler} -fsanitize=address,undefined -fno-sanitize-recover=undefined -g "$@"\n'
    )
    wrapper.chmod(0o700)
    environment = {
        **os.environ,
        "TPGEN_CXX": str(wrapper),
        "TPGEN_CACHE_DIR": str(folder / "cache"),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "LD_PRELOAD": ":".join(libraries),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    given = [sys.executable, "-W", "ignore", "-c", CORPUS, kind]
    return subprocess.run(given, env=environment, capture_output=True, text=True, check=False)


def test_kernels_stay_within_their_memory(tmp_path: Path) -> None:
    done = run("right", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("nothing found\n")


def test_a_planted_overflow_is_found(tmp_path: Path) -> None:
    done = run("planted", tmp_path)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr
