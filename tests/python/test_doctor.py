# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl doctor: facts that are true here, and the sentences made of facts that are made up."""

import copy
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import streamkl
from streamkl import _c, doctor

HEALTHY = {
    "streamkl": {"version": "1.2.3", "package": "/p", "library": "/p/lib/libstreamkl.so"},
    "python": "3.12.0",
    "system": "Linux 6, x86_64",
    "environment": {},
    "packages": {"numpy": "2.0", "torch": "2.9.0", "trl": None},
    "processor": {"name": "A Processor", "count": 8, "flags": ["avx2", "fma", "f16c"]},
    "instruction_set": {"used": "avx2", "best": "avx2", "available": ["baseline", "avx2"], "limit": None},
    "torch": {"version": "2.9.0", "trouble": None, "threads": 8, "cuda": "12.8", "hip": None, "devices": []},
    "threads": {"used": 8, "allowed": 8, "online": 8, "quota": None},
    "openmp": ["/t/libgomp-a34b3233.so.1"],
    "gpu": {"built": False, "devices": 0, "why": "", "driver": None},
    "large_pages": "madvise",
}
GPU = {"name": "A100", "capability": "8.0"}

SENTENCES = [
    # what is different, what the one sentence about it says
    (dict(instruction_set=dict(used="avx2", best="avx512", limit="avx2")), "ISA=avx2 keeps streamkl from avx512"),
    (dict(instruction_set=dict(limit="axv2")), "STREAMKL_ISA=axv2 is no instruction set"),
    (dict(instruction_set=dict(used="baseline", best="baseline")), "cannot use it: FMA or F16C is missing"),
    (
        dict(instruction_set=dict(used="baseline", best="baseline"), processor=dict(flags=[])),
        "no faster kernels for this processor",
    ),
    (dict(large_pages="never"), "no large pages"),
    (
        dict(threads=dict(used=2), environment=dict(OMP_NUM_THREADS="2")),
        "OMP_NUM_THREADS=2 keeps streamkl from 8 processors",
    ),
    (dict(torch=dict(threads=4)), "torch uses 4 threads"),
    (
        dict(threads=dict(used=4, allowed=4), torch=dict(threads=4)),
        "may run on 4 of 8 processors",
    ),
    (dict(threads=dict(quota=2.5)), "allows 2.5 processors at a time and 8 threads would share them"),
    (dict(openmp=["/t/libgomp.so.1", "/m/libiomp5.so"]), "2 OpenMP runtimes in the process (libgomp, libiomp5)"),
    (dict(torch=dict(version=None, threads=None)), "torch is not installed"),
    (dict(torch=dict(version="2.3.1")), "torch 2.3.1 is older than 2.4"),
    (dict(torch=dict(version=None, threads=None, trouble="OSError: no libc10")), "imported: OSError: no libc10"),
    (dict(torch=dict(devices=[GPU])), "torch sees 1 GPU(s), and this streamkl was built without CUDA"),
    (
        dict(torch=dict(devices=[GPU]), gpu=dict(built=True, why="the driver is too old")),
        "finds no GPU: the driver is too old",
    ),
    (dict(gpu=dict(driver="580.1"), torch=dict(cuda=None)), "this torch was built without CUDA"),
    (
        dict(torch=dict(devices=[dict(name="T4", capability="7.5")]), gpu=dict(built=True, devices=1)),
        "T4 has compute capability 7.5; streamkl's kernels need 8.0",
    ),
]  # fmt: skip


def changed(change):
    facts = copy.deepcopy(HEALTHY)
    for name, value in change.items():
        facts[name] = {**facts[name], **value} if isinstance(value, dict) else value
    return facts


def test_nothing_to_say_of_a_healthy_machine():
    assert doctor.advice(HEALTHY) == []
    assert "Nothing that can be seen" in doctor.report({**HEALTHY, "advice": []})


