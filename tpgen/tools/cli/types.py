"""Types of option values."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import torch

from tpgen.base.errors import TpgenError, unknown


class OneOf(click.Choice):
    """Click type: one of some names."""

    def __init__(self, kind: str, names: Iterable[str], refused: Mapping[str, str] | None = None) -> None:
        """Accept ``names``; ``refused`` maps other names to error messages."""
        super().__init__(list(names))
        self.kind = kind
        self.refused = refused or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a known name, or raise `TpgenError` with the closest."""
        if value not in self.choices:
            if value in self.refused:
                raise TpgenError(self.refused[value])
            raise TpgenError(unknown(self.kind, value, self.choices))
        return value


# help shows the name of this and of each later function as the name of its value
def instruction(value: Any) -> tuple:
    """Parse an instruction ``i_in1,i_in2,i_out,mode,weighted[,path_weight]``.

    >>> instruction("0,0,1,uvu,true")
    (0, 0, 1, 'uvu', True, 1.0)
    """
    parts = [part.strip() for part in value.split(",")]
    try:
        i_in1, i_in2, i_out, mode, weighted, *rest = parts
        (path_weight,) = rest or ("1",)
        flag = {"true": True, "false": False}[weighted.lower()]
        return int(i_in1), int(i_in2), int(i_out), mode, flag, float(path_weight)
    except (ValueError, KeyError):
        raise click.BadParameter(f"{value!r} does not read i_in1,i_in2,i_out,mode,true|false[,path_weight]") from None


def layout(value: Any) -> str | tuple[str, ...]:
    """Parse one layout, or three for in1, in2 and out."""
    names = tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value
    return names[0] if len(names) == 1 else names


def capabilities(value: Any) -> tuple[int, ...]:
    """Parse compute capabilities of GPUs.

    >>> capabilities("sm_80,sm_90")
    (80, 90)
    """
    if not isinstance(value, str):
        return value
    found = [re.fullmatch(r"\s*sm_(\d{2,3})\s*", part, re.ASCII) for part in value.split(",")]
    if not all(found):
        raise click.BadParameter(f"{value!r} must be compute capabilities, like sm_80,sm_90")
    return tuple(int(one[1]) for one in found if one)


def device(value: Any) -> str:
    """Name of an available device; raises for others."""
    try:
        torch.empty(0, device=value)
    except (RuntimeError, AssertionError) as error:
        raise click.BadParameter(f"{value!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return value


class OutputFile(click.ParamType):
    """Click type: a writable file; for a folder, the file ``inside``."""

    name = "file"

    def __init__(self, *endings: str, inside: str | None = None) -> None:
        self.endings = endings
        self.inside = inside

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Path of a file; fails if unwritable."""
        path = Path(value)
        if self.inside is not None and not names_file(path):
            path = path / self.inside
        if self.endings and path.suffix.lower() not in self.endings:
            *rest, last = self.endings
            known = f"{', '.join(rest)} or {last}" if rest else last
            self.fail(f"{str(value)!r} must end in {known}", param, ctx)
        if path.is_dir():
            self.fail(f"{str(value)!r} is a folder: name a file in it", param, ctx)
        if why := _why_existing_file_unwritable(path) or _why_folder_unwritable(path.parent):
            self.fail(f"cannot write {str(value)!r}: {why}", param, ctx)
        return path


def names_file(path: Path) -> bool:
    """Whether a path names a file: has a suffix and is no folder.

    >>> names_file(Path("kernel.cpp")), names_file(Path("stages"))
    (True, False)
    """
    return bool(path.suffix) and not path.is_dir()


def path(value: Any) -> Path:
    """A writable path: a file if the name has a suffix, else a folder."""
    return OutputFile().convert(value, None, None) if names_file(Path(value)) else folder(value)


def folder(value: Any) -> Path:
    """Path of a writable folder; raises for others."""
    if why := _why_folder_unwritable(Path(value)):
        raise click.BadParameter(f"cannot write into {str(value)!r}: {why}")
    return Path(value)


PICTURE = OutputFile(".png", ".pdf", ".svg")  # the ending says the format


def _why_folder_unwritable(folder: Path) -> str:
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        return f"{str(there)!r} is a file, not a folder"
    try:  # permissions alone do not say it: /proc grants them all to root
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        return f"nothing can be made in {str(there)!r} ({error.strerror})"
    return ""


def _why_existing_file_unwritable(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        path.open("ab").close()
    except OSError as error:
        return f"it may not be written ({error.strerror})"
    return ""
