"""What a task takes of an input shard that several exported shards share, and what it counts."""

from __future__ import annotations

import contextlib

from upath import UPath

from ncclean.data.samples import Sample
from ncclean.data.shards import ShardRef
from ncclean.exporting.choices import Choice
from ncclean.exporting.out_layout import OutLayout, Targets
from ncclean.exporting.plan import ExportTask, Segment
from ncclean.exporting.rows import ExportedRow, free_key, one_caption_each, set_aside
from ncclean.exporting.task import ExportOptions, ShardReport, Writer, _export_segment


class Keys(Writer):
    """Takes the keys of samples."""

    def __init__(self, keys):
        task = ExportTask(0, ())
        super().__init__(task, ExportOptions("s.parquet", "out"), contextlib.ExitStack())
        self.keys, self.taken = keys, []

    def samples(self, segment, choices):
        for key in self.keys:
            yield Sample(0, key)

    def add(self, sample, copy, choice, segment):
        self.taken.append(sample.key)
        return True

    def finish(self):
        pass


def test_samples_of_another_exported_shard_are_not_missing():
    """The second of three is here; one that was selected is nowhere."""
    segment = Segment(ShardRef("s", "/in/s.tar", 1, ""), "s", 1, 1)
    for keys, missing in (("abc", {}), ("abcd", {"s": 1})):
        writer = Keys("abc")
        _export_segment(segment, {key: {key: Choice(1)} for key in keys}, writer)
        assert writer.taken == ["b"]
        assert writer.report.missing == missing
        assert writer.report.samples == 1


def test_a_key_is_free_or_numbered():
    taken = {}
    keys = [free_key(key, taken) for key in ("7", "7_2", "7", "7", "8", "7_2")]
    assert keys == ["7", "7_2", "7_3", "7_4", "8", "7_2_2"]


def test_one_key_everywhere_takes_no_quadratic_time():
    taken = {}
    assert len({free_key("0", taken) for _ in range(200_000)}) == 200_000


def test_statistics_count_samples_that_the_input_lacks():
    shard = ShardRef("a", "/in/a.tar", 1, "")
    task = ExportTask(0, (Segment(shard, "a", 0, 5), Segment(shard, "b", 0, 4)))
    stats = ShardReport(0, samples=6, missing={"a": 1, "b": 2}).statistics(task, 0.0)
    assert (stats["count"], stats["successes"], stats["failed_to_download"]) == (9, 6, 3)
    assert stats["sources"] == {"a": 5, "b": 4}


def test_a_row_has_the_fields_of_its_own_captions():
    """The best of those that it has; one caption's stand for all where there is but one."""
    several = Choice(1, fields={1: {"s": 1}, 0: {"s": 0}})
    assert several.fields_of() == {"s": 1}
    assert several.fields_of({0}) == {"s": 0}
    assert several.fields_of({3}) == {}
    assert Choice(1, fields={2: {"s": 2}}).fields_of({3}) == {"s": 2}


def test_a_value_that_was_set_aside_stays_in_further_exports():
    assert set_aside({"n": 1}, {"n": 2}) == {"original_n": 1}
    assert set_aside({"n": 2, "original_n": 1}, {"n": 3}) == {}


def test_each_caption_of_a_csv_has_its_own_truth():
    values = {"captions": ["a", "b"], "is_noisy": [False, True], "n": [1, 2]}
    rows = one_caption_each([ExportedRow(values)], ("captions",))
    assert [row.values for row in rows] == [
        {"captions": "a", "is_noisy": False, "n": [1, 2]},
        {"captions": "b", "is_noisy": True, "n": [1, 2]},
    ]


# Where an export puts its files.


def test_what_lies_beside_an_output_of_one_file_is_hidden(tmp_path):
    """Loaders of the folder take every file for data, unless a name on its way has a dot."""
    out = UPath(tmp_path / "data" / "validation.parquet")
    targets = Targets(OutLayout("parquet", table=".parquet"), out, 5, ("",))
    assert targets.tables == [out]
    for path in (targets.stats(0), *targets.data(), targets.work / "x"):
        first, *_ = path.relative_to(out.parent).parts
        assert first.startswith(".")
    other = Targets(OutLayout("parquet", table=".parquet"), out.with_name("train.parquet"), 5)
    assert other.work != targets.work
