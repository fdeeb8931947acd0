"""The matrix of docs/deploy.md: every kind of module, in every form that it leaves a process by."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.deployment.kinds import KINDS
from tpgen.networks.program import network_program

pytestmark = needs_compiler
SIZES = (5, 3, 8)
Given = tuple[Tensor, ...]


def given(kind: str, rows: int = 5) -> Given:
    return tuple(x.double() if x.is_floating_point() else x for x in KINDS[kind].given(rows))


def made(kind: str, strategy: str = "kernel") -> nn.Module:
    return KINDS[kind].make(strategy).double()


class Forces(nn.Module):
    """An energy, and its slope in the first input, as potentials have them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.module(x, *rest).sin().sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return (energy, slope) if self.training else (energy.detach(), slope)


def same(one: Callable, other: Callable, kind: str, **tolerances: float) -> None:
    """Equal at calls of several sizes."""
    for rows in SIZES:
        tensors = given(kind, rows)
        torch.testing.assert_close(one(*tensors), other(*tensors), **tolerances)


def state_dict(kind: str) -> None:
    """From a kernel in float64 to each strategy in float32, and back."""
    for strategy in KINDS[kind].strategies:
        first, second = made(kind), KINDS[kind].make(strategy).float()
        second.load_state_dict(first.state_dict())
        second = second.double()
        same(second, first, kind, rtol=1e-4, atol=1e-4)
        first.load_state_dict(second.state_dict())
        same(first, second, kind)


def copies(kind: str) -> None:
    """By deepcopy, pickle and torch.save: the same bits."""
    module, held = made(kind), io.BytesIO()
    torch.save(module, held)
    held.seek(0)
    for other in (
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(held, weights_only=False),
    ):
        same(other, module, kind, rtol=0.0, atol=0.0)


@pytest.fixture
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(kind: str) -> None:
    """One graph for every size, gradients of all floating inputs with it."""
    module = made(kind)
    run = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")

    def slopes(f: Callable, *tensors: Tensor) -> Given:
        leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in tensors]
        wanted = [x for x in leaves if x.requires_grad]
        return torch.autograd.grad(f(*leaves).sin().sum(), [*wanted, *module.parameters()])

    same(run, module, kind)
    same(lambda *x: slopes(run, *x), lambda *x: slopes(module, *x), kind)


def forces_compiled(kind: str) -> None:
    """Forces are taken inside the compiled function, and a step of training differentiates them again there."""
    network = Forces(made(kind))

    def step(*tensors: Tensor) -> Given:
        energy, forces = network(*tensors)
        loss = energy.square() + forces.square().sum()
        return (loss.detach(), *torch.autograd.grad(loss, list(network.parameters())))

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        evaluated = copy.deepcopy(network).eval()
        same(torch.compile(evaluated, fullgraph=True, dynamic=True, backend="aot_eager"), evaluated, kind)
        if list(network.parameters()):
            same(torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager"), step, kind)


def exported(kind: str) -> None:
    """As one program of any numbers of rows, nodes and edges, forces written out in it."""
    network = Forces(made(kind)).eval()
    same(network_program(network, given(kind)).module(), network, kind)


def scripted(kind: str) -> None:
    """By torch.jit.script, saved and loaded."""
    module, held = made(kind), io.BytesIO()
    torch.jit.save(torch.jit.script(module), held)
    held.seek(0)
    same(torch.jit.load(held), module, kind)


def traced(kind: str) -> None:
    """By torch.jit.trace, saved and loaded."""
    module, held = made(kind), io.BytesIO()
    torch.jit.save(torch.jit.trace(module, given(kind), check_trace=False), held)
    held.seek(0)
    same(torch.jit.load(held), module, kind)


def portable(kind: str) -> None:
    """Torch's operators alone, and the same state."""
    network = Forces(made(kind)).eval()
    plain = tpgen.portable(network)
    same(plain, network, kind)
    plain.load_state_dict(network.state_dict())
    # a C++ program without our operators could not even read their names
    assert "tpgen::" not in str(torch.jit.script(plain.module).inlined_graph)
    program = network_program(plain, given(kind))
    assert not [node for node in program.graph.nodes if str(node.target).startswith("tpgen")]


FORMS: dict[str, Callable[[str], None]] = {
    "state_dict": state_dict,
    "copies": copies,
    "compile": compiled,
    "forces in compile": forces_compiled,
    "export": exported,
    "script": scripted,
    "trace": traced,
    "portable": portable,
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cell(kind: str, form: str) -> None:
    FORMS[form](kind)


ELSEWHERE = """
import sys, torch
cells = torch.load(sys.argv[1], weights_only=False)
torch.save([module(*given) for module, given in cells], sys.argv[1])
"""


def test_every_kind_crosses_to_another_process(tmp_path: Path) -> None:
    cells = [(made(kind), given(kind)) for kind in KINDS]
    torch.save(cells, tmp_path / "cells.pt")
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, tmp_path / "cells.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for found, (module, tensors) in zip(torch.load(tmp_path / "cells.pt"), cells, strict=True):
        assert torch.equal(found, module(*tensors))


def test_states_go_to_e3nn_and_back() -> None:
    converted = made("converted network")
    stock = tpgen.restore(copy.deepcopy(converted))
    other = made("converted network")
    other.load_state_dict(stock.state_dict())
    same(other, stock, "converted network")
    stock.load_state_dict(made("converted network").state_dict())


def test_the_page_shows_this_matrix() -> None:
    page = (Path(__file__).parents[3] / "docs" / "deploy.md").read_text(encoding="utf-8")
    head, _, *rows = [line for line in page.splitlines() if line.startswith("|") and line.count("|") == len(KINDS) + 2]
    kinds = [cell.strip() for cell in head.strip("|").split("|")][1:]
    assert kinds == list(KINDS)
    shown = {cells[0]: cells[1:] for cells in ([c.strip() for c in row.strip("|").split("|")] for row in rows)}
    for form in FORMS:
        assert shown[form] == ["✓" for _ in kinds], form
