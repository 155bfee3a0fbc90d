# SPDX-License-Identifier: Apache-2.0
"""Processes that have torch imported when they begin.

An import of torch takes a processor some two seconds. A server imports it once, before anything has run and any thread
was started, and forks a process for each who asks: with a heap, threads and signals of its own, as a new Python has.
What a program imports, and what it reads of the environment when it starts, is for the fixture 'child', which is new."""

import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
from types import SimpleNamespace

# What most of them need, and is slow to import: streamkl.distributed brings torch, its compiler and its distributed tensors.
IMPORTED = ["streamkl.distributed", "streamkl.bench.cli", "pytest"]


def context():
    """In the place of multiprocessing.get_context("spawn")."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(IMPORTED)
    return made


def end():
    """Ends the server now, and not some time after this process: what it and its forks took is then in our own time."""
    multiprocessing.forkserver._forkserver._stop()


def _execute(program, arguments, folder):
    for number, name in ((1, "stdout"), (2, "stderr")):
        getattr(sys, name).flush()
        file = os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def run(program, *arguments, timeout):
    """The program's end, as subprocess.run() gives it."""
    with tempfile.TemporaryDirectory() as folder:
        process = context().Process(target=_execute, args=(program, [str(a) for a in arguments], folder))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"the program has not ended after {timeout} s")
        said = {}
        for name in ("stdout", "stderr"):
            with open(os.path.join(folder, name)) as file:
                said[name] = file.read()
    return SimpleNamespace(returncode=process.exitcode, **said)
