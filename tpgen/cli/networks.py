"""Networks on the command line: one of tpgen's own by its name, or any that a function of yours returns."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

from tpgen.demo.tetris import Tetris, neighbours, shapes
from tpgen.errors import TpgenError, unknown
from tpgen.nn.products import FullyConnectedTensorProduct


@dataclass(frozen=True)
class Network:
    """A network, arguments of a call, and functions that a trace keeps as single nodes."""

    module: nn.Module
    inputs: tuple[Any, ...]
    functions: tuple[Callable, ...] = ()


def _tetris() -> Network:
    torch.manual_seed(0)
    points = shapes(torch.Generator().manual_seed(0))
    return Network(Tetris(FullyConnectedTensorProduct), (points,), (neighbours,))


NETWORKS: dict[str, Callable[[], Network]] = {"tetris": _tetris}


def find_network(name: str) -> Network:
    """One of `NETWORKS`, or what ``package.module:function`` returns: a module and a list of its arguments.

    >>> len(find_network("tetris").inputs)
    1
    """
    if name in NETWORKS:
        return NETWORKS[name]()
    where, colon, function = name.partition(":")
    if not colon:
        raise TpgenError(f"{unknown('network', name, NETWORKS)}; or give package.module:function")
    made = _function(where, function)()
    try:
        module, inputs = made
    except (TypeError, ValueError):
        raise TpgenError(f"{name} must return a module and a list of arguments, got {type(made).__name__}") from None
    return Network(module, tuple(inputs))


def _function(where: str, name: str) -> Callable[[], Any]:
    sys.path.insert(0, str(Path.cwd()))  # as python -m has it
    try:
        return getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError) as error:
        raise TpgenError(f"cannot import {name!r} from {where!r}: {error}") from error
    finally:
        sys.path.pop(0)


network_option = click.option(
    "--network",
    metavar="NETWORK",
    help=f"A whole network in the place of a product: {', '.join(NETWORKS)}, or package.module:function, a function "
    "that returns a module and a list of its arguments.",
)
