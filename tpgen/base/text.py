"""Numbers and tables as text."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def table(rows: Sequence[Sequence[Any]], left: Container[int] | None = None, widest: int | None = None) -> str:
    """Align rows in columns, ``left`` columns (default: all) to the left.

    Cells beyond ``widest`` widen no column.

    >>> print(table([("a", "long"), (1, 2)]))
    a  long
    1  2
    >>> print(table([("a", "long"), (1, 2)], left=[0]))
    a  long
    1     2
    """
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [min(widest or 10**6, max(map(len, column))) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left is None or n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in texts
    )


def duration(seconds: float | None) -> str:
    """Time with three digits and unit.

    >>> duration(0.0021), duration(3.1e-7), duration(None)
    ('2.10 ms', '310 ns', '-')
    """
    if seconds is None:
        return "-"
    scale, unit = next((row for row in _TIMES if seconds >= row[0]), _TIMES[-1])
    return f"{_three_digits(seconds / scale)} {unit}"


def quantity(value: float | None, unit: str) -> str:
    """Amount with up to three digits, prefix and unit.

    >>> quantity(2_500_000, "B"), quantity(512, "B"), quantity(None, "B")
    ('2.5 MB', '512 B', '-')
    """
    if value is None:
        return "-"
    scale, prefix = next((row for row in _PREFIXES if value >= row[0]), (1.0, ""))
    return f"{value / scale:.3g} {prefix}{unit}"


def plural(count: int, noun: str) -> str:
    """Count with its noun.

    >>> plural(1, "thread"), plural(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def ratio(value: float | None) -> str:
    """Ratio with three digits.

    >>> ratio(14.26), ratio(0.9512), ratio(None), ratio(15486.7), ratio(0.0003)
    ('14.3×', '0.95×', '-', '>999×', '<0.01×')
    """
    if value is None:
        return "-"
    if not 0.005 <= value < 999.5:
        return ">999×" if value > 1 else "<0.01×"
    return f"{_three_digits(value)}×"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
