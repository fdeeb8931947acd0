"""Parameters that no module of a network has registered are a fault, however they are held; others are none."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.tools.verification.planted import Planted
from tests.tools.verification.strangers import VECTORS, Layer, rows


class Holding(Layer):
    """Weights that are added to its own, of what it holds in any way."""

    def __init__(self, held: Any, weight: Callable[[Any], Tensor], registered: nn.Module | None = None) -> None:
        super().__init__()
        self.heads, self.of_heads = held, weight
        if registered is not None:
            self.registered = registered

    def weight(self) -> Tensor:
        return self.mix + self.of_heads(self.heads)


class Closed(Layer):
    """A function that holds the original: copies would compute with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.of_weight = lambda weight: weight + self.mix

    def weight(self) -> Tensor:
        return self.of_weight(self.mix)


def head() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4, bias=False)


def teacher() -> nn.Module:
    return head().eval().requires_grad_(False)


LOST: dict[str, tuple[str, Callable[[], Holding]]] = {
    "layers in a list": ("heads.0.weight, heads.1.weight", lambda: Holding(
        [head(), head()], lambda held: held[0].weight + held[1].weight)),
    "layers in a tuple in a dict": ("heads.all.0.weight", lambda: Holding(
        {"all": (head(),)}, lambda held: held["all"][0].weight)),
    "a layer in an object": ("heads.one.weight", lambda: Holding(
        SimpleNamespace(one=head()), lambda held: held.one.weight)),
    "layers within a layer in a list": ("heads.0.0.weight", lambda: Holding(
        [nn.Sequential(head(), nn.ReLU())], lambda held: held[0][0].weight)),
    "a parameter in a list": ("heads.0", lambda: Holding(
        [nn.Parameter(torch.ones(4, 4))], lambda held: held[0])),
    "a parameter in a dict beside a layer that is registered": ("heads.w", lambda: Holding(
        {"w": nn.Parameter(torch.ones(4, 4)), "layer": (one := head())}, lambda held: held["w"] + held["layer"].weight,
        one)),
}  # fmt: skip

KEPT: dict[str, Callable[[], Holding]] = {
    "layers that are registered too": lambda: Holding([one := head()], lambda held: held[0].weight, one),
    "parameters of a layer that is registered": lambda: Holding([(one := head()).weight], lambda held: held[0], one),
    "a frozen teacher": lambda: Holding([teacher()], lambda held: held[0].weight),
    "a layer that no result depends on": lambda: Holding([head()], lambda held: torch.zeros(())),
}


def _planted(law: str, made: Callable[[], Holding], why: str = "") -> Planted:
    return Planted(law, made, rows, why, said=VECTORS, default=torch.float32)


FAULTS = {
    name: _planted("saved", made, f"{names}: no parameters of the network") for name, (names, made) in LOST.items()
}
FAULTS["a function that holds the original"] = _planted("saved", Closed, "a copy computes with mix of its original")
RIGHT = {name: _planted("saved", made) for name, made in KEPT.items()}
RIGHT |= {
    f"{name}, differentiated": _planted("first order", made)
    for name, made in (KEPT | {name: made for name, (_, made) in LOST.items()}).items()
}
