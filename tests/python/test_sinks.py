# SPDX-License-Identifier: Apache-2.0
"""Sinks and details of attention_kl against float64; and everything that attention_kl takes, drawn at random together."""

import random

import numpy as np
import pytest
import torch

import reference
import streamkl
import streamkl.numpy
from streamkl import _c, _ops
from streamkl._autograd import saved_rows
from streamkl._options import make_options

DIVERGENCES = ("forward", "reverse", "jsd", "skew_forward", "skew_reverse", "tv", "alpha_beta")
ALL = ("q_s", "k_s", "q_t", "k_t", "sink_s", "sink_t")


def operands(b=2, h=3, g=1, n=19, m=37, d_s=24, d_t=40, h_s=3, h_t=3, dtype=torch.float32):
    x = {
        "q_s": torch.randn(b, h, n, d_s),
        "k_s": torch.randn(b, h_s, m, d_s),
        "q_t": torch.randn(b, h * g, n, d_t),
        "k_t": torch.randn(b, h_t, m, d_t),
        "sink_s": torch.randn(h) + 1,
        "sink_t": torch.randn(h * g) + 1,
    }
    return {name: t.to(dtype) for name, t in x.items()}


def logits(
    q_s, k_s, q_t, k_t, sink_s=None, sink_t=None, mix_t=None, head_map=None, lse_t=None, normalise_t=True,
    softcap_s=None, softcap_t=None, scale_s=None, scale_t=None, **mask,
):  # fmt: skip
    """Both sides' logits with the sink as the last column, the teacher's as log t, and what is seen of them."""
    h, n, m = q_s.shape[1], q_s.shape[2], k_s.shape[2]
    g = mix_t or 1
    heads = torch.as_tensor(head_map).reshape(h, -1) if head_map is not None else torch.arange(h * g).reshape(h, g)
    seen = reference.visible_keys(n, m, q_s.shape[:-1], **mask)
    z_s = reference.head_logits(q_s, k_s, scale_s, softcap_s)
    z_t = reference.head_logits(q_t, k_t, scale_t, softcap_t)[:, heads]  # [B, H, g, N, M]
    if sink_s is not None:
        column = torch.ones((*seen.shape[:-1], 1), dtype=torch.bool)
        seen = torch.cat((seen, column), -1)
        z_s = torch.cat((z_s, sink_s.double()[:, None, None].expand(*z_s.shape[:-1], 1)), -1)
        of_heads = sink_t.double()[heads][..., None, None].expand(*z_t.shape[:-1], 1)
        z_t = torch.cat((z_t, of_heads), -1)
    if z_t.shape[2] > 1 or not normalise_t:
        lse = None if lse_t is None else lse_t[:, heads]
        z_t = reference.head_target(z_t, seen[:, :, None], lse).mean(2).log()
        z_t = z_t.masked_fill(~seen, 0) if normalise_t else z_t  # which is masked again
    else:
        z_t = z_t[:, :, 0]
    return z_s, z_t, seen


def expected(
    *args, divergence="forward", beta=None, skew=None, alpha=None, weight=None, reduction="mean", normalise_t=True,
    **options,
):  # fmt: skip
    z_s, z_t, seen = logits(*args, normalise_t=normalise_t, **options)
    if normalise_t:
        loss = reference.divergence_of(z_s, z_t, divergence, beta, seen, skew, alpha)
    else:
        loss = reference.target_kl(z_s, z_t.exp(), seen, normalise=False)
    return reference.reduce(loss, weight, reduction)


def check(x, named=ALL, **options):
    def both(f):
        return lambda **o: f(o["q_s"], o["k_s"], o["q_t"], o["k_t"], sink_s=o["sink_s"], sink_t=o["sink_t"], **options)

    reference.compare(both(streamkl.attention_kl), both(expected), x, named)


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
@pytest.mark.parametrize("divergence", [d for d in DIVERGENCES if d != "tv"])
def test_divergences(divergence, reduction):
    numbers = dict(alpha=0.4, beta=0.8) if divergence == "alpha_beta" else {}
    check(operands(), divergence=divergence, reduction=reduction, causal=True, **numbers)


