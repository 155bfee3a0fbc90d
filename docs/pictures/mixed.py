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


if __name__ == "__main__":
    mixed_heads()
