"""What the values of further columns depend on."""

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save_file

from ncclean.base.config import ScoreOptions
from ncclean.columns import PairBatch, columns
from ncclean.execution.column_source import EncoderFacts
from ncclean.execution.column_sources import BatchColumns, ColumnSources


def head(path, factor):
    save_file({"weight": torch.full((1, 4), factor), "bias": torch.zeros(1)}, path)
    return f"beauty={path}"


def test_another_head_of_the_same_name_is_another_run(tmp_path, refused):
    first = ColumnSources(ScoreOptions(head=[head(tmp_path / "a.safetensors", 1.0)]))
    same = ColumnSources(ScoreOptions(head=[head(tmp_path / "b.safetensors", 1.0)]))
    other = ColumnSources(ScoreOptions(head=[head(tmp_path / "c.safetensors", 2.0)]))
    assert first.identity() == same.identity()
    assert first.identity() != other.identity()
    assert first.identity()["head"][0].startswith("beauty=")
    refused(first.check, EncoderFacts(dim=5))


@columns(length=pa.int32())
def lengths(batch: PairBatch):
    return {"length": [len(caption) for caption in batch.captions]}


def test_batches_in_any_order_end_in_that_of_the_places(monkeypatch):
    further = ColumnSources(ScoreOptions(columns=[f"{__name__}:lengths"]))
    made = BatchColumns(further)
    for places, captions in (([4, 1], ["xxxx", "x"]), ([0, 3], ["", "xxx"])):
        vectors = torch.from_numpy(np.zeros((2, 4), np.float32))
        batch = PairBatch(captions, vectors, None, [{}, {}], lambda vectors=vectors: vectors)
        made.add(places, batch)
    assert made.in_order()["length"].to_pylist() == [0, 1, 3, 4]
