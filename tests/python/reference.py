# SPDX-License-Identifier: Apache-2.0
"""The definition, in float64 and with everything stored."""

import torch

DIVERGENCES = ("forward", "reverse", "jsd")
REDUCTIONS = ("none", "mean", "sum")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def only_jsd(divergence, beta):
    """beta where there is one."""
    return beta if divergence == "jsd" else None


def cap(z, softcap):
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def divergence_of(z_s, z_t, divergence, beta, visible=None, skew=None, alpha=None):
    """Rows of logits to a loss per row. Rows that see nothing have loss 0."""
    if visible is not None:
        some = visible.any(-1, keepdim=True)
        hidden = ~visible & some
        z_s, z_t = z_s.masked_fill(hidden, -torch.inf), z_t.masked_fill(hidden, -torch.inf)
    s, t = z_s.log_softmax(-1), z_t.log_softmax(-1)
    if visible is not None:  # no mass there: the terms are 0, whatever the logarithm
        s, t = s.masked_fill(hidden, -1e4), t.masked_fill(hidden, -1e4)
    if divergence == "forward":
        loss = (t.exp() * (t - s)).sum(-1)
    elif divergence == "reverse":
        loss = (s.exp() * (s - t)).sum(-1)
    elif divergence in ("skew_forward", "skew_reverse"):
        a = torch.tensor(0.1 if skew is None else skew, dtype=torch.float64)
        first, second = (t, s) if divergence == "skew_forward" else (s, t)
        loss = (first.exp() * (first - torch.logaddexp(a.log() + first, (1 - a).log() + second))).sum(-1)
    elif divergence == "tv":
        loss = (t.exp() - s.exp()).abs().sum(-1) / 2
    elif divergence == "alpha_beta":
        loss = alpha_beta(t, s, alpha, beta)
    else:
        beta = 0.5 if beta is None else beta
        b = torch.tensor(beta, dtype=torch.float64)
        m = torch.logaddexp(b.log() + t, (1 - b).log() + s)
        loss = beta * (t.exp() * (t - m)).sum(-1) + (1 - beta) * (s.exp() * (s - m)).sum(-1)
    return loss if visible is None else loss * some[..., 0]


def alpha_beta(t, s, alpha, beta):
    """By the definition and its two limits, as the documents have them."""
    both = alpha + beta
    if alpha == 0:
        terms = ((beta * s).exp() * (beta * (s - t) - 1) + (beta * t).exp()) / beta**2
    elif beta == 0:
        terms = ((alpha * t).exp() * (alpha * (t - s) - 1) + (alpha * s).exp()) / alpha**2
    else:
        own = alpha / both * (both * t).exp() + beta / both * (both * s).exp()
        terms = (own - (alpha * t + beta * s).exp()) / (alpha * beta)
    return terms.sum(-1)


def reduce(loss, weight, reduction):
    w = torch.ones_like(loss) if weight is None else weight.double().expand(loss.shape)
    if reduction == "none":
        return w * loss
    return (w * loss).sum() / (w.sum() if reduction == "mean" else 1)


def listed_keys(support, m, support_block=None):
    """Which of m keys a query lists, [B, N, m]."""
    block = support_block or 1
    blocks = -(-m // block)
    hit = torch.zeros(*support.shape[:2], blocks + 1, dtype=torch.bool)
    hit.scatter_(2, torch.where(support < 0, blocks, support).long(), True)  # the last one: empty slots
    return hit[..., :blocks].repeat_interleave(block, -1)[..., :m]


def visible_keys(
    n, m, rows, causal=False, window=None, begin=None, end=None, columns=None, support=None, support_block=None
):
    valid = m if columns is None else columns
    i, j = torch.arange(n)[:, None] + valid - n, torch.arange(m)[None, :]
    seen = (j < valid).expand(n, m).clone()
    if causal:
        seen &= j <= i
    if window is not None and window[0] >= 0:
        seen &= j >= i - window[0]
    if window is not None and window[1] >= 0:
        seen &= j <= i + window[1]
    seen = seen.expand(*rows, m)
    if begin is not None:
        seen = seen & (j[0] >= begin.expand(rows)[..., None])
    if end is not None:
        seen = seen & (j[0] < end.expand(rows)[..., None])
    if support is not None:
        listed = listed_keys(support, m, support_block)
        seen = seen & (listed if len(rows) == 2 else listed[:, None])
    return seen


def attention_kl(
    q_s,
    k_s,
    q_t,
    k_t,
    *,
    scale_s=None,
    scale_t=None,
    divergence="forward",
    beta=None,
    weight=None,
    reduction="mean",
    softcap_s=None,
    softcap_t=None,
    skew=None,
    alpha=None,
    **mask,
):
    logits = []
    for q, k, scale, softcap in ((q_s, k_s, scale_s, softcap_s), (q_t, k_t, scale_t, softcap_t)):
        k = k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        z = q.double() @ k.transpose(-1, -2)
        logits.append(cap(z * (q.shape[-1] ** -0.5 if scale is None else scale), softcap))
    seen = visible_keys(q_s.shape[2], k_s.shape[2], q_s.shape[:-1], **mask)
    return reduce(divergence_of(*logits, divergence, beta, seen, skew, alpha), weight, reduction)


def head_logits(q, k, scale=None, softcap=None):
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return cap(q.double() @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale), softcap)


