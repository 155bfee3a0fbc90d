# SPDX-License-Identifier: Apache-2.0
"""python -m streamkl bench: streamkl beside other ways to compute the same, in one run."""

from __future__ import annotations

import sys


def main() -> int:
    if sys.argv[1:2] != ["bench"]:
        print(__doc__.strip() + "\n\nusage: python -m streamkl bench [--help]", file=sys.stderr)
        return 0 if sys.argv[1:2] in (["-h"], ["--help"]) else 2
    from .bench.onednn import limit_onednn

    limited = limit_onednn()  # before torch is imported
    if limited:
        print(f"streamkl: {limited}", file=sys.stderr)
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        print("streamkl: the benchmark needs torch: pip install 'streamkl[bench]'", file=sys.stderr)
        return 1
    from .bench.cli import run

    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
