# SPDX-License-Identifier: Apache-2.0
"""One instruction: which pipe takes it and how long, and how many registers it reads from each bank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .machine import Machine
from .sass import Instruction


def _names(text: str) -> set[str]:
    return set(text.split())


FP32 = _names("FFMA FMUL FADD FFMA2 FADD2 FMUL2 FFMA32I FADD32I FMUL32I")
FP16 = _names("HFMA2 HADD2 HMUL2 HSET2 HSETP2 HMNMX2 HFMA2_BF16 HMUL2_BF16 HADD2_BF16")
ALU = _names(
    "IADD3 LOP3 SHF LEA ISETP FSETP FMNMX FMNMX3 IMNMX SEL FSEL MOV PRMT PLOP3 F2FP IABS P2R R2P SGXT VIADD "
    "VIMNMX FCHK FSET VOTE LOP IADD MOV32I CS2R BMSK ISCADD VABSDIFF VIADDMNMX IADD32I R2UR VOTEU"
)
MUFU = _names("MUFU F2F F2I I2F FRND POPC FLO BREV I2FP")
CONTROL = _names(
    "BAR DEPBAR LDGDEPBAR BRA NOP WARPSYNC BSSY BSYNC EXIT CALL RET YIELD NANOSLEEP MEMBAR ERRBAR CCTL ACQBULK "
    "BREAK BMOV ENDCOLLECTIVE FENCE UTMACMDFLUSH CGAERRBAR KILL SYNCS ELECT BRX"
)
SPECIAL = _names("S2R S2UR LDC LDCU ULDC")
GLOBAL = _names("LDG LD STG ST RED ATOM ATOMG")
WITHOUT_RESULT = _names("STS STG STL RED LDGSTS BAR BRA ST")
REGISTER = re.compile(r"(?<![U\w])R(\d+)((?:\.\w+)*)")


class UnknownOpcode(Exception):
    """An instruction that no table has: add it to one of them."""


@dataclass(frozen=True)
class Use:
    """pipe 'none' is for what only takes an issue slot; 'memory' for everything that queues for shared memory."""

    pipe: str
    interval: float = 1
    port: float = 0  # clocks of the multiprocessor's shared memory port
    latency: float = 0


def _bytes(opcode: str) -> int:
    return 16 if ".128" in opcode else 8 if ".64" in opcode else 4


def warp_bytes(i: Instruction) -> int:
    """What a whole warp moves."""
    return 32 * _bytes(i.opcode)


def use_of(i: Instruction, m: Machine) -> Use:
    """Raises UnknownOpcode."""
    if i.name == "HMMA":
        return Use("tensor", m.hmma * (0.5 if ".1688" in i.opcode else 1))
    if i.name in FP32:
        return Use("fp32", m.fp32)
    if i.name == "IMAD" or (i.name == "HFMA2" and ".MMA" in i.opcode):
        wide = 2 if "WIDE" in i.opcode or ".HI" in i.opcode else 1
        return Use("fp32" if m.fp32 >= 2 else "imad", wide * m.imad)
    if i.name in FP16:
        return Use("fp16", m.fp16)
    if i.name in ALU:
        return Use("alu", m.alu)
    if i.name in MUFU:
        return Use("mufu", m.mufu, 0, m.mufu_latency)
    if i.predicate == "@!PT" or i.name in CONTROL:
        return Use("none")
    if i.name in SPECIAL:
        return Use("none", 1, 0, m.special_latency)
    memory = _memory_use(i, m)
    if memory:
        return memory
    if i.name.startswith("U"):
        return Use("uniform", m.uniform)
    raise UnknownOpcode(f"the model does not know {i.opcode}: add it to a table in tools/model/pipes.py")


def _memory_use(i: Instruction, m: Machine) -> Use | None:
    port = warp_bytes(i) / m.shared_port
    if i.name == "LDSM":
        matrices = 4 if ".4" in i.opcode else 2 if ".2" in i.opcode else 1
        return Use("memory", m.memory_interval, matrices * 128 / m.shared_port * m.conflicts, m.ldsm_latency)
    if i.name in ("LDS", "LDL"):
        return Use("memory", m.memory_interval, port * (m.conflicts if i.name == "LDS" else 1), m.lds_latency)
    if i.name in ("STS", "STL", "ATOMS", "STSM"):
        return Use("memory", m.memory_interval, port, m.lds_latency)
    if i.name in ("SHFL", "REDUX", "MATCH", "MOVM"):
        return Use("memory", m.memory_interval, 1, m.shuffle_latency)
    if i.name == "LDGSTS":
        return Use("memory", m.memory_interval, port, m.l2_latency)
    if i.name in GLOBAL:  # 4 bytes a lane take 2 clocks, 16 take 8
        return Use("memory", m.memory_interval, 2 * port, m.l2_latency)
    return None


# -------------------------------------------------------------------------------------------------- register ports ---


def _sources(i: Instruction) -> list[str]:
    operands = i.operands.split(",")
    if i.name in WITHOUT_RESULT:
        return operands
    has_two_results = i.name in ("ISETP", "FSETP", "PLOP3") and len(operands) > 2
    return operands[2:] if has_two_results and operands[1].strip().startswith(("P", "R")) else operands[1:]


def _width(i: Instruction, slot: int, suffix: str) -> int:
    if i.name == "HMMA" and slot < 3:
        return ((4, 2, 4) if "16816" in i.opcode else (2, 1, 4))[slot]
    return 2 if ".64" in suffix else 1


def register_reads(path: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Reads from the even and the odd bank, for each instruction of a path.

    An operand is free if the instruction before had the same register in the same place and marked it .reuse.
    """
    kept: dict[int, str] = {}  # place -> register in the reuse cache
    out = []
    for i in path:
        reads, keeps = [0, 0], {}
        for slot, operand in enumerate(_sources(i)):
            for n, match in enumerate(REGISTER.finditer(operand)):
                if n == 0 and "reuse" in match[2]:
                    keeps[slot] = match[1]
                if kept.get(slot) == match[1] or i.predicate == "@!PT":
                    continue
                for k in range(_width(i, slot, match[2])):
                    reads[int(match[1]) + k & 1] += 1
        kept = keeps
        out.append((reads[0], reads[1]))
    return out
