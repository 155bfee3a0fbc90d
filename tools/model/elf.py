# SPDX-License-Identifier: Apache-2.0
"""Reads a cubin, which is an ELF file, with the standard library only.

Code is in `.text.KERNEL`; sizes are attributes in `.nv.info`, each (format, number, size or value, data). The numbers
are not documented; those used here were checked against what ptxas -v prints, for sm_80, 90, 100 and 120.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
SYMBOL = struct.Struct("<IBBHQQ")  # name, type, visibility, section, value, size
SYMBOL_TABLE = 2  # a section's type
FUNCTION = 2  # a symbol's type

# .nv.info attributes
MAX_THREADS = 0x05  # of __launch_bounds__: x, y, z
FRAME_SIZE = 0x11  # bytes of local memory a thread, spills and arrays alike
REGISTERS = 0x2F
WITH_DATA = 4  # the format of attributes that have 'size' bytes behind them; others have a value in place of the size

DRIVER_SHARED = 1024  # bytes of every block that the driver keeps since sm_80; ptxas counts them from sm_90 on


@dataclass
class KernelCode:
    """One kernel of a cubin, as the compiler left it."""

    name: str
    code: bytes
    registers: int = 0
    frame: int = 0  # bytes of local memory a thread
    threads: int = 0  # of __launch_bounds__, 0 if not given
    shared: int = 0  # static bytes, without those of the driver
    subroutines: set[int] = field(default_factory=set)  # where the compiler's own functions start (division, votes)


@dataclass
class Cubin:
    path: Path
    arch: int  # 80 for sm_80
    kernels: dict[str, KernelCode]


class NotACubin(Exception):
    """The file is not an ELF file for CUDA."""


@dataclass
class _Section:
    name: str
    kind: int
    offset: int
    size: int
    link: int


@dataclass
class _Symbol:
    name: str
    section: int
    value: int
    is_function: bool


def read_cubin(path: Path) -> Cubin:
    """Everything about the kernels of a file; raises NotACubin."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or len(data) < 64 or struct.unpack_from("<H", data, 18)[0] != 190:
        raise NotACubin(f"{path} is not a cubin")
    arch = struct.unpack_from("<I", data, 0x30)[0] >> 8 & 0xFF
    sections = _sections(data)
    kernels = {
        s.name[6:]: KernelCode(s.name[6:], data[s.offset : s.offset + s.size])
        for s in sections
        if s.name.startswith(".text.")
    }
    symbols = _symbols(data, sections)
    for symbol in symbols:
        kernel = kernels.get(sections[symbol.section].name[6:]) if symbol.section < len(sections) else None
        if kernel and symbol.is_function and symbol.name != kernel.name:
            kernel.subroutines.add(symbol.value)
    for section in sections:
        if section.name == ".nv.info":
            _read_common(data, section, symbols, kernels)
        elif section.name.startswith(".nv.info.") and section.name[9:] in kernels:
            _read_own(data, section, kernels[section.name[9:]])
        elif section.name.startswith(".nv.shared.") and section.name[11:] in kernels:
            kernels[section.name[11:]].shared = section.size - (DRIVER_SHARED if arch >= 90 else 0)
    return Cubin(path, arch, kernels)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _sections(data: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count, names = struct.unpack_from("<HHH", data, 0x3A)
    raw = [SECTION.unpack_from(data, table + i * entry) for i in range(count)]
    return [_Section(_text(data, raw[names][4] + s[0]), s[1], s[4], s[5], s[6]) for s in raw]


def _symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    table = next(s for s in sections if s.kind == SYMBOL_TABLE)
    strings = sections[table.link].offset
    raw = SYMBOL.iter_unpack(data[table.offset : table.offset + table.size])
    return [_Symbol(_text(data, strings + s[0]), s[3], s[4], s[1] & 15 == FUNCTION) for s in raw]


def _attributes(data: bytes, section: _Section) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(number, words) of the attributes with data."""
    at, end = section.offset, section.offset + section.size
    while at < end:
        kind, number, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == WITH_DATA:
            yield number, struct.unpack_from(f"<{size // 4}I", data, at)
            at += size


def _read_common(data: bytes, section: _Section, symbols: list[_Symbol], kernels: dict[str, KernelCode]) -> None:
    for number, words in _attributes(data, section):
        if number not in (REGISTERS, FRAME_SIZE):
            continue
        kernel = kernels.get(symbols[words[0]].name)
        if kernel and number == REGISTERS:
            kernel.registers = words[1] & 0xFFFF
        elif kernel:
            kernel.frame = words[1]


def _read_own(data: bytes, section: _Section, kernel: KernelCode) -> None:
    for number, words in _attributes(data, section):
        if number == MAX_THREADS:
            kernel.threads = words[0] * words[1] * words[2]
