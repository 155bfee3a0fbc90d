# SPDX-License-Identifier: Apache-2.0
"""linear_kl over a group as one call of the engine, in which the ranks meet once a block of rows: four products."""

import os
import signal
import struct

import pytest
import torch

import streamkl
from ranks import Ranks
from test_distributed_errors import words
from test_distributed_graph import counted
from test_distributed_linear import cuts, part_of, problem

ROWS = 1100  # three exchanges of 512 rows
STATUS = 2048  # bytes of what ranks tell each other before the call; docs/distributed.md


def losses(group, divergence, limit_on, cut):
    """Loss and gradients of this rank and of one process; calls and bytes, and which of the engine's calls."""
    from streamkl import _ops

    made, kept = [], {name: getattr(_ops, name) for name in ("on_shard", "backward")}
    for name, function in kept.items():
        setattr(_ops, name, lambda *args, name=name, function=function: (made.append(name), function(*args))[1])
    x = problem(ROWS, v=90)
    whole = {name: t.clone().requires_grad_(name in ("x_s", "w_s", "bias_s")) for name, t in x.items()}
    one = streamkl.linear_kl(**whole, divergence=divergence)
    one.backward()
    own = part_of(x, group, cut, None)
    for name in ("x_s", "w_s", "bias_s"):
        own[name] = own[name].clone().requires_grad_()
    limit = {"workspace_limit": 1 << 24} if group.rank() in limit_on else {}
    try:
        made.clear()
        with counted() as (calls, sizes):
            loss = streamkl.linear_kl(**own, divergence=divergence, group=group, **limit)
            loss.backward()
    finally:
        for name, function in kept.items():
            setattr(_ops, name, function)
    at = cuts(90, group.size(), cut)
    first, last = at[group.rank()], at[group.rank() + 1]
    torch.testing.assert_close(loss, one, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(own["x_s"].grad, whole["x_s"].grad, rtol=1e-5, atol=1e-8)
    for name in ("w_s", "bias_s"):
        torch.testing.assert_close(own[name].grad, whole[name].grad[first:last], rtol=1e-5, atol=1e-7)
    return loss.item(), own["x_s"].grad.sum().item(), dict(calls), dict(sizes), made


@pytest.mark.parametrize("cut", ["even", "uneven", "one"])
@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd", "tv"])
def test_the_ranks_meet_in_one_call(ranks, divergence, cut):
    sweeps = 1 if divergence in ("forward", "reverse") else 2
    found = ranks.run(losses, divergence, (), cut, size=3)
    assert len({(loss, dx) for loss, dx, *_ in found}) == 1  # the same bits
    for _, _, calls, sizes, made in found:
        assert made == ["on_shard"]
        assert calls == dict(all_gather_into_tensor=1 + 3 * sweeps, all_reduce=1)
        assert sizes["all_gather_into_tensor"] == STATUS + 48 * ROWS * sweeps


def test_a_limit_on_one_rank_is_kept_by_all(ranks):
    """A rank whose engine could refuse the call would leave the others waiting: then nobody meets within it."""
    for *_, made in ranks.run(losses, "forward", (1,), "uneven", size=3):
        assert made == ["backward"]


def at_the_second(group, what):
    """One call whose second exchange is what(rank) instead."""
    from streamkl.distributed.group import Group

    kept, count = Group.merge, [0]

    def merge(self, states):
        count[0] += 1
        if count[0] == 2:
            what(self.rank)
        return kept(self, states)

    own = part_of(problem(ROWS, v=60), group, "even", None)
    own["x_s"] = own["x_s"].clone().requires_grad_()
    Group.merge = merge
    try:
        return words(lambda: streamkl.linear_kl(**own, group=group))
    finally:
        Group.merge = kept


def divide_by_zero(rank):
    raise ZeroDivisionError(f"on rank {rank}")


def end_on_rank_1(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_is_raised_in_an_exchange(ranks):
    assert ranks.run(at_the_second, divide_by_zero, size=2) == [f"ZeroDivisionError: on rank {r}" for r in (0, 1)]
    ranks.run(losses, "forward", (), "even", size=2)  # and the group is as good as before


def interrupt_on_rank_1(rank):
    if rank == 1:
        raise KeyboardInterrupt


def fail_on_rank_1(rank):
    if rank == 1:
        raise MemoryError("no room")


def refuse_on_rank_1(group):
    """The engine of rank 1 refuses the call after the ranks have agreed: before the first exchange."""
    from streamkl import _call

    kept, own = _call._outputs, part_of(problem(ROWS, v=60), group, "even", None)
    if group.rank() == 1:
        _call._outputs = lambda *given: struct.pack("N", 4) + kept(*given)[8:]  # a structure of four bytes
    own["x_s"] = own["x_s"].clone().requires_grad_()
    try:
        return words(lambda: streamkl.linear_kl(**own, group=group))
    finally:
        _call._outputs = kept


def at_the_first_sweep(group, limit):
    """One call with partial states, whose sweep raises on rank 1."""
    from streamkl.distributed import ways

    kept, own = ways.sweep, part_of(problem(ROWS, v=60), group, "even", None)

    def sweep(*args):
        fail_on_rank_1(group.rank())
        return kept(*args)

    ways.sweep = sweep
    try:
        return words(lambda: streamkl.linear_kl(**own, group=group, workspace_limit=limit))
    finally:
        ways.sweep = kept


def test_what_one_rank_raises_the_others_hear(ranks):
    """At once, and not at the timeout; the group is as good as before."""
    said = ranks.run(at_the_second, fail_on_rank_1, size=3)
    others = "MemoryError: streamkl: on rank 1: no room"
    assert said == [others, "MemoryError: no room", others]
    said = ranks.run(at_the_second, interrupt_on_rank_1, size=3)
    others = "RuntimeError: streamkl: on rank 1: KeyboardInterrupt"
    assert said == [others, "KeyboardInterrupt: ", others]
    said = ranks.run(at_the_first_sweep, 1 << 24, size=3)
    others = "MemoryError: streamkl: on rank 1: no room"
    assert said == [others, "MemoryError: no room", others]
    said = ranks.run(refuse_on_rank_1, size=2)
    assert said[1].startswith("ValueError: streamkl: cannot use out.struct_size"), said
    assert said[0].startswith("ValueError: streamkl: on rank 1: cannot use out.struct_size"), said
    ranks.run(losses, "forward", (), "even", size=3)


@pytest.mark.long  # ten seconds; test_slow_and_killed_ranks ends one before the exchange
def test_a_rank_that_ends_in_the_middle(tmp_path):
    two = Ranks(2, tmp_path, timeout=10)
    try:
        two.start(at_the_second, end_on_rank_1)
        found = two.result(0)
        assert found.startswith("RuntimeError: streamkl: rank 0 of 2 could not exchange states with its group"), found
    finally:
        two.end()
