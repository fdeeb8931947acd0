"""``tpgen convert`` of a network by name."""

import json

from torch import nn

from tests.tools.cli.calls import run


def test_a_network_is_converted_and_proven() -> None:
    read = json.loads(run("convert", "tetris-e3nn", "--strategy", "grouped", "--prove", "--json").stdout)
    assert {r["was"] for r in read["replaced"]} >= {"e3nn.FullyConnectedTensorProduct", "e3nn.Gate"}
    assert all(d["relative"] < 1e-12 for d in read["proof"]["differences"])
    assert read["times"] is None


def test_a_network_is_converted_and_measured() -> None:
    shown = run("convert", "tetris-e3nn", "--strategy", "grouped", "--measure").output
    assert "modules compute with tpgen, 0 stay as they are" in shown
    assert "call and gradients" in shown


def test_convert_needs_a_network_with_something_to_convert() -> None:
    assert "name one network: tetris" in run("convert", code=2).output
    assert "Tetris holds no tensor product or linear" not in run("convert", "--network", "tetris-e3nn").output


def wrong() -> tuple[nn.Module, int]:
    return nn.Linear(2, 2), 3


def test_a_function_must_return_a_network_and_a_list() -> None:
    said = run("convert", f"{__name__}:wrong", code=2).output
    assert "as in `return network, [x, y]`; got Linear, int" in said
