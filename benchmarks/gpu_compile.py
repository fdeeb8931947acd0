"""How long NVRTC takes for the kernels of the named problems, and what registers they take; needs no GPU.

`make gpu` writes these rows down; `python -m benchmarks.gpu_compile` prints the table of docs/gpu.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from tpgen.base.text import table
from tpgen.form.form import form_of
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.cuda.chips import Chip, chip_of
from tpgen.kernels.cuda.generate import generate_cuda
from tpgen.kernels.cuda.nvrtc import need_nvrtc
from tpgen.kernels.cuda.placement import place_form, place_polynomial
from tpgen.kernels.cuda.target import slower
from tpgen.kernels.runtime.description import description_of_plan
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS, describe_polynomial, parse_polynomial_call
from tpgen.planner.plan import Plan
from tpgen.planner.problems import LINEARS, POLYNOMIALS, PROBLEMS

ARCHITECTURES = (80, 90)
_ROWS = {"forward": (("out",), False), "backward": (("x1", "x2", "w"), False)}
TASKS = _ROWS | {f"conv {name}": (opened, True) for name, (opened, _) in _ROWS.items()}
COLUMNS = (*TASKS, "second")
Row = dict[str, Any]
_USAGE = re.compile(
    r"Function properties for (\w+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
    r"(?:.*?Used (\d+) registers)?"
)


class Usage(NamedTuple):
    """Registers and bytes that one kernel takes of each thread."""

    registers: int
    spills: int  # bytes stored to and loaded from memory for want of registers
    stack: int  # bytes of memory for what stands in no register


def compile_rows(name: str, arch: int) -> Iterator[Row]:
    """A row for each kernel of a named product, linear layer or polynomial; none where graphs do it."""
    compiler = need_nvrtc(arch)
    for kernel, text in _texts(name, chip_of(arch)).items():
        source = text()
        start = time.process_time()
        used = usage(compiler.compile(source, arch).log).values()
        yield {
            "problem": name,
            "arch": arch,
            "kernel": kernel,
            "seconds": time.process_time() - start,
            "registers": max((u.registers for u in used), default=None),  # an assembler may say nothing
            "spills": sum(u.spills for u in used),
        }


def usage(log: str) -> dict[str, Usage]:
    """Usage of each kernel, read off the assembler's text; functions that it calls stand behind it and are counted."""
    found: dict[str, Usage] = {}
    entry = ""
    for name, stack, out, back, used in _USAGE.findall(log):
        entry = name if used else entry
        registers, spills, frame = found.get(entry, Usage(int(used or 0), 0, 0))
        found[entry] = Usage(registers, spills + int(out) + int(back), frame + int(stack))
    return found


def _texts(name: str, chip: Chip) -> dict[str, Callable[[], str]]:
    """What writes each kernel of a problem."""
    if name in POLYNOMIALS:
        return {call: partial(_polynomial, name, call, chip) for call in POLYNOMIAL_CALLS}
    plan = (PROBLEMS | LINEARS)[name].plan
    described_plan = description_of_plan(plan)
    if slower(KernelSpec(described_plan, described_plan.calls()[0], torch.float32), chip):
        return {}
    tasks = TASKS if isinstance(plan, Plan) else _ROWS
    return {kernel: partial(_product, name, *task, chip) for kernel, task in tasks.items()}


def _product(name: str, opened: tuple[str, ...], indexed: bool, chip: Chip) -> str:
    form = form_of((PROBLEMS | LINEARS)[name].plan, "mul_ir")
    return generate_cuda(place_form(form, "float32", opened, chip, indexed)).text


def _polynomial(name: str, call: str, chip: Chip) -> str:
    plan = POLYNOMIALS[name].plan
    sweep = describe_polynomial(plan).sweep(parse_polynomial_call(plan, call))
    return generate_cuda(place_polynomial(plan, sweep, "float32", chip)).text


def compile_table(rows: list[Row]) -> str:
    """Seconds of each kernel, a line for each problem and capability."""
    lines: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        lines.setdefault((row["problem"], row["arch"]), {})[row["kernel"]] = row["seconds"]
    cells = [
        (name, f"sm_{arch}", *(f"{found[k]:.1f} s" if k in found else "" for k in COLUMNS))
        for (name, arch), found in lines.items()
    ]
    return table([("problem", "for", *COLUMNS), *cells], left=[0, 1])


if __name__ == "__main__":
    names = (*PROBLEMS, *LINEARS, *POLYNOMIALS)
    print(compile_table([row for name in names for arch in ARCHITECTURES for row in compile_rows(name, arch)]))
