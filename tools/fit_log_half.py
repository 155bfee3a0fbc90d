# SPDX-License-Identifier: Apache-2.0
"""Prints the table of src/cpu/kernels/log_half.h: what it is, and why the intervals lie as they do, is said there.

    python tools/fit_log_half.py

A fit is the polynomial through the function at Chebyshev's points of its interval, in double. Needs NumPy alone.
"""

import numpy as np

DEGREE = 4


def slope(u):
    """-log(1/2 + 2^-u / 2) / u, with its limit at 0."""
    small = u < 1e-8
    u = np.where(small, 1.0, u)
    return np.where(small, np.log(2) / 2, -np.log1p(np.expm1(-u * np.log(2)) / 2) / u)


def interval(index):
    """The u of a lane whose bits of u + 8 say 'index'."""
    return (index / 2, 0.5) if index < 16 else (float(index - 8), 1.0)


def fit(index):
    left, width = interval(index)
    points = (np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1)) + 1) / 2 * width
    return np.linalg.solve(np.vander(points, increasing=True), slope(left + points))


table = np.array([fit(index) for index in range(32)]).T
for power, row in enumerate(table):
    numbers = [f"{np.float32(c):.9g}" for c in row]
    lines = [
        ", ".join(n + ("f" if "." in n or "e" in n else ".0f") for n in numbers[i : i + 8]) for i in range(0, 32, 8)
    ]
    print("    {" + ",\n     ".join(lines) + "}," + f" /* t^{power} */")
