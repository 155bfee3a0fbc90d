# SPDX-License-Identifier: Apache-2.0
"""Keys over the ranks of a group, queries whole or split too: masks are in global positions, whatever the order."""

import itertools

import pytest
import torch

import reference
import streamkl
from test_distributed_graph import counted
from test_distributed_linear import WAYS, cuts, forced, same_bits

NAMES = ("q_s", "k_s", "q_t", "k_t")


def problem(n=16, m=16, dtype=torch.float32):
    made = torch.Generator().manual_seed(1)
    shapes = ((2, 4, n, 8), (2, 2, m, 8), (2, 4, n, 6), (2, 4, m, 6))
    return {name: torch.randn(shape, generator=made).to(dtype) for name, shape in zip(NAMES, shapes)}


def positions_of(total, group, order):
    """The global positions that this rank holds: one after the other, uneven, backwards, in turn with the others and from
    the last to the first, or zig-zag (a load-balanced context: a piece of the beginning and one of the end)."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if order == "zigzag":
        each = -(-total // (2 * size))
        halves = rank, 2 * size - 1 - rank
        return torch.cat([torch.arange(min(total, h * each), min(total, (h + 1) * each)) for h in halves])
    if order == "dealt":
        return torch.arange(rank, total, size).flip(0)
    if order == "backwards":
        rank = size - 1 - rank
    at = cuts(total, size, "uneven" if order == "uneven" else "even")
    return torch.arange(at[rank], at[rank + 1])


def check(group, x, way, order="even", told=None, named=NAMES, row_tensors=(), **options):
    """Against the definition over everything, with six products and with four; told: which argument says where the keys are.
    Returns what is the same on all ranks."""
    found = once(group, x, way, False, order, told, named, row_tensors, **options)
    if way != "columns travel" and options.get("reduction") != "none":
        found += once(group, x, way, True, order, told, named, row_tensors, **options)
    return found


def once(group, x, way, meeting, order, told, named, row_tensors, **options):
    leaves = {name: t.double().requires_grad_() for name, t in x.items()}
    rows = dict(row_tensors)
    want = reference.attention_kl(**leaves, **rows, **options)
    split = way != "replicated"
    keys = positions_of(x["k_s"].shape[2], group, order)
    n = x["q_s"].shape[2]
    queries = positions_of(n, group, order) if split else torch.arange(n)
    own = {name: t[:, :, queries if name[0] == "q" else keys].clone() for name, t in x.items()}
    own_rows = {name: t[..., queries] if t.shape[-1] > 1 else t for name, t in rows.items()}
    for name in named:
        own[name].requires_grad_()
    place = {
        None: {},
        "offset": dict(key_offset=int(keys[0]) if len(keys) else 0),
        "positions": dict(key_positions=keys),
    }
    with forced(way, meeting):
        loss = streamkl.attention_kl(
            **own, **own_rows, **options, **place[told], group=group, rows="sharded" if split else None
        )
    upstream = torch.randn(want.shape, generator=torch.Generator().manual_seed(7))
    whole = torch.autograd.grad((want * upstream.double()).sum(), [leaves[name] for name in named])
    pick = (lambda t: t[..., queries]) if want.dim() else (lambda t: t)
    reference.close(loss, pick(want), 2e-5)
    grads = torch.autograd.grad((loss * pick(upstream)).sum(), [own[name] for name in named])
    for name, got, all_of_it in zip(named, grads, whole):
        part = all_of_it[:, :, queries if name[0] == "q" else keys]
        assert got.dtype is own[name].dtype
        bound = reference.TOLERANCE[got.dtype]
        reference.close(got, part, bound, f"gradient of {name}", upstream.norm().item())
    shared = [loss] if not (split and want.dim()) else []
    return [t.detach() for t in (*shared, *([grads[0], grads[2]] if not split else []))]


# Divergences and reductions: each of both, and all.
SOME = (("forward", "none"), ("reverse", "mean"), ("jsd", "mean"))
ALL = tuple(itertools.product(reference.DIVERGENCES, ("mean", "none")))


def causal_cases(group, order, told, pairs):
    found = []
    for way, (divergence, reduction) in itertools.product(WAYS, pairs):
        options = dict(divergence=divergence, reduction=reduction, causal=True)
        found += check(group, problem(), way, order, told, **options)
    return found


@pytest.mark.parametrize(
    "order, told",
    [("even", None), ("even", "offset"), ("uneven", None), ("backwards", "offset"), ("zigzag", "positions")],
)
@pytest.mark.parametrize(
    "size, pairs", [(2, SOME), (4, SOME), *(pytest.param(n, ALL, marks=pytest.mark.long) for n in (2, 4))]
)
def test_causal_context(ranks, size, pairs, order, told):
    """Where a key lies does not ask which divergence it is for: all of them in one order, and some in the others."""
    pairs = ALL if (size, order) == (2, "zigzag") else pairs
    same_bits(ranks.run(causal_cases, order, told, pairs, size=size))


def mask_cases(group):
    """Every mask, together and alone, with more keys than queries, and in zig-zag order."""
    found = []
    begin, end = torch.arange(16).remainder(5), torch.arange(16).remainder(7) + 9
    weight = (torch.arange(32) % 3).float().view(2, 1, 16)
    masks = [
        dict(window=(3, -1)),
        dict(window=(2, 2), causal=True),
        dict(window=(2**62, 0)),
        dict(columns=13, causal=True),
        dict(causal=True, softcap_s=2.0, scale_t=0.3),
    ]
    for way, mask in itertools.product(WAYS, masks):
        found += check(group, problem(), way, "zigzag", "positions", **mask)
    for way in WAYS:
        rows = dict(begin=begin, end=end, weight=weight)
        found += check(group, problem(), way, "zigzag", "positions", row_tensors=rows, causal=True)
        found += check(group, problem(16, 29), way, "uneven", None, row_tensors=rows, reduction="sum")
        found += check(group, problem(7, 29), way, "uneven", None, causal=True)
        found += check(group, problem(16, 3), way, "even", None, window=(2, 1))  # ranks without keys
        found += check(group, problem(), way, "dealt", "positions", row_tensors=rows, causal=True, window=(9, 0))
    for dtype in reference.DTYPES:
        found += check(group, problem(dtype=dtype), "rows travel", "zigzag", "positions", causal=True)
    return found


@pytest.mark.parametrize("size", (1, 4))
def test_masks(ranks, size):
    same_bits(ranks.run(mask_cases, size=size))


def meetings(group, divergence, n, m):
    """Loss and gradients against one process; what was sent, and which of the engine's calls were made."""
    from streamkl import _ops

    made, kept = [], {name: getattr(_ops, name) for name in ("on_shard", "backward")}
    x = problem(n, m)
    whole = {name: t.clone().requires_grad_(name in ("q_s", "k_s")) for name, t in x.items()}
    want = streamkl.attention_kl(**whole, divergence=divergence, causal=True)
    want.backward()
    keys = positions_of(m, group, "zigzag")
    own = {name: t[:, :, keys].clone() if name[0] == "k" else t.clone() for name, t in x.items()}
    own["q_s"].requires_grad_(), own["k_s"].requires_grad_()
    for name, function in kept.items():
        setattr(_ops, name, lambda *args, name=name, function=function: (made.append(name), function(*args))[1])
    try:
        with counted() as (calls, sizes):
            loss = streamkl.attention_kl(**own, divergence=divergence, causal=True, group=group, key_positions=keys)
            loss.backward()
    finally:
        for name, function in kept.items():
            setattr(_ops, name, function)
    torch.testing.assert_close(loss, want, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(own["q_s"].grad, whole["q_s"].grad, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(own["k_s"].grad, whole["k_s"].grad[:, :, keys], rtol=1e-5, atol=1e-8)
    return made, dict(calls), dict(sizes)


@pytest.mark.parametrize("divergence, sweeps", [("forward", 1), ("jsd", 2)])
def test_four_products_where_they_are_worth_it(ranks, divergence, sweeps):
    """One exchange a head (2 x 4) and sweep, of 2048 queries; the keys of a rank in zig-zag order are one call."""
    for made, calls, sizes in ranks.run(meetings, divergence, 2048, 2048, size=2):
        assert made == ["on_shard"]
        assert calls == dict(all_gather_into_tensor=2 + 8 * sweeps, all_reduce=1)  # statuses, positions of keys, states
        runs = 2 * 2 * 8
        assert sizes["all_gather_into_tensor"] == 2048 + runs + 48 * 2 * 4 * 2048 * sweeps
    for made, calls, _ in ranks.run(meetings, divergence, 64, 128, size=2):
        assert made == ["backward"] and calls["all_gather_into_tensor"] == 2 + sweeps
