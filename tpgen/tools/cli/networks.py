"""Networks of the command line."""

from __future__ import annotations

import functools
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from click.core import ParameterSource
from torch import nn

from tpgen.base.errors import TpgenError
from tpgen.nn.products import FullyConnectedTensorProduct
from tpgen.tools.cli.types import OneOf
from tpgen.tools.demo.tetris import E3NN_PRODUCT, ProductClass, Tetris, shapes


@dataclass(frozen=True)
class Network:
    """A network, its arguments, and arguments of other shapes."""

    module: nn.Module
    inputs: tuple[Any, ...]
    varied: tuple[tuple[Any, ...], ...] = ()  # of other shapes, for reports on recompilation


def _build_tetris_network(product_class: ProductClass) -> Network:
    torch.manual_seed(0)
    points = shapes(torch.Generator().manual_seed(0))
    return Network(Tetris(product_class), (points,))


NETWORKS: dict[str, Callable[[], Network]] = {
    "tetris": partial(_build_tetris_network, FullyConnectedTensorProduct),
    "tetris-e3nn": partial(_build_tetris_network, E3NN_PRODUCT),  # for tpgen convert
}


def find_network(name: str) -> Network:
    """Make one of `NETWORKS`, or call ``package.module:function``, which returns a module and arguments.

    >>> len(find_network("tetris").inputs)
    1
    """
    if name in NETWORKS:
        return NETWORKS[name]()
    where, _, function = name.partition(":")
    return _make_network_of_returned_values(name, _call_user_function(name, _import_function(where, function)))


def names_a_network(name: str) -> bool:
    """Whether a name can be a network's option value.

    >>> names_a_network("tetris"), names_a_network("my.module:function"), names_a_network("mace-large")
    (True, True, False)
    """
    return name in NETWORKS or ":" in name


class NetworkName(OneOf):
    """Click type: a network's name, or ``package.module:function``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a network's name; raise `TpgenError` for others."""
        if value in self.refused:
            return super().convert(value, param, ctx)
        try:
            return value if names_a_network(value) else super().convert(value, param, ctx)
        except TpgenError as error:
            raise TpgenError(f"{error}; or give package.module:function") from None


def _make_network_of_returned_values(function_name: str, returned: Any) -> Network:
    parts = tuple(returned) if isinstance(returned, (tuple, list)) else ()
    module, inputs, varied = (*parts, ())[:3] if len(parts) in (2, 3) else (None,) * 3
    if (
        not isinstance(module, nn.Module)
        or not all(isinstance(each, (tuple, list)) for each in (inputs, varied))
        or not all(isinstance(each, (tuple, list)) for each in varied)
    ):
        shown = ", ".join(type(part).__name__ for part in parts) or type(returned).__name__
        raise TpgenError(
            f"{function_name} must return the network and a list of its arguments, as in `return network, [x, y]`; "
            f"got {shown}. A third value may be a list of further lists of arguments, of other shapes"
        )
    return Network(module, tuple(inputs), tuple(map(tuple, varied)))


def _call_user_function(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except TpgenError:
        raise
    except Exception as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        raise TpgenError(
            f"{name} is called without arguments, and failed at {last.filename}:{last.lineno} with {said}"
        ) from error


def _import_function(module_name: str, function_name: str) -> Callable[[], Any]:
    if module_name.endswith(".py") or "/" in module_name:
        module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise TpgenError(f"{module_name!r} is a file, and a module is asked for: give {module}:{function_name}")
    sys.path.insert(0, str(Path.cwd()))  # as python -m has it
    try:
        return getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise TpgenError(f"cannot import {function_name!r} from {module_name!r}: {error}") from error
    finally:
        sys.path.pop(0)


def refuse_options(names: Iterable[str], why: str) -> None:
    """Raise `click.UsageError` if the user gave one of the named options."""
    context = click.get_current_context()
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{why}: leave out {' and '.join(given)}")


network_name = click.argument("name", required=False, metavar="[NAME]", type=NetworkName("network", NETWORKS))
network_option = click.option(
    "--network",
    type=NetworkName("network", NETWORKS),
    metavar="NAME",
    help=f"NAME of a whole network: {', '.join(NETWORKS)}, or package.module:function, a function "
    "that returns a module and a list of its arguments (and further lists of arguments, of other shapes).",
)


def add_network_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument NAME; the command gets ``network``, a `Network`."""

    @functools.wraps(command)
    def call_command_with_network(name: str | None, network: str | None, **given: Any) -> Any:
        if (name is None) == (network is None):
            raise click.UsageError(f"name one network: {', '.join(NETWORKS)}, or package.module:function")
        return command(network=find_network(str(name or network)), **given)

    return network_name(network_option(call_command_with_network))
