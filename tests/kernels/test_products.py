"""Generated kernels agree with the slow definition, in every mode, layout and dtype."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from tests.cases import random_arguments
from tests.forms import reference_form
from tests.kernels.plans import VARIANTS, call, mode_plan, operands, slots_of
from tpgen.form.form import Layout, form_of
from tpgen.form.reference import reference_product
from tpgen.kernels.build.compiler import cpu_target
from tpgen.kernels.placement.planning import CHANNEL_LETTER, plan_schedule
from tpgen.kernels.placement.values import Target
from tpgen.kernels.runtime.description import ProductDescription
from tpgen.kernels.runtime.ops import describe, kernel_product
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected, tensor_square
from tpgen.planner.product import make_plan

pytestmark = pytest.mark.usefixtures("unoptimised")

# multiplicities and layout: few copies (vectors over rows), many (vectors over channels)
SIZES: dict[str, tuple[int, int, Layout]] = {
    "few": (3, 1, ("ir_mul", "mul_ir", "ir_mul")),
    "odd": (17, 3, "mul_ir"),
    "many": (40, 2, "ir_mul"),
}


def errors(plan: Plan, layout: Layout, rows: int, dtype: torch.dtype, mask: int) -> dict[str, float]:
    """Relative error of every open slot of a mask against the definition in float64."""
    given = operands(plan, rows, dtype)
    exact = {name: x.double() for name, x in given.items()}
    product, form = kernels_of(describe(plan, layout)), form_of(plan, layout)
    results = product.run(call(slots_of(mask), *given.values()))
    found = {}
    for name, value in zip(slots_of(mask).split(), results, strict=True):
        if not rows:
            assert value.abs().sum() == 0.0
        elif value.numel():
            wanted = reference_form(form.open(name), {o: x for o, x in exact.items() if o != name}, rows)
            found[name] = float((value.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode, weighted, shared", VARIANTS)
def test_forward_and_backward_agree(mode: str, weighted: bool, shared: bool, size: str) -> None:
    m1, m2, layout = SIZES[size]
    if mode == "uvv":
        m1, m2 = m2, m1
    plan = mode_plan(mode, weighted, shared, m1, m2)
    for mask in (8, 7 if weighted else 3):
        for name, error in errors(plan, layout, 21, torch.float64, mask).items():
            assert error < 1e-12, (mask, name)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 3e-6)])
@pytest.mark.parametrize("mul", [3, 16, 21])  # no whole vector of copies, one, and one with a rest
def test_copies_may_mix_before_their_coupling(mul: int, dtype: torch.dtype, tolerance: float) -> None:
    plan = fully_connected("5x0e+3x1o+2x2e", "0e+1o+2e", f"{mul}x0e+{mul}x1o+2x2e", shared_weights=True)
    for layout in ("mul_ir", "ir_mul"):
        for mask in range(1, 16):
            assert max(errors(plan, layout, 37, dtype, mask).values()) < tolerance, (layout, mask)


@pytest.mark.parametrize("mask", range(1, 16))
@pytest.mark.parametrize("mode, m1, m2", [("uvu", 17, 2), ("uvw", 3, 2), ("uuu", 9, 9)])
def test_any_set_of_slots_may_be_open(mode: str, m1: int, m2: int, mask: int) -> None:
    for name, error in errors(mode_plan(mode, True, False, m1, m2), "mul_ir", 9, torch.float64, mask).items():
        assert error < 1e-12, name


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_lower_precision(layout: str, dtype: torch.dtype, tolerance: float) -> None:
    for plan in (channelwise("40x0e+17x1o", "0e+1o", "0e+1o+2e"), fully_connected("3x0e+2x1o", "0e+1o", "4x0e+3x1o")):
        for mask in (8, 7):
            assert max(errors(plan, layout, 37, dtype, mask).values()) < tolerance


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 70])
def test_any_number_of_rows(rows: int) -> None:
    for plan in (
        channelwise("16x0e+16x1o", "0e+1o", "1o", shared_weights=True),
        fully_connected("20x0e", "20x0e", "20x0e"),
        fully_connected("16x0e+24x1o", "4x0e", "16x0e+24x1o"),  # weights in whole vectors
        fully_connected("5x0e+40x1o", "0e+1o", "3x0e+7x1o", shared_weights=False),  # and in parts of vectors
    ):
        for mask in (8, 7):
            for error in errors(plan, "mul_ir", rows, torch.float64, mask).values():
                assert error < 1e-12


@pytest.mark.parametrize("copies", ["2x1o + 8x0e", "5x0e + 4x1o", "7x1o"])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_more_copies_than_components_beside_the_channels(layout: str, copies: str) -> None:
    plan = channelwise("16x0e + 16x1o", copies, "0e + 1o + 1e + 2e")
    text = describe(plan, layout)
    assert str(kernels_of(text).description.schedule(torch.float64)).startswith("channel")
    for mask in (8, 7, 2, 4):
        assert max(errors(plan, layout, 70, torch.float64, mask).values()) < 1e-12
    # nothing beyond the operands is read: rows before and after are NaN
    given = operands(plan, 5)
    fenced = {name: torch.full((x.shape[0] + 2, *x.shape[1:]), torch.nan, dtype=x.dtype) for name, x in given.items()}
    for name, x in given.items():
        fenced[name][1:-1] = x
    inside = {name: x[1:-1] for name, x in fenced.items()}
    for mask in (8, 7):
        results = kernels_of(text).run(call(slots_of(mask), *inside.values()))
        assert all(x.isfinite().all() for x in results)


@pytest.mark.parametrize("degree", [4, 6])
def test_high_degrees(degree: int) -> None:
    plan = make_plan(f"17x{degree}e", f"{degree}e", f"17x{degree}e", [(0, 0, 0, "uvu", True)], shared_weights=False)
    for mask in (8, 7):
        assert max(errors(plan, "mul_ir", 5, torch.float64, mask).values()) < 1e-12


def test_paths_of_one_square_mix_modes() -> None:
    for plan in (tensor_square("5x0e+4x1o"), tensor_square("5x0e+4x1o", "3x0e+2x2e")):
        assert max(errors(plan, "mul_ir", 9, torch.float64, 7).values()) < 1e-12


@pytest.mark.parametrize("seed", range(12))
def test_random_products_of_mixed_modes(seed: int) -> None:
    # every other one on the channel schedule: its modes alone, and copies enough to fill vectors
    arguments, keywords = random_arguments(seed, CHANNEL_LETTER, 4) if seed % 2 else random_arguments(seed)
    rng, plan = random.Random(seed), make_plan(*arguments, **keywords)
    layout = rng.choice(["mul_ir", "ir_mul", ("ir_mul", "mul_ir", "ir_mul")])
    found = errors(plan, layout, rng.choice([1, 7, 18]), torch.float64, rng.randint(1, 15))
    assert all(error < 1e-11 for error in found.values()), found


def test_schedules_are_chosen_by_shape() -> None:
    wide, small = channelwise("64x0e+64x1o", "0e+1o", "0e+1o"), fully_connected("2x0e+1o", "0e+1o", "2x1o")
    chosen = [plan_schedule(form_of(plan), cpu_target(torch.float32)).name for plan in (wide, small)]
    assert chosen == ["channel", "batch"]


def test_operands_of_any_stride_and_dtype() -> None:
    plan = channelwise("16x0e+16x1o", "0e+1o", "0e+1o", shared_weights=True)
    x1, x2, w, _ = operands(plan, 6, torch.float32).values()
    wanted = reference_product(plan, x1.double(), x2[:1].expand(6, -1).double(), w.double())
    strided = torch.stack([x1, x1], dim=2)[:, :, 0]
    assert not strided.is_contiguous()
    result = kernel_product(strided, x2[:1].expand(6, -1).double(), w, describe(plan))
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, wanted)


def test_autocast_leaves_the_dtype_alone() -> None:
    plan = channelwise("16x0e", "0e+1o", "0e+1o", shared_weights=True)
    x1, x2, w, _ = operands(plan, 6, torch.float32).values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert kernel_product(x1, x2, w, describe(plan)).dtype == torch.float32


@pytest.mark.parametrize("irreps", ["32x0e+32x1o", "2x0e+1o"])
def test_nan_and_infinity_stay_in_their_row(irreps: str) -> None:
    plan = channelwise(irreps, "0e+1o", "0e+1o")
    x1, x2, w, _ = operands(plan, 20, torch.float32).values()
    x1[3], x2[5] = float("nan"), float("inf")
    bad = (~torch.isfinite(kernel_product(x1, x2, w, describe(plan)))).any(dim=1)
    assert bad.nonzero().flatten().tolist() == [3, 5]


def test_denormals_survive_a_loaded_kernel() -> None:
    plan = channelwise("16x0e", "0e", "0e", shared_weights=True)
    kernel_product(*list(operands(plan, 6, torch.float32).values())[:3], describe(plan))
    assert float(torch.tensor(1e-40) * 1.0) > 0.0


def test_results_do_not_depend_on_threads() -> None:
    plans = (
        channelwise("32x0e+32x1o", "0e+1o", "0e+1o", shared_weights=True),
        fully_connected("8x0e+4x1o", "0e+1o", "8x0e+4x1o"),
    )
    for plan in plans:
        given = operands(plan, 3000, torch.float32)
        product = kernels_of(describe(plan))
        assert identical(*(on_threads(n, lambda: all_slots(product, given)) for n in (1, 2)))  # noqa: B023


def all_slots(product, given: dict[str, Tensor]) -> list[Tensor]:
    return product.run(call(slots_of(15), *given.values()))


def on_threads(threads: int, compute) -> list[Tensor]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return compute()
    finally:
        torch.set_num_threads(before)


def identical(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_schedule_prints_what_it_does() -> None:
    plan = channelwise("64x0e+64x1o", "0e+1o", "0e+1o")
    text = str(ProductDescription(plan, ("mul_ir",) * 3).schedule(torch.float32))
    assert text.startswith("channel schedule:")
    assert "path 0: 64x0e x 1x0e -> 64x0e (uvu)" in text


@pytest.mark.parametrize(
    "dtype, lanes", [(torch.float64, 2), (torch.float64, 4), (torch.float32, 4), (torch.float32, 8)]
)
def test_narrower_vectors(dtype: torch.dtype, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Target(str(dtype).removeprefix("torch."), lanes, 16)
    monkeypatch.setattr("tpgen.kernels.runtime.description.cpu_target", lambda _: machine)
    kernels_of.cache_clear()
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    for plan in (channelwise("9x0e+8x1o+3x2e", "0e+1o", "0e+1o"), fully_connected("9x0e+3x1o", "0e+1o", "5x0e+7x1o")):
        for mask in (8, 7):
            assert max(errors(plan, "mul_ir", 11, dtype, mask).values()) < tolerance
    kernels_of.cache_clear()
