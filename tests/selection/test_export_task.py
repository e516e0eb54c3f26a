"""Keys of exported samples are their own, however often an input repeats one."""

from ncclean.data.shards import ShardRef
from ncclean.selection.export_plan import ExportTask, Segment
from ncclean.selection.export_task import Chosen, ShardReport, _stats, free_key


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
    stats = _stats(task, ShardReport(0, samples=6, missing={"a": 1, "b": 2}), 0.0)
    assert (stats["count"], stats["successes"], stats["failed_to_download"]) == (9, 6, 3)
    assert stats["sources"] == {"a": 5, "b": 4}


def test_a_row_has_the_fields_of_its_own_captions():
    """The best of those that it has; one caption's stand for all where there is but one."""
    chosen = Chosen({"k": 1}, {"k": {1: {"s": 1}, 0: {"s": 0}}, "j": {2: {"s": 2}}}, None)
    assert chosen.fields_of("k") == {"s": 1}
    assert chosen.fields_of("k", {0}) == {"s": 0}
    assert chosen.fields_of("k", {3}) == {}
    assert chosen.fields_of("j", {3}) == {"s": 2}
