# SPDX-License-Identifier: Apache-2.0
"""One multiprocessor running the same path again and again: how many cycles does an iteration take?

Four partitions, each issuing at most one instruction a cycle, in order within a warp. A warp may issue when its stall
count has run out, the barriers in its wait mask are clear, its copies have arrived where it waits for them, and pipe
and register ports can take the instruction. Nothing is computed. Warps never end: a block that is done is replaced by
the next, and a model in which fast warps run out of work favours unfair schedules.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .machine import Machine
from .pipes import register_reads, use_of, warp_bytes
from .sass import NO_BARRIER, Instruction

PARTITIONS = 4
PIPES = ("tensor", "fp32", "imad", "fp16", "alu", "mufu", "uniform", "memory")
NEVER = 1 << 60
TO_MEMORY = 4  # cycles from issue to the shared memory pipe
TO_MUFU = 2


@dataclass
class Result:
    cycles: float  # of an iteration
    busy: dict[str, float]  # part of the time that each pipe works


@dataclass
class Step:
    """An instruction of the path, with everything looked up."""

    name: str
    pipe: str
    interval: float
    port: float
    latency: float
    even: int  # register reads
    odd: int
    stall: int
    sets: int
    frees: int
    waits: tuple[int, ...]
    groups: int  # DEPBAR: groups of copies that may be under way; -1: not one
    moved: int  # bytes from L2
    jump: int  # extra cycles behind a taken branch


@dataclass
class Warp:
    block: int
    ready: float
    at: int = 0  # in the path
    turns: int = 0
    waiting: bool = False  # at the barrier
    barriers: list[float] = field(default_factory=lambda: [0.0] * 6)  # when each is clear
    copies: list[float] = field(default_factory=list)  # arrival of those without a group yet
    groups: list[float] = field(default_factory=list)


@dataclass
class Partition:
    warps: list[Warp]
    last: Warp | None = None
    free: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PIPES, 0.0))
    memory_queue: list[float] = field(default_factory=list)  # starts that lie ahead
    mufu_queue: list[float] = field(default_factory=list)
    even: float = 0  # until when the register banks are read
    odd: float = 0


def prepare(path: Sequence[Instruction], machine: Machine) -> list[Step]:
    """Raises pipes.UnknownOpcode."""
    steps = []
    reads = register_reads(path)
    for n, i in enumerate(path):
        use = use_of(i, machine)
        depbar = re.search(r"SB\d, (?:0x)?([0-9a-f]+)", i.operands) if i.name == "DEPBAR" else None
        follows = n + 1 == len(path) or path[n + 1].address == i.address + 16
        steps.append(
            Step(
                i.name, use.pipe, use.interval, use.port, use.latency, *reads[n],
                max(1, i.stall), i.sets, i.frees, i.waits,
                int(depbar[1], 16) if depbar else -1,
                warp_bytes(i) if use.pipe == "memory" and i.name in ("LDGSTS", "LDG") else 0,
                0 if follows or i.name not in ("BRA", "CALL") else machine.branch,
            )
        )  # fmt: skip
    return steps


class Multiprocessor:
    """Give it a path and run() it once."""

    def __init__(self, steps: list[Step], machine: Machine, warps: int, blocks: int, seed: int) -> None:
        self.steps, self.machine, self.block_warps = steps, machine, warps
        chance = random.Random(seed)
        length = sum(s.stall for s in steps)
        self.warps = []
        for block in range(blocks):
            start = block * length // 2 if seed == 0 else chance.randrange(length)
            self.warps += [Warp(block, start + w) for w in range(warps)]
        self.partitions = [Partition(self.warps[p::PARTITIONS]) for p in range(PARTITIONS)]
        self.port = 0.0  # until when shared memory's port is taken,
        self.l2 = 0.0  # and the way from L2
        self.arrived: dict[int, list[Warp]] = {b: [] for b in range(blocks)}
        self.busy: dict[str, float] = defaultdict(float)  # cycles
        self.turns = 0

    def run(self, turns: int, warm_up: int) -> Result:
        """Turns of every warp, the first few not counted."""
        now, begin = 0, None
        while self.turns < turns * len(self.warps):
            if begin is None and self.turns >= warm_up * len(self.warps):
                begin = now, dict(self.busy), self._progress()
            soonest: float = NEVER
            issued = False
            for partition in self.partitions:
                again = self._step(partition, now)
                issued |= again < 0
                soonest = min(soonest, again) if again >= 0 else soonest
            if not issued and soonest >= NEVER:
                raise RuntimeError(f"all warps wait for each other in cycle {now}: is the path a whole iteration?")
            now = now + 1 if issued else max(now + 1, int(soonest))
        assert begin
        time, turns_done = now - begin[0], self._progress() - begin[2]
        return Result(time / turns_done, {k: (v - begin[1].get(k, 0)) / time for k, v in self.busy.items()})

    def _progress(self) -> float:
        """Turns of a warp, on average."""
        return sum(w.turns + w.at / len(self.steps) for w in self.warps) / len(self.warps)

    def _step(self, partition: Partition, now: int) -> float:
        """Issues one instruction of the partition and answers -1, or answers when to look again.

        The warp that issued last goes first, then the oldest."""
        soonest: float = NEVER
        last = partition.last
        for warp in partition.warps if last is None else [last, *(w for w in partition.warps if w is not last)]:
            if warp.waiting:
                continue
            again = warp.ready if warp.ready > now else self._hindrance(partition, warp, now)
            if again <= now:
                partition.last = warp
                self._issue(partition, warp, now)
                return -1
            soonest = min(soonest, again)
        return soonest

    def _hindrance(self, partition: Partition, warp: Warp, now: int) -> float:
        """When a warp may be looked at again; not later than now: it may issue."""
        step = self.steps[warp.at]
        for barrier in step.waits:
            if warp.barriers[barrier] > now:
                warp.ready = max(warp.barriers[b] for b in step.waits)
                return warp.ready
        if step.groups >= 0:
            warp.groups = [g for g in warp.groups if g > now]
            if len(warp.groups) > step.groups:
                warp.ready = sorted(warp.groups)[len(warp.groups) - step.groups - 1]
                return warp.ready
        if step.pipe in ("memory", "mufu"):
            queue, size = (
                (partition.memory_queue, self.machine.memory_queue)
                if step.pipe == "memory"
                else (partition.mufu_queue, self.machine.mufu_queue)
            )
            while queue and queue[0] <= now:
                queue.pop(0)
            if len(queue) >= size:
                return queue[0]
        elif step.pipe != "none" and partition.free[step.pipe] > now + 0.999:
            return max(now + 1, int(partition.free[step.pipe]))
        if self.machine.register_ports:
            late = max(partition.even if step.even else 0, partition.odd if step.odd else 0) - now
            if late > 0:
                return now + int(late + 0.999)
        return now

    def _issue(self, partition: Partition, warp: Warp, now: int) -> None:
        step = self.steps[warp.at]
        done, read = self._occupy(partition, warp, step, now)
        if step.sets != NO_BARRIER:
            warp.barriers[step.sets] = max(warp.barriers[step.sets], done)
        if step.frees != NO_BARRIER:
            warp.barriers[step.frees] = max(warp.barriers[step.frees], read)
        if step.name == "LDGDEPBAR":
            warp.groups.append(max([now, *warp.copies, *warp.groups[-1:]]))
            warp.copies = []
        warp.ready = now + step.stall + step.jump
        if step.name == "BAR":
            self._arrive(warp, now)
        warp.at += 1
        if warp.at == len(self.steps):
            warp.at, warp.turns, warp.ready = 0, warp.turns + 1, warp.ready + self.machine.branch
            self.turns += 1

    def _arrive(self, warp: Warp, now: int) -> None:
        there = self.arrived[warp.block]
        there.append(warp)
        warp.waiting = True
        if len(there) == self.block_warps:
            for w in there:
                w.waiting, w.ready = False, max(w.ready, now + self.machine.barrier_latency)
            there.clear()

    def _occupy(self, partition: Partition, warp: Warp, step: Step, now: int) -> tuple[float, float]:
        """Takes pipe and ports; when the result is there, and when the operands have been read."""
        if step.even:
            partition.even = max(partition.even, now) + step.even
        if step.odd:
            partition.odd = max(partition.odd, now) + step.odd
        self.busy["registers"] += (step.even + step.odd) / (2 * PARTITIONS)
        self.busy["issue"] += 1 / PARTITIONS
        if step.pipe == "none":
            return now + step.latency, now + 4
        if step.pipe == "memory":
            return self._occupy_memory(partition, warp, step, now)
        start = max(now + (TO_MUFU if step.pipe == "mufu" else 0), partition.free[step.pipe])
        partition.free[step.pipe] = start + step.interval
        self.busy[step.pipe] += step.interval / PARTITIONS
        if step.pipe == "mufu":
            partition.mufu_queue.append(start)
            return start + step.latency + step.interval - TO_MUFU, start + 4
        return now + step.latency, now + 4

    def _occupy_memory(self, partition: Partition, warp: Warp, step: Step, now: int) -> tuple[float, float]:
        machine = self.machine
        first = max(now + TO_MEMORY, partition.free["memory"])
        start = max(first, self.port)
        partition.free["memory"] = max(first, start - TO_MEMORY) + step.interval
        partition.memory_queue.append(start)
        self.port = start + step.port  # a copy from L2 takes the port when it arrives: here for simplicity right away
        self.busy["shared"] += step.port
        done = start + step.port + step.latency - 2 * TO_MEMORY
        if step.moved:
            self.l2 = max(self.l2, now) + step.moved / machine.l2_port
            self.busy["l2"] += step.moved / machine.l2_port
            # under load the queue counts, and behind it a part of the latency
            done = max(now + step.latency, self.l2 + 0.6 * step.latency)
            if step.name == "LDGSTS":
                warp.copies.append(done)
        return done, start + machine.release_latency - TO_MEMORY


def simulate(path: Sequence[Instruction], machine: Machine, warps: int, blocks: int, seeds: int = 4) -> list[Result]:
    """Several results, whose spread says how much is luck.

    Several blocks: their offsets differ, first half a turn, then random. A single block has none and its warps run in
    lock-step behind the barriers, where two registers more or less were seen to change 3 %: there LDSM's latency is
    varied by a cycle each time."""
    results = []
    for seed in range(seeds):
        varied = machine if blocks > 1 else replace(machine, ldsm_latency=machine.ldsm_latency + seed)
        steps = prepare(path, varied)
        turns, warm_up = (8, 4) if len(steps) < 8000 else (2, 1)
        results.append(Multiprocessor(steps, varied, warps, blocks, seed if blocks > 1 else 0).run(turns, warm_up))
    return results
