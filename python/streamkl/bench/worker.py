# SPDX-License-Identifier: Apache-2.0
"""Every way is measured in a process of its own, so that none can end the run: a crash or a hang is a row of the table.

Ours too, although it would not need it. Times and memory are compared, so all ways must meet the same: a fresh heap, the
same threads, and no other library's thread pool, allocator settings or caches in the process. A process lives as long as
the run and is asked for one case after the other; while one works, the others wait in a read and use no processor.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import Dict, Optional

import numpy as np
import torch

from .case import Case
from .measure import Result, measure, timed
from .ways import Way

PARTING = 10.0  # seconds that a process has for its last words


class Worker:
    """The process that measures one way. It starts with the first question, and again after it died."""

    def __init__(self, way: str, limit: float) -> None:
        self.way, self.limit = way, limit
        self.process: Optional[multiprocessing.process.BaseProcess] = None

    def measure(self, case: Case, way: Way, exact: Dict[str, np.ndarray], keep: bool) -> Result:
        """'keep': the inputs stay in the process, for again()."""
        return self._ask(case, (case, way, exact, keep))

    def again(self, result: Result) -> Result:
        """The result with one more time in it. A process that dies now was alive when it was measured: that counts."""
        if self.process is None:
            return result
        answer = self._ask(result.case, None)
        return result if answer.missing else answer

    def close(self) -> None:
        """Lets the process end by itself; if it does not, ends it."""
        if self.process is None:
            return
        self.pipe.close()
        self.process.join(PARTING)
        self._kill()

    def _kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # with the compilers that it may have started
        except ProcessLookupError:
            self.process.kill()  # it has not come as far as to have a group
        self.process.join()
        self.process = None

    def _ask(self, case: Case, question) -> Result:
        if self.process is None:
            spawn = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads as locks nobody opens
            self.pipe, theirs = spawn.Pipe()
            self.process = spawn.Process(target=_serve, args=(theirs, torch.get_num_threads()), daemon=False)
            self.process.start()
            theirs.close()
        try:
            self.pipe.send(question)
            if self.pipe.poll(self.limit):
                return self.pipe.recv()
            why = f"cut: no answer in {self.limit:g} s (--limit)"
        except (EOFError, ConnectionError):
            self.process.join()
            why = f"crashed ({_ending(self.process.exitcode)})"
        self.pipe.close()
        self._kill()
        return Result(case, self.way, missing=why)


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _serve(pipe: Connection, threads: int) -> None:
    """In the process: answers until the other end is closed."""
    os.setpgid(0, 0)
    torch.set_num_threads(threads)
    loss = x = result = None
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        try:
            if question is None:
                timed(loss, x, result)
            else:
                case, way, exact, keep = question
                result = Result(case, way.name)
                x = None  # those of the case before
                x, loss = case.inputs(), way.make()
                measure(way, loss, x, {name: torch.from_numpy(g) for name, g in exact.items()}, result)
                x = x if keep else None
                exact = question = None
                gc.collect()
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            result = Result(result.case, result.way, missing=f"failed with {type(error).__name__}: {first[:80]}")
        pipe.send(result)
