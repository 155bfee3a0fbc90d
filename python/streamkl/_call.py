# SPDX-License-Identifier: Apache-2.0
"""One call of the C library: pack the problem, run it, raise what went wrong."""

from __future__ import annotations

import ctypes
import math
import threading
from operator import itemgetter
from typing import Any, Callable, Generator, List, NamedTuple, Optional, Sequence, Tuple

from . import _c
from ._errors import error_of
from ._options import COLUMNS, DIVERGENCE, FIELDS, THREADS, USE, Options

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


# What a call adds to options and tensors, and the way from all of these to the fields in C's order.
_CALL = (
    "struct_size",
    "threads",
    "progress",
    "progress_data",
    "stream",
    "workspace",
    "workspace_bytes",
    "reserved",
    "shard_at",
    "reserved_pool",
    "labels_at",
    "listed_at",
)
_PLACE = {name: i for i, name in enumerate((*FIELDS, *_c.INPUTS, *_CALL))}  # "threads" is the call's
_in_order = itemgetter(*[_PLACE[name] for name in _c.PROBLEM.names])
# The structures that a problem points to: the views that make one, and the options behind them.
_SMOOTHING = FIELDS.index("label_smoothing")
_LABELS = ([_c.INPUTS.index("labels")], [_PLACE[name] for name in _c.LABELS.names[2:]])
_LISTED = (
    [_c.INPUTS.index(name) for name in ("ids", "logprobs", "tail_logprob")],
    [_PLACE["tail"], _PLACE["reserved"], _PLACE["stored_temperature"]],
)


class _Packed(bytes):
    """struct skl_problem, with what it points to."""

    pointed: Sequence[object] = ()


def _pointed(layout: _c.Layout, places, views: Sequence[View], values: Sequence) -> Optional[ctypes.Array]:
    """A structure that a problem points to; None if its first tensor is not given."""
    tensors, numbers = places
    if views[tensors[0]] is None:
        return None
    packed = layout.pack(layout.size, *[views[i] or _c.NOTHING for i in tensors], *[values[i] for i in numbers])
    return ctypes.create_string_buffer(packed, len(packed))


EXCHANGE_ROWS = 512  # as in C: the logits of so many rows are kept while their states travel


class ShardCall(NamedTuple):
    """How a call on a shard of the columns meets the others."""

    exchange: Callable[[int, int], None]  # merges the states at an address, so many of them, with those of the others
    give_up: Callable[[BaseException, int], None]  # tells the others, who wait for so many states, that there are none
    columns: range  # which of all columns the shard's are
    total: int
    rows: int  # of an exchange, at most


def _states_of_meetings(segments: int, rows: int, most: int, sweeps: int, of_row: int) -> List[int]:
    """How many states each exchange of a call has: of each segment's rows, 'most' at once; those of labels go along with
    the first sweep's."""
    blocks = [min(most, rows - first) for first in range(0, rows, most)] * segments
    return [n * states for n in blocks for states in (of_row, 1)[:sweeps]]


class _Meetings:
    """shard.exchange for C. What is raised in it ends the call, and is raised again by whoever made the call."""

    def __init__(self, shard: ShardCall, states: Sequence[int], caught: List[BaseException]) -> None:
        self.shard, self.states, self.caught, self.met = shard, states, caught, 0
        self.callback = _c.Exchange(self._meet)
        address = ctypes.cast(self.callback, ctypes.c_void_p).value
        packed = _c.SHARD.pack(_c.SHARD.size, address or 0, 0, shard.rows, shard.columns.start, shard.total)
        self.packed = ctypes.create_string_buffer(packed, len(packed))

    def _meet(self, _, states: int, rows: int) -> int:
        try:
            self.shard.exchange(states, rows)
            self.met += 1
            return 0
        except BaseException as error:
            self.caught.append(error)
            return 1

    def end(self, error: Optional[BaseException]) -> None:
        """Raises what ended the call early, after the others, who are about to meet, have heard of it. A signal that comes
        before _meet's 'try' is lost to it, and C then goes on with what it has."""
        if error is None and self.met != len(self.states):
            error = KeyboardInterrupt()
        if error is not None:
            if self.met < len(self.states):
                self.shard.give_up(error, self.states[self.met])
            raise error


