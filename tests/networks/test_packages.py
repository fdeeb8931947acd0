"""Packages of AOTInductor: of more rows than the example has, and of more threads than they were built on."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.codegen.cpp import CppKernel

from tpgen.base import _torch
from tpgen.base.clock import with_threads
from tpgen.networks import packages
from tpgen.networks.packages import write_package
from tpgen.networks.program import network_program


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum(0)


def test_a_package_takes_more_rows_than_its_example(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("AOTI_RUNTIME_CHECK_INPUTS", "1")
    before = CppKernel.need_use_acc_helper
    write_package(network_program(Sums(), [torch.randn(8, 3)]), str(tmp_path / "sums.pt2"))
    assert CppKernel.need_use_acc_helper is before
    run = _torch.PackageLoader(str(tmp_path / "sums.pt2"), "model", False, 1, -1).boxed_run
    for rows in (2, 5000, 100_000):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
        (found,) = run([x.clone()])
        torch.testing.assert_close(found, (x.double() ** 2).sum(0).float(), rtol=2e-5, atol=0)


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x).sum()


@pytest.mark.parametrize("built_on", [1, 2, os.cpu_count() or 1])
def test_a_package_runs_on_the_threads_of_each_call(built_on: int, tmp_path: Path) -> None:
    """On more than it was built on, too, for whose sums Inductor's own code has no room."""
    x = torch.randn(200_000, 8, generator=torch.Generator().manual_seed(0))
    with with_threads(built_on):
        write_package(network_program(Total(), [x]), str(tmp_path / "total.pt2"))
    run = _torch.PackageLoader(str(tmp_path / "total.pt2"), "model", False, 1, -1).boxed_run
    for threads in (1, 2, 3, 64):
        with with_threads(threads):
            (found,) = run([x.clone()])
        torch.testing.assert_close(found.double(), torch.sin(x.double()).sum(), rtol=1e-5, atol=0)


class Builder:
    """A stand-in of torch's, whose calls are compiled when the loops are."""

    built: list[str]
    loops: Event
    fault: str

    def __init__(self, made: str) -> None:
        self.made = made

    def get_target_file_path(self) -> str:
        return self.made

    def build(self) -> None:
        if self.made == self.fault:
            raise RuntimeError(f"cannot compile {self.made}")
        if self.made == "a.wrapper.o":
            assert self.loops.wait(60)
        elif self.made == "a.kernel.o":
            self.loops.set()
        self.built.append(self.made)


@pytest.mark.parametrize("fault", ["", "a.wrapper.o"])
def test_calls_and_loops_of_a_package_are_compiled_side_by_side(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"built": [], "loops": Event(), "fault": fault}.items():
        monkeypatch.setattr(Builder, name, value, raising=False)
    monkeypatch.setattr(_torch, "CppBuilder", Builder)
    compiled = packages._compile_wrapper_on_another_thread()
    with pytest.raises(RuntimeError, match="cannot compile") if fault else nullcontext(), compiled:
        for made in ("a.wrapper.o", "a.kernel.o", "a.so"):
            Builder(made).build()
    assert Builder.built == (["a.kernel.o"] if fault else ["a.kernel.o", "a.wrapper.o", "a.so"])
