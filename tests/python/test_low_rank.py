# SPDX-License-Identifier: Apache-2.0
"""Heads of low rank."""

import pytest
import torch

import reference
import streamkl
from streamkl import low_rank


def head_of_rank(r, v=301, d=40, noise=0.0):
    return torch.randn(v, r) @ torch.randn(r, d) / r**0.5 + noise * torch.randn(v, d)


def test_a_head_that_has_this_rank_is_kept():
    w, x = head_of_rank(7), torch.randn(3, 5, 40)
    made = streamkl.compress_head(w, energy=0.99999, hidden=x)
    assert made.project.shape == (40, 7) and made.weight.shape == (301, 7)
    torch.testing.assert_close(made.weight @ made.project.T, w, rtol=1e-4, atol=1e-4)
    assert abs(made.error) < 1e-5  # a KL of 0, to rounding
    project, weight, error = streamkl.compress_head(w, 7)
    assert torch.equal(project, made.project) and torch.equal(weight, made.weight) and error is None


@pytest.mark.parametrize("rank", (1, 12, 40))
def test_it_is_the_truncated_svd(rank, monkeypatch):
    monkeypatch.setattr(low_rank, "_SLICE", 1000)  # several slices
    w, x = head_of_rank(20, noise=0.3), torch.randn(30, 40)
    made = streamkl.compress_head(w, rank, hidden=x, temperature=2.0, softcap=20.0)
    u, s, vt = torch.linalg.svd(w.double(), full_matrices=False)
    best = (u[:, :rank] * s[:rank]) @ vt[:rank]
    torch.testing.assert_close((made.weight @ made.project.T).double(), best, rtol=1e-4, atol=1e-4)
    z_s, z_t = (reference.linear_logits(x, m, softcap=20.0, temperature=2.0) for m in (best, w))
    want = reference.divergence_of(z_s, z_t, "forward", None).mean().item()
    assert abs(made.error - want) <= 1e-4 * want + 2e-6


def test_energy_is_the_share_of_squares():
    w = head_of_rank(20, noise=0.3)
    squares = torch.linalg.svdvals(w.double()).square()
    for energy in (0.3, 0.8, 0.95):
        r = streamkl.compress_head(w, energy=energy).weight.shape[1]
        assert squares[:r].sum() >= energy * squares.sum() > squares[: r - 1].sum()
    assert streamkl.compress_head(w, energy=1.0).weight.shape[1] == 40


def test_as_a_teacher():
    """A loss with it, in the head's dtype."""
    w, x = head_of_rank(6).bfloat16(), torch.randn(9, 40).bfloat16()
    made = streamkl.compress_head(w, 6)
    assert made.weight.dtype is made.project.dtype is torch.bfloat16
    x_s, w_s = torch.randn(9, 16, requires_grad=True), torch.randn(301, 16)
    got = streamkl.linear_kl(x_s, w_s, x @ made.project, made.weight)
    torch.testing.assert_close(got, streamkl.linear_kl(x_s, w_s, x, w), rtol=2e-2, atol=2e-2)


BAD = [
    (dict(), ValueError, "give one of rank and energy"),
    (dict(rank=3, energy=0.5), ValueError, "give one of rank and energy"),
    (dict(rank=0), ValueError, "rank = 0: it must be a number of entries, 1 to 40"),
    (dict(rank=41), ValueError, "rank = 41"),
    (dict(energy=1.5), ValueError, "energy = 1.5"),
]


@pytest.mark.parametrize("numbers, kind, sentence", BAD)
def test_refused(numbers, kind, sentence):
    with pytest.raises(kind, match=sentence):
        streamkl.compress_head(head_of_rank(5), **numbers)
    with pytest.raises(TypeError, match="it must be a head"):
        streamkl.compress_head(torch.zeros(3), 1)
