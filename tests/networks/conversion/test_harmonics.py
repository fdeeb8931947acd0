"""e3nn's spherical harmonics that compute with tpgen."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import product

import pytest
import torch
from e3nn import o3
from e3nn.o3 import _spherical_harmonics
from e3nn.util.jit import compile as e3nn_compile
from torch import Tensor, nn

from tests.machine import needs_compiler
from tests.networks.conversion.networks import check_conversion
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.harmonics import ConvertedSphericalHarmonics

ALL = [0, 1, 2, 3]


def harmonics(degrees: object = ALL, normalize: bool = True, normalization: str = "component") -> o3.SphericalHarmonics:
    return o3.SphericalHarmonics(degrees, normalize, normalization)


CHOICES = [*product([ALL], [True, False], ["integral", "component", "norm"])]
CHOICES += [(degrees,) for degrees in ("0e+1o+2e+3o+4e", "0e+1e+2e", "2e+1o+1o", 2, "2x0e+3o")]


@needs_compiler
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_harmonics_are_stock(choice: tuple) -> None:
    check_conversion(partial(harmonics, *choice), [torch.randn(65, 3)], ConvertedSphericalHarmonics)


@needs_compiler
def test_scripted_and_compiled() -> None:
    module, x = convert(harmonics()), torch.randn(5, 3)
    torch.testing.assert_close(torch.compile(module, backend="aot_eager")(x), module(x))
    assert e3nn_compile(deepcopy(module))(x.bfloat16()).dtype == torch.bfloat16


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (0, 3), (1, 3), (65, 3), (2, 7, 3)])
def test_shapes_and_dtypes_are_those_of_stock(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    torch.testing.assert_close(convert(harmonics())(x), harmonics()(x), check_stride=False)


@needs_compiler
def test_a_vector_without_length_has_the_values_and_gradients_of_stock() -> None:
    module = harmonics()
    x = torch.cat([torch.zeros(2, 3), torch.randn(3, 3)]).requires_grad_()
    stock, ours = module(x), convert(module)(x)
    torch.testing.assert_close(ours, stock)
    cotangent = torch.randn_like(stock)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, cotangent)[0] for y in (ours, stock)))


@needs_compiler
def test_one_kernel_runs_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls = convert(harmonics()), []
    monkeypatch.setattr(
        "tpgen.networks.conversion.harmonics.run_harmonics", lambda *given: calls.append(given) or given[0][0]
    )
    module(torch.randn(4, 3))
    module(torch.randn(4, 3, device="meta"))
    module(torch.randn(4, 3).bfloat16())
    assert len(calls) == 1


@needs_compiler
def test_a_scripted_function_which_torch_cannot_copy_is_no_obstacle() -> None:
    module, x = harmonics(), torch.randn(5, 3, dtype=torch.float64)
    module.sph_func = torch.jit.script(_spherical_harmonics._spherical_harmonics)  # as e3nn 0.5 has it
    wanted = module(x)
    proof = conversion_report(nn.Sequential(module), prove=(x,)).proof
    assert proof is not None
    assert max(d.relative for d in proof.differences) < 1e-12
    copied = pickle.loads(pickle.dumps(deepcopy(convert(module))))
    torch.testing.assert_close(copied(x), wanted)
    torch.testing.assert_close(restore(copied)(x), wanted)


class _Doubled(o3.SphericalHarmonics):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _replaced() -> nn.Module:
    module = harmonics()
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: _Doubled(ALL, True), r"a subclass of e3nn.SphericalHarmonics, whose own code a swap would skip"),
        (lambda: torch.jit.script(harmonics()), r"scripted harmonics: convert the network before it is scripted"),
        (_replaced, r"its forward is replaced on the instance"),
        (lambda: harmonics([0, 5]), r"tpgen cannot plan it: .*the highest degree must be 1 to 4, got 5"),
    ],
)
def test_what_must_stay_is_named(make: Callable[[], nn.Module], why: str) -> None:
    with pytest.raises(TpgenError, match=f"nothing that can be converted: {why}"):
        convert(make())


def test_without_a_compiler_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tpgen.networks.conversion.obstacles.why_kernel_unsupported", lambda *_, **__: "there is no compiler"
    )
    with pytest.raises(TpgenError, match="nothing that can be converted: without a kernel: there is no compiler"):
        convert(harmonics())


def test_where_graphs_are_asked_for_they_stay() -> None:
    network = nn.ModuleList([o3.FullTensorProduct("1o", "1o"), harmonics()])
    with pytest.warns(UserWarning, match="'1': for kernels alone, and strategy='grouped' was asked for"):
        convert(network, strategy="grouped")
    assert type(network[1]) is o3.SphericalHarmonics
