"""Whose files are believed.

A library runs with all the rights of who loads it.  So nobody else may have written it, nor be able to put another in
its place: not into its directory, and not by renaming one of the directories above.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tpgen.base.errors import BackendError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# a link is not followed, and a pipe in a file's place is not waited for
_AS_IT_IS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def links_followed(path: Path) -> Path:
    """The absolute path with every link above its last name followed, so that no link can be turned later."""
    return Path(os.path.realpath(path.parent)) / path.name


def make_private(path: Path) -> None:
    """Make a directory and those above it that are missing, for the user alone, whatever the umask leaves open."""
    for missing in [p for p in (*reversed(path.parents), path) if not p.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)


def check_private(path: Path) -> None:
    """Raise `BackendError` where somebody else may change or exchange a directory, `OSError` where there is none.

    The directory must be the user's.  Those above may also be root's, and open to others where they are sticky, as
    ``/tmp`` is: there nobody can rename what is not theirs.
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
            f"kernel cache {path} can be written by others ({_mode(status)}), so nothing is loaded from it: "
            "remove it, or point TPGEN_CACHE_DIR at a private directory"
        )
    for above in path.parents:
        _check_above(path, above, user)


def _check_above(path: Path, above: Path, user: int) -> None:
    status = above.lstat()
    if status.st_uid not in (user, 0):
        who = f"belongs to user {status.st_uid}"
    elif _open_to_others(status, user):
        who = f"can be written by others ({_mode(status)})"
    else:
        return
    raise BackendError(
        f"kernel cache {path} lies below {above}, which {who}, who could put other code in its place, so nothing is "
        f"loaded from it: close that directory to others (chmod go-w), or point TPGEN_CACHE_DIR at a private one"
    )


def _open_to_others(status: os.stat_result, user: int) -> bool:
    if status.st_mode & stat.S_ISVTX:
        return False
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _alone_in_group(status.st_gid, user)


def _alone_in_group(group: int, user: int) -> bool:
    """Whether a group is the user's own, of the same name and with no other member, as many systems give everybody."""
    import grp
    import pwd

    try:
        person, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    same = (person.pw_gid, person.pw_name) == (group, members.gr_name)
    return same and set(members.gr_mem) <= {person.pw_name}


def read_own(path: Path) -> bytes:
    """The bytes of a file that is the user's, and that nobody else may write to.

    Raises `OSError` for any other, for links and for what is no file.
    """
    with open(os.open(path, _AS_IT_IS), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _own(status):
            raise PermissionError(f"{path} is not a file that this user alone may write to")
        return file.read()


def _own(status: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & _OTHERS_WRITE)


def _mode(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):03o}"
