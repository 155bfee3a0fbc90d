# SPDX-License-Identifier: Apache-2.0
"""What is wrong on one rank is an error on all, and says who and what; nobody waits for a rank that ended."""

import os
import re
import signal
import time

import pytest
import torch

import streamkl
from ranks import Failed, Ranks
from test_distributed_linear import part_of, problem


def words(call):
    """Kind and sentence of what the call raises."""
    try:
        call()
    except (Exception, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def changed(group, changes, base):
    """linear_kl of a problem; rank 1 has other arguments. Afterwards the group is still of use."""
    import torch.distributed as dist

    own = part_of(problem(), group, "even")
    arguments = {**own, "group": group, **base}
    wrong = {**arguments, **changes} if dist.get_rank(group) == 1 else arguments
    found = words(lambda: streamkl.linear_kl(**wrong))
    assert torch.isfinite(streamkl.linear_kl(**arguments))
    return found


WRONG = [  # what rank 1 changes, what it hears itself, what the others hear
    (dict(temperature=-1), "ValueError: streamkl: cannot use temperature = -1: it must be positive", "on rank 1: "),
    (dict(x_s=torch.ones(11, 7)), "ValueError: streamkl: cannot use w_s.shape[1] = 8: it must be 7", "on rank 1: "),
    (dict(x_t=[1.0]), "TypeError: streamkl: cannot use x_t = 'list': it must be a torch.Tensor", "on rank 1: "),
    (
        dict(bias_s=torch.ones(3)),
        "ValueError: streamkl: cannot use bias_s.shape = (3,): it must be (16,)",
        "on rank 1: ",
    ),
    (dict(rows="split"), "ValueError: streamkl: cannot use rows = 'split'", "on rank 1: "),
    (dict(check=1), "TypeError: streamkl: cannot use check = 1: it must be True, False, or None", "on rank 1: "),
    (dict(details=("ce",)), "ValueError: streamkl: cannot use details = ('ce',): 'ce' needs labels", "on rank 1: "),
]


@pytest.mark.parametrize("changes, own, others", WRONG, ids=[next(iter(w[0])) for w in WRONG])
def test_wrong_on_one_rank(ranks, changes, own, others):
    found = ranks.run(changed, changes, {}, size=4)
    assert found[1].startswith(own), found[1]
    kind, sentence = own.split(": streamkl: ")
    for rank in (0, 2, 3):
        assert found[rank].startswith(f"{kind}: streamkl: {others}{sentence}"), found[rank]


def half(t):
    return t.to(torch.bfloat16)


APART = [  # what rank 1 changes, and what every rank hears
    (dict(temperature=2.0), "temperature = 2.0 on rank 1, 1.0 on ranks 0, 2, 3: it must be the same on every rank"),
    (dict(divergence="reverse"), "divergence = 'reverse' on rank 1, 'forward' on ranks 0, 2, 3"),
    (dict(reduction="none"), "reduction = 'none' on rank 1, 'mean' on ranks 0, 2, 3"),
    (dict(softcap_s=2.5), "softcap_s = 2.5 on rank 1, 0 on ranks 0, 2, 3"),
    (dict(x_s=torch.ones(9, 8), x_t=torch.ones(9, 6)), "number of rows = 9 on rank 1, 11 on ranks 0, 2, 3"),
    (dict(x_s=half(problem()["x_s"])), "x_s.dtype = torch.bfloat16 on rank 1, torch.float32 on ranks 0, 2, 3"),
    (dict(bias_s=None), "bias_s given = False on rank 1, True on ranks 0, 2, 3"),
    (dict(rows="sharded"), "rows = 'sharded' on rank 1, 'replicated' on ranks 0, 2, 3"),
    (dict(weight=torch.ones(11)), "weight given = True on rank 1, False on ranks 0, 2, 3"),
    (dict(x_s=torch.zeros(11, 8, requires_grad=True)), "x_s.requires_grad = True on rank 1, False on ranks 0, 2, 3"),
    (
        dict(x_s=problem(seed=5)["x_s"]),
        "x_s = other values on rank 1 than on rank 0: it must be the same on every rank",
    ),
    (dict(columns=50), "columns = 50 on rank 1, 0 on ranks 0, 2, 3"),
]


@pytest.mark.parametrize("changes, sentence", APART, ids=[next(iter(a[0])) + str(i) for i, a in enumerate(APART)])
def test_ranks_that_disagree(ranks, changes, sentence):
    found = ranks.run(changed, changes, {}, size=4)
    assert len(set(found)) == 1 and found[0].startswith(f"ValueError: streamkl: cannot use {sentence}"), found[0]


def other_values(group):
    """What no rank can see alone."""
    own = part_of(problem(), group, "even")
    short = {**own, "w_t": own["w_t"][1:], "bias_t": None}
    keys = [torch.ones(1, 1, 3, 8) for _ in range(4)]

    def attention(**place):
        return words(lambda: streamkl.attention_kl(*keys, group=group, causal=True, **place))

    import torch.distributed as dist

    rank = dist.get_rank(group)
    return [
        words(lambda: streamkl.linear_kl(**short, group=group)),
        words(lambda: streamkl.linear_kl(**own, group=group, columns=62)),
        attention(key_offset=0),
        attention(key_offset=4 * rank),
        attention(key_positions=[0, 2, 4] if rank else [1, 3, 5], columns=7),
        attention(key_positions=[0, 2, 4] if rank else [1, 3, 5], rows="sharded"),
        words(
            lambda: streamkl.attention_kl(
                keys[0][:, :, :2],
                keys[1],
                keys[2][:, :, :2],
                keys[3],
                group=group,
                causal=True,
                rows="sharded",
                key_offset=3 - 3 * rank,
            )
        ),
    ]


def test_shards_that_do_not_fit(ranks):
    first, second = ranks.run(other_values, size=2)
    assert first == second
    ids = "(31, 30): the student's shard covers ids 0..30, the teacher's 0..29: they must be the same"
    expected = [
        f"ValueError: streamkl: cannot use w_s, w_t of rank 0 = {ids}",
        "ValueError: streamkl: cannot use columns = 62: it must be at most 61",
        "ValueError: streamkl: cannot use key position = 0: it is a key of rank 0 and of rank 1",
        "ValueError: streamkl: cannot use key position = 3: it is a key of no rank",
        "ValueError: streamkl: cannot use columns = 7: it must be at most 6",
        "no error",
        "ValueError: streamkl: cannot use queries of the ranks = [2, 2]: with keys in another order",
    ]
    for got, want in zip(first, expected):
        assert got.startswith(want), got


def wrong_groups(group):
    import torch.distributed as dist

    own = part_of(problem(), group, "even")
    several = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2))
    calls = [
        lambda: streamkl.linear_kl(**own, group=7),
        lambda: streamkl.linear_kl(**own, group=several),
        lambda: streamkl.linear_kl(**own, rows="sharded"),
        lambda: streamkl.linear_kl(**own, group=dist.GroupMember.NON_GROUP_MEMBER),
    ]
    return [words(call) for call in calls]


