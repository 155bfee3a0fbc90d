# SPDX-License-Identifier: Apache-2.0
"""One problem of the benchmark: its inputs and its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Case:
    attention: bool
    length: int  # tokens, or queries and keys
    width: int  # of hidden states, or of a head
    columns: int  # vocabulary; keys
    heads: int = 1
    dtype: str = "f32"
    causal: bool = False

    @property
    def rows(self) -> int:
        return self.heads * self.length

    @property
    def products(self) -> float:
        """Multiplications of one matrix product of one side."""
        return float(self.rows) * self.columns * self.width * (0.5 if self.causal else 1)

    @property
    def logits(self) -> int:
        """Bytes of one side's logits in f32."""
        return 4 * self.rows * self.columns

    def __str__(self) -> str:
        if self.attention:
            return (
                f"attention H{self.heads} N{self.length} D{self.width} {self.dtype}{' causal' if self.causal else ''}"
            )
        return f"vocabulary N{self.length} D{self.width} V{self.columns} {self.dtype}"

    def operand_bytes(self) -> int:
        a, b = self.rows * self.width, self.columns * self.width * (self.heads if self.attention else 1)
        return 2 * (a + b) * DTYPES[self.dtype].itemsize

    def inputs(self) -> Dict[str, Tensor]:
        """a_s, b_s (which require grad), a_t, b_t. Logits have about unit size."""
        make = torch.Generator().manual_seed(1)
        shapes = {"a": (self.length, self.width), "b": (self.columns, self.width)}
        x = {}
        for name in ("a_s", "b_s", "a_t", "b_t"):
            shape = (1, self.heads, *shapes[name[0]]) if self.attention else shapes[name[0]]
            t = torch.randn(shape, generator=make)
            if name[0] == "b" and not self.attention:
                t *= self.width**-0.5
            x[name] = t.to(DTYPES[self.dtype]).requires_grad_(name.endswith("s"))
        return x
