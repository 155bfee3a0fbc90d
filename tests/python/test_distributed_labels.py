# SPDX-License-Identifier: Apache-2.0
"""Labels over a group: ids of the whole vocabulary; loss and gradients are those of one process, and the loss the same
bits everywhere."""

import pytest
import torch

import streamkl
from test_distributed_errors import words
from test_distributed_linear import cuts, part_of, problem

ROWS, V, IGNORED = 700, 83, -100  # two exchanges of 512 rows


def labelled():
    x = problem(ROWS, v=V)
    made = torch.Generator().manual_seed(3)
    x["labels"] = torch.randint(0, V - 1, (ROWS,), generator=made)
    x["labels"][::7] = IGNORED
    x["weight"] = torch.rand(ROWS, generator=made)
    x["weight"][::5] = 0
    return x


def both(group, way, cut, loss_of, weighted, options):
    """This rank's loss and gradients against those of one process. Returns what is the same on all ranks."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x = labelled()
    if not weighted:
        del x["weight"]
    split = "uneven" if way == "sharded" else None
    whole, own = dict(x), part_of(x, group, cut, split)
    leaves = ["x_s", "w_s", "bias_s"]
    for name in leaves:
        whole[name] = whole[name].clone().requires_grad_()
        own[name].requires_grad_()
    want = loss_of(whole, **options)
    got = loss_of(own, group=group, rows=way, **options)
    (2 * want).backward()
    (2 * got).backward()
    at, over = cuts(V, size, cut), cuts(ROWS, size, split) if split else [0] * size + [ROWS]
    rows = slice(over[rank], over[rank + 1]) if split else slice(None)
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)
    dx = whole["x_s"].grad
    torch.testing.assert_close(own["x_s"].grad, dx[rows], rtol=1e-5, atol=1e-7 * dx.norm())
    for name in leaves[1:]:
        wanted = whole[name].grad[at[rank] : at[rank + 1]]
        torch.testing.assert_close(own[name].grad, wanted, rtol=1e-5, atol=1e-6 * whole[name].grad.norm())
    return got.item()


def divergence(x, **options):
    return streamkl.linear_kl(**x, label_weight=0.6, kl_weight=0.3, **options)


def cross_entropy(x, **options):
    given = {name: x[name] for name in ("labels", "weight") if name in x}
    return streamkl.linear_cross_entropy(x["x_s"], x["w_s"], bias=x["bias_s"], **given, **options)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("way", ["replicated", "sharded"])
@pytest.mark.parametrize(
    "loss_of, weighted, options",
    [
        (divergence, False, {}),
        (divergence, True, {"temperature": 2.0, "reduction": "sum"}),
        (divergence, False, {"divergence": "jsd", "temperature": 2.0, "columns": V - 1}),
        (divergence, True, {"divergence": "reverse", "label_smoothing": 0.1, "z_loss": 1e-3}),
        (cross_entropy, False, {}),
        (cross_entropy, True, {"label_smoothing": 0.1, "z_loss": 1e-3, "num_items": 300}),
    ],
)
def test_equal_to_one_process(ranks, size, way, loss_of, weighted, options):
    found = ranks.run(both, way, "one" if size == 4 else "uneven", loss_of, weighted, options, size=size)
    assert len(set(found)) == 1


def refused(group, changes, on_rank):
    """What every rank hears of a label, an option or a limit that does not go with labels."""
    import torch.distributed as dist

    own = part_of(labelled(), group, "even", "even")
    if dist.get_rank(group) == on_rank:
        own["labels"][1] = V
    return words(lambda: divergence(own, group=group, rows="sharded", **changes))


def test_what_is_refused(ranks):
    for said in ranks.run(refused, {}, 1, size=2):
        assert said.startswith(f"ValueError: streamkl: cannot use labels of rank 1 = {V}: it must be a token of"), said
    for said in ranks.run(refused, {"workspace_limit": 1 << 20}, None, size=2):
        assert "cannot use workspace_limit = 1048576: with labels" in said, said
