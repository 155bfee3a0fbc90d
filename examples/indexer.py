# SPDX-License-Identifier: Apache-2.0
"""Train an indexer of sparse attention (DeepSeek's DSA) on the attention of a small Hugging Face model: a dense warm-up over all
keys, then the sparse stage over the keys that the indexer itself chooses. Twice: with streamkl, and with everything
stored. The loss curves must lie on each other; the picture shows how many of the true top keys are found. The second run takes
the keys that the first one chose: a choice between two keys that are nearly equal would part the curves, not the loss.

    python examples/indexer.py           # under two minutes on two cores; writes examples/out/indexer.png
"""

import argparse

import torch
from torch import nn

import streamkl
import streamkl.hf
from tiny import add_picture_options, batches, corpus, save_picture

VOCABULARY, LENGTH, BATCH, WIDTH, LAYER = 1024, 192, 2, 128, 2
HEADS, DIM, TOP = 4, 32, 24  # of the indexer, and how many keys it chooses


def small_model():
    """A Llama from a configuration. Its weights are random, and those of queries and keys large enough that its attention is
    as uneven as a trained one's."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = dict(hidden_size=WIDTH, intermediate_size=256, num_hidden_layers=3, num_attention_heads=8)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(6)
            layer.self_attn.k_proj.weight.mul_(6)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def teacher_of(model, ids):
    """What the indexer sees, the hidden states that enter the layer, and the layer's queries and keys."""
    with streamkl.hf.capture(model) as layers:
        hidden = model.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    return hidden[LAYER], layers[LAYER].q, layers[LAYER].k


class Indexer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k = nn.Linear(WIDTH, HEADS * DIM, bias=False), nn.Linear(WIDTH, DIM, bias=False)
        self.w = nn.Linear(WIDTH, HEADS, bias=False)

    @staticmethod
    def rotated(x):
        """Rotary positions; x [.., N, DIM]."""
        angle = torch.arange(x.shape[-2])[:, None] * 10000 ** (-torch.arange(DIM // 2) / (DIM // 2))
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)

    def forward(self, hidden):
        x = self.norm(hidden)
        q = self.q(x).view(*x.shape[:2], HEADS, DIM).transpose(1, 2)
        return self.rotated(q), self.rotated(self.k(x)), self.w(x)


def fused(q_i, k_i, w_i, q_t, k_t, support):
    return streamkl.indexer_kl(q_i, k_i, w_i, q_t, k_t, scale_i=DIM**-0.5, support=support)


def target(q_t, k_t, seen):
    k_t = k_t.repeat_interleave(q_t.shape[1] // k_t.shape[1], 1)
    z = (q_t @ k_t.mT * q_t.shape[-1] ** -0.5).masked_fill(~seen[:, None], -torch.inf)
    return z.softmax(-1).mean(1)


def materialised(q_i, k_i, w_i, q_t, k_t, support):
    n = q_t.shape[2]
    seen = torch.ones(len(q_t), n, n, dtype=torch.bool).tril()
    if support is not None:
        listed = torch.zeros(len(q_t), n, n + 1, dtype=torch.bool)
        seen = seen & listed.scatter(2, torch.where(support < 0, n, support).long(), True)[..., :n]
    t = target(q_t, k_t, seen)
    z = DIM**-0.5 * torch.einsum("bnh,bhnm->bnm", w_i, torch.relu(q_i @ k_i[:, None].mT))
    s = z.masked_fill(~seen, -torch.inf).log_softmax(-1).masked_fill(~seen, 0)
    return (torch.xlogy(t, t) - t * s).sum(-1).mean()


@torch.no_grad()
def recall(support, q_t, k_t):
    """How many of the keys with the largest target the indexer has, in rows that have to leave some out."""
    n = q_t.shape[2]
    best = target(q_t, k_t, torch.ones(len(q_t), n, n, dtype=torch.bool).tril()).topk(TOP).indices
    found = (support[:, :, :, None] == best[:, :, None, :]).any(2).float().mean(-1)
    return found[:, TOP:].mean().item()


def train(loss_of, teachers, dense, chosen):
    """Loss and recall of each step. chosen: the keys of each step, filled by the first run."""
    torch.manual_seed(3)
    indexer = Indexer()
    optimizer = torch.optim.AdamW(indexer.parameters(), lr=2e-3)
    losses, found = [], []
    for step, (hidden, q_t, k_t) in enumerate(teachers):
        q_i, k_i, w_i = indexer(hidden)
        if step == len(chosen):
            chosen.append(streamkl.indexer_topk(q_i, k_i, w_i, TOP, scale_i=DIM**-0.5))
        loss = loss_of(q_i, k_i, w_i, q_t, k_t, None if step < dense else chosen[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        found.append(recall(chosen[step], q_t, k_t))
        if step % 20 == 19:
            name = f"{loss_of.__name__}, {'dense' if step < dense else 'top-k'}"
            print(f"{name}: step {step + 1}, loss {losses[-1]:.4f}, recall {found[-1]:.2f}", flush=True)
    return losses, found


def picture(runs, dense):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    styles = (dict(linewidth=5, alpha=0.4), dict(color="black", linewidth=1))
    titles = ("KL from the attention to the indexer", f"recall of the true top {TOP} of {LENGTH} keys")
    for i, (axis, title) in enumerate(zip(axes, titles)):
        for (name, run), style in zip(runs.items(), styles):
            axis.plot(run[i], label=name, **style)
        axis.axvline(dense, color="gray", linestyle=":")
        axis.set(xlabel="step (dotted: from all keys to the chosen ones)", title=title)
        axis.legend()
    figure.tight_layout()
    return figure


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dense", type=int, default=60, help="steps over all keys")
    p.add_argument("--sparse", type=int, default=40, help="steps over the chosen keys")
    add_picture_options(p)
    args = p.parse_args()

    tokens, _ = corpus(VOCABULARY)
    model = small_model()
    data = batches(tokens, BATCH, LENGTH, seed=4)
    teachers = [teacher_of(model, next(data)[:, :-1]) for _ in range(args.dense + args.sparse)]
    chosen = []
    runs = {f.__name__: train(f, teachers, args.dense, chosen) for f in (fused, materialised)}
    apart = max(abs(a - b) / b for a, b in zip(*(run[0] for run in runs.values())))
    losses, found = runs["fused"]
    print(f"recall of the true top {TOP}: {found[0]:.2f} -> {found[-1]:.2f}, loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"largest relative distance of the curves: {apart:.1e}")
    save_picture(picture(runs, args.dense), args, "indexer")


if __name__ == "__main__":
    main()
