"""`Linear` against e3nn's: attributes, state, values and gradients, laws, and every call error."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

import tpgen
from tests.cases import assert_close
from tests.form.test_linear import LAYOUTS
from tests.machine import KERNEL, needs_compiler
from tpgen.base._e3nn import default_dtype
from tpgen.base.errors import EmitError, InputError, OptionError, PlanError
from tpgen.compiler.backends import script_module
from tpgen.form.reference import reference_product
from tpgen.nn.channels import merge_channels, split_channels
from tpgen.nn.linear import Linear
from tpgen.planner.linear import make_linear_plan

ENDS = ("4x0e + 3x1o + 2x0e + 1x2e", "2x1o + 8x0e + 1x3e + 3x0e")
STRATEGIES = ("einsum", "grouped", "unrolled", KERNEL)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "path": {"path_normalization": "path"},
    "biases": {"biases": True},
    "some biases": {"biases": [False, False, False, True]},
    "instructions": {"instructions": [(1, 0), (0, 1), (2, 1)]},
    "no instructions": {"instructions": []},
    "rows": {"shared_weights": False},
    "external": {"internal_weights": False, "biases": True},
    "channels": {"f_in": 3, "f_out": 2, "biases": True},
    "channels of rows": {"f_in": 3, "f_out": 2, "shared_weights": False},
}


@pytest.fixture(autouse=True)
def in_float64() -> Any:
    with default_dtype(torch.float64):
        yield


def twins(kind: str, **options: Any) -> tuple[Linear, o3.Linear]:
    """A layer and e3nn's, with the same weights and biases."""
    theirs = o3.Linear(*ENDS, **KINDS[kind], _optimize_einsums=False)
    ours = Linear(*ENDS, **KINDS[kind], **options)
    with torch.no_grad():
        theirs.bias.normal_()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def inputs(layer: Any, kind: str, rows: int = 5) -> list[Tensor]:
    given = KINDS[kind]
    pair = (given["f_in"], given["f_out"]) if "f_in" in given else ()
    found = [torch.randn(rows, *pair[:1], layer.irreps_in.dim)]
    if not layer.internal_weights:
        batch = () if layer.shared_weights else (rows,)
        found.append(torch.randn(*batch, *pair, layer.weight_numel))
        if layer.bias_numel:
            found.append(torch.randn(*batch, *pair[1:], layer.bias_numel))
    return [x.requires_grad_() for x in found]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_drop_in(kind: str, strategy: str) -> None:
    ours, theirs = twins(kind, strategy=strategy)
    for name in ("weight_numel", "bias_numel", "internal_weights", "shared_weights", "irreps_in", "irreps_out"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert [tuple(i) for i in ours.instructions] == [tuple(i) for i in theirs.instructions]
    assert repr(ours) == repr(theirs)
    x = inputs(theirs, kind)
    found, wanted = ours(*x), theirs(*x)
    assert_close(found, wanted)
    mine, other = derivatives(found, [*x, *ours.parameters()]), derivatives(wanted, [*x, *theirs.parameters()])
    for a, b in zip(mine, other, strict=True):
        assert_close(a, b)


def derivatives(out: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    """Gradients of first and second order, zeros where there are none."""
    keywords: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    value = out.square().sum() + 0.0 * sum(x.sum() for x in wanted)  # of nothing else, where there are no paths
    first = torch.autograd.grad(value, wanted, create_graph=True, **keywords)
    return [
        *first,
        *torch.autograd.grad(
            sum((g + 0.0 * x).square().sum() for g, x in zip(first, wanted, strict=True)), wanted, **keywords
        ),
    ]


def test_state_goes_both_ways_and_starts_alike() -> None:
    torch.manual_seed(3)
    ours = Linear(*ENDS, biases=True)
    torch.manual_seed(3)
    theirs = o3.Linear(*ENDS, biases=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    theirs.load_state_dict(Linear(*ENDS, biases=True).state_dict())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_layouts(strategy: str, layout: Any) -> None:
    layer = Linear(*ENDS, strategy=strategy, layout=layout)
    x = torch.randn(5, layer.irreps_in.dim)
    assert_close(layer(x), reference_product(layer.plan, x, layer.weight, layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_channels_in_every_layout(layout: Any) -> None:
    """Channels one by one: the sum over those of the input, for each of the output."""
    layer = Linear(*ENDS, f_in=3, f_out=2, layout=layout)
    one = make_linear_plan(*ENDS)
    x = torch.randn(5, 3, layer.irreps_in.dim)
    for n in range(2):
        each = sum(reference_product(one, x[:, m], layer.weight[m, n], layout=layout) for m in range(3))
        assert_close(layer(x)[:, n], each / 3**0.5)


def test_channels_there_and_back() -> None:
    x = torch.randn(2, 3, 7)
    for pieces in ([(6, 3), (1, 1)], [(0, 3), (7, 1)]):
        assert torch.equal(split_channels(merge_channels(x, pieces), 3, pieces), x)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_batches_broadcast_and_may_be_empty(strategy: str) -> None:
    layer = Linear(*ENDS, strategy=strategy, biases=True)
    rows = Linear(*ENDS, strategy=strategy, shared_weights=False)
    for batch in ((), (0,), (2, 3), (2, 0, 3)):
        x = torch.randn(*batch, layer.irreps_in.dim)
        assert layer(x).shape == (*batch, layer.irreps_out.dim)
    w = torch.randn(2, 1, rows.weight_numel)
    x = torch.randn(3, rows.irreps_in.dim)
    assert_close(rows(x, w)[1], rows(x, w[1].expand(3, -1)))


@pytest.mark.parametrize(
    "ends", [("", ""), ("2x0e", ""), ("", "2x0e"), ("2x1o + 0x3e", "2x1o + 0x3e"), ("0x0e", "2x0e")]
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_empty_irreps(strategy: str, ends: tuple[str, str]) -> None:
    layer = Linear(*ends, strategy=strategy, biases=True)
    out = layer(torch.randn(3, layer.irreps_in.dim))
    assert out.shape == (3, layer.irreps_out.dim)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_channels_of_rows_without_a_path(strategy: str) -> None:
    layer = Linear("4x0e", "4x1o", f_in=2, f_out=3, shared_weights=False, internal_weights=False, strategy=strategy)
    for run in (layer, script_module(layer)):
        for w in (torch.randn(1, 2, 3, 0), torch.randn(2, 3, 0)):
            out = run(torch.randn(1, 2, 4), w)
            assert out.shape == (1, 3, 12)
            assert not out.any()


@pytest.mark.parametrize("biases", [False, True])
def test_equivariant(biases: bool) -> None:
    layer = Linear(*ENDS, biases=biases)
    torch.nn.init.normal_(layer.bias) if biases else None
    rotation = o3.rand_matrix() * -1.0
    x = torch.randn(4, layer.irreps_in.dim)
    before, after = layer.irreps_in.D_from_matrix(rotation), layer.irreps_out.D_from_matrix(rotation)
    assert (layer(x @ before.T) - layer(x) @ after.T).abs().max() < 1e-5


def test_output_mask() -> None:
    layer = Linear("2x0e + 1x1o", "3x0e + 2x2e + 1x1o + 2x0e", instructions=[(0, 0)], biases=[False] * 3 + [True])
    assert layer.output_mask.tolist() == [1.0] * 3 + [0.0] * 13 + [1.0] * 2


def test_weight_views() -> None:
    layer = Linear(*ENDS, biases=True)
    views = list(layer.weight_views(yield_instruction=True))
    assert [(index, tuple(view.shape)) for index, _, view in views] == [
        (index, i.path_shape) for index, i in enumerate(layer.instructions) if i.i_in >= 0
    ]
    with torch.no_grad():
        layer.weight_view_for_instruction(1).fill_(7.0)
    assert int((layer.weight == 7.0).sum()) == 4 * 3
    channels = Linear(*ENDS, f_in=3, f_out=2)
    assert channels.weight_view_for_instruction(-1).shape == (3, 2, 2, 3)
    rows = Linear(*ENDS, shared_weights=False)
    assert next(rows.weight_views(torch.randn(5, rows.weight_numel))).shape == (5, 4, 8)
    with pytest.raises(InputError, match="instruction 5 is a bias"):
        layer.weight_view_for_instruction(5)
    with pytest.raises(InputError, match="instruction 9 is out of range"):
        layer.weight_view_for_instruction(9)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", KINDS)
def test_scripted_saved_and_loaded(kind: str, strategy: str) -> None:
    layer = Linear(*ENDS, **KINDS[kind], strategy=strategy)
    x = inputs(layer, kind)
    file = io.BytesIO()
    torch.jit.save(script_module(layer), file)
    file.seek(0)
    assert_close(torch.jit.load(file)(*x), layer(*x))


@pytest.mark.parametrize("kind", ["biases", "channels"])
def test_moved_to_other_dtypes(kind: str) -> None:
    layer = Linear(*ENDS, **KINDS[kind])
    x = inputs(layer, kind)
    single = copy.deepcopy(layer).float()
    assert single(x[0].float()).dtype == torch.float32
    half = copy.deepcopy(layer).half()
    assert half.choice.strategy == "grouped"
    assert half(x[0].half()).dtype == torch.float16


@pytest.mark.parametrize("backend", ["script", "aot_eager"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_backends(strategy: str, backend: str) -> None:
    layer = Linear(*ENDS, strategy=strategy, backend=backend)
    x = torch.randn(5, layer.irreps_in.dim, requires_grad=True)
    out = layer(x)
    assert_close(out, reference_product(layer.plan, x, layer.weight))
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), layer.weight)
    slow = reference_product(layer.plan, x, layer.weight)
    (first,) = torch.autograd.grad(slow.square().sum(), x, create_graph=True)
    assert_close(second, torch.autograd.grad(first.square().sum(), layer.weight)[0])


def test_autocast_takes_the_widest_operand() -> None:
    layer = Linear(*ENDS).float()
    x = torch.randn(5, layer.irreps_in.dim, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), layer(x.double().float()))
        assert layer(x.bfloat16()).dtype == torch.float32


def test_choice_says_why() -> None:
    assert str(Linear(*ENDS, strategy="einsum").choice) == "einsum (asked for)"
    assert Linear("2x0e", "3x1o").choice.strategy == "grouped"  # nothing to write a kernel for


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"instructions": [(0, 0)]}, ValueError, r"instruction 0 \(0, 0\): a linear layer joins equal irreps"),
        ({"instructions": [(7, 0)]}, IndexError, "i_in = 7 is out of range"),
        ({"biases": 1}, PlanError, "biases: must be True, False or a list of them, got 1"),
        ({"f_in": 3}, PlanError, "f_in and f_out go together"),
        ({"internal_weights": True, "shared_weights": False}, PlanError, "internal weights are the same for every row"),
        ({"strategy": "fast"}, EmitError, "unknown strategy 'fast'"),
        ({"layout": "ir"}, EmitError, "unknown layout 'ir'"),
        ({"streams": 2}, OptionError, "unknown option 'streams'.*known options: internal_weights, layout"),
    ],
    ids=str,
)
def test_construction_errors(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Linear(*ENDS, **options)


@pytest.mark.parametrize(
    "kind, shapes, match",
    [
        ("plain", [(5, 3)], "features: the last dimension must be 20 .*, got 3"),
        ("plain", [(5, 20), (5, 72)], r"weight: all rows share it, so the shape must be \(72,\), got \(5, 72\)"),
        ("plain", [(5, 20), (7,)], "weight: the last dimension must be 72, got 7"),
        ("plain", [(5, 20), (72,), (3,)], "bias: the last dimension must be 0, got 3"),
        ("rows", [(5, 20), (72,)], r"weight: every row has its own .*the shape must be \(…, 72\) with at least"),
        ("rows", [(5, 20), (4, 72)], r"batch dimensions .* to broadcast, got features \(5, 20\), weight \(4, 72\)"),
        ("rows", [(5, 20)], "no weights and biases of its own .*: give weight with 72 entries$"),
        ("external", [(5, 20)], "give weight with 72 entries and bias with 11"),
        ("external", [(5, 20), (72,)], "give weight with 72 entries and bias with 11"),
        ("biases", [(5, 20), (72,), (2, 11)], r"bias: all rows share it, .* \(11,\)"),
        ("channels", [(5, 20)], r"features: this layer has channels, so the shape must be \(…, 3, 20\)"),
        ("channels", [(5, 3, 20), (72,)], r"weight: all rows share it, .* \(3, 2, 72\)"),
    ],
)
def test_call_errors(kind: str, shapes: list[tuple[int, ...]], match: str) -> None:
    layer = Linear(*ENDS, **KINDS[kind])
    with pytest.raises(InputError, match=match):
        layer(*map(torch.zeros, shapes))


def test_errors_of_type_and_dtype() -> None:
    layer = Linear(*ENDS)
    with pytest.raises(InputError, match=r"features: must be a tensor, got float"):
        layer(3.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"features:.*float64.*float32; convert: layer.to"):
        layer(torch.zeros(5, 20, dtype=torch.float32))


def test_what_is_no_weight_and_biases_that_do_not_broadcast() -> None:
    with pytest.raises(InputError, match="weight and bias must be tensors, got int"):
        Linear(*ENDS)(torch.randn(3, o3.Irreps(ENDS[0]).dim), 3)
    rows = Linear("2x0e", "2x0e", biases=True, shared_weights=False)
    with pytest.raises(InputError, match=r"must be equal or 1 to broadcast, got features \(3, 2\), bias \(4, 2\)"):
        rows(torch.randn(3, 2), torch.randn(3, 4), torch.randn(4, 2))


def test_exported_at_the_root() -> None:
    assert tpgen.Linear is Linear


@needs_compiler
def test_a_usual_call_goes_to_the_kernel_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tpgen.Linear("8x0e+4x1o", "4x0e+8x1o", strategy="kernel").double()
    x = torch.randn(5, 20, dtype=torch.float64, requires_grad=True)

    def training(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, layer.weight))

    def doubled() -> torch.Tensor:
        return torch.func.functional_call(layer, {"weight": 2 * layer.weight}, x)

    with monkeypatch.context() as patch:
        patch.setattr(layer, "kernel_text", "")
        wanted = (*training(x), doubled())
    monkeypatch.setattr(layer, "_get_current_runner", None)
    torch.testing.assert_close((*training(x), doubled()), wanted)


@needs_compiler
@pytest.mark.parametrize("options", [{"biases": True}, {"f_in": 2, "f_out": 3}, {"strategy": "grouped"}])
def test_calls_that_need_more_than_a_kernel(options: dict) -> None:
    layer = tpgen.Linear("8x0e", "4x0e", **{"strategy": "kernel", **options})
    x = torch.randn(*(5, 2, 8) if "f_in" in options else (5, 8))
    assert layer._try_layer_kernel(x, None, None) is None
    assert tpgen.Linear("8x0e", "4x0e", strategy="kernel")._try_layer_kernel(x.view(-1, 8), None, torch.ones(4)) is None
    assert layer(x).shape[0] == 5
