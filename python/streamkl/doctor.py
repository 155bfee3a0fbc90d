# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl doctor: what is installed here, what a call will use and why, and what would make it faster.

examine() looks and returns plain facts; advice() and report() make sentences of them and look at nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import re
import sys
from contextlib import contextmanager
from ctypes import c_int
from importlib import metadata
from typing import Any, Dict, Iterator, List, Optional, Sequence

from . import _c

SCHEMA = 1  # of --json; a name that goes away or changes its meaning makes it 2
PACKAGES = ("numpy", "torch", "transformers", "trl", "liger-kernel", "peft", "accelerate", "triton")
FLAGS = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_tile amx_bf16 asimd bf16 i8mm sve".split()
OPENMP = re.compile(r"/(lib(?:gomp|iomp5|omp|kmp)\b[^/\s]*)$")
MEANT = (
    "STREAMKL_ISA OMP_NUM_THREADS MKL_NUM_THREADS OMP_WAIT_POLICY KMP_BLOCKTIME ONEDNN_MAX_CPU_ISA CUDA_VISIBLE_DEVICES"
)
NEED_TORCH = (2, 4)

Facts = Dict[str, Any]


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------ looking


def examine() -> Facts:
    versions = {name: _version(name) for name in PACKAGES}
    facts: Facts = {
        "schema": SCHEMA,
        "streamkl": {"version": _c.version(), "package": str(pathlib.Path(__file__).parent), "library": _c.lib._name},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "environment": {name: os.environ[name] for name in MEANT.split() if name in os.environ},
        "packages": versions,
        "processor": _processor(),
        "instruction_set": _instruction_set(),
        "torch": _torch(),  # before threads and runtimes: it brings some
    }
    facts["threads"] = _threads()
    facts["openmp"] = _openmp(_read("/proc/self/maps"))
    facts["gpu"] = _gpu()
    facts["large_pages"] = _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled"))
    facts["advice"] = advice(facts)
    return facts


def _version(name: str) -> Optional[str]:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> Facts:
    text = _read("/proc/cpuinfo")
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.M)
    have = set(flags[1].split()) if flags else set()
    return {"name": name[1].strip() if name else platform.processor() or platform.machine(), "count": os.cpu_count(),
            "flags": [flag for flag in FLAGS if flag in have]}  # fmt: skip


@contextmanager
def _without(variable: str) -> Iterator[None]:
    kept = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ[variable] = kept


def _instruction_set() -> Facts:
    names = {number: name for name, number in _c.ISAS.items()}
    used = names[_c.lib.skl_isa_best()]
    with _without("STREAMKL_ISA"):
        best = names[_c.lib.skl_isa_best()]
        here = [name for number, name in names.items() if _c.lib.skl_isa_available(c_int(number))]
    return {"used": used, "best": best, "available": here, "limit": os.environ.get("STREAMKL_ISA")}


def _threads() -> Facts:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"used": _c.lib.skl_max_threads(), "allowed": allowed, "online": os.cpu_count(), "quota": _quota()}


def _quota(root: str = "/sys/fs/cgroup", groups: Optional[str] = None) -> Optional[float]:
    """Processors that the control group may use at the same time, of this group and those above it."""
    text = _read("/proc/self/cgroup") if groups is None else groups
    found = re.search(r"^0::(.*)$", text, re.M)
    folder = pathlib.PurePosixPath(found[1] if found else "/")
    least: List[float] = []
    for part in (folder, *folder.parents):
        at = root + str(part).rstrip("/")
        limit = _read(f"{at}/cpu.max").split()
        if not limit:  # the first version of control groups
            limit = [_read(f"{at}/cpu/cpu.cfs_quota_us").strip(), _read(f"{at}/cpu/cpu.cfs_period_us").strip()]
        if len(limit) == 2 and all(re.fullmatch(r"\d+", number) for number in limit) and int(limit[1]):
            least.append(int(limit[0]) / int(limit[1]))
    return min(least, default=None)


