"""Text of a shard: ordinary samples have enough, the first that has too much is rejected."""

import json

from ncclean.data.samples import Caption, Sample, SkipReason
from ncclean.data.text_budget import TextBudget, parsed_size


def sample(captions, text="a"):
    return Sample(row=0, key="a", captions=[Caption(n, None, text) for n in range(captions)])


def rejected(budget, one, fields=0):
    budget.take(one, fields)
    return one.status is SkipReason.CAPTION_TOO_LARGE


def test_first_captions_are_free_and_others_counted():
    budget = TextBudget(640)
    assert not any(rejected(budget, sample(1)) for _ in range(30_000))
    assert not rejected(budget, sample(1 + 20_000 + 10))
    one = sample(2)
    assert rejected(budget, one)
    assert "captions" in one.error
    assert one.captions == []
    assert not rejected(budget, sample(1))


def test_text_and_fields_take_room():
    budget = TextBudget(0)
    assert not rejected(budget, sample(1), 200 << 20)
    assert rejected(budget, sample(1), 100 << 20)
    assert not rejected(budget, sample(1), 10 << 20)


def test_what_a_json_takes_in_memory():
    assert parsed_size(None) == 0
    assert parsed_size(b"[" * 1000) > 50_000
    ordinary = json.dumps({"caption": "a" * 200, "url": "b" * 100, "width": 3}).encode()
    assert parsed_size(ordinary) < 2 * len(ordinary)
