# SPDX-License-Identifier: Apache-2.0
"""Options: the table and what is derived from it, what arrives in C, and what is refused in which words."""

import inspect
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

import streamkl
import streamkl.numpy
from streamkl import _c, _call, _options

INCLUDE = pathlib.Path(__file__).parents[2] / "include"
CALLS = {
    _c.ATTENTION: ("attention_kl", streamkl.AttentionKLLoss),
    _c.LINEAR: ("linear_kl", streamkl.LinearKLLoss),
    _c.LISTED: ("linear_topk_kl", streamkl.LinearTopKKLLoss),
    _c.CROSS_ENTROPY: ("linear_cross_entropy", streamkl.LinearCrossEntropyLoss),
}


def linear(face=streamkl, **options):
    x = [torch.ones(3, 8), torch.ones(5, 8), torch.ones(3, 6), torch.ones(5, 6)]
    return face.linear_kl(*[t.numpy() for t in x] if face is streamkl.numpy else x, **options)


def attention(face=streamkl, **options):
    x = [torch.ones(2, 4, 3, 8), torch.ones(2, 2, 5, 8), torch.ones(2, 4, 3, 6), torch.ones(2, 4, 5, 6)]
    return face.attention_kl(*[t.numpy() for t in x] if face is streamkl.numpy else x, **options)


def cross_entropy(face=streamkl, **options):
    x = [torch.ones(3, 8), torch.ones(5, 8), torch.tensor([0, 4, 2])]
    return face.linear_cross_entropy(*[t.numpy() for t in x] if face is streamkl.numpy else x, **options)


FACES = (streamkl, streamkl.numpy)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    "layout, struct",
    [
        (_c.PROBLEM, "skl_problem"),
        (_c.OUTPUTS, "skl_outputs"),
        (_c.LABELS, "skl_labels"),
        (_c.LISTED_TEACHER, "skl_listed"),
    ],
)
def test_structures_are_those_of_the_header(tmp_path, layout, struct):
    operand = "|".join(_c.OPERANDS)
    own = dict(
        labels_at="labels", labels="ids", label_weight="weight", ignore_index="ignore"
    )  # where Python has another
    own.update(label_smoothing="smoothing", shard_at="shard", listed_at="listed", listed_reserved="reserved")
    if struct == "skl_outputs":  # where operands name their gradients
        own.update(sink_s="grad_sink_s", sink_t="grad_sink_t")
    fields = {name: re.sub(rf"^(scale|softcap|{operand})$", r"\1", name) for name in layout.names}
    for name in fields:
        at_side = re.fullmatch(r"(a|b|bias|scale|softcap)_([st])", name)
        fields[name] = f"{at_side[2]}.{at_side[1]}" if at_side else own.get(name, name)
    lines = "".join(f'printf("{name} %zu\\n", offsetof(struct {struct}, {c}));' for name, c in fields.items())
    source = tmp_path / "offsets.c"
    source.write_text(
        "#include <stdio.h>\n#include <streamkl/streamkl.h>\nint main(void)\n{"
        f'printf("size %zu\\n", sizeof(struct {struct}));{lines}return 0;}}\n'
    )
    subprocess.run(["cc", f"-I{INCLUDE}", source, "-o", tmp_path / "offsets"], check=True)
    out = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout
    found = {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}
    assert found == {"size": layout.size, **{name: layout.offset(name) for name in layout.names}}


@pytest.mark.parametrize("use", CALLS)
def test_signatures_are_explicit(use):
    """help() shows every option and its default, on every face."""
    table = _options._TABLES[use]
    name, module = CALLS[use]
    for call in (getattr(streamkl, name), getattr(streamkl.numpy, name), module):
        shown = inspect.signature(call).parameters
        assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())
        assert {name: shown[name].default for name in table} == {name: o.default for name, o in table.items()}


def test_documented():
    """Every option has a row in one of the tables of docs/python.md."""
    text = (INCLUDE.parent / "docs/python.md").read_text()
    for table in _options._TABLES.values():
        for name in table:
            assert re.search(rf"^\| .*`{name}`.* \|", text, re.M), name


