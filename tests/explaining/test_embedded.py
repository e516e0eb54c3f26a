"""Vectors of some pairs, in the order of their places whatever block they lie in."""

from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa

from ncclean.explaining import embedded
from ncclean.explaining.embedded import Embedded


def block(keys):
    facts = pa.table({
        "uid": keys, "shard": ["s"] * len(keys), "key": keys,
        "caption_number": pa.array([0] * len(keys), pa.int16()),
    })  # fmt: skip
    numbers = np.array([[int(key)] for key in keys], np.float16)
    read = SimpleNamespace(facts=facts, image=numbers, text=-numbers)
    return SimpleNamespace(read=lambda: read)


def test_vectors_are_in_the_order_of_the_places(monkeypatch):
    corpus = Embedded([block(["3", "0", "5"]), block(["1", "4"])])
    wanted = (
        "SELECT range % 2 AS member, range AS place, 's' AS shard, range::VARCHAR AS key, "
        "NULL::SMALLINT AS caption_number FROM range(7)"
    )
    read = corpus.vectors(duckdb.connect(), wanted)
    assert set(read) == {0, 1}
    places, image, text = read[1]
    assert places.tolist() == [1, 3, 5]
    assert image[:, 0].tolist() == [1, 3, 5]
    assert text[:, 0].tolist() == [-1, -3, -5]
    assert read[0][0].tolist() == [0, 4]  # 2 and 6 have no vectors
    monkeypatch.setattr(embedded, "MOST_PAIRS", 2)
    assert corpus.vectors(duckdb.connect(), wanted)[1][0].tolist() == [1, 3]
    assert corpus.vectors(duckdb.connect(), f"{wanted} WHERE range > 5") == {}
