"""The emulator can fail: each barrier, fence and wait is taken out of a kernel's PTX in turn, and is missed, but for
those that something else stands for.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.emulator.kernels import Emulated
from tests.kernels.cuda.emulator.memory import Fault
from tests.kernels.cuda.test_products import Case, edges
from tests.kernels.plans import mode_plan
from tests.machine import needs_nvrtc

WAITS = {
    "barrier": r"\bbar\.sync\s+0;",
    "barrier of a warp": r"bar\.warp\.sync[^;]*;",
    "proxy fence": r"fence\.proxy\.async[^;]*;",
    "fence of a barrier": r"fence\.mbarrier_init[^;]*;",
    "making of a barrier": r"mbarrier\.init[^;]*;",
    "expected bytes": r"mbarrier\.arrive[^;]*;",
    "drain": r"cp\.async\.bulk\.wait_group[^;]*;",
    "wait for groups": r"cp\.async\.wait_group[^;]*;",
    "end of a group": r"cp\.async\.commit_group;",
    "end of a group of the engine": r"cp\.async\.bulk\.commit_group;",
}
# What nobody misses, of rows (False) and edges (True) on sm_90 (2) and sm_80 (1):
# - fences of a barrier, since a proxy fence follows each; the first proxy fence, since one follows the second barrier;
# - one of the two barriers between what a step delivers and what the next fetches, and on edges those around the sum of
#   a node, of which each stands for the other;
# - barriers of a warp in tables and sums that only one of its lanes is busy with;
# - what is said of the copies of a last step that is not full, where all of its rows are short.
HARMLESS = {
    (False, 2): {
        "barrier": 2,
        "barrier of a warp": 3,
        "proxy fence": 1,
        "fence of a barrier": 2,
        "expected bytes": 1,
        "drain": 1,
        "end of a group": 1,
    },
    (False, 1): {"barrier": 2, "barrier of a warp": 3},
    (True, 2): {"barrier": 4, "proxy fence": 1, "fence of a barrier": 2},
    (True, 1): {"barrier": 3},
}


def check(indexed: bool, copies: int) -> None:
    torch.manual_seed(0)
    case = Case(mode_plan("uvu", True, False, 40, 1), "mul_ir", "float32", ("x1", "x2", "w"), copies, indexed)
    whole, given = Emulated(case.source), case.operands
    gather = edges() if indexed else None
    right, unmissed = whole.run(given, gather, blocks=1), Counter[str]()
    for name, pattern in WAITS.items():
        for found in re.finditer(pattern, whole.ptx):
            broken = Emulated(case.source, whole.ptx[: found.start()] + whole.ptx[found.end() :])
            unmissed[name] += _same(broken, right, given, gather)
    assert +unmissed == Counter(HARMLESS[indexed, copies]), unmissed


def _same(
    broken: Emulated, right: dict[str, Tensor], given: dict[str, Tensor], gather: tuple[Tensor, Tensor] | None
) -> bool:
    try:
        found = broken.run(given, gather, blocks=1, seed=1)
    except Fault:
        return False
    return all(torch.equal(found[name], x) for name, x in right.items())


@needs_nvrtc
def test_what_is_taken_out_is_missed() -> None:
    check(indexed=True, copies=2)


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("indexed, copies", [(False, 2), (False, 1), (True, 1)])
def test_so_it_is_elsewhere(indexed: bool, copies: int) -> None:
    check(indexed, copies)
