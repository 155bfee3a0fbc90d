# SPDX-License-Identifier: Apache-2.0
"""Bad input: the argument, its value and the rule, before any work. And sizes of 0."""

import re

import pytest
import torch

import reference
import streamkl
import streamkl.numpy
from streamkl import nitrobrew


def linear(**change):
    x = dict(x_s=torch.ones(3, 8), w_s=torch.ones(5, 8), x_t=torch.ones(3, 6), w_t=torch.ones(5, 6))
    return streamkl.linear_kl(**{**x, **change})


def attention(**change):
    x = dict(
        q_s=torch.ones(2, 4, 3, 8), k_s=torch.ones(2, 2, 5, 8), q_t=torch.ones(2, 4, 3, 6), k_t=torch.ones(2, 4, 5, 6)
    )
    return streamkl.attention_kl(**{**x, **change})


ones = torch.ones

BAD = [
    # call, arguments, exception, what the sentence must name
    (linear, dict(x_s=[[1.0]]), TypeError, "x_s = 'list': it must be a torch.Tensor"),
    (
        linear,
        dict(x_s=ones(3, 8).double()),
        TypeError,
        "x_s.dtype = torch.float64: it must be float32, bfloat16 or float16",
    ),
    (linear, dict(w_t=ones(5, 6).int()), TypeError, "w_t.dtype = torch.int32"),
    (linear, dict(x_s=torch.tensor(1.0)), ValueError, "x_s.shape = (): it must have a last dimension"),
    (linear, dict(x_s=ones(3, 8).to_sparse()), TypeError, "x_s.layout = torch.sparse_coo"),
    (linear, dict(w_s=ones(5, 7)), ValueError, "w_s.shape[1] = 7: it must be 8"),
    (linear, dict(w_s=ones(8)), ValueError, "w_s.ndim = 1: it must be 2"),
    (linear, dict(w_s=ones(9, 8)), ValueError, "columns = None with w_s of 9 and w_t of 5 rows"),
    (linear, dict(x_t=ones(4, 6)), ValueError, "x_t.shape[0] = 4: it must be 3"),
    (linear, dict(x_s=ones(2, 1, 1, 3, 8), x_t=ones(2, 1, 3, 1, 6)), ValueError, "x_t.shape = (2, 1, 3, 1, 6)"),
    (
        linear,
        dict(x_s=ones(3, 0), w_s=ones(5, 0)),
        ValueError,
        "x_s.shape[1] = 0: vectors must have",
    ),
    (linear, dict(bias_s=ones(4)), ValueError, "bias_s.shape[0] = 4: it must be 5"),
    (linear, dict(temperature=0.0), ValueError, "temperature = 0.0: it must be positive and finite"),
    (linear, dict(temperature="hot"), TypeError, "temperature = 'hot': it must be a number"),
    (linear, dict(divergence="kl"), ValueError, "divergence = 'kl': it must be one of 'forward', 'reverse', 'jsd'"),
    (
        linear,
        dict(reduction="batchmean"),
        ValueError,
        "reduction = 'batchmean': it must be 'none', 'mean' (over the rows)",
    ),
    (linear, dict(reduction="avg"), ValueError, "reduction = 'avg': it must be one of 'none', 'mean', 'sum'"),
    (linear, dict(divergence="jsd", beta=1.5), ValueError, "beta = 1.5: it must be from 0"),
    (linear, dict(columns=6), ValueError, "columns = 6: w_s has 5 rows"),
    (linear, dict(columns=0), ValueError, "columns = 0: it must be at least 1"),
    (linear, dict(scale_s=0.0), ValueError, "scale_s = 0.0"),
    (linear, dict(softcap_t=-1.0), ValueError, "softcap_t = -1.0: it must be positive"),
    (linear, dict(weight=ones(4)), ValueError, "weight.shape = (4,): it must broadcast to the rows, (3,)"),
    (linear, dict(weight=[1.0, 1.0, 1.0]), TypeError, "weight = 'list'"),
    (linear, dict(weight=ones(3).requires_grad_()), ValueError, "weight.requires_grad = True"),
    (attention, dict(q_s=ones(4, 3, 8)), ValueError, "q_s.ndim = 3: it must be 4"),
    (attention, dict(k_s=ones(2, 3, 5, 8)), ValueError, "k_s.shape[1] = 3 heads: it must divide the 4 heads of q_s"),
    (attention, dict(k_s=ones(1, 2, 5, 8)), ValueError, "k_s.shape[0] = 1: it must be 2"),
    (attention, dict(k_t=ones(2, 4, 6, 6)), ValueError, "columns = None with k_s of 5 and k_t of 6 rows"),
    (attention, dict(window=3), TypeError, "window = 3: it must be None or (left, right)"),
    (attention, dict(window=(-2, 0)), ValueError, "window = (-2, 0)"),
    (attention, dict(begin=ones(3)), TypeError, "begin.dtype = torch.float32: it must hold integers"),
    (attention, dict(end=ones(4, 3).int()), ValueError, "end.shape = (4, 3): it must broadcast to the rows, (2, 4, 3)"),
    (
        attention,
        dict(weight=ones(4, 3)),
        ValueError,
        "weight.shape = (4, 3): it must broadcast to the rows, (2, 4, 3) (two",
    ),
]


