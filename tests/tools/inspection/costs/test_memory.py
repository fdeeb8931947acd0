"""Estimates of memory agree with what a process allocates, byte by byte counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tpgen
from tests.cases import run_python
from tests.machine import needs_compiler
from tpgen.base.errors import InputError, TpgenError
from tpgen.kernels.build.compiler import need_compiler
from tpgen.planner.presets import channelwise
from tpgen.tools.inspection.costs.memory import MemoryEstimate, estimate_memory

SOURCE = Path(__file__).with_name("allocations.cpp")
CLOSE = 0.2  # of what is measured
SMALL = 200_000  # bytes that Python, autograd and the allocator take for themselves, whatever the tensors

# measures every case in a process that counts its allocations, and prints both figures
MEASURE = """
import ctypes, json, torch, tpgen
from tpgen.planner.presets import channelwise, fully_connected
counted = ctypes.CDLL(None)
for name in ("now", "peak"):
    getattr(counted, f"allocated_{name}").restype = ctypes.c_long
rows, nodes = 10_000, 500

def measured(module, operands):
    given = [x.requires_grad_() if x.is_floating_point() else x for x in operands]
    def forward():
        with torch.no_grad():
            module(*given)
    def training():
        result = module(*given)
        wanted = [x for x in (*given, *module.parameters()) if x.requires_grad]
        torch.autograd.grad(result, wanted, torch.empty_like(result))
    found = {}
    for run in (forward, training):
        run()
        counted.allocated_reset()
        before = counted.allocated_now()
        run()
        found[run.__name__] = counted.allocated_peak() - before
    return found

def cases():
    src, dst = torch.randint(nodes, (2, rows))
    wide, mixed = channelwise("16x0e+16x1o", "0e+1o", "0e+1o"), fully_connected("8x0e+4x1o", "2x0e+1o", "4x0e+8x1o")
    for strategy in STRATEGIES:
        for limit in (None, 2**21) if strategy != "kernel" else (None,):
            options = {"strategy": strategy, "max_bytes": limit}
            for name, plan in (("channelwise", wide), ("mixed", mixed)):
                shape = (plan.weight_numel,) if plan.shared_weights else (rows, plan.weight_numel)
                x, y, w = (torch.randn(s) for s in ((rows, plan.irreps_in1.dim), (rows, plan.irreps_in2.dim), shape))
                yield f"{name} {strategy} {limit}", tpgen.TensorProduct.from_plan(plan, False, **options), [x, y, w]
                conv = tpgen.TensorProductConv.from_plan(plan, False, **options)
                yield f"{name} conv {strategy} {limit}", conv, [x[:nodes].clone(), y, w, src, dst]
        linear = tpgen.Linear("16x0e+16x1o", "16x0e+16x1o", strategy=strategy)
        yield f"linear {strategy}", linear, [torch.randn(rows, 64)]
        if strategy == "kernel":
            contraction = tpgen.SymmetricContraction("16x0e+16x1o", "16x0e", correlation=2, num_elements=3)
            yield "contraction", contraction, [torch.randn(rows, 16, 4), torch.randint(3, (rows,))]

print(json.dumps([(name, measured(module, operands), vars(tpgen.estimate_memory(module, *operands)))
                  for name, module, operands in cases()]))
