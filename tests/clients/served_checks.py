"""What models keep whose calls take programs by themselves."""

from __future__ import annotations

from copy import deepcopy

import torch

from benchmarks.networks import Case
from tests.clients.checks import assert_same, results
from tests.networks.served import served_calls
from tpgen.networks.conversion.convert import convert
from tpgen.networks.served import ready


def check_served(case: Case, *others: Case, limit: float | None = None, served: bool = True) -> None:
    """A model converted with programs: results and their graphs are stock's, for several systems and while it trains.

    The first of two calls is the network's, as a program is built of it; all are where a model has hooks.
    """
    stock, model = deepcopy(case.model).eval(), convert(case.model, program=True).eval()
    with served_calls() as calls:
        for other in (case, case, *others):
            wanted, found = other.run(stock, False), other.run(model, False)
            for name, x in wanted.items():
                assert (found[name] - x).abs().max() <= (limit or 1e-12) * x.abs().max(), name
                assert (found[name].requires_grad, found[name].is_leaf) == (x.requires_grad, x.is_leaf), name
        assert len(calls) == served * (1 + len(others))
        assert_same(results(case, model.train()), results(case, stock.train()), limit)
        assert len(calls) == served * (1 + len(others)), "the first training step is the network's"
        with torch.no_grad():
            for p in (*stock.parameters(), *model.parameters()):
                p.mul_(1.1)
        wanted, found = case.run(stock.eval(), False), case.run(model.eval(), False)
        assert len(calls) == served * (2 + len(others))
        for name, x in wanted.items():
            assert (found[name] - x).abs().max() <= (limit or 1e-12) * x.abs().max(), name
        ready(model.train())
        calls.clear()
        for other in (case, *others):
            assert_same(results(other, model), results(other, stock.train()), limit)
    assert len(calls) == served * (1 + len(others)), "gradients are programs'"
