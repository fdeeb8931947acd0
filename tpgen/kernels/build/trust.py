"""Check that no other user can write the code that tpgen loads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tpgen.base.errors import BackendError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# a link is not followed, and a pipe in a file's place is not waited for
_NO_FOLLOW = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def resolve_parents(path: Path) -> Path:
    """Resolve links in a path's parents, not in its last name."""
    return Path(os.path.realpath(path.parent)) / path.name


def make_private(path: Path) -> None:
    """Create a directory and missing parents with mode 700."""
    for missing in [p for p in (*reversed(path.parents), path) if not p.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)


def check_private(path: Path) -> None:
    """Raise `BackendError` if another user can change or replace a directory, `OSError` if missing.

    Parents may belong to root, and be writable for others if sticky, like ``/tmp``.
    """
    if not hasattr(os, "getuid"):
        return
    status, user = path.lstat(), os.getuid()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != user:
        raise BackendError(
            f"kernel cache {path} must be a directory of user {user}, it belongs to {status.st_uid}: "
            "set TPGEN_CACHE_DIR"
        )
    if status.st_mode & _OTHERS_WRITE:
        raise BackendError(
            f"kernel cache {path} can be written by others ({_mode_text(status)}), so nothing is loaded from it: "
            "remove it, or point TPGEN_CACHE_DIR at a private directory"
        )
    for parent in path.parents:
        _check_that_parent_is_private(path, parent, user)


def _check_that_parent_is_private(path: Path, parent: Path, user_id: int) -> None:
    status = parent.lstat()
    if status.st_uid not in (user_id, 0):
        who = f"belongs to user {status.st_uid}"
    elif _is_writable_by_others(status, user_id):
        who = f"can be written by others ({_mode_text(status)})"
    else:
        return
    raise BackendError(
        f"kernel cache {path} lies below {parent}, which {who}, who could put other code in its place, so nothing is "
        f"loaded from it: close that directory to others (chmod go-w), or point TPGEN_CACHE_DIR at a private one"
    )


def _is_writable_by_others(status: os.stat_result, user: int) -> bool:
    if status.st_mode & stat.S_ISVTX:
        return False
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid, user)


def _is_private_group(group: int, user: int) -> bool:
    # many systems give every user a group of the same name, without other members
    import grp
    import pwd

    try:
        person, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    same = (person.pw_gid, person.pw_name) == (group, members.gr_name)
    return same and set(members.gr_mem) <= {person.pw_name}


def read_private_file(path: Path) -> bytes:
    """Read a regular file that only the user can write; raises `OSError` for others."""
    with open(os.open(path, _NO_FOLLOW), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _is_private_file(status):
            raise PermissionError(f"{path} is not a file that this user alone may write to")
        return file.read()


def _is_private_file(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & _OTHERS_WRITE)


def _mode_text(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):03o}"
