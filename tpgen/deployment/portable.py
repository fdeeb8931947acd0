"""Networks without any operator of tpgen's: what runs wherever torch runs."""

from __future__ import annotations

import copy

from torch import nn

from tpgen.compiler.config import Config
from tpgen.conversion.swap import undo_all
from tpgen.errors import DeployError
from tpgen.nn.form_module import FormModule
from tpgen.nn.polynomial_module import PolynomialModule
from tpgen.nn.programs import ProgramModule


def portable(network: nn.Module) -> nn.Module:
    """A copy of a network that calls torch's operators alone, with equal parameters and state_dict.

    Products and layers run as graphs (strategy ``grouped``), polynomials as ``einsum``, and what `tpgen.convert`
    swapped is what it was before.  It is slower on a CPU, and can be compiled and exported where tpgen is not.

    >>> import tpgen
    >>> network = nn.Sequential(tpgen.TensorSquare("2x1o", strategy="kernel"))
    >>> portable(network)[0].choice.strategy, network[0].choice.strategy
    ('grouped', 'kernel')
    """
    if not isinstance(network, nn.Module):
        raise DeployError(f"portable takes a network, a torch.nn.Module, got {type(network).__name__}")
    made = copy.deepcopy(network)
    undo_all(made)
    for module in made.modules():
        if isinstance(module, ProgramModule):
            _write_as_graph(module)
    return made


def _write_as_graph(module: ProgramModule) -> None:
    if isinstance(module, FormModule):
        module._config = Config(layout=module._config.layout, strategy="grouped")
        module.backend = module._config.backend
    elif isinstance(module, PolynomialModule):
        module._strategy = "einsum"
    module._rewrite()
