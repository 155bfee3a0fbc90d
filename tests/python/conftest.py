# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import pytest

from streamkl.bench.onednn import limit_onednn

limited = limit_onednn()  # before torch is imported; the tests' child processes inherit it

import torch  # noqa: E402

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_terminal_summary(terminalreporter):
    if limited:
        terminalreporter.write_line(limited)


# Two threads, so that every test sees some; one for each of several pytest processes, which would be in each other's way.
THREADS = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)


@pytest.fixture
def child():
    """Runs a program in a new Python and returns what it printed."""

    def run(program, *args, timeout=400, check=True):  # far more than any takes on idle cores
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