def _problem(
    views: Sequence[View],
    options: Options,
    threads: int,
    progress: Optional[int],
    stream: int = 0,
    workspace: int = 0,
    workspace_bytes: int = 0,
    shard: Any = None,
) -> bytes:
    """struct skl_problem. views: of _c.INPUTS. threads: how many if the options do not say."""
    shard_at = 0 if shard is None else ctypes.addressof(shard)
    call = (_c.PROBLEM.size, options[THREADS] or threads, progress or 0, 0)
    call += (stream, workspace, workspace_bytes, 0, shard_at, 0)
    values = (*options, *[one or _c.NOTHING for one in views], *call)
    pointed = (
        _pointed(_c.LABELS, _LABELS, views, values),
        _pointed(_c.LISTED_TEACHER, _LISTED, views, values),
    )
    at = [0 if one is None else ctypes.addressof(one) for one in pointed]
    problem = _c.PROBLEM.pack(*_in_order((*values, *at)))
    if any(at):
        problem = _Packed(problem)
        problem.pointed = pointed
    return problem


_tensors_in_order = itemgetter(*[(*_c.ROWS, *_c.OPERANDS).index(name) for name in _c.OUTPUTS.names[2:]])


def _outputs(rows: Sequence[View], grads: Sequence[View], value: int = 0) -> bytes:
    """struct skl_outputs. rows: of _c.ROWS. grads: of _c.OPERANDS. Empty: none of them."""
    rows, grads = rows or [None] * len(_c.ROWS), grads or [None] * len(_c.OPERANDS)
    tensors = [one or _c.NOTHING for one in (*rows, *grads)]
    return _c.OUTPUTS.pack(_c.OUTPUTS.size, value, *_tensors_in_order(tensors))


def _run(
    call, views: Sequence[View], work: float, options: Options, threads: int, *arguments, shard: Any = None
) -> None:
    caught: List[BaseException] = []
    if work > INTERRUPTIBLE and threading.current_thread() is threading.main_thread():
        watch = _watch(caught)
        next(watch)
        progress = _c.Progress(watch.send)
        address = ctypes.cast(progress, ctypes.c_void_p).value
        status = call(_problem(views, options, threads, address, shard=shard), *arguments)
    else:
        status = call(_problem(views, options, threads, None, shard=shard), *arguments)
    if caught:
        raise caught[0]
    if status != _c.OK:
        raise error_of(status, options[USE], views)


def value(views: Sequence[View], work: float, options: Options, threads: int, rows: Sequence[View]) -> float:
    """The reduced loss; writes the rows that are given. work: rows x columns x entries, to know if the call is long."""
    total = ctypes.c_double()
    _run(_c.lib.skl_value, views, work, options, threads, _outputs(rows, (), ctypes.addressof(total)))
    return total.value


def topk(views: Sequence[View], work: float, options: Options, threads: int, rows: Sequence[View]) -> None:
    """Lists of the largest logits of side s, the only one that is given: topk_ids and what else of the rows is."""
    _run(_c.lib.skl_topk, views, work, options, threads, _outputs(rows, ()))


def on_shard(
    shard: ShardCall,
    shape: Sequence[int],
    views: Sequence[View],
    options: Options,
    threads: int,
    rows: Sequence[View],
    grads: Sequence[View],
) -> float:
    """value_and_grad() on a shard of the columns. shape: of the rows. Not watched for Ctrl-C: a rank that stops alone leaves
    the others waiting; it is noticed at the next exchange."""
    value, caught = ctypes.c_double(), []  # type: ignore[var-annotated]
    segments, n = (math.prod(shape[:-1]), shape[-1]) if options[USE] == _c.ATTENTION else (1, math.prod(shape))
    sweeps = 1 if options[DIVERGENCE] in _c.ONE_SWEEP else 2
    labels = views[_c.LABELS_AT] is not None
    of_row = 1 + labels + (labels and options[_SMOOTHING] > 0)
    meetings = _Meetings(shard, _states_of_meetings(segments, n, shard.rows, sweeps, of_row), caught)
    problem = _problem(views, options, threads, None, shard=meetings.packed)
    status = _c.lib.skl_value_and_grad(problem, _outputs(rows, grads, ctypes.addressof(value)))
    meetings.end(caught[0] if caught else None if status == _c.OK else error_of(status, options[USE], views))
    return value.value


def value_and_grad(
    views: Sequence[View], work: float, options: Options, threads: int, rows: Sequence[View], grads: Sequence[View]
) -> float:
    """The reduced loss; writes the rows and the gradients of the reduced loss that are given."""
    total = ctypes.c_double()
    _run(_c.lib.skl_value_and_grad, views, work, options, threads, _outputs(rows, grads, ctypes.addressof(total)))
    return total.value


