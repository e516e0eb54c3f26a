"""Runs a benchmark by family and name.

    python tests/benchmarks neighbours.equal --pairs 300_000

A family is a folder. Its modules import one another, and those beside this one, from here.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    names = sorted(
        f"{path.parent.name}.{path.stem}"
        for path in HERE.glob("*/*.py")
        if '__name__ == "__main__"' in path.read_text("utf-8")
    )
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        raise SystemExit("\n".join(["name one of", *names]))
    # OpenMP's workers spin while they wait, which takes cores from others; `ncclean` sets it too.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.path[:1] = [
        str(HERE),
        str(HERE.parents[1]),
    ]  # benchmarks, and the tests' stores and servers
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
