#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/architecture.md: python3 docs/pictures/make.py writes the .svg files beside itself.

Each picture has its own background, so that it can be looked at on a light and on a dark page, and is 720 units wide: read
at 700 pixels, its smallest letters are 11 pixels high.
"""

from html import escape
from pathlib import Path

INK, SOFT, LINE, PAPER, WHITE = "#243140", "#5d6b7c", "#9aa7b5", "#fbfaf6", "#ffffff"
# Each pair: fill and stroke. P is the teacher of forward KL, Q the student.
P, Q = ("#fbe2c0", "#c9741a"), ("#d2e4f7", "#2c6cb0")
ENGINE, FACE, LIST = ("#d3ece6", "#26806f"), ("#e4e8ee", "#66758a"), ("#fff6cf", "#b39416")
GPU, PROOF, DZ = ("#e2efd3", "#5a8a2b"), ("#e8dff4", "#7756a8"), ("#f8d9d6", "#b8443f")
PLAIN = (WHITE, LINE)
SANS = "Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
MONO = "'SF Mono', Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"


class Picture:
    width = 720

    def __init__(self, name: str, height: int, title: str, words: str) -> None:
        self.name, self.height, self.parts = name, height, []
        self.parts.append(f"<title>{escape(title)}</title><desc>{escape(words)}</desc>")
        self.box(0.5, 0.5, self.width - 1, height - 1, (PAPER, "#e3dfd3"), radius=10)
        self.text(24, 32, title, size=17, weight=600)

    def text(self, x, y, words, size=12.5, color=INK, anchor="start", weight=400, mono=False, turn=0):
        family = f' font-family="{MONO}"' if mono else ""
        turned = f' transform="rotate({turn} {x} {y})"' if turn else ""
        self.parts.append(
            f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}" '
            f'font-weight="{weight}"{family}{turned}>{escape(words)}</text>'
        )

    def lines(self, x, y, words, step=16, **style):
        """Words with | where a line ends."""
        for i, line in enumerate(words.split("|")):
            self.text(x, y + i * step, line, **style)

    def box(self, x, y, w, h, colors=PLAIN, radius=6, stroke=1.2, dash="", opacity=1.0):
        fill, line = colors
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        faint = f' opacity="{opacity}"' if opacity != 1 else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="{radius}" fill="{fill}" stroke="{line}" '
            f'stroke-width="{stroke}"{dashed}{faint}/>'
        )

    def card(self, x, y, w, h, colors, head, words, files="", size=12):
        """A box with a heading, names of files beside it and lines below."""
        self.box(x, y, w, h, colors)
        self.text(x + 12, y + 21, head, size=13, weight=600, color=colors[1])
        self.text(x + w - 12, y + 21, files, size=11, mono=True, color=SOFT, anchor="end")
        self.lines(x + 12, y + 40, words, size=size)

    def note(self, x, y, w, h, colors, words, size=11.5, step=16, radius=3, stroke=1.2):
        """A small box with its words in the middle."""
        count = words.count("|") + 1
        self.box(x, y, w, h, colors, radius, stroke)
        first = y + h / 2 + size * 0.36 - (count - 1) * step / 2
        self.lines(x + w / 2, first, words, step, size=size, color=colors[1], anchor="middle")

    def arrow(self, *points, color=SOFT, width=1.6, dash="", both=False):
        """Through the points (x, y), with a head at the last one."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dashed}/>')
        self._head(points[-2], points[-1], color)
        if both:
            self._head(points[1], points[0], color)

    def _head(self, before, tip, color):
        (x0, y0), (x, y) = before, tip
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5
        ux, uy = (x - x0) / length, (y - y0) / length
        left = (x - 8 * ux - 4 * uy, y - 8 * uy + 4 * ux)
        right = (x - 8 * ux + 4 * uy, y - 8 * uy - 4 * ux)
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in ((x, y), left, right))
        self.parts.append(f'<polygon points="{corners}" fill="{color}"/>')

    def line(self, x0, y0, x1, y1, color=LINE, width=1.0, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="{color}" stroke-width="{width}"{dashed}/>'
        )

    def span(self, x0, x1, y, words, color=SOFT, below=False):
        """A dimension: a line between two ticks, its words in the middle."""
        self.line(x0, y, x1, y, color)
        for x in (x0, x1):
            self.line(x, y - 4, x, y + 4, color)
        self.text((x0 + x1) / 2, y + (17 if below else -7), words, size=12, color=color, anchor="middle")

    def write(self) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" font-family="{SANS}">'
        )
        text = "\n".join([head, "<!-- made by docs/pictures/make.py -->", *self.parts, "</svg>", ""])
        Path(__file__).with_name(f"{self.name}.svg").write_text(text, encoding="utf-8")