# An option that is not its default, and the field of struct skl_problem that holds it.
REACHED = [
    (linear, dict(divergence="reverse"), "divergence", 1),
    (linear, dict(divergence="jsd", beta=0.25), "beta", 0.25),
    (linear, dict(reduction="sum"), "reduction", _c.SUM),
    (linear, dict(reduction="none"), "reduction", _c.SUM),
    (linear, dict(temperature=2.0), "temperature", 2.0),
    (linear, dict(scale_s=3), "scale_s", 3.0),
    (linear, dict(scale_t=-0.5), "scale_t", -0.5),
    (linear, dict(softcap_s=7.0), "softcap_s", 7.0),
    (linear, dict(softcap_t=9.0), "softcap_t", 9.0),
    (linear, dict(columns=4), "columns", 4),
    (linear, dict(threads=3), "threads", 3),
    (linear, dict(isa="baseline"), "isa", 1),
    (linear, dict(workspace_limit=1 << 30), "workspace_limit", 1 << 30),
    (linear, dict(skip_below=2.0**-24), "skip_below", 2.0**-24),
    (linear, dict(any_order=True), "any_order", 1),
    (attention, dict(any_order=True), "any_order", 1),
    (linear, dict(round_dz=True), "round_dz", 1),
    (cross_entropy, dict(round_dz=True), "round_dz", 1),
    (linear, dict(split_f32=False), "split_f32", 1),
    (attention, dict(split_f32=True), "split_f32", 2),
    (attention, dict(causal=True), "causal", 1),
    (attention, dict(window=(2, -1)), "window_left", 2),
    (attention, dict(window=(2, 0)), "window_right", 0),
    (attention, dict(workspace_limit=1 << 30), "workspace_limit", 1 << 30),
]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("call, options, field, want", REACHED, ids=[r[2] for r in REACHED])
def test_every_option_arrives(monkeypatch, face, call, options, field, want):
    problems = []
    real = _call._problem
    monkeypatch.setattr(_call, "_problem", lambda *args, **more: problems.append(real(*args, **more)) or problems[-1])
    call(face, **options)
    seen = dict(zip(_c.PROBLEM.names, _c.PROBLEM._struct.unpack(problems[0])))
    call(face)
    default = dict(zip(_c.PROBLEM.names, _c.PROBLEM._struct.unpack(problems[1])))
    assert seen[field] == want != default[field]
    others = set(default) - {
        field,
        "divergence",
        "labels_at",
        "a_s",
        "b_s",
        "a_t",
        "b_t",
        *("window_left", "window_right"),
    }
    assert all(seen[name] == default[name] for name in others)


@pytest.mark.parametrize("reduction", ("mean", "none"))
def test_workspace_limit_changes_no_number(reduction):
    x = [torch.randn(300, 16), torch.randn(900, 16), torch.randn(300, 24), torch.randn(900, 24)]
    found = []
    for limit in (None, 1 << 20):
        leaves = [t.clone().requires_grad_() for t in x]
        loss = streamkl.linear_kl(*leaves, reduction=reduction, workspace_limit=limit).sum()
        found.append([loss, *torch.autograd.grad(loss, leaves)])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    with pytest.raises((ValueError, MemoryError), match="workspace_limit = 1"):
        streamkl.linear_kl(*[t.requires_grad_() for t in x], workspace_limit=1)


def test_skip_below_leaves_out_little():
    x = [torch.randn(64, 32) * 4, torch.randn(500, 32), torch.randn(64, 32) * 4, torch.randn(500, 32)]
    exact, near = (
        torch.autograd.grad(streamkl.linear_kl(t := x[0].clone().requires_grad_(), *x[1:], skip_below=skip), t)[0]
        for skip in (0.0, 1e-3)
    )
    assert not torch.equal(exact, near)
    assert (exact - near).abs().max() <= 1e-3 / 64 * x[1].abs().sum(0).max()


