# SPDX-License-Identifier: Apache-2.0
"""Prints src/cpu/kernels/even_tables.h: what the functions are, and why the intervals lie as they do, is said in even.h.

    python tools/fit_even.py > src/cpu/kernels/even_tables.h

A fit is the polynomial through the function at Chebyshev's points of its interval. At u = 0 the functions are 0, and that
of the sum has no slope either: there those coefficients are 0, and the rest is fitted to what remains, so that the
relative error stays small. Needs mpmath alone.
"""

import struct

from mpmath import cos, log, lu_solve, matrix, mp, mpf, pi, power

mp.prec = 100
ENTRIES = {32: (4, 5), 8: (7, 7)}  # degrees of even_log and even_sum


def even_log(u):
    return log((1 + power(2, -u)) / 2)


def even_sum(u):
    r = power(2, -u)
    return -((1 + r) * even_log(u) + r * u * log(2))


def interval(index, entries):
    """The u of a lane whose bits of u + 2 say 'index': the lowest two of the exponent, then of the mantissa."""
    exponent, mantissa = divmod(index, entries // 4)
    start = mpf(2) ** (exponent + 1)
    width = start / (entries // 4)
    return start - 2 + mantissa * width, width


def fit(function, zeros, degree, left, width):
    """Coefficients of t^0 .. t^degree, t = u - left; at u = 0 the first 'zeros' are 0."""
    zeros = zeros if left == 0 else 0
    n = degree + 1 - zeros
    points = [(cos(pi * (k + mpf(1) / 2) / n) + 1) / 2 * width for k in range(n)]
    powers = matrix([[t**k for k in range(n)] for t in points])
    return [mpf(0)] * zeros + list(lu_solve(powers, matrix([function(left + t) / t**zeros for t in points])))


def rounded(x):
    """As C has it, rounded to f32."""
    text = f"{struct.unpack('f', struct.pack('f', float(x)))[0]:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def print_table(name, function, zeros, degree, entries):
    fits = [fit(function, zeros, degree, *interval(i, entries)) for i in range(entries)]
    print(f"static const _Alignas(64) float {name}_table[{degree + 1}][TABLE] = {{")
    for k in range(degree + 1):
        numbers = [rounded(f[k]) for f in fits]
        lines = [", ".join(numbers[i : i + 8]) for i in range(0, entries, 8)]
        print("    {" + ",\n     ".join(lines) + "}," + f" /* t^{k} */")
    print("};")


print("""/* SPDX-License-Identifier: Apache-2.0
 * Coefficients of even.h. Printed by tools/fit_even.py. */
/* clang-format off */""")
for entries, (of_log, of_sum) in ENTRIES.items():
    print(f"#{'el' if entries == 8 else ''}if TABLE == {entries}")
    print_table("even_log", even_log, 1, of_log, entries)
    print_table("even_sum", even_sum, 2, of_sum, entries)
print("#endif\n/* clang-format on */")