def layers() -> None:
    p = Picture("layers", 690, "The layers", "Faces, border, work, two back ends; reference and tests beside them.")
    left, wide, middle = 24, 524, 286  # the library's column

    p.card(left, 50, 246, 66, FACE, "Python", "attention_kl, linear_kl, modules,|NumPy, Nitrobrew's calls")
    p.card(left + 258, 50, 118, 66, FACE, "your program", "C or C++")
    p.card(left + 388, 50, 136, 66, FACE, "streamkl", "demo, info, check,|bench")
    for x in (147, 341, 480):
        p.arrow((x, 116), (x, 130))
    p.box(left, 132, wide, 34, (WHITE, INK))
    p.text(left + 12, 154, "include/streamkl/streamkl.h", mono=True, size=12, weight=600)
    p.text(left + wide - 12, 154, "skl_problem, skl_outputs, the calls", anchor="end", size=12, color=SOFT)
    p.arrow((middle, 166), (middle, 180))
    words = "Every rule about the arguments, once. A call that is refused has written nothing."
    p.card(left, 182, wide, 56, ENGINE, "border", words, "api.c  check.c  tensor.c  error.c")
    p.arrow((middle, 238), (middle, 252))
    words = "Sides in the order of KL(P ‖ Q), defaults|filled in, strides of everything."
    p.card(left, 254, 280, 70, ENGINE, "work", words, "work.c")
    words = "divergences.def, divergence.h,|row_results.def, row.h"
    p.card(left + 304, 254, 220, 70, LIST, "once for both back ends", words, size=11.5)
    p.arrow((left + 304, 289), (left + 282, 289))

    # Two back ends, side by side: the same three steps.
    cpu, gpu, top = left, 292, 376
    p.text(cpu + 2, top - 14, "CPU, src/cpu", weight=600, color=ENGINE[1], size=13)
    p.text(gpu + 2, top - 14, "CUDA, src/cuda", weight=600, color=GPU[1], size=13)
    p.arrow((cpu + 190, 324), (cpu + 190, top - 2))
    p.arrow((cpu + 230, 324), (cpu + 230, 340), (gpu + 190, 340), (gpu + 190, top - 2))
    steps = (
        ("plan", "blocks, chunks, memory,|instruction set, threads", "which kernels, splits of the|columns, workspace"),
        (
            "executor",
            "run, schedule, team: waves, threads|block, support, score: scores of tiles|"
            "value, results: states into results|grad, grad_sparse: dz into da and db",
            "launches in the caller's stream,|through one table of functions,|device.h, which the tests replace|"
            "by an emulator",
        ),
        (
            "kernels",
            "one source for baseline, AVX2,|AVX-512, NEON: products and packs,|states, a file for each divergence,|"
            "all on a few vector words",
            "sweeps, gradients, rows: one list,|kernels.def. PTX and machine code|for sm_80 and later; cuBLAS for|"
            "gradients of wide operands",
        ),
    )
    for name, on_cpu, on_gpu in steps:
        height = 34 + 16 * (on_cpu.count("|") + 1)
        for x, colors, words in ((cpu, ENGINE, on_cpu), (gpu, GPU, on_gpu)):
            p.card(x, top, 256, height, colors, name, words, size=11.5)
            if name != "kernels":
                p.arrow((x + 128, top + height), (x + 128, top + height + 14))
        top += height + 16

    # The proof, beside all of it.
    p.box(572, 50, 124, top - 66, PROOF)
    p.text(582, 72, "the proof", size=13, weight=600, color=PROOF[1])
    for y, words in (
        (98, "reference.c: the|formulas in double,|in plain loops. It|shares no line with|the engine."),
        (204, "A kit of cases|draws problems;|one bound says how|far results differ."),
        (294, "Used by tests/, and|by streamkl check|on your machine."),
        (368, "CUDA's kernels run|in an emulator of|the PTX that nvcc|made: tests/cuda."),
        (458, "Laws that results|must obey, fuzzing,|sanitizers, mutants,|other libraries'|results."),
        (564, "The same bits for|any number of|threads, and exact|zeros where both|sides are equal."),
    ):
        p.lines(582, y, words, size=11)
    p.arrow((572, 149), (550, 149), color=PROOF[1], both=True)
    p.write()