one = torch.tensor(2.0)
leaf = torch.nn.Parameter(torch.tensor(2.0))
REFUSED = [
    # call, options, exception, what the sentence must name
    (linear, dict(temperature=leaf), TypeError, "temperature = 'Parameter': options get no gradient"),
    (linear, dict(temperature=leaf * 1), TypeError, "temperature = 'Tensor': options get no gradient"),
    (linear, dict(scale_s=leaf), TypeError, "scale_s = 'Parameter': options get no gradient"),
    (linear, dict(scale_t=leaf), TypeError, "scale_t = 'Parameter': options get no gradient"),
    (linear, dict(softcap_s=leaf), TypeError, "softcap_s = 'Parameter': options get no gradient"),
    (linear, dict(softcap_t=leaf), TypeError, "softcap_t = 'Parameter': options get no gradient"),
    (linear, dict(skip_below=leaf), TypeError, "skip_below = 'Parameter': options get no gradient"),
    (linear, dict(divergence="jsd", beta=leaf / 4), TypeError, "beta = 'Tensor': options get no gradient"),
    (attention, dict(scale_s=leaf), TypeError, "scale_s = 'Parameter': options get no gradient"),
    (linear, dict(temperature="2"), TypeError, "temperature = '2': it must be a number"),
    (linear, dict(temperature=b"2"), TypeError, "temperature = b'2': it must be a number"),
    (linear, dict(temperature=True), TypeError, "temperature = True: it must be a number"),
    (linear, dict(temperature=None), TypeError, "temperature = None: it must be a number"),
    (linear, dict(temperature=2j), TypeError, "temperature = 2j: it must be a number"),
    (linear, dict(temperature=torch.ones(2)), TypeError, "temperature = tensor([1., 1.]): it must be a number"),
    (linear, dict(temperature=10**400), TypeError, "temperature = 1000"),
    (linear, dict(scale_s="1"), TypeError, "scale_s = '1': it must be a number"),
    (linear, dict(softcap_s=np.ones(1)), TypeError, "softcap_s = array([1.]): it must be a number"),
    (linear, dict(beta=0.9), ValueError, "beta = 0.9: only divergence='jsd' and 'alpha_beta' have beta"),
    (
        linear,
        dict(beta=0.5, divergence="reverse"),
        ValueError,
        "beta = 0.5: only divergence='jsd' and 'alpha_beta' have beta",
    ),
    (attention, dict(beta=0.5), ValueError, "beta = 0.5: only divergence='jsd' and 'alpha_beta' have beta"),
    (linear, dict(beta=-0.5, divergence="jsd"), ValueError, "beta = -0.5: it must be from 0"),
    (attention, dict(beta=1.1, divergence="jsd"), ValueError, "beta = 1.1: it must be from 0"),
    (linear, dict(skew=0.1), ValueError, "skew = 0.1: only divergence='skew_forward' and 'skew_reverse' have skew"),
    (linear, dict(skew=0.0, divergence="skew_forward"), ValueError, "skew = 0.0: it must be strictly between"),
    (attention, dict(alpha=0.5, divergence="jsd"), ValueError, "alpha = 0.5: only divergence='alpha_beta' has alpha"),
    (linear, dict(alpha=0.5, divergence="alpha_beta"), ValueError, "beta = None: divergence='alpha_beta' needs"),
    (linear, dict(beta=0.5, divergence="alpha_beta"), ValueError, "alpha = None: divergence='alpha_beta' needs"),
    (linear, dict(alpha=-1, beta=2, divergence="alpha_beta"), ValueError, "alpha = -1: it must be from 0 to 16"),
    (
        linear,
        dict(alpha=0, beta=0, divergence="alpha_beta"),
        ValueError,
        "beta = 0: alpha + beta must be at least 0.001",
    ),
    (linear, dict(columns=2**70), ValueError, "columns = 1180591620717411303424: it must be a number of columns"),
    (linear, dict(columns=3.0), TypeError, "columns = 3.0: it must be a number of columns (None: all)"),
    (linear, dict(columns="3"), TypeError, "columns = '3': it must be a number of columns"),
    (linear, dict(columns=True), TypeError, "columns = True: it must be a number of columns"),
    (linear, dict(columns=-1), ValueError, "columns = -1: it must be at least 1"),
    (attention, dict(window=(1.5, 3)), TypeError, "window = 1.5: it must be None or (left, right)"),
    (attention, dict(window=(2**63, 3)), ValueError, "window = 9223372036854775808: it must be None or (left, right)"),
    (attention, dict(window=(1, None)), TypeError, "window = None: it must be None or (left, right)"),
    (attention, dict(window="ab"), TypeError, "window = 'ab': it must be None or (left, right)"),
    (attention, dict(causal="no"), TypeError, "causal = 'no': it must be True or False"),
    (attention, dict(causal=None), TypeError, "causal = None: it must be True or False"),
    (linear, dict(any_order=2), TypeError, "any_order = 2: it must be True or False"),
    (linear, dict(round_dz=2), TypeError, "round_dz = 2: it must be True or False"),
    (linear, dict(split_f32="no"), TypeError, "split_f32 = 'no': it must be True, False or None"),
    (linear, dict(split_f32=1), TypeError, "split_f32 = 1: it must be True, False or None"),
    (linear, dict(threads=-1), ValueError, "threads = -1: it must be a number of threads"),
    (linear, dict(threads=1.0), TypeError, "threads = 1.0: it must be a number of threads"),
    (linear, dict(threads=2**31), ValueError, "threads = 2147483648: it must be a number of threads"),
    (linear, dict(isa="sse"), ValueError, "isa = 'sse': it must be one of 'baseline', 'avx2', 'avx512', 'neon'"),
    (linear, dict(workspace_limit=0), ValueError, "workspace_limit = 0: it must be at least 1"),
    (linear, dict(workspace_limit=1e9), TypeError, "workspace_limit = 1000000000.0: it must be a number of bytes"),
    (linear, dict(skip_below=-1e-9), ValueError, "skip_below = -1e-09: it must be at least 0"),
    (linear, dict(skip_below=float("nan")), ValueError, "skip_below = nan: it must be at least 0"),
    (linear, dict(divergence=1), ValueError, "divergence = 1: it must be one of 'forward', 'reverse', 'jsd'"),
    (linear, dict(reduction=["mean"]), ValueError, "reduction = ['mean']: it must be one of 'none', 'mean', 'sum'"),
]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("call, options, kind, sentence", REFUSED, ids=[r[3][:30] for r in REFUSED])
def test_refused(face, call, options, kind, sentence):
    with pytest.raises(kind, match="cannot use " + re.escape(sentence)):
        call(face, **options)


