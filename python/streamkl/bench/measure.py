# SPDX-License-Identifier: Apache-2.0
"""Time, peak extra memory and gradient error of one way."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from dataclasses import dataclass
from typing import Dict, Optional, Sequence

import torch
from torch import Tensor

from .case import Case
from .ways import Loss, Way

ENOUGH = 3.0  # seconds of repetition
REPEATS = 3, 10  # at least, at most
EXACT_PRODUCTS = 4e10  # the gradient is compared on so many rows that float64 takes some seconds


@dataclass
class Result:
    case: Case
    way: str
    forward: Optional[float] = None  # seconds, under no_grad
    both: Optional[float] = None  # forward and backward
    backward: Optional[float] = None  # the backward part of it
    memory: Optional[int] = None  # peak bytes beyond what was there before, forward and backward
    error: Optional[float] = None  # |gradient - exact| / |exact|, the worse of the two gradients
    missing: str = ""  # why there are no numbers


def available_memory() -> float:
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024.0 for line in file if line.startswith("MemAvailable"))
    except OSError:
        return float("inf")


def _kib(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


class Peak:
    """Peak resident memory over a block, in bytes beyond its start; None where the system cannot tell."""

    def __enter__(self) -> "Peak":
        self.bytes: Optional[int] = None
        try:
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the high-water mark starts again
            self.start: Optional[int] = _kib("VmRSS")
        except (OSError, AttributeError):
            self.start = None
        return self

    def __exit__(self, *_) -> None:
        if self.start is not None:
            self.bytes = max(0, _kib("VmHWM") - self.start) * 1024


def _best(run, warm: bool) -> float:
    """Fastest of several. A slow first call is enough of a measurement, unless it had something to compile."""
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    if first > ENOUGH and not warm:
        return first
    best, spent = float("inf"), 0.0
    for i in range(REPEATS[1]):
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
        if spent > ENOUGH and i + 1 >= REPEATS[0]:
            break
    return best if warm else min(best, first)


def exact_gradients(case: Case, x: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Gradients in float64, of one head: of a_s for as many rows as are affordable; of b_s too, if those are all.

    By blocks of rows and of columns: a float64 copy of a large unembedding may not fit."""
    a_s, b_s, a_t, b_t = (
        x[n].detach()[0, 0] if case.attention else x[n].detach() for n in ("a_s", "b_s", "a_t", "b_t")
    )
    scale = case.width**-0.5 if case.attention else 1.0
    rows = min(case.length, max(1, int(EXACT_PRODUCTS / (case.columns * case.width))))
    parts = [slice(i, i + 8192) for i in range(0, case.columns, 8192)]
    da = torch.zeros(rows, case.width, dtype=torch.float64)
    db = torch.zeros(b_s.shape, dtype=torch.float64) if rows == case.length else None
    for first in range(0, rows, 256):
        here = slice(first, min(first + 256, rows))
        s, t = a_s[here].double(), a_t[here].double()
        z_s = torch.cat([scale * (s @ b_s[part].double().T) for part in parts], -1)
        z_t = torch.cat([scale * (t @ b_t[part].double().T) for part in parts], -1)
        if case.causal:
            hidden = torch.arange(case.columns) > torch.arange(here.start, here.stop)[:, None]
            z_s.masked_fill_(hidden, -torch.inf), z_t.masked_fill_(hidden, -torch.inf)
        dz = (z_s.softmax(-1) - z_t.softmax(-1)) * (scale / case.rows)
        for part in parts:
            da[here] += dz[:, part] @ b_s[part].double()
            if db is not None:
                db[part] += dz[:, part].T @ s
    return {"a_s": da} if db is None else {"a_s": da, "b_s": db}


def gradient_error(case: Case, grads: Dict[str, Tensor], exact: Dict[str, Tensor]) -> float:
    errors = []
    for name, want in exact.items():
        got = grads[name][0, 0] if case.attention else grads[name]
        errors.append(((got[: want.shape[0]].double() - want).norm() / want.norm()).item())
    return max(errors)


def measure(way: Way, loss: Loss, x: Dict[str, Tensor], exact: Dict[str, Tensor], result: Result) -> None:
    need, free = way.memory, available_memory()
    if need > 0.95 * free:
        result.missing = f"skipped: needs {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        return
    grads: Dict[str, Tensor] = {}

    def both() -> None:
        grads.update(zip(("a_s", "b_s"), timed(loss, x, result)))

    def forward() -> None:
        with torch.no_grad():
            loss(*x.values())

    if way.compiles:
        both()
        result.both = None
    _best(both, False)
    result.error = gradient_error(result.case, grads, exact)
    grads.clear()
    gc.collect()
    with Peak() as peak:
        both()
    result.memory = peak.bytes
    grads.clear()
    result.forward = _best(forward, way.compiles)


def timed(loss: Loss, x: Dict[str, Tensor], result: Result) -> Sequence[Tensor]:
    """One forward and backward; the result keeps the fastest."""
    start = time.perf_counter()
    value = loss(*x.values())
    middle = time.perf_counter()
    grads = torch.autograd.grad(value, [x["a_s"], x["b_s"]])
    end = time.perf_counter()
    if result.both is None or end - start < result.both:
        result.both, result.backward = end - start, end - middle
    return grads


def machine() -> str:
    name = "unknown processor"
    try:
        with open("/proc/cpuinfo") as file:
            name = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} CPUs; torch {torch.__version__}, {torch.get_num_threads()} threads"