"""


@pytest.mark.parametrize("rows", [-1, 1e5, True, "3"])
def test_a_number_of_rows_that_is_none(rows: object) -> None:
    conv = tpgen.TensorProductConv("8x1o", "1o", "8x0e", [(0, 0, 0, "uvu", True)], strategy="grouped")
    with pytest.raises(InputError, match=f"rows must be a whole number, 0 or more, got {rows!r}"):
        conv.memory(rows)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"nodes must be a whole number, 0 or more, got {rows!r}"):
        conv.memory(3, nodes=rows)  # type: ignore[arg-type]


def test_estimates_of_what_cannot_be_called() -> None:
    with pytest.raises(TpgenError, match="estimate_memory takes a module and the operands of a call, got int"):
        estimate_memory(3, torch.ones(2, 3))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Linear does not take these operands \(.*missing.*: give those of one"):
        estimate_memory(torch.nn.Linear(3, 3))


@pytest.fixture(scope="module")
def allocations(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("allocations") / "allocations.so"
    command = [*need_compiler().program, "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
    subprocess.run(command, check=True)
    return str(made)


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="counts the allocations of glibc")
@pytest.mark.parametrize(
    "strategies", [["kernel"], ["grouped"], pytest.param(["einsum", "unrolled"], marks=pytest.mark.slow)], ids=str
)
def test_estimates_agree_with_what_is_allocated(allocations: str, strategies: list[str]) -> None:
    code = f"STRATEGIES = {strategies!r}\n{MEASURE}"
    found = json.loads(run_python(code, LD_PRELOAD=allocations, TPGEN_REUSE_MB="0").splitlines()[-1])
    assert len(found) >= 5
    for name, measured, estimate in found:
        for what, bytes_ in measured.items():
            assert abs(estimate[what] - bytes_) <= max(CLOSE * bytes_, SMALL), (name, what, estimate, measured)


def test_nothing_is_computed() -> None:
    product = tpgen.TensorProduct("64x1o", "1o", "64x0e", [(0, 0, 0, "uvu", True)], strategy="grouped")
    rows = 10**9
    found = estimate_memory(product, torch.empty(rows, 192, device="meta"), torch.empty(rows, 3, device="meta"))
    assert found.result == rows * 64 * 4
    assert found.forward >= found.result


def test_a_module_knows_its_operands() -> None:
    plan = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")
    product = tpgen.TensorProduct.from_plan(plan, strategy="grouped")
    operands = torch.empty(100, 16), torch.empty(100, 4), torch.empty(100, plan.weight_numel)
    assert product.memory(100) == estimate_memory(product, *operands)
    conv = tpgen.TensorProductConv.from_plan(plan, strategy="grouped")
    assert conv.memory(100, nodes=10).result == 10 * plan.irreps_out.dim * 4
    linear = tpgen.Linear("4x0e", "8x0e", strategy="grouped")
    assert linear.memory(100).result == 100 * 8 * 4
    with pytest.raises(TpgenError, match="nodes=3 is for a TensorProductConv"):
        product.memory(10, nodes=3)


def test_what_autograd_keeps_is_told() -> None:
    plan = channelwise("16x0e+16x1o", "0e+1o", "0e+1o")
    kept = {
        limit: tpgen.TensorProduct.from_plan(plan, strategy="grouped", max_bytes=limit).memory(1000).kept
        for limit in (None, 10**5)
    }
    assert kept[None] > 0 == kept[10**5]


def test_a_network_is_estimated_as_a_product_is() -> None:
    inner = tpgen.Linear("8x0e", "8x0e", strategy="grouped")
    network = torch.nn.Sequential(inner, inner)
    found = estimate_memory(network, torch.empty(1000, 8))
    assert isinstance(found, MemoryEstimate)
    assert found.training > inner.memory(1000).training
    assert found.kept >= 32_000  # what the second layer was given
    assert "kept 32.5 kB" in str(found)


def test_without_a_gradient_training_is_the_call_alone() -> None:
    found = estimate_memory(torch.nn.Threshold(0.0, 0.0), torch.ones(3, dtype=torch.int64))
    assert found.kept == 0
    assert found.training == found.forward


def test_what_cannot_be_estimated() -> None:
    compiled = tpgen.Linear("8x0e", "8x0e", strategy="grouped", backend="aot_eager")
    with pytest.raises(TpgenError, match="backend 'aot_eager' compiles them anew"):
        estimate_memory(compiled, torch.empty(3, 8))
    with pytest.raises(InputError, match="the last dimension must be 8"):
        estimate_memory(tpgen.Linear("8x0e", "8x0e", strategy="grouped"), torch.empty(3, 7))
