"""Tables of a kernel's text hold every number that stands in them, of products as large as fit a block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kernels.cuda.named import BACKWARD, FORWARD, Kernel
from tests.kernels.cuda.test_products import Case, check
from tests.kernels.plans import forward_spec
from tests.machine import needs_compiler
from tpgen.base.errors import EmitError
from tpgen.form.form import form_of
from tpgen.kernels.cuda import steps
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.cuda.tables import LONG
from tpgen.kernels.cuda.target import kernel_obstacle
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.product import make_plan


def wide(channels: int) -> Plan:
    return make_plan(f"{channels}x0e", "0e", f"{channels}x0e", [(0, 0, 0, "uvu", True)], shared_weights=False)


def many(segments: int) -> Plan:
    """Segments that share nothing: each is a group of its own."""
    irreps = "+".join(["3x0e"] * segments)
    paths = [(n, 0, n, "uvu", True) for n in range(segments)]
    return make_plan(irreps, "0e", irreps, paths, shared_weights=False)


def far() -> Plan:
    """The only segment of x2 that a path reads begins behind 70,000 numbers."""
    return make_plan("2x1o", "70000x0e+1o", "2x0e", [(0, 1, 0, "uvu", False)])


CASES = {
    "chunks past 255": Case(wide(8_224), "mul_ir", "float32", ("out",), 2),
    "lanes without a channel": Case(
        channelwise("100x0e+100x1o", "0e+1o", "0e+1o", shared_weights=False), "mul_ir", "float32", BACKWARD, 2
    ),
    "groups past 255": Case(many(300), "mul_ir", "float32", BACKWARD, 2),
    "places past 65,535": Case(far(), "mul_ir", "bfloat16", ("out",), 2, rows=1),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_large_products_agree_with_the_definition(name: str, tmp_path: Path) -> None:
    check([CASES[name]], tmp_path)


@pytest.mark.parametrize("opened", [FORWARD, BACKWARD])
def test_long_tables_stand_as_they_are_read(opened: tuple[str, ...]) -> None:
    """No entry is read first behind a later one; gradients ask for four where one of them is needed."""
    text = Kernel("roofline-636", opened, indexed=True).source(80).text
    group = text[text.index("void group_0") : text.index("struct Unit")]
    used = [int(n) for n in re.findall(r"\bt(\d+)\.[xyzw]", group)]
    first = list(dict.fromkeys(used))
    assert len(first) > LONG // 4
    assert first == sorted(first)
    asked = group.index(f"const quad t{first[-1]} =")
    assert (group[:asked].count(".x *") > 4) == (opened == BACKWARD)


def test_more_parts_than_constant_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    form = form_of(wide(9_000), "mul_ir")
    schedule = plan_schedule(form, cuda_target("float32"))
    placement = place_cuda(schedule, ("out",), chip_of(90))
    assert placement.constants == 6 * placement.warps * -(-282 // placement.warps) <= steps.CONSTANTS
    monkeypatch.setattr(steps, "CONSTANTS", 6 * 282 - 1)  # less than the table of any number of warps
    place_cuda.cache_clear()
    with pytest.raises(EmitError, match=r"is 282 parts, whose table takes \d+ bytes of constant memory"):
        place_cuda(schedule, ("out",), chip_of(90))
    assert "use strategy='grouped'" in str(kernel_obstacle(forward_spec(wide(9_000)), chip_of(90)))
    place_cuda.cache_clear()
