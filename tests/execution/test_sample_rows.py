"""What the table says of a row beside its scores."""

import contextlib

import numpy as np
import pyarrow as pa
import pytest

from ncclean.base import schema
from ncclean.data.decoding import DecodedSample
from ncclean.data.samples import Caption, Place, Sample, SkipReason
from ncclean.execution.finish_shard import scattered, score_table
from ncclean.execution.sample_rows import (
    Row,
    captions_of,
    check_places,
    facts_of_rows,
    images_of_rows,
)
from ncclean.scoring.columns import BlockScores


def sample(row, captions, **metadata):
    made = Sample(row=row, key=f"key {row}", metadata=metadata)
    made.captions = captions
    return DecodedSample(made, None, 640, 480)


def facts(samples, late):
    rows = [Row(one, caption) for one in samples for caption in captions_of(one.sample)]
    return rows, {k: v.to_pylist() for k, v in
                  facts_of_rows("s", late, samples, rows).items()}  # fmt: skip


def test_a_late_json_adds_fields_and_changes_none():
    samples = [sample(0, [Caption(0, None, "x")], uid="own"), sample(1, [Caption(0, None, "y")])]
    late = {0: {"uid": "other", "url": "http://a", "is_noisy": 1}, 1: {"uid": "late"}}
    _, found = facts(samples, late)
    assert found["uid"] == ["own", "late"]
    assert found["url"] == ["http://a", None]
    assert found["is_noisy"] == [True, None]


def test_places_are_in_the_table_and_a_late_json_leaves_no_range_of_the_sample():
    samples = [sample(row, [Caption(0, None, "x"), Caption(1, None, "y")]) for row in range(2)]
    for one in samples:
        one.sample.place = Place(None, 512, 90, 0, 2048)
    table = {name: facts(samples, {1: {"uid": "late"}})[1][name] for name in Place._fields}
    assert table["image_offset"] == [512] * 4
    assert table["image_size"] == [90] * 4
    assert table["sample_offset"] == [0, 0, None, None]
    assert table["sample_size"] == [2048, 2048, None, None]


def test_a_path_that_is_not_utf8_is_left_out():
    samples = [sample(row, []) for row in range(2)]
    for one, name in zip(samples, ("a.jpg", "\udcff.jpg"), strict=True):
        one.sample.place = Place(name)
    assert facts(samples, {})[1]["image_path"] == ["a.jpg", None]


def test_truth_of_a_text_table_is_read():
    said = ["true", "False", "1", " 0 ", "", "yes", 1.0, float("nan"), 2, [True], {}]
    captions = [Caption(number, None, "x") for number in range(len(said))]
    _, found = facts([sample(0, captions, is_noisy=said, noise_kind=["ncr", ""])], {})
    assert found["is_noisy"] == [True, False, True, False, None, None, True] + [None] * 4
    assert found["noise_kind"][:2] == ["ncr", None]


def test_a_row_without_a_caption_has_its_own_reason_unless_the_image_has_one():
    bad = [Caption(0, None, None, SkipReason.CAPTION_MISSING, "empty"),
           Caption(1, None, None, SkipReason.CAPTION_NOT_TEXT, "NUL")]  # fmt: skip
    samples = [sample(row, bad) for row in range(2)]
    samples[0].sample.reject(SkipReason.CAPTION_MISSING, "empty")
    samples[1].sample.reject(SkipReason.IMAGE_CORRUPT, "zero bytes")
    _, found = facts(samples, {})
    assert found["status"] == ["caption_missing", "caption_not_text", *2 * ["image_corrupt"]]
    assert found["error"] == ["empty", "NUL", *2 * ["zero bytes"]]


def test_each_caption_has_a_row_and_a_sample_without_one_has_a_row_too():
    two = [Caption(0, "alt", "x"), Caption(2, "alt", None, SkipReason.CAPTION_NOT_TEXT, "NUL")]
    samples = [sample(0, two), sample(1, [])]
    samples[1].sample.reject(SkipReason.CAPTION_MISSING, "empty")
    rows, found = facts(samples, {})
    assert found["row"] == [0, 0, 1]
    assert found["caption_number"] == [0, 2, 0]
    assert found["caption_key"] == ["alt", "alt", None]
    assert found["status"] == ["ok", "caption_not_text", "caption_missing"]
    assert found["error"] == [None, "NUL", "empty"]
    assert (found["width"], found["height"]) == ([640] * 3, [480] * 3)
    assert images_of_rows(rows).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("rows", "numbers", "is_right"),
    [
        ([0, 0, 1], [0, 1, 0], True),
        ([0, 0, 1], [0, 0, 0], False),
        ([0, 0, 1], [1, 0, 0], False),
        ([0, 1, 0], [0, 0, 1], False),
        ([0, 2, 2], [0, 0, 1], False),
    ],
)
def test_rows_that_are_lost_or_there_twice_are_an_error(rows, numbers, is_right):
    columns = {"row": pa.array(rows, pa.int32()), "caption_number": pa.array(numbers, pa.int16())}
    with contextlib.nullcontext() if is_right else pytest.raises(AssertionError):
        check_places(columns, 2)


# From an encoded shard to its table: values stand at the rows that have scores.


def test_values_stand_at_the_rows_that_have_scores():
    ok = np.array([True, False, True])
    beauty = scattered(pa.array([0.5, 0.25], pa.float32()), ok, pa.float32())
    assert beauty.to_pylist() == [0.5, None, 0.25]


def test_a_column_without_values_is_null_in_every_row():
    ok = np.array([True, False, True])
    facts = {"uid": pa.array(["a", "b", "c"])}
    scores = BlockScores(2, {"similarity": np.array([0.1, 0.2], np.float32)})
    table = score_table(facts, ok, scores, {"age": pa.nulls(3, pa.int32())})
    assert table.schema.names == [*schema.SCORES.names, "age"]
    assert table["similarity"].to_pylist() == [np.float32(0.1), None, np.float32(0.2)]
    assert table["uid"].to_pylist() == ["a", "b", "c"]
    for name in ("i2t_rank", "noise_probability", "calibration_group", "age"):
        assert table[name].null_count == 3