def blocks() -> None:
    p = Picture("blocks", 648, "Block, panel, tile, chunk", "How rows and columns of the logits are cut up on the CPU.")
    x, y, w, h = 128, 96, 504, 224
    tiles, panels, panel = 14, 4, 30
    tile, top, bottom = w / tiles, y + 48, y + 48 + panels * panel
    p.span(x, x + w, 78, "columns: keys, or words of the vocabulary")
    p.text(30, y + h / 2, "rows: queries or tokens", size=12, color=SOFT, anchor="middle", turn=-90)
    p.box(x, y, w, h, (WHITE, LINE), radius=0)
    p.text(x + 10, y + 28, "the logits of both sides: never there all at once", size=12, color=SOFT)
    p.text(x + 10, y + h - 12, "other blocks: up to 8 at once, the others in later waves", size=12, color=SOFT)
    p.box(x, top, w, panels * panel, ENGINE, radius=0)
    for i in range(1, tiles):
        p.line(x + i * tile, top, x + i * tile, bottom, "#8cbfb3")
    for i in range(1, panels):
        p.line(x, top + i * panel, x + w, top + i * panel, "#8cbfb3")
    p.box(x + 3 * tile, top, 4 * tile, panels * panel, ("#f2c14e", "none"), radius=0, opacity=0.35)
    p.box(x + 3 * tile, top, 4 * tile, panels * panel, ("none", LIST[1]), radius=0, stroke=2)
    words = "chunk: the tiles of one task"
    p.text(x + 5 * tile, bottom + 18, words, size=12, color="#8a7010", anchor="middle", weight=600)
    p.box(x + 10 * tile, top + panel, tile, panel, DZ, radius=0, stroke=2)
    p.line(x - 10, top, x - 10, bottom, ENGINE[1], 1.6)
    for at in (top, bottom):
        p.line(x - 14, at, x - 6, at, ENGINE[1], 1.6)
    style = dict(size=12, color=ENGINE[1], weight=600, step=15)
    p.lines(x - 18, top + 48, "block:|up to 512|rows", anchor="end", **style)
    p.lines(x + w + 8, top + 12, "panel:|nr rows", **style)
    p.span(x + 12 * tile, x + 13 * tile, top - 8, "tile: 192", ENGINE[1])

    # One panel's part of one tile, and the micro-kernel's strip of it.
    zx, zy, lanes, cell = 86, 400, 16, 19.5
    p.arrow((x + 10.5 * tile, top + 2 * panel), (x + 10.5 * tile, 344), (zx + 156, 344), (zx + 156, 366), color=DZ[1])
    p.text(zx, 388, "a score tile: one panel's part of one tile", size=13, weight=600, color=DZ[1])
    for j in range(9):
        for i in range(lanes):
            fill = "#f2b8b2" if 3 <= j < 6 else DZ[0]
            p.box(zx + i * cell, zy + j * cell, cell, cell, (fill, "#e3a39d"), radius=0, stroke=0.6)
    p.box(zx, zy + 3 * cell, lanes * cell, 3 * cell, ("none", DZ[1]), radius=0, stroke=2)
    p.span(zx, zx + lanes * cell, zy + 9 * cell + 16, "nr rows, in the SIMD lanes (AVX2: 16)", below=True)
    p.arrow((zx - 14, zy), (zx - 14, zy + 9 * cell))
    p.text(zx - 24, zy + 4.5 * cell, "192 columns", size=12, color=SOFT, anchor="middle", turn=-90)
    p.lines(
        432,
        388,
        "Rows lie side by side in the lanes: a row's|maximum, sums and gradient never need|a step across lanes.",
        size=12,
    )
    p.text(432, 460, "strip", size=12.5, weight=600, color=DZ[1])
    p.lines(
        432,
        478,
        "mr columns (AVX2: 6). The micro-kernel|holds mr x nr numbers in registers and|adds an outer product per entry of dim.",
        size=12,
    )
    p.arrow((427, 474), (zx + lanes * cell + 5, zy + 4.2 * cell), color=DZ[1])
    p.text(432, 550, "One memory, three contents", size=12.5, weight=600)
    p.lines(
        432,
        568,
        "the scores x = <a, b> + bias; where kept,|their exponentials; then dz, which both|gradient products read.",
        size=12,
    )
    p.write()


