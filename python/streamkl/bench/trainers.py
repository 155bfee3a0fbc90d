# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl.bench.trainers: the losses of TRL's trainers and of Liger, their own beside streamkl's.

From hidden states on, loss and gradient, as a table. Both take the same tensors in turn, and the fastest of several rounds
counts: other work on the machine makes a run slower, never faster. DistillationTrainer's loss includes the student's
entropy, for the log; Liger's the cross-entropy of labels, as its default is. The exit code is 1 if any is slower than the
other's own."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Callable, Dict, List, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional import linear_kl
from .measure import machine


class Setting(NamedTuple):
    trainer: str  # "distillation" and "gkd" are TRL's, "liger" is LigerFusedLinearJSDLoss
    tokens: int
    masked: float  # share of the tokens that do not count
    student: int  # hidden sizes
    teacher: int
    vocabulary: int
    beta: float
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        sizes = f"N {self.tokens} ({self.masked:.0%} masked) D {self.student}/{self.teacher} V {self.vocabulary}"
        return f"{self.trainer} {sizes} beta {self.beta} {str(self.dtype)[6:]}"


_SIZES = ((512, 256, 384, 32000), (256, 896, 896, 50000))
SETTINGS: List[Setting] = [
    Setting(trainer, n, masked, s, t, v, beta, dtype)
    for trainer in ("distillation", "gkd", "liger")
    for (n, s, t, v) in _SIZES
    for masked, beta, dtype in (
        (0.5, 1.0, torch.float32),
        (0.0, 0.0, torch.float32),
        (0.5, 0.5, torch.float32),
        (0.5, 1.0, torch.bfloat16),
    )
] + [Setting(trainer, 32, 0.0, 64, 96, 1000, 1.0) for trainer in ("distillation", "gkd", "liger")]


def ways(setting: Setting, x: Dict[str, Tensor], mask: Tensor) -> Dict[str, Callable[[], Tensor]]:
    """ "theirs" and "streamkl"."""
    from .._faces import divergence_of

    pair = (x["x_s"], x["x_t"], x["w_s"], x["w_t"])
    labels = mask.long() - 100 * ~mask
    if setting.trainer == "liger":
        from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss as Theirs

        from ..liger import LigerFusedLinearJSDLoss as Ours

        flat = (x["x_s"][0], x["w_s"], x["x_t"][0], x["w_t"], labels[0])
        losses = {"theirs": Theirs(beta=setting.beta, compiled=False), "streamkl": Ours(beta=setting.beta)}
        return {name: lambda loss=loss: loss(*flat) for name, loss in losses.items()}
    if setting.trainer == "distillation":
        from trl.trainer.distillation_trainer import _chunked_divergence_loss

        from ..trl._distillation import chunked_divergence_loss

        return {
            "theirs": lambda: _chunked_divergence_loss(*pair, mask, setting.beta)[0],
            "streamkl": lambda: chunked_divergence_loss(*pair, mask, setting.beta)[0],
        }
    from trl.experimental.gkd import GKDTrainer

    def theirs() -> Tensor:
        z_s, z_t = F.linear(x["x_s"], x["w_s"]), F.linear(x["x_t"], x["w_t"])
        return GKDTrainer.generalized_jsd_loss(z_s, z_t, labels, setting.beta)

    options = dict(divergence_of(setting.beta), weight=mask)
    return {"theirs": theirs, "streamkl": lambda: linear_kl(x["x_s"], x["w_s"], x["x_t"], x["w_t"], **options)}


def measure(setting: Setting, rounds: int) -> Dict[str, float]:
    """Seconds of loss and gradient."""
    torch.manual_seed(0)
    n, v = setting.tokens, setting.vocabulary
    x = {
        "x_s": torch.randn(1, n, setting.student),
        "w_s": torch.randn(v, setting.student) / setting.student**0.5,
        "x_t": torch.randn(1, n, setting.teacher),
        "w_t": torch.randn(v, setting.teacher) / setting.teacher**0.5,
    }
    x = {name: t.to(setting.dtype).requires_grad_(name.endswith("_s")) for name, t in x.items()}
    mask = torch.arange(n)[None] >= round(setting.masked * n)
    best: Dict[str, float] = {}
    for _ in range(rounds + 1):  # the first one warms up, and counts too: it is never the fastest
        for name, loss in ways(setting, x, mask).items():
            start = time.perf_counter()
            torch.autograd.grad(loss(), [x["x_s"], x["w_s"]])
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m streamkl.bench.trainers", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each setting")
    parser.add_argument("--only", default="", help="settings that have this text in their name")
    args = parser.parse_args()
    settings = [setting for setting in SETTINGS if args.only in str(setting)]
    if not settings:
        parser.error(f"cannot use --only {args.only!r}: no setting has it in its name, as {SETTINGS[0]}")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    print(machine())
    slower = 0
    print("| loss and gradient | theirs | streamkl | |\n|---|---|---|---|")
    for setting in settings:
        best = measure(setting, args.rounds)
        theirs, ours = best["theirs"], best["streamkl"]
        slower += ours > theirs
        verdict = "" if ours <= theirs else ", SLOWER"
        print(
            f"| {setting} | {1e3 * theirs:.1f} ms | {1e3 * ours:.1f} ms | {theirs / ours:.2f} x{verdict} |", flush=True
        )
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