@pytest.mark.parametrize("dtype", reference.DTYPES)
def test_dtypes(dtype):
    check(operands(dtype=dtype), causal=True)


def test_total_variation():
    x = operands()
    got = streamkl.attention_kl(**x, divergence="tv", reduction="none", window=(6, 3))
    reference.close(got, expected(**x, divergence="tv", reduction="none", window=(6, 3)), 2e-5)


def test_options():
    weight = torch.rand(2, 1, 19) * (torch.rand(2, 1, 19) > 0.3)
    options = dict(scale_s=-0.3, scale_t=0.4, softcap_s=3.0, softcap_t=5.0, weight=weight, reduction="sum")
    check(operands(), window=(6, 3), **options)


@pytest.mark.parametrize("normalise", (True, False))
@pytest.mark.parametrize("given", (True, False))
def test_mixture(normalise, given):
    x = operands(g=4)
    if not given and not normalise:
        return
    more = dict(mix_t=4, causal=True, reduction="none")
    if given:  # over the keys, the sink and something else
        z = reference.head_logits(x["q_t"], x["k_t"])
        z = z.masked_fill(~reference.visible_keys(19, 37, z.shape[:-1], causal=True), -torch.inf)
        z = torch.cat((z, x["sink_t"].double()[:, None, None].expand(*z.shape[:-1], 1)), -1)
        more.update(lse_t=(z.logsumexp(-1) + 0.3).float(), normalise_t=normalise)
    check(x, ("q_s", "k_s", "sink_s"), **more)


def test_only_the_sink():
    """A query that sees no key has the sink alone: LSE = sink, no loss, no gradient."""
    x = {name: t.requires_grad_() for name, t in operands().items()}
    loss, told = streamkl.attention_kl(
        **x, end=torch.zeros(19).int(), details=("lse_s", "sink_mass_t", "entropy_s", "top1_s")
    )
    loss.backward()
    assert loss == 0 and all(not t.grad.any() for t in x.values())
    assert torch.allclose(told["lse_s"], x["sink_s"].detach()[None, :, None].expand(2, 3, 19))
    assert (told["sink_mass_t"] == 1).all() and not told["entropy_s"].any() and not told["top1_s"].any()


def test_conditional():
    x = operands()
    plain = {name: t for name, t in x.items() if "sink" not in name}
    want = streamkl.attention_kl(**plain)
    for given in (("sink_s",), ("sink_t",), ("sink_s", "sink_t")):
        some = {name: x[name] for name in given}
        assert torch.equal(streamkl.attention_kl(**plain, **some, sink="conditional"), want)
        arrays = {name: t.numpy() for name, t in {**plain, **some}.items()}
        assert np.float32(streamkl.numpy.attention_kl(**arrays, sink="conditional")) == want.numpy()


def test_equal_sides_are_zero():
    x = operands(d_t=24)
    x.update(q_t=x["q_s"].clone(), k_t=x["k_s"].clone(), sink_t=x["sink_s"].clone())
    for t in x.values():
        t.requires_grad_()
    for divergence in DIVERGENCES:
        numbers = dict(alpha=0.4, beta=0.8) if divergence == "alpha_beta" else {}
        loss = streamkl.attention_kl(**x, divergence=divergence, **numbers)
        assert loss == 0
        assert not any(g.any() for g in torch.autograd.grad(loss, list(x.values())))


DETAILS = ("kl", "lse_s", "lse_t", "entropy_s", "entropy_t", "top1_s", "top1_t", "agree", "rank_s", "rank_t", "reverse")
DETAILS += ("jsd", "tv", "sum", "count")


