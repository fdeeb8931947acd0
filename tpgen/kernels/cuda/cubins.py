"""CUDA machine code in the kernel cache."""

from __future__ import annotations

import hashlib
import json

from tpgen.kernels.build import cache
from tpgen.kernels.build.cache import CUBIN, Entry
from tpgen.kernels.build.trust import read_own
from tpgen.kernels.cuda.driver import driver_cuda_version
from tpgen.kernels.cuda.nvrtc import Nvrtc, need_nvrtc


def machine_code(text: str, arch: int) -> bytes:
    """Machine code of a CUDA source, cached or compiled; PTX for a device newer than NVRTC.

    Raises `BackendError` without a working NVRTC.
    """
    compiler = need_nvrtc(arch, driver_cuda_version())
    key = hashlib.sha256(json.dumps([text, arch, *compiler.identity]).encode()).hexdigest()[:32]
    found = cache.finished_entry(key, CUBIN)
    if found:
        return read_own(found.library)
    return cache.with_fallback_directory(
        lambda directory: _compile_and_publish(Entry(directory, key, CUBIN), text, arch, compiler)
    )


def _compile_and_publish(entry: Entry, text: str, arch: int, compiler: Nvrtc) -> bytes:
    # another process may have published the entry meanwhile
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
