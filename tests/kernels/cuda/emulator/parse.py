"""PTX as data: the tables of a text, and the instructions of its functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TABLE = re.compile(r"\.(?:global|const) \.align \d+ \.b8 (\w+)\[(\d+)\](?: = \{([^}]*)\})?;")
_FUNCTION = re.compile(r"(?:\.entry|\.func) (\w+)\((.*?)\)(.*?)\n\{(.*?)\n\}", re.DOTALL)
_LABEL = re.compile(r"(\$\w+):\s*")
_GUARD = re.compile(r"@(!?)(%?\w+)\s+")
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+(%?[a-z_]+)(<\d+>)?")


@dataclass(frozen=True)
class Instruction:
    """An opcode, cut at its dots, with its operands; with a guard, lanes run it where that predicate says so."""

    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.opcode)

    @property
    def type(self) -> str:
        return self.opcode[-1]

    def __str__(self) -> str:
        return f"{self.name} {', '.join(self.operands)}"


@dataclass(frozen=True)
class Function:
    """Instructions, where each label stands among them, and the types of registers by the letters of their names."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    registers: dict[str, str]

    def type_of(self, register: str) -> str:
        return self.registers.get(register) or self.registers[register.rstrip("0123456789")]


@dataclass(frozen=True)
class Module:
    """A text."""

    tables: dict[str, bytes]
    functions: dict[str, Function]


def parse(text: str) -> Module:
    """Read what NVRTC wrote.

    >>> body = ".reg .b32 %r<3>; @!%p1 add.s32 %r1, %r2, 5;\\n$L: st.shared.v2.u32 [%r1+8], {%r1, %r2};"
    >>> found = parse(f".visible .entry f(){chr(10)}{{{body}{chr(10)}}}").functions["f"]
    >>> [str(i) for i in found.instructions], found.labels, found.type_of("%r2")
    (['add.s32 %r1, %r2, 5', 'st.shared.v2.u32 [%r1+8], {%r1, %r2}'], {'$L': 1}, 'b32')
    """
    text = re.sub(r"//[^\n]*", "", text)
    tables = {name: _bytes(int(size), values) for name, size, values in _TABLE.findall(text)}
    return Module(tables, {name: _function(name, body) for name, _, _, body in _FUNCTION.findall(text)})


def _bytes(size: int, values: str) -> bytes:
    return bytes(int(v) for v in values.split(",") if v.strip()).ljust(size, b"\0")


def _function(name: str, body: str) -> Function:
    instructions, labels, registers = list[Instruction](), dict[str, int](), dict[str, str]()
    for statement in body.split(";"):
        line = " ".join(statement.split()).lstrip("{} ")
        while label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
            line = line[label.end() :].lstrip("{} ")
        if found := _REGISTERS.match(line):
            registers[found[2]] = found[1]
        elif line and not line.startswith("."):
            instructions.append(_instruction(line))
    return Function(name, tuple(instructions), labels, registers)


def _instruction(line: str) -> Instruction:
    guard = _GUARD.match(line)
    opcode, _, rest = line[guard.end() if guard else 0 :].partition(" ")
    given = (guard[2], guard[1] == "!") if guard else ("", False)
    return Instruction(tuple(opcode.split(".")), tuple(_operands(rest)), *given)


def _operands(text: str) -> Iterator[str]:
    """Parts between commas, but for commas within brackets of any kind."""
    depth, part = 0, ""
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += letter
    if part.strip():
        yield part.strip()
