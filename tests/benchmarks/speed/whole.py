"""Whole commands over photographs, start included, beside the model alone on the same crops.

    python tests/benchmarks speed.whole --out FOLDER [--clip-retrieval PROGRAMS] [--json FILE]

ViT-B-32 with random weights. Model alone is the estimator, loaded and in the precision of `score`,
on decoded crops in memory, captions included. The plain loop and clip-retrieval compute in float32.
PROGRAMS is the `bin` folder of an environment with the packages that `compare.peers` names.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from compare import peers
from compare.models import write_models
from compare.rows import cost_of
from corpora import photograph_shards
from measure import take_turns
from process import BENCHMARK, NCCLEAN, run
from records import Row, benchmark
from towers import plain_loop, random_vit_b_32

from ncclean.models.estimator import Estimator
from speed.end_to_end import DecodedShard, decode, model_only

_SHARD = 1000
_BATCH = 256


def whole(
    out: Path, pairs: int = 2000, repeats: int = 3, clip_retrieval: Path | None = None,
    plain: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """A row for each way; with `--plain` run the plain loop alone and measure nothing."""
    folder = photograph_shards(out, pairs // _SHARD, _SHARD)
    shards = sorted(folder.glob("*.tar"))
    if plain:
        plain_loop(random_vit_b_32(), shards, _BATCH)
        return {}
    files = write_models(out / "models")["ViT-B-32"]
    sizes = ["--out", out, "--pairs", str(pairs)]
    commands: dict[str, list[str | Path]] = {
        "score": [*NCCLEAN, "score", folder, "--out", out / "s.parquet", "--overwrite",
                  "--quiet", *files.ncclean],
        "plain loop": [*BENCHMARK, "speed.whole", *sizes, "--plain"],
    }  # fmt: skip
    if clip_retrieval is not None:
        scorer = peers.clip_retrieval(clip_retrieval, out / "models")
        commands["clip-retrieval"] = scorer.command(folder, files, out / "clip-retrieval")
    estimator = random_vit_b_32().estimator("auto")
    decoded = decode(estimator, shards)
    ways: dict[str, Callable[[], float]] = {
        name: functools.partial(_run, command, out / f"{name}.txt")
        for name, command in commands.items()
    }
    ways["model alone"] = functools.partial(_alone, estimator, decoded)
    for way, timing in take_turns(ways, repeats).items():
        yield {"way": way, "seconds": timing.best, "processor_seconds": min(timing.results)}
    return {"settings": {"pairs": pairs, "precision": estimator.precision}}


def _alone(estimator: Estimator, decoded: Sequence[DecodedShard]) -> float:
    begin = time.process_time()
    model_only(estimator, decoded)
    return time.process_time() - begin


def _run(command: list[str | Path], log: Path) -> float:
    """The seconds of a processor that it took, with all its processes."""
    environment = {"HF_HUB_OFFLINE": "1", "NCCLEAN_CACHE": ""}
    return float(cost_of(run(command, log, environment=environment))["processor_seconds"])


if __name__ == "__main__":
    benchmark(whole)
