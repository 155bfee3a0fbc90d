# SPDX-License-Identifier: Apache-2.0
"""A vocabulary over the ranks of a group: value and gradients are those of one process, the same bits everywhere."""

import contextlib
import itertools

import pytest
import torch

import reference
import streamkl

NAMES = ("x_s", "w_s", "x_t", "w_t", "bias_s", "bias_t")
WAYS = ("replicated", "rows travel", "columns travel")


def problem(rows=11, v=61, d_s=8, d_t=6, dtype=torch.float32, seed=0):
    made = torch.Generator().manual_seed(seed)
    shapes = ((rows, d_s), (v, d_s), (rows, d_t), (v, d_t), (v,), (v,))
    return {name: torch.randn(shape, generator=made).to(dtype) for name, shape in zip(NAMES, shapes)}


def cuts(total, ranks, kind):
    """Where the parts of the ranks end: even ones, uneven ones, or all but one of them empty."""
    if kind == "even":
        each = -(-total // ranks)
        return [min(total, r * each) for r in range(ranks + 1)]
    if kind == "one":
        return [0] * (ranks // 2 + 1) + [total] * (ranks - ranks // 2)
    return [0, *[total * (r + 1) ** 2 // ranks**2 for r in range(ranks)]]


def part_of(x, group, columns="uneven", rows=None):
    """This rank's part of a problem: its columns, and its rows if they are split too."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    at = cuts(x["w_s"].shape[0], size, columns)
    over = cuts(x["x_s"].shape[0], size, rows) if rows else None
    found = {}
    for name, t in x.items():
        if name[0] in "wb" and name != "weight":
            found[name] = t[at[rank] : at[rank + 1]]
        else:
            found[name] = t[over[rank] : over[rank + 1]] if over else t
    return {name: t.clone() for name, t in found.items()}


@contextlib.contextmanager
def forced(way, meeting=False):
    """Takes the choice between the two ways to move data away from the bytes that they would move. meeting: attention meets
    within the engine's call, however little that is worth."""
    from streamkl.distributed import call

    before = call.columns_should_travel, call._WORTH
    call.columns_should_travel = lambda *args: way == "columns travel"
    call._WORTH = 0 if meeting else before[1]
    try:
        yield
    finally:
        call.columns_should_travel, call._WORTH = before


def check(group, x, way, weight=None, shards="uneven", rows="uneven", named=NAMES, **options):
    """Loss and gradients of the group against the definition over everything. Returns what is the same on all ranks."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    split = rows if way != "replicated" else None
    leaves = {name: t.double().requires_grad_() for name, t in x.items()}
    want = reference.linear_kl(**leaves, weight=weight, **options)
    own = part_of(x if weight is None else {**x, "weight": weight}, group, shards, split)
    for name in named:
        own[name].requires_grad_()
    with forced(way):
        loss = streamkl.linear_kl(**own, **options, group=group, rows="sharded" if split else None)
    upstream = torch.randn(want.shape, generator=torch.Generator().manual_seed(7))
    whole = dict(zip(named, torch.autograd.grad((want * upstream.double()).sum(), [leaves[name] for name in named])))
    over = cuts(x["x_s"].shape[0], size, split) if split else [0] * size + [x["x_s"].shape[0]]
    here = slice(over[rank], over[rank + 1]) if split else slice(None)
    g = upstream[here] if want.dim() else upstream
    reference.close(loss, want[here] if want.dim() else want, 2e-5)
    assert loss.dtype is torch.float32
    grads = dict(zip(named, torch.autograd.grad((loss * g).sum(), [own[name] for name in named])))
    parts = part_of(whole, group, shards, split) if "w_s" in whole else whole
    for name in named:
        assert grads[name].dtype is own[name].dtype
        size_of = upstream.norm().item()
        reference.close(grads[name], parts[name], reference.TOLERANCE[own[name].dtype], f"gradient of {name}", size_of)
    shared = [loss] if not (split and want.dim()) else []
    return [t.detach() for t in (*shared, *([grads["x_s"], grads["x_t"]] if not split else []))]


def same_bits(found):
    for one in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], one))


def every_case(group, divergence, dtypes):
    found = []
    beta = 0.3 if divergence == "jsd" else None
    for way, reduction, dtype in itertools.product(WAYS, reference.REDUCTIONS, dtypes):
        x = problem(dtype=dtype)
        weight = torch.arange(11.0).remainder(3) if dtype is not torch.bfloat16 else None
        options = dict(divergence=divergence, beta=beta, reduction=reduction)
        found += check(group, x, way, weight, **options)
    return found


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize(
    "size, dtypes",
    [
        (1, reference.DTYPES),
        (2, (torch.float32,)),
        (3, (torch.bfloat16,)),
        (4, reference.DTYPES),
        pytest.param(2, reference.DTYPES, marks=pytest.mark.long),
        pytest.param(3, reference.DTYPES, marks=pytest.mark.long),
    ],
)
def test_every_divergence_reduction_and_dtype(ranks, size, dtypes, divergence):
    """Every type alone and in the largest group; the sizes between divide rows and columns otherwise, whatever type."""
    same_bits(ranks.run(every_case, divergence, dtypes, size=size))


def every_shard(group):
    found = []
    for way, shards, rows in itertools.product(WAYS, ("even", "uneven", "one"), ("even", "one")):
        found += check(group, problem(v=7), way, shards=shards, rows=rows, reduction="sum")
    return found


@pytest.mark.parametrize("size", (2, 4))
def test_uneven_and_empty_shards(ranks, size):
    same_bits(ranks.run(every_shard, size=size))


def options_and_columns(group):
    """Scales, caps and a temperature; columns that leave the last ranks with part of their rows, or nothing."""
    caps = dict(softcap_s=3.0, softcap_t=5.0, scale_s=0.7, scale_t=-1.3, temperature=1.7)
    found = []
    for way, divergence in itertools.product(WAYS, reference.DIVERGENCES):
        found += check(group, problem(), way, **caps, divergence=divergence)
    for way, used in itertools.product(WAYS, (61, 40, 3)):
        found += check(group, problem(), way, columns=used)
    return found


@pytest.mark.parametrize("size", (2, 4))
def test_options_and_columns(ranks, size):
    same_bits(ranks.run(options_and_columns, size=size))
