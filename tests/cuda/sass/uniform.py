# SPDX-License-Identifier: Apache-2.0
"""Which branches of a kernel are the same for all lanes of a warp.

A register is described by a number b: its bits from b on are the same in all lanes. 0 is uniform; 32 says nothing; the
thread's number has 5, because blocks are one-dimensional, so that tid >> 5, tid & ~31 and tid < 64 are uniform. What is
made of uniform operands alone is uniform, loads included: kernel arguments, the block's number, loads at uniform
addresses. So are votes, and shuffles from one lane. What LDSM and HMMA give is not. A predicate is 0 or 32.

A second number is for reductions: a mask of the bits of a lane's number on which the value depends. x and its twin from the
lane with bit k changed (SHFL.BFLY), added or compared, no longer depend on bit k, also where that is in a later block; after five such steps the mask is 0, and the
result uniform.

An instruction whose guard is uniform is executed by all lanes or by none. Where the block ends with a branch on the same guard,
it has been executed for certain on one of the two ways, and not on the other: `@!P0 MOV R1, ...` and `@!P0 BRA`.

Control counts too: what is written between a branch that is not uniform and the place where all its ways have come
together (its immediate post-dominator) is not uniform, and neither is the result of an instruction whose guard is not.
Both depend on each other, so they are computed in turns until nothing changes. The registers of the uniform datapath
are the warp's and are taken as the compiler's word.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import Dict, Tuple

from listing import PREDICATES, SIZE, Block, Instruction

DIVERGENT = 32
LANE_BITS = 5
NEVER_UNIFORM = {"LDSM", "HMMA", "ATOMG", "ATOMS", "LD", "LDL", "CALL"}  # LD may read what a lane has for itself
ALL_LANES = 31
COMMUTES = {"IMNMX", "VIMNMX", "FMNMX", "FADD", "IADD3", "IADD", "VIMNMX3", "FMNMX3"}  # in their first two operands
Twins = Dict[int, Tuple[int, int]]
CONSTANT = re.compile(r"-?0x[0-9a-f]+|-?\d+")


def _constant(text: str) -> int | None:
    return int(text, 0) & 0xFFFFFFFF if CONSTANT.fullmatch(text) else None


def _number(i: Instruction, at: int) -> int | None:
    """Of an operand that is a register without a sign."""
    match = re.fullmatch(r"R(\d+)(?:\.reuse)?", i.operands[at])
    return int(match[1]) if match else None


def _one(i: Instruction, state: bytearray, at: int) -> int:
    """Of the operand 'at', which is a plain register, or nothing that varies."""
    number = _number(i, at)
    if number is not None:
        return min(DIVERGENT, state[number])
    return 0 if not re.search(r"(?<!U)R\d|(?<!U)P\d", i.operands[at]) else DIVERGENT


def _compare(i: Instruction, state: bytearray) -> int:
    """tid < 64 and its like: uniform, because the bits that vary do not reach the bound."""
    parts, bound = i.opcode.split("."), _constant(i.operands[3])
    if bound is None or "AND" not in parts or i.operands[4] != "PT" or {"EX", "S64", "U64"} & set(parts):
        return DIVERGENT
    low = (1 << _one(i, state, 2)) - 1
    return (
        0
        if ("GE" in parts or "LT" in parts)
        and not bound & low
        or ("GT" in parts or "LE" in parts)
        and not (bound + 1) & low
        else DIVERGENT
    )


def _result(i: Instruction, state: bytearray) -> int:
    """b of what an instruction writes. Most make of uniform operands something uniform, of others something that is not."""
    name, o = i.name, i.operands
    if name == "S2R":
        return LANE_BITS if o[1] == "SR_TID.X" else 0 if o[1].startswith(("SR_CTAID", "SR_CgaCtaId")) else DIVERGENT
    if name == "VOTE":
        return 0
    if name in NEVER_UNIFORM:
        return DIVERGENT
    if name == "SHFL":
        return 0 if i.opcode == "SHFL.IDX" and not _one(i, state, 3) and _constant(o[4]) == 31 else DIVERGENT
    if not any(state[r] for r in i.reads):
        return 0
    if i.opcode == "MOV" or i.opcode.startswith("IMAD.MOV"):
        return max(_one(i, state, k) for k in range(1, len(o)) if not CONSTANT.fullmatch(o[k]) or k < 2)
    if i.opcode.startswith("SHF.R") and o[1] == "RZ" and (by := _constant(o[2])) is not None:
        return max(0, _one(i, state, 3) - by) if _one(i, state, 3) < DIVERGENT else DIVERGENT
    if (i.opcode.startswith("SHF.L.U32") and o[3] == "RZ" or i.opcode == "IMAD.SHL.U32") and o[2] != "RZ":
        by = _constant(o[2])
        if by is not None:
            return min(DIVERGENT, _one(i, state, 1) + (by if name == "SHF" else by.bit_length() - 1))
    if i.opcode == "LEA.HI" and o[2] == o[3] == "RZ" and (by := _constant(o[4])) is not None:
        return max(0, _one(i, state, 1) - (32 - by)) if _one(i, state, 1) < DIVERGENT else DIVERGENT
    if (
        i.opcode == "LOP3.LUT"
        and o[-2:] == ["0xc0", "!PT"]
        and o[-3] == "RZ"
        and (mask := _constant(o[-4])) is not None
    ):
        b = _one(i, state, len(o) - 5)  # and with a constant
        return 0 if not mask & (1 << b) - 1 else min(b, mask.bit_length())
    if name == "ISETP":
        return _compare(i, state)
    return DIVERGENT


def _varies(i: Instruction, state: bytearray, twins: Twins) -> int:
    """The mask of what an instruction writes: that of its operands, but where a value meets its twin of a shuffle."""
    if i.name in NEVER_UNIFORM or i.name == "S2R" or (i.name == "SHFL" and not i.opcode.endswith("BFLY")):
        return ALL_LANES
    mask = 0
    for r in i.reads:
        mask |= state[SIZE + r]
    if i.name in COMMUTES:
        first, second = _number(i, i.results), _number(i, i.results + 1)
        for one, other in ((first, second), (second, first)):
            if one is not None and other is not None and twins.get(one, (None, 0))[0] == other:
                rest = 0
                for r in i.reads:
                    rest |= 0 if r in (one, other) else state[SIZE + r]
                return rest | state[SIZE + other] & ~twins[one][1]
    return mask


def _remember(i: Instruction, twins: Twins) -> None:
    """twins[r] = (source, lanes): r is source of the lane with that other number. A shuffle of lanes that are apart is a
    failure of its own (convergence.py)."""
    for r in i.writes:
        twins.pop(r, None)
        for twin in [t for t, (source, _) in twins.items() if source == r]:
            del twins[twin]
    if i.opcode == "SHFL.BFLY" and not i.guard and _constant(i.operands[4]) == ALL_LANES:
        to, source, lanes = _number(i, 1), _number(i, 2), _constant(i.operands[3])
        if to is not None and source is not None and lanes is not None and to != source:
            twins[to] = source, lanes


def _step(i: Instruction, state: bytearray, diverged: bool, twins: Twins) -> None:
    if not i.writes or i.guard == "!PT":
        return
    if diverged or any(state[p] for p in i.guarded_by):
        b, mask = DIVERGENT, ALL_LANES
    else:
        b, mask = _result(i, state), _varies(i, state, twins)
        if b == 0 or mask == 0:
            b = mask = 0
    for r in i.writes:
        value = b if r < PREDICATES or b == 0 else DIVERGENT
        state[r] = state[r] | value if i.guard else value
        state[SIZE + r] = state[SIZE + r] | mask if i.guard else mask
    _remember(i, twins)


def _ways(block: Block) -> list[tuple[int, list[Instruction]] | None]:
    """What lanes execute on each way from a block, where the guard of the branch that ends it says more of that than the block
    alone does: the guard's predicate, and the block with guards decided from the predicate's last change on."""
    branch = block.code[-1]
    if branch.name != "BRA" or branch.operands or len(branch.guarded_by) != 1 or len(block.next) != 2:
        return [None] * len(block.next)
    predicate = branch.guarded_by[0]
    last = max((k for k, i in enumerate(block.code) if predicate in i.writes), default=-1)
    if not any(i.guarded_by == [predicate] for i in block.code[last + 1 : -1]):
        return [None, None]
    ways: list[tuple[int, list[Instruction]] | None] = []
    for on in (False, True):  # past the branch, and where it goes
        code = block.code[: last + 1]
        for i in block.code[last + 1 :]:
            if i.guarded_by != [predicate]:
                code.append(i)
            elif (i.guard == branch.guard) == on:
                code.append(replace(i, guard=""))
        ways.append((predicate, code))
    return ways


class Uniformity:
    """Finds the branches that lanes may take differently: divergent[block]."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.reached = reachable(blocks, [0])
        self.join = _post_dominators(blocks, self.reached)
        self.ways = {b: _ways(blocks[b]) for b in self.reached}
        self.diverged: set[int] = set()  # blocks between a divergent branch and its join
        self.divergent: set[int] = set()
        self.at: dict[int, bytearray] = {0: bytearray([DIVERGENT] * SIZE + [ALL_LANES] * SIZE)}  # at begins of blocks
        self.twins: dict[int, Twins] = {0: {}}
        self.end: dict[int, bytearray] = {}
        changed = {0}
        while changed:
            self._flow(changed)
            found = {b for b in self.reached if self._is_divergent(b)} - self.divergent
            self.divergent |= found
            changed = set()
            for b in found:
                if self.blocks[b].code[-1].name != "EXIT":
                    changed |= reachable(blocks, blocks[b].next, self.join[b]) - self.diverged
                    self.diverged |= changed

    def _flow(self, changed: set[int]) -> None:
        """To a fixed point, from blocks that have changed. States are joined by "or", which is not less than the larger; of
        twins those are left that all ways have."""
        todo, waiting = deque(sorted(changed)), set(changed)
        while todo:
            b = todo.popleft()
            waiting.discard(b)
            end, twins = self._run(b, self.blocks[b].code)
            self.end[b] = end
            for n, way in zip(self.blocks[b].next, self.ways[b]):
                state, left = self._run(b, way[1]) if way and not end[way[0]] else (end, twins)
                old = self.at.get(n), self.twins.get(n)
                if old[0] is not None and old[1] is not None:
                    state, left = _either(old[0], state), dict(old[1].items() & left.items())
                if (state, left) != old:
                    self.at[n], self.twins[n] = state, left
                    if n not in waiting:
                        waiting.add(n)
                        todo.append(n)

    def _run(self, b: int, code: list[Instruction]) -> tuple[bytearray, Twins]:
        state, twins = bytearray(self.at[b]), dict(self.twins[b])
        for i in code:
            _step(i, state, b in self.diverged, twins)
        return state, twins

    def _is_divergent(self, b: int) -> bool:
        """The last instruction may send lanes to different places."""
        block = self.blocks[b]
        i = block.code[-1]
        if i.name == "EXIT":
            return any(self.end[b][p] for p in i.guarded_by)
        if len(block.next) < 2:
            return False
        return any(self.end[b][r] for r in (*i.guarded_by, *i.reads))


