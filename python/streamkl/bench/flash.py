# SPDX-License-Identifier: Apache-2.0
"""Forward KL of attention with nothing but torch's flash attention for the CPU: the strongest other way.

E_p[z_s] = scale q_s . Attn(Q_t, K_t; V = K_s), so three calls (each of them two products) give the value, and gradients
are differences of attention outputs and of the dV of two backward calls. All heads must have one width.
"""

from __future__ import annotations

import torch
from torch import Tensor

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _ThreeFlashCalls(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q_s, k_s, q_t, k_t, causal):
        scale = q_s.shape[-1] ** -0.5
        t_t, lse_t = _forward(q_t, k_t, k_t, is_causal=causal)
        t_s, _ = _forward(q_t, k_t, k_s, is_causal=causal)
        s_s, lse_s = _forward(q_s, k_s, k_s, is_causal=causal)
        gap = (q_t.float() * t_t.float() - q_s.float() * t_s.float()).sum(-1)
        ctx.save_for_backward(q_s, k_s, q_t, k_t, t_s, lse_t, s_s, lse_s)
        ctx.causal = causal
        return scale * gap - lse_t.reshape(gap.shape) + lse_s.reshape(gap.shape)

    @staticmethod
    def backward(ctx, g):
        q_s, k_s, q_t, k_t, t_s, lse_t, s_s, lse_s = ctx.saved_tensors
        scale = q_s.shape[-1] ** -0.5
        up = (scale * g)[..., None]
        dq = (up * (s_s.float() - t_s.float())).to(q_s.dtype)
        out = (up * q_s).to(q_s.dtype)
        dv_s = _backward(out, q_s, k_s, k_s, s_s, lse_s, 0.0, ctx.causal)[2]
        dv_t = _backward(out, q_t, k_t, k_s, t_s, lse_t, 0.0, ctx.causal)[2]
        return dq, dv_s - dv_t, None, None, None


def three_flash_calls(q_s: Tensor, k_s: Tensor, q_t: Tensor, k_t: Tensor, causal: bool) -> Tensor:
    return _ThreeFlashCalls.apply(q_s, k_s, q_t, k_t, causal).mean()
