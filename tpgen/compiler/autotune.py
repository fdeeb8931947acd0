"""``strategy="auto"``: which strategy a product is written with, and why."""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.emitter.strategies import STRATEGIES
from tpgen.errors import EmitError, unknown
from tpgen.planner.plan import Plan

# Backends that fuse: they turn scalar multiply-adds into one loop, where eager execution pays for each.
_FUSING = ("inductor",)


@dataclass(frozen=True)
class Choice:
    """A strategy and the reason for it, in words."""

    strategy: str
    reason: str

    def __str__(self) -> str:
        return f"{self.strategy} ({self.reason})"


def choose_strategy(plan: Plan, strategy: str, backend: str) -> Choice:
    """The strategy to write a plan with; ``auto`` is decided here, any other name is kept.

    >>> from tpgen.planner.presets import channelwise
    >>> str(choose_strategy(channelwise("8x1o", "1o", "1o+1e"), "auto", "inductor"))
    'unrolled (inductor fuses unrolled couplings into one loop)'
    """
    if strategy != "auto":
        if strategy not in STRATEGIES:
            raise EmitError(unknown("strategy", strategy, (*STRATEGIES, "auto")))
        return Choice(strategy, "asked for")
    if backend not in _FUSING:
        return Choice("grouped", f"few large operations, as {backend} runs them one by one")
    if any(path.mode.mixing for path in plan.paths):
        return Choice("grouped", "weights mix copies, which is matrix products")
    return Choice("unrolled", f"{backend} fuses unrolled couplings into one loop")