def test_groups_that_are_none(ranks):
    expected = [
        "TypeError: streamkl: cannot use group = 7: it must be a ProcessGroup",
        "ValueError: streamkl: cannot use group = DeviceMesh",
        "TypeError: streamkl: cannot use rows = 'sharded': it says how a loss is split over processes, and needs group=",
        "ValueError: streamkl: cannot use group = -100: this process does not belong to it",
    ]
    for found in ranks.run(wrong_groups):
        for got, want in zip(found, expected):
            assert got.startswith(want), got


def test_no_group_yet():
    own = problem()
    with pytest.raises(RuntimeError, match=re.escape("init_process_group() has to come first")):
        streamkl.linear_kl(**own, group="world")


def wait_for_the_dead(group, dead):
    """One rank ends in the middle of a run; the others hear of it."""
    import torch.distributed as dist

    own = part_of(problem(), group, "even")
    assert torch.isfinite(streamkl.linear_kl(**own, group=group))
    if dist.get_rank(group) == dead:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    found = words(lambda: streamkl.linear_kl(**own, group=group))
    return found, time.monotonic() - start


def sleep_too_long(group, slow):
    import torch.distributed as dist

    own = part_of(problem(), group, "even")
    assert torch.isfinite(streamkl.linear_kl(**own, group=group))
    if dist.get_rank(group) == slow:
        time.sleep(0.5)  # slow, and within the timeout: the others wait
    return words(lambda: streamkl.linear_kl(**own, group=group))


def test_slow_and_killed_ranks(tmp_path):
    """In a group of its own, which is of no use afterwards; its timeout is 10 s."""
    two = Ranks(2, tmp_path, timeout=10)
    try:
        assert two.run(sleep_too_long, 1) == ["no error", "no error"]
        two.start(wait_for_the_dead, 1)
        found, seconds = two.result(0)
        assert found.startswith("RuntimeError: streamkl: rank 0 of 2 could not exchange statuses with its group"), found
        assert seconds < 15
        with pytest.raises((Failed, EOFError)):
            two.result(1)
    finally:
        two.end()
