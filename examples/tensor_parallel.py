# SPDX-License-Identifier: Apache-2.0
"""Distil a small transformer three times: on one process; with the head split over the ranks and the same tokens on each
(tensor parallel); and with FSDP2, where every rank has its own tokens and all parameters are split. Same seeds, same
global batches: the loss curves lie on each other.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py        # about a minute on two cores
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import streamkl
from tiny import Transformer, batches, corpus, train

VOCABULARY, LENGTH, HEADS = 4096, 64, 4


def new_student():
    torch.manual_seed(3)
    return Transformer(VOCABULARY, 64, 2, HEADS, LENGTH)


def own_part(total):
    """This rank's part of so many things."""
    return torch.arange(total).tensor_split(dist.get_world_size())[dist.get_rank()]


def one_process(args):
    """Every rank runs the whole of it, and nobody talks."""
    return new_student(), lambda model, x_s, x_t, head_t: streamkl.linear_kl(x_s, model.head.weight, x_t, head_t), None


def tensor_parallel(args):
    """Each rank holds its rows of both heads. Hidden states and the loss are the same on every rank."""
    model, own = new_student(), own_part(VOCABULARY)
    model.head.weight = torch.nn.Parameter(model.head.weight.detach()[own].clone())

    def loss_of(model, x_s, x_t, head_t):
        return streamkl.linear_kl(x_s, model.head.weight, x_t, head_t[own], group=dist.group.WORLD)

    return model, loss_of, None


def fsdp(args):
    """The head is a DTensor between forwards, and goes into the loss as it is; the loss is that of all ranks."""
    model = new_student()
    for part in (*model.blocks, model.head, model):
        fully_shard(part)
    loss_of = lambda model, x_s, x_t, head_t: streamkl.linear_kl(x_s, model.head.weight, x_t, head_t)  # noqa: E731
    return model, loss_of, own_part(args.batch)


def distil(way, teacher, tokens, args):
    """The loss of each step."""
    model, loss_of, own = way(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    data, losses = batches(tokens, args.batch, LENGTH, seed=4), []
    for _ in range(args.steps):
        inputs = next(data)[:, :-1]
        inputs = inputs if own is None else inputs[own]
        with torch.no_grad():
            x_t, _ = teacher(inputs)
        x_s, _ = model(inputs)
        optimizer.zero_grad()
        loss = loss_of(model, x_s, x_t, teacher.head.weight)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--teacher-steps", type=int, default=20)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--batch", type=int, default=8, help="sequences of all ranks together")
    args = p.parse_args()

    dist.init_process_group("gloo")
    tokens, _ = corpus(VOCABULARY)
    torch.manual_seed(2)
    teacher = Transformer(VOCABULARY, 96, 3, HEADS, LENGTH)
    train(teacher, batches(tokens, args.batch, LENGTH, seed=1), args.teacher_steps, f"teacher (rank {dist.get_rank()})")
    for p in teacher.parameters():  # rounding may differ between machines; a teacher must not
        dist.broadcast(p, 0)
    runs = {way.__name__: distil(way, teacher, tokens, args) for way in (one_process, tensor_parallel, fsdp)}
    if dist.get_rank() == 0:
        print(f"\n{dist.get_world_size()} ranks\n step" + "".join(f"{name:>18}" for name in runs))
        for step in sorted({*range(0, args.steps, 4), args.steps - 1}):
            print(f"{step + 1:5}" + "".join(f"{losses[step]:18.9f}" for losses in runs.values()))
        alone = runs["one_process"]
        far = max(abs(a - b) / b for losses in runs.values() for a, b in zip(losses, alone))
        print(f"largest relative distance of the curves: {far:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
