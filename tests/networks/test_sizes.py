"""Sizes that programs hold for: networks and compilers that decide by those of the example, beside the network."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tpgen.networks import libraries
from tpgen.networks.packages import write_package
from tpgen.networks.program import network_program
from tpgen.networks.sizes import InputSizes

HERE = torch.device("cpu")


def sizes(*shapes: tuple, conditions: tuple[str, ...] = ()) -> InputSizes:
    return InputSizes(shapes, ((torch.float64, HERE),) * len(shapes), conditions)


def zeros(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.zeros(shape, dtype=torch.float64) for shape in shapes]


def test_open_sizes_are_two_at_least_and_fulfil_conditions() -> None:
    known = sizes((4, 3), ("a", 3), ("b",), ("a",), conditions=("b % 8 == 0", "a < b"))
    assert known.hold(zeros((4, 3), (5, 3), (8,), (5,)))
    assert known.hold(zeros((4, 3), (5, 3), (16,), (5,)))
    for wrong in (
        *[((4, 2), (5, 3), (8,), (5,)), ((4, 3), (5, 2), (8,), (5,)), ((4, 3), (5, 3), (9,), (5,))],
        *[((4, 3), (5, 3), (8,), (6,)), ((4, 3), (1, 3), (8,), (1,)), ((4, 3), (8, 3), (8,), (8,))],
        *[((4, 3), (5, 3), (0,), (5,)), ((4, 3), (5,), (8,), (5,))],
    ):
        assert not known.hold(zeros(*wrong)), wrong
    assert not known.hold([x.float() for x in zeros((4, 3), (5, 3), (8,), (5,))])
    assert known.part(0, 2).conditions == ()
    assert known.part(2, None).conditions == known.conditions
    assert known.and_also(["a > 5", "a < b"]).conditions == ("b % 8 == 0", "a < b", "a > 5")


def test_sizes_that_held_before_are_looked_at_again() -> None:
    """A parameter stays the same object when `data` or `.float()` give it other numbers."""
    known, inputs = sizes((4, 3), (2,), ("a",)), zeros((4, 3), (2,), (5,))
    before = inputs[0].data
    for change in (lambda x: x.t(), lambda x: x[:2], lambda x: x.float(), lambda x: x[None]):
        inputs[0].data = before
        assert known.hold(inputs)
        assert known.hold([*inputs[:2], *zeros((7,))])
        inputs[0].data = change(before)
        assert not known.hold(inputs)
    inputs[0].data = before.t().contiguous().t()
    assert known.hold(inputs), "strides are nobody's matter"
    assert known.hold([inputs[0].requires_grad_(), *inputs[1:]])


class Deciding(nn.Module):
    """A network that decides by sizes, one of them of a tensor that is used for nothing else; sorting decides, too."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor, unused: Tensor) -> tuple[Tensor, Tensor]:
        few = 3 * x if x.shape[0] > 5 else 2 * x
        eighths = y.view(-1, 8).sum(0)[0] if y.shape[0] % 8 == 0 else y.sum()
        return few.sum(0) + eighths + z.sum() * x.shape[0] + unused.shape[1], y.sort(0)[0]

    @staticmethod
    def given(*counts: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(sum(counts))
        shapes = zip(counts, ((3,), (), (2,), (4,)), strict=True)
        return [torch.randn(n, *rest, generator=generator, dtype=torch.float64) for n, rest in shapes]


@needs_compiler
@pytest.mark.slow
def test_a_program_runs_where_its_decisions_are_those_of_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))
    network, calls = Deciding(), []
    network.register_forward_hook(lambda *_: calls.append(0))

    def compare(step: Any, counts: tuple[int, ...], by_program: bool) -> None:
        given = Deciding.given(*counts)
        wanted = network(*given)
        calls.clear()
        torch.testing.assert_close(step(*given), wanted, rtol=1e-12, atol=1e-12)
        assert bool(calls) is not by_program, counts

    example = (6, 16, 6, 16)  # of atoms and edges, some of them equal
    step = tpgen.compile_step(network, *Deciding.given(*example))
    compile_again = libraries._compile_graph
    monkeypatch.setattr(libraries, "_compile_graph", lambda *_: pytest.fail("compiled again"))
    again = tpgen.compile_step(network, *Deciding.given(*example))  # kept: what was asked of it is known here, too
    for each in (step, again):
        for counts in (example, (7, 24, 5, 9), (40, 8, 2, 3), (6, 16, 7, 2)):
            compare(each, counts, by_program=counts[1] > 8)
        for counts in ((5, 16, 6, 16), (6, 17, 6, 16), (6, 40_000, 6, 16), (6, 0, 6, 16), (1, 16, 6, 16)):
            compare(each, counts, by_program=False)
    monkeypatch.setattr(libraries, "_compile_graph", compile_again)
    many = tpgen.compile_step(network, *Deciding.given(6, 40_000, 6, 16))  # the graph of the first, compiled otherwise
    for counts, by_program in ((example, False), ((6, 40_000, 6, 16), True), ((5, 40_000, 6, 16), False)):
        compare(many, counts, by_program)


