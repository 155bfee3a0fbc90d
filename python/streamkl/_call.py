# SPDX-License-Identifier: Apache-2.0
"""One call of the C library: pack the problem, run it, raise what went wrong."""

from __future__ import annotations

import ctypes
import threading
from typing import Callable, Generator, List, NamedTuple, Optional, Sequence

from . import _c
from ._errors import error_of
from ._options import Options

View = Optional[bytes]  # a packed struct skl_tensor; None: not given or not wanted

# Calls below this many multiplications end before anybody could press Ctrl-C.
INTERRUPTIBLE = 2e9

_ELEMENTS = ctypes.create_string_buffer(64)
_NOWHERE = ctypes.addressof(_ELEMENTS)  # where views of no elements point: NULL would mean "not given"
_PAD = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,), ())


def view(data: int, dtype: int, shape: Sequence[int], stride: Sequence[int], cuda: int = -1) -> bytes:
    """A view of memory that the caller keeps alive. cuda: the number of the device; -1: the CPU."""
    n = len(shape)
    device, index = (_c.CPU, 0) if cuda < 0 else (_c.CUDA, cuda)
    if n > 4:
        return _c.TENSOR.pack(_NOWHERE, dtype, device, n, index, *[0] * 8)  # C says what it thinks of such an ndim
    return _c.TENSOR.pack(data or _NOWHERE, dtype, device, n, index, *shape, *_PAD[n], *stride, *_PAD[n])


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


def _problem(
    views: Sequence[View], o: Options, threads: int, progress: Optional[int], gpu: bytes = _c.NO_GPU
) -> bytes:
    """views: a_s, b_s, bias_s, a_t, b_t, bias_t, weight, begin, end."""
    a_s, b_s, bias_s, a_t, b_t, bias_t, weight, begin, end = [one or _c.NOTHING for one in views]
    use = _c.ATTENTION if o.attention else _c.LINEAR
    return b"".join(
        (
            _c.HEAD.pack(_c.PROBLEM_SIZE, use, o.divergence, o.reduction, o.causal),
            *(a_s, b_s, bias_s, _c.SCALES.pack(o.scale_s, o.softcap_s)),
            *(a_t, b_t, bias_t, _c.SCALES.pack(o.scale_t, o.softcap_t)),
            _c.NUMBERS.pack(o.beta, o.temperature, o.window_left, o.window_right, o.columns),
            *(begin, end, weight),
            _c.TAIL.pack(threads, 0, 0, progress or 0, 0, 0.0),
            gpu,
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


class Device(NamedTuple):
    """Where a call on a CUDA device goes. The call returns before the work is done: nobody waits for it here."""

    stream: int
    reserve: Callable[[int], int]  # so many bytes of the device's memory for this call, and their address


def on_device(
    device: Device,
    call: int,
    views: Sequence[View],
    options: Options,
    rows: Sequence[View],
    grads: Sequence[View],
    value: int = 0,
    saved: Sequence[View] = (),
) -> None:
    """Any of the three calls above on views of a CUDA device; value: the address of a double there, or 0."""
    given = [_outputs(rows, grads, value)]
    size = ctypes.c_size_t()
    problem = _problem(views, options, 0, None, _c.GPU.pack(device.stream, 0, 0, 0, 0))
    status = _c.lib.skl_workspace_size(call, problem, given[0], ctypes.byref(size))
    if status == _c.OK:
        if size.value:
            gpu = _c.GPU.pack(device.stream, device.reserve(size.value), size.value, 0, 0)
            problem = _problem(views, options, 0, None, gpu)
        if call == _c.BACKWARD:
            given.insert(0, _outputs(saved, ()))
        run = (_c.lib.skl_value, _c.lib.skl_value_and_grad, _c.lib.skl_backward)[call]
        status = run(problem, *given)
    if status != _c.OK:
        raise error_of(status, options.attention)
