# SPDX-License-Identifier: Apache-2.0
"""The C in README.md and docs/*.md is compiled as it stands, with every warning an error; a program is run.

Statements get a function to stand in. What a page does not show is declared in a comment before the block, which starts
with the line "<!-- c". The Python is run by tests/python/test_documents.py.

usage: test_documents.py SOURCE_DIR LIBRARY.so CC
"""

import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^(?:<!-- c\n(?P<hidden>.*?)^-->\n\n)?```c\n(?P<shown>.*?)^```$", re.S | re.M)


def program(hidden, shown):
    """The text of a file that compiles, and whether it is a program of its own."""
    if "main(" in shown:
        return hidden + shown, True
    lines = (hidden + shown).splitlines(keepends=True)
    heads = [line for line in lines if line.startswith("#include")]
    rest = "".join(line for line in lines if line not in heads)
    heads = ["#include <streamkl/streamkl.h>\n", *heads, "void shown(void);\nvoid shown(void)\n{\n"]
    return "".join(heads) + rest + "}\n", False


def attempt(where, block, source, shared, cc, folder):
    """Compiles one block, and runs it if it is a program. Returns what is wrong with it."""
    text, whole = program(block["hidden"] or "", block["shown"])
    path, made, library = folder / "block.c", folder / "block", pathlib.Path(shared).resolve()
    path.write_text(text)
    command = [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", f"{source}/include", str(path), "-o", str(made)]
    command += [str(library), f"-Wl,-rpath,{library.parent}", "-lm"] if whole else ["-c", "-Wno-unused"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return " ".join(command) + "\n" + done.stderr
    if whole:
        done = subprocess.run([made], capture_output=True, text=True)
        print(f"{where} prints:", done.stdout.strip())
        if done.returncode or not done.stdout.strip() or "nan" in done.stdout.lower():
            return f"exit code {done.returncode}, {done.stderr}"
    return ""


def main(source, shared, cc):
    root = pathlib.Path(source)
    count = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for page in (root / "README.md", *sorted((root / "docs").glob("**/*.md"))):
            text = page.read_text()
            blocks = list(BLOCK.finditer(text))
            if len(blocks) != len(re.findall(r"^ *``` *[cC]\b", text, re.M)):
                print(f"FAILED: {page.name}: a block of C is not written as the others, and would not be compiled")
                failed += 1
            for block in blocks:
                where = f"{page.name}:{text.count(chr(10), 0, block.start('shown'))}"
                wrong = attempt(where, block, source, shared, cc, pathlib.Path(folder))
                count += 1
                if wrong:
                    print(f"FAILED: {where}: {wrong}")
                    failed += 1
    print(f"test_documents: {count - failed} passed, {failed} failed")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
