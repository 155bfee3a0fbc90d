#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/attention.md about teachers of several heads: python3 docs/pictures/mixed.py."""

from make import PLAIN, SOFT, P, Picture, Q


def mixed_heads() -> None:
    p = Picture(
        "mixed_heads",
        214,
        "Teacher heads mixed: mix_t=3",
        "Three softmaxes of the teacher's heads become one target by their mean, with which one head of the student is compared.",
    )
    for i in range(3):
        y = 56 + 46 * i
        p.note(24, y, 150, 36, P, f"q_t head 3h + {i}, k_t|lse_t of the head")
        p.note(214, y, 118, 36, PLAIN, "exp(z - lse)")
        p.arrow((174, y + 18), (212, y + 18))
        p.arrow((332, y + 18), (376, 120))
    p.note(380, 96, 118, 48, P, "t = mean|(/ its sum)")
    p.note(560, 60, 136, 40, Q, "q_s head h, k_s")
    p.note(560, 134, 136, 40, PLAIN, "KL(t ‖ s)|dz = g (s - t)")
    p.arrow((498, 120), (558, 150))
    p.arrow((628, 100), (628, 132))
    p.text(24, 203, "One tile of keys at a time: neither z nor t is ever stored as a whole.", size=11.5, color=SOFT)
    p.write()


def indexer() -> None:
    p = Picture(
        "indexer",
        214,
        "An indexer against the mean of all heads",
        "The indexer's few heads are weighted and summed into one row of logits, which is compared with the mean of the teacher's softmaxes.",
    )
    for i in range(3):
        y = 56 + 46 * i
        p.note(24, y, 120, 36, Q, f"q_i head {i}, k_i")
        p.note(176, y, 96, 36, PLAIN, f"w_i[{i}] ReLU(x)")
        p.arrow((144, y + 18), (174, y + 18))
        p.arrow((272, y + 18), (312, 120))
    p.note(316, 96, 96, 48, Q, "z = sum,|s = softmax z")
    p.note(560, 56, 136, 48, P, "t = mean of the|softmaxes of q_t k_t")
    p.note(452, 134, 150, 44, PLAIN, "KL(t ‖ s)|dz = g (s - t)")
    p.arrow((412, 120), (450, 150))
    p.arrow((628, 104), (628, 156), (604, 156))
    p.text(24, 203, "One loss for each query; gradients of q_i, k_i and w_i.", size=11.5, color=SOFT)
    p.write()


def pooled() -> None:
    p = Picture(
        "pooled",
        190,
        "Blocks of keys: block=4",
        "The teacher's twelve keys make three blocks; each gets the largest logit or the log-sum-exp of its keys, and is one key of the student.",
    )
    for i in range(11):
        p.note(150 + 46 * i + 8 * (i // 4), 52, 40, 28, P, f"z{i}")
    p.text(24, 71, "teacher's logits", size=12)
    for c in range(3):
        x = 150 + 192 * c
        width = 178 if c < 2 else 132
        p.note(x, 98, width, 28, PLAIN, "max or LSE")
        p.arrow((x + width / 2, 80), (x + width / 2, 96))
        p.note(x, 144, width, 28, Q, f"student's key {c}")
        p.arrow((x + width / 2, 126), (x + width / 2, 142), both=True)
    p.text(24, 117, "of the block", size=12)
    p.text(24, 163, "KL over blocks", size=12)
    p.write()


if __name__ == "__main__":
    pooled()
    mixed_heads()
    indexer()
