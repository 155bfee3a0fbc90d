#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times indexer_kl, value and gradients, with and without lse_t, beside torch with everything stored.

usage: bench_indexer.py PATH_OF_STREAMKL_PROGRAM [N]

The share of the FMA peak counts the products needed: Hi Di for the indexer's logits and twice that for its gradients,
and H D for the teacher, which is gone through once with and without lse_t (up to N of some 30000, of which the heads'
exponentials are kept); of a causal problem the visited half. The peak is that of `streamkl bench --json` in the same
run.
"""

import json
import subprocess
import sys
import time

import torch

import streamkl

if len(sys.argv) not in (2, 3):
    sys.exit("\n".join(__doc__.splitlines()[:3]))
program, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4096
H, D, HI, DI = 16, 128, 4, 64


def best(run, repeats=5):
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


torch.manual_seed(0)
q_t, k_t = torch.randn(1, H, n, D), torch.randn(1, H, n, D)
leaves = torch.randn(1, HI, n, DI), torch.randn(1, n, DI) / 8, torch.randn(1, n, HI)
for t in leaves:
    t.requires_grad_()
seen = torch.ones(n, n, dtype=torch.bool).tril()
with torch.no_grad():
    lse = torch.stack(
        [(q_t[:, h] @ k_t[:, h].mT * D**-0.5).masked_fill(~seen, -torch.inf).logsumexp(-1) for h in range(H)], 1
    )


def ours(**more):
    torch.autograd.grad(streamkl.indexer_kl(*leaves, q_t, k_t, **more), leaves)


def eager():
    q, k, w = leaves
    with torch.no_grad():
        t = (q_t @ k_t.mT * D**-0.5).masked_fill(~seen, -torch.inf).softmax(-1).mean(1)
    z = torch.einsum("bnh,bhnm->bnm", w, torch.relu(q @ k[:, None].mT)).masked_fill(~seen, -torch.inf)
    s = z.log_softmax(-1).masked_fill(~seen, 0)
    torch.autograd.grad((torch.xlogy(t, t) - t * s).sum(-1).mean(), leaves)


told = subprocess.run(
    [program, "bench", "--json", "--rows", "512", "--cols", "512"], capture_output=True, text=True, check=True
)
peak = json.loads(told.stdout.splitlines()[-1])["peak_gflops"]
pairs = n * (n + 1) / 2
for name, more in (("with lse_t", dict(lse_t=lse)), ("without", {})):
    seconds = best(lambda more=more: ours(**more))
    flops = 2 * pairs * (3 * HI * DI + H * D)
    print(
        f"{name:12} {seconds * 1e3:8.1f} ms   {flops / seconds / 1e9 / peak:5.1%} of the FMA peak, {peak:.0f} GFLOP/s"
    )
try:
    print(f"{'torch':12} {best(eager, 2) * 1e3:8.1f} ms")
except RuntimeError as error:
    print("torch, everything stored:", str(error).splitlines()[0])
