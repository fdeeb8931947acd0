"""Instructions as functions of the lanes that run them: decoded once, run often."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.kernels.cuda.emulator import arithmetic
from tests.kernels.cuda.emulator.memory import WARP, Fault
from tests.kernels.cuda.emulator.parse import Instruction
from tests.kernels.cuda.emulator.registers import Lanes, Place, dtype_of

if TYPE_CHECKING:
    from tests.kernels.cuda.emulator.machine import Frame

Run = Callable[[Lanes], None]
_ADDRESS = re.compile(r"\[([%\w$]+)(?:\+(-?\d+))?\]")


def decode(i: Instruction, f: Frame) -> Run:
    """An instruction that does not end its block, in a frame."""
    make = _BY_NAME.get(i.name) or _BY_OPCODE.get(i.opcode[0])
    if make is None:
        raise Fault(f"an unknown instruction: {i}")
    run = make(i, f)
    return _guarded(i, f, run) if i.guard else run


def _guarded(i: Instruction, f: Frame, run: Run) -> Run:
    guard = f.place(i.guard, "pred")

    def some(lanes: Lanes) -> None:
        threads = f.ids(lanes)[guard[lanes] != i.negated]
        if len(threads):
            run(threads)

    return some


def _put(to: Place, values: Callable[[Lanes], np.ndarray]) -> Run:
    def run(lanes: Lanes) -> None:
        to[lanes] = values(lanes)

    return run


# -- registers ---------------------------------------------------------------------------------------------------------


def _binary(i: Instruction, f: Frame) -> Run:
    name, type_ = i.opcode[0], i.type
    of = arithmetic.BINARY[name]
    second = "u32" if name in ("shl", "shr") else type_
    to, a, b = f.place(i.operands[0], type_), f.place(i.operands[1], type_), f.place(i.operands[2], second)
    return _put(to, lambda lanes: of(a[lanes], b[lanes]))


def _product(i: Instruction, f: Frame) -> Run:
    """Of two numbers, with a third one added or not."""
    type_, how = i.type, i.opcode[1]
    of = {"hi": arithmetic.high, "wide": arithmetic.wide}.get(how, np.multiply)
    to_type = f"{type_[0]}{2 * int(type_[1:])}" if how == "wide" else type_
    to, a, b = f.place(i.operands[0], to_type), *(f.place(o, type_) for o in i.operands[1:3])
    if i.opcode[0] == "mul":
        return _put(to, lambda lanes: of(a[lanes], b[lanes]))
    c = f.place(i.operands[3], to_type)
    return _put(to, lambda lanes: of(a[lanes], b[lanes]) + c[lanes])


def _fused(i: Instruction, f: Frame) -> Run:
    to, a, b, c = (f.place(o, i.type) for o in i.operands)
    return _put(to, lambda lanes: arithmetic.fused(a[lanes], b[lanes], c[lanes]))


def _unary(i: Instruction, f: Frame) -> Run:
    of = arithmetic.UNARY[i.opcode[0]]
    to, a = (f.place(o, i.type) for o in i.operands)
    return _put(to, lambda lanes: of(a[lanes]))


def _move(i: Instruction, f: Frame) -> Run:
    to, given = i.operands
    if to.startswith("{"):
        return _unpack(to, f.place(given, i.type), i.type, f)
    if given.startswith("{"):
        return _pack(f.place(to, i.type), given, i.type, f)
    target, source = f.place(to, i.type), f.place(given, i.type)
    return _put(target, lambda lanes: source[lanes])


def _names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{}").split(",")]


def _unpack(to: str, source: Place, type_: str, f: Frame) -> Run:
    names = _names(to)
    size = int(type_[1:]) // len(names)
    parts = [f.place(name, f"b{size}") for name in names]

    def run(lanes: Lanes) -> None:
        found = source[lanes].view(f"u{size // 8}").reshape(-1, len(parts))
        for n, part in enumerate(parts):
            part[lanes] = found[:, n]

    return run


def _pack(to: Place, given: str, type_: str, f: Frame) -> Run:
    names = _names(given)
    parts = [f.place(name, f"b{int(type_[1:]) // len(names)}") for name in names]
    return _put(to, lambda lanes: np.stack([p[lanes] for p in parts], 1).view(dtype_of(type_))[:, 0])


def _compare(i: Instruction, f: Frame) -> Run:
    of = arithmetic.compared(i.opcode[1])
    to, a, b = f.place(i.operands[0], "pred"), *(f.place(o, i.type) for o in i.operands[1:])
    return _put(to, lambda lanes: of(a[lanes], b[lanes]))


def _select(i: Instruction, f: Frame) -> Run:
    to, a, b = (f.place(o, i.type) for o in i.operands[:3])
    choice = f.place(i.operands[3], "pred")
    return _put(to, lambda lanes: np.where(choice[lanes], a[lanes], b[lanes]))


def _convert(i: Instruction, f: Frame) -> Run:
    to_type, from_type = i.opcode[-2:]
    to, a, dtype = f.place(i.operands[0], to_type), f.place(i.operands[1], from_type), dtype_of(to_type)
    return _put(to, lambda lanes: a[lanes].astype(dtype))


def _insert(i: Instruction, f: Frame) -> Run:
    to, a, b = (f.place(o, i.type) for o in i.operands[:3])
    at, count = map(int, i.operands[3:])
    return _put(to, lambda lanes: arithmetic.inserted(a[lanes], b[lanes], at, count))


def _extract(i: Instruction, f: Frame) -> Run:
    to, a = (f.place(o, i.type) for o in i.operands[:2])
    at, count = map(int, i.operands[2:])
    return _put(to, lambda lanes: arithmetic.extracted(a[lanes], at, count))


def _permute(i: Instruction, f: Frame) -> Run:
    to, a, b, c = (f.place(o, "u32") for o in i.operands)
    return _put(to, lambda lanes: arithmetic.permuted(a[lanes], b[lanes], c[lanes]))


def _dot(i: Instruction, f: Frame) -> Run:
    to, a, b, c = (f.place(o, "u32") for o in i.operands)
    upper = i.opcode[1] == "hi"
    return _put(to, lambda lanes: arithmetic.multiplied_in_parts(a[lanes], b[lanes], c[lanes], upper))


def _shuffle(i: Instruction, f: Frame) -> Run:
    to, a = f.place(i.operands[0].partition("|")[0], "b32"), f.place(i.operands[1], "b32")
    b = f.place(i.operands[2], "u32")
    turned = i.opcode[2] == "bfly"

    def run(lanes: Lanes) -> None:
        threads = f.ids(lanes)
        if len(threads) % WARP or len(set((threads // WARP).tolist())) * WARP != len(threads):
            raise Fault("a shuffle without all lanes")
        lane = threads % WARP
        other = lane ^ b[lanes] if turned else b[lanes]
        to[lanes] = a[(threads - lane + other).astype(np.int64)]

    return run


# -- memory ------------------------------------------------------------------------------------------------------------


def address_of(operand: str, f: Frame, type_: str) -> Callable[[Lanes], np.ndarray]:
    """Addresses as int64; those of shared memory come as 32 bits."""
    found = _ADDRESS.fullmatch(operand)
    assert found, operand
    base, offset = f.place(found[1], type_), int(found[2] or 0)
    return lambda lanes: base[lanes].astype(np.int64) + offset


def _width(operand: str) -> str:
    """The type of an address: registers of shared memory's have 32 bits."""
    return "u32" if operand.startswith("[%r") and not operand.startswith("[%rd") else "u64"


