# SPDX-License-Identifier: Apache-2.0
"""The wheel, the examples, and the Hugging Face recipe of docs/python.md."""

import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def tracked_copy(to):
    """The files of this checkout, in a folder of their own."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if names.returncode:
        pytest.skip("not a git checkout: an sdist is made from one")
    for name in filter(lambda name: (ROOT / name).is_file(), names.stdout.splitlines()):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    return to


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Made where trees of all kinds have been built before, as they lie in a developer's folder."""
    pytest.importorskip("scikit_build_core")
    source = tracked_copy(tmp_path_factory.mktemp("dirty"))
    for tree in ("build", "build-python/wheel", "build/variants/clang"):
        for part in ("src", "cmake", "include", "python", "src/cpu"):
            folder = source / tree / "CMakeFiles/streamkl_objects.dir" / part
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "left.c.o").write_bytes(b"an object")
    make = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    out = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-c", make, out], cwd=source, check=True)
    (made,) = out.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Made of nothing but the sdist, with no setting: as pip does it for a user."""
    out = tmp_path_factory.mktemp("wheel")
    make = ["-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "-w", out, sdist]
    subprocess.run([sys.executable, *make], check=True)
    (made,) = out.glob("*.whl")
    return made


def test_sdist(sdist):
    """What is compiled and the package; no object, no build tree, nothing for developers."""
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in ("CMakeLists.txt", "src/api.c", "src/cpu/run.c", "include/streamkl/streamkl.h", "cmake/library.cmake"):
        assert name in names
    tops = {name.split("/")[0] for name in names}
    assert tops <= set(
        ".clang-format .editorconfig .gitignore CMakeLists.txt CONTRIBUTING.md LICENSE Makefile NEWS.md PKG-INFO "
        "README.md SECURITY.md cmake include pyproject.toml python src".split()
    )
    assert not [name for name in names if name.endswith((".o", ".so", ".a", ".pyc"))]


@pytest.mark.long  # it compiles the library once more, which `make python` has just done
def test_wheel(wheel, tmp_path):
    """One wheel for every Python: a plain library in it, no libpython, no torch, no OpenMP."""
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        z.extractall(tmp_path)
    package = "__init__.py py.typed lib/libstreamkl.so include/streamkl/streamkl.h bench/cli.py compare/page.css"
    for name in package.split():
        assert f"streamkl/{name}" in names
    symbols = subprocess.run(
        ["objdump", "-p", "-h", tmp_path / "streamkl/lib/libstreamkl.so"], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"NEEDED\s+(\S+)", symbols)
    assert not [n for n in needed if "python" in n or "torch" in n or "omp" in n]
    assert ".nv_fatbin" not in symbols  # CUDA was not asked for


@pytest.mark.long
def test_wheel_in_a_new_environment(wheel, tmp_path):
    """Installed beside nothing but NumPy, it finds its library and computes."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    packages = next((tmp_path / "lib").glob("*/site-packages"))
    (packages / "numpy.pth").write_text(str(pathlib.Path(np.__file__).parents[1]))  # behind its own packages
    program = """
import numpy as np, streamkl.numpy
from streamkl import _c
x = np.eye(3, dtype=np.float32)
print(streamkl.numpy.linear_kl(x, x, x, x), streamkl.__file__, _c.lib._name)
"""
    out = subprocess.run([python, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    value, package, library = out.stdout.split()
    assert float(value) == 0 and package.startswith(str(packages)) and library.startswith(str(packages))


@pytest.mark.parametrize(
    "name, arguments",
    [
        pytest.param("distil", ["--teacher-steps", 1, "--steps", 2], marks=pytest.mark.long),
        ("indexer", ["--dense", 2, "--sparse", 2]),
        pytest.param("quantisation_drift", ["--steps", 1], marks=pytest.mark.long),
    ],
)
def test_examples(tmp_path, monkeypatch, capsys, name, arguments):
    """As programs, in this process: importing torch and transformers for each of them took longer than they do."""
    pytest.importorskip("matplotlib")
    program = str(ROOT / "examples" / f"{name}.py")
    monkeypatch.syspath_prepend(ROOT / "examples")  # as Python does it for a program
    monkeypatch.setattr(sys, "argv", [program, "--out", str(tmp_path), *map(str, arguments)])
    runpy.run_path(program, run_name="__main__")
    assert (tmp_path / f"{name}.png").stat().st_size > 10000
    if name in ("distil", "indexer"):
        assert float(re.search(r"distance of the curves: (\S+)", capsys.readouterr().out)[1]) < 1e-3


def test_ctrl_c_is_told_in_a_line(child):
    """Whatever the command was doing."""
    program = "import runpy, signal, sys, streamkl.doctor\n"
    program += "streamkl.doctor.run = lambda arguments: signal.raise_signal(signal.SIGINT)\n"
    program += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "sys.argv = ['streamkl', 'doctor']; runpy.run_module('streamkl', run_name='__main__')"
    done = child(program, check=False)
    assert done.returncode == 130 and done.stderr.endswith("streamkl: interrupted.\n"), done.stderr[-500:]
