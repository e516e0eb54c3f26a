"""Peak memory of every objective's loss and backward pass, whole and by blocks of rows.

    python tests/benchmarks speed.objective_memory [--large clip osa "ncu UL"] [--json FILE]

On random (N, 512) embeddings, as they come from the towers; those are not counted, their gradients
are. At N = 8,192 a matrix just fits: it is taken whole, and by blocks too. At N = 16,384 it is
taken by blocks, and at N = 32,768 for the objectives of `--large`. Each measurement is a process of
its own, and what counts is how far its peak lies above what it held before.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from command import BENCHMARK
from records import make_record, write_record

FIT, BLOCKED, LARGE = 8_192, 16_384, 32_768
DIM = 512
# Iterations of NCU's transport: it takes as much memory however many there are.
ITERATIONS = 3
CASES = (
    "clip", "osa", "gradient_ascent", "softclip", "cyclip", "rince", "decl", "bayes",
    "disncl warm-up", "disncl disentangling", "ncu HN", "ncu UL",
)  # fmt: skip


def measure_here(case: str, pairs: int, whole: bool) -> dict[str, float]:
    """GB above what this process held before, and seconds."""
    import torch

    from ncclean.training.objectives import similarity
    from ncclean.training.objectives.base import GlobalBatch
    from ncclean.training.objectives.disncl_losses import Discriminators
    from ncclean.training.objectives.options import NcuOptions, ObjectiveOptions
    from ncclean.training.objectives.registry import make_objective

    similarity.WHOLE = pairs * pairs if whole else 0
    method, _, phase_name = case.partition(" ")
    options = ObjectiveOptions(ncu=NcuOptions(max_iterations=ITERATIONS))
    objective: Any = make_objective(method, options)
    if method == "disncl":
        objective._discriminators = Discriminators(DIM, DIM)
    phase = next(one for one in objective.phases if one.name == (phase_name or one.name))
    scale = torch.tensor(100.0, requires_grad=True)

    def step(count: int) -> tuple[float, float]:
        generator = torch.Generator().manual_seed(0)
        given = {
            name: torch.randn(count, DIM, generator=generator)
            for name in (
                "image", "text", "negative",
                "image_invariant", "text_invariant", "image_exclusive", "text_exclusive",
            )
            if method == "disncl" or name in ("image", "text")
            or (method == "ncu" and name == "negative")
        }  # fmt: skip
        given = {
            name: torch.nn.functional.normalize(value, dim=1).requires_grad_()
            for name, value in given.items()
        }
        weights = torch.rand(count, generator=generator)
        facts = GlobalBatch(weights, weights < 0.1, torch.arange(count), seed=1)
        before, start = _peak_gb(), time.perf_counter()
        terms = objective.terms(given, scale, facts, phase)
        torch.stack(list(terms.values())).sum().backward()
        return _peak_gb() - before, time.perf_counter() - start

    step(64)  # what is loaded at the first call
    used, seconds = step(pairs)
    return {"gb": used, "seconds": seconds}


def _peak_gb() -> float:
    """Of this process so far; the kernel counts in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(case: str, pairs: int, *, whole: bool) -> dict[str, float]:
    """`measure_here` in a process of its own."""
    command = [
        *BENCHMARK,
        "speed.objective_memory",
        "--here",
        case,
        str(pairs),
        "whole" if whole else "blocks",
    ]
    found = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, float] = json.loads(found.stdout)
    print(case, f"{pairs:,}", "whole" if whole else "by blocks", result, file=sys.stderr)
    return result


def memory_of(case: str, large: bool) -> dict[str, Any]:
    """GB at N = 8,192 whole and by blocks, and by blocks at 16,384 and, if asked for, 32,768.

    `slower` is the time by blocks over that of whole matrices.
    """
    whole, blocks = (measure(case, FIT, whole=whole) for whole in (True, False))
    return {
        "objective": case,
        "whole_gb": whole["gb"],
        "blocks_gb": blocks["gb"],
        "blocked_gb": measure(case, BLOCKED, whole=False)["gb"],
        "large_gb": measure(case, LARGE, whole=False)["gb"] if large else None,
        "slower": blocks["seconds"] / whole["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--large", nargs="+", choices=CASES, default=(), help="also at N = 32,768")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        case, pairs, how = arguments.here
        print(json.dumps(measure_here(case, int(pairs), how == "whole")))
        return
    rows = [memory_of(case, case in arguments.large) for case in arguments.only]
    if arguments.json:
        settings = {"pairs": [FIT, BLOCKED, LARGE], "dim": DIM, "transport_iterations": ITERATIONS}
        write_record(arguments.json, make_record(rows, settings=settings))


if __name__ == "__main__":
    main()
