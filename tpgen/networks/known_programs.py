"""Programs that an earlier process built, by what is known of calls before a trace."""

from __future__ import annotations

import marshal
from collections.abc import Iterable
from contextlib import suppress
from inspect import getattr_static
from itertools import chain
from types import CodeType

import torch
from torch import nn

from tpgen._version import __version__
from tpgen.kernels.build.cache import LIBRARY_NAMES, PROGRAM, Entry, default_cache_directory, key_of, write_atomically
from tpgen.kernels.build.compiler import find_compiler
from tpgen.kernels.build.processor import cpu_features
from tpgen.kernels.build.trust import read_private_file
from tpgen.networks.kinds import CallKind

WEEK = 7 * 86_400  # seconds, for which a refusal holds: the machine may have been busy


def program_record(network: nn.Module, kind: CallKind) -> Entry:
    """Cache entry that names the libraries of a network's program."""
    tensors = chain(network.named_parameters(), network.named_buffers())
    call = kind.signature.spec, kind.signature.constants, kind.signature.beside, kind.grad, kind.requests
    known = (
        *(f"{name} {x.training} {_describe_module(x)}" for name, x in network.named_modules()),
        *(f"{name} {x.dtype} {tuple(x.shape)} {x.requires_grad}" for name, x in tensors),
    )
    return Entry(default_cache_directory(), key_of(__version__, torch.__version__, *known, repr(call)))


def _describe_module(module: nn.Module) -> str:
    # its class, code, and plain attributes; scripted modules share a class, which raises if asked for `forward`
    plain = {name: x for name, x in vars(module).items() if isinstance(x, (bool, int, float, str))}
    code = getattr(getattr_static(type(module), "forward", None), "__code__", None)
    scripted = f"{getattr(module, 'original_name', '')} {getattr(module, 'code', '')}"
    text = key_of(marshal.dumps(code).hex()) if isinstance(code, CodeType) else scripted
    return f"{type(module).__module__}.{type(module).__qualname__} {text} {sorted(plain.items())}"


def comparison_record(network: nn.Module, kind: CallKind) -> Entry:
    """Cache entry with a refusal if the program was slower for such sizes."""
    sizes = [[n.bit_length() for n in x.shape] for x in kind.tensors]
    machine = getattr(find_compiler(), "identity", None), cpu_features(), torch.get_num_threads()
    known = program_record(network, kind).key, repr((machine, sizes))
    return Entry(default_cache_directory(), key_of(*known))


def are_libraries_cached(record: Entry) -> bool:
    """Whether all libraries that a record names are in the cache."""
    try:
        names = read_private_file(record.file_with_suffix(LIBRARY_NAMES)).decode(errors="replace").split()
    except OSError:
        return False
    return bool(names) and all(Entry(record.directory, name, PROGRAM).library.exists() for name in names)


def record_libraries(record: Entry, names: Iterable[str]) -> None:
    """Write a record, if the cache can be written."""
    with suppress(OSError):
        write_atomically(record.file_with_suffix(LIBRARY_NAMES), "\n".join(names))
