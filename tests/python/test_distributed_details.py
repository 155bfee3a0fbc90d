# SPDX-License-Identifier: Apache-2.0
"""What rows tell, losses of rows with labels, and several teachers, over a group: as on one process."""

import pytest
import torch

import streamkl
from test_distributed_errors import words
from test_distributed_labels import ROWS, V, cross_entropy, divergence, labelled
from test_distributed_linear import cuts, part_of

TOLD = (
    "kl",
    "lse_s",
    "lse_t",
    "entropy_s",
    "entropy_t",
    "top1_s",
    "top1_t",
    "agree",
    "reverse",
    "jsd",
    "tv",
    "sum",
    "count",
)
OF_LABELS = ("ce", "logprob_s", "logprob_t")
MASSES = ("mass_s", "mass_t")


def rows_of(group, way):
    """Which rows this rank has."""
    import torch.distributed as dist

    if way == "replicated":
        return slice(None)
    at = cuts(ROWS, dist.get_world_size(group), "uneven")
    return slice(at[dist.get_rank(group)], at[dist.get_rank(group) + 1])


def drawn(weighted, with_labels):
    x = labelled()
    if not weighted:
        del x["weight"]
    if not with_labels:
        del x["labels"]
    x["w_s"][70] = x["w_s"][3] = 3 * x["x_s"][1]  # the largest logit of some rows is on two ranks
    x["bias_s"][70] = x["bias_s"][3]
    x["mass_ids"] = torch.randint(-1, V - 1, (ROWS, 4), generator=torch.Generator().manual_seed(9))
    return x


def details(group, way, cut, weighted, with_labels, options):
    """The details of this rank's rows against those of one process. Returns what is the same on all ranks."""
    x, here = drawn(weighted, with_labels), rows_of(group, way)
    names = (*TOLD, *(OF_LABELS if with_labels else ()), *MASSES)
    options = dict(options, **(dict(label_weight=0.5) if with_labels else {}))
    want, whole = streamkl.linear_kl(**x, details=names, **options)
    own = part_of(x, group, cut, "uneven" if way == "sharded" else None)
    own["x_s"].requires_grad_()
    got, told = streamkl.linear_kl(**own, details=names, group=group, rows=way, **options)
    torch.testing.assert_close(got, want[here] if want.dim() else want, rtol=2e-6, atol=1e-6)
    assert tuple(told) == names and not any(t.requires_grad for t in told.values())
    for name, t in told.items():
        expected = whole[name][here] if whole[name].dim() else whole[name]
        assert t.dtype is expected.dtype and t.shape == expected.shape, name
        if t.dtype is torch.float32:
            torch.testing.assert_close(t, expected, rtol=1e-5, atol=3e-6, msg=lambda m, name=name: f"{name}: {m}")
        else:
            assert torch.equal(t, expected), name
    got.sum().backward()
    with torch.no_grad():  # without a gradient, and alone
        one = streamkl.linear_kl(**own, details=("top1_t", "mass_s"), group=group, rows=way, **options)[1]
    assert torch.equal(one["top1_t"], told["top1_t"]) and torch.equal(one["mass_s"], told["mass_s"])
    return [told["sum"].item(), told["count"].item()]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("way", ["replicated", "sharded"])
@pytest.mark.parametrize(
    "weighted, with_labels, options",
    [
        (False, False, {}),
        (True, False, {"temperature": 2.0, "scale_t": -1.5, "softcap_s": 20.0, "columns": V - 1}),
        (False, True, {"divergence": "reverse", "temperature": 2.0}),
        (True, True, {"divergence": "jsd", "reduction": "none"}),
    ],
)
def test_details(ranks, size, way, weighted, with_labels, options):
    found = ranks.run(details, way, "one" if size == 4 else "uneven", weighted, with_labels, options, size=size)
    assert len({tuple(each) for each in found}) == 1


