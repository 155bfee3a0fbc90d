# SPDX-License-Identifier: Apache-2.0
"""The C library: its structures, field by field as in streamkl.h, and its calls.

Structures are packed by struct.Struct, which takes a quarter of the time of ctypes.Structure.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from importlib.resources import files
from struct import Struct
from typing import Any, Tuple

F32, BF16, F16, I32, I64 = range(5)
ATTENTION, LINEAR, INDEXER = range(3)
LISTED, CROSS_ENTROPY = -1, -2  # of this package: LINEAR for C, with a listed teacher, and with labels alone
POOLS = ("max", "sum")  # enum skl_pool
SPLITS = {None: 0, False: 1, True: 2}  # enum skl_split
MEAN, SUM = range(2)
CPU, CUDA = range(2)
VALUE, VALUE_AND_GRAD, BACKWARD, PARTIAL, TOPK = range(5)  # enum skl_call
OK, BAD_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, CANCELLED, NO_DEVICE, DEVICE_FAILED, NO_LIBRARY = range(8)
DIVERGENCES = {
    name: i for i, name in enumerate(("forward", "reverse", "jsd", "skew_forward", "skew_reverse", "tv", "alpha_beta"))
}
ONE_SWEEP = (DIVERGENCES["forward"], DIVERGENCES["reverse"])  # the others sweep over the columns twice
ISAS = {"baseline": 1, "avx2": 2, "avx512": 3, "neon": 4, "amx": 5, "avx512bf16": 6, "neonbf16": 7}

# struct skl_tensor: data, dtype, device, ndim, device_index, shape[4], stride[4]
TENSOR = Struct("@P4i8q")
NOTHING = bytes(TENSOR.size)


class Layout:
    """A C structure: the names of its fields in their order, and how to pack their values.

    Written as "name:code", with the codes of struct.Struct and T for a tensor, which is packed before."""

    def __init__(self, fields: str) -> None:
        pairs = [field.split(":") for field in fields.split()]
        self.names = [name for name, _ in pairs]
        # A tensor has a multiple of eight bytes, so that no padding is needed before or after it.
        self._codes = [f"{TENSOR.size}s" if code == "T" else code for _, code in pairs]
        self._struct = Struct("@" + "".join(self._codes))
        self.size, self.pack = self._struct.size, self._struct.pack

    def offset(self, name: str) -> int:
        at = self.names.index(name)
        return Struct("@" + "".join(self._codes[: at + 1])).size - Struct("@" + self._codes[at]).size


# struct skl_problem. A field that is an option of the Python calls has the option's name (see _options.py).
PROBLEM = Layout(
    "struct_size:N use:i divergence:i reduction:i causal:i "
    "a_s:T b_s:T bias_s:T scale_s:d softcap_s:d "
    "a_t:T b_t:T bias_t:T scale_t:d softcap_t:d "
    "beta:d temperature:d window_left:q window_right:q columns:q "
    "begin:T end:T weight:T "
    "threads:i isa:i workspace_limit:N progress:P progress_data:P skip_below:d "
    "stream:P workspace:P workspace_bytes:N any_order:i reserved:i "
    "skew:d alpha:d labels_at:P num_items:d mass_ids:T "
    "mix_t:q head_map:T lse_t:T raw_t:i identity:i shard_at:P round_dz:q listed_at:P "
    "pool_block:q pool:i reserved_pool:i cu_seqlens_q:T cu_seqlens_k:T support:T support_block:q sink_s:T sink_t:T "
    "split_f32:q"
)

# struct skl_labels, to which labels_at points. As in PROBLEM, a number has the name of its option.
LABELS = Layout(
    "struct_size:N labels:T label_weight:d kl_weight:d lse_weight:d ignore_index:q label_smoothing:d z_loss:d"
)

# struct skl_shard, to which shard_at points.
SHARD = Layout("struct_size:N exchange:P data:P rows:q first:q columns:q")

# struct skl_listed, to which listed_at points, as LABELS.
LISTED_TEACHER = Layout("struct_size:N ids:T logprobs:T tail_logprob:T tail:i listed_reserved:i stored_temperature:d")
TAILS = {name: i for i, name in enumerate(("bucket", "renormalise", "zero", "teacher"))}

# struct skl_outputs. The gradients have the names of their operands.
OUTPUTS = Layout(
    "struct_size:N value:P loss:T lse_s:T lse_t:T kl_s:T kl_t:T "
    "a_s:T b_s:T bias_s:T a_t:T b_t:T bias_t:T "
    "m_s:T m_t:T l_s:T l_t:T "
    "kl:T ce:T entropy_s:T entropy_t:T logprob_s:T logprob_t:T top1_s:T top1_t:T reverse:T jsd:T tv:T l1_s:T "
    "mass_s:T mass_t:T rank_s:T rank_t:T m_rest:T l_rest:T "
    "sink_mass_s:T sink_mass_t:T sink_s:T sink_t:T topk_ids:T topk_logprobs:T tail_logprob:T"
)

# The tensors of both, in the order in which they go through this package.
OPERANDS = ("a_s", "b_s", "bias_s", "a_t", "b_t", "bias_t", "sink_s", "sink_t")
INPUTS = (
    *OPERANDS,
    *("weight", "begin", "end", "labels", "mass_ids", "lse_t", "head_map"),
    *("ids", "logprobs", "tail_logprob"),
    *("cu_seqlens_q", "cu_seqlens_k", "support"),
)
TEACHER_AT, LABELS_AT, IDS_AT = (INPUTS.index(name) for name in ("a_t", "labels", "ids"))
ROWS = tuple(name for name in OUTPUTS.names if name not in ("struct_size", "value", *OPERANDS))
INTEGER_ROWS = ("top1_s", "top1_t", "rank_s", "rank_t")


def named_inputs(**given: Any) -> Tuple[Any, ...]:
    """The inputs of a call in the order of INPUTS; None: not given."""
    return tuple(map(given.get, INPUTS))


# struct skl_state: that many doubles a row
STATE = 6

# The second argument, the fraction done, is left to the C caller: every calling convention in use lets a callee take
# fewer arguments than it is given, and one argument is what a generator's send() takes (see _call.py).
Progress = ctypes.CFUNCTYPE(c_int, c_void_p)
Exchange = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int64)


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
    for call in (lib.skl_value, lib.skl_value_and_grad, lib.skl_topk):
        call.argtypes = [c_char_p, c_char_p]
    lib.skl_backward.argtypes = [c_char_p, c_char_p, c_char_p]
    lib.skl_partial.argtypes = [c_char_p, c_char_p, c_void_p]
    lib.skl_merge.argtypes = [c_int64, c_void_p, c_void_p]
    lib.skl_finish.argtypes = [c_char_p, c_void_p, c_char_p]
    lib.skl_workspace_size.argtypes = [c_int, c_char_p, c_char_p, POINTER(c_size_t)]
    for text in (lib.skl_last_error, lib.skl_version):
        text.restype = c_char_p
    return lib


lib = _load()


def version() -> str:
    return lib.skl_version().decode()
