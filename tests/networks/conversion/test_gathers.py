"""Rows that a network gathers of a layer's results: they wait for a product that is summed by node, or are selected."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.machine import needs_compiler
from tests.networks.conversion.networks import check_derivatives
from tpgen.base.errors import InputError
from tpgen.networks.conversion import gathers, weights
from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.gathers import Gatherable, GatheredRows
from tpgen.networks.conversion.postponed import REST
from tpgen.networks.step import compile_step

pytestmark = [needs_compiler, pytest.mark.usefixtures("float64")]
NODES, EDGES = 12, 90
Gather = Callable[[Any, Tensor], Tensor]


@pytest.fixture(autouse=True)
def whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORTH_SELECTING", "WORTH_WAITING"):
        monkeypatch.setattr(gathers, name, 0)
    monkeypatch.setattr(weights, "WORTH_SUMMING", (0, 0))


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each sum by a product's kernel, whether the kernel gathers as well."""
    seen, sums = [], weights._EdgeProduct.sum_by_node_in_kernel

    def noted(self: Any, w: Tensor, nodes: Tensor, count: int, x: Tensor, *rest: Tensor) -> Tensor:
        made = sums(self, w, nodes, count, x, *rest)
        seen.append(isinstance(x, GatheredRows) and x.used)
        return made

    monkeypatch.setattr(weights._EdgeProduct, "sum_by_node_in_kernel", noted)
    return seen


def by_index(x: Any, senders: Tensor) -> Tensor:
    return x[senders]


class Messages(nn.Module):
    """A layer, a gather, a product and a sum, as networks of e3nn write them."""

    def __init__(self, gather: Gather = by_index) -> None:
        super().__init__()
        self.linear = o3.Linear("4x0e+3x1o", "4x0e+3x1o")
        paths = [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 0, "uvu", True)]
        self.product = o3.TensorProduct("4x0e+3x1o", "0e+1o", "4x0e+3x1o", paths[:2], shared_weights=False)
        self.gather = gather

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor, y: Tensor, w: Tensor) -> Tensor:
        rows = self.product(self.gather(self.linear(x), senders), y, w)
        return rows.new_zeros(NODES, rows.shape[1]).index_add(0, receivers, rows)


def arguments() -> list[Tensor]:
    torch.manual_seed(1)
    x, y, w = torch.randn(NODES, 13), torch.randn(EDGES, 4), torch.randn(EDGES, 7)
    senders, receivers = torch.randint(NODES, (2, EDGES))
    return [x.requires_grad_(), senders, receivers, y.requires_grad_(), w.requires_grad_()]


def selected(x: Any, senders: Tensor) -> Tensor:
    return x.index_select(0, senders)


def detached(x: Any, senders: Tensor) -> Tensor:
    return x[senders] + 0 * x.detach()[senders]


def joined(x: Any, senders: Tensor) -> Tensor:
    return torch.cat([x[senders][:, :4], x[senders][:, 4:]], 1)


def scaled(x: Any, senders: Tensor) -> Tensor:
    rows = x[senders]
    rows *= 2.0
    return rows


def counted_from_the_last(x: Any, senders: Tensor) -> Tensor:
    return x[senders - NODES]


def of_int32(x: Any, senders: Tensor) -> Tensor:
    return x[senders.int()]


def in_a_checkpoint(x: Any, senders: Tensor) -> Tensor:
    return checkpoint(by_index, x, senders, use_reentrant=False)


def kept(x: Any, senders: Tensor) -> Tensor:
    rows = x[senders]
    rows.retain_grad()
    return rows


WAITING = (by_index, selected)
READ = (detached, joined, scaled, counted_from_the_last, of_int32, in_a_checkpoint, kept)


@pytest.mark.parametrize("gather", [*WAITING, *READ])
def test_a_network_is_stock(gather: Gather, fused: list[bool]) -> None:
    stock, given = Messages(gather), arguments()
    made = convert(deepcopy(stock), program=False)
    check_derivatives(made, stock, given)
    assert fused == [gather in WAITING]


def test_a_program_is_stock() -> None:
    stock, given = Messages(), [x.detach() for x in arguments()]
    step = compile_step(convert(deepcopy(stock), program=False), *given)
    torch.testing.assert_close(step(*given), stock(*given))


def test_small_gathers_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = EDGES * 13
    made, given = convert(Messages(), program=False), arguments()
    rows: list[Tensor] = []
    made.gather = lambda x, senders: rows.append(x[senders]) or rows[-1]
    for name, worth, kind, node in (
        ("WORTH_WAITING", numbers, GatheredRows, None),
        ("WORTH_WAITING", numbers + 1, Tensor, "IndexSelectBackward0"),
        ("WORTH_SELECTING", numbers + 1, Tensor, "IndexBackward0"),
    ):
        monkeypatch.setattr(gathers, name, worth)
        made(*given)
        assert type(rows[-1]) is kind
        assert node is None or type(rows[-1].grad_fn).__name__ == node


