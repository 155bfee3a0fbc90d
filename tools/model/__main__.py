# SPDX-License-Identifier: Apache-2.0
"""The command: a table of modelled throughput, a line a kernel and GPU."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from . import elf, flow, kernels, machine, pipes, raw, sass, simulate

PORTS = {"registers": "register ports", "shared": "shared memory port", "l2": "L2"}


@dataclass
class Job:
    """A kernel with an entry in the table, compiled for a GPU that the model has."""

    code: elf.KernelCode
    entry: kernels.Kernel
    gpu: machine.Machine
    path: list[sass.Instruction]
    blocks: int
    differs: list[str]  # counts that are not as expected


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.model",
        description="Modelled throughput of CUDA kernels from their machine code. No GPU is used; calibration.md says "
        "what the figures are worth. Needs nvdisasm: pip install -r tools/model/requirements.txt.",
        epilog="Bars, tile arithmetic and expected counts are in kernels.toml beside this program.",
    )
    parser.add_argument("cubins", nargs="+", type=Path, help="cubins, or directories of them (build/cuda/cubin)")
    parser.add_argument("--match", default="*bf16*", help="kernels to model, a shell pattern (default %(default)s)")
    parser.add_argument("--arch", action="append", help="sm_80, sm_90, sm_86 or sm_120 (default sm_80 and sm_90)")
    parser.add_argument("--table", type=Path, default=kernels.TABLE, help="instead of kernels.toml")
    parser.add_argument("--offsets", type=int, default=4, help="runs with different offsets of the blocks (default 4)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a number of machine.py, say hmma=4"
    )
    parser.add_argument("--busy", action="store_true", help="how busy everything is, below each line")
    parser.add_argument("--path", action="store_true", help="print the instructions of the path, do not model it")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed or a count is not as expected")
    return parser.parse_args()


def gpu_with(gpu: machine.Machine, settings: list[str]) -> machine.Machine:
    for setting in settings:
        name, _, value = setting.partition("=")
        if not hasattr(gpu, name) or isinstance(getattr(gpu, name), str):
            sys.exit(f"--set {setting}: machine.py has no number {name!r}")
        gpu = replace(gpu, **{name: type(getattr(gpu, name))(float(value))})
    return gpu


def find_cubins(places: list[Path]) -> Iterator[elf.Cubin]:
    files = [f for place in places for f in (sorted(place.glob("**/*.cubin")) if place.is_dir() else [place])]
    if not files:
        sys.exit(
            f"no cubins in {', '.join(map(str, places))}: build the target cuda_objects, then give build/cuda/cubin"
        )
    for file in files:
        try:
            yield elf.read_cubin(file)
        except (OSError, elf.NotACubin) as error:
            sys.exit(str(error))


def find_jobs(options: argparse.Namespace) -> Iterator[Job]:
    table = kernels.read_table(options.table)
    archs = {int(a.removeprefix("sm_")) for a in options.arch or ["80", "90"]}
    for cubin in find_cubins(options.cubins):
        if cubin.arch not in archs or cubin.arch not in machine.MACHINES:
            continue
        gpu = gpu_with(machine.MACHINES[cubin.arch], options.set)
        text = None
        for name, code in sorted(cubin.kernels.items()):
            entry = kernels.find(table, name)
            if not entry or not entry.model or not fnmatchcase(name, options.match):
                continue
            text = text or sass.disassemble(cubin.path)
            job = make_job(code, entry, gpu, text[name])
            if job:
                yield job
            else:
                print(f"{name} sm_{cubin.arch}: no loop with HMMA, nothing to model")


def make_job(
    code: elf.KernelCode, entry: kernels.Kernel, gpu: machine.Machine, text: list[sass.Instruction]
) -> Job | None:
    decoded = raw.decode(code, gpu.arch)
    misread = next(
        (i for i, f in zip(text, decoded) if f.name in raw.KNOWN and f.name != i.name and f.name != flow.SMALL_COPY),
        None,
    )
    if misread or len(text) != len(decoded):
        sys.exit(f"tools.model: raw.py misreads {code.name} at {misread}: has the encoding changed?")
    path = entry.path(decoded)
    if not path:
        return None
    turn = [decoded[i] for i in path]
    differs = entry.differences(lambda name: flow.tally(turn, name))
    blocks = gpu.blocks(code.registers, entry.threads, entry.shared + code.shared)
    return Job(code, entry, gpu, [text[i] for i in path], blocks, differs)


def busiest(results: list[simulate.Result]) -> dict[str, float]:
    """Mean over the runs, the busiest first."""
    busy = {pipe: sum(r.busy.get(pipe, 0) for r in results) / len(results) for pipe in results[0].busy}
    return dict(sorted(busy.items(), key=lambda item: -item[1]))


def rates_of(job: Job, results: list[simulate.Result]) -> tuple[float, float, float]:
    """TFLOP/s: mean, least and most. The flops are those of the HMMA that are really there."""
    hmma = sum(i.name == "HMMA" for i in job.path)
    flops = hmma * kernels.HMMA_FLOPS * job.entry.threads // 32 * job.blocks
    scale = flops * job.gpu.multiprocessors * job.gpu.clock * job.gpu.correction / 1e3
    cycles = [r.cycles for r in results]
    return scale * len(cycles) / sum(cycles), scale / max(cycles), scale / min(cycles)


def verdict_of(job: Job, rate: float) -> tuple[str, bool]:
    bar = job.entry.bar.get(f"sm_{job.gpu.arch}")
    if bar is None:
        return "", not job.differs
    if any("HMMA" in text for text in job.differs):  # another kernel than the table describes
        return f"bar {bar:g} not judged", False
    return f"bar {bar:g} {'met' if rate >= bar else 'MISSED'}", rate >= bar and not job.differs


def report(job: Job, options: argparse.Namespace) -> bool:
    """Prints the line of a kernel; whether it does all that is asked of it."""
    name, warps, trips = job.code.name.removeprefix("skl_"), job.entry.threads // 32, job.entry.trips[0]
    if not job.blocks:
        fits = f"{job.code.registers} registers, {job.entry.shared + job.code.shared} bytes of shared memory"
        print(f"{name:24s} {job.gpu.name:8s} does not fit: {fits}")
        return False
    results = simulate.simulate(job.path, job.gpu, warps, job.blocks, options.offsets)
    rate, least, most = rates_of(job, results)
    verdict, good = verdict_of(job, rate)
    busy = busiest(results)
    first = next(pipe for pipe in busy if pipe != "issue")
    length = f"{len(job.path)} instructions a turn" if trips == 1 else f"{len(job.path) // trips} instructions a trip"
    print(
        f"{name:24s} {job.gpu.name:8s} modelled {rate:4.0f} TFLOP/s ({least:.0f} to {most:.0f})  {verdict:18s}"
        f" {job.code.registers:3d} registers, {job.blocks} x {warps} warps, {length},"
        f" busiest {PORTS.get(first, first)} {busy[first]:.2f}",
        flush=True,
    )
    if options.busy:
        print("    modelled busy: " + ", ".join(f"{PORTS.get(p, p)} {b:.2f}" for p, b in busy.items()))
    for text in job.differs:
        print(f"    check: {text}")
    return good


def main() -> int:
    options = arguments()
    good, count = True, 0
    try:
        for job in find_jobs(options):
            count += 1
            if options.path:
                print(f"{job.code.name} {job.gpu.name}: {len(job.path)} instructions a turn")
                print("\n".join(map(str, job.path)))
            else:
                good &= report(job, options)
    except (sass.NoDisassembler, pipes.UnknownOpcode, kernels.BadTable) as error:
        sys.exit(f"tools.model: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"tools.model: nvdisasm failed: {error.stderr.strip()}")
    if not count:
        sys.exit(f"tools.model: no kernel fits --match {options.match!r} for these GPUs")
    if not options.path:
        print("All figures are modelled, none was measured: tools/model/calibration.md.")
    return 1 if options.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
