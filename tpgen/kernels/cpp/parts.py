"""Functions of a large text, compiled in parallel units (`parts.h`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from tpgen.kernels.cpp.prelude import header_text
from tpgen.kernels.cpp.text import Writer

CppParameters = list[tuple[str, str]]  # type and name

# compilers need more than twice the time for twice as much in one function; neighbours stay together in a unit
_BEGIN = "#if IN_UNIT"
# Straight lines of sums leave little to optimise: -O2 takes 40 % longer for code that runs no faster.
_LIGHT = "-O1"


class PartFunctionWriter:
    """Writes parts of a C++ text as functions, and collects their calls in order."""

    def __init__(self, w: Writer) -> None:
        self.w, self.calls = w, list[str]()
        w.raw(header_text("parts"))

    @contextmanager
    def function_block(self, parameters: CppParameters) -> Iterator[None]:
        """Write the lines inside as one function, and record its call."""
        name = f"part_{len(self.calls)}"
        head = f"void {name}({parameter_list(parameters)})"
        self.w.line(f"{head} __attribute__((noinline));")
        with block_in_one_translation_unit(self.w), self.w.block(head):
            yield
        self.calls.append(f"{name}({', '.join(a for _, a in parameters)});")


def parameter_list(parameters: CppParameters) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in parameters)


@contextmanager
def block_in_one_translation_unit(w: Writer) -> Iterator[None]:
    """Write lines that only one translation unit compiles."""
    w.raw(_BEGIN)
    yield
    w.raw("#endif")


def translation_unit_flags(text: str, most_units: int) -> list[list[str]]:
    """Compiler flags of up to ``most_units`` translation units of one C++ text.

    >>> translation_unit_flags("int a;", 2)
    [[]]
    """
    lines = text.split("\n")
    if _BEGIN not in lines:
        return [[]]
    if most_units == 1:
        return [[_LIGHT]]
    first, behind = lines.index(_BEGIN) + 1, len(lines) + 1
    cuts = [first + (behind - first) * n // most_units for n in range(most_units + 1)]
    return [[f"-DTPGEN_FROM={start}", f"-DTPGEN_TO={end}", _LIGHT] for start, end in pairwise(cuts)]
