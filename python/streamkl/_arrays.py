# SPDX-License-Identifier: Apache-2.0
"""The arrays of a call, NumPy's or what NumPy reads: checked, and brought to the shapes and dtypes that C takes."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import _c, _call
from ._checks import bad
from ._errors import order_hint

Array = Any  # np.ndarray; numpy's own alias needs a newer numpy than we do

_INTEGERS = {"int32": _c.I32, "int64": _c.I64}
DTYPES = {"float32": _c.F32, "bfloat16": _c.BF16, "float16": _c.F16}


class Call:
    """The arrays of one call. operands: by name, in the order of _c.OPERANDS, without the sinks."""

    def __init__(
        self,
        use: int,
        operands: Dict[str, Any],
        weight=None,
        begin=None,
        end=None,
        labels=None,
        mass_ids=None,
        lse_t=None,
        head_map=None,
        listed=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        support=None,
        sinks=(None, None),
        alone=False,
    ) -> None:
        given = {name: read(name, x, np.float32) for name, x in operands.items()}
        without_teacher = alone or labels is not None or listed is not None
        arrays: List[Any] = [
            None if array is None and without_teacher else _operand(name, array) for name, array in given.items()
        ]
        more_given = {name: read(name, x, np.float32) for name, x in zip(("sink_s", "sink_t"), sinks)}
        sink_arrays = [_operand(name, x) for name, x in more_given.items()]
        self.operands, self.names = {**given, **more_given}, [*given, *more_given]
        self.rows = arrays[0].shape[:-1]  # as people see them
        if use == _c.INDEXER:  # whose heads make one row
            self.rows = arrays[0].shape[:1] + arrays[0].shape[2:3]
        offsets: List[Any] = [None, None]
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            offsets = [_offsets("cu_seqlens_q", cu_seqlens_q), _offsets("cu_seqlens_k", cu_seqlens_k)]
        self.packed = offsets[0] is not None and use != _c.INDEXER  # an indexer's arrays come as a batch of one
        if self.packed:
            arrays = [None if x is None else _one_batch(name, x) for name, x in zip(given, arrays)]
        if use == _c.LINEAR and not 2 <= arrays[0].ndim <= 4:  # C takes one to three leading dimensions
            if arrays[3] is not None and arrays[3].shape[:-1] != self.rows:
                hint = order_hint(use, *[arrays[i].shape for i in (0, 1, 3, 4)])
                rule = f"its leading dimensions must be those of x_s, {self.rows}{hint}"
                raise bad("x_t.shape", arrays[3].shape, rule)
            arrays[0], arrays[3] = (None if x is None else x.reshape(-1, x.shape[-1]) for x in (arrays[0], arrays[3]))
        self.flat = self.rows if use == _c.INDEXER else arrays[0].shape[:-1]  # as C sees them
        over = [("weight", weight, _weight), ("begin", begin, _bound), ("end", end, _bound)]
        more = [
            None if x is None else self._over_rows(name, check(name, read(name, x)), use) for name, x, check in over
        ]
        self.weight = more[0]
        self.labels = None if labels is None else self._labels(read("labels", labels))
        self.mass_ids = None if mass_ids is None else self._mass_ids(read("mass_ids", mass_ids))
        lse_t = None if lse_t is None else self._lse(_weight("lse_t", read("lse_t", lse_t)))
        head_map = None if head_map is None else _heads("head_map", read("head_map", head_map))
        lists = (None, None, None) if listed is None else self._lists(*listed)
        support = None if support is None else self._support(read("support", support))
        self.arrays = [
            *arrays,
            *sink_arrays,
            *more,
            self.labels,
            self.mass_ids,
            lse_t,
            head_map,
            *lists,
            *offsets,
            support,
        ]
        self.views = [view(x) for x in self.arrays]
        self.work = float(arrays[0].size) * (arrays[1].shape[-2] if arrays[1].ndim > 1 else 0)

    def _over_rows(self, name: str, array: Array, use: int) -> Array:
        """array broadcast to the rows. For attention, where they are [B, H, N], two dimensions are [B, N]."""
        by_batch = use == _c.ATTENTION and array.ndim == 2
        if self.packed:
            return self._over_packed(name, array)
        try:
            full = np.broadcast_to(array[:, None] if by_batch else array, self.rows)
        except ValueError:
            rule = f"it must broadcast to the rows, {tuple(self.rows)}"
            rule += " (two dimensions are batch and query; heads are written [1, H, N])" if by_batch else ""
            raise bad(f"{name}.shape", array.shape, rule) from None
        return np.ascontiguousarray(full.reshape(self.flat))

    def _mass_ids(self, array: Array) -> Array:
        _check_integers("mass_ids", array)
        try:
            full = np.broadcast_to(array, (*self.rows, array.shape[-1]))
        except (ValueError, IndexError):
            rule = f"it must broadcast to the rows and their ids, {tuple(self.rows)} + (K,)"
            raise bad("mass_ids.shape", array.shape, rule) from None
        return np.ascontiguousarray(full.reshape(*self.flat, full.shape[-1]), np.int64)

    def _over_packed(self, name: str, array: Array) -> Array:
        """[total] or [total, H] as C has the rows, [1, H, total]."""
        total, heads = self.rows
        if (
            array.ndim not in (1, 2)
            or array.shape[0] != total
            or (array.ndim == 2 and array.shape[1] not in (1, heads))
        ):
            rule = f"with packed sequences it must be [total] or [total, heads], ({total},) or ({total}, {heads})"
            raise bad(f"{name}.shape", array.shape, rule)
        full = np.broadcast_to(array[:, None] if array.ndim == 1 else array, self.rows)
        return np.ascontiguousarray(full.T[None])

    def _lse(self, array: Array) -> Array:
        """Packed [total, heads] as C has it; its shape is C's to check."""
        return np.ascontiguousarray(array.T[None]) if self.packed and array.ndim == 2 else array

    def _support(self, array: Array) -> Array:
        """Lists of keys, packed [total, K]."""
        _check_integers("support", array)
        if array.ndim != 3 - self.packed:
            rule = "it must be [total_q, K]" if self.packed else "it must be [B, N, K]"
            raise bad("support.shape", array.shape, rule)
        array = np.clip(array.astype(np.int64), -2, 2**31 - 1).astype(np.int32)
        return array[None] if self.packed else array

    def shaped(self, rows: Array) -> Array:
        """A row result as people see it."""
        return np.ascontiguousarray(rows[0].T) if self.packed else rows.reshape(self.rows)

    def _labels(self, array: Array) -> Array:
        _check_integers("labels", array)
        if array.shape != self.rows:
            raise bad("labels.shape", array.shape, f"it must be that of the rows, {self.rows}")
        return np.ascontiguousarray(array.reshape(self.flat), np.int64)

    def _lists(self, ids: Any, logprobs: Any, tail_logprob: Any) -> List[Optional[Array]]:
        ids, logprobs = read("ids", ids), read("logprobs", logprobs)
        if ids.dtype.kind not in "iu":
            raise bad("ids.dtype", ids.dtype.name, "it must hold integers", TypeError)
        if logprobs.dtype.name not in (*DTYPES, "float64"):
            raise bad("logprobs.dtype", logprobs.dtype.name, "it must hold logarithms of probabilities", TypeError)
        if ids.ndim == 0 or ids.shape[:-1] != self.rows:
            raise bad("ids.shape", ids.shape, f"it must be that of the rows and a last dimension, {(*self.rows, 'K')}")
        if logprobs.shape != ids.shape:
            raise bad("logprobs.shape", logprobs.shape, f"it must be that of ids, {ids.shape}")
        shape, rest = (*self.flat, ids.shape[-1]), None
        if tail_logprob is not None:
            rest = read("tail_logprob", tail_logprob).astype(np.float32)
            if rest.shape != self.rows:
                raise bad("tail_logprob.shape", rest.shape, f"it must be that of the rows, {self.rows}")
            rest = np.ascontiguousarray(rest.reshape(self.flat))
        stored = np.float32 if logprobs.dtype == np.float64 else logprobs.dtype
        return [
            np.ascontiguousarray(ids.reshape(shape), np.int64),
            np.ascontiguousarray(logprobs.reshape(shape), stored),
            rest,
        ]

    def gradients(self, wanted: Sequence[str]) -> List[Optional[Array]]:
        """Room for the gradients, in the order of _c.OPERANDS."""
        return [np.empty(x.shape, np.float32) if n in wanted else None for n, x in zip(self.names, self.arrays)]

    def by_name(self, gradients: Sequence[Optional[Array]]) -> Dict[str, Array]:
        shapes = {name: np.shape(x) for name, x in self.operands.items()}
        if self.packed:
            gradients = [
                g if g is None or g.ndim == 1 else np.ascontiguousarray(g[0].swapaxes(0, 1)) for g in gradients
            ]
        return {name: g.reshape(shapes[name]) for name, g in zip(self.names, gradients) if g is not None}


