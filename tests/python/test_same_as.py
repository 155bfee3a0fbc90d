# SPDX-License-Identifier: Apache-2.0
"""The table "Coming from another library" of docs/python.md, line by line: the same loss, the same gradients."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import reference
import streamkl

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
LINE = re.compile(r"^\| (\w+) `([^`]+)`(.*?) \| `([^`]+)` \|$", re.M)
LINES = LINE.findall(PAGE.read_text().split("### Coming from another library")[1].split("\n## ")[0])
T, V, IGNORED = 2.0, 97, -100


def test_the_table_is_found():
    assert len(LINES) == 11 and {line[0] for line in LINES} == {
        "Liger",
        "TRL",
        "transformers",
        "torchtune",
        "DistillKit",
    }


class Formula:
    """What cannot be installed or has no CPU, as its code has it."""

    @staticmethod
    def flce(lse_square_scale, label_smoothing, softcap):
        """Liger's Triton kernel: the z-loss of valid tokens beside torch's smoothed cross-entropy, both means over them."""

        def run(w, x, labels):
            z = softcap * torch.tanh((x @ w.T) / softcap)
            lse = z.logsumexp(-1)[labels != IGNORED]
            return F.cross_entropy(z, labels, label_smoothing=label_smoothing) + lse_square_scale * (lse**2).mean()

        return run

    @staticmethod
    def forward_kl(z_s, z_t, labels):
        """torchtune: -sum p log q over the valid tokens."""
        rows = -(z_t.softmax(-1) * z_s.log_softmax(-1)).sum(-1)
        return rows[labels != IGNORED].mean()

    @staticmethod
    def reverse_kl(z_s, z_t, labels):
        rows = (z_s.softmax(-1) * (z_s.log_softmax(-1) - z_t.log_softmax(-1))).sum(-1)
        return rows[labels != IGNORED].mean()

    @staticmethod
    def kl(z_s, z_t, labels, temperature):
        """DistillKit: the KL at this temperature times its square, over the valid tokens."""
        return (
            temperature**2
            * reference.divergence_of(
                z_s[labels != IGNORED] / temperature, z_t[labels != IGNORED] / temperature, "forward", None
            ).mean()
        )


def names_of(library):
    if library == "Liger":
        from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

        return {"LigerFusedLinearJSDLoss": LigerFusedLinearJSDLoss, "LigerFusedLinearCrossEntropyLoss": Formula.flce}
    if library == "TRL":
        return {"GKDTrainer": pytest.importorskip("trl.experimental.gkd").GKDTrainer}
    if library == "transformers":
        return {"ForCausalLMLoss": pytest.importorskip("transformers.loss.loss_utils").ForCausalLMLoss}
    if library == "torchtune":
        return {"ForwardKLLoss": lambda: Formula.forward_kl, "ReverseKLLoss": lambda: Formula.reverse_kl, "F": F}
    return {"cross_entropy": F.cross_entropy, "kl": Formula.kl}


@pytest.mark.parametrize("library, theirs, remark, ours", LINES, ids=[f"{line[0]}: {line[1][:60]}" for line in LINES])
def test_line(library, theirs, remark, ours):
    if library == "Liger":
        pytest.importorskip("liger_kernel.chunked_loss")
    x_s, w_s = torch.randn(40, 16, requires_grad=True), (torch.randn(V, 16) * 0.5).requires_grad_()
    x_t, w_t = torch.randn(40, 24), torch.randn(V, 24) * 0.4
    labels = torch.randint(V, (40,))
    labels[::3] = IGNORED
    given = dict(x_s=x_s, w_s=w_s, x_t=x_t, w_t=w_t, labels=labels, T=T, V=V, n=torch.tensor(31))
    want = eval(theirs, {**names_of(library), **given})
    got = eval(ours, {"linear_kl": streamkl.linear_kl, "linear_cross_entropy": streamkl.linear_cross_entropy, **given})
    more = 0.0
    if "entropy" in remark:
        log_p = (x_t @ w_t.T).double().log_softmax(-1)
        more = -(log_p.exp() * log_p).sum(-1)[labels != IGNORED].mean()
    reference.close(got + more, want, 2e-5)
    for name, a, b in zip("xw", torch.autograd.grad(got, (x_s, w_s)), torch.autograd.grad(want, (x_s, w_s))):
        reference.close(a, b, 5e-5, name)
