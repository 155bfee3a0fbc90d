# SPDX-License-Identifier: Apache-2.0
"""streamkl.nemo_rl against the formula of NeMo-RL's DistillationLossFn, with k the whole vocabulary, in float64.

NeMo-RL itself cannot be installed from PyPI, so that its own class is not called here."""

from types import SimpleNamespace

import pytest
import torch

from streamkl.hf import Head
from streamkl.nemo_rl import DistillationLossFn

B, S, V = 3, 8, 60


@pytest.mark.parametrize("kl_type, share", [("forward", 0.5), ("reverse", 0.5), ("mixed", 0.3)])
@pytest.mark.parametrize("wrap", (dict, lambda **cfg: SimpleNamespace(**cfg)))
def test_loss(kl_type, share, wrap):
    x_s, w_s = torch.randn(B, S - 1, 12, requires_grad=True), torch.randn(V, 12, requires_grad=True)
    x_t, w_t = torch.randn(B, S - 1, 20), torch.randn(V, 20)
    token_mask = (torch.arange(S) >= torch.tensor([[2], [4], [1]])).float()
    data = dict(input_ids=torch.zeros(B, S), token_mask=token_mask, sample_mask=torch.tensor([1.0, 0.0, 1.0]))
    toks = torch.tensor(29.0)  # of all microbatches, on all processes
    student, teacher = Head(w_s, None, 1.0, None, V), Head(w_t, None, 0.5, None, V)
    cfg = wrap(kl_type=kl_type, mixed_kl_weight=share, zero_outside_topk=True)
    loss, metrics = DistillationLossFn(cfg, lambda: student, teacher)(x_s, x_t, data, torch.tensor(2), toks)

    q, p = ((scale * x @ w.T).double().log_softmax(-1) for scale, x, w in ((1, x_s, w_s), (0.5, x_t, w_t)))
    forward, reverse = (p.exp() * (p - q)).sum(-1), (q.exp() * (q - p)).sum(-1)
    rows = {"forward": forward, "reverse": reverse, "mixed": share * forward + (1 - share) * reverse}[kl_type]
    want = (rows * token_mask[:, 1:] * data["sample_mask"][:, None]).sum() / toks
    torch.testing.assert_close(loss, want.float(), rtol=2e-6, atol=0)
    assert metrics == {"loss": loss.item(), "num_valid_samples": B}
    for g, exact in zip(torch.autograd.grad(loss, (x_s, w_s)), torch.autograd.grad(want, (x_s, w_s))):
        assert (g - exact).norm() <= 1e-5 * exact.norm()


def test_refusals():
    with pytest.raises(ValueError, match="kl_type = 'jsd'"):
        DistillationLossFn(dict(kl_type="jsd"), None, None)
    with pytest.raises(ValueError, match="mixed_kl_weight = 2"):
        DistillationLossFn(dict(kl_type="mixed", mixed_kl_weight=2), None, None)
