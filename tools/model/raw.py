# SPDX-License-Identifier: Apache-2.0
"""Opcodes and branches straight from machine code: what the tests need, without nvdisasm.

An instruction since sm_70 has 128 bits. Bits 0 to 8 are the operation, 9 to 11 the form of its operands, 12 to 15 the
predicate (7: always; bit 15 negates). All of it was compared with nvdisasm on this library's kernels: sm_80 to 120.
"""

from __future__ import annotations

import struct
from collections import Counter

from .elf import KernelCode
from .flow import SMALL_COPY, Flow

BYTES = 16
NAMES = {
    0x03B: "LDSM", 0x03C: "HMMA", 0x108: "MUFU", 0x11A: "DEPBAR", 0x11D: "BAR", 0x142: "BREAK", 0x143: "CALL",
    0x144: "CALL", 0x147: "BRA", 0x149: "BRX", 0x14D: "EXIT", 0x150: "RET", 0x181: "LDG", 0x183: "LDL",
    0x184: "LDS", 0x186: "STG", 0x187: "STL", 0x188: "STS", 0x189: "SHFL", 0x1AE: "LDGSTS", 0x1AF: "LDGDEPBAR",
}  # fmt: skip
KNOWN = set(NAMES.values())
ALWAYS = 7


def decode(kernel: KernelCode, arch: int) -> list[Flow]:
    """One entry an instruction; operations without a name here are '?'."""
    words = struct.iter_unpack("<QQ", kernel.code)
    return [_instruction(low, high, i * BYTES, arch, kernel.subroutines) for i, (low, high) in enumerate(words)]


def _instruction(low: int, high: int, address: int, arch: int, subroutines: set[int]) -> Flow:
    name = NAMES.get(low & 0x1FF, "?")
    predicate = low >> 12 & 15
    if predicate == 8 + ALWAYS:  # never: ptxas pads copies with such loads
        return Flow(address, "?", None, True, False)
    if name == "LDGSTS" and high >> 9 & 7 != (4 if arch >= 100 else 6):
        name = SMALL_COPY
    if name in ("BRA", "CALL"):
        target = _target(low, high, address, arch)
        # ptxas leaves loops on sm_80 by a CALL that never returns; a real one comes back.
        if name == "BRA" or target not in subroutines:
            return Flow(address, name, target, _is_conditional(low, high), False)
    return Flow(address, name, None, predicate != ALWAYS, name in ("EXIT", "RET", "BRX"), predicate)


def _target(low: int, high: int, address: int, arch: int) -> int:
    """Bits 34 to 81, signed, count 4 bytes from the next instruction; sm_90 put 8 lower bits into bits 16 to 23."""
    field = (low | high << 64) >> 34 & (1 << 48) - 1
    bits = 48
    if arch >= 90:
        field, bits = field << 8 | low >> 16 & 0xFF, 56
    if field >> bits - 1:
        field -= 1 << bits
    return address + BYTES + 4 * field


def _is_conditional(low: int, high: int) -> bool:
    """By its predicate, by a second one (bits 87 to 90), or by bits 32, 33: a uniform predicate, or "if diverged"."""
    return low >> 12 & 15 != ALWAYS or high >> 23 & 15 != ALWAYS or low >> 32 & 3 != 0


def count(code: bytes) -> Counter[str]:
    """How often each known operation is in the code, executed or not."""
    return Counter(NAMES.get(low & 0x1FF, "?") for low, _ in struct.iter_unpack("<QQ", code))