@pytest.mark.parametrize("change, sentence", SENTENCES, ids=[s[1][:40] for s in SENTENCES])
def test_sentence(change, sentence):
    facts = changed(change)
    (said,) = doctor.advice(facts)
    assert sentence in said
    assert f"  - {said}" in doctor.report({**facts, "advice": [said]})


def test_facts_of_this_process(monkeypatch):
    monkeypatch.setenv("STREAMKL_ISA", "baseline")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.ones(1)
    facts = doctor.examine()
    assert os.environ["STREAMKL_ISA"] == "baseline"  # it was looked at without, and is there again
    assert facts["streamkl"]["version"] == streamkl.__version__
    assert pathlib.Path(facts["streamkl"]["library"]).is_file()
    unit = facts["instruction_set"]
    assert unit["used"] == unit["limit"] == "baseline" and unit["best"] in unit["available"] and unit["best"] in _c.ISAS
    assert facts["threads"]["used"] == 1 and 1 <= facts["threads"]["allowed"] <= os.cpu_count()
    assert facts["torch"]["version"] == torch.__version__ and facts["torch"]["threads"] == torch.get_num_threads()
    assert facts["packages"]["torch"] and facts["gpu"]["built"] == bool(_c.lib.skl_cuda_built())
    if sys.platform == "linux":
        assert any("omp" in name for name in facts["openmp"])  # torch's own


def test_command_line(capsys):
    """As a program, and for programs."""
    run = [sys.executable, "-m", "streamkl", "doctor"]
    shown = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert doctor.run(["--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == 1 and set(HEALTHY) | {"schema", "advice"} == set(made)
    for words in (streamkl.__version__, made["instruction_set"]["used"], torch.__version__, "OpenMP runtimes"):
        assert words in shown


def test_without_torch(child):
    """Neither installed nor, in another process, able to be imported."""
    program = """
import sys
{block}
from streamkl import doctor
facts = doctor.examine()
print(doctor.report(facts))
assert facts["torch"]["version"] is None
"""
    none = program.format(block="sys.modules['torch'] = None")
    assert "torch is not installed: streamkl.numpy works without it" in child(none)
    broken = """
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise OSError("libc10.so: cannot open shared object file")
sys.meta_path.insert(0, Broken())
"""
    assert "cannot be imported: OSError: libc10.so" in child(program.format(block=broken))


@pytest.mark.parametrize(
    "files, groups, want",
    [
        ({}, "", None),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 4),  # the group above has the limit
        ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "400000 100000"}, "0::/a/b\n", 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/\n", None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/\n", 0.5),
    ],
)
def test_control_groups(tmp_path, files, groups, want):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert doctor._quota(str(tmp_path), groups) == want


def test_openmp_in_maps():
    maps = """7f00-7f01 r-xp 00000000 fe:00 12 /opt/with space/libgomp-a34b3233.so.1
7f01-7f02 r--p 00000000 fe:00 12 /opt/with space/libgomp-a34b3233.so.1
7f02-7f03 r-xp 00000000 fe:00 13 /opt/libiomp5.so
7f03-7f04 r-xp 00000000 fe:00 14 /opt/libompare.so
7f04-7f05 rw-p 00000000 00:00 0
"""
    assert doctor._openmp(maps) == ["/opt/libiomp5.so", "/opt/with space/libgomp-a34b3233.so.1"]
    assert doctor._openmp("") is None


def test_commands(monkeypatch, capsys):
    """Every command of `python -m streamkl` has its module and its help; anything else is told which there are."""
    from streamkl.__main__ import COMMANDS, main, usage
    from streamkl.bench import onednn

    monkeypatch.setattr(onednn, "limit_onednn", lambda: "")  # a process that imports torch, for each command
    for name, command in COMMANDS.items():
        assert name in usage()
        monkeypatch.setattr(sys, "argv", ["streamkl", name, "--help"])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code and f"python -m streamkl {name}" in capsys.readouterr().out, command
    done = subprocess.run([sys.executable, "-m", "streamkl", "benhc"], capture_output=True, text=True)
    assert done.returncode == 2 and "doctor" in done.stderr
