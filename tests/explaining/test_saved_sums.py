"""The sums by group: of kinds with more than one value, written once."""

import numpy as np

from ncclean.base.progress import SILENT
from ncclean.explaining.aggregates import Totals
from ncclean.explaining.prepared_pairs import prepare_pairs
from ncclean.explaining.saved_sums import kinds_present, saved_sums
from ncclean.explaining.working_folder import Work
from tests.explaining.tables import columns, judged, write


def summed(folder, by):
    scores = write(folder / "scores.parquet", judged(columns(2000)))
    work = Work(folder, None)
    pairs = prepare_pairs(work, [scores], (), by, None, None, SILENT)
    with pairs.opened() as connection:
        kinds = kinds_present(connection, pairs)
        totals = Totals.read(connection, pairs.values)
        return kinds, saved_sums(work, connection, kinds, pairs.values, totals, 50, SILENT)


def test_sums_are_those_of_the_pairs_and_written_once(tmp_path, monkeypatch):
    kinds, groups = summed(tmp_path, ["similarity"])
    names = [kind.name for kind in kinds]
    assert {"shard", "host", "word", "phrase", "similarity", "image size"} <= set(names)
    assert not {"ending of the url", "length of the caption"} & set(names)  # all pairs have one
    shards = groups[names.index("shard")]
    assert shards.values == [f"{number:05d}" for number in range(4)]
    assert shards.pairs.sum() == 2000
    ranges = groups[names.index("similarity")]
    assert len(ranges.values) == 8
    assert np.ptp(ranges.pairs.sum(axis=1)) < 100

    def fails(*_):
        raise AssertionError("has been summed before")

    monkeypatch.setattr("ncclean.explaining.saved_sums.group_sums", fails)
    for before, after in zip(groups, summed(tmp_path, ["similarity"])[1], strict=True):
        assert (before.values, before.tested) == (after.values, after.tested)
        assert np.array_equal(before.sums, after.sums)
