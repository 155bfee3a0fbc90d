# SPDX-License-Identifier: Apache-2.0
"""How far did int8 weights move a model? Per token (vocabulary KL) and per head (attention KL), against the original,
without storing one distribution.

    python examples/quantisation_drift.py    # about a minute on two cores; writes examples/out/quantisation_drift.png
"""

import argparse
import copy

import torch

import streamkl
from tiny import Transformer, add_picture_options, batches, corpus, save_picture, train

VOCABULARY, LENGTH, BATCH, LAYERS, HEADS = 8192, 512, 4, 4, 8


@torch.no_grad()
def quantised(model, bits):
    """A copy whose matrices hold only 2^bits - 1 values per row, times the row's scale."""
    model = copy.deepcopy(model)
    top = 2 ** (bits - 1) - 1
    for layer in model.modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.Embedding)):
            scale = layer.weight.abs().amax(-1, keepdim=True).clamp_min(1e-12) / top
            layer.weight.copy_((layer.weight / scale).round().clamp(-top, top) * scale)
    return model


@torch.no_grad()
def drift(model, other, tokens):
    """KL(model || other): [B, N] of the next token, and [layers, heads] of the attention, mean over queries."""
    hidden, layers = model(tokens)
    hidden_q, layers_q = other(tokens)
    per_token = streamkl.linear_kl(hidden_q, other.head.weight, hidden, model.head.weight, reduction="none")
    per_head = [
        streamkl.attention_kl(q_q, k_q, q, k, causal=True, reduction="none").mean((0, 2))
        for (q_q, k_q), (q, k) in zip(layers_q, layers)
    ]
    return per_token, torch.stack(per_head)


def picture(per_token, per_head, bits):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(bits) + 1, figsize=(5 * (len(bits) + 1), 4))
    for b, kl in zip(bits, per_token):
        axes[0].plot(
            kl.flatten().sort().values, torch.linspace(0, 1, kl.numel()), label=f"int{b}, mean {kl.mean():.1e}"
        )
    axes[0].set(
        xscale="log",
        xlabel="KL of the next-token distribution, nats",
        ylabel="share of tokens below",
        title="per token",
    )
    axes[0].legend(), axes[0].grid(alpha=0.3)
    for ax, b, kl in zip(axes[1:], bits, per_head):
        image = ax.imshow(kl, cmap="viridis")
        ax.set(xlabel="head", ylabel="layer", title=f"attention KL per head, int{b}")
        figure.colorbar(image, ax=ax, format="%.0e")
    figure.tight_layout()
    return figure


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=40, help="of training, before there is something to measure")
    p.add_argument("--bits", type=int, nargs="+", default=[8, 4])
    add_picture_options(p)
    args = p.parse_args()

    tokens, names = corpus(VOCABULARY)
    torch.manual_seed(2)
    model = Transformer(VOCABULARY, 256, LAYERS, HEADS, LENGTH)
    train(model, batches(tokens, BATCH, LENGTH, seed=1), args.steps)
    text = next(batches(tokens, BATCH, LENGTH, seed=9))[:, :-1]
    found = [drift(model, quantised(model, bits), text) for bits in args.bits]
    for bits, (per_token, per_head) in zip(args.bits, found):
        layer, head = divmod(per_head.argmax().item(), HEADS)
        at = per_token.argmax().item()
        before = "".join(names[t] for t in text.flatten()[max(0, at - 8) : at + 1])
        print(f"int{bits}: {per_token.mean():.2e} nats a token, worst {per_token.max():.2e} after {before!r}")
        worst = f"worst is head {head} of layer {layer}, {per_head.max():.2e}"
        print(f"      attention: {per_head.mean():.2e} nats a query, {worst}")
    save_picture(picture(*zip(*found), args.bits), args, "quantisation_drift")


if __name__ == "__main__":
    main()
