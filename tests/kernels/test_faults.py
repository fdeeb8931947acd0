"""Faults of disks and processes, and operands that lie in memory in unusual ways."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.kernels.plans import gradients, operands
from tests.kernels.test_build import PLAN, TEXT, libraries, run_product
from tpgen.base.errors import BackendError, InputError, PlanError
from tpgen.kernels.build import build, cache
from tpgen.kernels.runtime.description import read_description
from tpgen.kernels.runtime.ops import describe, kernel_conv, kernel_product
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.planner.plan import Plan
from tpgen.planner.presets import fully_connected
from tpgen.planner.product import make_plan

USE = """
import os, signal, sys, torch
from tpgen.kernels.runtime.ops import kernel_product
from tpgen.kernels.runtime.description import read_description
text = sys.argv[1]
plan = read_description(text).plan
torch.manual_seed(0)
x1, x2, w = (torch.randn(5, n) for n in (plan.irreps_in1.dim, plan.irreps_in2.dim, plan.weight_numel))
"""


def run_elsewhere(code: str, **environment: str) -> str:
    """What a program prints in a process of its own, where one product is set up."""
    command = [sys.executable, "-c", USE + code, TEXT]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ten_processes_build_one_kernel(fresh: Path) -> None:
    code = """
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os.write(1, f"{kernel_product(x1, x2, w, text).double().sum().item()}\\n".encode())
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""
    printed = run_elsewhere(code).splitlines()
    assert len(printed) == 10
    assert len(set(printed)) == 1
    assert len(libraries(fresh)) == 1
    assert not list(fresh.glob(".new-*"))


