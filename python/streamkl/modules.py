# SPDX-License-Identifier: Apache-2.0
"""The losses as torch modules: what does not change from batch to batch goes to the constructor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _c
from ._options import (
    AttentionOptions,
    CrossEntropyOptions,
    LinearOptions,
    ListedOptions,
    make_options,
    refuse_in_call,
    show_options,
)
from .functional import Result, attention_kl, linear_cross_entropy, linear_kl, linear_topk_kl

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
_OF_ATTENTION = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "support",
    "sink_s",
    "sink_t",
    "sink",
    "details",
)  # what else attention_kl's call takes


def _refuse_unknown(use: int, module: str, given: Mapping[str, Any]) -> None:
    known = (*_PLACE, *_OF_ATTENTION) if use == _c.ATTENTION else _PLACE
    unknown = {name: value for name, value in given.items() if name not in known}
    if unknown:
        refuse_in_call(use, module, unknown)


class AttentionKLLoss(_Loss):
    """attention_kl as a module: options to the constructor, tensors to the call, and group= with what goes with it;
    cu_seqlens_q=, cu_seqlens_k=, support=, sink_s=, sink_t=, sink= and details= to the call, too."""

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
        lse_t: Optional[Tensor] = None,
        head_map: Optional[Tensor] = None,
        return_lse: bool = False,
        **place: Any,
    ) -> Result:
        _refuse_unknown(_c.ATTENTION, "AttentionKLLoss", place)
        more = dict(weight=weight, begin=begin, end=end, lse_t=lse_t, head_map=head_map, return_lse=return_lse)
        return attention_kl(q_s, k_s, q_t, k_t, **more, **place, **self.options)


class LinearKLLoss(_Loss):
    """linear_kl as a module: options to the constructor, tensors to the call, and group= with what goes with it."""

    @show_options(_c.LINEAR)
    def __init__(self, **options: Unpack[LinearOptions]) -> None:
        super().__init__(_c.LINEAR, options)

    def forward(
        self,
        x_s: Tensor,
        w_s: Tensor,
        x_t: Optional[Tensor] = None,
        w_t: Optional[Tensor] = None,
        weight: Optional[Tensor] = None,
        bias_s: Optional[Tensor] = None,
        bias_t: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        details: Sequence[str] = (),
        mass_ids: Optional[Tensor] = None,
        return_lse: bool = False,
        num_items: Union[float, Tensor, None] = None,
        teachers: Optional[Sequence[Tuple[Any, Tensor, Tensor]]] = None,
        **place: Any,
    ) -> Result:
        _refuse_unknown(_c.LINEAR, "LinearKLLoss", place)
        more = dict(weight=weight, bias_s=bias_s, bias_t=bias_t, labels=labels, mass_ids=mass_ids, teachers=teachers)
        told = dict(details=details, return_lse=return_lse)
        return linear_kl(x_s, w_s, x_t, w_t, **more, **told, **place, **_with_items(self.options, num_items))


class LinearCrossEntropyLoss(_Loss):
    """linear_cross_entropy as a module: options to the constructor, tensors to the call, and group= with what goes with
    it."""

    @show_options(_c.CROSS_ENTROPY)
    def __init__(self, **options: Unpack[CrossEntropyOptions]) -> None:
        super().__init__(_c.CROSS_ENTROPY, options)

    def forward(
        self,
        x: Tensor,
        w: Tensor,
        labels: Tensor,
        bias: Optional[Tensor] = None,
        weight: Optional[Tensor] = None,
        details: Sequence[str] = (),
        mass_ids: Optional[Tensor] = None,
        num_items: Union[float, Tensor, None] = None,
        **place: Any,
    ) -> Any:
        _refuse_unknown(_c.CROSS_ENTROPY, "LinearCrossEntropyLoss", place)
        more = dict(bias=bias, weight=weight, details=details, mass_ids=mass_ids)
        return linear_cross_entropy(x, w, labels, **more, **place, **_with_items(self.options, num_items))


class LinearTopKKLLoss(_Loss):
    """linear_topk_kl as a module: options to the constructor, tensors to the call."""

    @show_options(_c.LISTED)
    def __init__(self, **options: Unpack[ListedOptions]) -> None:
        super().__init__(_c.LISTED, options)

    def forward(
        self,
        x_s: Tensor,
        w_s: Tensor,
        ids: Tensor,
        logprobs: Tensor,
        weight: Optional[Tensor] = None,
        bias_s: Optional[Tensor] = None,
        tail_logprob: Optional[Tensor] = None,
        labels: Optional[Tensor] = None,
        details: Sequence[str] = (),
        mass_ids: Optional[Tensor] = None,
        num_items: Union[float, Tensor, None] = None,
        **unknown: Any,
    ) -> Result:
        if unknown:
            refuse_in_call(_c.LISTED, "LinearTopKKLLoss", unknown)
        more = dict(weight=weight, bias_s=bias_s, tail_logprob=tail_logprob, labels=labels)
        told = dict(details=details, mass_ids=mass_ids)
        return linear_topk_kl(x_s, w_s, ids, logprobs, **more, **told, **_with_items(self.options, num_items))


def _with_items(options: Mapping[str, Any], num_items: Union[float, Tensor, None]) -> Mapping[str, Any]:
    """The number of items changes from batch to batch, so that a call may have its own."""
    return options if num_items is None else {**options, "num_items": num_items}