def _vector(i: Instruction, operand: str, f: Frame) -> tuple[list[Place], np.dtype]:
    return [f.place(name, i.type) for name in _names(operand)], dtype_of(i.type)


def _load(i: Instruction, f: Frame) -> Run:
    if i.opcode[1] == "param" and not i.operands[1].startswith("[%"):
        return _load_parameter(i, f)
    parts, dtype = _vector(i, i.operands[0], f)
    address, size = address_of(i.operands[1], f, _width(i.operands[1])), dtype.itemsize * len(parts)

    def run(lanes: Lanes) -> None:
        found = f.read(address(lanes), size, f.ids(lanes)).view(dtype)
        for n, part in enumerate(parts):
            part[lanes] = found[:, n]

    return run


def _store(i: Instruction, f: Frame) -> Run:
    if i.opcode[1] == "param":
        return _store_parameter(i, f)
    parts, dtype = _vector(i, i.operands[1], f)
    address = address_of(i.operands[0], f, _width(i.operands[0]))

    def run(lanes: Lanes) -> None:
        values = np.stack([part[lanes] for part in parts], 1).astype(dtype, copy=False)
        f.write(address(lanes), np.ascontiguousarray(values), f.ids(lanes))

    return run


def _parameter(operand: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(operand)
    assert found, operand
    return found[1], int(found[2] or 0)


def _load_parameter(i: Instruction, f: Frame) -> Run:
    parts, dtype = _vector(i, i.operands[0], f)
    name, offset = _parameter(i.operands[1])
    frame = f.parameters(name)

    def run(lanes: Lanes) -> None:
        for n, part in enumerate(parts):
            at = offset + n * dtype.itemsize
            part[lanes] = np.ascontiguousarray(frame[lanes, at : at + dtype.itemsize]).view(dtype)[:, 0]

    return run


def _store_parameter(i: Instruction, f: Frame) -> Run:
    parts, dtype = _vector(i, i.operands[1], f)
    name, offset = _parameter(i.operands[0])
    frame = f.parameters(name)

    def run(lanes: Lanes) -> None:
        for n, part in enumerate(parts):
            at = offset + n * dtype.itemsize
            values = np.ascontiguousarray(part[lanes]).astype(dtype, copy=False)
            frame[lanes, at : at + dtype.itemsize] = values.view(np.uint8).reshape(len(values), -1)

    return run


def _address(i: Instruction, f: Frame) -> Run:
    """All memory has one space of addresses here."""
    to, given = f.place(i.operands[0], i.type), f.place(i.operands[1], i.type)
    return _put(to, lambda lanes: given[lanes])


# -- barriers and copies -----------------------------------------------------------------------------------------------


def _each(f: Frame, lanes: Lanes, *columns: np.ndarray) -> zip:
    """Threads with their numbers, as Python has them."""
    return zip(f.ids(lanes).tolist(), *(c.tolist() for c in columns), strict=True)


def _make_barrier(i: Instruction, f: Frame) -> Run:
    place = address_of(i.operands[0], f, "u32")
    assert i.operands[1] == "1"

    def run(lanes: Lanes) -> None:
        for thread, at in _each(f, lanes, place(lanes)):
            f.shared.make_barrier(at, thread)

    return run


def _expect(i: Instruction, f: Frame) -> Run:
    place, size = address_of(i.operands[1], f, "u32"), f.place(i.operands[2], "u32")

    def run(lanes: Lanes) -> None:
        for thread, at, count in _each(f, lanes, place(lanes), size[lanes]):
            f.shared.expect(at, count, thread)

    return run


def _try_wait(i: Instruction, f: Frame) -> Run:
    to, place, parity = (
        f.place(i.operands[0], "pred"),
        address_of(i.operands[1], f, "u32"),
        f.place(i.operands[2], "u32"),
    )

    def run(lanes: Lanes) -> None:
        (at,) = set(place(lanes).tolist())
        done = f.shared.try_wait(at, parity[lanes], f.ids(lanes))
        to[lanes] = done
        f.waited(bool(done.all()))

    return run


def _bulk_in(i: Instruction, f: Frame) -> Run:
    to, source = address_of(i.operands[0], f, "u32"), address_of(i.operands[1], f, "u64")
    size, barrier = f.place(i.operands[2], "u32"), address_of(i.operands[3], f, "u32")

    def run(lanes: Lanes) -> None:
        for thread, *given in _each(f, lanes, to(lanes), source(lanes), size[lanes], barrier(lanes)):
            f.shared.bulk_in(*given, thread)

    return run


def _bulk_out(i: Instruction, f: Frame) -> Run:
    to, source = address_of(i.operands[0], f, "u64"), address_of(i.operands[1], f, "u32")
    size = f.place(i.operands[2], "u32")

    def run(lanes: Lanes) -> None:
        for thread, *given in _each(f, lanes, to(lanes), source(lanes), size[lanes]):
            f.shared.bulk_out(*given, thread)

    return run


def _ask(i: Instruction, f: Frame) -> Run:
    to, source = address_of(i.operands[0], f, "u32"), address_of(i.operands[1], f, "u64")
    size = int(i.operands[2])
    return lambda lanes: f.shared.ask(to(lanes), source(lanes), size, f.ids(lanes))


def _nothing(i: Instruction, f: Frame) -> Run:
    return lambda lanes: None


def _fence(i: Instruction, f: Frame) -> Run:
    return lambda lanes: f.shared.fence(f.ids(lanes))


def _commit_out(i: Instruction, f: Frame) -> Run:
    def run(lanes: Lanes) -> None:
        f.shared.proxies.groups_out[lanes] += 1

    return run


def _commit_in(i: Instruction, f: Frame) -> Run:
    def run(lanes: Lanes) -> None:
        f.shared.proxies.groups_in[lanes] += 1

    return run


def _drain(i: Instruction, f: Frame) -> Run:
    assert i.operands == ("0",)
    return lambda lanes: f.shared.drain(f.ids(lanes))


def _wait_groups(i: Instruction, f: Frame) -> Run:
    left = int(i.operands[0])
    return lambda lanes: f.shared.wait_for_groups(left, f.ids(lanes))


_BY_OPCODE: dict[str, Callable[[Instruction, Frame], Run]] = {
    **dict.fromkeys(arithmetic.BINARY, _binary),
    **dict.fromkeys(arithmetic.UNARY, _unary),
    "mad": _product,
    "fma": _fused,
    "mov": _move,
    "setp": _compare,
    "selp": _select,
    "cvt": _convert,
    "bfi": _insert,
    "bfe": _extract,
    "prmt": _permute,
    "dp2a": _dot,
    "shfl": _shuffle,
    "ld": _load,
    "st": _store,
    "cvta": _address,
}
_BY_NAME: dict[str, Callable[[Instruction, Frame], Run]] = {
    **{f"mul.{how}.{type_}": _product for how in ("hi", "wide", "lo") for type_ in ("s32", "u32", "s64", "u16", "s16")},
    "mbarrier.init.shared::cta.b64": _make_barrier,
    "mbarrier.arrive.expect_tx.shared::cta.b64": _expect,
    "mbarrier.try_wait.parity.shared::cta.b64": _try_wait,
    "fence.mbarrier_init.release.cluster": _nothing,
    "fence.proxy.async.shared::cta": _fence,
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes": _bulk_in,
    "cp.async.bulk.global.shared::cta.bulk_group": _bulk_out,
    "cp.async.bulk.commit_group": _commit_out,
    "cp.async.bulk.wait_group.read": _drain,
    "cp.async.ca.shared.global": _ask,
    "cp.async.cg.shared.global": _ask,
    "cp.async.commit_group": _commit_in,
    "cp.async.wait_group": _wait_groups,
}
