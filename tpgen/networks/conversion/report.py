"""Reports of conversions."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass

from tpgen.base.notebook import Shown
from tpgen.base.text import table
from tpgen.networks.conversion.proof import Proof, Times


@dataclass(frozen=True)
class Replaced:
    """Report row of a converted module: names, class before, code now."""

    paths: tuple[str, ...]
    was: str
    now: str


@dataclass(frozen=True)
class Stayed:
    """Report row of an unconverted module: names, class, reason."""

    paths: tuple[str, ...]
    was: str
    why: str


@dataclass(frozen=True)
class Conversion(Shown):
    """Report of a conversion: converted modules, unconverted modules, proof, times.

    >>> print(Conversion("Net", (Replaced(("a", "b"), "e3nn.TensorProduct", "tpgen kernel"),), ()))
    Net: 1 module computes with tpgen, 0 stay as they are
    <BLANKLINE>
    module  was                 computes with
    a = b   e3nn.TensorProduct  tpgen kernel
    """

    network: str
    replaced: tuple[Replaced, ...]
    kept: tuple[Stayed, ...]
    proof: Proof | None = None
    times: Times | None = None
    possible: tuple[Replaced, ...] = ()  # what `convert` would replace; none right after it
    own: tuple[tuple[str, ...], ...] = ()  # all names of each module that was written with tpgen
    functions: tuple[str, ...] = ()  # a sentence for each function of e3nn that the network calls

    def to_json(self) -> str:
        """The report as JSON; null without proof or times."""
        return json.dumps(asdict(self), indent=1)

    def __str__(self) -> str:
        done, kept = len(self.replaced), len(self.kept)
        own = f"{len(self.own)} {'is' if len(self.own) == 1 else 'are'} tpgen's own, " if self.own else ""
        can = f"{len(self.possible)} can be converted, " if self.possible else ""
        head = (
            f"{self.network}: {done} module{'s' * (done != 1)} compute{'s' * (done == 1)} with tpgen, {own}{can}"
            f"{kept} stay{'s' * (kept == 1)} as {'it is' if kept == 1 else 'they are'}"
        )
        parts = [head]
        for found, columns in ((self.replaced, ("was", "computes with")), (self.possible, ("is", "can compute with"))):
            if found:
                texts, shared = _factor_out_repeated_remarks([r.now for r in found])
                rows = [(_join_names(r.paths), r.was, text) for r, text in zip(found, texts, strict=True)]
                parts += [table([("module", *columns), *rows]), *(["\n".join(shared)] if shared else [])]
        if self.kept:
            kept_rows = [(_join_names(k.paths), k.was, k.why) for k in self.kept]
            parts.append(table([("module", "is", "stays, because it is"), *kept_rows]))
        parts += ["\n".join(self.functions)] if self.functions else []
        parts += [str(compared) for compared in (self.proof, self.times) if compared]
        return "\n\n".join(parts)


def _factor_out_repeated_remarks(texts: list[str]) -> tuple[list[str], list[str]]:
    """Say a remark, "name (remark)", of three texts or more once.

    >>> _factor_out_repeated_remarks(["kernel (made)", "kernel (made)", "kernel (made); by row", "kernel (fused)"])
    (['kernel', 'kernel', 'kernel; by row', 'kernel (fused)'], ['kernel: made'])
    """
    shared: dict[str, str] = {}
    for (name, remark), count in Counter(m.groups() for text in texts if (m := _REMARK.match(text))).most_common():
        if count > 2:
            shared.setdefault(name, remark)
    for name, remark in shared.items():
        whole = f"{name} ({remark})"
        texts = [name + text[len(whole) :] if text.startswith(whole) else text for text in texts]
    return texts, [f"{name}: {remark}" for name, remark in shared.items()]


_REMARK = re.compile(r"([^(;:]+) \(([^()]+)\)")


def _join_names(module_paths: tuple[str, ...]) -> str:
    return " = ".join(path or "(the network itself)" for path in module_paths)