def _torch() -> Facts:
    """What torch says of itself; importing it may fail in any way."""
    try:
        import torch
    except ModuleNotFoundError as error:
        return {"version": None, "trouble": None if error.name == "torch" else str(error)}
    except Exception as error:  # a broken installation is what a doctor is asked about
        return {"version": None, "trouble": f"{type(error).__name__}: {error}"}
    devices = []
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            seen = torch.cuda.get_device_properties(i)
            devices.append({"name": seen.name, "capability": f"{seen.major}.{seen.minor}"})
    return {"version": torch.__version__, "trouble": None, "threads": torch.get_num_threads(),
            "cuda": torch.version.cuda, "hip": torch.version.hip, "devices": devices}  # fmt: skip


def _openmp(maps: str) -> Optional[List[str]]:
    """The OpenMP runtimes in the process; None where the system does not tell."""
    found = {}
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[5:]
        name = OPENMP.search(path[0]) if path else None
        if name:
            found[path[0]] = name[1]
    return sorted(found) if maps else None


def _gpu() -> Facts:
    built, count = bool(_c.lib.skl_cuda_built()), _c.lib.skl_cuda_devices()
    driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", _read("/proc/driver/nvidia/version"))
    why = "" if count else _c.lib.skl_last_error().decode()
    return {"built": built, "devices": count, "why": why, "driver": driver[1] if driver else None}


