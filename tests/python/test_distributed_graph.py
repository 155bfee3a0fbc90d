# SPDX-License-Identifier: Apache-2.0
"""A loss over a group inside of torch: what is sent, sub-groups, several losses in a graph, accumulation, checkpoints,
compile."""

import collections
import contextlib

import pytest
import torch

import reference
import streamkl
from test_distributed_errors import words
from test_distributed_linear import WAYS, cuts, forced, part_of, problem


@contextlib.contextmanager
def counted():
    """Calls and bytes that this rank gives to torch.distributed, by collective."""
    import torch.distributed as dist

    calls, sizes, kept = collections.Counter(), collections.Counter(), {}
    given = {"all_gather_into_tensor": 1, "all_reduce": 0, "all_to_all_single": 1, "broadcast": 0, "reduce": 0}

    def counting(name, which):
        def run(*args, **kwargs):
            calls[name] += 1
            sizes[name] += args[which].numel() * args[which].element_size()
            return kept[name](*args, **kwargs)

        return run

    for name, which in given.items():
        kept[name] = getattr(dist, name)
        setattr(dist, name, counting(name, which))
    try:
        yield calls, sizes
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def cost(group, rows, way, divergence, reduction, named=("x_s", "w_s")):
    """(calls, bytes) of forward and of backward of one loss of so many rows."""
    x = {name: t for name, t in problem(rows, v=40).items() if name[0] != "b"}
    own = part_of(x, group, "even", None if way == "replicated" else "even")
    for name in named:
        own[name].requires_grad_()
    found = []
    with forced(way):
        with counted() as (calls, sizes):
            loss = streamkl.linear_kl(
                **own,
                divergence=divergence,
                reduction=reduction,
                group=group,
                rows=None if way == "replicated" else "sharded",
            )
        found += [dict(calls), dict(sizes)]
        with counted() as (calls, sizes):
            loss.sum().backward()
        found += [dict(calls), dict(sizes)]
    return found


def bytes_a_row(ranks, *args, **kwargs):
    """By collective, of forward and backward together, from the difference of two sizes: a status is no row's."""
    small, large = (ranks.run(cost, n, *args, size=2)[0] for n in (16, 48))
    assert small[0] == large[0] and small[2] == large[2]  # calls do not depend on the rows
    sums = [collections.Counter(found[1]) + collections.Counter(found[3]) for found in (small, large)]
    calls = collections.Counter(small[0]) + collections.Counter(small[2])
    return calls, {name: (sums[1][name] - sums[0][name]) / 32 for name in sums[1]}


def test_what_is_sent(ranks):
    """KL: a status, 48 bytes a row and rank, and one dx in f32. D is 8 and 6."""
    calls, sizes = bytes_a_row(ranks, "replicated", "forward", "mean")
    assert calls == dict(all_gather_into_tensor=2, all_reduce=1)
    assert sizes == dict(all_gather_into_tensor=48, all_reduce=4 * 8)
    calls, sizes = bytes_a_row(ranks, "replicated", "forward", "none")
    assert calls == dict(all_gather_into_tensor=2, all_reduce=1) and sizes["all_gather_into_tensor"] == 48
    calls, sizes = bytes_a_row(ranks, "replicated", "jsd", "mean")
    assert calls == dict(all_gather_into_tensor=3, all_reduce=1) and sizes["all_gather_into_tensor"] == 2 * 48
    # Split rows: x_s and x_t of a rank's half of them, and the states of all.
    calls, sizes = bytes_a_row(ranks, "rows travel", "reverse", "sum")
    assert calls == dict(all_gather_into_tensor=4, all_to_all_single=1)
    assert sizes == dict(all_gather_into_tensor=48 + 4 * (8 + 6) / 2, all_to_all_single=4 * 8)
    # Columns that travel: nothing that grows with the rows.
    calls, sizes = bytes_a_row(ranks, "columns travel", "forward", "mean")
    assert calls == dict(all_gather_into_tensor=2, broadcast=8, reduce=2) and not any(sizes.values())


def way_that_is_taken(group, rows, v):
    own = part_of(problem(rows, v, 8, 8), group, "even", "even")
    own["x_s"].requires_grad_(), own["w_s"].requires_grad_()
    with counted() as (calls, _):
        streamkl.linear_kl(**own, group=group, rows="sharded").backward()
    return "columns" if calls["broadcast"] else "rows"


def test_the_way_that_moves_less_is_taken(ranks):
    assert set(ranks.run(way_that_is_taken, 8, 200, size=2)) == {"rows"}
    assert set(ranks.run(way_that_is_taken, 200, 8, size=2)) == {"columns"}


def one_pair_of_four(group):
    """Ranks 1 and 3, and 0 and 2, at the same time with other problems."""
    import torch.distributed as dist

    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = dist.get_rank() % 2
    x = problem(seed=mine)
    loss = streamkl.linear_kl(**part_of(x, pairs[mine]), group=pairs[mine])
    reference.close(loss, reference.linear_kl(**x), 2e-5)
    other = words(lambda: streamkl.linear_kl(**x, group=pairs[1 - mine]))
    assert "this process does not belong to it" in other, other


