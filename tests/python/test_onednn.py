# SPDX-License-Identifier: Apache-2.0
"""The probe of torch's bf16 product, with children that die in its place: few machines have the fault itself."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from streamkl.bench.onednn import LIMIT, VARIABLE, limit_onednn

HEALTHY = "pass"
ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
OTHER_SIGNAL = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
NO_TORCH = "raise SystemExit(1)"


def environment(**more):
    return {**{name: value for name, value in os.environ.items() if name != VARIABLE}, **more}


def probe(program):
    return sys.executable, "-c", program


def test_an_illegal_instruction_sets_the_limit():
    there = environment()
    line = limit_onednn(probe(ILLEGAL), there)
    assert there[VARIABLE] == LIMIT and VARIABLE in line and "\n" not in line


@pytest.mark.parametrize("program", (HEALTHY, OTHER_SIGNAL, NO_TORCH))
def test_anything_else_does_not(program):
    there = environment()
    assert limit_onednn(probe(program), there) == "" and VARIABLE not in there


def test_a_users_value_stays():
    there = environment(**{VARIABLE: "AVX2"})
    assert limit_onednn(probe(ILLEGAL), there) == "" and there[VARIABLE] == "AVX2"


def test_the_child_sees_the_environment():
    """A product that dies without the limit lives with it: the child must get what the caller would get."""
    there = environment(STREAMKL_TEST_FAULT="1")
    limit_onednn(probe(f"import os\nif os.environ.get('STREAMKL_TEST_FAULT'): {ILLEGAL}"), there)
    assert there[VARIABLE] == LIMIT


# A Python in which the probe dies, and in which torch must not be imported before the limit is set.
FAULTY = f"""
import os, signal, sys
if "torch.ones(64, 64" in open("/proc/self/cmdline").read():
    os.kill(os.getpid(), signal.SIGILL)

class Order:
    def find_spec(name, *_):
        assert name != "torch" or "{VARIABLE}" in os.environ, "torch is imported before the limit is set"

sys.meta_path.insert(0, Order)
"""


@pytest.fixture
def faulty(tmp_path):
    """The environment of Pythons in which the probe dies."""
    (tmp_path / "sitecustomize.py").write_text(FAULTY)
    return environment(PYTHONPATH=str(tmp_path))


def test_the_benchmark_says_so(faulty):
    run = [sys.executable, "-m", "streamkl", "bench", "--vocab", "0"]  # refused, but only after the line
    done = subprocess.run(run, env=faulty, capture_output=True, text=True, timeout=120)
    assert VARIABLE in done.stderr and done.returncode == 2, done.stderr


def test_the_tests_say_so(faulty, tmp_path):
    """In a session of pytest with this conftest, torch is imported after the variable is set, and children have it."""
    shutil.copy(pathlib.Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import os\ndef test_it(child):\n"
        f"    assert os.environ['{VARIABLE}'] == child(\"import os; print(os.environ['{VARIABLE}'])\").strip()\n"
    )
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    faulty.pop("PYTEST_XDIST_WORKER", None)  # a session of its own, and no worker of this one
    done = subprocess.run(run, env=faulty, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "1 passed" in done.stdout and VARIABLE in done.stdout, done.stdout + done.stderr
