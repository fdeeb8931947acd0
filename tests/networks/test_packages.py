"""Packages of AOTInductor: sums of more rows than the example has."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch._inductor.codegen.cpp import CppKernel

from tpgen import _torch
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
