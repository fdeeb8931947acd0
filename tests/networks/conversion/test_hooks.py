"""Hooks on all modules of a converted network see what they see of the stock one."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from torch import nn

import tpgen
from tests.attacks.modules import OF_E3NN

E3NN_PROGRAMS = ("_compiled_main", "_compiled_main_left_right")  # which compute for stock alone


def seen(network: nn.Module, arguments: tuple) -> list[str]:
    """The names of the modules whose hooks are called, forwards and backwards."""
    found: list[str] = []
    for name, module in network.named_modules():
        scripted = isinstance(module, torch.jit.ScriptModule)  # of e3nn 0.4: they take no hooks
        if not scripted and name.rpartition(".")[2] not in E3NN_PROGRAMS:
            module.register_forward_hook(lambda *_, name=name: found.append(name))
            module.register_full_backward_hook(lambda *_, name=name: found.append(f"back {name}"))
    out = network(*(x.clone().requires_grad_() if x.is_floating_point() else x for x in arguments))
    out.sum().backward()
    return found


@pytest.mark.parametrize("kind", OF_E3NN)
def test_hooks_on_all_modules_see_what_stock_sees(kind: str) -> None:
    torch.manual_seed(0)
    layer, arguments = OF_E3NN[kind](o3)
    converted = tpgen.convert(OF_E3NN[kind](o3)[0])  # no copy, which harmonics of e3nn 0.5 do not take
    assert seen(converted, arguments) == seen(layer, arguments)