def by_row(group, way, cut, loss_of, weighted, options):
    """reduction "none" with labels: this rank's rows and their gradients for any upstream gradient."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x, here = labelled(), rows_of(group, way)
    if not weighted:
        del x["weight"]
    leaves, upstream = ["x_s", "w_s", "bias_s"], torch.randn(ROWS, generator=torch.Generator().manual_seed(4))
    own = part_of(x, group, cut, "uneven" if way == "sharded" else None)
    for name in leaves:
        x[name] = x[name].clone().requires_grad_()
        own[name].requires_grad_()
    want, got = (
        loss_of(x, reduction="none", **options),
        loss_of(own, reduction="none", group=group, rows=way, **options),
    )
    torch.testing.assert_close(got, want[here], rtol=2e-6, atol=1e-6)
    (want * upstream).sum().backward()
    (got * upstream[here]).sum().backward()
    at = cuts(V, size, cut)
    columns = slice(at[rank], at[rank + 1])
    for name, part in (("x_s", here), ("w_s", columns), ("bias_s", columns)):
        whole = x[name].grad
        torch.testing.assert_close(own[name].grad, whole[part], rtol=1e-5, atol=1e-6 * whole.norm().item())


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("way", ["replicated", "sharded"])
@pytest.mark.parametrize(
    "loss_of, weighted, options",
    [
        (divergence, False, {}),
        (divergence, True, {"temperature": 2.0}),
        (divergence, False, {"divergence": "jsd", "temperature": 2.0, "columns": V - 1}),
        (divergence, True, {"divergence": "reverse", "label_smoothing": 0.1, "z_loss": 1e-3}),
        (cross_entropy, False, {"label_smoothing": 0.1}),
    ],
)
def test_losses_of_rows_with_labels(ranks, size, way, loss_of, weighted, options):
    ranks.run(by_row, way, "one" if size == 3 else "uneven", loss_of, weighted, options, size=size)


def several(group, way, reduction):
    """Three teachers, of which one has no row on some ranks."""
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x, here = labelled(), rows_of(group, way)
    made = torch.Generator().manual_seed(11)
    which = torch.randint(0, 3, (ROWS,), generator=made)
    which[ROWS // 2 :] = which[ROWS // 2 :].clamp(max=1)
    which[::9] = 3  # nobody's
    heads = [torch.randn(V, width, generator=made) for width in (6, 5, 9)]
    hidden = [torch.randn(ROWS, w.shape[1], generator=made) for w in heads]
    at = cuts(V, size, "uneven")
    columns = slice(at[rank], at[rank + 1])
    common = dict(labels=x["labels"], weight=x["weight"])
    more = dict(label_weight=0.3, reduction=reduction, details=("kl", "entropy_t", "count"))
    whole = [(which == k, hidden[k][which == k], w) for k, w in enumerate(heads)]
    mine = which[here]
    parts = [(mine == k, hidden[k][here][mine == k], w[columns]) for k, w in enumerate(heads)]
    x_s, w_s = x["x_s"].clone().requires_grad_(), x["w_s"].clone().requires_grad_()
    want, told = streamkl.linear_kl(x_s, w_s, teachers=whole, **common, **more)
    own_x, own_w = x["x_s"][here].clone().requires_grad_(), x["w_s"][columns].clone().requires_grad_()
    common = {name: t[here] for name, t in common.items()}
    got, rows = streamkl.linear_kl(own_x, own_w, teachers=parts, **common, **more, group=group, rows=way)
    torch.testing.assert_close(got, want[here] if want.dim() else want, rtol=2e-6, atol=1e-6)
    for name in ("kl", "entropy_t"):
        torch.testing.assert_close(rows[name], told[name][here], rtol=1e-5, atol=3e-6)
    torch.testing.assert_close(rows["count"], told["count"])
    want.sum().backward(), got.sum().backward()
    torch.testing.assert_close(own_x.grad, x_s.grad[here], rtol=1e-5, atol=1e-6 * x_s.grad.norm().item())
    torch.testing.assert_close(own_w.grad, w_s.grad[columns], rtol=1e-5, atol=1e-6 * w_s.grad.norm().item())


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("way", ["replicated", "sharded"])
def test_several_teachers(ranks, way, reduction):
    ranks.run(several, way, reduction, size=3)


def refusals(group):
    import torch.distributed as dist

    rank = dist.get_rank(group)
    x = labelled()
    own = part_of({name: x[name] for name in ("x_s", "w_s", "x_t", "w_t")}, group, "even", None)
    plain = {name: own[name] for name in ("x_s", "w_s")}
    one = (slice(None), own["x_t"], own["w_t"])
    lists = [[one, one] if rank else [one], [one]]
    calls = [
        lambda: streamkl.linear_kl(**own, group=group, details=("rank_s",)),
        lambda: streamkl.linear_kl(**own, group=group, details=("kl", "tv") if rank else ("kl",)),
        lambda: streamkl.linear_kl(**own, group=group, details=("kl",), workspace_limit=1 << 20),
        lambda: streamkl.linear_kl(**own, group=group, details=("kl",), return_lse=True),
        lambda: streamkl.linear_kl(**own, group=group, mass_ids=torch.zeros(ROWS, 2, dtype=torch.int64)),
        lambda: streamkl.linear_kl(**plain, group=group, teachers=lists[0]),
        lambda: streamkl.linear_kl(**own, group=group, teachers=lists[1]),
        lambda: streamkl.linear_kl(**plain, group=group, teachers=[one, (slice(0, 0), *one[1:])][: 1 + rank]),
        lambda: streamkl.linear_kl(**plain, group=group, teachers=lists[1]) and None,
    ]
    return [words(call) for call in calls]


def test_what_is_refused(ranks):
    expected = [
        "ValueError: streamkl: cannot use details = ('rank_s',): 'rank_s' is told on one process only",
        "ValueError: streamkl: cannot use details = ",
        "ValueError: streamkl: cannot use workspace_limit = 1048576: with details over a process group it must be None",
        "ValueError: streamkl: cannot use return_lse = True: with details, ask for 'lse_s' and 'lse_t' there",
        "ValueError: streamkl: cannot use details = (): there are mass_ids, but neither",
        ("ValueError: streamkl: on rank 1: cannot use teachers = ", "ValueError: streamkl: cannot use teachers = "),
        "TypeError: streamkl: cannot use x_t = 'Tensor': with teachers= each of them brings its x_t",
        "ValueError: streamkl: cannot use number of teachers = ",
        "no error",
    ]
    for rank, found in enumerate(ranks.run(refusals, size=2)):
        for got, want in zip(found, expected):
            assert got.startswith(want[rank] if isinstance(want, tuple) else want), got
    assert "'tv'" in found[1] and "on rank 1" in found[1], found[1]
