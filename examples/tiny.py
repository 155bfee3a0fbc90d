# SPDX-License-Identifier: Apache-2.0
"""What both examples share: a corpus that is on every machine, and a small transformer that shows queries and keys."""

import argparse
import collections
import pathlib
import re
import sysconfig
import time

import torch
import torch.nn.functional as F
from torch import nn


def corpus(vocabulary):
    """Python's own standard library, as tokens: the most frequent words and signs, 0 for all others."""
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "\n".join(path.read_text(errors="ignore") for path in files)
    pieces = re.findall(r"\w+|\n *| +|[^\w\s]", text)
    names = ["<rare>"] + [word for word, _ in collections.Counter(pieces).most_common(vocabulary - 1)]
    number = {word: i for i, word in enumerate(names)}
    return torch.tensor([number.get(piece, 0) for piece in pieces]), names


def batches(tokens, batch, length, seed):
    make = torch.Generator().manual_seed(seed)
    while True:
        at = torch.randint(0, len(tokens) - length - 1, (batch,), generator=make)
        yield torch.stack([tokens[i : i + length + 1] for i in at.tolist()])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norms[1](x)))), (q, k)


class Transformer(nn.Module):
    """Gives hidden states [B, N, D] and, for each layer, queries and keys [B, H, N, D / H]. The head is head.weight."""

    def __init__(self, vocabulary, width, layers, heads, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        queries_and_keys = []
        for block in self.blocks:
            x, qk = block(x)
            queries_and_keys.append(qk)
        return self.norm(x), queries_and_keys


def train(model, data, steps, what="training"):
    """Next-token prediction, for as long as the example can afford."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = time.perf_counter()
    for step in range(steps):
        tokens = next(data)
        hidden, _ = model(tokens[:, :-1])
        loss = F.cross_entropy(model.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9 or step == steps - 1:
            print(
                f"{what}: step {step + 1}/{steps}, loss {loss.item():.3f}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    return model.eval().requires_grad_(False)


def add_picture_options(parser: argparse.ArgumentParser):
    folder = pathlib.Path(__file__).parent / "out"
    parser.add_argument("--out", type=pathlib.Path, default=folder, help="folder for the picture")
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="of the picture (default %(default)s)")


def save_picture(figure, args, name):
    """The figure as a file: SVG with its own white ground, so that it reads on a dark page, and the same bytes each time."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = name
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{name}.{args.format}"
    more = dict(metadata={"Date": None}) if args.format == "svg" else {}
    figure.savefig(path, dpi=120, facecolor="white", **more)
    print(f"picture: {path}")
