"""C++ text with paths and part of each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from tpgen.kernels.rows import GROUPED, INDEXED, PAIRED, RowRule


@cache
def read_header(path: Path) -> str:
    """Read a C++ header without its head comment.

    >>> read_header(Path(__file__).parent / "indices.h").split(" {")[0]
    'struct RowIndex'
    """
    return path.read_text(encoding="utf-8").split("\n\n", 1)[1].rstrip("\n")


@dataclass(frozen=True)
class GeneratedSource:
    """Generated C++, with paths (none: shared) and part of each line."""

    text: str
    line_paths: tuple[tuple[int, ...], ...]
    line_parts: tuple[str, ...]

    def lines_of(self, path: int) -> list[int]:
        """Line numbers, from 1, of one path."""
        return [n for n, paths in enumerate(self.line_paths, 1) if path in paths]

    def __str__(self) -> str:
        return self.text


class Writer:
    """Collects lines of C++, each labelled with its paths and part."""

    def __init__(self) -> None:
        """Begin an empty text."""
        self._lines: list[str] = []
        self._paths: list[tuple[int, ...]] = []
        self._parts: list[str] = []
        self._depth = 0
        self._current: tuple[int, ...] = ()
        self._part = "prelude"

    def line(self, text: str = "") -> None:
        """Append lines of C++, indented by open braces."""
        for part in text.split("\n"):
            self._append_indented_line(part.strip() if self._depth else part.rstrip())

    def raw(self, text: str) -> None:
        """Append lines without indentation."""
        for part in text.strip("\n").split("\n"):
            self._append_line_with_labels(part)

    def _append_indented_line(self, text: str) -> None:
        if text.startswith("}"):
            self._depth -= 1
        self._append_line_with_labels("  " * self._depth + text if text else "")
        if text.endswith("{"):
            self._depth += 1

    def _append_line_with_labels(self, line: str) -> None:
        self._lines.append(line)
        self._paths.append(self._current)
        self._parts.append(self._part)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """Write ``head {``, the lines inside, and ``}``."""
        self.line(f"{head} {{" if head else "{")
        yield
        self.line(tail)

    @contextmanager
    def paths(self, *paths: int) -> Iterator[None]:
        """Label lines written inside with these path numbers."""
        before, self._current = self._current, tuple(paths)
        yield
        self._current = before

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Label lines written inside with this part of the program."""
        before, self._part = self._part, name
        yield
        self._part = before

    def finish(self) -> GeneratedSource:
        return GeneratedSource("\n".join(self._lines) + "\n", tuple(self._paths), tuple(self._parts))


def number_literal(value: float, dtype: str) -> str:
    """C++ literal that reads back as the same number.

    >>> number_literal(0.1, "float32"), number_literal(2.0, "float64")
    ('0.1f', '2.0')
    """
    if dtype == "float64":
        return repr(float(value))
    text = str(np.float32(value))
    return (text if any(c in text for c in ".e") else text + ".0") + "f"


def scaled_text(value: float, text: str, dtype: str) -> str:
    """C++ of ``value * text``, shorter for plus or minus one."""
    if value == 1.0:
        return text
    if value == -1.0:
        return f"-{text}"
    return f"{number_literal(value, dtype)} * {text}"


def sum_text(terms: list[str]) -> str:
    return " + ".join(terms).replace("+ -", "- ")


# the row of an operand that row ``e`` of a call finds, by what says it
_FOUND = {INDEXED: "{0}[e]", GROUPED: "{0}[e]", PAIRED: "(e < {0}.size ? e : e - {0}.size)"}


def row_index_text(rule: RowRule | None) -> str:
    """C++ index of an operand's row for row ``e``.

    >>> from tpgen.kernels.rows import EDGE_PAIRS, SOURCES
    >>> row_index_text(None), row_index_text(SOURCES), row_index_text(EDGE_PAIRS)
    ('e', 'src[e]', '(e < pair.size ? e : e - pair.size)')
    """
    return "e" if rule is None else _FOUND[rule.way].format(rule.name)


def entry_function_head(has_indices: bool = True) -> str:
    """C++ head of a kernel's entry function."""
    how = "const RowIndex* indices" if has_indices else "const void*"
    arguments = f"const real* const* given, real* const* opened, {how}, i64 rows, i64 channels"
    return f'extern "C" __attribute__((visibility("default"))) int tpgen_kernel({arguments})'


def write_sum_of_blocks(w: Writer, block_size: int) -> None:
    """Write C++ that adds the sums of all blocks of rows to the first, in order."""
    w.line(f"if (!blocks) clear(sums, {block_size});")
    w.line(
        f"for (i64 b = 1; b < blocks; ++b) for (i64 m = 0; m < {block_size}; m += W) "
        f"add(sums + m, load(sums + b * {block_size} + m));"
    )


def write_allocation(w: Writer, kind: str, name: str, size: str) -> None:
    """Write an allocation that frees itself at every return."""
    w.line(f"const Room<{kind}> {name}_room({size}); {kind}* const {name} = {name}_room.at; if (!{name}) return 1;")


def scratch_area_declarations(sizes: Mapping[str, int], size_suffix: str = "") -> list[str]:
    """C++ declarations of consecutive areas in a thread's scratch."""
    begins = accumulate(sizes.values(), initial=0)
    return [f"num* const {name} = scratch + {at}{size_suffix};" for name, at in zip(sizes, begins, strict=False)]


@contextmanager
def block_for_each_task(
    w: Writer, count: str, work: str, scratch_size: str, declarations: Iterable[str]
) -> Iterator[None]:
    """Write a C++ loop of threads over ``count`` tasks ``b``; ``work``: operations, and those worth a thread."""
    w.line("i64 next = 0; i64* const taken = &next; int* const failed = &fault;")
    with w.block(f"on_threads({count}, {work}, [=]() __attribute__((always_inline))", "});"):
        w.line(f"const Room<num> scratch_room({scratch_size}); num* const scratch = scratch_room.at;")
        for line in declarations:
            w.line(line)
        with w.block(f"for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < {count};)"):
            w.line("if (!scratch) { *failed = 1; continue; }")
            yield
