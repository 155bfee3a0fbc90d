# SPDX-License-Identifier: Apache-2.0
"""Distil a small transformer from a larger one, with attention KL and vocabulary KL, twice: once with streamkl, once
with both distributions materialised. Same seeds, same batches: the loss curves must lie on each other; time and memory
do not.

    python examples/distil.py            # under three minutes on two cores; writes examples/out/distil.png
"""

import argparse
import time

import torch
import torch.nn.functional as F

import streamkl
from streamkl.bench.measure import Peak
from tiny import Transformer, add_picture_options, batches, corpus, save_picture, train

VOCABULARY, LENGTH, BATCH, HEADS = 8192, 512, 4, 4
PAIRS = {0: 1, 1: 3}  # layer of the student: layer of the teacher that it imitates
ATTENTION = 2.0  # weight of the attention loss


def fused(hidden_s, head_s, layers_s, hidden_t, head_t, layers_t):
    loss = streamkl.linear_kl(hidden_s, head_s, hidden_t, head_t)
    for i, j in PAIRS.items():
        loss = loss + ATTENTION * streamkl.attention_kl(*layers_s[i], *layers_t[j], causal=True)
    return loss


def materialised(hidden_s, head_s, layers_s, hidden_t, head_t, layers_t):
    def kl(z_s, z_t):
        return F.kl_div(z_s.log_softmax(-1), z_t.log_softmax(-1), reduction="none", log_target=True).sum(-1).mean()

    def logits(q, k):
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(hidden, -1e30)

    loss = kl(hidden_s @ head_s.T, hidden_t @ head_t.T)
    for i, j in PAIRS.items():
        loss = loss + ATTENTION * kl(logits(*layers_s[i]), logits(*layers_t[j]))
    return loss


def distil(loss_of, teacher, tokens, steps):
    """The loss of each step, seconds in loss and backward, and the peak memory of one such step."""
    torch.manual_seed(3)
    student = Transformer(VOCABULARY, 128, 2, HEADS, LENGTH)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    data, losses, seconds = batches(tokens, BATCH, LENGTH, seed=4), [], 0.0
    for step in range(steps):
        inputs = next(data)[:, :-1]
        with torch.no_grad():
            hidden_t, layers_t = teacher(inputs)
        hidden_s, layers_s = student(inputs)
        optimizer.zero_grad()
        with Peak() as peak:
            start = time.perf_counter()
            loss = loss_of(hidden_s, student.head.weight, layers_s, hidden_t, teacher.head.weight, layers_t)
            loss.backward()
            seconds += time.perf_counter() - start
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 9:
            print(f"{loss_of.__name__}: step {step + 1}/{steps}, loss {losses[-1]:.4f}", flush=True)
    return losses, seconds, peak.bytes or 0


def picture(runs):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (curve, spent, memory) = plt.subplots(1, 3, figsize=(13, 4), width_ratios=(2, 1, 1))
    for (name, (losses, _, _)), style in zip(
        runs.items(), (dict(linewidth=5, alpha=0.4), dict(color="black", linewidth=1))
    ):
        curve.plot(losses, label=name, **style)
    curve.set(xlabel="step", ylabel="vocabulary KL + attention KL", title="the same loss curve")
    curve.legend()
    spent.bar(list(runs), [run[1] / len(run[0]) for run in runs.values()], color=("tab:blue", "gray"))
    spent.set(ylabel="s per step", title="loss and backward")
    memory.bar(list(runs), [run[2] / 2**20 for run in runs.values()], color=("tab:blue", "gray"))
    memory.set(ylabel="MiB", title="peak memory of it")
    figure.tight_layout()
    return figure


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--teacher-steps", type=int, default=40)
    p.add_argument("--steps", type=int, default=30, help="of distillation, for each of the two runs")
    add_picture_options(p)
    args = p.parse_args()

    tokens, _ = corpus(VOCABULARY)
    torch.manual_seed(2)
    teacher = Transformer(VOCABULARY, 256, 4, HEADS, LENGTH)
    train(teacher, batches(tokens, BATCH, LENGTH, seed=1), args.teacher_steps, "teacher")
    runs = {f.__name__: distil(f, teacher, tokens, args.steps) for f in (fused, materialised)}

    apart = max(abs(a - b) / b for a, b in zip(*(run[0] for run in runs.values())))
    for name, (losses, seconds, memory) in runs.items():
        cost = f"{1e3 * seconds / args.steps:.0f} ms and {memory / 2**20:.0f} MiB a step"
        print(f"{name:>12}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {cost}")
    print(f"largest relative distance of the curves: {apart:.1e}")
    save_picture(picture(runs), args, "distil")


if __name__ == "__main__":
    main()