@pytest.mark.parametrize("numpy", (False, True))
@pytest.mark.parametrize("rows", [(3,), (2, 3), (2, 3, 1), (2, 1, 3, 1)])
@pytest.mark.parametrize("widths", [(8, 6), (8, 8)])
def test_order_of_arguments(numpy, rows, widths):
    """(x_s, x_t, w_s, w_t), as other libraries have it: the sentence says what the order is."""
    x_s, x_t, w_s, w_t = ones(*rows, widths[0]), ones(*rows, widths[1]), ones(5, widths[0]), ones(5, widths[1])
    face, x = (streamkl.numpy, [t.numpy() for t in (x_s, x_t, w_s, w_t)]) if numpy else (streamkl, (x_s, x_t, w_s, w_t))
    with pytest.raises(ValueError, match=r"cannot use .* \(the order of the arguments is x_s, w_s, x_t, w_t\)$"):
        face.linear_kl(*x)
    with pytest.raises(ValueError) as plain:
        linear(w_s=ones(5, 7))
    assert "order" not in str(plain.value)


def test_order_of_attention():
    q, k = ones(2, 4, 3, 8), ones(2, 2, 5, 6)
    with pytest.raises(ValueError, match=r"\(the order of the arguments is q_s, k_s, q_t, k_t\)$"):
        streamkl.attention_kl(q, ones(2, 4, 3, 6), ones(2, 2, 5, 8), k)


@pytest.mark.parametrize(
    "order", [(0, 1, 3, 2), (1, 0, 2, 3), (0, 3, 2, 1), (2, 1, 0, 3), (1, 3, 0, 2), (1, 0, 3, 2), (0, 2, 3, 1)]
)
def test_any_other_order(order):
    """Whatever was exchanged: hidden states of a batch cannot be taken for an unembedding."""
    x = (ones(2, 3, 8), ones(5, 8), ones(2, 3, 6), ones(5, 6))
    for face, given in ((streamkl, x), (streamkl.numpy, [t.numpy() for t in x])):
        with pytest.raises(ValueError, match=r"\(the order of the arguments is x_s, w_s, x_t, w_t\)$"):
            face.linear_kl(*[given[i] for i in order])


def test_no_order_would_do():
    """Shapes that no order makes right, or whose one mistake is plain, get no word about an order."""
    for change in (dict(w_s=ones(5, 7)), dict(x_t=ones(5, 6)), dict(w_t=ones(4, 6)), dict(x_t=ones(4, 6))):
        with pytest.raises(ValueError) as plain:
            linear(**change)
        assert "order" not in str(plain.value), change


