# SPDX-License-Identifier: Apache-2.0
"""One call of the C library: fill the problem, run it, raise what went wrong."""
from __future__ import annotations

import ctypes
import os
import threading
from typing import Generator, List, Optional, Sequence

from . import _c
from ._errors import error_of
from ._options import Options

View = Optional[_c.Tensor]

# Calls below this many multiplications end before anybody could press Ctrl-C.
INTERRUPTIBLE = 2e9

_NOTHING = _c.Tensor()
_EMPTY = ctypes.create_string_buffer(64)  # where views of no elements point: NULL would mean "not given"
_NO_PROGRESS = _c.Progress()
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def view(data: int, dtype: int, shape: Sequence[int], stride: Sequence[int]) -> _c.Tensor:
    """A view of memory that the caller keeps alive."""
    n = len(shape)
    return _c.Tensor(data or ctypes.addressof(_EMPTY), dtype, 0, n, 0, tuple(shape), tuple(stride))


def _watch(caught: List[BaseException]) -> Generator[int, None, None]:
    """What C calls back between pieces of work: yields 0, or 1 once a signal handler has raised (Ctrl-C).

    A generator, because Python runs signal handlers when a frame resumes: in a plain function that is before its
    'try' is entered, and the exception would be lost."""
    while not caught:
        try:
            yield 0
        except BaseException as error:
            caught.append(error)
    while True:
        yield 1


class Operands:
    """The views of one problem, and whatever must stay alive while C reads them."""

    __slots__ = ("a_s", "b_s", "bias_s", "a_t", "b_t", "bias_t", "weight", "begin", "end")

    def __init__(self, *views: View) -> None:
        for name, one in zip(self.__slots__, views):
            setattr(self, name, one or _NOTHING)


def problem_of(x: Operands, options: Options, threads: int) -> _c.Problem:
    # Threads of the parent do not exist in a forked child, but its OpenMP believes they do: it would wait for ever.
    threads = 1 if _forked else threads
    return _c.Problem(
        ctypes.sizeof(_c.Problem),
        _c.ATTENTION if options.attention else _c.LINEAR,
        options.divergence,
        options.reduction,
        options.causal,
        _c.Side(x.a_s, x.b_s, x.bias_s, options.scale_s, options.softcap_s),
        _c.Side(x.a_t, x.b_t, x.bias_t, options.scale_t, options.softcap_t),
        options.beta,
        options.temperature,
        options.window_left,
        options.window_right,
        options.columns,
        x.begin,
        x.end,
        x.weight,
        threads,
        0,
        0,
        _NO_PROGRESS,
        None,
    )


def outputs_of(rows: Sequence[View] = (), grads: Sequence[View] = ()) -> _c.Outputs:
    """rows: loss, lse_s, lse_t, kl_s, kl_t. grads: of a_s, b_s, bias_s, a_t, b_t, bias_t."""
    r = [one or _NOTHING for one in rows] + [_NOTHING] * (5 - len(rows))
    g = [one or _NOTHING for one in grads] + [_NOTHING] * (6 - len(grads))
    return _c.Outputs(ctypes.sizeof(_c.Outputs), None, *r, _c.Grads(*g[:3]), _c.Grads(*g[3:]))


def _long(problem: _c.Problem) -> bool:
    a, b = problem.s.a, problem.s.b
    work = float(b.shape[b.ndim - 2])
    for i in range(a.ndim):
        work *= a.shape[i]
    return work > INTERRUPTIBLE


def _run(call, problem: _c.Problem, *outputs: _c.Outputs) -> None:
    if _long(problem) and threading.current_thread() is threading.main_thread():
        caught: List[BaseException] = []
        watch = _watch(caught)
        next(watch)
        problem.progress = _c.Progress(watch.send)
        status = call(problem, *outputs)
        problem.progress = _NO_PROGRESS
        if caught:
            raise caught[0]
    else:
        status = call(problem, *outputs)
    if status != _c.OK:
        raise error_of(status, problem.use == _c.ATTENTION)


def value(x: Operands, options: Options, threads: int, rows: Sequence[View]) -> float:
    """The reduced loss; writes the rows that are given."""
    total = ctypes.c_double()
    out = outputs_of(rows)
    out.value = ctypes.pointer(total)
    _run(_c.lib.skl_value, problem_of(x, options, threads), out)
    return total.value


def value_and_grad(x: Operands, options: Options, threads: int, rows: Sequence[View], grads: Sequence[View]) -> float:
    """The reduced loss; writes the rows and the gradients of the reduced loss that are given."""
    total = ctypes.c_double()
    out = outputs_of(rows, grads)
    out.value = ctypes.pointer(total)
    _run(_c.lib.skl_value_and_grad, problem_of(x, options, threads), out)
    return total.value


def backward(x: Operands, options: Options, threads: int, saved: Sequence[View], grads: Sequence[View]) -> None:
    """Gradients from what value() wrote; x.weight is the upstream gradient of the rows."""
    _run(_c.lib.skl_backward, problem_of(x, options, threads), outputs_of(saved), outputs_of((), grads))