def test_rows_that_are_read_wait_seldom(fused: list[bool]) -> None:
    made, given = convert(Messages(scaled), program=False), arguments()
    made(*given)
    assert made.linear._tpgen.rest_of_gathers > 0
    made.gather = by_index
    for _ in range(REST):
        made(*given)
    assert fused == [False] * REST + [True]


def test_indices_of_every_kind() -> None:
    torch.manual_seed(0)
    stock = o3.Linear("2x0e+1x1o", "2x0e+1x1o")
    made, x = convert(deepcopy(stock), program=False), torch.randn(6, 5)
    a, b = made(x), stock(x)
    assert type(a) is Gatherable
    for index in (
        torch.tensor([0, -1]), torch.tensor([True, False] * 3), torch.tensor([[0, 1], [2, 3]]), [0, 2], slice(1, 4),
        (torch.tensor([0, 1]), 2), (slice(None), torch.tensor([0])), None, 3, ..., torch.tensor([], dtype=torch.long),
    ):  # fmt: skip
        torch.testing.assert_close(a[index], b[index])
    torch.testing.assert_close(a.index_select(1, torch.tensor([0, 4])), b.index_select(1, torch.tensor([0, 4])))
    for beyond in (torch.tensor([6]), torch.tensor([-7])):
        with pytest.raises(IndexError) as mine:
            a[beyond]
        with pytest.raises(IndexError) as theirs:
            b[beyond]
        assert str(mine.value) == str(theirs.value)


def test_results_are_plain_to_everything_else() -> None:
    layer, x = convert(o3.Linear("2x0e", "2x0e"), program=False), torch.randn(3, 2)
    made = layer(x)
    assert type(made + 1) is type(made.view(6)) is type(made[:2]) is Tensor
    assert isinstance(nn.Parameter(made), nn.Parameter)
    assert repr(layer(x)).startswith("tensor(")
    for copy in (lambda y: pickle.loads(pickle.dumps(y)), deepcopy):
        assert type(copy(layer(x).detach())) is Tensor
    file = io.BytesIO()
    torch.save(layer(x), file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file), made.detach())


def _adds(x: Tensor) -> None:
    x += 1.0


def _sets(x: Tensor) -> None:
    x[:2] = 0.5


@pytest.mark.parametrize("write", [_adds, _sets, lambda x: x.mul_(2.0)])
def test_rows_are_read_before_their_source_is_written_to(write: Callable[[Tensor], Any]) -> None:
    def gather(x: Tensor, senders: Tensor) -> Tensor:
        rows = x[senders]
        write(x)
        return rows

    stock, given = Messages(gather), arguments()
    wanted = stock(*given)
    network = convert(deepcopy(stock), program=False)
    torch.testing.assert_close(network(*given), wanted)


def test_a_product_that_waits_has_its_rows_as_they_were() -> None:
    class Residual(Messages):
        def forward(self, x: Tensor, senders: Tensor, receivers: Tensor, y: Tensor, w: Tensor) -> Tensor:
            made = self.linear(x)
            rows = self.product(made[senders], y, w)
            made += 1.0
            return rows.new_zeros(NODES, rows.shape[1]).index_add(0, receivers, rows) + made

    stock, given = Residual(), arguments()
    check_derivatives(convert(deepcopy(stock), program=False), stock, given)


def test_results_whose_rows_wait_are_saved() -> None:
    x, senders, *_ = arguments()
    made = convert(nn.ModuleList([o3.Linear("4x0e+3x1o", "4x0e+3x1o")]), program=False)[0](x.detach())
    rows = made[senders]
    assert isinstance(rows, GatheredRows)
    torch.testing.assert_close(pickle.loads(pickle.dumps(made.detach())), made)
    torch.testing.assert_close(rows + 0, made.detach()[senders] + 0)


def test_a_write_to_the_index_before_the_sum_is_refused() -> None:
    def gather(x: Tensor, senders: Tensor) -> Tensor:
        rows = x[senders]
        senders.mul_(1)
        return rows

    network, given = convert(Messages(gather), program=False), arguments()
    with pytest.raises(InputError, match="was written to before"):
        network(*given)


def test_hooks_on_rows_that_were_taken_are_refused() -> None:
    rows: list[Tensor] = []
    network = convert(Messages(lambda x, senders: rows.append(x[senders]) or rows[-1]), program=False)
    network(*arguments())
    with pytest.raises(InputError, match="put the hook on before"):
        rows[-1].retain_grad()


def test_modes_of_torch_take_torchs_way() -> None:
    network, given = convert(Messages(), program=False), arguments()
    wanted = network(*given).detach()
    with torch.inference_mode():
        torch.testing.assert_close(network(*given), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = torch.jit.trace(network, tuple(given), check_trace=False)
    torch.testing.assert_close(graph(*given), wanted)
    vmapped = torch.vmap(network, (0, None, None, 0, 0))(*(x[None] if x.is_floating_point() else x for x in given))
    torch.testing.assert_close(vmapped[0], wanted)
