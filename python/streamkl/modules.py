# SPDX-License-Identifier: Apache-2.0
"""The losses as torch modules: what does not change from batch to batch goes to the constructor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

from . import _c
from ._options import AttentionOptions, LinearOptions, make_options, refuse_in_call, show_options
from .functional import Result, attention_kl, linear_kl

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Loss(torch.nn.Module):
    def __init__(self, use: int, options: Mapping[str, Any]) -> None:
        super().__init__()
        make_options(use, options)  # complain here, not at the first batch
        self.options = dict(options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


_PLACE = ("group", "rows", "check", "key_offset", "key_positions")  # where the operands are: of the call


def _refuse_unknown(use: int, module: str, given: Mapping[str, Any]) -> None:
    unknown = {name: value for name, value in given.items() if name not in _PLACE}
    if unknown:
        refuse_in_call(use, module, unknown)


class AttentionKLLoss(_Loss):
    """attention_kl as a module: options to the constructor, tensors to the call, and group= with what goes with it."""

    @show_options(_c.ATTENTION)
    def __init__(self, **options: Unpack[AttentionOptions]) -> None:
        super().__init__(_c.ATTENTION, options)

    def forward(
        self,
        q_s: Tensor,
        k_s: Tensor,
        q_t: Tensor,
        k_t: Tensor,
        weight: Optional[Tensor] = None,
        begin: Optional[Tensor] = None,
        end: Optional[Tensor] = None,
        return_lse: bool = False,
        **place: Any,
    ) -> Result:
        _refuse_unknown(_c.ATTENTION, "AttentionKLLoss", place)
        return attention_kl(
            q_s, k_s, q_t, k_t, weight=weight, begin=begin, end=end, return_lse=return_lse, **place, **self.options
        )


class LinearKLLoss(_Loss):
    """linear_kl as a module: options to the constructor, tensors to the call, and group= with what goes with it."""

    @show_options(_c.LINEAR)
    def __init__(self, **options: Unpack[LinearOptions]) -> None:
        super().__init__(_c.LINEAR, options)

    def forward(
        self,
        x_s: Tensor,
        w_s: Tensor,
        x_t: Tensor,
        w_t: Tensor,
        weight: Optional[Tensor] = None,
        bias_s: Optional[Tensor] = None,
        bias_t: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        details: Sequence[str] = (),
        return_lse: bool = False,
        **place: Any,
    ) -> Result:
        _refuse_unknown(_c.LINEAR, "LinearKLLoss", place)
        more = dict(weight=weight, bias_s=bias_s, bias_t=bias_t, labels=labels, details=details, return_lse=return_lse)
        return linear_kl(x_s, w_s, x_t, w_t, **more, **place, **self.options)
