# SPDX-License-Identifier: Apache-2.0
"""The C library: its structures, field by field as in streamkl.h, and its calls."""
from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from importlib.resources import files

F32, BF16, F16, I32 = range(4)
ATTENTION, LINEAR = range(2)
MEAN, SUM = range(2)
OK, BAD_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, CANCELLED = range(5)
DIVERGENCES = {"forward": 0, "reverse": 1, "jsd": 2}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("device", c_int32),
        ("ndim", c_int32),
        ("reserved", c_int32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class Side(ctypes.Structure):
    _fields_ = [("a", Tensor), ("b", Tensor), ("bias", Tensor), ("scale", c_double), ("softcap", c_double)]


# The second argument, the fraction done, is left to the C caller: every calling convention in use lets a callee take
# fewer arguments than it is given, and one argument is what a generator's send() takes (see _call.py).
Progress = ctypes.CFUNCTYPE(c_int, c_void_p)


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("use", c_int32),
        ("divergence", c_int32),
        ("reduction", c_int32),
        ("causal", c_int32),
        ("s", Side),
        ("t", Side),
        ("beta", c_double),
        ("temperature", c_double),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("columns", c_int64),
        ("begin", Tensor),
        ("end", Tensor),
        ("weight", Tensor),
        ("threads", c_int32),
        ("isa", c_int32),
        ("workspace_limit", c_size_t),
        ("progress", Progress),
        ("progress_data", c_void_p),
    ]


class Grads(ctypes.Structure):
    _fields_ = [("a", Tensor), ("b", Tensor), ("bias", Tensor)]


class Outputs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("value", POINTER(c_double)),
        ("loss", Tensor),
        ("lse_s", Tensor),
        ("lse_t", Tensor),
        ("kl_s", Tensor),
        ("kl_t", Tensor),
        ("s", Grads),
        ("t", Grads),
    ]


def _load() -> ctypes.CDLL:
    # In an editable install the library is not beside this file: importlib knows where it is.
    name = {"darwin": "libstreamkl.dylib", "win32": "streamkl.dll"}.get(sys.platform, "libstreamkl.so")
    path = files(__package__).joinpath("lib", name)
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"cannot load {path}: {error}. Install the package with pip, which builds the library") from error
    for call in (lib.skl_value, lib.skl_value_and_grad):
        call.argtypes = [POINTER(Problem), POINTER(Outputs)]
    lib.skl_backward.argtypes = [POINTER(Problem), POINTER(Outputs), POINTER(Outputs)]
    for text in (lib.skl_last_error, lib.skl_version):
        text.restype = c_char_p
    return lib


lib = _load()


def version() -> str:
    return lib.skl_version().decode()