def told_in_double(z_s, z_t, seen, keys):
    """What rows tell, from logits of which the first 'keys' are of keys."""
    s, t = (z.masked_fill(~seen, -torch.inf).log_softmax(-1) for z in (z_s, z_t))
    m = torch.logaddexp(s, t) - np.log(2)

    def kl(a, b):
        return torch.where(a > -torch.inf, a.exp() * (a - b), 0).sum(-1)

    top_s, top_t = s[..., :keys].argmax(-1), t[..., :keys].argmax(-1)
    there_s, there_t = s.gather(-1, top_t[..., None]), t.gather(-1, top_s[..., None])
    return {
        "kl": kl(t, s), "reverse": kl(s, t), "jsd": (kl(s, m) + kl(t, m)) / 2, "tv": (s.exp() - t.exp()).abs().sum(-1) / 2,
        "entropy_s": -torch.xlogy(s.exp(), s.exp()).sum(-1), "entropy_t": -torch.xlogy(t.exp(), t.exp()).sum(-1),
        "top1_s": top_s, "top1_t": top_t, "agree": top_s == top_t,
        "rank_s": (s[..., :keys] > there_s).sum(-1), "rank_t": (t[..., :keys] > there_t).sum(-1),
        "lse_s": z_s.masked_fill(~seen, -torch.inf).logsumexp(-1), "lse_t": z_t.masked_fill(~seen, -torch.inf).logsumexp(-1),
        "sink_mass_s": s[..., -1].exp(), "sink_mass_t": t[..., -1].exp(),
    }  # fmt: skip


@pytest.mark.parametrize("sinks", (True, False))
@pytest.mark.parametrize("divergence", ("forward", "jsd"))
@pytest.mark.parametrize("reduction", ("mean", "none"))
def test_details(sinks, divergence, reduction):
    x = operands()
    if not sinks:
        x = {name: t for name, t in x.items() if "sink" not in name}
    names = (*DETAILS, "sink_mass_s", "sink_mass_t") if sinks else DETAILS
    weight = torch.rand(2, 1, 19) + 0.1
    x["q_s"].requires_grad_()
    options = dict(divergence=divergence, reduction=reduction, weight=weight, causal=True)
    loss, told = streamkl.attention_kl(**x, details=names, **options)
    plain = streamkl.attention_kl(**x, **options)
    assert torch.equal(loss, plain)
    grads = [torch.autograd.grad(y.sum(), x["q_s"])[0] for y in (loss, plain)]
    assert torch.allclose(*grads, atol=1e-7)
    given = {name: t.detach() for name, t in x.items()}
    want = told_in_double(*logits(**given, causal=True), keys=37)
    rows = streamkl.attention_kl(**given, divergence=divergence, causal=True, reduction="none")
    want["kl"] = rows if divergence != "forward" else want["kl"]
    want["sum"], want["count"] = (rows * weight).sum(), weight.expand(2, 3, 19).sum()
    assert set(told) == set(names)
    for name, t in told.items():
        assert not t.requires_grad
        if t.is_floating_point():
            reference.close(t, want[name], 2e-5, name)
        else:
            assert torch.equal(t.to(want[name].dtype), want[name]), name
    arrays = {name: t.numpy() for name, t in given.items()}
    options.update(weight=weight.numpy())
    _, of_arrays = streamkl.numpy.attention_kl(**arrays, details=names, **options)
    for name, t in told.items():
        assert np.allclose(of_arrays[name], t.numpy(), atol=1e-6), name
    module = streamkl.AttentionKLLoss(causal=True, divergence=divergence, reduction=reduction)
    again, told_again = module(**given, weight=weight, details=names)
    # A JSD's value has a kernel of its own where no gradient is wanted: other roundings.
    assert torch.equal(again, loss) or (divergence == "jsd" and torch.allclose(again, loss, rtol=1e-6, atol=1e-8))
    assert torch.equal(told_again["entropy_s"], told["entropy_s"])


# ---- everything together


