"""The proof that a converted network is equal: values and derivatives in float64, before and after."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from tests.networks.conversion.networks import GRAPHS, Mixed, attributes, mixed_inputs
from tpgen.base.errors import BackendError, TpgenError
from tpgen.networks.conversion.adapters import ADAPTERS
from tpgen.networks.conversion.convert import conversion_report, convert
from tpgen.networks.conversion.products import CONVERTED
from tpgen.networks.conversion.proof import BUSY, Proof, Time, Times, _find_largest_difference
from tpgen.networks.conversion.swap import ClassSwap, get_swap_mark


class Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * x


class Wrong(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * x


def test_what_is_converted_later_is_proven_too(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(o3.Linear("2x0e", "2x0e"), Scale())
    convert(network, **GRAPHS)
    monkeypatch.setitem(
        ADAPTERS,
        "tests",
        lambda found, _: [ClassSwap(m, Wrong, "a factor") for m in found.modules() if type(m) is Scale],
    )
    with pytest.raises(TpgenError, match="NOT equal"):
        convert(network, prove=(torch.randn(5, 2),))
    assert type(network[1]) is Scale
    proof = conversion_report(network, prove=(torch.randn(5, 2),)).proof
    assert proof is not None
    assert proof.holds, "a report takes the network as it is"


class _Wrong(o3.FullTensorProduct):
    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return 1.001 * super().forward(x, y, weight)


def test_a_proof_that_fails_leaves_the_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = Mixed(), mixed_inputs()
    before = attributes(network)
    monkeypatch.setitem(CONVERTED, o3.FullTensorProduct, _Wrong)
    with pytest.raises(TpgenError, match=r"left as it was: in float64, stock and converted are NOT equal"):
        convert(network, prove=inputs, **GRAPHS)
    assert attributes(network) == before


@pytest.mark.parametrize("where", ["stock", "converted"])
def test_a_nan_fails_the_proof_whatever_comes_after_it(where: str) -> None:
    whole, broken = {"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.tensor([torch.nan, 1.0]), "b": torch.ones(2)}
    found = _find_largest_difference("outputs", *((broken, whole) if where == "stock" else (whole, broken)))
    assert found.where == f"a (no numbers in the {where} network alone)"
    assert not Proof((found,)).holds


NAN, INF = torch.nan, torch.inf
NEAR = 1 + 1e-9


@pytest.mark.parametrize(
    ("what", "stock", "converted", "holds"),
    [
        ("outputs", [NAN, INF, 1.0], [NAN, INF, 1.0], True),
        ("outputs", [NAN, INF, 1.0], [NAN, INF, 1.1], False),
        ("outputs", [NAN, INF, 1.0], [1.0, INF, 1.0], False),
        ("outputs", [NAN, INF, 1.0], [NAN, -INF, 1.0], False),
        ("gradients", [NAN, INF, 1.0], [7.0, NAN, 1.0], True),  # of derivatives any number is let pass there
        ("outputs", [1.0], [NEAR], False),
        ("gradients", [1.0], [NEAR], True),
        ("outputs", [1e-17], [-1e-17], False),
    ],
)
def test_what_no_number_in_both_and_limits_say(what: str, stock: list, converted: list, holds: bool) -> None:
    given = ({"a": torch.tensor(x, dtype=torch.float64)} for x in (stock, converted))
    assert Proof((_find_largest_difference(what, *given, what != "outputs"),)).holds is holds


@pytest.mark.parametrize(("noise", "holds"), [(-1e-17, True), (1e-13, False)])
def test_what_is_zero_but_for_rounding_is_measured_beside_the_rest(noise: float, holds: bool) -> None:
    stock, converted = (
        {"zero": torch.tensor([x], dtype=torch.float64), "whole": torch.ones(2, dtype=torch.float64)}
        for x in (1e-17, noise)
    )
    assert Proof((_find_largest_difference("outputs", stock, converted),)).holds is holds


class Directions(nn.Module):
    """Directions of edges, which those of length zero have none of."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = o3.Linear("1o", "1o")

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x / x.norm(dim=-1, keepdim=True))


def test_numbers_that_stock_lacks_are_told_and_not_put_down_to_the_conversion() -> None:
    reports = []
    x = torch.randn(4, 3)
    x[1] = 0
    convert(Directions(), prove=(x,), report=reports.append, **GRAPHS)
    assert reports[0].proof.holds
    assert "stock itself has no numbers in 1 of 1 tensors of its outputs, the first output" in str(reports[0].proof)


class _Fails(o3.FullTensorProduct):
    error: Exception = ValueError("out of luck")

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        raise self.error


@pytest.mark.parametrize("task", ["prove", "measure"])
@pytest.mark.parametrize(
    "error, said",
    [
        (
            ValueError("out of luck"),
            r"the conversion is at fault in 'full' \(ValueError: out of luck\): the stock network",
        ),
        (
            BackendError("the compiler failed: 'T' was not declared"),
            "the fault of no input and of no .* compiler failed",
        ),
    ],
)
def test_an_error_of_the_converted_network_alone_is_not_put_down_to_the_inputs(
    error: Exception, said: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Fails, "error", error)
    monkeypatch.setitem(CONVERTED, o3.FullTensorProduct, _Fails)
    network = Mixed()
    with pytest.raises(TpgenError, match=said):
        convert(network, **{task: mixed_inputs()}, **GRAPHS)
    assert get_swap_mark(network.full) is None


