# SPDX-License-Identifier: Apache-2.0
"""Installs the build into an empty folder and uses it from there: find_package, pkg-config, and again after moving it.

usage: test_install.py BUILD_DIR CMAKE CC
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

CONSUMER = pathlib.Path(__file__).resolve().parent / "consumer"
SEARCH = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"


def run(*command, **more):
    command = [str(c) for c in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode:
        print("FAILED:", *command, "\n" + done.stdout)
        sys.exit(1)
    return done.stdout.strip()


def with_cmake(cmake, cc, prefix, work):
    run(cmake, "-S", CONSUMER, "-B", work, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_C_COMPILER={cc}")
    run(cmake, "--build", work)
    for program in ("consumer", "consumer_static"):
        print(f"find_package, {program}:", run(work / program))


def with_pkg_config(cc, prefix, work):
    folder = next(prefix.rglob("streamkl.pc")).parent
    environment = dict(os.environ, PKG_CONFIG_PATH=str(folder))
    flags = run("pkg-config", "--cflags", "--libs", "streamkl", env=environment).split()
    library = next(path for path in prefix.rglob("libstreamkl.*") if path.suffix in (".so", ".dylib")).parent
    run(cc, "-std=c11", CONSUMER / "consumer.c", "-o", work / "with_pkg_config", *flags)
    print("pkg-config:", run(work / "with_pkg_config", env=dict(environment, **{SEARCH: str(library)})))
    version = run("pkg-config", "--modversion", "streamkl", env=environment)
    flags = run("pkg-config", "--cflags", "--libs", "--static", "streamkl", env=environment).split()
    static = next(prefix.rglob("libstreamkl.a"))
    flags = [str(static) if f == "-lstreamkl" else f for f in flags]
    run(cc, "-std=c11", CONSUMER / "consumer.c", "-o", work / "with_pkg_config_static", *flags)
    print(f"pkg-config --static, version {version}:", run(work / "with_pkg_config_static"))


def main(build, cmake, cc):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        prefix, moved = folder / "installed here", folder / "moved"
        run(cmake, "--install", build, "--prefix", prefix)
        files = sorted(str(p.relative_to(prefix)) for p in prefix.rglob("*") if p.is_file())
        print("installed:", *files)
        with_cmake(cmake, cc, prefix, folder / "first")
        shutil.move(prefix, moved)
        with_cmake(cmake, cc, moved, folder / "second")
        if shutil.which("pkg-config"):
            with_pkg_config(cc, moved, folder)
        else:
            print("no pkg-config here: streamkl.pc not tried")
    print("test_install: passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