def draw(r):
    """Tensors and options of one call, and whether the sequences are packed."""
    b, h, g = r.choice((1, 2)), r.choice((1, 2, 4)), r.choice((1, 1, 2))
    packed, n, m = r.random() < 0.3, r.randint(1, 40), r.randint(1, 60)
    dtype = r.choice(reference.DTYPES)
    x = operands(1 if packed else b, h, g, n, m, r.choice((8, 33)), r.choice((8, 33)), h, h * g, dtype)
    options = {"reduction": r.choice(reference.REDUCTIONS), "divergence": r.choice(DIVERGENCES[:-1])}
    if g > 1 or r.random() < 0.1:
        options["mix_t"] = g
    if r.random() < 0.1:
        options["head_map"] = torch.tensor([r.randrange(h * g) for _ in range(h * g)]).reshape(h, g)
    for name, chance, made in (
        ("causal", 0.4, True), ("window", 0.3, (r.randint(0, 20), r.choice((-1, 3)))), ("softcap_s", 0.2, 4.0),
        ("softcap_t", 0.2, 6.0), ("scale_s", 0.2, -0.3), ("normalise_t", 0.1, False),
    ):  # fmt: skip
        if r.random() < chance:
            options[name] = made
    rows = (n,) if packed else (x["q_s"].shape[0], h, n)
    if r.random() < 0.4:
        options["weight"] = torch.rand(rows) + 0.1
    if r.random() < 0.3:
        options["begin"] = torch.randint(0, m + 1, rows)
    if r.random() < 0.3:
        options["end"] = torch.randint(0, m + 1, rows)
    if r.random() < 0.3:
        options["lse_t"] = torch.rand(x["q_t"].shape[:-1]) + 4
    chosen = r.choice(("both", "both", "none", "one", "conditional"))
    if chosen != "both":
        x.pop("sink_s")
        if chosen == "none":
            x.pop("sink_t")
    if chosen == "conditional":
        options["sink"] = "conditional"
    offsets = None
    if packed:
        cuts = r.randint(1, 3)
        offsets = [
            torch.tensor([0, *sorted(r.randint(0, total) for _ in range(cuts - 1)), total], dtype=torch.int32)
            for total in (n, m)
        ]
    return x, options, offsets


def in_double(x, options, offsets):
    """The same call by the definition: packed sequences one by one."""
    options = {name: value for name, value in options.items() if name != "sink"}
    if "sink_s" not in x:
        x = {name: t for name, t in x.items() if name != "sink_t"}
    if offsets is None:
        return expected(**x, **options)
    parts, weight, reduction = [], options.pop("weight", None), options.pop("reduction")
    for (q0, q1), (k0, k1) in zip(*[zip(o[:-1].tolist(), o[1:].tolist()) for o in offsets]):
        cut = {n: t[:, :, q0:q1] if n[0] == "q" else t[:, :, k0:k1] if n[0] == "k" else t for n, t in x.items()}
        own = {n: v[..., q0:q1] if n in ("begin", "end", "lse_t") else v for n, v in options.items()}
        parts.append(expected(**cut, **own, reduction="none"))
    return reference.reduce(torch.cat(parts, -1), weight, reduction)


NAMED = ("sink", "mix_t", "lse_t", "head_map", "normalise_t", "divergence")


@pytest.mark.parametrize("seed", range(150))
def test_combinations(seed):
    """Everything that attention_kl takes, together: it agrees with float64, or is refused by name."""
    torch.manual_seed(seed)
    r = random.Random(seed)
    x, options, offsets = draw(r)
    mixed = "mix_t" in options or "head_map" in options or "lse_t" in options
    named = [n for n in (("q_s", "k_s", "sink_s") if mixed else ALL) if n in x and ("sink_s" in x or n != "sink_t")]

    def ours(**o):
        own = dict(options)
        if offsets is None:
            return streamkl.attention_kl(**o, **own)
        o = {n: t if "sink" in n else t[0].transpose(0, 1) for n, t in o.items()}
        if "lse_t" in own:
            own["lse_t"] = own["lse_t"][0].T
        loss = streamkl.attention_kl(**o, cu_seqlens_q=offsets[0], cu_seqlens_k=offsets[1], **own)
        return loss.T[None] if loss.dim() else loss

    try:
        with torch.no_grad():
            ours(**x)
    except ValueError as error:
        assert any(name in str(error) for name in NAMED), error
        sinks = ("sink_s" in x) != ("sink_t" in x) and options.get("sink") != "conditional"
        raw = not options.get("normalise_t", True) and ("lse_t" not in options or options["divergence"] != "forward")
        assert sinks or raw or (mixed and options["divergence"] == "reverse"), f"refused without a reason: {error}"
        return
    if options["divergence"] == "tv":
        return reference.close(ours(**x), in_double(x, options, offsets), 2e-5)
    reference.compare(ours, lambda **o: in_double(o, options, offsets), x, named)


