# SPDX-License-Identifier: Apache-2.0
"""The losses as torch modules: what does not change from batch to batch goes to the constructor."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from ._options import make_options
from .functional import Result, attention_kl, linear_kl


class _Loss(torch.nn.Module):
    def __init__(self, attention: bool, **arguments) -> None:
        super().__init__()
        make_options(attention=attention, **arguments)  # complain here, not at the first batch
        self.arguments = arguments

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items() if value is not None)


class AttentionKLLoss(_Loss):
    """attention_kl as a module. Arguments as there."""

    def __init__(
        self,
        *,
        causal: bool = False,
        scale_s: Optional[float] = None,
        scale_t: Optional[float] = None,
        divergence: str = "forward",
        beta: float = 0.5,
        reduction: str = "mean",
        window: Optional[Tuple[int, int]] = None,
        softcap_s: Optional[float] = None,
        softcap_t: Optional[float] = None,
    ) -> None:
        super().__init__(
            True,
            causal=causal,
            scale_s=scale_s,
            scale_t=scale_t,
            divergence=divergence,
            beta=beta,
            reduction=reduction,
            window=window,
            softcap_s=softcap_s,
            softcap_t=softcap_t,
        )

    def forward(
        self,
        q_s: Tensor,
        k_s: Tensor,
        q_t: Tensor,
        k_t: Tensor,
        weight: Optional[Tensor] = None,
        begin: Optional[Tensor] = None,
        end: Optional[Tensor] = None,
    ) -> Result:
        return attention_kl(q_s, k_s, q_t, k_t, weight=weight, begin=begin, end=end, **self.arguments)


class LinearKLLoss(_Loss):
    """linear_kl as a module. Arguments as there."""

    def __init__(
        self,
        *,
        temperature: float = 1.0,
        divergence: str = "forward",
        beta: float = 0.5,
        reduction: str = "mean",
        scale_s: Optional[float] = None,
        scale_t: Optional[float] = None,
        softcap_s: Optional[float] = None,
        softcap_t: Optional[float] = None,
        columns: Optional[int] = None,
    ) -> None:
        super().__init__(
            False,
            temperature=temperature,
            divergence=divergence,
            beta=beta,
            reduction=reduction,
            scale_s=scale_s,
            scale_t=scale_t,
            softcap_s=softcap_s,
            softcap_t=softcap_t,
            columns=columns,
        )

    def forward(
        self,
        x_s: Tensor,
        w_s: Tensor,
        x_t: Tensor,
        w_t: Tensor,
        weight: Optional[Tensor] = None,
        bias_s: Optional[Tensor] = None,
        bias_t: Optional[Tensor] = None,
    ) -> Result:
        return linear_kl(x_s, w_s, x_t, w_t, weight=weight, bias_s=bias_s, bias_t=bias_t, **self.arguments)