def test_order_of_a_cross_entropy():
    """(w, x, labels) is Liger's order."""
    x, w, labels = ones(3, 8), ones(5, 8), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"labels.shape = \(3,\): .* \(the order of the arguments is x, w, labels\)$"):
        streamkl.linear_cross_entropy(w, x, labels)
    with pytest.raises(TypeError, match="labels = None: a cross-entropy needs them"):
        streamkl.linear_cross_entropy(x, w, None)
    for weight in (None, ones(3)):
        with pytest.raises(TypeError, match=r"w_s = 'Linear': it must be a torch.Tensor, so pass its \.weight"):
            streamkl.linear_cross_entropy(x, torch.nn.Linear(8, 5), labels, weight=weight)


def test_a_transposed_unembedding():
    """[D, V], as GPT-2's layers have it."""
    for change, name in ((dict(w_s=ones(8, 5)), "w_s"), (dict(w_t=ones(6, 5)), "w_t")):
        with pytest.raises(
            ValueError, match=rf"{name}\.shape\[1\] = 5: .* \({name} is \[V, D\], .*: pass {name}\.T\)$"
        ):
            linear(**change)


def holder(**fields):
    return type("Output", (), fields)()


INSTEAD = [
    # what is given, and what stands before and after ": it must be a torch.Tensor"
    (dict(w_s=torch.nn.Linear(8, 5)), "w_s = 'Linear'", ", so pass its .weight, and its .bias as bias_s="),
    (dict(w_t=torch.nn.Linear(6, 5, bias=False)), "w_t = 'Linear'", ", so pass its .weight"),
    (dict(w_s=torch.nn.Embedding(5, 8)), "w_s = 'Embedding'", ", so pass its .weight"),
    (dict(w_s=torch.nn.Sequential()), "w_s = 'Sequential'", ""),
    (dict(bias_t=torch.nn.Linear(6, 5)), "bias_t = 'Linear'", ", so pass its .bias"),
    (dict(x_s=torch.nn.Linear(8, 5)), "x_s = 'Linear'", ", what a module makes and not the module"),
    (dict(x_s=holder(last_hidden_state=ones(3, 8))), "x_s = 'Output'", ", so pass its .last_hidden_state"),
    (dict(x_s=(ones(3, 8),)), "x_s = 'tuple'", ", so pass the one that is meant of these 1"),
    (dict(x_s=ones(3, 8).numpy()), "x_s = 'ndarray'", ": torch.from_numpy(it), or use streamkl.numpy"),
    (dict(x_s=None), "x_s = 'NoneType'", ""),
]  # fmt: skip


@pytest.mark.parametrize("change, name, hint", INSTEAD, ids=[i[1] for i in INSTEAD])
def test_what_holds_a_tensor_is_none(change, name, hint):
    with pytest.raises(TypeError, match=f"cannot use {re.escape(name)}: it must be a torch.Tensor{re.escape(hint)}$"):
        linear(**change)


