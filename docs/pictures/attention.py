#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/attention.md: python3 docs/pictures/attention.py writes the .svg files beside itself."""

from make import ENGINE, FACE, INK, LINE, PLAIN, SOFT, P, Picture, Q

CELL = 14


def grid(picture: Picture, x, y, rows, columns, seen, colors=ENGINE, cell=CELL) -> None:
    """Queries by keys; seen(i, j) says which entries there are."""
    for i in range(rows):
        for j in range(columns):
            at = (x + j * cell, y + i * cell, cell - 1.5, cell - 1.5)
            picture.box(*at, colors if seen(i, j) else PLAIN, 1.5, 0.7, opacity=1 if seen(i, j) else 0.5)


def packed() -> None:
    queries, keys = (5, 0, 3, 6), (7, 0, 3, 6)
    picture = Picture(
        "packed",
        330,
        "Packed sequences",
        "Four sequences one after the other, one of them empty; each query sees the keys of its own sequence up to its diagonal, aligned "
        "bottom right. Everything else is not computed.",
    )
    first_q = [sum(queries[:i]) for i in range(5)]
    first_k = [sum(keys[:i]) for i in range(5)]

    def sequence(i, j):
        for k in range(4):
            if first_q[k] <= i < first_q[k + 1]:
                diagonal = i - first_q[k] + keys[k] - queries[k]
                return first_k[k] <= j < first_k[k + 1] and j - first_k[k] <= diagonal
        return False

    x, y = 150, 92
    grid(picture, x, y, first_q[-1], first_k[-1], sequence)
    picture.text(x + first_k[-1] * CELL / 2, 56, "keys, total_k", size=12, color=SOFT, anchor="middle")
    picture.text(40, y + first_q[-1] * CELL / 2, "queries,", size=12, color=SOFT)
    picture.text(40, y + first_q[-1] * CELL / 2 + 16, "total_q", size=12, color=SOFT)
    for k, place in ((0, "0"), (1, "7, 7"), (3, "10"), (4, "16")):
        picture.text(x + first_k[k] * CELL - 1, y - 8, place, size=11, mono=True, color=P[1], anchor="middle")
    for k, place in ((0, "0"), (1, "5, 5"), (3, "8"), (4, "14")):
        picture.text(x - 8, y + first_q[k] * CELL + 4, place, size=11, mono=True, color=Q[1], anchor="end")
    words = (
        "cu_seqlens_q = [0, 5, 5, 8, 14]|cu_seqlens_k = [0, 7, 7, 10, 16]||Four sequences, the second is empty.|"
        "The first has 7 keys for 5 queries:|causal is aligned bottom right, in each|sequence by itself.||"
        "Tiles that no query sees are not computed,|and no memory grows with total_k."
    )
    picture.lines(420, 110, words, size=12)
    picture.write()


def row_tensors() -> None:
    picture = Picture(
        "row_tensors",
        250,
        "Tensors over the rows",
        "weight, begin and end as [N], [B, N], [1, H, N], [B, H, N]: which dimensions of the rows each of them names.",
    )
    shapes = (
        ("[N]", "every batch, every head", (0, 0, 1), FACE),
        ("[B, N]", "batch and query, also if B == H", (1, 0, 1), Q),
        ("[1, H, N]", "head and query", (0, 1, 1), P),
        ("[1, H, 1]", "whole heads", (0, 1, 0), P),
        ("[B, H, N]", "each row by itself", (1, 1, 1), ENGINE),
    )
    for k, name in enumerate(("batch", "head", "query")):
        picture.text(330 + k * 110, 66, name, size=12, color=SOFT, anchor="middle")
    for i, (shape, words, named, colors) in enumerate(shapes):
        y = 80 + i * 32
        picture.text(28, y + 16, shape, size=12.5, mono=True, color=INK)
        picture.text(120, y + 16, words, size=11.5, color=SOFT)
        for k in range(3):
            if named[k]:
                picture.note(280 + k * 110, y, 100, 24, colors, "one for each")
            else:
                picture.note(280 + k * 110, y, 100, 24, (PLAIN[0], LINE), "the same")
    picture.write()


def bars(picture: Picture, x, y, heights, colors, sink=None, width=26, high=110) -> None:
    """A distribution over keys; the sink, if any, stands apart."""
    for k, height in enumerate(heights):
        picture.box(x + k * (width + 4), y + high - height * high, width, height * high, colors, 2)
    at = x + len(heights) * (width + 4) + 14
    if sink is not None:
        picture.box(at, y + high - sink * high, width, sink * high, colors, 2, 2.0, dash="4 3")
        picture.text(at + width / 2, y + high + 16, "sink", size=11, color=SOFT, anchor="middle")
    picture.line(x - 6, y + high, at + (width + 6 if sink is not None else -6), y + high, INK, 1.2)


def sinks() -> None:
    picture = Picture(
        "sinks",
        390,
        "Sinks",
        "Student and teacher over four keys and a sink. As a column, the sink is a category that both have; conditional, each is "
        "renormalised over its keys, and the sink drops out.",
    )
    student, teacher, sink_s, sink_t = (0.30, 0.12, 0.08, 0.20), (0.16, 0.07, 0.04, 0.13), 0.30, 0.60
    picture.text(250, 62, 'sink="column"', size=12.5, mono=True, color=INK, anchor="middle")
    picture.text(565, 62, 'sink="conditional"', size=12.5, mono=True, color=INK, anchor="middle")
    for y, name, keys, sink, colors in ((78, "student", student, sink_s, Q), (228, "teacher", teacher, sink_t, P)):
        picture.text(28, y + 66, name, size=13, color=colors[1], weight=600)
        bars(picture, 160, y, keys, colors, sink)
        bars(picture, 500, y, [x / sum(keys) for x in keys], colors)
        picture.arrow((366, y + 70), (478, y + 70), color=SOFT)
        picture.text(422, y + 60, "/ (1 - sink)", size=11, mono=True, color=SOFT, anchor="middle")
    picture.text(250, 376, "one more category: what goes to the sink counts", size=12, color=SOFT, anchor="middle")
    picture.text(565, 376, "the keys alone", size=12, color=SOFT, anchor="middle")
    picture.write()


if __name__ == "__main__":
    sinks()
    packed()
    row_tensors()
