# SPDX-License-Identifier: Apache-2.0
"""A teacher elsewhere: teacher processes send last hidden states, student processes hold the teacher's head and make the
whole distribution of it. Hidden states come while the student works on those before; what travels is counted.

    torchrun --nproc-per-node 2 examples/remote_teacher.py                        # one teacher, one student
    torchrun --nproc-per-node 4 examples/remote_teacher.py --teachers 2           # two of each; students share a model
    torchrun --nproc-per-node 2 examples/remote_teacher.py --low-rank 48          # through a head of lower rank

The last ranks are the teachers, student i is served by teacher i modulo their number. Both sides draw the same batches
from the same seed; where they come from elsewhere, the tokens would travel too, 8 bytes each.
"""

import argparse
import collections

import torch
import torch.distributed as dist

import streamkl
from tiny import Transformer, batches, corpus, train

VOCABULARY, LENGTH, BATCH, HEADS = 4096, 64, 4, 4
WIDTH = 96  # of the teacher


class Counted:
    """Point-to-point messages that do not wait, and how many bytes of each kind were sent."""

    def __init__(self):
        self.bytes = collections.Counter()

    def send(self, t, to, kind):
        self.bytes[kind] += t.numel() * t.element_size()
        return dist.isend(t, to), t  # the tensor has to live until it has been sent


def new_teacher(tokens, steps):
    torch.manual_seed(2)
    teacher = Transformer(VOCABULARY, WIDTH, 3, HEADS, LENGTH)
    return train(teacher, batches(tokens, BATCH, LENGTH, seed=1), steps, f"teacher (rank {dist.get_rank()})")


def low_rank(head, rank):
    """head ~ up @ down: the teacher sends down @ x, the student's head is up."""
    u, s, v = torch.linalg.svd(head, full_matrices=False)
    return u[:, :rank] * s[:rank], v[:rank]


def batches_of(student, tokens, steps):
    data = batches(tokens, BATCH, LENGTH, seed=100 + student)
    for _ in range(steps):
        yield next(data)[:, :-1]


def teach(args, students, tokens):
    """Sends the head once, then the hidden states of every batch of every student it serves, as fast as they are made
    but no more than --ahead of them at a time. Ends with one batch of logits, for comparison."""
    me = dist.get_rank() - students
    teacher = new_teacher(tokens, args.teacher_steps)
    head, down = teacher.head.weight, None
    if args.low_rank:
        head, down = low_rank(head, args.low_rank)
    counted, waiting = Counted(), collections.deque()
    served = range(me, students, args.teachers)
    for student in served:
        counted.send(head.to(torch.bfloat16).contiguous(), student, "head")[0].wait()
    for inputs in zip(*[batches_of(student, tokens, args.steps) for student in served]):
        for student, one in zip(served, inputs):
            hidden = teacher(one)[0]
            hidden = hidden if down is None else hidden @ down.T
            waiting.append(counted.send(hidden.to(torch.bfloat16), student, "hidden states"))
            if len(waiting) > args.ahead:
                waiting.popleft()[0].wait()
    for work, _ in waiting:
        work.wait()
    for student in served:
        logits = (teacher(one)[0] @ teacher.head.weight.T).to(torch.bfloat16)
        counted.send(logits, student, "logits")[0].wait()
    sent = args.steps * BATCH * LENGTH * len(served)
    hidden, logits = counted.bytes["hidden states"] / sent, counted.bytes["logits"] / (BATCH * LENGTH * len(served))
    print(
        f"teacher {me}: {hidden:.0f} bytes a token as hidden states, {logits:.0f} as logits: {logits / hidden:.1f} x less "
        f"(head, once: {counted.bytes['head'] / len(served):.0f}); at D 2048, V 151936 it is {151936 / 2048:.1f} x",
        flush=True,
    )


class Prefetched:
    """The hidden states of one batch after the other; the next ones are on their way."""

    def __init__(self, teacher, width, steps, ahead):
        self.teacher, self.shape, self.left = teacher, (BATCH, LENGTH, width), steps
        self.coming = collections.deque()
        for _ in range(ahead):
            self._ask()

    def _ask(self):
        if self.left:
            self.left -= 1
            hidden = torch.empty(self.shape, dtype=torch.bfloat16)
            self.coming.append((dist.irecv(hidden, self.teacher), hidden))

    def next(self):
        work, hidden = self.coming.popleft()
        self._ask()
        work.wait()
        return hidden


def learn(args, students, group, tokens):
    me, width = dist.get_rank(), args.low_rank or WIDTH
    teacher = students + me % args.teachers
    head_t = torch.empty(VOCABULARY, width, dtype=torch.bfloat16)
    dist.recv(head_t, teacher)
    torch.manual_seed(3)
    model = Transformer(VOCABULARY, 64, 2, HEADS, LENGTH)
    body = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    hidden, losses = Prefetched(teacher, width, args.steps, args.ahead), []
    for inputs in batches_of(me, tokens, args.steps):
        x_s, _ = body(inputs)
        loss = streamkl.linear_kl(x_s, model.head.weight, hidden.next(), head_t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.recv(torch.empty(BATCH, LENGTH, VOCABULARY, dtype=torch.bfloat16), teacher)
    print(f"student {me}: loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)
    return losses


def beside(args, tokens):
    """The first step's loss of student 0 with its teacher in the same process and no rounding on the way."""
    teacher = new_teacher(tokens, args.teacher_steps)
    torch.manual_seed(3)
    model = Transformer(VOCABULARY, 64, 2, HEADS, LENGTH)
    with torch.no_grad():
        inputs = next(batches_of(0, tokens, 1))
        return streamkl.linear_kl(model(inputs)[0], model.head.weight, teacher(inputs)[0], teacher.head.weight).item()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--teachers", type=int, default=1)
    p.add_argument("--teacher-steps", type=int, default=20)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--ahead", type=int, default=2, help="batches that may be on their way")
    p.add_argument("--low-rank", type=int, default=0, help="of the teacher's head; 0: the head as it is")
    args = p.parse_args()

    dist.init_process_group("gloo")
    students = dist.get_world_size() - args.teachers
    group = dist.new_group(range(students))
    tokens, _ = corpus(VOCABULARY)
    if dist.get_rank() >= students:
        teach(args, students, tokens)
    else:
        losses = learn(args, students, group, tokens)
        if dist.get_rank() == 0:
            near = beside(args, tokens)
            print(f"first loss {losses[0]:.5f}, with the teacher beside it {near:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
