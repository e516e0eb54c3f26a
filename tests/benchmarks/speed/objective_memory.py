"""Peak memory of every objective's loss and backward pass, whole and by blocks of rows.

    python tests/benchmarks speed.objective_memory [--large clip osa "ncu UL"] [--json FILE]

On random (N, 512) embeddings, as they come from the towers; those are not counted, their gradients
are. At N = 8,192 a matrix just fits: it is taken whole, and by blocks too. At N = 16,384 it is
taken by blocks, and at N = 32,768 for the objectives of `--large`. Each measurement is a process of
its own, and what counts is how far its peak lies above what it held before.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any

from process import in_process
from records import Row, benchmark

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


def memory(only: tuple[str, ...] = CASES, large: tuple[str, ...] = ()) -> Iterator[Row]:
    """GB at N = 8,192 whole and by blocks, and by blocks at 16,384 and, if asked for, 32,768.

    `slower` is the time by blocks over that of whole matrices.
    """
    for case in only:
        whole, blocks, blocked = (
            in_process(measure_here, case, pairs, is_whole)["result"]
            for pairs, is_whole in ((FIT, True), (FIT, False), (BLOCKED, False))
        )
        of_large = in_process(measure_here, case, LARGE, False) if case in large else None
        yield {
            "objective": case,
            "whole_gb": whole["gb"],
            "blocks_gb": blocks["gb"],
            "blocked_gb": blocked["gb"],
            "large_gb": of_large["result"]["gb"] if of_large is not None else None,
            "slower": blocks["seconds"] / whole["seconds"],
        }


if __name__ == "__main__":
    benchmark(memory, pairs=[FIT, BLOCKED, LARGE], dim=DIM, transport_iterations=ITERATIONS)
