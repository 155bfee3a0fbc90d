# SPDX-License-Identifier: Apache-2.0
"""A listing of nvdisasm -c, with what each instruction reads and writes, and the blocks between branches.

An instruction that is not in the table here is an error: nothing is passed over.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tools.model import sass

LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z0-9_.]+)\s*(.*?)\s*;")
LABEL = re.compile(r"^([.$]\S+):")
NAMED = re.compile(r"`\(([^)]*)\)")
TABLE = re.compile(r'BRANCH_TARGETS ([^"]*)"')
REGISTER = re.compile(r"(?<![A-Z_])R(\d+)(\.64)?")
PREDICATE = re.compile(r"(?<![A-Z_])P([0-6])")

PREDICATES = 256  # the number of P0; R0 is 0
SIZE = PREDICATES + 7

WRITES_NOTHING = set(
    "BAR BRA BREAK BRX BRXU BSSY BSYNC CALL DEPBAR ENDCOLLECTIVE EXIT LDGDEPBAR LDGSTS MEMBAR NOP RED REDG RET ST STG STL "
    "STS WARPSYNC YIELD ACQBULK ERRBAR CCTL".split()
)
WRITES_PREDICATES = {"DSETP", "FCHK", "FSETP", "HSETP2", "ISETP", "PLOP3"}
WRITES = set(
    "ATOMG ATOMS BREV CS2R DADD DFMA DMUL F2F F2FP F2I FADD FFMA FLO FMNMX FMNMX3 FMUL FRND FSEL FSET HADD2 HFMA2 HMMA "
    "HMUL2 I2F I2FP IABS IADD IADD3 IMAD IMNMX LD LDC LDG LDL LDS LDSM LEA LOP3 MOV MUFU P2R POPC PRMT S2R SEL SHF SHFL "
    "VIADD VIADDMNMX VIMNMX VIMNMX3 VOTE".split()
)
WRITES_UNIFORM = re.compile(r"U[A-Z0-9]+|LDCU|S2UR|R2UR|VOTEU|REDUX")
PAIRS = {"DADD", "DFMA", "DMUL", "DSETP"}  # their registers are pairs, and so are those of, for example, IADD.64
PAIRS_64 = {"IADD", "ISETP", "MOV", "SEL"}
CONVERTS = {"F2F", "F2I", "I2F"}  # from 64 bits, or to them: no harm in reading one register more


class UnknownInstruction(Exception):
    """The message has its text."""


@dataclass
class Instruction:
    address: int
    guard: str  # P0, !P1, UP2; nothing for always
    opcode: str  # IMAD.WIDE.U32
    operands: list[str]
    targets: list[str]  # labels that it may go to
    results: int = 0  # how many of the operands it writes
    writes: list[int] = field(default_factory=list)  # registers and predicates
    reads: list[int] = field(default_factory=list)  # without its guard
    calls: list[Instruction] = field(default_factory=list)  # the subroutine that it calls

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def guarded_by(self) -> list[int]:
        return _predicates(self.guard)

    def __str__(self) -> str:
        return f"{self.address:05x} {'@' if self.guard else ''}{self.guard} {self.opcode} {', '.join(self.operands)}"


@dataclass
class Block:
    code: list[Instruction]
    next: list[int]
    exits: bool = False  # some thread may end here


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()]


def _predicates(text: str) -> list[int]:
    return [PREDICATES + int(p) for p in PREDICATE.findall(text)]


def _registers(text: str, pairs: bool) -> list[int]:
    found = []
    for number, wide in REGISTER.findall(text):
        found.append(int(number))
        if wide or pairs:
            found.append(int(number) + 1)
    return found


def _width(opcode: str) -> int:
    """Registers of a result."""
    name, *parts = opcode.split(".")
    if name == "HMMA" or "128" in parts:
        return 4
    if name == "LDSM":
        return int(parts[-1]) if parts[-1] in "124" else 4
    if (
        name in PAIRS
        or "64" in parts
        or "WIDE" in parts
        or "F64" in parts[:1]
        or (name == "CS2R" and "32" not in parts)
    ):
        return 2
    if name in ("F2I", "F2F", "I2F") and any("64" in p for p in parts):
        return 2
    return 1


def _results(opcode: str, operands: list[str]) -> int:
    """How many of the operands are written: a register or predicate, and predicates for carries right behind it."""
    name = opcode.partition(".")[0]
    if name in ("PLOP3", "ISETP", "FSETP", "DSETP", "HSETP2"):
        return 2
    if name == "FCHK":
        return 1
    if name == "VOTE":
        return 1 if operands[0].startswith("P") else 2
    if name in ("SHFL", "LOP3", "ATOMG", "ATOMS") and operands[0].startswith("P"):
        return 2
    count = 1
    while count < min(3, len(operands)) and re.fullmatch(r"P[0-6T]", operands[count]):
        count += 1
    return count


def _reads_pair(i: Instruction, at: int) -> bool:
    """Is the register of an operand one of two that are read? What is stored, or an address, decides nothing."""
    parts = i.opcode.split(".")[1:]
    if i.name in PAIRS or i.name in CONVERTS and ("F64" in parts or "S64" in parts or "U64" in parts):
        return True
    if i.name in PAIRS_64 and any(part in ("64", "S64", "U64") for part in parts):
        return True
    return at == len(i.operands) - 1 and i.name == "IMAD" and ("WIDE" in parts or "HI" in parts)  # what is added


def _fill(i: Instruction) -> None:
    name = i.name
    if name in WRITES_PREDICATES or name in WRITES:
        i.results = _results(i.opcode, i.operands)
        for text in i.operands[: i.results]:
            i.writes += _predicates(text)
            if match := re.fullmatch(r"R(\d+)(?:\.64)?", text):
                i.writes += [int(match[1]) + k for k in range(_width(i.opcode))]
    elif name == "R2UR":  # may leave a predicate besides
        i.writes += [p for text in i.operands[:2] for p in _predicates(text)]
    elif name == "R2P":
        i.writes += range(PREDICATES, SIZE)
    elif name not in WRITES_NOTHING and not WRITES_UNIFORM.fullmatch(name):
        raise UnknownInstruction(str(i))
    for at, text in enumerate(i.operands[i.results :], i.results):
        if text == "PR":  # those of a mask
            i.reads += [p for p in range(PREDICATES, SIZE) if int(i.operands[-1], 0) >> p - PREDICATES & 1]
        i.reads += _predicates(text)
        i.reads += _registers(text, _reads_pair(i, at))


def _instruction(match: re.Match[str]) -> Instruction:
    address, guard, opcode, rest = match.groups()
    targets = NAMED.findall(rest)
    if table := TABLE.search(rest):
        targets = table[1].split(",")
    rest = NAMED.sub("", rest.partition("(*")[0])
    guard = guard if guard and guard.lstrip("!") not in ("PT", "UPT") else ("!PT" if guard and guard[0] == "!" else "")
    i = Instruction(int(address, 16), guard, opcode, _split(rest), targets)
    _fill(i)
    return i


def read(text: str) -> dict[str, list[Block]]:
    """Blocks of every kernel."""
    kernels: dict[str, tuple[list[Instruction], dict[str, int]]] = {}
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if match := sass.SECTION.match(line):
            code, labels = kernels.setdefault(match[1], ([], {}))
        elif match := LABEL.match(line):
            labels[match[1]] = len(code)
        elif match := LINE.match(line):
            code.append(_instruction(match))
    return {name: _blocks(code, labels) for name, (code, labels) in kernels.items() if code}


def disassemble(cubin: Path) -> dict[str, list[Block]]:
    command = [sass.find_nvdisasm(), "-c", str(cubin)]
    return read(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


JUMPS = {"BRA", "BRX", "BRXU", "CALL", "RET", "EXIT"}


def _subroutines(code: list[Instruction], labels: dict[str, int]) -> dict[str, list[Instruction]]:
    """The compiler's own functions, behind the kernel: $__internal_3_$__cuda_sm20_div_s64 and its like."""
    starts = sorted((at, label) for label, at in labels.items() if label.startswith("$__internal"))
    ends = [at for at, _ in starts[1:]] + [len(code)]
    return {label: code[at:end] for (at, label), end in zip(starts, ends)}


