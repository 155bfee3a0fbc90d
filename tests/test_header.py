# SPDX-License-Identifier: Apache-2.0
"""The public header alone, with every warning an error: as C11 and later, as C++, by every compiler here.

usage: test_header.py INCLUDE_DIR CC
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

TEXT = "#include <streamkl/streamkl.h>\nint main(void) { return skl_no_outputs().struct_size == 0; }\n"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def main(include, cc):
    wrong = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        c, cxx = pathlib.Path(folder) / "alone.c", pathlib.Path(folder) / "alone.cc"
        c.write_text(TEXT), cxx.write_text(TEXT)
        jobs = [(compiler, c, std) for compiler in {cc, "gcc", "clang"} for std in ("c11", "c17")]
        jobs += [(compiler, cxx, std) for compiler in ("c++", "g++", "clang++") for std in ("c++11", "c++17", "c++20")]
        for compiler, source, std in jobs:
            if not shutil.which(compiler):
                continue
            command = [compiler, f"-std={std}", *WARNINGS, "-I", include, "-fsyntax-only", str(source)]
            done = subprocess.run(command, capture_output=True, text=True)
            tried += 1
            if done.returncode:
                print("FAILED:", *command, "\n" + done.stderr)
                wrong += 1
        if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
            print("no C++ compiler here: not tried as C++")
    print(f"test_header: {tried - wrong} passed, {wrong} failed")
    return 1 if wrong or not tried else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
