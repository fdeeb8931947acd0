"""Validate untrusted JSON before planning."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from tpgen.base.errors import PlanError

# Far above any real network, far below what could exhaust a machine before planning notices.
MAX_READ_DEGREE = 20
MAX_DIM = 2**24
MAX_INSTRUCTIONS = 20_000
MAX_TEXT = 2**24
MAX_WEIGHTS = 2**30

Reader = Callable[[str, Any], Any]  # (name of the field, what stands there) -> its value, or a `PlanError`


def read_json_fields(fields: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Apply each field's reader to a JSON object.

    Raises `PlanError` naming the wrong field.

    >>> read_json_fields({"on": True}, {"on": read_json_boolean})
    {'on': True}
    """
    known = ", ".join(readers)
    for name in fields:
        check_field(name in readers, name, f"is not a field of a plan; known fields: {known}", fields[name])
    for name in readers:
        if name not in fields:
            raise PlanError(f"plan field {name!r}: is missing; a plan has the fields {known}")
    return {name: read(name, fields[name]) for name, read in readers.items()}


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; refuse NaN and infinities."""
    if len(text) > MAX_TEXT:
        raise PlanError(f"plan: the JSON text is longer than {MAX_TEXT} characters")
    try:
        fields = json.loads(text, parse_constant=_refuse_non_finite_number)
    except PlanError:
        raise
    except (ValueError, RecursionError) as error:  # a ValueError also where a number has too many digits
        raise PlanError(f"plan: not valid JSON ({error})") from None
    check_field(isinstance(fields, dict), "plan", "must be a JSON object", fields)
    return fields


def _refuse_non_finite_number(name: str) -> float:
    raise PlanError(f"plan: {name} is not a number that a plan may hold")


def check_field(condition: bool, name: str, rule: str, value: object) -> None:
    """Raise `PlanError` unless ``condition`` holds."""
    if not condition:
        raise PlanError(f"plan field {name!r}: {rule}, got {str(value)[:80]!r}")


def make_json_name_reader(known: Collection[str]) -> Reader:
    """Reader that accepts only known names."""

    def read_known_name(name: str, value: Any) -> Any:
        check_field(isinstance(value, str) and value in known, name, f"must be one of {', '.join(known)}", value)
        return value

    return read_known_name


def read_json_irreps(name: str, value: Any) -> str:
    """Validate irreps as text, of bounded dimension."""
    check_field(isinstance(value, str) and len(value) < 2**16, name, "must be irreps as text, like '8x0e+4x1o'", value)
    dim = 0
    for part in value.split("+") if value.strip() else []:
        mul, x, ir = part.strip().rpartition("x")
        degree, parity = ir[:-1], ir[-1:]
        readable = _is_short_number(degree) and parity in ("e", "o") and (not x or _is_short_number(mul))
        check_field(readable, name, "has an unreadable entry", part)
        check_field(int(degree) <= MAX_READ_DEGREE, name, f"degrees go up to {MAX_READ_DEGREE}", part)
        dim += (int(mul) if x else 1) * (2 * int(degree) + 1)
        check_field(dim <= MAX_DIM, name, f"the dimension may be at most {MAX_DIM}", part)
    return value


def _is_short_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def read_json_index(name: str, value: Any) -> int:
    """Validate a non-negative index."""
    check_field(type(value) is int and 0 <= value < MAX_DIM, name, "indices must be small integers", value)
    return value


def read_json_number(name: str, value: Any, least: float = 0.0, most: float = 1e12) -> float:
    """Validate a number from ``least`` to ``most``."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    rule = f"must be a number from {least:g} to {most:g}".replace("+", "")
    check_field(is_number and least <= value <= most, name, rule, value)
    return float(value)


real = partial(read_json_number, least=-1e300, most=1e300)  # a finite number of either sign


def read_json_boolean(name: str, value: Any) -> bool:
    """Validate true or false."""
    check_field(type(value) is bool, name, "must be true or false", value)
    return value


def read_json_weight_sharing(name: str, value: Any) -> bool | str:
    """Validate true, false or ``element``."""
    check_field(type(value) is bool or value == "element", name, "must be true, false or 'element'", value)
    return value


def read_json_text(name: str, value: Any) -> str:
    """Validate text."""
    check_field(isinstance(value, str), name, "must be text", value)
    return value


def make_json_null_reader(read: Reader) -> Reader:
    """Reader that also accepts null."""
    return lambda name, value: None if value is None else read(name, value)


def make_json_list_reader(read: Reader, noun: str, max_entries: int = MAX_TEXT) -> Reader:
    """Reader of a list of at most ``max_entries`` entries, each by ``read``."""

    def read_json_list(name: str, value: Any) -> list:
        check_field(isinstance(value, list) and len(value) <= max_entries, name, f"must be a list of {noun}", value)
        return [read(f"{name}[{n}]", entry) for n, entry in enumerate(value)]

    return read_json_list


def make_json_tuple_reader(
    read: Callable[[str, list], Any], length: int, noun: str, max_entries: int = MAX_INSTRUCTIONS
) -> Reader:
    """Reader of at most ``max_entries`` lists of ``length`` values."""

    def check_length_and_read_entry(where: str, entry: Any) -> Any:
        check_field(
            isinstance(entry, list) and len(entry) == length, where, f"must be a list of {length} values", entry
        )
        return read(where, entry)

    return make_json_list_reader(check_length_and_read_entry, noun, max_entries)
