# SPDX-License-Identifier: Apache-2.0
"""examples/mpi/vocabulary.c on 1 to 4 ranks. Skipped where there is no MPI.

usage: test_mpi.py EXAMPLE.c LIBRARY.so INCLUDE_DIR
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def launcher(ranks):
    command = ["mpirun", "-n", str(ranks)]
    with_words = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in with_words:
        command += ["--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    return command


def main():
    example, library, include = sys.argv[1:4]
    missing = [program for program in ("mpicc", "mpirun") if not shutil.which(program)]
    if missing:
        print(f"skipped: no {' and no '.join(missing)} here (Debian: libopenmpi-dev openmpi-bin)")
        return 77
    here = pathlib.Path(library).resolve().parent
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "vocabulary")
        compile_it = ["mpicc", "-O2", "-std=c11", "-Wall", "-Wextra", example, f"-I{include}", f"-L{here}"]
        subprocess.run([*compile_it, "-lstreamkl", f"-Wl,-rpath,{here}", "-lm", "-o", program], check=True)
        for ranks in (1, 2, 3, 4):
            run = subprocess.run(
                [*launcher(ranks), program], capture_output=True, text=True, timeout=100, cwd=folder, check=False
            )
            lines = [line for line in run.stdout.splitlines() if line.endswith(": right")]
            good = run.returncode == 0 and len(lines) == 3
            failed += not good
            print(run.stdout, "" if good else f"FAILED with {run.returncode}: {run.stderr}", sep="", end="")
    print(f"test_mpi: {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
