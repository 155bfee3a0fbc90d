# SPDX-License-Identifier: Apache-2.0
"""What the project promises of labels, details and lists, on 1024 tokens, width 1024, 32000 words, f32: measured and compared.

All ways run in this process, one after the other, round after round, and the fastest of each counts: what disturbs the machine
for a while shall not hit one way only. A time is that of value and gradients of x_s and w_s, or of the value alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

import streamkl

from .. import _details
from .case import Case
from .ways import _has

CASE = Case(False, 1024, 1024, 32000)
ROUNDS = 3
_OTHERS = ("reverse", "jsd", "tv", "rank_s", "rank_t", "sink_mass_s", "sink_mass_t")  # a second sweep; of attention
DETAILS = tuple(name for name in _details.NAMES if name not in _OTHERS)

LISTED = 64  # entries of a listed teacher
VALUE = ", value"  # ends the name of a way that makes no gradients
FLCE = "CE, Liger"

Lines = List[Tuple[str, bool]]


def _ways(x: Dict[str, Any], case: Case) -> Dict[str, Callable[[], Any]]:
    operands = (x["a_s"], x["b_s"], x["a_t"], x["b_t"])
    make = torch.Generator().manual_seed(2)
    labels = torch.randint(case.columns, (case.length,), generator=make)
    half = labels.masked_fill(torch.arange(case.length) % 2 == 0, -100)
    ids = torch.randint(case.columns, (case.length, 64), generator=make)
    top = streamkl.topk_of(*operands[2:], min(LISTED, case.columns))
    lists = (*operands[:2], top.ids, top.logprobs)
    both = dict(label_weight=0.5, kl_weight=0.5)

    def eager(x_s, w_s, labels):
        return F.cross_entropy(x_s @ w_s.T, labels)

    compiled = torch.compile(eager, dynamic=False)
    ways = {
        "KL": lambda: streamkl.linear_kl(*operands),
        "KL + CE": lambda: streamkl.linear_kl(*operands, labels=labels, **both),
        "KL at T = 2": lambda: streamkl.linear_kl(*operands, temperature=2.0),
        "KL + CE at T = 2": lambda: streamkl.linear_kl(*operands, labels=labels, temperature=2.0, **both),
        "KL + CE, half ignored": lambda: streamkl.linear_kl(*operands, labels=half, **both),
        "KL with details": lambda: streamkl.linear_kl(*operands, labels=labels, details=DETAILS, mass_ids=ids)[0],
        "CE": lambda: streamkl.linear_cross_entropy(*operands[:2], labels),
        "CE, compiled torch": lambda: compiled(*operands[:2], labels),
        "KL" + VALUE: lambda: streamkl.linear_kl(*operands),
        "bucket": lambda: streamkl.linear_topk_kl(*lists, tail_logprob=top.tail_logprob),
        "renormalise": lambda: streamkl.linear_topk_kl(*lists, tail="renormalise"),
        "renormalise" + VALUE: lambda: streamkl.linear_topk_kl(*lists, tail="renormalise"),
    }
    fused = _liger_ce(operands, labels)
    if fused is not None:
        ways[FLCE] = fused
    if _has("liger_kernel.chunked_loss"):
        from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

        liger = LigerFusedLinearJSDLoss(weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.0)
        ways["Liger"] = lambda: liger(*operands, labels)
        ways["Liger, half ignored"] = lambda: liger(*operands, half)
    return ways


def _liger_ce(operands, labels: Tensor) -> Optional[Callable[[], Any]]:
    """Liger's fused cross-entropy, where it is installed and runs: it is in Triton, which mostly wants a GPU."""
    if not _has("liger_kernel.transformers"):
        return None
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        loss = LigerFusedLinearCrossEntropyLoss()
        torch.autograd.grad(loss(operands[1], operands[0], labels), operands[:2])
    except Exception:  # of a library that is not ours: whatever it is, there is nothing to compare with
        return None
    return lambda: loss(operands[1], operands[0], labels)


def _once(name: str, run: Callable[[], Any], leaves) -> None:
    if name.endswith(VALUE):
        with torch.no_grad():
            run()
    else:
        torch.autograd.grad(run(), leaves)


def seconds(case: Case = CASE, rounds: int = ROUNDS) -> Dict[str, float]:
    """The fastest of some rounds, of each way. It is called twice, and the second time counts: the first one compiles, or finds
    memory as the way before left it (the one behind Liger's took 1.4 times as long)."""
    x = case.inputs()
    leaves = [x["a_s"], x["b_s"]]
    best: Dict[str, float] = {}
    ways = _ways(x, case)
    for _ in range(rounds):
        for name, run in ways.items():
            _once(name, run, leaves)
            start = time.perf_counter()
            _once(name, run, leaves)
            took = time.perf_counter() - start
            best[name] = min(best.get(name, took), took)
    return best


def fma_peak(threads: int) -> Optional[float]:
    """GFLOP/s as the program `streamkl info` tells them; None without the program, in PATH or beside Python."""
    program = shutil.which("streamkl") or shutil.which("streamkl", path=str(Path(sys.executable).parent))
    if program is None:
        return None
    said = subprocess.run([program, "info"], capture_output=True, text=True, check=False).stdout
    on_all = [float(x) for x, n in re.findall(r"FMA peak.*?([\d.]+) on (\d+)", said) if int(n) == threads]
    return max(on_all, default=None)


def verdicts(took: Dict[str, float], peak: Optional[float], case: Case = CASE) -> Lines:
    """A line for each promise, and whether it is kept."""
    lines: Lines = []

    def at_most(what: str, than: str, factor: float) -> None:
        ratio = took[what] / took[than]
        lines.append((f"{what}: {ratio:.3f} x {than}, promised at most {factor:g}", ratio <= factor))

    def faster(what: str, than: str, factor: float) -> None:
        if than not in took:
            lines.append((f"{what}: {than} is not installed", False))
            return
        ratio = took[than] / took[what]
        lines.append((f"{what}: {ratio:.2f} x faster than {than}, promised {factor:g}", ratio >= factor))

    at_most("KL + CE", "KL", 1.08)
    at_most("KL + CE at T = 2", "KL at T = 2", 1.15)
    at_most("KL with details", "KL", 1.15)
    faster("KL + CE", "Liger", 1.3)
    faster("KL + CE, half ignored", "Liger, half ignored", 2)
    at_most("bucket", "KL", 0.78)
    at_most("renormalise" + VALUE, "KL" + VALUE, 0.04)
    at_most("renormalise", "KL", 0.10)
    faster("CE", "CE, compiled torch", 1.3)
    if FLCE in took:
        faster("CE", FLCE, 1.3)
    else:
        lines.append(("CE: Liger's fused linear cross-entropy does not run here, promised 1.3", True))
    speed = 3 * 2 * case.products / took["CE"] / 1e9
    if peak is None:
        lines.append((f"CE: {speed:.0f} GF/s; the FMA peak is not known: --peak, or `streamkl` in PATH", False))
    else:
        lines.append((f"CE: {speed / peak:.2f} of the FMA peak, promised 0.8", speed >= 0.8 * peak))
    return lines
