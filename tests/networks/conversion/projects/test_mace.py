"""The adapter for MACE, on stand-ins of its modules; tests/clients runs MACE itself."""

from __future__ import annotations

import io
from copy import deepcopy
from functools import partial

import pytest
import torch
from e3nn.util.jit import script
from torch import nn
from torch.nn.utils import prune

from tests.machine import KERNEL, needs_compiler
from tests.networks.conversion.networks import check_conversion
from tests.networks.conversion.projects.mace_stand_in import (
    CHANNELS,
    ELEMENTS,
    Interaction,
    Potential,
    SymmetricContraction,
    arguments,
)
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion import notices
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.products import ConvertedTensorProduct
from tpgen.networks.conversion.projects.mace import MaceConvolution
from tpgen.networks.conversion.projects.mace_contraction import MaceContraction
from tpgen.nn.symmetric_contraction import average_over_input_permutations


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_a_potential_is_stock(strategy: str) -> None:
    close = {"rtol": 1e-4, "atol": 1e-4}
    report = check_conversion(Potential, arguments(), Potential, (deepcopy,), 1e-11, close, strategy=strategy)
    converted = {path for r in report.replaced for path in r.paths}
    assert {"interactions.0.conv_tp", "interactions.1.conv_tp", "interactions.0.skip_tp"} <= converted
    assert "tpgen convolution" in str(report)


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_gather_product_and_sum_are_one_call(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = convert(Potential(), strategy=strategy)
    file, seen = io.BytesIO(), []
    torch.save(model.interactions[0].conv_tp, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is MaceConvolution
    model.interactions[0].conv_tp.register_forward_hook(lambda m, given, out: seen.append((given[0].shape, out.shape)))
    model(*arguments(training=False))
    assert type(model.interactions[0].conv_tp) is MaceConvolution
    assert [shapes[0][0] for shapes in seen] == [5], "called with nodes, not with edges"
    assert seen[0][1][0] == 5


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_a_converted_model_scripts(strategy: str) -> None:
    block, stock = convert(Potential(), strategy=strategy).interactions[0], Potential().interactions[0]
    torch.manual_seed(0)
    inputs = (torch.eye(3)[[0, 1, 2, 0]], torch.randn(4, 16), torch.rand(6, 1), torch.randn(6, 9))
    edges = torch.randint(4, (2, 6))
    wanted = block(*inputs, edges)
    stock.load_state_dict(block.state_dict())
    torch.testing.assert_close(stock(*inputs, edges), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(script(block)(*inputs, edges), wanted)


# --- symmetric contractions -----------------------------------------------------------------------------------------


def contracted(nodes: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(nodes, CHANNELS, 4, requires_grad=True)
    return x, torch.eye(ELEMENTS)[torch.randint(ELEMENTS, (nodes,))]


@needs_compiler
@pytest.mark.parametrize("flipped", [False, True])  # versions of e3nn differ in the sign of some couplings
def test_a_contraction_reads_the_weights_where_they_are(flipped: bool) -> None:
    module = SymmetricContraction(flipped)
    keys, weights = list(module.state_dict()), list(module.parameters())
    report = conversion_report(convert(module), prove=contracted())
    assert type(module) is MaceContraction
    assert all(d.relative < 1e-12 for d in report.proof.differences), report.proof
    assert "tpgen polynomial" in str(report)
    assert list(module.state_dict()) == keys
    assert all(a is b for a, b in zip(weights, module.parameters(), strict=True))
    wanted = module(*(given := contracted()))
    for other in (deepcopy(module), script(deepcopy(module)), restore(deepcopy(module))):
        torch.testing.assert_close(other(*given), wanted, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.filterwarnings("ignore:symmetric contractions run MACE's own code")
@pytest.mark.parametrize("change", [lambda y: 2 * y, lambda y: y + 0.5, lambda y: y.clone().requires_grad_()])
def test_elements_that_are_not_one_hot_go_the_way_of_mace(change) -> None:
    module, (x, y) = SymmetricContraction(), contracted()
    wanted = module(x, change(y))
    torch.testing.assert_close(convert(module)(x, change(y)), wanted)


@needs_compiler
def test_elements_that_need_a_gradient_are_told_once() -> None:
    notices._warn_once.cache_clear()
    module, (x, y) = convert(SymmetricContraction(), prove=contracted()), contracted()
    with pytest.warns(UserWarning, match="run MACE's own code: node_attrs need a gradient"):
        module(x, y.clone().requires_grad_())
    module(x, y.clone().requires_grad_())


@needs_compiler
def test_a_model_in_float32_is_proven_with_exact_couplings() -> None:
    module = SymmetricContraction().float()
    reports: list = []
    convert(module, prove=contracted(), report=reports.append)
    assert all(d.relative < 1e-12 for d in reports[0].proof.differences), reports[0].proof


@needs_compiler
def test_loaded_couplings_say_the_signs_anew() -> None:
    model, stock = nn.Sequential(SymmetricContraction()), nn.Sequential(SymmetricContraction(flipped=True))
    convert(model)
    wanted = stock[0](*(given := contracted()))
    model.load_state_dict(stock.state_dict(), strict=True)
    torch.testing.assert_close(model[0](*given), wanted, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        stock[0].contractions[0].U_matrix_2.add_(torch.rand_like(stock[0].contractions[0].U_matrix_2))
    with pytest.warns(UserWarning, match=r"^0 is computed by MACE's own code from now on: .*U_matrix_2: "):
        model.load_state_dict(stock.state_dict(), strict=True)
    torch.testing.assert_close(model[0](*given), stock[0](*given))
    assert conversion_report(model).replaced[0].now.startswith("MACE's own code")
    model.load_state_dict(nn.Sequential(SymmetricContraction()).state_dict(), strict=True)
    assert model[0]._tpgen_signs, "couplings that tpgen knows bring the kernel back"
    assert conversion_report(model).replaced[0].now.startswith("tpgen polynomial, kernel")


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_paths_of_another_basis_are_sums_of_ours(dtype: torch.dtype) -> None:
    """As of MACE where cuequivariance is installed: other couplings, as many or fewer, of the same products."""
    module = with_reduced_couplings(SymmetricContraction()).to(dtype)
    stock, keys = deepcopy(module), list(module.state_dict())
    reports: list = []
    convert(module, prove=contracted(), report=reports.append)
    assert type(module) is MaceContraction
    assert all(d.relative < 1e-12 for d in reports[0].proof.differences), reports[0].proof
    assert list(module.state_dict()) == keys
    x, y = (z.to(dtype) for z in contracted())
    wanted = stock(x, y)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    for one in (module, deepcopy(module), script(deepcopy(module)), restore(deepcopy(module))):
        torch.testing.assert_close(one(x, y), wanted, **close)
    gradients = [torch.autograd.grad(m(x, y).square().sum(), list(m.parameters())) for m in (module, stock)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **close)


def with_reduced_couplings(module: nn.Module) -> nn.Module:
    """An orthonormal basis of what the couplings give between equal tensors, each path a sum of several."""
    for contraction in module.contractions:
        for degree in range(contraction.correlation, 0, -1):
            held = contraction.get_buffer(f"U_matrix_{degree}")
            whole = held.double() if held.dim() == degree + 2 else held.double().unsqueeze(0)
            columns = average_over_input_permutations(whole).flatten(0, -2)
            left, values, _ = torch.linalg.svd(columns, full_matrices=False)
            basis = left[:, values > 1e-9 * values.max()]
            setattr(contraction, f"U_matrix_{degree}", basis.unflatten(0, held.shape[:-1]).to(held))
            weight = contraction.weights_max if degree == contraction.correlation else contraction.weights[-degree]
            weight.data = torch.randn(weight.shape[0], basis.shape[1], weight.shape[2]).to(weight)
    return module


@needs_compiler
def test_children_that_are_pruned_afterwards_are_called() -> None:
    module, given = SymmetricContraction(), contracted()
    stock = deepcopy(module)
    convert(module)
    for each in (module, stock):
        prune.l1_unstructured(each.contractions[0], "weights_max", 0.5)
        with torch.no_grad():
            each.contractions[0].weights_max_orig.mul_(3)
    assert torch.equal(module(*given), stock(*given))


@needs_compiler
def test_a_contraction_in_half_precision_goes_the_way_of_mace() -> None:
    module, (x, y) = SymmetricContraction(), contracted()
    wanted = deepcopy(module).half()(x.half(), y.half())
    convert(module).half()
    with pytest.warns(UserWarning, match=r"run MACE's own code: kernels take no torch.float16 on cpu"):
        assert torch.equal(module(x.half(), y.half()), wanted)


@needs_compiler
def test_a_compiled_contraction_asks_for_one_hot_rows() -> None:
    module, (x, y) = SymmetricContraction(), contracted()
    wanted = module(x, y)
    compiled = torch.compile(convert(module), backend="aot_eager")
    torch.testing.assert_close(compiled(x, y), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(RuntimeError, match="a compiled MACE takes one-hot node_attrs alone"):
        compiled(x, y + 0.5)


@needs_compiler
def test_a_contraction_follows_the_strategy() -> None:
    assert type(convert(SymmetricContraction(), strategy="kernel")) is MaceContraction
    with pytest.raises(TpgenError, match=r"for kernels alone, and strategy='grouped' was asked for"):
        convert(SymmetricContraction(), strategy="grouped")


def _hook_inside(module: nn.Module) -> None:
    module.contractions[0].register_forward_hook(lambda *_: None)


def _replace(module: nn.Module) -> None:
    module.forward = module.forward


def _derive_inside(module: nn.Module) -> None:
    child = module.contractions[0]
    child.__class__ = type("Mine", (type(child),), {})


def _scale(factor: float, module: nn.Module) -> None:
    module.contractions[0].U_matrix_2.mul_(factor)


def _couple(size: float, module: nn.Module) -> None:
    held = module.contractions[0].U_matrix_2
    held.copy_(size * torch.rand_like(held))


@pytest.mark.parametrize(
    "change, why",
    [
        (_hook_inside, "of hooks inside it, which would no longer run"),
        (_replace, "its forward is replaced on the instance"),
        (lambda module: _replace(module.contractions[1]), "its forward is replaced on the instance"),
        (_derive_inside, "of a child that is a tests.Mine, whose own code a swap would skip"),
        (partial(_scale, 1e6), r".*U_matrix_2: couplings are 1e\+06 times tpgen's"),
        (partial(_scale, 1e-6), ".*U_matrix_2: couplings are 1e-06 times tpgen's"),
        (partial(_couple, 1.0), "tpgen cannot plan it: contractions.0.U_matrix_2: the checkpoint's couplings are none"),
        (partial(_couple, 1e-6), ".*U_matrix_2: the checkpoint's couplings are none of"),
        (nn.Module.bfloat16, r"of rounded couplings: convert it in float32, then \.to\(torch\.bfloat16\)"),
        (nn.Module.half, r"of rounded couplings: convert it in float32, then \.to\(torch\.float16\)"),
        (lambda module: module.to("meta"), "on the device meta, where its couplings have no numbers: give it memory"),
    ],
)
def test_a_contraction_that_somebody_changed_stays(change, why: str) -> None:
    module = SymmetricContraction()
    change(module)
    with pytest.raises(TpgenError, match=f"nothing that can be converted: {why}"):
        convert(module)


def test_contractions_stay_where_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tpgen.networks.conversion.obstacles.why_kernel_unsupported", lambda *_, **__: "no compiler here"
    )
    with pytest.raises(TpgenError, match="nothing that can be converted: without a kernel: no compiler here"):
        convert(SymmetricContraction())


def test_a_product_that_must_stay_leaves_its_block_alone() -> None:
    model = Potential()
    product = model.interactions[0].conv_tp
    product.forward = product.forward
    with pytest.warns(UserWarning, match=r"'interactions.0.conv_tp': its forward is replaced on the instance"):
        convert(model, strategy="grouped")
    assert not hasattr(model.interactions[0], "conv_fusion")
    assert hasattr(model.interactions[1], "conv_fusion")
    model(*arguments())


def test_a_block_and_its_product_are_restored_together() -> None:
    model = convert(Potential(), strategy="grouped")
    wanted = model(*arguments())
    with pytest.raises(TpgenError, match=r"MaceConvolution was converted together with the module that holds it"):
        restore(model.interactions[0].conv_tp)
    torch.testing.assert_close(model(*arguments()), wanted)
    restore(model.interactions[0])
    assert not hasattr(model.interactions[0], "conv_fusion")
    torch.testing.assert_close(model(*arguments()), wanted, rtol=1e-4, atol=1e-4)


def _hook(model: Potential) -> None:
    mask = torch.rand(17, 1)
    model.interactions[0].conv_tp.register_forward_pre_hook(lambda _, given: (given[0] * mask, *given[1:]))


def _share(model: Potential) -> None:
    model.interactions[1].conv_tp = model.interactions[0].conv_tp


def _replace_block(model: Potential) -> None:
    forward = model.interactions[0].forward
    model.interactions[0].forward = lambda *given: 2 * forward(*given)


@pytest.mark.parametrize(
    "change, why",
    [
        (_hook, "hooks on conv_tp, which see edges"),
        (_share, "of a conv_tp that stands in several places"),
        (_replace_block, "its forward is replaced on the instance"),
    ],
)
def test_a_block_that_somebody_changed_gathers_as_before(change, why: str) -> None:
    model = Potential()
    change(model)
    wanted = model(*arguments())
    with pytest.warns(UserWarning, match=rf"'interactions.0': {why}"):
        convert(model, strategy="grouped")
    assert not hasattr(model.interactions[0], "conv_fusion")
    assert type(model.interactions[0].conv_tp) is ConvertedTensorProduct, "its product alone is converted"
    torch.testing.assert_close(model(*arguments()), wanted, rtol=1e-4, atol=1e-4)
    assert any(k.why.startswith(why) for k in conversion_report(model).kept)


def test_a_version_without_fused_calls_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self, node_attrs, node_feats, lengths, sh, edge_index):
        each = self.conv_tp(node_feats[edge_index[0]], sh, self.conv_tp_weights(lengths))
        message = torch.zeros(len(node_feats), each.shape[1]).index_add(0, edge_index[1], each)
        return self.linear(message) + self.skip_tp(node_feats, node_attrs)

    monkeypatch.setattr(Interaction, "forward", forward)
    model = Potential()
    wanted = model(*arguments())
    with pytest.warns(
        UserWarning, match=r"'interactions.0': a block without conv_fusion, .*newer versions of mace-torch"
    ):
        convert(model, strategy="grouped")
    assert type(model.interactions[0].conv_tp) is ConvertedTensorProduct
    torch.testing.assert_close(model(*arguments()), wanted, rtol=1e-4, atol=1e-4)


def test_other_back_ends_of_mace_are_left_alone() -> None:
    model = Potential()
    model.interactions[0].conv_fusion = "atomic"
    convert(model, strategy="grouped")
    assert not isinstance(model.interactions[0].conv_tp, MaceConvolution)
