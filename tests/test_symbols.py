# SPDX-License-Identifier: Apache-2.0
"""Every symbol the libraries give away begins with skl_, and the shared one gives away the header's functions, no more.
They call nothing that prints, ends the process, or allocates without saying so.

usage: test_symbols.py LIBRARY.so LIBRARY.a INCLUDE_DIR
"""

import pathlib
import re
import shutil
import subprocess
import sys

# nvcc makes a C++ function of its own beside every kernel, with the kernel's name in it.
OURS = re.compile(r"skl_|_Z\d+__device_stub__Z\d+skl_")


# qsort() of a long array allocates.
FORBIDDEN = """abort exit _exit quick_exit __assert_fail qsort
    printf fprintf vprintf vfprintf puts fputs putchar fputc fwrite perror"""


def undefined(path):
    out = subprocess.run(["nm", "--undefined-only", path], check=True, capture_output=True, text=True).stdout
    return {line.split()[1].split("@")[0] for line in out.splitlines() if re.match(r" +U \S+$", line)}


def defined(path, *options):
    out = subprocess.run(["nm", "--defined-only", *options, path], check=True, capture_output=True, text=True).stdout
    return {line.split()[2].split("@")[0] for line in out.splitlines() if re.match(r"[0-9a-f]+ \S \S+$", line)}


def main(shared, static, include):
    if not shutil.which("nm"):
        print("skipped: no nm")
        return 77
    header = (pathlib.Path(include) / "streamkl" / "streamkl.h").read_text()
    promised = set(re.findall(r"SKL_API[^;(]*?\b(skl_\w+)\(", header))
    exported = defined(shared, "--dynamic")
    wrong = 0
    for what, names in [
        ("exported without the prefix", {n for n in exported if not n.startswith("skl_")}),
        ("exported, but not in the header", exported - promised),
        ("in the header, but not exported", promised - exported),
        (
            "global in the static library without the prefix",
            {n for n in defined(static, "--extern-only") if not OURS.match(n)},
        ),
        ("called by the static library", undefined(static) & set(FORBIDDEN.split())),
    ]:
        for name in sorted(names):
            print(f"FAILED: {what}: {name}")
            wrong += 1
    print(f"test_symbols: {len(exported)} exported symbols, {wrong} failed")
    return 1 if wrong or not promised else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
