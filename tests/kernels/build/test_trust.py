"""Nothing is loaded that somebody else wrote, or could put in the place of what was written."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernels.test_build import libraries, run_product
from tpgen.base.errors import BackendError
from tpgen.kernels.build import build, trust
from tpgen.kernels.build.compiler import need_compiler
from tpgen.kernels.build.trust import check_private, make_private, read_private_file, resolve_parents

as_root = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
NOBODY = 65534


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_cache_below_a_directory_of_everybody_is_refused(fresh: Path, mode: int) -> None:
    fresh.parent.mkdir()
    fresh.parent.chmod(mode)
    message = rf"lies below {fresh.parent}, which can be written by others \(mode {mode:o}\).*chmod go-w.*TPGEN_CACHE"
    with pytest.raises(BackendError, match=message):
        run_product()


def test_a_cache_that_is_opened_later_is_not_read(fresh: Path) -> None:
    run_product()
    build._loaded.clear()
    fresh.parent.chmod(0o777)
    with pytest.raises(BackendError, match=r"lies below .*so nothing is loaded from it"):
        run_product()


def test_a_sticky_directory_may_stand_above(fresh: Path) -> None:
    fresh.parent.mkdir()
    fresh.parent.chmod(0o1777)
    run_product()


def test_a_group_may_write_above_where_the_user_is_alone_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "open" / "private"
    make_private(private)
    private.parent.chmod(0o770)
    for alone in (True, False):
        monkeypatch.setattr(trust, "_is_private_group", lambda *_, answer=alone: answer)
        if alone:
            check_private(private)
        else:
            with pytest.raises(BackendError, match=r"\(mode 770\)"):
                check_private(private)


def test_a_group_of_ones_own_has_the_users_name_and_no_other_member() -> None:
    import grp
    import pwd

    me = pwd.getpwuid(os.getuid())
    own = grp.getgrgid(me.pw_gid)
    assert trust._is_private_group(own.gr_gid, me.pw_uid) == (own.gr_name == me.pw_name and not own.gr_mem)
    others = [group.gr_gid for group in grp.getgrall() if group.gr_gid != me.pw_gid]
    assert not any(trust._is_private_group(group, me.pw_uid) for group in others)
    assert not trust._is_private_group(2**31 - 7, me.pw_uid)


@as_root
def test_a_cache_below_a_directory_of_somebody_else_is_refused(fresh: Path) -> None:
    make_private(fresh)
    os.chown(fresh.parent, NOBODY, NOBODY)
    with pytest.raises(BackendError, match=rf"lies below {fresh.parent}, which belongs to user {NOBODY}"):
        run_product()


def test_directories_are_made_for_the_user_alone(fresh: Path) -> None:
    before = os.umask(0)
    try:
        run_product()
    finally:
        os.umask(before)
    assert [p.stat().st_mode & 0o777 for p in (fresh, fresh.parent, libraries(fresh)[0])] == [0o700] * 3


def test_links_above_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    assert resolve_parents(tmp_path / "link" / "kernels") == tmp_path / "elsewhere" / "kernels"
    assert resolve_parents(tmp_path / "elsewhere" / ".." / "link") == tmp_path / "link"


def give_away(library: Path) -> None:
    os.chown(library, NOBODY, NOBODY)


def put_a_link(library: Path) -> None:
    library.rename(library.with_name("elsewhere"))
    library.symlink_to("elsewhere")


def put_a_pipe(library: Path) -> None:
    library.unlink()
    os.mkfifo(library)


@pytest.mark.parametrize(
    "tamper",
    [lambda library: library.chmod(0o722), put_a_link, put_a_pipe, pytest.param(give_away, marks=as_root)],
    ids=["writable", "link", "pipe", "owner"],
)
def test_a_library_that_is_not_the_users_own_is_built_again(unloaded: Path, tamper: Callable[[Path], None]) -> None:
    """Its checksum fits: that lies beside it and is written by the same hand."""
    library = libraries(unloaded)[0]
    library.unlink()
    command = [*need_compiler().program, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=b'extern "C" int tpgen_kernel() { return 1; }', check=True)
    library.with_suffix(".sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())
    library.chmod(0o700)
    tamper(library)
    run_product()  # the other library says that it has no memory
    assert read_private_file(library)[:4] == b"\x7fELF"


def test_files_of_the_users_own_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    assert read_private_file(file) == b"content"
    file.chmod(0o666)
    with pytest.raises(PermissionError, match="is not a file that this user alone may write to"):
        read_private_file(file)
    with pytest.raises(OSError, match=r"file|directory"):
        read_private_file(tmp_path)
