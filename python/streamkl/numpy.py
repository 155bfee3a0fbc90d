# SPDX-License-Identifier: Apache-2.0
"""The two losses for NumPy arrays: value, and value and gradients. No torch.

Arrays are float32, float16 or bfloat16 (ml_dtypes), each its own; results are float32. threads 0 is one for each
processor; the result is the same bits for any number.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _c, _call
from ._options import Options, bad, make_options

Array = Any  # np.ndarray; numpy's own alias needs a newer numpy than we do
Loss = Union[float, Array]

_DTYPES = {"float32": _c.F32, "bfloat16": _c.BF16, "float16": _c.F16}


def attention_kl(
    q_s: Array,
    k_s: Array,
    q_t: Array,
    k_t: Array,
    *,
    causal: bool = False,
    scale_s: Optional[float] = None,
    scale_t: Optional[float] = None,
    divergence: str = "forward",
    beta: float = 0.5,
    weight: Optional[Array] = None,
    reduction: str = "mean",
    window: Optional[Tuple[int, int]] = None,
    begin: Optional[Array] = None,
    end: Optional[Array] = None,
    softcap_s: Optional[float] = None,
    softcap_t: Optional[float] = None,
    columns: Optional[int] = None,
    grads: Sequence[str] = (),
    threads: int = 0,
) -> Union[Loss, Tuple[Loss, Dict[str, Array]]]:
    """streamkl.attention_kl for arrays: a float, or with reduction "none" an array [B, H, N].

    grads: names of operands, such as ("q_s", "k_s"): the result is then (loss, {"q_s": gradient, "k_s": gradient}), the
        gradients, float32, of the sum of the returned loss.
    """
    options = make_options(
        attention=True,
        divergence=divergence,
        beta=beta,
        reduction=reduction,
        scale_s=scale_s,
        scale_t=scale_t,
        softcap_s=softcap_s,
        softcap_t=softcap_t,
        causal=causal,
        window=window,
        columns=columns,
    )
    operands = {"q_s": q_s, "k_s": k_s, "bias_s": None, "q_t": q_t, "k_t": k_t, "bias_t": None}
    return _divergence(operands, weight, begin, end, options, reduction, grads, threads)


def linear_kl(
    x_s: Array,
    w_s: Array,
    x_t: Array,
    w_t: Array,
    *,
    temperature: float = 1.0,
    divergence: str = "forward",
    beta: float = 0.5,
    weight: Optional[Array] = None,
    reduction: str = "mean",
    bias_s: Optional[Array] = None,
    bias_t: Optional[Array] = None,
    scale_s: Optional[float] = None,
    scale_t: Optional[float] = None,
    softcap_s: Optional[float] = None,
    softcap_t: Optional[float] = None,
    columns: Optional[int] = None,
    grads: Sequence[str] = (),
    threads: int = 0,
) -> Union[Loss, Tuple[Loss, Dict[str, Array]]]:
    """streamkl.linear_kl for arrays: a float, or with reduction "none" an array of x_s.shape[:-1]. grads as above."""
    options = make_options(
        attention=False,
        divergence=divergence,
        beta=beta,
        reduction=reduction,
        temperature=temperature,
        scale_s=scale_s,
        scale_t=scale_t,
        softcap_s=softcap_s,
        softcap_t=softcap_t,
        columns=columns,
    )
    operands = {"x_s": x_s, "w_s": w_s, "bias_s": bias_s, "x_t": x_t, "w_t": w_t, "bias_t": bias_t}
    return _divergence(operands, weight, None, None, options, reduction, grads, threads)


def _divergence(operands, weight, begin, end, options: Options, reduction: str, grads, threads: int):
    names = list(operands)
    arrays: List[Any] = [_operand(name, array) for name, array in operands.items()]
    for name in grads:
        if name not in names or operands[name] is None:
            raise bad("grads", tuple(grads), f"{name!r} is not an operand of this call")
    rows = arrays[0].shape[:-1]
    if not options.attention and not 2 <= arrays[0].ndim <= 4:  # what C takes
        if arrays[3].shape[:-1] != rows:
            raise bad("x_t.shape", arrays[3].shape, f"its leading dimensions must be those of x_s, {rows}")
        arrays[0], arrays[3] = (x.reshape(-1, x.shape[-1]) for x in (arrays[0], arrays[3]))
    flat = arrays[0].shape[:-1]
    over = [
        _over_rows("weight", weight, rows, flat, np.float32),
        _over_rows("begin", begin, rows, flat, np.int32),
        _over_rows("end", end, rows, flat, np.int32),
    ]
    views = [_view(x) for x in [*arrays, *over]]
    work = float(arrays[0].size) * (arrays[1].shape[-2] if arrays[1].ndim > 1 else 0)
    loss = np.empty(flat, np.float32)
    made: List[Optional[Array]] = [np.empty(x.shape, np.float32) if n in grads else None for n, x in zip(names, arrays)]
    if grads:
        value: Loss = _call.value_and_grad(views, work, options, threads, [_view(loss)], [*map(_view, made)])
    else:
        value = _call.value(views, work, options, threads, [_view(loss)])
    if reduction == "none":
        value = (loss if over[0] is None else loss * over[0]).reshape(rows)
    if not grads:
        return value
    return value, {name: g.reshape(np.shape(operands[name])) for name, g in zip(names, made) if g is not None}


def _operand(name: str, array: Any) -> Optional[Array]:
    if array is None and name.startswith("bias"):
        return None
    if not isinstance(array, np.ndarray):
        raise bad(name, type(array).__name__, "it must be a numpy.ndarray", TypeError)
    if array.dtype.name not in _DTYPES or not array.dtype.isnative:
        raise bad(
            f"{name}.dtype", str(array.dtype), "it must be float32, bfloat16 or float16 of this machine", TypeError
        )
    if array.ndim == 0:
        raise bad(f"{name}.shape", (), "it must have a last dimension of vectors")
    whole = all(step % array.itemsize == 0 for step in array.strides)
    last = array.ndim < 2 or array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    return array if whole and last else np.ascontiguousarray(array)


def _over_rows(name: str, array: Any, rows, flat, dtype) -> Optional[Array]:
    if array is None:
        return None
    array = np.asarray(array)
    if array.dtype.kind not in ("iu" if dtype is np.int32 else "iufb"):
        raise bad(
            f"{name}.dtype",
            str(array.dtype),
            "it must hold integers" if dtype is np.int32 else "it must hold numbers",
            TypeError,
        )
    try:
        full = np.broadcast_to(array, rows)
    except ValueError:
        raise bad(f"{name}.shape", array.shape, f"it must broadcast to the rows, {tuple(rows)}") from None
    return np.ascontiguousarray(full.reshape(flat), dtype=dtype)


def _view(array: Optional[Array]) -> Optional[bytes]:
    if array is None:
        return None
    dtype = _c.I32 if array.dtype == np.int32 else _DTYPES[array.dtype.name]
    return _call.view(array.ctypes.data, dtype, array.shape, [step // array.itemsize for step in array.strides])
