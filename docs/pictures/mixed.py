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
    p.note(560, 134, 136, 40, PLAIN, "KL(t || s)|dz = g (s - t)")
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
    p.note(452, 134, 150, 44, PLAIN, "KL(t || s)|dz = g (s - t)")
    p.arrow((412, 120), (450, 150))
    p.arrow((628, 104), (628, 156), (604, 156))
    p.text(24, 203, "One loss for each query; gradients of q_i, k_i and w_i.", size=11.5, color=SOFT)
    p.write()


if __name__ == "__main__":
    mixed_heads()
    indexer()