def wave() -> None:
    p = Picture("wave", 566, "The phases of a wave", "Phases of tasks between barriers, on three threads.")
    words = "All threads run the same phases. A phase is a set of independent tasks, and ends at a barrier."
    p.text(24, 56, words, size=12.5, color=SOFT)
    narrow = 60
    phases = (
        ("pack", narrow, 2, FACE, "rows into|panels", "block|x panel", "block.c"),
        ("sweep", 140, 4, ENGINE, "tiles of scores|into rows' states", "block x chunk", "score.c value.c"),
        ("finish", narrow, 2, LIST, "states into|results", "block|x panel", "results.c"),
        ("second sweep", 140, 4, PROOF, "not for a KL: sums of|the divergence", "then finish again", "value.c"),
        ("tiles", 140, 4, DZ, "dz of a tile, and|at once db and da", "block x chunk", "grad.c"),
        ("write", narrow, 2, FACE, "da into|the output", "block|x panel", "block.c"),
    )
    x, y, row = 88, 96, 30
    words_at = y + 3 * row + 30
    for thread in range(3):
        p.text(24, y + thread * row + 19, f"thread {thread}", size=11.5, color=SOFT)
    p.line(x - 3, y - 8, x - 3, y + 3 * row + 4, INK, 1.6)
    for number, (name, width, count, colors, words, tasks, file) in enumerate(phases):
        for thread in range(3):
            # Tasks of uneven length, by a fixed pattern; who is first to finish waits at the barrier.
            pattern = [7 + 5 * ((thread + 2 * number + 3 * k) % 4) for k in range(count)]
            unit = (width - 8) * (1, 0.93, 0.86)[(thread + number) % 3] / sum(pattern)
            for k, part in enumerate(pattern):
                at = x + 2 + unit * sum(pattern[:k])
                p.box(round(at, 1), y + thread * row + 2, round(part * unit - 2, 1), row - 6, colors, 3, 1)
        p.line(x + width - 3, y - 8, x + width - 3, y + 3 * row + 4, INK, 1.6)
        # The words of narrow phases hang lower, so that none touch.
        low = 90 if width == narrow else 0
        if low:
            p.line(x + 24, words_at - 20, x + 24, words_at + low - 16, colors[1], 1, "2 3")
        p.text(x, words_at + low, name, size=12.5, weight=600, color=colors[1])
        p.lines(x, words_at + low + 17, words, size=11.5, step=15)
        p.lines(x, words_at + low + 47, tasks, size=11.5, color=SOFT, step=15)
        p.text(x, words_at + low + (77 if low else 62), file, size=11, mono=True, color=SOFT)
        x += width
    p.text(x - 2, y - 16, "barriers", size=11.5, color=SOFT, anchor="end")

    p.box(24, 404, 672, 146, (WHITE, LINE))
    p.text(38, 426, "Where things stay", size=13, weight=600)
    p.lines(
        38,
        446,
        "A thread's queue is the same part of the columns in every phase over chunks: what it kept is in its cache.|"
        "Idle threads steal from the back of other threads' queues. No sum depends on who worked on it: each chunk|"
        "has states and a da of its own, and these are added in the order of the chunks.|"
        "Where dim is long, a slab of kept tiles takes two phases instead of 'tiles': dz and db, then da.|"
        "Before the first wave a phase clears the outputs. Before each wave, and after the last, sums of db that were|"
        "kept in f32 are rounded and leave, if their block goes on to the columns of another head.",
        size=11.5,
        step=17,
    )
    p.write()