def head_target(z, seen, lse=None):
    """e^{z - lse} of every head [B, Ht, N, M] over the keys that are seen; lse None: of the same keys. A row without keys or
    with an lse of -inf is 0."""
    z = z.masked_fill(~seen, -torch.inf)
    lse = z.logsumexp(-1) if lse is None else lse.double()
    return (z - lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]).exp()


def target_kl(z_s, t, seen, normalise=True):
    """sum t (log t - log s) of a target t [.., M] and the student's logits, t being divided by its sum or not."""
    some = seen.any(-1, keepdim=True)
    s = z_s.masked_fill(~seen & some, -torch.inf).log_softmax(-1)
    if normalise:
        t = t / t.sum(-1, keepdim=True).clamp_min(1e-300)
    return (torch.xlogy(t, t) - torch.where(t > 0, t * s, 0)).sum(-1)


def mixed_kl(
    q_s, k_s, q_t, k_t, *, mix_t=1, head_map=None, lse_t=None, normalise_t=True, scale_s=None, scale_t=None,
    softcap_s=None, softcap_t=None, weight=None, reduction="mean", **mask,
):  # fmt: skip
    h, n, m = q_s.shape[1], q_s.shape[2], k_s.shape[2]
    if head_map is None:
        head_map = torch.arange(h * mix_t).reshape(h, mix_t)
    head_map = torch.as_tensor(head_map).reshape(h, -1)
    seen = visible_keys(n, m, q_s.shape[:-1], **mask)
    z_t = head_logits(q_t, k_t, scale_t, softcap_t)
    lse = None if lse_t is None else lse_t[:, head_map]
    heads = head_target(z_t[:, head_map], seen[:, :, None], lse)  # [B, H, g, N, M]
    loss = target_kl(head_logits(q_s, k_s, scale_s, softcap_s), heads.mean(2), seen, normalise_t)
    return reduce(loss, weight, reduction)


def linear_logits(x, w, bias=None, scale=None, softcap=None, temperature=1.0, columns=None):
    z = x.double() @ w.double()[:columns].T
    z = z if bias is None else z + bias.double()[:columns]
    return cap(z * (1 if scale is None else scale), softcap) / temperature


def linear_kl(
    x_s,
    w_s,
    x_t,
    w_t,
    *,
    temperature=1.0,
    divergence="forward",
    beta=None,
    weight=None,
    reduction="mean",
    bias_s=None,
    bias_t=None,
    scale_s=None,
    scale_t=None,
    softcap_s=None,
    softcap_t=None,
    columns=None,
    skew=None,
    alpha=None,
):
    z_s = linear_logits(x_s, w_s, bias_s, scale_s, softcap_s, temperature, columns)
    z_t = linear_logits(x_t, w_t, bias_t, scale_t, softcap_t, temperature, columns)
    return reduce(divergence_of(z_s, z_t, divergence, beta, None, skew, alpha), weight, reduction)


# How far an f32 computation may be from the definition, relative to the largest entry; or a gradient in 16 bits.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 5e-3, torch.float16: 1e-3}


def close(got, want, tolerance, what="value", upstream=1.0):
    got, want = got.detach().double(), want.detach().double()
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if want.numel() == 0:
        return
    error, size = (got - want).abs().max().item(), want.abs().max().item()
    # The floor is the rounding of a probability, which stays when the gradient itself cancels; that of several rows
    # adds up in quadrature, each times its upstream gradient.
    assert error <= tolerance * size + 2e-6 * max(1.0, upstream), f"{what}: error {error:.2e}, largest entry {size:.2e}"


def compare(ours, theirs, operands, named, upstream=None):
    """Loss and gradients of ours(**operands) against theirs. 'named' tells which operands require grad."""
    leaves = [operands[name] for name in named]
    for t in leaves:
        t.requires_grad_()
    got, want = ours(**operands), theirs(**operands)
    assert got.dtype is torch.float32
    close(got, want, 2e-5)
    g = torch.randn(got.shape) if upstream is None else upstream
    got_grads = torch.autograd.grad((got * g).sum(), leaves)
    want_grads = torch.autograd.grad((want * g.double()).sum(), leaves)
    for name, t, a, b in zip(named, leaves, got_grads, want_grads):
        assert a.dtype is t.dtype
        close(a, b, TOLERANCE[t.dtype], f"gradient of {name}", g.norm().item())
