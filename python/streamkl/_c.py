# SPDX-License-Identifier: Apache-2.0
"""The C library: its structures, piece by piece as in streamkl.h, and its calls.

A structure is the concatenation of packed pieces; all pieces are multiples of eight bytes, so there is no padding
between them. Packing costs a quarter of what ctypes.Structure does, and a call has some twenty tensors.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from importlib.resources import files
from struct import Struct

F32, BF16, F16, I32 = range(4)
ATTENTION, LINEAR = range(2)
MEAN, SUM = range(2)
CPU, CUDA = range(2)
VALUE, VALUE_AND_GRAD, BACKWARD = range(3)  # enum skl_call
OK, BAD_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, CANCELLED, NO_DEVICE, DEVICE_FAILED, NO_LIBRARY = range(8)
DIVERGENCES = {"forward": 0, "reverse": 1, "jsd": 2}

# struct skl_tensor: data, dtype, device, ndim, device_index, shape[4], stride[4]
TENSOR = Struct("@P4i8q")
NOTHING = bytes(TENSOR.size)

# struct skl_side: a, b, bias, and
SCALES = Struct("@2d")  # scale, softcap

# struct skl_problem:
HEAD = Struct("@N4i")  # struct_size, use, divergence, reduction, causal
#                        s, t: sides
NUMBERS = Struct("@2d3q")  # beta, temperature, window_left, window_right, columns
#                        begin, end, weight: tensors
TAIL = Struct("@2iNPPd")  # threads, isa, workspace_limit, progress, progress_data, skip_below
GPU = Struct("@PPN2i")  # stream, workspace, workspace_bytes, any_order, reserved
NO_GPU = bytes(GPU.size)
SIDE_SIZE = 3 * TENSOR.size + SCALES.size
PROBLEM_SIZE = HEAD.size + 2 * SIDE_SIZE + NUMBERS.size + 3 * TENSOR.size + TAIL.size + GPU.size

# struct skl_outputs:
OUT_HEAD = Struct("@NP")  # struct_size, value
#                        loss, lse_s, lse_t, kl_s, kl_t, then the gradients s.a, s.b, s.bias, t.a, t.b, t.bias: tensors
OUT_TENSORS = 11
OUT_SIZE = OUT_HEAD.size + OUT_TENSORS * TENSOR.size

# The second argument, the fraction done, is left to the C caller: every calling convention in use lets a callee take
# fewer arguments than it is given, and one argument is what a generator's send() takes (see _call.py).
Progress = ctypes.CFUNCTYPE(c_int, c_void_p)


def _load() -> ctypes.CDLL:
    # In an editable install the library is not beside this file: importlib knows where it is.
    name = {"darwin": "libstreamkl.dylib", "win32": "streamkl.dll"}.get(sys.platform, "libstreamkl.so")
    path = files(__package__) / "lib" / name
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"cannot load {path}: {error}. Install the package with pip, which builds the library"
        ) from error
    for call in (lib.skl_value, lib.skl_value_and_grad):
        call.argtypes = [c_char_p, c_char_p]
    lib.skl_backward.argtypes = [c_char_p, c_char_p, c_char_p]
    lib.skl_workspace_size.argtypes = [c_int, c_char_p, c_char_p, POINTER(c_size_t)]
    for text in (lib.skl_last_error, lib.skl_version):
        text.restype = c_char_p
    return lib


lib = _load()


def version() -> str:
    return lib.skl_version().decode()