def backward(
    views: Sequence[View],
    work: float,
    options: Options,
    threads: int,
    saved: Sequence[View],
    grads: Sequence[View],
    place: Optional[Tuple[int, int]] = None,
) -> None:
    """Gradients from the rows that value() or finish() wrote; the view of the weight is their upstream gradient. place: on a
    shard, where labels count the columns of all shards, its first one and their number."""
    shard = None
    if place is not None:
        shard = ctypes.create_string_buffer(_c.SHARD.pack(_c.SHARD.size, 0, 0, 0, *place), _c.SHARD.size)
    outputs = _outputs(saved, ()), _outputs((), grads)
    _run(_c.lib.skl_backward, views, work, options, threads, *outputs, shard=shard)


def partial(
    views: Sequence[View], work: float, options: Options, threads: int, saved: Sequence[View], states: int
) -> None:
    """Writes the states of the rows to that address. saved: for the second sweep of JSD; empty otherwise."""
    _run(_c.lib.skl_partial, views, work, options, threads, _outputs(saved, ()) if saved else None, states or _NOWHERE)


def check_partial(views: Sequence[View], options: Options) -> None:
    """Raises what partial() would, and does nothing."""
    size = ctypes.c_size_t()
    status = _c.lib.skl_workspace_size(_c.PARTIAL, _problem(views, options, 1, None), None, ctypes.byref(size))
    if status != _c.OK:
        raise error_of(status, options[USE], views)


def merge(rows: int, into: int, other: int) -> None:
    """Both are addresses of so many states."""
    status = _c.lib.skl_merge(rows, into or _NOWHERE, other or _NOWHERE)
    if status != _c.OK:
        raise error_of(status, _c.LINEAR)


def finish(
    options: Options,
    shape: Sequence[int],
    widths: Sequence[int],
    states: int,
    weight: View,
    rows: Sequence[View],
    value: int = 0,
    cuda: int = -1,
    stream: int = 0,
) -> None:
    """The rows and the value, at its address, of complete states, which are at that address. shape: of the rows.
    widths: of the vectors of both sides, which matter to m_s and m_t as the options do."""
    # C asks for the problem but reads no operand of it: any with those rows and columns will do.
    count = options[COLUMNS] or 1
    columns: Sequence[int] = (shape[0], 1, count) if options[USE] == _c.ATTENTION else (count,)
    a_s, a_t, b_s, b_t = (
        view(_NOWHERE, _c.F32, (*lead, width), (*[0] * len(lead), 1), cuda)
        for lead in (shape, columns)
        for width in widths
    )
    views = _c.named_inputs(a_s=a_s, b_s=b_s, a_t=a_t, b_t=b_t, weight=weight)
    problem = _problem(views, options, 1, None, stream)
    status = _c.lib.skl_finish(problem, states or _NOWHERE, _outputs(rows, (), value))
    if status != _c.OK:
        raise error_of(status, options[USE])


class Device(NamedTuple):
    """Where a call on a CUDA device goes. The call returns before the work is done: nobody waits for it here."""

    stream: int
    reserve: Callable[[int], int]  # so many bytes of the device's memory for this call, and their address


def on_device(
    device: Device,
    call: int,
    views: Sequence[View],
    options: Options,
    rows: Sequence[View] = (),
    grads: Sequence[View] = (),
    value: int = 0,
    saved: Sequence[View] = (),
    states: int = 0,
) -> None:
    """value(), value_and_grad(), backward(), partial() or topk() on views of a CUDA device; value: the address of a
    double there, or 0."""
    out = None if call == _c.PARTIAL else _outputs(rows, grads, value)
    size = ctypes.c_size_t()
    problem = _problem(views, options, 0, None, device.stream)
    status = _c.lib.skl_workspace_size(call, problem, out, ctypes.byref(size))
    if status == _c.OK:
        if size.value:
            problem = _problem(views, options, 0, None, device.stream, device.reserve(size.value), size.value)
        if call == _c.PARTIAL:
            status = _c.lib.skl_partial(problem, _outputs(saved, ()) if saved else None, states or _NOWHERE)
        elif call == _c.BACKWARD:
            status = _c.lib.skl_backward(problem, _outputs(saved, ()), out)
        else:
            names = {_c.VALUE: "skl_value", _c.VALUE_AND_GRAD: "skl_value_and_grad", _c.TOPK: "skl_topk"}
            status = getattr(_c.lib, names[call])(problem, out)
    if status != _c.OK:
        raise error_of(status, options[USE], views)