def _may_fall(jump: Instruction) -> bool:
    return bool(jump.guard) or (jump.name == "BRA" and bool(jump.operands))


def _blocks(code: list[Instruction], labels: dict[str, int]) -> list[Block]:
    """A call of a subroutine is one instruction that writes what the subroutine writes, and comes back. ptxas also leaves
    loops by a call, which never returns: that is a jump. BRA.DIV is none: it goes elsewhere where lanes are apart, and
    that they are not is what is to be shown."""
    inside = _subroutines(code, labels)
    for i in code:
        if i.name == "CALL" and i.targets[0] in inside:
            body = inside[i.targets[0]]
            i.calls = body
            i.writes = sorted({r for each in body for r in each.writes})
            i.targets = []
    jumps = [i.name in JUMPS and i.guard != "!PT" and i.opcode != "BRA.DIV" and not i.calls for i in code]
    starts, todo, seen = {0}, [0], set()
    while todo:  # only labels that something goes to part blocks
        at = todo.pop()
        if at in seen or at >= len(code):
            continue
        seen.add(at)
        after = [labels[t] for t in code[at].targets if t in labels] if jumps[at] else []
        if jumps[at]:
            starts.update(after, [at + 1])
        if not jumps[at] or _may_fall(code[at]):
            after.append(at + 1)
        todo += after
    order = sorted(at for at in starts if at < len(code))
    number = {at: b for b, at in enumerate(order)}
    blocks = []
    for first, end in zip(order, [*order[1:], len(code)]):
        last, is_jump = code[end - 1], jumps[end - 1]
        after = [number[end]] if (not is_jump or _may_fall(last)) and end in number else []
        if is_jump:
            after += [number[labels[t]] for t in last.targets if labels.get(t) in number]
        blocks.append(Block(code[first:end], after, is_jump and last.name == "EXIT"))
    return blocks
