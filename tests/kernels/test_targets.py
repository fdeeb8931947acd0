"""Targets agree: generated C++ with the interpreter, on every mode; a row of the table is all that a device needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.interpreter import INTERPRETER, TARGETS
from tests.kernels.plans import VARIANTS, call, mode_plan, operands
from tests.machine import needs_compiler
from tpgen.base.errors import InputError
from tpgen.form.reference import reference_product
from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.placement import channel, planning
from tpgen.kernels.placement.planning import CHANNEL_LETTER
from tpgen.kernels.rows import DESTINATIONS, EDGES, SOURCES, RowIndex
from tpgen.kernels.runtime import targets
from tpgen.kernels.runtime.call import make_product_call
from tpgen.kernels.runtime.description import ProductDescription
from tpgen.kernels.runtime.ops import describe, kernel_product, why_kernel_unsupported
from tpgen.kernels.runtime.runtime import Kernels
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, target_of
from tpgen.planner.presets import channelwise

ROWS, NODES = 11, 4
HERE = ("cpp", "interpreter")  # what runs without a GPU; tests/kernels/cuda holds that to the same
OPENED = (("out",), ("x1", "x2", "w"), ("x2", "w"))


Indices = tuple[RowIndex, ...]


def edges() -> Indices:
    src, dst = torch.randint(NODES, (2, ROWS))
    return RowIndex(SOURCES, src, NODES), RowIndex(DESTINATIONS, dst, NODES)


def run(
    target: str, description: ProductDescription, opened: tuple[str, ...], given: dict, gather: Indices = ()
) -> list:
    """The open slots, by one target."""
    results = [torch.empty(given[name].shape, dtype=torch.float64) for name in opened]
    spec = KernelSpec(description, make_product_call(opened), torch.float64, tuple(index.rule for index in gather))
    taken = [given[slot.operand] for slot in spec.call.given]
    assert TARGETS[target].load(spec)(KernelCall(taken, results, ROWS, 1, gather)) == 0
    return results


@needs_compiler
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("mode, weighted, shared", VARIANTS)
def test_targets_agree(mode: str, weighted: bool, shared: bool, gathered: bool) -> None:
    description = ProductDescription(mode_plan(mode, weighted, shared, 5, 3), ("mul_ir",) * 3)
    given = operands(description.plan, ROWS)
    gather = edges() if gathered else ()
    if gathered:
        given |= {name: given[name][:NODES].clone() for name in ("x1", "out")}
    for opened in OPENED:
        found = [run(target, description, opened, given, gather) for target in HERE]
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@needs_compiler
@pytest.mark.parametrize("mode, weighted, shared", [v for v in VARIANTS if v[0] in CHANNEL_LETTER])
def test_copies_that_could_be_channels_run_over_rows_too(
    mode: str, weighted: bool, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_make_channel_schedule_if_it_fits", lambda *_: None)
    planning.plan_schedule.cache_clear()
    try:
        test_targets_agree(mode, weighted, shared, gathered=False)
    finally:
        planning.plan_schedule.cache_clear()


@needs_compiler
def test_many_paths_compiled_in_parts_agree() -> None:
    degrees = ["0e", "1o", "2e", "3o", "4e"]
    wide, narrow = "+".join(f"8x{ir}" for ir in degrees), "+".join(f"1x{ir}" for ir in degrees)
    description = ProductDescription(channelwise(wide, narrow, wide, shared_weights=False), ("mul_ir",) * 3)
    assert "noinline" in description.source(make_product_call(("x1", "x2", "w")), torch.float64).text
    given = operands(description.plan, ROWS)
    found = [run(target, description, ("x1", "x2", "w"), given) for target in HERE]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@needs_compiler
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_groups_of_rows_agree(shared: bool, gathered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_MANY", 3)
    monkeypatch.setattr(channel, "_GROUP", 3)  # more than one of them in a tile, and a rest
    wide = "8x0e+9x1o+8x2e"
    description = ProductDescription(channelwise(wide, "0e+1o", wide, shared_weights=shared), ("mul_ir",) * 3)
    given = operands(description.plan, ROWS)
    gather = edges() if gathered else ()
    if gathered:
        given |= {name: given[name][:NODES].clone() for name in ("x1", "out")}
    for opened in OPENED:
        assert (
            "static void row_group"
            in description.source(make_product_call(opened), torch.float64, EDGES if gathered else ()).text
        )
        found = [run(target, description, opened, given, gather) for target in HERE]
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose tensors on the CPU go to the interpreter."""
    monkeypatch.setitem(KERNEL_TARGETS, "cpp", INTERPRETER)
    monkeypatch.setenv("TPGEN_CXX", "none")
    target_of.cache_clear()
    yield
    target_of.cache_clear()


@pytest.mark.usefixtures("_interpreted")
def test_a_row_is_all_that_a_device_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = channelwise("3x0e+2x1o", "0e+1o", "0e+1o", shared_weights=False)
    monkeypatch.setattr("tpgen.kernels.runtime.runtime.kernels_of", Kernels)
    monkeypatch.setattr("tpgen.kernels.runtime.forms.kernels_of", Kernels)
    assert why_kernel_unsupported(plan) is None
    given = operands(plan, 3)
    x1, x2, w = (given[name].requires_grad_() for name in ("x1", "x2", "w"))

    def product(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        return kernel_product(x1, x2, w, describe(plan))

    torch.testing.assert_close(product(x1, x2, w), reference_product(plan, x1, x2, w), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(product, (x1, x2, w))


@needs_compiler
def test_what_is_asked_again_is_known_and_what_is_missing_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, made = channelwise("7x0e+2x1o", "0e+1o", "0e+1o"), []
    describe_plan = targets.description_of_plan
    monkeypatch.setattr(targets, "description_of_plan", lambda *given: made.append(given) or describe_plan(*given))
    assert why_kernel_unsupported(plan) is None
    first = len(made)
    assert why_kernel_unsupported(channelwise("7x0e+2x1o", "0e+1o", "0e+1o")) is None
    assert len(made) == first
    with monkeypatch.context() as patch:
        patch.setenv("TPGEN_CXX", "none")
        assert str(why_kernel_unsupported(plan)).endswith("TPGEN_CXX=none forbids one")
    assert why_kernel_unsupported(plan) is None
    assert why_kernel_unsupported(plan, "ir_mul", torch.float64) is None
    assert len(made) > first


def test_a_device_without_a_row_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = channelwise("8x0e", "0e", "0e")
    assert why_kernel_unsupported(plan, device="meta") == f"kernels run on {targets.devices()}, not on meta"
    x1, x2, w = (torch.ones(2, n) for n in (8, 1, 8))
    product = Kernels(describe(plan))
    for module in ("runtime", "signature"):
        monkeypatch.setattr(f"tpgen.kernels.runtime.{module}.target_of", lambda device: None)
    with pytest.raises(InputError, match=r"x1.*CPU or CUDA GPUs"):
        product.check_tensors(call("out", x1, x2, w))


def test_operands_on_two_devices_are_refused() -> None:
    plan = channelwise("8x0e", "0e", "0e", shared_weights=False)
    product = Kernels(describe(plan))
    tensors = [torch.ones(2, n) for n in (8, 1, plan.weight_numel)]
    tensors[1] = tensors[1].to("meta")
    with pytest.raises(InputError, match="x2 must be on"):
        product.run(call("out", *tensors))
