# SPDX-License-Identifier: Apache-2.0
"""Lists of a live teacher of arrays."""

from __future__ import annotations

import numpy as np

from . import _c, _call
from ._arrays import Call, row_views
from ._topk import Lists, head_options


def topk_of(x_t, w_t, k, temperature, bias, scale, softcap, columns) -> Lists:
    names = ("x_t", "w_t", "bias", "a_t", "b_t", "bias_t")  # C's t is left out: the teacher is in the place of s
    call = Call(_c.LINEAR, dict(zip(names, (x_t, w_t, bias, None, None, None))), alone=True)
    shapes = [None if x is None else np.shape(x) for x in (call.operands[name] for name in names[:3])]
    options, k = head_options(*shapes, k, temperature, scale, softcap, columns)
    ids, logprobs = np.empty((*call.flat, k), np.int32), np.empty((*call.flat, k), np.float32)
    tail = np.empty(call.flat, np.float32)
    made = {"topk_ids": ids, "topk_logprobs": logprobs, "tail_logprob": tail}
    _call.topk(call.views, call.work, options, 0, row_views(made))
    return Lists(ids.reshape(*call.rows, k), logprobs.reshape(*call.rows, k), tail.reshape(call.rows))
