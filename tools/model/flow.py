# SPDX-License-Identifier: Apache-2.0
"""The main loop of a kernel, and the way through it that an ordinary iteration takes.

Nothing is executed, so branches have to be guessed. Kernels here have three kinds of code in their loop: work that
every iteration does, the same work written a second time for tiles at an edge, and repairs (a reference that must be
raised, a cursor that wraps). So the ordinary way is the one that

    does most of the work that makes the tile arithmetic: HMMA, then LDSM, then copies,
    and of those ways the one with the fewest instructions, because edges and repairs only add some.

This takes the fast one of two loads, skips a raise after a vote, does not leave the loop early and does not skip the
copy of the next tile. The most copies may be too many, where two loads can follow each other: the number that is
expected decides, if given. Rows that are not there write nothing, so that the shortest way has no stores to global
memory: of a kernel that writes in its loop the way with the most is taken. The counts that kernels.toml expects say
whether all this guessed right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

SMALL_COPY = "LDGSTS.S"  # of 4 or 8 bytes; LDGSTS is one of 16, a chunk of a tile
WORK = ("HMMA", "LDSM", "LDGSTS", SMALL_COPY, "STG")


@dataclass
class Flow:
    """What the flow of control needs to know of an instruction."""

    address: int
    name: str  # first part of the opcode
    target: int | None  # of a branch
    conditional: bool  # it may fall through
    ends: bool  # nothing behind it, unless conditional
    predicate: int = 7  # its number, 7 for always; 8 more if negated


@dataclass
class Block:
    """Instructions first .. last, and the blocks that may follow."""

    first: int
    last: int
    next: list[int] = field(default_factory=list)


@dataclass
class Loop:
    head: int
    latches: list[int]
    body: set[int]


@dataclass
class Way:
    """Blocks of one turn, and what they do."""

    blocks: list[int]
    hmma: int
    ldsm: int
    copies: int
    small: int
    stores: int
    length: int


# block -> copies on the way to it -> (HMMA, LDSM, small copies, stores, minus length), the block and its copies before
Table = dict[int, dict[int, tuple[tuple[int, int, int, int, int], "tuple[int, int] | None"]]]


class Graph:
    """Blocks of a kernel, from its first instruction on; subroutines are not followed."""

    def __init__(self, code: Sequence[Flow], writes: bool = False) -> None:
        self.code = code
        self.writes = writes  # do stores count as work?
        self.blocks = _blocks(code)
        self.order, self.back = _depth_first(self.blocks)
        self.before: list[list[int]] = [[] for _ in self.blocks]
        for block in self.order:
            for after in self.blocks[block].next:
                self.before[after].append(block)

    def loops(self) -> list[Loop]:
        """Natural loops: a head, and all that reaches an edge back to it without passing it."""
        latches: dict[int, list[int]] = {}
        for tail, head in self.back:
            latches.setdefault(head, []).append(tail)
        return [Loop(head, tails, self._body(head, tails)) for head, tails in latches.items()]

    def whole(self) -> Loop:
        """The kernel as a loop: a block that has ended is followed by the next."""
        ends = [b for b in self.order if self.code[self.blocks[b].last].ends]
        return Loop(0, ends, set(self.order))

    def _body(self, head: int, tails: list[int]) -> set[int]:
        body, todo = {head}, list(tails)
        while todo:
            block = todo.pop()
            if block not in body:
                body.add(block)
                todo += self.before[block]
        return body

    def counts(self, block: int) -> list[int]:
        """How much of each kind of WORK a block does, and its length."""
        b = self.blocks[block]
        names = [self.code[i].name for i in range(b.first, b.last + 1)]
        *work, stores = map(names.count, WORK)
        return [*work, stores if self.writes else 0, len(names)]

    def ways(self, loop: Loop) -> list[Way]:
        """For every number of copies the best way from the head to a latch. Edges back are left out: no cycles."""
        hmma, ldsm, copies, small, stores, length = self.counts(loop.head)
        best: Table = {loop.head: {copies: ((hmma, ldsm, small, stores, -length), None)}}
        for block in self.order:
            if block not in best or block not in loop.body:
                continue
            for after in self.blocks[block].next:
                if (block, after) in self.back or after not in loop.body:
                    continue
                hmma, ldsm, copies, small, stores, length = self.counts(after)
                there = best.setdefault(after, {})
                for had, (value, _) in best[block].items():
                    gain = (value[0] + hmma, value[1] + ldsm, value[2] + small, value[3] + stores, value[4] - length)
                    if had + copies not in there or gain > there[had + copies][0]:
                        there[had + copies] = gain, (block, had)
        return [
            Way(_trail(best, latch, copies), value[0], value[1], copies, value[2], value[3], -value[4])
            for latch in loop.latches
            for copies, (value, _) in best.get(latch, {}).items()
        ]


def _trail(best: Table, block: int, copies: int) -> list[int]:
    trail: list[int] = []
    at: tuple[int, int] | None = (block, copies)
    while at:
        trail.append(at[0])
        at = best[at[0]][at[1]][1]
    return trail[::-1]


def _ordinary(ways: list[Way], copies: int | None = None, turns: dict[int, Way] | None = None, trips: int = 1) -> Way:
    """See the head of the file. With a number of copies to expect: the nearest, else the most."""

    def of_copies(way: Way) -> int:
        if copies is None:
            return way.copies
        inside = sum(turns[b].copies for b in way.blocks if b in turns) if turns else 0
        return -abs(way.copies + (trips - 1) * inside - copies)

    return max(ways, key=lambda w: (w.hmma, w.ldsm, of_copies(w), w.small, w.stores, -w.length))


def main_loop(
    code: Sequence[Flow],
    trips: Sequence[int] = (1,),
    copies: int | None = None,
    nested: Sequence[int] = (1,),
    writes: int = 0,
    whole: bool = False,
    each: Sequence[int] = (),
) -> list[int] | None:
    """Instruction numbers in the order of one turn of the main loop; None if no loop has an HMMA.

    The main loop is the one that can do the most HMMA in a turn, the smallest of several. Loops with HMMA inside it are
    done 'trips' times, those that hold such loops themselves 'nested' times, each of them the number in its place, the
    last number also for all that follow: if any is more than once, the main loop is one that has a loop in it. 'copies'
    of 16 bytes are expected in all. Of a kernel that writes in its main loop, loops that do so without HMMA are done
    'writes' times. 'whole': a block does one tile, and the way is that from the kernel's first instruction to its end.
    'each': the copies in one turn of each loop that holds others, where ways differ in them."""
    graph = Graph(code, writes > 0)
    loops = [(found, graph.ways(found)) for found in graph.loops()]
    writing = [(found, ways) for found, ways in loops if any(w.stores for w in ways) and not any(w.hmma for w in ways)]
    loops = [(found, ways) for found, ways in loops if any(w.hmma for w in ways)]
    if not loops:
        return None
    # One product in a loop over tiles: the loop over its chunks does as many HMMA in a turn, and is smaller.
    holding = [one for one in loops if any(other.body < one[0].body for other, _ in loops)]
    holding_two = [one for one in holding if any(other.body < one[0].body for other, _ in holding)]
    around = holding_two if max(nested) > 1 else holding if max(trips) > 1 else []
    loop, ways = max(around or loops, key=lambda found: (max(w.hmma for w in found[1]), -len(found[0].body)))
    if whole:
        loop = graph.whole()
        ways = graph.ways(loop)
    inner = [(o, w) for o, w in loops if o.body < loop.body] if max(trips) * max(nested) > 1 or whole else []
    inner.sort(key=lambda found: graph.order.index(found[0].head))
    holds = [other.head for other, _ in inner if any(o.body < other.body for o, _ in inner)]
    share = copies // (trips[0] * len(inner)) if copies and inner else None
    wanted = dict(zip(holds, each))
    turns = {other.head: _ordinary(w, wanted.get(other.head, share)) for other, w in inner}
    # blocks of all turns of a loop but the last, by its head
    again = {o.head: _ordinary(w).blocks * (writes - 1) for o, w in writing if o.body < loop.body}
    holds_none = [other.head for other, _ in inner if other.head not in holds]
    times = dict(zip(holds, _endless(nested))) | dict(zip(holds_none, _endless(trips)))
    for other, _ in sorted(inner, key=lambda found: len(found[0].body)):
        again[other.head] = _unrolled(turns[other.head].blocks, again) * (times[other.head] - 1)
    best = _ordinary(ways, sum(each)) if each else _ordinary(ways, copies, turns, trips[0])
    blocks = _unrolled(best.blocks, again)
    return [i for b in blocks for i in range(graph.blocks[b].first, graph.blocks[b].last + 1)]


def _endless(numbers: Sequence[int]) -> Iterator[int]:
    return chain(numbers, repeat(numbers[-1]))


def _unrolled(way: list[int], again: dict[int, list[int]]) -> list[int]:
    """A way with the loops inside it done as often as they are."""
    return [b for block in way for b in (*again.get(block, ()), block)]


def tally(path: Sequence[Flow], name: str) -> int:
    """How many of a path's instructions do something. Of those with a predicate and with its opposite, an if and its
    else without a branch, one half counts: the larger."""
    found = Counter(i.predicate for i in path if i.name == name)
    return found.pop(7, 0) + sum(max(found[p], found[p + 8]) for p in range(7))


def _blocks(code: Sequence[Flow]) -> list[Block]:
    number = {c.address: i for i, c in enumerate(code)}
    leaders = {0}
    for i, c in enumerate(code):
        if c.target is not None or c.ends:
            leaders.add(i + 1)
        if c.target is not None and c.target in number:
            leaders.add(number[c.target])
    starts = sorted(s for s in leaders if s < len(code))
    of = {start: b for b, start in enumerate(starts)}
    blocks = [Block(s, e - 1) for s, e in zip(starts, [*starts[1:], len(code)])]
    for block in blocks:
        last = code[block.last]
        falls = last.conditional or not (last.target is not None or last.ends)
        if falls and block.last + 1 in of:
            block.next.append(of[block.last + 1])
        if last.target in number:
            block.next.append(of[number[last.target]])
    return blocks


def _depth_first(blocks: list[Block]) -> tuple[list[int], set[tuple[int, int]]]:
    """Blocks that can be reached, each before its successors except along edges back, and those edges."""
    back: set[tuple[int, int]] = set()
    done: list[int] = []
    state = {0: "open"}
    stack = [(0, iter(blocks[0].next))]
    while stack:
        block, rest = stack[-1]
        after = next(rest, None)
        if after is None:
            state[block] = "done"
            done.append(block)
            stack.pop()
        elif after not in state:
            state[after] = "open"
            stack.append((after, iter(blocks[after].next)))
        elif state[after] == "open":
            back.add((block, after))
    return done[::-1], back