@needs_compiler
@pytest.mark.slow
def test_a_package_refuses_other_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTI_RUNTIME_CHECK_INPUTS", "1")
    network = Deciding()
    program = network_program(network, Deciding.given(6, 16, 7, 16))
    write_package(program, str(tmp_path / "model.pt2"))
    run = torch._inductor.aoti_load_package(str(tmp_path / "model.pt2"))
    for counts in ((6, 16, 7, 16), (8, 24, 9, 24), (8, 0, 1, 0), (6, 40_000, 7, 40_000)):
        given = Deciding.given(*counts)
        torch.testing.assert_close(tuple(run(*given)), network(*given), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(program.module()(*given), network(*given), rtol=1e-12, atol=1e-12)
    for counts, said in (
        ((5, 16, 7, 16), "dim value is too small at 0"),
        ((6, 17, 7, 17), r"inputs with \(inputs\[1\].shape\[0\] % 8\) == 0: use the network as it is"),
        ((6, 16, 7, 24), r"inputs\[3\].shape\[0\] == inputs\[1\].shape\[0\]"),
    ):
        with pytest.raises(RuntimeError, match=said):
            run(*Deciding.given(*counts))
    x, y, z, unused = Deciding.given(6, 0, 1, 0)
    torch.testing.assert_close(
        run(x, y, z.t().contiguous().t(), unused.t().clone().t())[0], network(x, y, z, unused)[0]
    )
    with pytest.raises(RuntimeError, match=r"inputs\[0\] lies in memory otherwise than the example's: give a copy"):
        run(x.t().contiguous().t(), y, z, unused)


class Reshaping(nn.Module):
    """A network in the backward of which a view of a part is reshaped, where torch asks for sizes of 1."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            parts = torch.cat([x.view(-1, 2, 3).sin().flatten(1), x.cos()], 1)
            (slope,) = torch.autograd.grad((parts[:, :6].reshape(-1, 3) ** 2).sum() + parts.sum(), x)
        return slope, parts.detach().squeeze(1)


class Squeezing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze()


class Empty(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.new_ones(6) if x.numel() == 0 else x.sum(0)


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0) / max(x.shape[0], 1)


@pytest.mark.parametrize(
    "network, others, said",
    [(Reshaping(), (), ""), (Squeezing(), (1,), "!= 1"), (Empty(), (0,), "!= 0"), (Counting(), (0,), ">= 1")],
)
def test_a_program_holds_for_zero_and_one_where_the_network_does_not_ask(
    network: nn.Module, others: tuple[int, ...], said: str
) -> None:
    program = network_program(network, [torch.randn(5, 6)]).module()
    for rows in {0, 1, 2, 5} - {*others}:
        x = torch.randn(rows, 6)
        torch.testing.assert_close(program(x), network(x))
    for rows in others:
        with pytest.raises(AssertionError, match=rf"Guard failed: .*{said}"):
            program(torch.randn(rows, 6))


class Few(nn.Module):
    """Decides by a size, and adds rows by place."""

    def forward(self, data: dict[str, Tensor]) -> Tensor:
        total = data["x"].sum() if data["x"].shape[0] <= 25 else data["x"].mean()
        return total + (data["y"] * data["z"]).sum()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"x": torch.ones(26, 3)}, "x.shape[0] <= 25"),
        ({"x": torch.ones(5, 3, dtype=torch.float64)}, "x of torch.float32, cpu and 2 dimensions"),
        ({"x": torch.ones(5)}, "x of torch.float32, cpu and 2 dimensions"),
        ({"x": torch.ones(1, 3)}, "x.shape[0] >= 2"),
        ({"y": torch.ones(4)}, "y.shape[0] == z.shape[0]"),
    ],
)
def test_a_step_says_once_why_the_network_computes(
    changed: dict[str, Tensor],
    why: str,
    interpreted: list[int],  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = {"x": torch.ones(5, 3), "y": torch.ones(6), "z": torch.ones(6)}
    step = tpgen.compile_step(Few(), data)
    with caplog.at_level("INFO", "tpgen"):
        step({name: x[:-1] for name, x in data.items()})
        assert "tpgen" not in [record.name for record in caplog.records]
        for _ in range(2):
            with contextlib.suppress(RuntimeError):  # of the network's own
                step(data | changed)
    assert [record.getMessage() for record in caplog.records if record.name == "tpgen"] == [
        f"Few computes a call itself, which its program does not serve: it is for {why}"
    ]