def test_sub_groups(ranks):
    ranks.run(one_pair_of_four)


def graph_cases(group):
    """Against the same on one process: two losses in a graph, accumulation, checkpoints, without gradients."""
    from torch.utils.checkpoint import checkpoint

    x = problem()
    for way in WAYS:
        split = None if way == "replicated" else "uneven"
        place = dict(group=group, rows="sharded" if split else None)
        own, whole = part_of(x, group, rows=split), {name: t.clone() for name, t in x.items()}
        for leaves in (own, whole):
            leaves["x_s"].requires_grad_(), leaves["w_s"].requires_grad_()

        def losses(leaves, **place):
            h = {**leaves, "x_s": torch.tanh(leaves["x_s"])}
            first = streamkl.linear_kl(**h, **place)
            second = streamkl.linear_kl(**h, reduction="none", divergence="reverse", temperature=2.0, **place)
            return first, second

        def steps(leaves, **place):
            first, second = losses(leaves, **place)
            (0.5 * first).backward(retain_graph=True)
            (first + second.sum()).backward()
            again = checkpoint(
                lambda h: streamkl.linear_kl(**{**leaves, "x_s": h}, **place), leaves["x_s"] * 2, use_reentrant=False
            )
            (again * 3).backward()
            with torch.no_grad():
                quiet = losses(leaves, **place)
            assert not quiet[0].requires_grad and torch.equal(quiet[0], first)
            return first

        with forced(way):
            got = steps(own, **place)
        reference.close(got, steps(whole), 1e-6)
        parts = part_of({name: whole[name].grad for name in ("x_s", "w_s")}, group, rows=split)
        for name, part in parts.items():
            reference.close(own[name].grad, part, 2e-5, name, 4.0)


@pytest.mark.parametrize("size", (1, 3))
def test_graphs(ranks, size):
    ranks.run(graph_cases, size=size)


def results(group):
    """Shapes: rows in several dimensions or none, log-sum-exps, modules, ranks that are not asked."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x = problem(24, 60)
    at = cuts(60, size, "even")
    for lead in ((2, 3, 4), (2, 2, 2, 3), (24,)):
        shaped = {name: t.view(*lead, -1) if name[0] == "x" else t for name, t in x.items()}
        own = {name: t[at[rank] : at[rank + 1]] if name[0] != "x" else t for name, t in shaped.items()}
        for reduction in ("none", "mean"):
            want = streamkl.linear_kl(**shaped, reduction=reduction, return_lse=True)
            for got in (
                streamkl.linear_kl(**own, reduction=reduction, return_lse=True, group=group),
                streamkl.LinearKLLoss(reduction=reduction)(**own, return_lse=True, group=group, check=False),
            ):
                for a, b in zip(got, want):
                    reference.close(a, b, 1e-5)
    split = {name: t.view(4, 6, -1)[:, rank * 3 : rank * 3 + 3] if name[0] == "x" else t for name, t in x.items()}
    own = {name: t[at[rank] : at[rank + 1]] if name[0] != "x" else t for name, t in split.items()}
    want = streamkl.linear_kl(**split, reduction="none", return_lse=True)
    for got, one in zip(
        streamkl.linear_kl(**own, reduction="none", return_lse=True, group=group, rows="sharded"), want
    ):
        reference.close(got, one, 1e-5)
    empty = {name: t[:0] if name[0] == "x" else t for name, t in part_of(x, group).items()}
    empty["w_s"].requires_grad_()
    for rows in (None, "sharded"):
        loss = streamkl.linear_kl(**empty, group=group, rows=rows)
        assert loss.item() == 0 and not torch.autograd.grad(loss, empty["w_s"])[0].any()


def test_results(ranks):
    ranks.run(results, size=2)


def refusals(group):
    own = part_of(problem(), group)
    own["x_s"].requires_grad_()
    loss = streamkl.linear_kl(**own, group=group)
    (g,) = torch.autograd.grad(loss, own["x_s"], create_graph=True)
    twice = words(lambda: g.sum().backward())
    compiled = torch.compile(lambda x: streamkl.linear_kl(**{**own, "x_s": x * 2}, group=group) * 3, backend="eager")
    a, b = compiled(own["x_s"]), 3 * streamkl.linear_kl(**{**own, "x_s": own["x_s"] * 2}, group=group)
    assert torch.equal(a, b)
    a.backward()
    whole = torch.compile(
        lambda x: streamkl.linear_kl(**{**own, "x_s": x}, group=group), fullgraph=True, backend="eager"
    )
    return twice, words(lambda: whole(own["x_s"]))


def test_compile_breaks_its_graph(ranks):
    for twice, whole in ranks.run(refusals, size=2):
        assert twice.startswith("NotImplementedError: streamkl: double backward is not supported")
        assert "streamkl: a loss over a process group is not compiled" in whole
