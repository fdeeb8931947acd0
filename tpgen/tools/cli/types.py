"""Values on the command line: read, and refused, before any work is done.

Help calls the value of an option as the function is called that reads it.
"""

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
    """One of some names; any other is a `TpgenError` that says which of them it is like.

    ``refused`` are names that mean something, though not here, and why.
    """

    def __init__(self, what: str, names: Iterable[str], refused: Mapping[str, str] | None = None) -> None:
        super().__init__(list(names))
        self.what = what
        self.refused = refused or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            if value in self.refused:
                raise TpgenError(self.refused[value])
            raise TpgenError(unknown(self.what, value, self.choices))
        return value


def instruction(value: Any) -> tuple:
    """Read ``i_in1,i_in2,i_out,mode,weighted[,path_weight]``.

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
    """Read one layout, or three for in1, in2 and out."""
    names = tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value
    return names[0] if len(names) == 1 else names


def capabilities(value: Any) -> tuple[int, ...]:
    """Read compute capabilities of GPUs, as nvcc writes them, with commas.

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
    """Read the name of a device that is there."""
    try:
        torch.empty(0, device=value)
    except (RuntimeError, AssertionError) as error:
        raise click.BadParameter(f"{value!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return value


class OutputFile(click.ParamType):
    """A file that can be written: its folder is there, or can be made.

    With ``inside``, the name that the file has in a folder, a folder may be given in its place.
    """

    name = "file"

    def __init__(self, *endings: str, inside: str | None = None) -> None:
        self.endings = endings
        self.inside = inside

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if self.inside is not None and not names_file(path):
            path = path / self.inside
        if self.endings and path.suffix.lower() not in self.endings:
            *rest, last = self.endings
            known = f"{', '.join(rest)} or {last}" if rest else last
            self.fail(f"{str(value)!r} must end in {known}", param, ctx)
        if path.is_dir():
            self.fail(f"{str(value)!r} is a folder: name a file in it", param, ctx)
        if why := _no_file(path) or _no_folder(path.parent):
            self.fail(f"cannot write {str(value)!r}: {why}", param, ctx)
        return path


def names_file(path: Path) -> bool:
    """Whether ``--out`` names a file: it has an ending, and is not a folder that is there.

    >>> names_file(Path("kernel.cpp")), names_file(Path("stages"))
    (True, False)
    """
    return bool(path.suffix) and not path.is_dir()


def path(value: Any) -> Path:
    """Read the path of a file, where the name has an ending, or of a folder, to be written."""
    return OutputFile().convert(value, None, None) if names_file(Path(value)) else folder(value)


def folder(value: Any) -> Path:
    """Read the path of a folder that can be written into; it is made where it is not there."""
    if why := _no_folder(Path(value)):
        raise click.BadParameter(f"cannot write into {str(value)!r}: {why}")
    return Path(value)


PICTURE = OutputFile(".png", ".pdf", ".svg")  # the ending says the format


def _no_folder(folder: Path) -> str:
    """Why a folder is none and cannot be made; empty where it can."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir():
        return f"{str(there)!r} is a file, not a folder"
    try:  # permissions alone do not say it: /proc grants them all to root
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        return f"nothing can be made in {str(there)!r} ({error.strerror})"
    return ""


def _no_file(path: Path) -> str:
    """Why a file that is there cannot be written; empty where it can, or is not there."""
    if not path.is_file():
        return ""
    try:
        path.open("ab").close()
    except OSError as error:
        return f"it may not be written ({error.strerror})"
    return ""
