# SPDX-License-Identifier: Apache-2.0
"""What the project promises about its speed on 2 cores, measured and compared with the promise."""

from __future__ import annotations

import ctypes
import time
from typing import Dict, List, Tuple, Union

import torch

import streamkl
from streamkl import _c, _call, _ops
from streamkl._options import make_options

from .case import Case
from .measure import Result
from .report import ratio
from .ways import ROUNDED

# For each case: how many times faster than which way, forward and backward. Of bf16 operands it depends on the unit that
# multiplies them: on AMX, on AVX512-BF16, or in f32 as everywhere else, where the promise is not to be slower.
# Heads that are alike are counted together: 384 heads are 12 in each of 32 sequences.
Factor = Union[float, Dict[str, float]]
PROMISES: Dict[Case, Dict[str, Factor]] = {
    Case(True, 4096, 128, 4096, 4): {"compile": 3, "eager": 6, "three flash calls": 3},
    Case(True, 4096, 128, 4096, 4, causal=True): {"compile": 7, "eager": 15, "three flash calls": 3},
    Case(True, 4096, 128, 4096, 4, "bf16"): {"eager": {"amx": 15}},
    Case(True, 4096, 128, 4096, 4, "bf16", True): {"eager": {"amx": 40}},
    Case(True, 120, 64, 120, 384): {"compile": 1.4, "eager": 1.4},
    Case(True, 197, 64, 197, 192): {"compile": 1.5, "eager": 1.5},
    Case(True, 64, 32, 64, 512): {"compile": 1.3, "eager": 1.3},
    Case(True, 16, 64, 16, 2048): {"compile": 1.1, "eager": 1.1},
    Case(False, 1024, 1024, 32000): {"compile": 1.3, "TRL": 1.3, "Liger": 1.3},
    Case(False, 1024, 1024, 32000, dtype="bf16"): {"eager": {"amx": 6, "avx512bf16": 1.1}},
}
# The same with dz rounded to bf16 (round_dz), where a unit multiplies it.
ONE_PART: Dict[Case, Dict[str, Factor]] = {
    Case(False, 1024, 1024, 32000, dtype="bf16"): {"eager": {"avx512bf16": 1.5}},
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


def promised(factor: Factor) -> float:
    """On the instruction set that is used here."""
    if not isinstance(factor, dict):
        return factor
    used = next(name for name, number in _c.ISAS.items() if number == _c.lib.skl_isa_best())
    return factor.get(used, 1)


def verdicts(results: List[Result]) -> List[Tuple[str, bool]]:
    """A line for each promise, and whether it is kept."""
    lines = []
    for ours, promises in (("streamkl", PROMISES), (ROUNDED, ONE_PART)):
        for case, way, factor in ((c, w, f) for c, factors in promises.items() for w, f in factors.items()):
            found = next((r for r in results if r.case == case and r.way == way), None)
            if found is None:
                lines.append((f"{case}: {way} was not measured", False))
                continue
            times, least = ratio(found, results, ours), promised(factor)
            with_it = " with round_dz" if ours == ROUNDED else ""
            lines.append((f"{case}: {times:.1f} x faster than {way}{with_it}, promised {least:g}", times >= least))
    return lines
