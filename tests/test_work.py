# SPDX-License-Identifier: Apache-2.0
"""How many instructions a multiply-add costs, counted by callgrind: a guard against slower code that no noise can break.

Valgrind 3.19 knows AVX2 but not AVX-512, so the AVX2 kernels are counted. Their micro-kernel needs 20 instructions for 96
multiply-adds (12 FMA, 6 broadcasts, 2 loads) and 3 for the loop: 0.24; the rest is exponentials, packing, states.

usage: test_work.py ONE_CALL [--all]        LIMITS below are 8 % above what was counted with gcc 12.
                                            Six seconds each: `make test` counts SOME of them.
"""

import re
import shutil
import subprocess
import sys

FUNCTIONS = {0: "skl_value", 1: "skl_value_and_grad", 2: "skl_backward"}
LIMITS = {  # (use, call, divergence, dtype, causal): instructions for each multiply-add of the products
    (0, 0, 0, 0, 0): 0.363,
    (0, 0, 1, 0, 0): 0.363,
    (0, 0, 2, 0, 0): 0.480,
    (0, 0, 0, 1, 0): 0.378,
    (0, 0, 0, 0, 1): 0.391,
    (0, 1, 0, 0, 0): 0.352,
    (0, 1, 2, 0, 0): 0.454,
    (0, 1, 0, 0, 1): 0.376,
    (0, 2, 0, 0, 0): 0.331,
    (1, 0, 0, 0, 0): 0.363,
    (1, 1, 0, 1, 0): 0.365,
}
SOME = ((0, 0, 2, 0, 0), (1, 1, 0, 1, 0))  # each use, one and two sweeps, with and without gradients


def count(program, case):
    """Instructions executed inside the call, and the multiply-adds it stands for."""
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={FUNCTIONS[case[1]]}"]
    run = subprocess.run([*tool, program, *map(str, case)], capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or not found:
        raise RuntimeError(run.stderr[-2000:])
    return int(found[1]), float(run.stdout)


def main(program, which=""):
    if not shutil.which("valgrind"):
        print("skipped: no valgrind")
        return 77
    failed = 0
    print("use call div dtype causal   instructions per multiply-add   limit")
    wanted = LIMITS if which == "--all" else {case: LIMITS[case] for case in SOME}
    for case, limit in wanted.items():
        instructions, products = count(program, case)
        cost = instructions / products
        ok = cost <= limit
        failed += not ok
        print("%3d %4d %3d %5d %6d   %29.4f   %.4f%s" % (*case, cost, limit, "" if ok else "   FAILED"))
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
