# SPDX-License-Identifier: Apache-2.0
"""Machine code with operands, from nvdisasm, and the control codes that it does not print.

Bits 105 to 125 of an instruction: stall count (4), yield (1), barrier that the result sets (3), barrier that reading
the operands sets (3), mask of barriers to wait for (6), operands to keep for reuse (4). Barrier 7 means none.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SECTION = re.compile(r"//-+ \.text\.(\S+)")
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?(\S+)\s*(.*?)\s*;\s*/\* 0x[0-9a-f]{16} \*/")
SECOND_WORD = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/")
NO_BARRIER = 7


@dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str  # "@P0", "@!P1", "@!PT" for never, or nothing
    opcode: str  # HMMA.16816.F32.BF16
    operands: str
    stall: int
    sets: int  # barrier of the result
    frees: int  # barrier of the operands
    waits: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        waits = "".join(str(b) if b in self.waits else "-" for b in range(6))
        sets, frees = ("-" if b == NO_BARRIER else str(b) for b in (self.sets, self.frees))
        control = f"wait {waits} free {frees} set {sets} stall {self.stall:2d}"
        return f"{self.address:05x}  {control}  {self.predicate:5s} {self.opcode} {self.operands}"


class NoDisassembler(Exception):
    """nvdisasm was not found; the message says where it was looked for."""


def find_nvdisasm() -> str:
    """$NVDISASM, PATH, or a package that has it (nvidia-cuda-nvdisasm, triton) of this Python or of the tree's .venv."""
    named = os.environ.get("NVDISASM")
    if named:
        if os.access(named, os.X_OK):
            return named
        raise NoDisassembler(f"NVDISASM = {named} is not a program")
    on_path = shutil.which("nvdisasm")
    if on_path:
        return on_path
    own = Path(__file__).resolve().parents[2].glob(".venv/lib/python*/site-packages")
    for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path, *own]:
        for pattern in ("nvidia/*/bin/nvdisasm", "triton/backends/nvidia/bin/nvdisasm"):
            for program in sorted(Path(folder or ".").glob(pattern)):
                if os.access(program, os.X_OK):
                    return str(program)
    raise NoDisassembler(
        "no nvdisasm in $NVDISASM, on PATH or in this Python's packages: pip install -r tools/model/requirements.txt"
    )


def disassemble(cubin: Path) -> dict[str, list[Instruction]]:
    """Instructions of every kernel, subroutines behind them included."""
    text = subprocess.run(
        [find_nvdisasm(), "-c", "-hex", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    kernels: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    first = None
    for line in text.splitlines():
        if match := SECTION.match(line):
            current = kernels.setdefault(match[1], [])
        elif match := INSTRUCTION.match(line):
            first = match
        elif (match := SECOND_WORD.match(line)) and first:
            current.append(_instruction(first, int(match[1], 16) >> 41))
            first = None
    return kernels


def _instruction(match: re.Match[str], control: int) -> Instruction:
    waits = tuple(b for b in range(6) if control >> 11 + b & 1)
    return Instruction(
        int(match[1], 16), match[2] or "", match[3], match[4], control & 15, control >> 5 & 7, control >> 8 & 7, waits
    )
