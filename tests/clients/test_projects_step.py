"""A converted model as one program: built, taken by itself, of a training step, and as on a GPU, against stock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import Case
from tests.clients.checks import ROUNDED, arguments, assert_same, results
from tests.clients.projects import PROJECTS, WITH_PAIRS, every_project
from tests.networks.served import served_calls
from tests.networks.tape import programs_as_on_gpu
from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.operations import pairs
from tpgen.networks.neutral_edges import padded_size
from tpgen.networks.served import ready
from tpgen.networks.step import compile_step
from tpgen.networks.step_program import Program
from tpgen.networks.training import Loss, compile_training


def cases(
    project: str, atoms: tuple[int, ...] = (27, 36), dtype: torch.dtype = torch.float64, **more: Any
) -> list[Case]:
    return [PROJECTS[project].make(n, dtype, **more) for n in atoms]


def one_element(rows: Tensor) -> Tensor:
    return rows[:1].expand_as(rows)


def mixed(rows: Tensor) -> Tensor:
    """Rows that are no elements, which MACE takes all the same: the network computes them."""
    return (rows + rows.roll(1, 0)) / 2


# of further cases: what becomes of elements, by their name in a batch
CHANGES = {"mace": ("node_attrs", (one_element, mixed)), "nequip": ("atom_types", (torch.ones_like,))}


@every_project
def test_energies_forces_and_stress_are_those_of_stock_at_other_sizes(project: str) -> None:
    elements, changes = CHANGES.get(project, ("", ()))
    first, *others = cases(project, (27, 36, *(27 for _ in changes)))
    for case, change in zip(others[1:], changes, strict=True):
        case.batch[elements] = change(case.batch[elements])
    stock, model = deepcopy(first.model).eval(), convert(first.model).eval()
    program, without = compile_step(model, outputs=[*PROJECTS[project].outputs]), []
    evaluate = program._evaluate_network_outputs
    for case in (first, *others):
        wanted, found = case.run(stock, False), case.run(program, False)
        for name, x in wanted.items():
            assert (found[name] - x).abs().max() <= 1e-12 * x.abs().max(), name
        if case is first:  # from here on the program must hold for all of them
            program._evaluate_network_outputs = lambda *args, **options: (
                without.append(0),
                evaluate(*args, **options),
            )[1]
    assert len(without) == changes.count(mixed)
    assert set(program._program.written.searches) == {*PROJECTS[project].finds}


@every_project
def test_gradients_of_a_loss_of_all_three_are_those_of_stock(project: str) -> None:
    first, other = cases(project)
    stock, model = deepcopy(first.model).train(), convert(first.model).train()

    def loss(network: nn.Module, *args: Any, **options: Any) -> Tensor:
        found = network(*args, **options)
        return sum(((found[name] - 0.1) ** 2).mean() for name in PROJECTS[project].outputs)

    program = compile_training(model, loss)
    for case in (first, other):
        args, options = arguments(case)
        loss(stock, *deepcopy(args), **options).backward()
        with nullcontext() if case is first else _neither_written_nor_served():
            program(*deepcopy(args), **options).backward()
        found = dict(model.named_parameters())
        for name, p in stock.named_parameters():
            if p.grad is not None:
                assert (found[name].grad - p.grad).abs().max() <= 1e-10 * p.grad.abs().max(), name
        assert [p.grad is None for p in found.values()] == [p.grad is None for p in stock.parameters()]


@contextmanager
def _neither_written_nor_served() -> Iterator[None]:
    """Refuse that a program is written, or that the network itself computes a loss."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the program of the first case does not hold")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "build_from_example", refuse)
        patch.setattr(Loss, "forward", refuse)
        yield


def check_served(case: Case, other: Case, limit: float | None = None, served: bool = True) -> None:
    """A model converted with programs: results and their graphs are stock's, for several systems and while it trains.

    The first of two calls is the network's, as a program is built of it; all are where a model has hooks.
    """
    stock, model = deepcopy(case.model).eval(), convert(case.model, program=True).eval()
    with served_calls() as calls:
        for each in (case, case, other):
            wanted, found = each.run(stock, False), each.run(model, False)
            for name, x in wanted.items():
                assert (found[name] - x).abs().max() <= (limit or 1e-12) * x.abs().max(), name
                assert (found[name].requires_grad, found[name].is_leaf) == (x.requires_grad, x.is_leaf), name
        assert len(calls) == served * 2
        assert_same(results(case, model.train()), results(case, stock.train()), limit)
        assert len(calls) == served * 2, "the first training step is the network's"
        with torch.no_grad():
            for p in (*stock.parameters(), *model.parameters()):
                p.mul_(1.1)
        wanted, found = case.run(stock.eval(), False), case.run(model.eval(), False)
        assert len(calls) == served * 3
        for name, x in wanted.items():
            assert (found[name] - x).abs().max() <= (limit or 1e-12) * x.abs().max(), name
        ready(model.train())
        calls.clear()
        for each in (case, other):
            assert_same(results(each, model), results(each, stock.train()), limit)
    assert len(calls) == served * 2, "gradients are programs'"


@pytest.mark.parametrize("project", WITH_PAIRS)
def test_a_converted_model_takes_a_program_by_itself(project: str) -> None:
    """SevenNet in float32: in float64 the case's one-hot rows become float64 by a hook, so the network serves it."""
    if project == "sevenn":
        check_served(*cases(project, dtype=torch.float32), limit=ROUNDED)
    check_served(*cases(project), served=project != "sevenn")


XPLOR = {"cutoff_function": {"cutoff_function_name": "XPLOR", "cutoff_on": 4.0}}
# SevenNet's cutoffs grow again beyond the cutoff: its list of edges ends them
NEUTRAL = [
    *((name, {}, True) for name in WITH_PAIRS if name != "sevenn"),
    *(("sevenn", options, False) for options in ({}, XPLOR) if "sevenn" in PROJECTS),
]


@pytest.mark.parametrize(("project", "options", "neutral"), NEUTRAL)
def test_programs_on_a_gpu_have_more_edges_where_these_change_no_result(
    project: str, options: dict[str, Any], neutral: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_as_on_gpu(monkeypatch)
    monkeypatch.setattr(pairs, "_mark_edge_pairs_in_program", lambda *given: None)  # as on a GPU
    given = cases(project, dtype=torch.float64 if neutral else torch.float32, **options)
    stock, model = deepcopy(given[0].model).eval(), convert(given[0].model).eval()
    program = compile_step(model)
    for case in given:
        wanted, found = case.run(stock, False), case.run(program, False)
        for name, x in wanted.items():
            assert (found[name] - x).abs().max() <= (1e-12 if neutral else ROUNDED) * x.abs().max(), name
    assert (program._program.written.padding is not None) == neutral
    assert all(padded_size(case.edges) > case.edges for case in given)