@pytest.mark.parametrize("face", FACES)
def test_numbers_of_any_kind(face):
    want = linear(face, temperature=2.0)
    for value in (2, one, one.double(), np.float32(2), np.float64(2), np.array(2.0), np.int64(2), leaf.detach()):
        assert linear(face, temperature=value) == want
    for value in (4, np.int32(4), torch.tensor(4)):
        assert linear(face, columns=value) == linear(face, columns=4)
    assert attention(face, causal=np.True_) == attention(face, causal=1) == attention(face, causal=True)
    assert attention(face, window=[np.int64(1), torch.tensor(-1)]) == attention(face, window=(1, -1))
    assert linear(face, divergence="jsd") == linear(face, divergence="jsd", beta=0.5)
    assert linear(face, beta=None) == linear(face)


UNKNOWN = [
    (linear, "mask", "weight= takes a bool mask"),
    (linear, "attention_mask", "weight= takes a bool mask"),
    (linear, "cu_seqlens", "packed tokens need no boundaries"),
    (linear, "causal", "attention_kl has one"),
    (linear, "begin", "attention_kl has one"),
    (linear, "target", "labels= takes the ids of the tokens"),
    (attention, "labels", "weight= takes a bool mask over the queries"),
    (attention, "ignore_index", "weight= takes a bool mask over the queries"),
    (attention, "mask", "weight= masks queries ([B, N] or [B, H, N]), begin= and end="),
    (attention, "attention_mask", "weight= masks queries ([B, N] or [B, H, N]), begin= and end="),
    (attention, "attn_mask", "weight= masks queries ([B, N] or [B, H, N]), begin= and end="),
    (attention, "cu_seqlens", "packed sequences are cu_seqlens_q= and cu_seqlens_k="),
    (attention, "temperature", "divide scale_s= and scale_t= by it"),
    (attention, "is_causal", "causal=True"),
    (attention, "bias_s", "linear_kl has one"),
    (attention, "sliding_window", "a window of w keys is window=(w - 1, -1), with causal=True"),
    (attention, "dropout_p", "the distributions before dropout are compared"),
    (attention, "alibi_slopes", "logits are products of queries and keys"),
    (attention, "head_mask", "a weight= of [1, H, 1] leaves heads out"),
    (attention, "enable_gqa", "grouped heads need no word"),
    (linear, "temprature", "did you mean temperature=?"),
    (linear, "scale", "each side has its own, scale_s= and scale_t="),
    (linear, "frobnicate", ""),
]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("call, name, hint", UNKNOWN, ids=[f"{u[0].__name__}-{u[1]}" for u in UNKNOWN])
def test_unknown_arguments(face, call, name, hint):
    sentence = f"cannot use {name}=: {call.__name__}_kl has no such argument" + (f": {hint}" if hint else "")
    with pytest.raises(TypeError, match=re.escape(sentence)):
        call(face, **{name: torch.ones(3)})
    module = streamkl.LinearKLLoss if call is linear else streamkl.AttentionKLLoss
    with pytest.raises(TypeError, match=re.escape(sentence)):
        module(**{name: 1})
    with pytest.raises(TypeError, match=re.escape(sentence)):
        module()(*[torch.ones(1, 1, 2, 2) if call is attention else torch.ones(2, 2)] * 4, **{name: 1})


