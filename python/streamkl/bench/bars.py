# SPDX-License-Identifier: Apache-2.0
"""What the project promises about its speed on 2 cores, measured and compared with the promise."""

from __future__ import annotations

import ctypes
import time
from typing import Dict, List, Tuple

import torch

import streamkl
from streamkl import _c, _call, _ops
from streamkl._options import make_options

from .case import Case
from .measure import Result
from .report import ratio

# For each case: how many times faster than which way, forward and backward.
PROMISES: Dict[Case, Dict[str, float]] = {
    Case(True, 4096, 128, 4096, 4): {"compile": 3, "eager": 6, "three flash calls": 3},
    Case(True, 4096, 128, 4096, 4, causal=True): {"compile": 7, "eager": 15, "three flash calls": 3},
    Case(True, 4096, 128, 4096, 4, "bf16"): {"eager": 25},
    Case(True, 4096, 128, 4096, 4, "bf16", True): {"eager": 50},
    Case(False, 1024, 1024, 32000): {"compile": 1.4, "TRL": 1.4, "Liger": 1.4},
    Case(False, 1024, 1024, 32000, dtype="bf16"): {"eager": 60},
}
OVERHEAD = 60e-6


def _best(run, calls: int = 50, times: int = 60) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def overhead(gradients: bool = False) -> float:
    """Seconds that linear_kl takes beyond the C call it makes, for a problem of no size, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    x = [torch.randn(n, 8).requires_grad_(gradients and i < 2) for i, n in enumerate((4, 16, 4, 16))]
    options = make_options(_c.LINEAR, {})
    views = [_ops._view(t) for t in (x[0], x[1], None, x[2], x[3], *[None] * (_ops.INPUTS - 5))]
    total = ctypes.c_double()
    made = [torch.empty_like(t) for t in x[:2]] if gradients else []
    grads = _ops._views(made, 0b11 if gradients else 0, _ops.OPERANDS)
    outputs = _call._outputs((), grads, ctypes.addressof(total))
    problem = _call._problem(views, options, 1, None)
    call = _c.lib.skl_value_and_grad if gradients else _c.lib.skl_value
    inside = _best(lambda: call(problem, outputs))
    outside = _best(lambda: streamkl.linear_kl(*x))
    torch.set_num_threads(threads)
    return outside - inside


def verdicts(results: List[Result]) -> List[Tuple[str, bool]]:
    """A line for each promise, and whether it is kept."""
    lines = []
    for case, promised in PROMISES.items():
        for way, factor in promised.items():
            found = next((r for r in results if r.case == case and r.way == way), None)
            if found is None:
                lines.append((f"{case}: {way} was not measured", False))
                continue
            times = ratio(found, results)
            lines.append((f"{case}: {times:.1f} x faster than {way}, promised {factor:g}", times >= factor))
    return lines
