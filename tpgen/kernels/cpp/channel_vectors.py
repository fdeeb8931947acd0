"""Moves of vectors of channels in and out of registers: from memory, from tiles of memory, or from scratch."""

from __future__ import annotations

from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.placement.channel import ChannelPlacement, identifier
from tpgen.kernels.placement.values import View
from tpgen.kernels.sweep.terms import INDEX, PathTerm, operand_of

_LOCAL = {"x1": "x", "x2": "y", "w": "u", "out": "g"}  # arrays of vectors inside a loop over channels


def local(slot: str) -> str:
    """The array of vectors of a slot inside a loop over channels.

    >>> local("x1"), local("x1.1")
    ('x', 'x_1')
    """
    operand = operand_of(slot)
    return identifier(_LOCAL[operand] + slot[len(operand) :])


def fetch(w: Writer, p: ChannelPlacement, term: PathTerm, slot: str, indices: list[int]) -> None:
    """Declare the vectors of a slot."""
    view = p.schedule.view(term, operand_of(slot))
    assert view is not None
    name, memory = local(slot), identifier(slot)
    array = f"{name}[{view.components}]"
    if p.staged(view):
        values = [(n, f"load({_scratch(p, view, term, n, f's_{memory}')})") for n in indices]
    elif view.inner == 1:
        values = [(n, f"fetch({_memory(p, view, term, n, memory)})") for n in indices]
    else:
        at = _memory(p, view, term, 0, memory)
        w.line(f"vec {array}; Tile<{view.inner}>::fetch_items({at}, {name});")
        return
    w.line(f"vec {array}; " + " ".join(f"{name}[{n}] = {text};" for n, text in values))


def deliver(w: Writer, p: ChannelPlacement, term: PathTerm, operand: str, values: dict[int, str]) -> None:
    """Store or add the vectors computed for one open slot; what is stored is stored whole."""
    view = p.schedule.view(term, operand)
    assert view is not None
    listed = [values.get(n, "vec{}") for n in range(view.components)]
    if p.staged(view):
        stores = p.stores(view, term)
        for n, value in enumerate(listed):
            if stores or n in values:
                w.line(f"{'store' if stores else 'add'}({_scratch(p, view, term, n, f'a_{operand}')}, {value});")
    elif view.inner == 1:
        for n, value in enumerate(listed):
            w.line(f"put({_memory(p, view, term, n, f'd_{operand}')}, {value});")
    else:
        w.line(f"const vec o_{operand}[{view.components}] = {{{', '.join(listed)}}};")
        w.line(f"Tile<{view.inner}>::put_items({_memory(p, view, term, 0, f'd_{operand}')}, o_{operand});")


def _scratch(p: ChannelPlacement, view: View, term: PathTerm, index: int, base: str) -> str:
    """Address of vector ``c`` of one component in scratch."""
    strides = view.strides()
    offset = view.scratch + index * strides.get(INDEX.get(view.operand, ""), 0)
    loop = strides.get(p.schedule.loop(term)[0], 0)
    return f"{base} + {offset} + " + (f"v * {loop} + c" if loop else "c")


def _memory(p: ChannelPlacement, view: View, term: PathTerm, index: int, base: str) -> str:
    """Address of vector ``c`` in memory, or of the tile that starts there, for segments that are not staged."""
    strides = view.memory_strides()
    offset = view.start + index * strides.get(INDEX.get(view.operand, ""), 0)
    loop = strides.get(p.schedule.loop(term)[0], 0)
    return (
        f"{base} + {offset} + " + (f"v * {loop} + " if loop else "") + ("c" if view.inner == 1 else f"c * {view.inner}")
    )