def test_a_proof_without_tensors_is_none() -> None:
    class Held:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    class Holding(Mixed):
        def forward(self, *given: Tensor) -> Held:  # type: ignore[override]
            return Held(super().forward(*given)["squares"])

    network = Holding()
    with pytest.raises(TpgenError, match=r"returns no floating tensors that prove can see: .*_pytree"):
        convert(network, prove=mixed_inputs(), **GRAPHS)
    assert get_swap_mark(network.full) is None


class Forces(nn.Module):
    """Casts to the dtype that it was built in, writes into the dict that it is given, and differentiates."""

    def __init__(self) -> None:
        super().__init__()
        self.model_dtype = torch.get_default_dtype()
        self.product = o3.FullyConnectedTensorProduct("1o", "1o", "0e")

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        data["edges"] = data["x"].to(self.model_dtype).detach().requires_grad_()
        energy = self.product(data["edges"], data["edges"]).square().sum()
        (data["forces"],) = torch.autograd.grad(energy, data["edges"], create_graph=self.training)
        data["energy"] = energy
        return data


def test_inputs_are_asked_for_gradients_as_they_are_given() -> None:
    """A dict that is written into holds more than inputs, and not all that floats is differentiable."""
    reports = []
    inputs = ({"x": torch.randn(4, 3, dtype=torch.float64)},)
    convert(Forces(), measure=inputs, prove=inputs, report=reports.append, **GRAPHS)
    assert reports[0].proof.holds
    assert [t.task for t in reports[0].times.tasks] == ["call", "call and gradients"]
    assert list(inputs[0]) == ["x"]
    assert torch.get_default_dtype() == torch.float32


class Freed(Forces):
    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        self.eval()
        found = super().forward(data)
        self.train()
        return found


def test_a_network_that_keeps_no_graph_in_evaluation_is_timed_without_gradients() -> None:
    reports = []
    inputs = ({"x": torch.randn(4, 3, dtype=torch.float64)},)
    convert(Forces().eval(), measure=inputs, report=reports.append, **GRAPHS)
    assert [t.task for t in reports[0].times.tasks] == ["call"]
    assert "gradients are not timed: in evaluation" in str(reports[0].times)
    with pytest.raises(TpgenError, match=r"cannot be differentiated with these inputs .*call network.train\(\)"):
        convert(Freed(), measure=inputs, **GRAPHS)


def test_a_network_that_keeps_no_graph_in_evaluation_is_proven() -> None:
    reports = []
    network = Forces().eval()
    inputs = ({"x": torch.randn(4, 3, dtype=torch.float64)},)
    convert(network, prove=inputs, report=reports.append, **GRAPHS)
    assert reports[0].proof.holds
    assert not network.training
    assert [d.tensors > 0 for d in reports[0].proof.differences] == [True] * 3
    assert "derivatives are those in training" in str(reports[0].proof)


class Batch:
    """Tensors in an object that torch knows nothing of."""

    def __init__(self) -> None:
        self.x = torch.randn(4, 3)


class Stored:
    """The same, one object further in."""

    def __init__(self) -> None:
        self.store = Batch()


@pytest.mark.parametrize("kind", [Batch, Stored])
def test_an_argument_that_cannot_be_cast_is_named(kind: type) -> None:
    class OfBatch(Forces):
        def forward(self, number: int, data: Batch | Stored) -> Tensor:
            x = getattr(data, "store", data).x
            return self.product(x, x)

    why = rf"the tensors of argument 1 \(a {kind.__name__}\) could not be cast\. Give .*`batch\.to_dict\(\)`"
    with pytest.raises(TpgenError, match=why):
        convert(OfBatch(), prove=(3, kind()), **GRAPHS)


def test_a_proof_needs_a_graph_to_differentiate() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullTensorProduct("1o", "1o")

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            energy = self.product(x, x).square().sum()
            return energy, torch.autograd.grad(energy, x)[0]

    with pytest.raises(TpgenError, match=r"cannot be differentiated with these inputs .*training step"):
        convert(Forces(), prove=(torch.randn(2, 3, requires_grad=True),), **GRAPHS)


def test_a_float32_network_is_proven_against_exact_couplings() -> None:
    network = nn.ModuleDict({"p": o3.FullyConnectedTensorProduct("2x2e", "2e", "2e")})
    convert(network["p"], prove=(torch.randn(3, 10), torch.randn(3, 5)), **GRAPHS)


def test_times_of_a_busy_machine_give_no_ratio_and_say_what_to_do() -> None:
    quiet, busy = Time("call", 0.2, 0.1, spread=0.1), Time("call and gradients", 0.4, 0.1, spread=1.2)
    assert BUSY not in str(Times((quiet,), 7, 1))
    *_, row, last = str(Times((quiet, busy), 7, 1)).splitlines()
    assert row.rstrip().endswith("times lie 120 % apart")
    assert last == BUSY
