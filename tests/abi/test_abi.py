# SPDX-License-Identifier: Apache-2.0
"""The interface against the one recorded in streamkl.abi, by abidiff: it may only grow, by new functions and by fields
at the end of the structures that begin with their size.

usage: test_abi.py LIBRARY.so INCLUDE_DIR CC [--record]

The library as it is built holds no debug information, and with it would hold every private type. So abidiff sees a
library made of the header alone: each of its functions with an empty body, and one more for each enum, since fields of
the structures are integers that do not name theirs. The real sources include the same header, so their types are
these; that LIBRARY.so gives away the same functions is checked here. --record writes streamkl.abi anew.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
RECORDED = HERE / "streamkl.abi"
GROWING = ["skl_problem", "skl_outputs"]
ENUM = "takes_"
# Only what the interface is made of: no paths, no lines of source, no processor.
PLAIN = ["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-architecture", "--no-elf-needed"]


def have(program, package):
    """Is it here, or can it be installed?"""
    wanted = os.environ.get("STREAMKL_TEST_NO_INSTALL", "0") != "1" and os.getuid() == 0 and shutil.which("apt-get")
    if not shutil.which(program) and wanted:
        print(f"installing {package}", flush=True)
        subprocess.run(
            ["apt-get", "install", "-y", "-q", package],
            capture_output=True,
            timeout=250,
            check=False,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
    return shutil.which(program) is not None


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def functions(library):
    lines = output("nm", "--dynamic", "--defined-only", library).splitlines()
    return {line.split()[2] for line in lines if re.match(r"[0-9a-f]+ T ", line)}


def soname(library):
    return re.search(r"\(SONAME\).*\[(.*)\]", output("readelf", "-d", library)).group(1)


def build_interface(library, include, cc, folder):
    """The header's functions as a library with debug information."""
    include = pathlib.Path(include).resolve()
    header = (include / "streamkl" / "streamkl.h").read_text()
    prototypes = re.findall(r"^SKL_API ([^;]+);", header, re.MULTILINE)
    prototypes += [f"void {ENUM}{name}(enum {name} x)" for name in re.findall(r"^enum (\w+) {", header, re.MULTILINE)]
    bodies = [f"SKL_API {prototype}\n{{\n    __builtin_trap();\n}}\n" for prototype in prototypes]
    (folder / "interface.c").write_text("#include <streamkl/streamkl.h>\n" + "".join(bodies))
    subprocess.run(
        [
            cc,
            "-std=c11",
            "-w",
            "-g",
            "-O0",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
            f"-I{include}",
            f"-Wl,-soname,{soname(library)}",
            "interface.c",
            "-o",
            "interface.so",
        ],
        check=True,
        cwd=folder,
    )
    return str(folder / "interface.so")


def describe(interface):
    return ElementTree.fromstring(output("abidw", *PLAIN, interface))


def sizes(abi):
    return {c.get("name"): int(c.get("size-in-bits")) for c in abi.iter("class-decl") if c.get("name") in GROWING}


def without_growth(abi, recorded):
    """Leaves out the fields that begin where the recorded structure ends. abidiff's own suppression of them would also
    pass over fields that change places."""
    for structure in abi.iter("class-decl"):
        if structure.get("name") in GROWING:
            end = recorded[structure.get("name")]
            for field in structure.findall("data-member"):
                if int(field.get("layout-offset-in-bits")) >= end:
                    structure.remove(field)
                    structure.set("size-in-bits", str(end))
    return abi


def compare(interface, folder):
    """abidiff's report if it finds anything but growth, else None."""
    abi = without_growth(describe(interface), sizes(ElementTree.parse(RECORDED)))
    ElementTree.ElementTree(abi).write(folder / "now.abi")
    command = ["abidiff", "--no-architecture", "--no-added-syms", "--no-show-locs", RECORDED, folder / "now.abi"]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"abidiff gave {done.returncode}\n{done.stdout}{done.stderr}" if done.returncode else None


def main(library, include, cc, *options):
    if not have("abidiff", "abigail-tools"):
        print("skipped: no abidiff, and abigail-tools cannot be installed")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        interface = build_interface(library, include, cc, folder)
        ours = {it for it in functions(interface) if not it.startswith(ENUM)}
        complaints = [f"only one of header and library has {it}" for it in sorted(ours ^ functions(library))]
        if "--record" in options:
            RECORDED.write_text(output("abidw", *PLAIN, interface))
            print(f"recorded: {len(ours)} functions, {RECORDED.stat().st_size} bytes")
        if report := compare(interface, folder):
            complaints.append(f"programs that are already compiled would break:\n{report}")
    for complaint in complaints:
        print("FAILED:", complaint)
    print(f"test_abi: {len(ours)} functions, {len(complaints)} failed")
    return 1 if complaints or not ours else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
