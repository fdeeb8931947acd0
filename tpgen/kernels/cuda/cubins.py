"""From a source to machine code: compiled once per machine and compute capability, kept in the cache of kernels."""

from __future__ import annotations

import hashlib
import json

from tpgen.errors import BackendError
from tpgen.kernels.build import cache
from tpgen.kernels.build.cache import CUBIN, Entry
from tpgen.kernels.build.trust import read_own
from tpgen.kernels.cuda.driver import cuda_taken
from tpgen.kernels.cuda.nvrtc import Nvrtc, need_nvrtc


def cubin(text: str, arch: int) -> bytes:
    """The machine code of a source, compiled if the cache has it not; PTX for a device that NVRTC does not know yet.

    Raises `BackendError` where there is no NVRTC or it fails.
    """
    compiler = need_nvrtc(arch, cuda_taken())
    key = hashlib.sha256(json.dumps([text, arch, *compiler.identity]).encode()).hexdigest()[:32]
    found = cache.finished(key, CUBIN)
    if found:
        return read_own(found.library)
    directory = cache.current_directory()
    try:
        return _make(Entry(directory, key, CUBIN), text, arch, compiler)
    except OSError as error:  # the directory went away, became read-only or filled up
        cache.forget_directory()
        instead = cache.fallback(str(directory), error.strerror or str(error))
    try:
        return _make(Entry(instead, key, CUBIN), text, arch, compiler)
    except OSError as again:
        raise BackendError(
            f"no place to build kernels: {again}; set TPGEN_CACHE_DIR to a directory with room"
        ) from again


def _make(entry: Entry, text: str, arch: int, compiler: Nvrtc) -> bytes:
    """Compiled and published, unless another process was faster."""
    with entry.locked():
        if not entry.intact():
            cache.write_whole(entry.file(".cu"), text)
            built = entry.new_file(CUBIN)
            try:
                built.write_bytes(compiler.compile(text, arch).code)
                entry.publish(built)
            finally:
                built.unlink(missing_ok=True)
        return read_own(entry.library)