def cross_entropy(face=streamkl, **options):
    x = [torch.ones(3, 8), torch.ones(5, 8), torch.zeros(3, dtype=torch.long)]
    return face.linear_cross_entropy(*[t.numpy() for t in x] if face is streamkl.numpy else x, **options)


def indexer(face=streamkl, **options):
    x = [torch.ones(1, 2, 3, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 2), *[torch.ones(1, 4, 3, 8)] * 2]
    return face.indexer_kl(*[t.numpy() for t in x] if face is streamkl.numpy else x, **options)


UNKNOWN_HERE = [
    (cross_entropy, "mask", "linear_cross_entropy has no such argument: weight= takes a bool mask over the tokens"),
    (cross_entropy, "attention_mask", "linear_cross_entropy has no such argument: weight= takes a bool mask"),
    (cross_entropy, "cu_seqlens", "linear_cross_entropy has no such argument: packed tokens need no boundaries"),
    (cross_entropy, "temperature", "linear_cross_entropy has no such argument: linear_kl has one"),
    (cross_entropy, "label_smoothin", "linear_cross_entropy has no such argument: did you mean label_smoothing=?"),
    (indexer, "labels", "indexer_kl has no such argument: weight= takes a bool mask over the queries"),
    (indexer, "mask", "indexer_kl has no such argument: weight= masks queries"),
    (indexer, "attention_mask", "indexer_kl has no such argument: weight= masks queries"),
    (indexer, "cu_seqlens", "indexer_kl has no such argument: packed sequences are cu_seqlens_q= and cu_seqlens_k="),
]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("call, name, hint", UNKNOWN_HERE, ids=[f"{u[0].__name__}-{u[1]}" for u in UNKNOWN_HERE])
def test_unknown_arguments_of_the_others(face, call, name, hint):
    assert np.isfinite(float(call(face)))
    with pytest.raises(TypeError, match=re.escape(f"cannot use {name}=: {hint}")):
        call(face, **{name: torch.ones(3)})


def test_cross_entropy_as_a_module():
    x, module = [torch.ones(3, 8), torch.ones(5, 8), torch.zeros(3, dtype=torch.long)], streamkl.LinearCrossEntropyLoss
    with pytest.raises(TypeError, match=r"cannot use z_loss= in a call: .* LinearCrossEntropyLoss\(z_loss=..\)"):
        module()(*x, z_loss=0.1)
    with pytest.raises(TypeError, match="cannot use weight= here: it is an argument of linear_cross_entropy and of"):
        module(weight=1)
    with pytest.raises(ValueError, match="scale = 0: it must be finite and not 0"):
        module(scale=0)


def test_constructor_and_call_have_their_own():
    x = [torch.ones(2, 2)] * 4
    with pytest.raises(
        TypeError, match=r"cannot use temperature= in a call: options go .* LinearKLLoss\(temperature=..\)"
    ):
        streamkl.LinearKLLoss()(*x, temperature=2.0)
    with pytest.raises(TypeError, match=r"cannot use causal= in a call: options go .* AttentionKLLoss\(causal=..\)"):
        streamkl.AttentionKLLoss()(*x, causal=True)
    for name in ("weight", "bias_s", "return_lse", "labels", "details"):
        with pytest.raises(TypeError, match=f"cannot use {name}= here: it is an argument of linear_kl and of a module"):
            streamkl.LinearKLLoss(**{name: 1})
    with pytest.raises(TypeError, match="cannot use return_lse= here"):
        streamkl.linear_partial(*x, return_lse=True)


def test_a_dual_temperature_is_refused():
    """torch.func.jvp over the temperature: a tangent of 0 would be wrong."""
    with pytest.raises(TypeError, match="temperature = 'Tensor': options get no gradient"):
        torch.func.jvp(lambda t: linear(temperature=t), (one,), (one,))


def test_compiled_options():
    """Sizes that a compiled graph does not know are options too: one graph for all of them."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def f(q, k, columns):
        return streamkl.attention_kl(q, k, q * 2, k, columns=columns, window=(columns - 1, -1), workspace_limit=1 << 28)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    for n in (9, 14, 23):
        q, k = torch.randn(1, 2, n, 8), torch.randn(1, 2, n + 3, 8)
        assert torch.equal(compiled(q, k, n), f(q, k, n))
    assert len(graphs) == 1