def _chosen(text: str) -> Optional[str]:
    """The word in brackets of a file such as "always [madvise] never"."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None


# ------------------------------------------------------------------------------------------------- saying


def advice(facts: Facts) -> List[str]:
    """What would make it faster, or work at all."""
    return [*_about_instructions(facts), *_about_threads(facts), *_about_torch(facts), *_about_gpu(facts)]


def _about_instructions(facts: Facts) -> Iterator[str]:
    unit, flags = facts["instruction_set"], facts["processor"]["flags"]
    limit = unit["limit"]
    if limit and limit not in _c.ISAS:
        yield f"STREAMKL_ISA={limit} is no instruction set and changes nothing: it is one of {', '.join(_c.ISAS)}."
    elif unit["used"] != unit["best"]:
        yield f"STREAMKL_ISA={limit} keeps streamkl from {unit['best']}, which this processor has: unset it."
    elif unit["best"] == "baseline" and "avx2" in flags:
        yield "The processor has AVX2 and streamkl cannot use it: FMA or F16C is missing, or the system hides them."
    elif unit["best"] == "baseline":
        yield "streamkl has no faster kernels for this processor: it runs the portable ones."
    if facts["large_pages"] == "never":
        yield ("The system hands out no large pages. With 'madvise' in /sys/kernel/mm/transparent_hugepage/enabled, "
               "gradients of large problems lose less time to page faults.")  # fmt: skip


def _about_threads(facts: Facts) -> Iterator[str]:
    threads, torch = facts["threads"], facts["torch"]
    allowed, asked = threads["allowed"] or 1, facts["environment"].get("OMP_NUM_THREADS")
    if threads["used"] < allowed and asked:
        yield f"OMP_NUM_THREADS={asked} keeps streamkl from {allowed} processors: raise it, or pass threads={allowed}."
    if torch.get("threads") and torch["threads"] < min(threads["used"], allowed):
        yield (f"torch uses {torch['threads']} threads, and calls with torch tensors follow it: "
               f"torch.set_num_threads({threads['used']}) uses all.")  # fmt: skip
    if allowed < (threads["online"] or 1):
        yield (f"This process may run on {allowed} of {threads['online']} processors (taskset, or the limits of a "
               "container or a job).")  # fmt: skip
    quota = threads["quota"]
    if quota and quota < 0.95 * threads["used"]:
        whole = max(1, int(quota))
        yield (f"The control group allows {quota:g} processors at a time and {threads['used']} threads would share "
               f"them, waiting for each other: set OMP_NUM_THREADS={whole}.")  # fmt: skip
    runtimes = {os.path.basename(path).split(".")[0].split("-")[0] for path in facts["openmp"] or []}
    if len(runtimes) > 1:
        yield (f"There are {len(runtimes)} OpenMP runtimes in the process ({', '.join(sorted(runtimes))}); their idle "
               "threads take processors from each other and from streamkl, which uses none of them. "
               "OMP_WAIT_POLICY=passive makes them sleep.")  # fmt: skip


def _about_torch(facts: Facts) -> Iterator[str]:
    torch = facts["torch"]
    if torch["trouble"]:
        yield f"torch is there and cannot be imported: {torch['trouble']}."
    elif not torch["version"]:
        yield "torch is not installed: streamkl.numpy works without it, the losses with autograd need it."
    elif _numbers(torch["version"]) < NEED_TORCH:
        yield f"torch {torch['version']} is older than {'.'.join(map(str, NEED_TORCH))}, which the losses need."


def _numbers(version: str) -> Sequence[int]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _about_gpu(facts: Facts) -> Iterator[str]:
    gpu, torch = facts["gpu"], facts["torch"]
    seen = torch.get("devices") or []
    if seen and not torch.get("hip") and not gpu["built"]:
        yield (f"torch sees {len(seen)} GPU(s), and this streamkl was built without CUDA. With nvcc on the PATH: "
               "pip install . -Ccmake.define.STREAMKL_CUDA=ON")  # fmt: skip
    elif gpu["built"] and not gpu["devices"] and (seen or gpu["driver"]):
        yield f"streamkl has CUDA's kernels and finds no GPU: {gpu['why']}."
    if gpu["driver"] and torch.get("version") and not torch.get("cuda") and not torch.get("hip"):
        yield "There is an NVIDIA driver, and this torch was built without CUDA: its tensors stay on the CPU."
    for one in seen if gpu["built"] else []:
        if _numbers(one["capability"]) < (8, 0):
            yield f"{one['name']} has compute capability {one['capability']}; streamkl's kernels need 8.0."


def _unit_words(facts: Facts) -> str:
    unit = facts["instruction_set"]
    if unit["used"] != unit["best"]:
        return f"{unit['used']}, because STREAMKL_ISA={unit['limit']}; {unit['best']} is here too"
    rest = [name for name in _c.ISAS if name not in unit["available"]]
    return (
        f"{unit['used']}, the best of what both processor and library have (not here: {', '.join(rest) or 'nothing'})"
    )


def _thread_words(facts: Facts) -> str:
    threads, said = facts["threads"], facts["environment"].get("OMP_NUM_THREADS")
    words = f"{threads['used']}: {threads['allowed']} of {threads['online']} processors may be used"
    words += f", OMP_NUM_THREADS={said}" if said else ", OMP_NUM_THREADS is not set"
    words += f", the control group allows {threads['quota']:g}" if threads["quota"] else ""
    own = facts["torch"].get("threads")
    return words + (f"; with torch tensors torch's number, {own}" if own else "")


def _gpu_words(facts: Facts) -> str:
    gpu, seen = facts["gpu"], facts["torch"].get("devices") or []
    built = "built with CUDA" if gpu["built"] else "built without CUDA"
    driver = f"driver {gpu['driver']}" if gpu["driver"] else "no NVIDIA driver"
    names = ", ".join(f"{one['name']} ({one['capability']})" for one in seen)
    count = f"{gpu['devices']} device(s)" if gpu["built"] else ""
    return "; ".join(filter(None, (built, driver, count, names)))


def report(facts: Facts) -> str:
    ours, torch = facts["streamkl"], facts["torch"]
    runtimes = facts["openmp"]
    lines = [
        ("streamkl", f"{ours['version']}, {ours['library']}"),
        ("Python", f"{facts['python']} on {facts['system']}"),
        ("processor", f"{facts['processor']['name']}: {' '.join(facts['processor']['flags'])}".rstrip(": ")),
        ("instruction set", _unit_words(facts)),
        ("threads", _thread_words(facts)),
        (
            "torch",
            f"{torch['version']}, CUDA {torch['cuda']}" if torch["version"] else torch["trouble"] or "not installed",
        ),
        ("OpenMP runtimes", "unknown" if runtimes is None else ", ".join(runtimes) or "none"),
        ("GPU", _gpu_words(facts)),
        ("beside it", ", ".join(f"{k} {v}" for k, v in facts["packages"].items() if v and k != "torch") or "nothing"),
    ]
    text = "\n".join(f"{name:<17}{said}" for name, said in lines)
    better = facts["advice"] or ["Nothing that can be seen from here: it uses the best there is."]
    return text + "\n\nWhat would make it better\n" + "\n".join(f"  - {sentence}" for sentence in better)


def run(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(prog="python -m streamkl doctor", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--json", action="store_true", help="the facts, for programs")
    args = p.parse_args(argv)
    facts = examine()
    print(json.dumps(facts, indent=2) if args.json else report(facts))
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