def cuda_block() -> None:
    p = Picture("cuda_block", 716, "A CUDA block", "Stationary rows, streamed columns, and the reuse of dz.")

    def memory(x, y, words):
        p.text(x, y, words, size=11, color=SOFT, weight=600)

    def flow(*points, color=GPU[1]):
        p.arrow(*points, color=color, width=2)

    # The value.
    p.text(24, 64, "The value: a block owns a tile of rows, the columns stream by", size=13.5, weight=600, color=GPU[1])
    memory(24, 92, "L2, DEVICE MEMORY")
    for k in range(6):
        words = {1: "tiles of B_P", 4: "tiles of B_Q"}.get(k, "")
        p.note(24, 102 + 25 * k, 112, 21, P if k < 3 else Q, words)
    flow((136, 175), (190, 175))
    p.text(163, 166, "copies", size=11, color=SOFT, anchor="middle")
    memory(194, 92, "SHARED MEMORY")
    for y, words, dash in ((102, "stage in use", ""), (178, "stage on its way", "4 3")):
        p.box(194, y, 120, 70, (WHITE, LINE), dash=dash)
        p.text(203, y + 17, words, size=11)
        p.box(203, y + 25, 49, 37, P, radius=3)
        p.box(257, y + 25, 49, 37, Q, radius=3)
    flow((314, 137), (370, 137))
    p.text(342, 127, "ldmatrix", size=11, color=SOFT, anchor="middle")
    memory(374, 92, "REGISTERS")
    p.box(374, 102, 322, 146, (WHITE, LINE))
    p.note(386, 114, 92, 57, P, "rows of A_P|stay here")
    p.note(386, 179, 92, 57, Q, "rows of A_Q|stay here")
    flow((478, 175), (500, 175))
    p.note(502, 126, 80, 98, DZ, "x_P, x_Q|of a few|columns")
    flow((582, 175), (602, 175))
    p.note(604, 126, 82, 98, (LIST[0], "#8a7010"), "state: m, l|of both|sides, acc")
    p.lines(
        24,
        276,
        "Two products a tile, by mma.sync. One barrier a tile: right behind it, the next tile is copied into the|"
        "stage that everybody has just left. Only the state leaves the block, once. Where the columns are split|"
        "over blocks, each has states of its own, which merge in double. Operands wider than 256 do not fit in|"
        "registers: then A streams through shared memory as B does, 64 entries of dim at a time, in three stages.",
        size=12,
        step=17,
    )

    # The backward.
    p.line(24, 346, 696, 346, "#d8d3c4")
    p.text(24, 374, "Attention's gradient: dz is used where it was made", size=13.5, weight=600, color=GPU[1])
    memory(24, 402, "REGISTERS")
    p.box(24, 412, 102, 110, (WHITE, LINE))
    p.note(34, 422, 82, 42, P, "own P")
    p.note(34, 470, 82, 42, Q, "own Q")
    memory(24, 566, "SHARED MEMORY")
    p.box(24, 576, 236, 60, (WHITE, LINE))
    p.note(34, 586, 104, 40, P, "streamed P")
    p.note(146, 586, 104, 40, Q, "streamed Q")
    flow((126, 467), (186, 467))
    flow((156, 576), (156, 502), (186, 502))
    p.text(164, 546, "products 1 and 2", size=11.5, color=SOFT)
    p.note(188, 438, 92, 84, DZ, "x_P, x_Q of|16 streamed|vectors")
    flow((280, 480), (356, 480), color=DZ[1])
    p.lines(318, 448, "LSEs, c|of the row", size=11, color=SOFT, anchor="middle", step=14)
    p.note(358, 438, 100, 84, DZ, "dz, rounded|to the type of|the operands", stroke=2.2)
    flow((458, 480), (536, 480), color=DZ[1])
    p.lines(496, 448, "as it lies:|left operand", size=11, color=SOFT, anchor="middle", step=14)
    p.box(538, 412, 158, 110, ENGINE)
    p.lines(617, 438, "out += dz · streamed", size=12, anchor="middle", color=ENGINE[1], weight=600)
    p.lines(617, 464, "f32 sums in registers:|da of the block's rows,|or db of its columns", size=11.5, anchor="middle")
    flow((260, 606), (617, 606), (617, 526))
    p.text(276, 598, "product 3: the streamed tile again, read transposed", size=11.5, color=SOFT)
    p.lines(
        24,
        662,
        "By rows: own are rows of A, streamed is B, out is da. By columns: own are rows of B, streamed are the A of all|"
        "heads that share it, out is db. Each computes the logits anew, and gives the same bits every time. With any_order|"
        "one kernel makes both. Other gradients put dz into a slab of memory, and cuBLAS multiplies.",
        size=11.5,
        step=17,
    )
    p.write()


if __name__ == "__main__":
    for draw in (layers, blocks, wave, cuda_block):
        draw()