def test_a_layer_with_an_adapter():
    """Its .weight is the frozen layer's: to name it would be wrong advice."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(8, 5)), peft.LoraConfig(target_modules=["0"]))
    with pytest.raises(TypeError, match="its .weight alone would leave its adapter out, so merge that first$"):
        linear(w_s=model.base_model.model[0])


def test_a_mask_of_queries_by_keys():
    for mask in (ones(2, 4, 3, 5), ones(2, 1, 3, 5).bool()):
        with pytest.raises(
            ValueError, match=r"weight.shape = .* \(a mask of queries by keys is not taken: causal=, window="
        ):
            attention(weight=mask)


def test_distributed_tensors(tmp_path):
    """The losses take a vocabulary that is split; what takes no part in that is refused."""
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        spread = distribute_tensor(ones(5, 8), mesh, [Shard(0)])
        assert linear(w_s=spread) == linear(w_s=spread.to_local()) == linear()
        with pytest.raises(TypeError, match="w_s = 'Tensor': beside weight, a DTensor, it must be one too"):
            linear(weight=distribute_tensor(ones(3), mesh, [Shard(0)]))
        with pytest.raises(TypeError, match="w_s = 'DTensor': it is spread over processes: pass a plain tensor"):
            streamkl.linear_partial(ones(3, 8), spread, ones(3, 8), ones(5, 8))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("call, change, kind, sentence", BAD, ids=[b[3][:40] for b in BAD])
def test_sentence(call, change, kind, sentence):
    for reduction in ("none", "mean"):
        with pytest.raises(kind, match="cannot use " + re.escape(sentence)):
            call(**{"reduction": reduction, **change})


def test_gradients_change_nothing_about_it():
    with pytest.raises(ValueError, match=r"w_s.shape\[1\] = 7"):
        linear(x_s=ones(3, 8).requires_grad_(), w_s=ones(5, 7).requires_grad_())


def test_modules_complain_when_made():
    with pytest.raises(ValueError, match="divergence = 'both'"):
        streamkl.AttentionKLLoss(divergence="both")
    with pytest.raises(ValueError, match="temperature = -1"):
        streamkl.LinearKLLoss(temperature=-1)


def test_nitrobrew():
    with pytest.raises(ValueError, match="chunk_V = 0"):
        nitrobrew.forward_kl(ones(1, 3, 8), ones(1, 3, 6), ones(5, 8), ones(5, 6), chunk_V=0)


@pytest.mark.parametrize("divergence", reference.DIVERGENCES)
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_no_rows(divergence, reduction):
    """As torch's losses: an empty or zero loss with a graph, gradients of zeros. A mean of nothing is 0, not NaN."""
    w_s = torch.randn(5, 8, requires_grad=True)
    x_s = torch.randn(2, 0, 8, requires_grad=True)
    loss = streamkl.linear_kl(
        x_s, w_s, torch.randn(2, 0, 6), torch.randn(5, 6), divergence=divergence, reduction=reduction
    )
    assert loss.shape == ((2, 0) if reduction == "none" else ()) and loss.sum().item() == 0
    loss.sum().backward()
    assert x_s.grad.shape == (2, 0, 8) and w_s.grad.shape == (5, 8) and not w_s.grad.any()


@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_no_columns(reduction):
    w_s, x_s = torch.randn(0, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    loss, lse_s, _ = streamkl.linear_kl(
        x_s, w_s, torch.randn(3, 6), torch.randn(0, 6), reduction=reduction, return_lse=True
    )
    assert loss.sum().item() == 0 and (lse_s == -torch.inf).all()
    loss.sum().backward()
    assert w_s.grad.shape == (0, 8) and not x_s.grad.any()


@pytest.mark.parametrize("shape", [(0, 4, 3, 8), (2, 0, 3, 8), (2, 4, 0, 8)])
@pytest.mark.parametrize("reduction", reference.REDUCTIONS)
def test_empty_attention(shape, reduction):
    q, k = torch.randn(shape, requires_grad=True), torch.randn(*shape[:2], 5, 8, requires_grad=True)
    loss = streamkl.attention_kl(q, k, q.detach() * 2, k.detach(), causal=True, reduction=reduction)
    loss.sum().backward()
    assert loss.sum().item() == 0 and k.grad.shape == k.shape and not k.grad.any()


def test_all_ignored_keeps_the_graph():
    x_s, w_s = torch.randn(3, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    loss = linear(x_s=x_s, w_s=w_s, weight=torch.zeros(3))
    loss.backward()
    assert loss.item() == 0 and not x_s.grad.any() and not w_s.grad.any()


def test_nan_stays_in_its_row():
    x_s = torch.randn(3, 8)
    x_s[1, 2] = torch.nan
    rows = linear(x_s=x_s, w_s=torch.randn(5, 8), reduction="none")
    assert rows.isnan().tolist() == [False, True, False]