def row_arrays(wanted: Sequence[str], shape: Tuple[int, ...]) -> Dict[str, Array]:
    return {name: np.empty(shape, np.int32 if name in _c.INTEGER_ROWS else np.float32) for name in wanted}


def row_views(rows: Any) -> List[Optional[bytes]]:
    """The views of _c.ROWS, from a dict of arrays."""
    return [view(rows.get(name)) for name in _c.ROWS]


def view(array: Optional[Array]) -> Optional[bytes]:
    if array is None:
        return None
    dtype = _INTEGERS[array.dtype.name] if array.dtype.kind == "i" else DTYPES[array.dtype.name]
    steps = [step // array.itemsize for step in array.strides] if array.size else [1] * array.ndim
    return _call.view(array.ctypes.data, dtype, array.shape, steps)


_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__", "__buffer__")


def read(name: str, given: Any, of_lists: Any = None) -> Optional[Array]:
    """What people have instead of an ndarray: lists of numbers, which have no dtype and get of_lists, and everything that
    speaks the array protocol, a buffer or DLPack, in its own dtype and mostly without a copy."""
    if given is None or isinstance(given, np.ndarray):
        return given
    try:
        if isinstance(given, (list, tuple)):
            return np.asarray(given, of_lists)
        if any(hasattr(given, protocol) for protocol in _PROTOCOLS) or isinstance(given, (memoryview, bytearray)):
            return np.asarray(given)
        if hasattr(given, "__dlpack__"):
            return np.from_dlpack(given)
    except Exception as error:  # whatever the object's own exporter raises: on a GPU, requires grad, ragged
        rule = f"numpy cannot read it ({' '.join(str(error).split()) or type(error).__name__})"
        rule += ": torch's tensors have their own calls in streamkl" if type(given).__module__ == "torch" else ""
        raise bad(name, type(given).__name__, rule, TypeError) from error
    if np.isscalar(given) and not isinstance(given, (str, bytes)):
        return np.asarray(given)
    raise bad(name, type(given).__name__, "it must be an array, or what numpy makes one of", TypeError)


def _operand(name: str, array: Optional[Array]) -> Optional[Array]:
    if array is None:
        if name.startswith(("bias", "sink")):
            return None
        raise bad(name, None, "it must be an array", TypeError)
    if array.dtype == np.float64:
        rule = "products are made in float32, and nothing is rounded unasked: x.astype(numpy.float32)"
        raise bad(f"{name}.dtype", "float64", rule, TypeError)
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        rule = "it must be float32, bfloat16 or float16 of this machine: astype(numpy.float32)"
        raise bad(f"{name}.dtype", str(array.dtype), rule, TypeError)
    if array.ndim == 0:
        raise bad(f"{name}.shape", (), "it must have a last dimension of vectors")
    whole = all(step % array.itemsize == 0 for step in array.strides)
    last = array.ndim < 2 or array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    return array if whole and last else np.ascontiguousarray(array)


def _check_integers(name: str, array: Array) -> None:
    if array.dtype.kind not in "iu":
        raise bad(f"{name}.dtype", array.dtype.name, "it must hold integers", TypeError)


def _one_batch(name: str, array: Array) -> Array:
    """Packed sequences, [total, H, D], are a batch of one in C."""
    if array.ndim != 3:
        raise bad(f"{name}.shape", array.shape, "with cu_seqlens_q it must be [total, heads, dim]")
    return array.swapaxes(0, 1)[None]


def _offsets(name: str, array: Any) -> Array:
    if array is None:
        raise bad(name, None, "packed sequences need both cu_seqlens_q and cu_seqlens_k")
    array = np.asarray(array)
    if array.dtype != np.int32:
        raise bad(f"{name}.dtype", array.dtype.name, "it must be int32, as flash-attn has it", TypeError)
    return array


def _weight(name: str, array: Array) -> Array:
    if array.dtype.kind not in "iufb":
        raise bad(f"{name}.dtype", str(array.dtype), "it must hold numbers or a bool mask", TypeError)
    return array.astype(np.float32, copy=False)


def _heads(name: str, array: Array) -> Array:
    _check_integers(name, array)
    return np.clip(array.astype(np.int64), -1, 2**31 - 1).astype(np.int32)


def _bound(name: str, array: Array) -> Array:
    """begin or end as int32. Values that int32 does not hold are beyond every column."""
    _check_integers(name, array)
    if array.dtype.itemsize >= 4:  # others fit, and their dtype does not hold the limit
        array = np.clip(array, 0, 2**31 - 1)
    return array.astype(np.int32)
