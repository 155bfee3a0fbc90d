# SPDX-License-Identifier: Apache-2.0
"""One call of the C library: pack the problem, run it, raise what went wrong."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Generator, List, Optional, Sequence

from . import _c
from ._errors import error_of
from ._options import Options

View = Optional[bytes]  # a packed struct skl_tensor; None: not given or not wanted

# Calls below this many multiplications end before anybody could press Ctrl-C.
INTERRUPTIBLE = 2e9

_ELEMENTS = ctypes.create_string_buffer(64)
_NOWHERE = ctypes.addressof(_ELEMENTS)  # where views of no elements point: NULL would mean "not given"
_PAD = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def view(data: int, dtype: int, shape: Sequence[int], stride: Sequence[int]) -> bytes:
    """A view of memory that the caller keeps alive."""
    n = len(shape)
    if n > 4:
        return _c.TENSOR.pack(_NOWHERE, dtype, 0, n, *[0] * 9)  # C says what it thinks of such an ndim
    return _c.TENSOR.pack(data or _NOWHERE, dtype, 0, n, 0, *shape, *_PAD[n], *stride, *_PAD[n])


def _watch(caught: List[BaseException]) -> Generator[int, None, None]:
    """What C calls back between pieces of work: yields 0, or 1 once a signal handler has raised (Ctrl-C).

    A generator, because Python runs signal handlers when a frame resumes: in a plain function that is before its
    'try' is entered, and the exception would be lost."""
    while not caught:
        try:
            yield 0
        except GeneratorExit:
            return
        except BaseException as error:
            caught.append(error)
    while True:
        yield 1


def _problem(views: Sequence[View], o: Options, threads: int, progress: Optional[int]) -> bytes:
    """views: a_s, b_s, bias_s, a_t, b_t, bias_t, weight, begin, end."""
    a_s, b_s, bias_s, a_t, b_t, bias_t, weight, begin, end = [one or _c.NOTHING for one in views]
    use = _c.ATTENTION if o.attention else _c.LINEAR
    # Threads of the parent do not exist in a forked child, but its OpenMP believes they do: it would wait for ever.
    threads = 1 if _forked else threads
    return b"".join(
        (
            _c.HEAD.pack(_c.PROBLEM_SIZE, use, o.divergence, o.reduction, o.causal),
            *(a_s, b_s, bias_s, _c.SCALES.pack(o.scale_s, o.softcap_s)),
            *(a_t, b_t, bias_t, _c.SCALES.pack(o.scale_t, o.softcap_t)),
            _c.NUMBERS.pack(o.beta, o.temperature, o.window_left, o.window_right, o.columns),
            *(begin, end, weight),
            _c.TAIL.pack(threads, 0, 0, progress or 0, 0, 0.0),
        )
    )


def _outputs(rows: Sequence[View], grads: Sequence[View], value: Optional[int] = None) -> bytes:
    """rows: loss, lse_s, lse_t, kl_s, kl_t. grads: of a_s, b_s, bias_s, a_t, b_t, bias_t. Missing: not wanted."""
    tensors = [*rows, *[None] * (5 - len(rows)), *grads, *[None] * (6 - len(grads))]
    return b"".join((_c.OUT_HEAD.pack(_c.OUT_SIZE, value or 0), *[one or _c.NOTHING for one in tensors]))


def _run(call, views: Sequence[View], work: float, options: Options, threads: int, *outputs: bytes) -> None:
    caught: List[BaseException] = []
    if work > INTERRUPTIBLE and threading.current_thread() is threading.main_thread():
        watch = _watch(caught)
        next(watch)
        progress = _c.Progress(watch.send)
        address = ctypes.cast(progress, ctypes.c_void_p).value
        status = call(_problem(views, options, threads, address), *outputs)
    else:
        status = call(_problem(views, options, threads, None), *outputs)
    if caught:
        raise caught[0]
    if status != _c.OK:
        raise error_of(status, options.attention)


def value(views: Sequence[View], work: float, options: Options, threads: int, rows: Sequence[View]) -> float:
    """The reduced loss; writes the rows that are given. work: rows x columns x entries, to know if the call is long."""
    total = ctypes.c_double()
    _run(_c.lib.skl_value, views, work, options, threads, _outputs(rows, (), ctypes.addressof(total)))
    return total.value


def value_and_grad(
    views: Sequence[View], work: float, options: Options, threads: int, rows: Sequence[View], grads: Sequence[View]
) -> float:
    """The reduced loss; writes the rows and the gradients of the reduced loss that are given."""
    total = ctypes.c_double()
    _run(_c.lib.skl_value_and_grad, views, work, options, threads, _outputs(rows, grads, ctypes.addressof(total)))
    return total.value


def backward(
    views: Sequence[View], work: float, options: Options, threads: int, saved: Sequence[View], grads: Sequence[View]
) -> None:
    """Gradients from what value() wrote; the view of the weight is the upstream gradient of the rows."""
    _run(_c.lib.skl_backward, views, work, options, threads, _outputs(saved, ()), _outputs((), grads))
