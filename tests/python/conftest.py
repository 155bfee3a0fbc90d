# SPDX-License-Identifier: Apache-2.0
import atexit
import collections
import gc
import os
import subprocess
import sys

import pytest

from streamkl.bench.onednn import limit_onednn

# Before torch is imported, which the process that only hands out tests to workers of xdist need not do at all. Child
# processes inherit both, these workers too, which need not try again.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of torch that wait would take others' processors
limited = "" if "PYTEST_XDIST_WORKER" in os.environ else limit_onednn()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_terminal_summary(terminalreporter):
    if limited:
        terminalreporter.write_line(limited)


# Two threads, so that every test sees some; one for each of several pytest processes, which would be in each other's way.
THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2


# The files that take longest, those that take most first: what is begun last shall be short, or one worker waits for it.
LONGEST = "distributed_ compile. bench documents topk trl hf_head hf_capture onednn".split()


@pytest.hookimpl(trylast=True)  # of those that were chosen
def pytest_collection_modifyitems(items):
    count = collections.Counter(item.path.name for item in items)

    def order(item):
        name = item.path.name
        place = next((i for i, long in enumerate(LONGEST) if name.startswith(f"test_{long}")), len(LONGEST))
        return place, -count[name], name

    items.sort(key=order)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection():
    """Keeps Python from looking for garbage among what the tests' files import: a million objects of torch and
    transformers, which take a second to visit, now and then and five times at the end of each worker."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # or libraries that count their objects at the very end say that they leak


@pytest.hookimpl(optionalhook=True)  # there is none without xdist
def pytest_xdist_make_scheduler(config, log):
    """A file goes to one worker: its tests share what they set up. So do all of test_distributed_*.py, four processes, and
    those that take many processes of the same server (warm.py)."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # the order is that of the items

    class OneServer(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            together = ("distributed_", "bench.", "process.", "compare_metric.", "compare_run.")
            return "one server" if os.path.basename(file).startswith(tuple(f"test_{t}" for t in together)) else file

    return OneServer(config, log)


@pytest.fixture(autouse=True)
def seed():
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(THREADS)


@pytest.fixture
def child():
    """Runs a program in a new Python, or in a warm one (warm.py), and returns what it printed."""

    def run(program, *args, timeout=400, check=True, in_warm=False):  # far more than any takes on idle cores
        if in_warm:
            import warm

            done = warm.run(program, *args, timeout=timeout)
        else:
            done = subprocess.run(
                [sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, timeout=timeout
            )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done.stdout if check else done

    return run


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """Four processes of a gloo group, for every test that needs them."""
    from ranks import Ranks

    started = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield started
    started.end()


def pytest_sessionfinish():
    if "warm" in sys.modules:
        sys.modules["warm"].end()
