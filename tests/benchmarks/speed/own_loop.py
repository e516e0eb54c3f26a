"""The cost of a selection in a webdataset pipeline, and whether it trains on what `finetune` does.

    python tests/benchmarks speed.own_loop [--shards 8] [--rounds 5]

Both pipelines read the same shards and decode every image to a crop, in one process; in turns,
without and with the stage of a selection that keeps every pair, so that the stage is all that
differs. Then the pairs, weights and captions of a selection of three in four are compared with
those of `finetune`'s loader, over two ranks and after a resume.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import webdataset as wds
from corpora import photograph_shards
from records import Row, benchmark

import ncclean.webdataset
from ncclean.data.decode import ImageDecoder, Preprocessing
from ncclean.data.options import LoaderOptions
from ncclean.data.reader import read_samples
from ncclean.data.selection_reader import SelectionReader
from ncclean.data.shards import resolve_shards
from ncclean.data.weighted_loader import WeightedLoader

CROP = Preprocessing((224, 224), (0.5,) * 3, (0.5,) * 3)


def main(shards: int = 8, size: int = 1000, rounds: int = 5) -> Iterator[Row]:
    """Yield the seconds of each pipeline in each round, then what was compared."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        source = photograph_shards(Path(folder) / "shards", shards, size)
        everything = write_selection(Path(folder) / "all.parquet", source, lambda row: True)
        urls = [ref.url for ref in resolve_shards([str(source)])]
        stage = ncclean.webdataset.select(everything)
        passed(urls)  # once, so that the files are in memory
        for number in range(rounds):
            row: Row = {"round": number}
            for name, stages in (("plain", ()), ("selected", (stage,)))[:: (-1) ** number]:
                start, process = time.perf_counter(), time.process_time()
                row[f"{name}_pairs"] = passed(urls, *stages)
                row[f"{name}_seconds"] = time.perf_counter() - start
                row[f"{name}_processor"] = time.process_time() - process
            yield row
        part = write_selection(Path(folder) / "part.parquet", source, lambda row: row % 4 > 0)
        yield {"compared": compared(source, part), "is_equal": True}


def write_selection(path: Path, shards: Path, is_kept) -> str:
    """A selection of the pairs whose number is kept, with weights that tell them apart."""
    samples = (
        (shard.name, sample.key) for shard in resolve_shards([str(shards)])
        for sample in read_samples(shard)
    )  # fmt: skip
    rows = [(*place, number) for number, place in enumerate(samples) if is_kept(number)]
    table = pa.table({
        "uid": [f"{shard}/{key}" for shard, key, _ in rows],
        "shard": [shard for shard, *_ in rows],
        "key": [key for _, key, _ in rows],
        "weight": pa.array([number / 1000 for *_, number in rows], pa.float32()),
        "split": ["retain"] * len(rows),
    })  # fmt: skip
    pq.write_table(table, path)
    return str(path)


def passed(urls: list[str], *stages: object) -> int:
    """Number of pairs that come out of a pipeline, decoded."""
    decoder = ImageDecoder(CROP)
    pipeline = wds.WebDataset(urls, shardshuffle=False).compose(*stages)
    return sum(1 for sample in pipeline if decoder(sample["jpg"]).pixels.numel())


def compared(shards: Path, selection: str) -> int:
    """Pairs that both loaders show, of both ranks, and of one that begins at its third batch."""
    count = 0
    for rank in range(2):
        loader = WeightedLoader(
            resolve_shards([str(shards)]), SelectionReader(selection), CROP,
            LoaderOptions(batch_size=100, augment=False, drop_last=False), rank=rank, world_size=2,
        )  # fmt: skip
        pairs = ncclean.webdataset.SelectedPairs(
            str(shards), selection, drop_last=False, rank=rank, world_size=2
        )
        theirs = Counter(
            pair
            for batch in loader.epoch(0)
            for pair in zip(batch.captions, batch.weights.tolist(), strict=True)
        )
        whole = [(pair["txt"].decode(), pair["weight"]) for pair in pairs]
        pairs.set_epoch(0, batches=3, batch_size=100)
        rest = [(pair["txt"].decode(), pair["weight"]) for pair in pairs]
        assert Counter(whole) == theirs
        assert rest == whole[300:]
        count += len(whole)
    return count


if __name__ == "__main__":
    benchmark(main)