def _either(a: bytearray, b: bytearray) -> bytearray:
    return bytearray((int.from_bytes(a, "little") | int.from_bytes(b, "little")).to_bytes(len(a), "little"))


def reachable(blocks: list[Block], first: list[int], stop: int | None = None) -> set[int]:
    """From the blocks 'first' on, without going through 'stop'."""
    seen: set[int] = set()
    todo = [b for b in first if b != stop]
    while todo:
        b = todo.pop()
        if b not in seen:
            seen.add(b)
            todo += [n for n in blocks[b].next if n != stop]
    return seen


def _post_dominators(blocks: list[Block], reached: set[int]) -> dict[int, int | None]:
    """The immediate one of every block; None: the end of the kernel (Cooper, Harvey and Kennedy's way)."""
    end = len(blocks)
    before: dict[int, list[int]] = {b: [] for b in [*reached, end]}
    after: dict[int, list[int]] = {}
    for b in reached:
        after[b] = [*blocks[b].next, *([end] if blocks[b].exits or not blocks[b].next else [])]
        for n in after[b]:
            before[n].append(b)
    order: list[int] = []  # post order, from the end backwards
    seen = {end}
    stack = [(end, iter(before[end]))]
    while stack:
        b, rest = stack[-1]
        n = next(rest, None)
        if n is None:
            order.append(b)
            stack.pop()
        elif n not in seen:
            seen.add(n)
            stack.append((n, iter(before[n])))
    rank = {b: k for k, b in enumerate(order)}
    join = {end: end}
    changed = True
    while changed:
        changed = False
        for b in reversed(order[:-1]):
            best: int | None = None
            for n in after[b]:
                if n not in join:
                    continue
                other = n
                while best is not None and best != other:
                    while rank[best] < rank[other]:
                        best = join[best]
                    while rank[other] < rank[best]:
                        other = join[other]
                best = other
            if best is not None and join.get(b) != best:
                join[b] = best
                changed = True
    return {b: None if join.get(b, end) == end else join[b] for b in reached}
