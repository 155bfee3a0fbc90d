# SPDX-License-Identifier: Apache-2.0
"""The wheel, the examples, and the documents."""

import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]


def test_wheel(tmp_path):
    """One wheel for every Python: a plain library in it, no libpython, no torch, no newer OpenMP than torch has."""
    pytest.importorskip("scikit_build_core")
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        f"-Cbuild-dir={tmp_path}/build",
        "-Ccmake.define.STREAMKL_CUDA=OFF",  # minutes of nvcc, and the same wheel otherwise
        "-w",
        tmp_path,
        ROOT,
    ]
    subprocess.run([sys.executable, *build], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        z.extractall(tmp_path)
    for name in ("__init__.py", "py.typed", "lib/libstreamkl.so", "include/streamkl/streamkl.h", "bench/cli.py"):
        assert f"streamkl/{name}" in names
    symbols = subprocess.run(
        ["objdump", "-p", tmp_path / "streamkl/lib/libstreamkl.so"], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"NEEDED\s+(\S+)", symbols)
    assert not [n for n in needed if "python" in n or "torch" in n]
    assert not re.search(r"(GOMP_5\.0\.|OMP_5\.0\.|OMP_5\.[1-9]|GOMP_5\.[1-9])", symbols)


@pytest.mark.parametrize(
    "name, arguments", [("distil", ["--teacher-steps", 1, "--steps", 2]), ("quantisation_drift", ["--steps", 1])]
)
def test_examples(tmp_path, name, arguments):
    pytest.importorskip("matplotlib")
    run = [sys.executable, ROOT / "examples" / f"{name}.py", "--out", tmp_path, *map(str, arguments)]
    out = subprocess.run(run, capture_output=True, text=True, timeout=170)
    assert out.returncode == 0, out.stderr[-2000:]
    assert (tmp_path / f"{name}.png").stat().st_size > 10000
    if name == "distil":
        assert float(re.search(r"distance of the curves: (\S+)", out.stdout)[1]) < 1e-3


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.S)


def test_documents():
    """The Python in docs/python.md runs, in order, in one namespace, where it is not about other packages."""
    import streamkl

    labels = torch.zeros(512, dtype=torch.long)
    space = {"torch": torch, "streamkl": streamkl, "labels": labels, "head": torch.nn.Linear(4, 4).bfloat16()}
    for code in blocks((ROOT / "docs/python.md").read_text()):
        if (
            "transformers" in code
            or "trl" in code
            or ("grad_dtype" in code and not hasattr(torch.Tensor, "grad_dtype"))
        ):
            continue
        if "xs, xt" in code:
            space.update(xs=space["x_s"], xt=space["x_t"], ws=space["w_s"], wt=space["w_t"])
        exec(code, space)


def test_hugging_face_recipe():
    """The recipe's queries and keys give the divergence of the attentions that the models report."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import streamkl

    code = next(b for b in blocks((ROOT / "docs/python.md").read_text()) if "transformers" in b)
    sizes = dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    ids, taken, maps = torch.randint(0, 64, (2, 11)), [], []
    for _ in range(2):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**sizes), attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            maps.append(model(input_ids=ids, output_attentions=True).attentions[0].double())
            space = {"model": model}
            exec(code, space)
            model(input_ids=ids)
        taken.append(space["seen"][0])
    (q_s, k_s, scale_s), (q_t, k_t, scale_t) = taken
    got = streamkl.attention_kl(q_s, k_s, q_t, k_t, scale_s=scale_s, scale_t=scale_t, causal=True)
    s, t = maps
    want = torch.where(t > 0, t * (t / s.clamp_min(1e-300)).log(), 0).sum(-1).mean()
    assert got.item() == pytest.approx(want.item(), rel=1e-4)
