"""What `--caption-parts` costs: pairs a second with captions of 1, 5 and 15 sentences.

    python tests/benchmarks caption_parts.speed --out runs/parts-speed
        [--record docs/records/caption-parts-speed.json]

Each corpus is scored with and without the option, in turn.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path

from corpora import rendered
from ncclean_pipelines.score import Score
from records import Row, benchmark

from ncclean.base.config import ScoreOptions

SENTENCES = (1, 5, 15)
_WAYS = {"whole": None, "parts": "sentences"}


def speed(out: Path, pairs: int = 1000, repeats: int = 3, model: str = "demo") -> Iterator[Row]:
    """Seconds of each way by the number of sentences, the median of the repeats."""
    for sentences in SENTENCES:
        folder = rendered(out / str(sentences), pairs=pairs, sentences=sentences)
        seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
        for _, (way, parts) in itertools.product(range(repeats), _WAYS.items()):
            command = Score(
                shards=[str(folder)], out=f"{folder}.parquet", model=model, overwrite=True,
                options=ScoreOptions(caption_parts=parts),
            )  # fmt: skip
            seconds[way].append(pairs / command.run().summary.samples_per_second)
        medians = {way: statistics.median(values) for way, values in seconds.items()}
        yield {
            "sentences": sentences, "pairs": pairs, "seconds": medians, "all_seconds": seconds
        }  # fmt: skip


if __name__ == "__main__":
    benchmark(speed)
