# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl.bench.drift: what a drift report takes beyond the two models' own bodies, in bare head products.

Two random Llamas of some 30M parameters and a text of random words, nothing is downloaded. A bare head product is torch's
hidden states times head, in float32, over the same tokens. The bar: at most 2.5 of them, of which two must be."""

from __future__ import annotations

import argparse
import random
import sys
import time
from typing import Any, Callable, Tuple

import torch

from ..compare.states import batches, forward
from ..compare.windows import cut
from .measure import machine

BAR = 2.5


def words(size: int) -> Any:
    """A tokenizer whose tokens are the words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def pair(args: argparse.Namespace) -> Tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=args.width, intermediate_size=3 * args.width, num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64, vocab_size=args.vocab, max_position_embeddings=args.window,
        tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()


def best(run: Callable[[], Any], rounds: int) -> float:
    """Seconds of the fastest round: other work on the machine makes a run slower, never faster."""
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        took.append(time.perf_counter() - start)
    return min(took)


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m streamkl.bench.drift", description=(__doc__ or "").split("\n")[0])
    for name, value in dict(tokens=20000, vocab=32000, width=384, layers=10, window=512, rounds=3).items():
        p.add_argument(f"--{name}", type=int, default=value, help="default %(default)s")
    args = p.parse_args()
    from .. import compare

    reference, other = pair(args)
    tokenizer, draw = words(args.vocab), random.Random(0)
    text = " ".join(f"w{draw.randrange(args.vocab)}" for _ in range(args.tokens + args.window))
    windows = cut(text, tokenizer, args.window, [args.window], args.tokens, False)
    batch = max(1, 4096 // args.window)
    hidden = [forward(reference, windows, batch, i) for i in range(batches(windows, batch))]
    head = reference.get_output_embeddings().weight.detach()

    def bodies() -> None:
        for model in (reference, other):
            for i in range(batches(windows, batch)):
                forward(model, windows, batch, i)

    def report(**more: int) -> Any:
        kept = dict(text=text, tokenizer=tokenizer, window=args.window, limit=args.tokens)
        return compare(reference, other, **kept, **more)

    print(machine())
    millions = sum(x.numel() for x in reference.parameters()) / 1e6
    print(f"{millions:.0f}M parameters, {sum(map(len, hidden))} tokens, V {args.vocab}, D {args.width}")
    product = best(lambda: [x @ head.T for x in hidden], args.rounds)
    body = best(bodies, args.rounds)
    alone = best(lambda: report(attention=0, floor=0), args.rounds)
    whole = best(report, args.rounds)
    print(f"a head product {product:.2f} s, the two bodies {body:.2f} s")
    print("| compare | time | beyond the bodies, in head products | bar | |\n|---|---|---|---|---|")
    beyond = []
    for name, took in (("the numbers of tokens", alone), ("with attention and floor", whole)):
        beyond.append((took - body) / product)
        kept = "ok" if beyond[-1] <= BAR else "MISSED"
        print(f"| {name} | {took:.2f} s | {beyond[-1]:.2f} | {BAR} | {kept} |")
    return 0 if max(beyond) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