def test_a_read_only_cache_is_read_and_said_nothing_about(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_product()
    build._loaded.clear()

    def no_room(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache.tempfile, "TemporaryFile", no_room)
    cache.forget_directory()
    run_product()  # a warning would be an error here
    assert len(libraries(fresh)) == 1


def test_a_disk_that_fills_up_while_compiling(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "fills-up"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *{fresh}*) echo "as: error: No space left on device" >&2; exit 1;; esac\n'
        'exec g++ "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("TPGEN_CXX", str(script))
    cache.make_temporary_cache.cache_clear()
    with pytest.warns(UserWarning, match=r"cannot write its kernel cache.*\(No space left on device\)"):
        assert run_product().shape == (5, PLAN.irreps_out.dim)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TPGEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", homeless)
    cache.forget_directory()
    with pytest.warns(UserWarning, match="cannot write its kernel cache.*Set TPGEN_CACHE_DIR"):
        assert cache.open_cache_directory().is_dir()
    cache.forget_directory()


def test_a_library_removed_between_check_and_use_is_built_again(
    unloaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = cache.find_intact_entry

    def removed(*wanted: str) -> cache.Entry | None:
        entry = finished(*wanted)
        entry.library.unlink()
        return entry

    monkeypatch.setattr(cache, "find_intact_entry", removed)
    run_product()
    assert len(libraries(unloaded)) == 1


def test_forward_and_backward_kernels_are_built_together(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_of.cache_clear()
    x1, x2, w, _ = (x.requires_grad_() for x in operands(PLAN, 5, torch.float32).values())
    out = kernel_product(x1, x2, w, TEXT)
    assert len(libraries(fresh)) == 2
    monkeypatch.setattr(build, "_build_and_publish_entry", lambda *_: pytest.fail("built twice"))
    out.sum().backward()
    kernels_of.cache_clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes() -> None:
    code = """
x1, x2, w = (x.repeat(600, 1) for x in (x1, x2, w))
kernel_product(x1, x2, w, text)
if os.fork() == 0:
    signal.alarm(60)
    kernel_product(x1, x2, w, text)
    kernel_product(x1.double(), x2.double(), w.double(), text)  # one that is not loaded yet
    os._exit(0)
assert os.wait()[1] == 0
"""
    run_elsewhere(code, OMP_NUM_THREADS="2")


def test_a_product_without_paths_is_zero_and_needs_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CXX", "none")
    text = describe(make_plan("4x0e", "0e", "3x0e", []))
    x1, x2, w = torch.ones(2, 4), torch.ones(2, 1), torch.ones(0)
    assert kernel_product(x1, x2, None, text).eq(0).all()
    found = gradients(text, x1, x2, w, torch.ones(2, 3))
    assert [tuple(x.shape) for x in found] == [(2, 4), (2, 1), (0,)]
    assert all(x.eq(0).all() for x in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operands_that_are_unaligned_overlap_or_carry_a_sign(dtype: torch.dtype) -> None:
    x1, x2, w, _ = (x.to(dtype) for x in operands(PLAN, 7, torch.float32).values())
    wanted = kernel_product(x1, x2, w, TEXT)

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.numel() + 1, dtype=dtype)[1:].view(x.shape).copy_(x)

    assert torch.equal(kernel_product(shifted(x1), shifted(x2), shifted(w), TEXT), wanted)
    sliding = torch.randn(100).to(dtype).as_strided((7, x1.shape[1]), (3, 1))
    assert torch.equal(kernel_product(sliding, x2, w, TEXT), kernel_product(sliding.contiguous(), x2, w, TEXT))
    if dtype == torch.float32:
        negative = torch.complex(torch.zeros_like(x1), -x1).conj().imag
        assert negative.is_neg()
        assert torch.equal(kernel_product(negative, x2, w, TEXT), wanted)


def test_cotangents_and_edges_that_do_not_fit() -> None:
    x1, x2, w, _ = operands(PLAN, 5).values()
    rows = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(InputError, match=r"\(5, 64\), got \(\)"):
        gradients(TEXT, x1, x2, w, torch.tensor(1.0).double())
    with pytest.raises(InputError, match=r"out must have shape .*got \(\)"):
        gradients(TEXT, x1, x2, w, torch.tensor(1.0).double(), edges=(rows, rows))
    for indices, message in (([rows], "edge_dst: give it too"), ([rows] * 3, "are not one for each")):
        with pytest.raises(InputError, match=message):
            torch.ops.tpgen.form([x1, x2, w], indices, TEXT, "x1 x2 w -> out", "src dst", 3)
    for names, message in (
        ("dst src", "in the order of src, dst"),
        ("element pair", "one rule"),
        ("scr", "unknown row rule"),
    ):
        with pytest.raises(PlanError, match=message):
            torch.ops.tpgen.form([x1, x2, w], [rows, rows], TEXT, "x1 x2 w -> out", names, 3)


HOSTILE = (
    None,
    True,
    -1,
    2**63,
    10**400,
    1e308,
    float("nan"),
    0.5,
    "",
    "0",
    "\0",
    "1e400",
    "0e" * 50,
    [],
    {},
    [[]],
    "uvw",
)


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_to_a_description_is_refused_or_harmless(seed: int) -> None:
    """Whatever stands in whichever place, reading either gives a product or says what is wrong."""
    rng, refused = random.Random(seed), 0
    for _ in range(100):
        fields = json.loads(TEXT)
        *above, last = rng.choice(places(fields))
        reduce(lambda value, key: value[key], above, fields)[last] = rng.choice(HOSTILE)
        try:
            read_description(json.dumps(fields))
        except PlanError:
            refused += 1
    assert refused > 50


def places(value: object, above: tuple = ()) -> list[tuple]:
    """The keys that lead to every part of some JSON."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, part in pairs for place in [(*above, key), *places(part, (*above, key))]]


def test_a_directory_of_somebody_else_is_not_used(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(cache.os, "getuid", lambda: fresh.stat().st_uid + 1)
    with pytest.raises(BackendError, match=r"must be a directory of user \d+, it belongs to \d+: set TPGEN_CACHE_DIR"):
        run_product()


@pytest.mark.parametrize("name", ["x1", "x2", "w"])
def test_operands_on_another_device_are_named(name: str) -> None:
    given = dict(zip(("x1", "x2", "w"), operands(PLAN, 5, torch.float32).values(), strict=False))
    message = (
        f"{name} must be on the CPU or CUDA GPUs, where the kernels run, got meta; move it, or use strategy='unrolled'"
    )
    with pytest.raises(InputError, match=message):
        kernel_product(**{**given, name: given[name].to("meta")}, description=TEXT)


def test_other_devices_have_an_operator_that_says_what_to_do() -> None:
    for key in ("CPU", "CUDA", "XPU", "MPS", "Meta"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key("tpgen::form", key)
    with FakeTensorMode():
        given = [torch.empty(x.shape, device="xpu") for x in operands(PLAN, 5, torch.float32).values()]
        with pytest.raises(InputError, match=r"x1.*CPU or CUDA GPUs"):
            kernel_product(*given[:3], TEXT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plan", [PLAN, fully_connected("9x0e+3x1o", "0e+1o", "5x0e+7x1o", shared_weights=False)])
def test_nan_propagates_through_gradients_and_convolutions(plan: Plan, dtype: torch.dtype) -> None:
    """What comes of a row with NaN is NaN; all else is as finite as it was."""
    x1, x2, w, g = (x.to(dtype) for x in operands(plan, 20, torch.float32).values())
    x1[3], x2[5], w[7], g[11] = (float("nan"),) * 4
    text, order = describe(plan), torch.arange(20)
    for found, rows in zip(gradients(text, x1, x2, w, g), ({5, 7, 11}, {3, 7, 11}, {3, 5, 11}), strict=True):
        assert set(found.isnan().any(1).nonzero().flatten().tolist()) == rows
    nodes = kernel_conv(x1, x2, w, order, order % 4, 4, text)
    assert nodes.isnan().any(1).tolist() == [False, True, False, True]
    summed = gradients(text, x1, x2, w, g[:4], opened="x1", edges=(order % 5, order % 4))[0]
    assert summed.isnan().any(1).nonzero().flatten().tolist() == [0, 2]


def test_edges_in_any_memory_layout() -> None:
    x1, x2, w, _ = operands(PLAN, 9, torch.float32).values()
    pairs = torch.randint(9, (9, 2))  # one edge after the other, as some libraries keep them
    src, dst = pairs.T
    assert not src.is_contiguous()
    wanted = kernel_conv(x1, x2, w, src.contiguous(), dst.contiguous(), 9, TEXT)
    assert torch.equal(kernel_conv(x1, x2, w, src, dst, 9, TEXT), wanted)
    one = torch.tensor([4]).expand(9)
    assert torch.equal(kernel_conv(x1, x2, w, one, dst, 9, TEXT), kernel_conv(x1, x2, w, one.clone(), dst, 9, TEXT))
