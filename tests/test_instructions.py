# SPDX-License-Identifier: Apache-2.0
"""A processor without AVX2 never meets an AVX instruction: only the kernels' own objects hold any.

Looks at every object of the static library, then at every function of the shared library, which is made of the same
objects: those with AVX instructions must be functions of the AVX objects.

usage: test_instructions.py LIBRARY.so LIBRARY.a
"""

import platform
import re
import shutil
import subprocess
import sys

KERNELS = re.compile(r"(avx2|avx512bf16|avx512|amx|emulated)(_\w+)?\.")  # the objects that may use them
NOT_VEX = {"verr", "verw"}  # of all other mnemonics, only those of VEX and EVEX instructions begin with v


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def level(instruction):
    """Of one line of objdump: 0 baseline, 2 AVX or AVX2, 3 AVX-512."""
    mnemonic = instruction.split()[0] if instruction.split() else ""
    if "%zmm" in instruction or re.search(r"%k[0-7]\b", instruction):
        return 3
    if "%ymm" in instruction or (mnemonic.startswith("v") and mnemonic not in NOT_VEX):
        return 2
    return 0


def functions(path):
    """(object, function, level) of everything that objdump finds in a library."""
    text = output("objdump", "-d", "--no-show-raw-insn", path)
    member, name, most = "", "", 0
    for line in text.splitlines():
        if match := re.match(r"(\S+):\s+file format", line):
            if name:
                yield member, name, most
            member, name, most = match[1].split("/")[-1], "", 0
        elif match := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            if name:
                yield member, name, most
            name, most = match[1], 0
        elif match := re.match(r"\s+[0-9a-f]+:\s+(.*)", line):
            most = max(most, level(match[1]))
    if name:
        yield member, name, most


def main(shared, static):
    if platform.machine() != "x86_64":
        print("skipped: not an x86-64 machine")
        return 77
    if not shutil.which("objdump"):
        print("skipped: no objdump")
        return 77
    wrong, wide_names, objects, seen = 0, set(), set(), set()
    for member, name, most in functions(static):
        objects.add(member)
        kernels = KERNELS.match(member)
        isa = kernels[1] if kernels else "baseline"
        may = {"baseline": 0, "avx2": 2, "emulated": 2}.get(isa, 3)
        if most:
            wide_names.add(name)
            seen.add(isa)
        if most > may:
            print(f"FAILED: {name} in {member} uses {'AVX-512' if most == 3 else 'AVX'} instructions")
            wrong += 1
    for _, name, most in functions(shared):
        if most and name not in wide_names:
            print(f"FAILED: {name} in the shared library uses AVX instructions and comes from no AVX object")
            wrong += 1
    # A function that is global in an AVX object could be taken by the linker for the whole program.
    for line in output("nm", "--defined-only", "--extern-only", "-A", static).splitlines():
        match = re.search(r":((avx\w+|amx|emulated\w+)\.[^:]*):\S+ (\S) (\S+)$", line)
        if match and match[4] not in (f"skl_kernels_{match[2]}", "skl_tiles"):  # the latter are data of the stand-in
            print(f"FAILED: {match[4]} ({match[3]}) in {match[1]} is global")
            wrong += 1
    if not {"avx2", "avx512"} <= seen:
        print(f"FAILED: AVX instructions were found in {sorted(seen)} only: is this looking at the right thing?")
        wrong += 1
    print(f"test_instructions: {len(objects)} objects, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
