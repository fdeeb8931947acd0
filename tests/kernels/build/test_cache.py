"""What is removed and counted is the cache's own, and nobody who builds is disturbed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.kernels.test_build import PLAN, libraries, run_product
from tests.kernels.test_faults import run_elsewhere
from tpgen.base.errors import KernelError
from tpgen.kernels.build import build, cache
from tpgen.kernels.build.cache import Entry
from tpgen.kernels.runtime.ops import kernel_source

COMPILES = 'case "$*" in *--version*) exec g++ --version;; esac\n'
OUTPUT = 'for a in "$@"; do [ "$p" = -o ] && out="$a"; p="$a"; done\n'


def compiler(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell script as the compiler."""
    path.write_bytes(b"#!/bin/sh\n" + text.encode("latin-1"))
    path.chmod(0o755)
    monkeypatch.setenv("TPGEN_CXX", str(path))


def test_clear_leaves_other_files_alone(fresh: Path) -> None:
    run_product()
    others = ["matmul.cu", ".new-abc.so", "0" * 32, "0" * 31 + ".so", "0" * 32 + ".so.bak", "0" * 32 + ".so-copy"]
    for name in others:
        (fresh / name).write_text("years of work")
    (fresh / f".new-{'0' * 32}.so-ab_12345").write_text("left by a build that was killed")
    assert build.cache_info().entries == 1
    assert build.cache_clear() == 1
    assert sorted(file.name for file in fresh.iterdir()) == sorted(others)


def test_clear_leaves_what_is_being_built_to_its_builder(fresh: Path) -> None:
    run_product()
    entry = Entry(fresh, libraries(fresh)[0].stem)
    with entry.hold_file_lock():
        assert build.cache_clear() == 0
        assert entry.is_intact()
    assert build.cache_clear() == 1
    assert list(fresh.iterdir()) == []


def test_processes_build_while_others_clear(fresh: Path) -> None:
    code = """
import time
from tpgen.kernels.build import build, cache
until, children = time.time() + 4, []
for n in range(3):
    child = os.fork()
    if child == 0:
        while time.time() < until:
            if n == 0:
                cache.clear()
                time.sleep(0.05)
            else:
                build._loaded.clear()
                build.load_kernel(plan_text)
        os._exit(0)
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""
    ahead = (
        "import warnings; warnings.simplefilter('error')\n"
        "from tpgen.kernels.runtime.call import make_product_call\n"
        "plan_text = read_description(text).source(make_product_call(('out',)), torch.float32).text\n"
    )
    run_elsewhere(ahead + code)


def test_a_relative_place_that_looks_like_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPGEN_CACHE_DIR", "-x")
    monkeypatch.setattr(build, "_loaded", {})
    cache.forget_directory()
    run_product()
    assert len(libraries(tmp_path / "-x" / "kernels")) == 1


WARNS = COMPILES + "printf '\xff note\\n' >&2\n"
NAMED = "case \"$*\" in *--version*) printf 'g\xff++ 13.1\\n'; exit 0;; esac\n"


@pytest.mark.parametrize("text", [WARNS, NAMED])
def test_a_compiler_may_say_what_is_no_text(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    compiler(tmp_path / "says", text + 'exec g++ "$@"\n', monkeypatch)
    assert run_product().shape == (5, PLAN.irreps_out.dim)


@pytest.mark.parametrize(
    "text, reason",
    [
        (COMPILES + OUTPUT + 'g++ "$@"; head -c 3000 "$out" > "$out.h"; cp "$out.h" "$out"; rm "$out.h"\n', ""),
        (COMPILES + "exit 0\n", "file too short"),
        (COMPILES + OUTPUT + 'echo "int x;" | g++ -shared -fPIC -x c++ - -o "$out"\n', "undefined symbol"),
        ("exec true\n", "file too short"),
    ],
    ids=["half", "empty", "no entry", "no compiler"],
)
def test_what_a_compiler_wrote_is_tried_before_it_is_kept(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    compiler(tmp_path / "breaks", text, monkeypatch)
    message = f"breaks ended without an error, but what it wrote cannot be loaded: .*{reason}.*\n.*TPGEN_CXX"
    with pytest.raises(KernelError, match=message):
        build.load_kernel(kernel_source(PLAN).text)
    assert libraries(fresh) == []
    monkeypatch.delenv("TPGEN_CXX")
    run_product()


def test_a_whole_library_that_cannot_be_loaded_is_built_again(unloaded: Path) -> None:
    library = libraries(unloaded)[0]
    library.unlink()
    library.write_bytes(b"published by somebody careless")
    library.with_suffix(".sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())
    run_product()
    assert library.read_bytes()[:4] == b"\x7fELF"


def test_a_fork_after_torchs_threads_and_before_any_kernel() -> None:
    code = """
torch.set_num_threads(2)
torch.randn(4_000_000).relu().sum()
if os.fork() == 0:
    signal.alarm(60)
    kernel_product(*(x.repeat(2000, 1) for x in (x1, x2, w)), text)
    os._exit(0)
assert os.wait()[1] == 0
"""
    run_elsewhere(code, OMP_NUM_THREADS="2")


def test_a_process_of_one_thread_may_fork_and_use_many() -> None:
    code = """
if len(os.listdir("/proc/self/task")) == 1 and os.fork() == 0:
    assert torch.get_num_threads() == 2
"""
    run_elsewhere(code, OMP_NUM_THREADS="2")
