# SPDX-License-Identifier: Apache-2.0
"""What streamkl.numpy takes for an array: lists, the array protocol, buffers, DLPack; and what it says of the rest."""

import array

import numpy as np
import pytest
import torch

import streamkl.numpy as sn

draw = np.random.default_rng(0)
X, Y = (draw.standard_normal((5, 3)).astype(np.float32) for _ in range(2))
W, U = (draw.standard_normal((11, 3)).astype(np.float32) for _ in range(2))
WEIGHT, LABELS = [1.0, 0.0, 2.0, 0.5, 1.0], [3, 1, -100, 0, 10]


class OnlyArray:
    def __init__(self, data):
        self.data = data

    def __array__(self, dtype=None, copy=None):
        return self.data


class OnlyDLPack:
    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **more):
        return self.data.__dlpack__(**more)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


def buffer(data):
    return memoryview(array.array("f", data.ravel().tolist())).cast("B").cast("f", data.shape)


WAYS = {
    "list": lambda x: x.tolist(),
    "rows": lambda x: tuple(x),
    "torch": torch.from_numpy,
    "array": OnlyArray,
    "dlpack": lambda x: OnlyDLPack(x.copy()),
    "buffer": buffer,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_same_bits(way):
    more = dict(weight=WEIGHT, labels=LABELS, label_weight=0.5, details=("kl", "ce", "rank_s"), grads=("x_s", "w_s"))
    want, want_grads = sn.linear_kl(X, W, Y, U, **more)
    (value, told), grads = sn.linear_kl(*map(way, (X, W, Y, U)), **more)
    assert value == want[0]
    for name, x in told.items():
        np.testing.assert_array_equal(x, want[1][name])
    for name, x in grads.items():
        assert x.shape == want_grads[name].shape
        np.testing.assert_array_equal(x, want_grads[name])


def test_attention_of_lists():
    q, k = X.reshape(1, 1, 5, 3), W.reshape(1, 1, 11, 3)
    want = sn.attention_kl(q, k, q[:, :, ::-1], k, begin=np.arange(5)[None], return_lse=True)
    got = sn.attention_kl(
        q.tolist(), k.tolist(), q[:, :, ::-1].tolist(), k.tolist(), begin=[list(range(5))], return_lse=True
    )
    assert got[0] == want[0]
    np.testing.assert_array_equal(got[1], want[1]), np.testing.assert_array_equal(got[2], want[2])


def test_lists_of_integers_are_numbers_too():
    assert sn.linear_kl([[1, 2, 3]] * 5, W, Y, U) == sn.linear_kl(np.array([[1, 2, 3]] * 5, np.float32), W, Y, U)


def test_half_precision_keeps_its_dtype():
    want = sn.linear_kl(X.astype(np.float16), W, Y, U)
    assert sn.linear_kl(torch.from_numpy(X).half(), W, Y, U) == want != sn.linear_kl(X, W, Y, U)


BAD = [
    (X.astype(np.float64), r"x_s.dtype = 'float64': products are made in float32, and nothing is rounded unasked"),
    (torch.from_numpy(X).double(), r"x_s.dtype = 'float64'"),
    (
        torch.from_numpy(X).requires_grad_(),
        r"x_s = 'Tensor': numpy cannot read it .*grad.*torch's tensors have their own",
    ),
    (torch.from_numpy(X).bfloat16(), r"x_s = 'Tensor': numpy cannot read it .*torch's tensors have their own"),
    ([[1.0, 2.0], [3.0]], r"x_s = 'list': numpy cannot read it"),
    ("abc", r"x_s = 'str': it must be an array"),
    (None, r"x_s = None: it must be an array"),
    (object(), r"x_s = 'object': it must be an array"),
    (np.ones((5, 3), np.int64), r"x_s.dtype = 'int64'"),
]


@pytest.mark.parametrize("given, sentence", BAD, ids=[case[1] for case in BAD])
def test_refused(given, sentence):
    with pytest.raises(TypeError, match=sentence):
        sn.linear_kl(given, W, Y, U)
