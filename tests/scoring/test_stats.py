"""Counts of what went wrong add up, and keep the first reason."""

from ncclean.scoring.stats import ColumnFailures, Distributions, ShardStats


def failures(*reasons):
    made = ColumnFailures()
    for reason in reasons:
        made.add("beauty", reason)
    return made


def test_of_many_failures_the_first_reason_is_kept():
    total = failures("no image", "too dark")
    total += failures("too bright")
    total.add("age", "unknown", 5)
    assert total.counts == {"beauty": 3, "age": 5}
    assert total.reasons == {"beauty": "no image", "age": "unknown"}


def test_statistics_are_read_as_they_are_written():
    stats = ShardStats(7, {"ok": 4, "image_corrupt": 3}, 1.25, "cut short", failures("no image"))
    again = ShardStats.from_json(stats.to_json())
    assert again == stats
    assert again.ok == 4
    whole = ShardStats(1, {"ok": 1}, 0.5)
    assert ShardStats.from_json(whole.to_json()) == whole


def test_pairs_without_a_label_are_a_group_apart_from_one_of_any_name():
    groups = {None: Distributions(), "": Distributions(), "unlabelled": Distributions()}
    for number, group in enumerate(groups.values()):
        group.matched.units = number
    again = Distributions.from_json(Distributions(groups=groups).to_json()).groups
    assert {name: group.matched.units for name, group in again.items()} == {
        None: 0, "": 1, "unlabelled": 2
    }  # fmt: skip
