# SPDX-License-Identifier: Apache-2.0
"""What a vocabulary that is split over processes costs: ranks of one thread each against one process with as many
threads, and one call in which the ranks meet (four products) against states that travel between calls (six)."""

from __future__ import annotations

import tempfile
import time
from typing import Callable, List, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import streamkl

from .case import Case

# Of one process's speed on as many cores; of the speed of six products.
ALONE, SIX = 0.90, 1.35
ROUNDS = 7

# A limit that is given, and not smaller than the default, makes linear_kl compute the logits again.
_LIMIT = 1 << 28


def _best(step: Callable[[], None]) -> float:
    step()  # the first one touches memory
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times)


def _operands(case: Case, rank: int, ranks: int) -> List[torch.Tensor]:
    """Student and teacher, x_s, w_s, x_t, w_t, with this rank's rows of both W; the student requires grad."""
    own = {name: t.detach() for name, t in case.inputs().items()}
    own.update({name: t.tensor_split(ranks)[rank].clone() for name, t in own.items() if name[0] == "b"})
    return [t.requires_grad_(name.endswith("s")) for name, t in own.items()]


def _step(x: List[torch.Tensor], **options) -> None:
    streamkl.linear_kl(*x, **options).backward()
    x[0].grad = x[1].grad = None


def _rank(rank: int, ranks: int, case: Case, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    group, x = dist.group.WORLD, _operands(case, rank, ranks)
    found = []
    for options in ({}, {"workspace_limit": _LIMIT}):
        dist.barrier()
        found.append(_best(lambda options=options: _step(x, group=group, **options)))
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.destroy_process_group()


def measure(case: Case, ranks: int) -> Tuple[float, float, float]:
    """Seconds of value and gradient: of one process, of ranks that meet, of ranks with six products."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (ranks, case, folder), ranks)
        meet, six = torch.load(f"{folder}/found")
    threads = torch.get_num_threads()
    torch.set_num_threads(ranks)
    x = _operands(case, 0, 1)
    alone = _best(lambda: _step(x))
    torch.set_num_threads(threads)
    return alone, meet, six


def report(case: Case, ranks: int) -> int:
    """Prints both promises; 0 if they are kept."""
    alone, meet, six = measure(case, ranks)
    four = f"{ranks} ranks x 1 thread, four products: they meet once a block of rows"
    lines = [
        (f"1 process x {ranks} threads", alone, alone / meet, ALONE),
        (f"{ranks} ranks x 1 thread, six products", six, six / meet, SIX),
    ]
    print(f"| {case}, value and gradient | time | speed of the first line | promised | |\n|---|---|---|---|---|")
    print(f"| {four} | {1e3 * meet:.1f} ms | | | |")
    for name, seconds, speed, promised in lines:
        kept = "ok" if speed >= promised else "MISSED"
        print(f"| {name} | {1e3 * seconds:.1f} ms | {speed:.2f} | {promised:.2f} | {kept} |")
    return 0 if all(speed >= promised for _, _, speed, promised in lines) else 1
