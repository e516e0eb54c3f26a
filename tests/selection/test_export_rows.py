"""What a task takes of an input shard that several exported shards share."""

from types import SimpleNamespace

import pytest

from ncclean.data.samples import SkipReason
from ncclean.data.shards import ShardRef
from ncclean.selection import export_rows
from ncclean.selection.export_plan import Segment
from ncclean.selection.export_task import Chosen, ExportOptions, ShardReport


class Samples(list):
    late_metadata: dict = {}  # noqa: RUF012


def test_samples_of_another_exported_shard_are_not_missing(monkeypatch):
    """The second of three is here; one that was selected is nowhere."""
    samples = Samples(
        SimpleNamespace(key=key, image=b"", status=SkipReason.OK, further_images=[])
        for key in ("a", "b", "c")
    )
    monkeypatch.setattr(export_rows, "read_samples", lambda *_, **__: samples)
    monkeypatch.setattr(export_rows, "is_table", lambda _: False)
    monkeypatch.setattr(export_rows, "_exported", lambda sample, *_: sample.key)
    segment = Segment(ShardRef("s", "/in/s.tar", 1, ""), "s", 1, 1)
    options = ExportOptions(selection="s.parquet", out="out")
    for keys, missing in (("abc", {}), ("abcd", {"s": 1})):
        report = ShardReport(0)
        chosen = Chosen(dict.fromkeys(keys, 1), {}, None)
        taken = list(export_rows._of_segment(segment, chosen, options, report, []))
        assert taken == ["b"]
        assert report.missing == missing


@pytest.mark.parametrize(("is_table", "left_out"), [(True, 0), (False, 2)])
def test_further_pictures_are_left_out_of_tars_alone(monkeypatch, is_table, left_out):
    """A table keeps its other columns."""
    samples = Samples(
        SimpleNamespace(key=key, image=b"", status=SkipReason.OK, further_images=["mask"])
        for key in ("a", "b")
    )
    monkeypatch.setattr(export_rows, "read_samples", lambda *_, **__: samples)
    monkeypatch.setattr(export_rows, "is_table", lambda _: is_table)
    monkeypatch.setattr(export_rows, "written_names", lambda _: {"text": "TEXT"})
    monkeypatch.setattr(export_rows, "_exported", lambda sample, *_: sample.key)
    report, segment = ShardReport(0), Segment(ShardRef("s", "/in/s", 1, ""), "s", 0, 2)
    options = ExportOptions(selection="s.parquet", out="out")
    chosen = Chosen(dict.fromkeys("ab", 1), {}, None)
    assert list(export_rows._of_segment(segment, chosen, options, report, [])) == ["a", "b"]
    assert report.further_images == left_out
