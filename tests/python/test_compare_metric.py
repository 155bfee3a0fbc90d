# SPDX-License-Identifier: Apache-2.0
"""DriftMetric: batches add up, ranks agree."""

import pytest
import torch

import streamkl
from streamkl import hf


def case(n=4, length=20):
    torch.manual_seed(0)
    x, w = torch.randn(n, length, 16), torch.randn(90, 16)
    return x, x + 0.2 * torch.randn_like(x), w, torch.randint(0, 90, (n, length))


def test_batches_add_up():
    x, y, w, labels = case()
    labels[0, :5] = -100
    metric = streamkl.DriftMetric(resamples=50)
    metric.update(y, w, x, hf.Head(w, None, 1.0, None, 90), labels)
    whole = metric.compute()
    lp, lq = (z @ w.T for z in (x, y))
    lp, lq = lp.double().log_softmax(-1), lq.double().log_softmax(-1)
    kl = (lp.exp() * (lp - lq)).sum(-1)[labels != -100]
    assert whole["tokens"] == 75 and whole["not_finite"] == 0
    assert whole["mean_kld"] == pytest.approx(kl.mean().item(), rel=1e-5)
    metric.reset()
    for i in range(4):
        metric.update(y[i : i + 1], w, x[i : i + 1], w, labels[i : i + 1])
    # A batch of 15 tokens may take other kernels than one of 75: equal to a loss's bound, docs/math.md, section 10.
    assert metric.compute() == pytest.approx(whole, rel=2e-6, abs=1e-6)
    assert metric.summary()["sequences"] == 4 and metric.summary()["metrics"]["mean_kld"]["low"] is not None


def test_errors():
    x, y, w, labels = case()
    metric = streamkl.DriftMetric()
    with pytest.raises(RuntimeError, match="call update first"):
        metric.compute()
    with pytest.raises(ValueError, match="x_t.shape"):
        metric.update(y, w, x[:2], w)
    with pytest.raises(ValueError, match="labels.shape"):
        metric.update(y, w, x, w, labels[:2])
    metric.update(y, w, x, w)
    assert "mean_ppl_q" not in metric.compute()
    with pytest.raises(ValueError, match="in every update, or in none"):
        metric.update(y, w, x, w, labels)
    metric.sync()  # without torch.distributed there is nothing to do
    assert metric.compute()["tokens"] == 80


RANKS = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp, streamkl

def rank(me, place):
    dist.init_process_group("gloo", init_method="file://" + place, rank=me, world_size=2)
    torch.manual_seed(0)
    x, w = torch.randn(4, 20, 16), torch.randn(90, 16)
    y = x + 0.2 * torch.randn_like(x)
    mine = slice(0, 1) if me == 0 else slice(1, 4)
    metric = streamkl.DriftMetric(resamples=20)
    metric.update(y[mine], w, x[mine], w)
    metric.sync()
    one = streamkl.DriftMetric(resamples=20)
    one.update(y, w, x, w)
    assert metric.compute() == one.compute() and metric.summary()["sequences"] == 4
    print("agreed", flush=True)

if __name__ == "__main__":
    mp.start_processes(rank, (sys.argv[1],), 2, start_method="fork")
"""


def test_ranks_agree(child, tmp_path):
    assert child(RANKS, tmp_path / "store", in_warm=True).count("agreed") == 2  # the two may print into one line