# ---- torch's machinery, and what is refused


def test_module_and_compile():
    x = operands()
    want = streamkl.attention_kl(**x, causal=True)
    assert torch.equal(streamkl.AttentionKLLoss(causal=True)(**x), want)
    for reduction in ("none", "mean"):

        def f(q_s, sink_s, reduction=reduction):
            rest = {name: x[name] for name in ("k_s", "q_t", "k_t", "sink_t")}
            names = ("entropy_s", "sink_mass_s")
            loss, told = streamkl.attention_kl(q_s * 2, **rest, sink_s=sink_s * 2, reduction=reduction, details=names)
            return loss.sum() + told["sink_mass_s"].sum()

        q, sink = x["q_s"].clone().requires_grad_(), x["sink_s"].clone().requires_grad_()
        got, want = torch.compile(f, fullgraph=True, backend="aot_eager")(q, sink), f(q, sink)
        assert torch.allclose(got, want)
        for a, b in zip(*(torch.autograd.grad(y, (q, sink)) for y in (got, want))):
            assert torch.allclose(a, b, atol=1e-7)


def test_opcheck():
    x = operands()
    options = make_options(_c.ATTENTION, dict(reduction="sum"))
    given = dict(a_s=x["q_s"], b_s=x["k_s"], a_t=x["q_t"], b_t=x["k_t"], sink_s=x["sink_s"], sink_t=x["sink_t"])
    args = [*[given.get(name) for name in _c.INPUTS], *options]
    kept, need = saved_rows(options), 0b11011011
    torch.library.opcheck(_ops.value, (*args, kept | _ops.row_bits("sink_mass_s")))
    torch.library.opcheck(_ops.value_and_grad, (*args, 0, need))
    torch.library.opcheck(_ops.backward, (*args, _ops.value(*args, kept)[1:], kept, need, 0))


def test_numpy_gradients():
    x = operands()
    value, grads = streamkl.numpy.attention_kl(**{n: t.numpy() for n, t in x.items()}, grads=ALL, causal=True)
    for t in x.values():
        t.requires_grad_()
    loss = streamkl.attention_kl(**x, causal=True)
    assert np.float32(value) == loss.detach().numpy()
    for name, g in zip(ALL, torch.autograd.grad(loss, [x[n] for n in ALL])):
        assert np.array_equal(grads[name], g.numpy()), name


@pytest.mark.parametrize(
    "given, sentence",
    [
        (dict(sink_s=torch.zeros(3)), "sink_t = None: only sink_s is given"),
        (dict(sink_t=torch.zeros(3)), "sink_s = None: only sink_t is given"),
        (dict(sink="conditional"), "there is neither sink_s nor sink_t"),
        (dict(sink="both"), "sink = 'both'"),
        (dict(sink_s=torch.zeros(4), sink_t=torch.zeros(3)), "sink_s.shape[0] = 4: it must be 3"),
        (dict(sink_s=torch.zeros(3).int(), sink_t=torch.zeros(3)), "sink_s.dtype"),
        (dict(details=("sink_mass_s",)), "'sink_mass_s' needs the sinks of both sides"),
        (dict(details=("ce",)), "'ce' needs labels"),
        (dict(details=("entropy",)), "'entropy' is none of"),
        (dict(details=("kl",), return_lse=True), "with details, ask for"),
        (
            dict(mix_t=1, sink_s=torch.zeros(3), sink_t=torch.zeros(3, requires_grad=True)),
            "sink_t.requires_grad = True",
        ),
    ],
)
def test_refused(given, sentence):
    x = {name: t for name, t in operands().items() if "sink" not in name}
    with pytest.raises((ValueError, TypeError)) as error:
        streamkl.attention_kl(**x, **given)
    assert sentence in str(error.value)
