"""Modules of every kind, ours and converted ones, with the arguments of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.cases import MIXED

Made = tuple[nn.Module, tuple[Any, ...]]


def rows(*dims: int, number: int = 5) -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(3)
    return tuple(torch.randn(number, dim, generator=made) for dim in dims)


EDGES = (torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 1, 0, 2, 4]))
ELEMENTS = torch.tensor([0, 1, 1, 0, 1])


def _linear(o: Any, **more: Any) -> Made:
    layer = o.Linear("4x0e+2x1o", "3x0e+2x1o+2x0e", biases=True, **more)
    with torch.no_grad():
        layer.bias.normal_()
    return layer, rows(10)


def _channels(o: Any) -> Made:
    layer = o.Linear("4x0e+2x1o", "3x0e+2x1o", f_in=2, f_out=3)
    return layer, (rows(20)[0].view(5, 2, 10),)


def _contraction(**more: Any) -> Made:
    made = tpgen.SymmetricContraction("2x0e+2x1o", "2x0e+2x1o", 2, num_elements=2, **more)
    return made, (rows(8)[0].view(5, 2, 4), ELEMENTS)


def _conv(**more: Any) -> Made:
    conv = tpgen.TensorProductConv(
        "4x0e+2x1o", "0e+1o", "4x0e+2x1o", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", True)], **more
    )
    return conv, (*rows(10, 4), None, *EDGES)


def _gate(o: Any) -> Made:
    gate = e3nn_nn.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    return gate, rows(gate.irreps_in.dim)


# of e3nn's classes, each for e3nn's own module and for ours where there is one
OF_BOTH: dict[str, Callable[[Any], Made]] = {
    "product": lambda o: (o.TensorProduct(*MIXED), rows(18, 22)),
    "product without weights": lambda o: (o.FullTensorProduct("2x0e+1o", "0e+1o"), rows(5, 4)),
    "connected": lambda o: (o.FullyConnectedTensorProduct("4x0e+2x1o", "3x0e", "2x0e+2x1o"), rows(10, 3)),
    "square": lambda o: (o.TensorSquare("3x0e+2x1o", "2x0e+1x1o"), rows(9)),
    "linear": _linear,
    "channels": _channels,
}
OF_E3NN: dict[str, Callable[[Any], Made]] = {
    **OF_BOTH,
    "gate": _gate,
    "harmonics": lambda o: (o3.SphericalHarmonics([0, 1, 2], True), rows(3)),
    "net": lambda o: (e3nn_nn.FullyConnectedNet([4, 8, 3], nn.functional.silu), rows(4)),
    "network": lambda o: (
        nn.Sequential(
            o.Linear("4x0e+2x1o", "5x0e+2x1o", biases=True),
            e3nn_nn.Gate("3x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o"),
            o.Linear("3x0e+2x1o", "0e", biases=True),
        ),
        rows(10),
    ),
}
OWN: dict[str, Callable[[], Made]] = {
    **{name: lambda make=make: make(tpgen) for name, make in OF_BOTH.items()},
    "product, einsum": lambda: (tpgen.TensorProduct(*MIXED, strategy="einsum"), rows(18, 22)),
    "product, unrolled": lambda: (tpgen.TensorProduct(*MIXED, strategy="unrolled", compile_right=True), rows(18, 22)),
    "linear, grouped": lambda: _linear(tpgen, strategy="grouped"),
    "convolution": _conv,
    "convolution, grouped": lambda: _conv(strategy="grouped"),
    "polynomial": lambda: (tpgen.Polynomial({"x": "2x0e+2x1o"}, "2x0e+2x1o", [("x", "x")]), rows(8)),
    "polynomial, einsum": lambda: (
        tpgen.Polynomial({"x": "2x0e+2x1o"}, "2x0e", [("x", "x")], strategy="einsum"),
        rows(8),
    ),
    "contraction": _contraction,
    "contraction, einsum": lambda: _contraction(strategy="einsum"),
}
CONVERTED: dict[str, Callable[[], Made]] = {
    f"converted {name}": lambda make=make: (lambda made: (tpgen.convert(made[0]), made[1]))(make(o3))
    for name, make in OF_E3NN.items()
}
KINDS = {**OWN, **CONVERTED}
