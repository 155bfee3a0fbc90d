# SPDX-License-Identifier: Apache-2.0
"""Keeps torch alive where its own bf16 product is not: the benchmark and the tests ask this before they import torch.

On some machines with AMX (virtual Sapphire Rapids) oneDNN finds AMX in CPUID, the kernel does not let the process use
it, and every product of bf16 matrices ends with SIGILL. What CPUID, /proc/cpuinfo and the kernel say does not tell these
machines from healthy ones, so a product is tried in a child process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import MutableMapping, Sequence

VARIABLE, LIMIT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"  # the best that oneDNN has below AMX

# Large enough that torch gives it to oneDNN: from 16 x 16 x 16 on.
PRODUCT = """
import torch
for dtype in (torch.bfloat16, torch.float16):
    x = torch.ones(64, 64, dtype=dtype)
    x @ x
"""


def limit_onednn(
    probe: Sequence[str] = (sys.executable, "-c", PRODUCT), environment: MutableMapping[str, str] = os.environ
) -> str:
    """Sets the variable if the probe dies of an illegal instruction, and returns the line to show then, otherwise "".

    oneDNN reads the variable once, with its first product; child processes inherit it. A user's own value stays."""
    if VARIABLE in environment:
        return ""
    quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if subprocess.run(probe, env=dict(environment), **quiet).returncode != -signal.SIGILL:
        return ""
    environment[VARIABLE] = LIMIT
    return f"torch's own bf16 product dies here (SIGILL in oneDNN): {VARIABLE}={LIMIT} is set, without AMX"
