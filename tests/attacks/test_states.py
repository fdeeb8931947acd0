"""Whatever happens to the memory of a module, its results are those of its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.attacks.counts import count
from tests.attacks.modules import KINDS
from tpgen.tools.verification.runs import save_and_load

State = Mapping[str, Tensor]
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5}


def _emptied(module: nn.Module, state: State) -> nn.Module:
    """Memory as a system gives it: of zeros, of small numbers, whatever."""
    module.to("meta").to_empty(device="cpu")
    return _spoilt(module, state)


def _spoilt(module: nn.Module, state: State) -> nn.Module:
    """Not strictly, as e3nn's own programs come into a state_dict with the first copy of a module."""
    with torch.no_grad():
        for held in (*module.buffers(), *module.parameters()):
            held.fill_(1)
    module.load_state_dict(state, strict=False)
    return module


def _each_emptied(module: nn.Module, state: State) -> nn.Module:
    for part in module.modules():
        part.to_empty(device="cpu", recurse=False)
    return _spoilt(module, state)


def _assigned(module: nn.Module, state: State) -> nn.Module:
    module.to("meta").load_state_dict({name: x.clone() for name, x in state.items()}, strict=False, assign=True)
    return module


def _in(dtype: torch.dtype) -> Callable[[nn.Module, State], nn.Module]:
    def assigned(module: nn.Module, state: State) -> nn.Module:
        cast = {name: x.to(dtype if x.is_floating_point() else x.dtype, copy=True) for name, x in state.items()}
        module.load_state_dict(cast, strict=False, assign=True)
        return module

    return assigned


OPERATIONS: dict[str, Callable[[nn.Module, State], nn.Module]] = {
    "to_empty": _emptied,
    "each to_empty": _each_emptied,
    "spoilt": _spoilt,
    "meta, assign": _assigned,
    "assign float64": _in(torch.float64),
    "assign float32": _in(torch.float32),
    "double": lambda m, state: m.double(),
    "float": lambda m, state: m.float(),
    "deepcopy": lambda m, state: copy.deepcopy(m),
    "file": lambda m, state: save_and_load(m),
    "half and back": lambda m, state: _spoilt(m.bfloat16().float(), state),
}


def dtype_of(module: nn.Module, before: torch.dtype, done: str) -> torch.dtype:
    """Of a module with a floating tensor in its state that tensor's; of one without, what the last cast said."""
    floating = [x.dtype for x in module.state_dict().values() if x.is_floating_point()]
    cast = {"double": torch.float64, "float": torch.float32, "half and back": torch.float32}
    return floating[0] if floating else cast.get(done, before)


def called(module: nn.Module, arguments: tuple[Any, ...], dtype: torch.dtype) -> Tensor:
    return module(*(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments))


@pytest.mark.parametrize("kind", KINDS)
@given(operations=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_results_are_those_of_the_weights(kind: str, operations: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    module, arguments = KINDS[kind]()
    state, dtype = {name: x.clone() for name, x in module.state_dict().items()}, torch.float32
    want = called(copy.deepcopy(module).double(), arguments, torch.float64)
    for name in operations:
        module = OPERATIONS[name](module, state)
        dtype = dtype_of(module, dtype, name)
        got = called(module, arguments, dtype)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=0.0, atol=LIMITS[dtype] * float(want.abs().max().detach()))
    count("states of modules", len(operations))
