# SPDX-License-Identifier: Apache-2.0
"""Processes of one gloo group for the tests: started once, then given one function after the other."""

import datetime
import os
import traceback

import warm

SIZES = (1, 2, 3, 4)
# Seconds that the start of the processes and a test's function may take: far more than either does, also on cores that
# others use.
PATIENCE = 600


class Failed(AssertionError):
    pass


def _serve(rank, size, store, timeout, inbox):
    """One rank: functions come in, (good, result) go out."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=patience)
    groups = {n: dist.new_group(range(n), timeout=patience) for n in SIZES if n < size}
    groups[size] = dist.group.WORLD
    import streamkl.distributed  # noqa: F401

    dist.barrier()
    if timeout is not None:  # only now: a short one is not meant for those who are still importing
        groups[size] = dist.new_group(range(size), timeout=datetime.timedelta(seconds=timeout))
    inbox.send((True, "ready"))
    while True:
        task = inbox.recv()
        if task is None:
            break
        function, n, args = task
        torch.manual_seed(0)
        try:
            inbox.send((True, function(groups[n], *args)))
        except BaseException:
            inbox.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    def __init__(self, size, folder, timeout=None):
        context = warm.context()
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, os.path.join(folder, "store"), timeout, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        for rank in range(size):
            assert self.result(rank) == "ready"

    def start(self, function, *args, size=None):
        """function(group, *args) on the first 'size' ranks."""
        size = size or len(self.pipes)
        for pipe in self.pipes[:size]:
            pipe.send((function, size, args))

    def result(self, rank):
        if not self.pipes[rank].poll(PATIENCE):
            raise Failed(f"rank {rank} does not answer")
        good, result = self.pipes[rank].recv()
        if not good:
            raise Failed(f"rank {rank}:\n{result}")
        return result

    def run(self, function, *args, size=None):
        """The results of all ranks, in their order. Every rank is heard before a failure is raised."""
        self.start(function, *args, size=size)
        found, failures = [], []
        for rank in range(size or len(self.pipes)):
            try:
                found.append(self.result(rank))
            except Failed as error:
                failures.append(str(error))
        if failures:
            raise Failed("\n".join(failures))
        return found

    def end(self):
        for pipe, process in zip(self.pipes, self.processes):
            if process.is_alive():
                try:
                    pipe.send(None)
                except OSError:
                    pass
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
