"""A step in the place of its network: a module that answers as the network does, and returns itself."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.register_buffer("shift", torch.ones(1))
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).sin()) * self.scale + self.shift

    def frozen(self) -> Network:
        return self.requires_grad_(False)

    def count(self) -> int:
        return len(list(self.parameters()))


def described(module: nn.Module) -> list[Any]:
    """All that a module says of itself."""
    tensors = [*module.named_parameters(), *module.named_buffers(), *module.state_dict().items()]
    return [
        [(name, x.dtype, x.requires_grad, x.tolist()) for name, x in tensors],
        [(name, type(x)) for name, x in module.named_modules()],
        [name for name, _ in module.named_children()],
        module.training,
        [of.training for of in module.modules()],
    ]


RETURN: dict[str, Callable[[Any], Any]] = {
    "to": lambda m: m.to("cpu"),
    "to a dtype": lambda m: m.to(torch.float64),
    "cpu": lambda m: m.cpu(),
    "double": lambda m: m.double(),
    "float": lambda m: m.float(),
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "type": lambda m: m.type(torch.float64),
    "train": lambda m: m.train(),
    "eval": lambda m: m.eval(),
    "requires_grad_": lambda m: m.requires_grad_(False),
    "apply": lambda m: m.apply(lambda of: setattr(of, "training", False)),
    "share_memory": lambda m: m.share_memory(),
    "to_empty": lambda m: m.to_empty(device="cpu").apply(
        lambda of: [x.data.zero_() for x in (*of.parameters(), *of.buffers())]
    ),
    "a method of its own": lambda m: m.frozen(),
}
RESULTS: dict[str, Callable[[Any], Any]] = {
    "load_state_dict": lambda m: str(m.load_state_dict(Network().state_dict())),
    "zero_grad": lambda m: m.zero_grad(),
    "get_parameter": lambda m: m.get_parameter("first.weight").tolist(),
    "get_submodule": lambda m: type(m.get_submodule("first")),
    "register_buffer": lambda m: m.register_buffer("more", torch.ones(2)),
    "add_module": lambda m: m.add_module("more", nn.ReLU()),
    "an attribute": lambda m: setattr(m, "scale", 3.0),
    "a weight": lambda m: setattr(m, "first", nn.Linear(3, 4).requires_grad_(False).apply(ones)),
    "no buffer": lambda m: delattr(m, "shift"),
    "a method of its own": lambda m: m.count(),
}


def ones(module: nn.Module) -> None:
    for x in module.parameters():
        x.data.fill_(1)


@pytest.mark.parametrize("method", RETURN)
def test_methods_that_return_the_network_return_the_step(method: str) -> None:
    network, other = Network(), Network()
    step = tpgen.compile_step(network)
    assert RETURN[method](step) is step
    assert RETURN[method](other) is other
    assert described(step) == described(other) == described(network)


@pytest.mark.parametrize("method", RESULTS)
def test_all_else_is_done_to_the_network(method: str) -> None:
    network, other = Network(), Network()
    step = tpgen.compile_step(network)
    assert RESULTS[method](step) == RESULTS[method](other)
    assert described(step) == described(other) == described(network)
    assert (network.scale, step.scale) == (other.scale, other.scale)


def test_a_step_is_a_module_and_part_of_others(interpreted: list[int]) -> None:  # noqa: F811
    network = Network().eval()
    step, x = tpgen.compile_step(network, torch.ones(5, 3)), torch.randn(7, 3)
    assert isinstance(step, nn.Module)
    whole, like = nn.Sequential(step, nn.Tanh()), nn.Sequential(Network(), nn.Tanh()).eval()
    assert described(whole)[0] == described(like)[0]
    whole.load_state_dict(nn.Sequential(Network(), nn.Tanh()).state_dict())
    assert whole.double()[0] is step
    assert network.shift.dtype == torch.float64
    torch.testing.assert_close(whole(x.double()), like.double()(x.double()).detach())
    calls: list[int] = []
    handle = step.register_forward_hook(lambda *_: calls.append(0))
    step(x.double())
    handle.remove()
    assert len(calls) == 2, "the network's hook, called while it is written down: by the example and by the trace"


def test_a_step_is_a_model_to_others(interpreted: list[int]) -> None:  # noqa: F811
    """As TorchSim's wrappers take models: by their class, by what `to` and `eval` return."""

    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            if not isinstance(model, nn.Module):
                raise TypeError("Invalid model type. Must be a torch.nn.Module")
            self.model = model.to("cpu").eval()
            self.model = self.model.to(dtype=torch.float64)
            for p in self.model.parameters():
                p.requires_grad = False

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x)

    network = Network()
    wrapper = Wrapper(tpgen.compile_step(network))
    assert type(wrapper.model).__name__ == "Step"
    x = torch.randn(5, 3).double()
    torch.testing.assert_close(wrapper(x), network(x))
    assert len(interpreted) == 1


def test_copies_and_pickles_are_steps_of_copies(interpreted: list[int]) -> None:  # noqa: F811
    step, file, x = tpgen.compile_step(Network(), torch.ones(5, 3)), io.BytesIO(), torch.randn(5, 3)
    torch.save(step, file)
    file.seek(0)
    for again in (copy.copy(step), copy.deepcopy(step), torch.load(file, weights_only=False)):
        assert type(again) is type(step)
        assert again.state_dict().keys() == step.state_dict().keys()
        torch.testing.assert_close(again(x), step(x))
    assert repr(step).startswith("Step of Network(")
    assert {"count", "build", "first"} <= set(dir(step))
