# SPDX-License-Identifier: Apache-2.0
"""The C in README.md is compiled as it stands, with every warning an error, and run.

usage: test_readme.py SOURCE_DIR LIBRARY.so CC
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def main(source, shared, cc):
    readme = (pathlib.Path(source) / "README.md").read_text()
    blocks = re.findall(r"^```c\n(.*?)^```", readme, re.S | re.M)
    if len(blocks) != 1:
        print(f"FAILED: README.md has {len(blocks)} blocks of C, expected one")
        return 1
    text = blocks[0]
    if "main(" not in text:  # statements only: give them a function to stand in
        lines = text.splitlines(keepends=True)
        heads = [line for line in lines if line.startswith("#include")]
        text = "".join(heads) + "int main(void)\n{\n" + "".join(x for x in lines if x not in heads) + "return 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        path, program = pathlib.Path(folder) / "readme.c", pathlib.Path(folder) / "readme"
        path.write_text(text)
        library = pathlib.Path(shared).resolve()
        command = [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", f"{source}/include", str(path), "-o",
                   str(program), str(library), f"-Wl,-rpath,{library.parent}", "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print("FAILED:", *command, "\n" + done.stderr)
            return 1
        done = subprocess.run([program], capture_output=True, text=True, env=os.environ)
        print("README.md prints:", done.stdout.strip())
        if done.returncode or not done.stdout.strip() or "nan" in done.stdout.lower():
            print(f"FAILED: exit code {done.returncode}, {done.stderr}")
            return 1
    print("test_readme: 1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
