# SPDX-License-Identifier: Apache-2.0
"""Processes of one gloo group for the tests: started once, then given one function after the other."""

import datetime
import multiprocessing
import os
import traceback

SIZES = (1, 2, 3, 4)
PATIENCE = 180  # seconds that a test's function may take, on a machine that others use too


class Failed(AssertionError):
    pass


def _serve(rank, size, store, timeout, inbox):
    """One rank: functions come in, (good, result) go out."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    groups = {n: dist.new_group(range(n), timeout=limit) for n in SIZES if n < size}
    groups[size] = dist.group.WORLD
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
    def __init__(self, size, folder, timeout=PATIENCE):
        context = multiprocessing.get_context("spawn")
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
