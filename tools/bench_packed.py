#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times packed sequences, causal, value and gradients, beside one sequence of the longest length, each by the logits it visits.

usage: bench_packed.py [ROUNDS]

64 sequences of 17 to 4096 keys, 65536 together, 8 heads of width 128, f32. The lengths are drawn anew by a fixed seed, and
spread as those of documents are: most are short. The two calls take turns.
"""

import random
import statistics
import sys
import time

import torch

import streamkl

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
SEQUENCES, SHORTEST, LONGEST, TOTAL, HEADS, WIDTH = 64, 17, 4096, 65536, 8, 128


def lengths():
    """64 lengths between the limits, both of which occur, with the total asked for."""
    draw = random.Random(1)
    weights = [draw.expovariate(1) for _ in range(SEQUENCES - 2)]
    rest = TOTAL - SHORTEST - LONGEST
    low, high = 0.0, float(TOTAL)
    while high - low > 1e-9:
        factor = (low + high) / 2
        total = sum(min(max(int(factor * w), SHORTEST), LONGEST) for w in weights)
        low, high = (factor, high) if total <= rest else (low, factor)
    drawn = [min(max(int(low * w), SHORTEST), LONGEST) for w in weights]
    for i in range(rest - sum(drawn)):
        drawn[i % len(drawn)] += 1
    drawn += [SHORTEST, LONGEST]
    draw.shuffle(drawn)
    return drawn


def visited(lengths):
    return sum(n * (n + 1) // 2 for n in lengths)


def call(lengths):
    """A function that does the whole step."""
    torch.manual_seed(1)
    total = sum(lengths)
    q_s, k_s, q_t, k_t = (torch.randn(total, HEADS, WIDTH) for _ in range(4))
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    q_s.requires_grad_(), k_s.requires_grad_()

    def step():
        streamkl.attention_kl(q_s, k_s, q_t, k_t, causal=True, cu_seqlens_q=offsets, cu_seqlens_k=offsets).backward()
        q_s.grad = k_s.grad = None

    return step


packed = lengths()
cases = {"64 packed sequences": packed, "one sequence": [LONGEST]}
steps = {name: call(some) for name, some in cases.items()}
seconds = {name: [] for name in cases}
for _ in range(rounds):
    for name, step in steps.items():
        begin = time.perf_counter()
        step()
        seconds[name].append(time.perf_counter() - begin)
rate = {name: visited(cases[name]) / min(seconds[name]) for name in cases}
for name in cases:
    print(
        f"{name:20} min {1e3 * min(seconds[name]):8.1f} ms  median {1e3 * statistics.median(seconds[name]):8.1f} ms  "
        f"{HEADS * rate[name] / 1e9:6.3f} G logits/s of each side"
    )
print(f"packed against one, by visited logit: {rate['64 packed sequences'] / rate['one sequence']:.3f}")
