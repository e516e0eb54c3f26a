"""Which pairs are shown."""

import pytest

from ncclean.report.pairs import GROUPS, choose_pairs
from ncclean.report.table import ScoreTable
from tests.report.tables import HOSTILE, graded, write_scores


def chosen(tmp_path, rows, each):
    table = ScoreTable.open([str(write_scores(tmp_path / "s.parquet", rows))])
    pairs = choose_pairs(table, each)
    assert len({(pair.shard, pair.row) for pair in pairs}) == len(pairs)
    return {group: [pair.key for pair in pairs if pair.group == group] for group in GROUPS}, pairs


def test_groups_and_their_order(tmp_path):
    rows = [*graded(), {"status": "image_missing"}, {"status": "caption_missing", "error": "empty"}]
    keys, pairs = chosen(tmp_path, rows, 2)
    assert keys["worst"] == ["k0", "k1"]
    assert keys["best"] == ["k39", "k38"]
    assert sorted(keys["borderline"]) == ["k19", "k20"]
    assert keys["failed"] == ["k41", "k40"]
    assert pairs[0].flags == (
        "osa_noisy", "ncu_split = forget", "not disncl_clean", "noise_probability ≥ 0.5",
        "clean_posterior < 0.5",
    )  # fmt: skip
    assert pairs[0].scores["is_noisy"] is True
    assert pairs[-1].error is None
    assert pairs[-2].error == "empty"


def test_few_pairs_are_shown_once_each(tmp_path):
    keys, pairs = chosen(tmp_path, graded(3), 24)
    assert keys == {
        "worst": ["k0", "k1"], "borderline": [], "wrong sentence": [], "almost right": [],
        "best": ["k2"], "failed": [],
    }  # fmt: skip
    assert len(pairs) == 3


def test_without_noise_probability_the_cosine_decides(tmp_path):
    rows = [{"similarity": value / 10} for value in range(5)]
    keys, _ = chosen(tmp_path, rows, 24)
    assert keys["worst"] == ["k0", "k1"]
    assert keys["best"] == ["k4", "k3", "k2"]
    assert keys["borderline"] == []


def test_matched_pairs_with_a_wrong_word_are_a_group(tmp_path):
    rows = [{**row, "near_miss_probability": 0.1} for row in graded()]
    word = {"near_miss_probability": 0.9, "suspect_word": "red", "better_word": "blue"}
    rows[2] |= word  # mismatched altogether
    rows[30] |= word
    rows[35] |= {**word, "near_miss_probability": 0.95, "suspect_word": "<b>" * 200}
    rows[36] |= {**word, "suspect_word": None, "better_word": None}
    keys, pairs = chosen(tmp_path, rows, 2)
    assert keys["almost right"] == ["k35", "k30"]
    assert keys["best"] == ["k39", "k38"]
    by_key = {pair.key: pair for pair in pairs}
    assert by_key["k30"].words == ("red", "blue")
    assert len(by_key["k35"].words[0]) < 320
    assert by_key["k39"].words is None


def test_none_at_all(tmp_path):
    assert chosen(tmp_path, graded(), 0)[1] == ()
    assert chosen(tmp_path, [], 5)[1] == ()


def test_long_captions_are_cut_with_the_true_count(tmp_path):
    rows = [{**row, "text": HOSTILE["one_word"]} for row in graded(3)]
    _, pairs = chosen(tmp_path, rows, 3)
    assert len(pairs[0].caption) == 2000
    assert pairs[0].caption_left_out == pytest.approx(998_000)


def test_same_rows_in_other_shards_do_not_mix(tmp_path):
    rows = [
        {**row, "shard": shard, "row": number, "key": f"{shard}-{number}"}
        for shard in ("a", "b'; --")
        for number, row in enumerate(graded(10))
    ]
    keys, pairs = chosen(tmp_path, rows, 1)
    assert keys["worst"] == ["a-0"]
    assert all(pair.key == f"{pair.shard}-{pair.row}" for pair in pairs)
