"""`select --drop-parts`: captions without their wrong sentences."""

import json

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclean.data.caption_parts import sentence_starts
from ncclean.selection.drop_parts import part_columns
from ncclean.selection.policy import Policy
from tests.selection.tables import run, table


def parted(captions, probabilities, starts=None, **columns):
    """A score table of captions with the noise probability of each part."""
    if starts is None:
        starts = [[0] if one is None else sentence_starts(one) for one in captions]
    return table(
        len(captions),
        text=pa.array(captions, pa.string()),
        part_starts=pa.array(starts, pa.list_(pa.int32())),
        part_noise_probabilities=pa.array(probabilities, pa.list_(pa.float32())),
        **columns,
    )


CAPTIONS = [
    "A dog runs. A cat sits. A bird flies.",
    "A dog runs. A cat sits.",
    "A dog runs.",
    "A dog runs. A cat sits.",
    "一只狗在跑。一只猫坐着。鸟！",
    "A dog runs.\n\nA cat 🐱 sits.\nA bird flies.",
]
PROBABILITIES = [
    [0.1, 0.9, 0.2], [0.6, 0.5], [0.9], [None, None], [0.1, 0.2, 0.7], [0.5, 0.49, 0.1],
]  # fmt: skip


def test_what_is_left_of_captions(tmp_path):
    summary, selection = run(tmp_path, parted(CAPTIONS, PROBABILITIES), drop_parts=True)
    assert selection.column_names == ["uid", "shard", "key", "weight", "split", "caption"]
    assert dict(
        zip(selection["key"].to_pylist(), selection["caption"].to_pylist(), strict=True)
    ) == {
        "0000": "A dog runs. A bird flies.",
        "0003": None,  # of what cannot be told, nothing is dropped
        "0004": "一只狗在跑。一只猫坐着。",
        "0005": "A cat 🐱 sits.\nA bird flies.",
    }
    assert summary.dropped_by_reason == {"no part left": 2}
    assert (summary.captions_mended, summary.parts_dropped, summary.parts) == (3, 3, 11)
    policy = json.loads(pq.read_schema(tmp_path / "selection.parquet").metadata[b"policy"])
    assert policy == {"drop_parts": True, "part_threshold": 0.5}


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [(0.05, None), (0.15, "A dog."), (0.7, "A dog. A bird."), (0.70001, "A dog. A cat. A bird.")],
)
def test_the_threshold_is_to_stay_below(tmp_path, threshold, kept):
    scores = parted(["A dog. A cat. A bird."], [[0.125, 0.7, 0.25]])
    summary, selection = run(tmp_path, scores, drop_parts=True, part_threshold=threshold)
    if kept is None:
        assert (summary.kept, summary.dropped_by_reason) == (0, {"no part left": 1})
        return
    expected = None if kept == "A dog. A cat. A bird." else kept
    assert selection["caption"].to_pylist() == [expected]


def test_without_it_the_selection_has_no_captions(tmp_path):
    summary, selection = run(tmp_path, parted(CAPTIONS, PROBABILITIES))
    assert "caption" not in selection.column_names
    assert len(selection) == 6
    assert (summary.captions_mended, summary.parts_dropped, summary.parts) == (None, None, None)
    assert Policy().to_json() == {}


def test_the_rule_of_the_pair_is_for_captions_of_one_part(tmp_path):
    """And for those whose parts nobody can tell: of others, the parts say more."""
    scores = parted(
        ["A. B dog.", "A dog. B cat.", "A dog. B cat.", "A dog.", "A dog.", "A dog. B cat."],
        [[0.9, 0.9], [0.2, 0.9], [None, None], [0.9], [0.2], [0.9, 0.9]],
        starts=[[0, 3], [0, 7], [0, 7], [0], [0], [0, 7]],
        noise_probability=pa.array([0.1, 0.95, 0.95, 0.9, 0.2, 0.1], pa.float32()),
    )
    summary, selection = run(tmp_path, scores, drop_parts=True, method="noise-probability")
    assert selection["key"].to_pylist() == ["0001", "0004"]
    assert selection["caption"].to_pylist() == ["A dog.", None]
    assert summary.dropped_by_reason == {"noise-probability": 2, "no part left": 2}
    # What is expected of a mended caption is the worst of what it keeps.
    assert summary.expected_mismatched_kept == pytest.approx(0.2 + 0.2)


def test_several_captions_of_an_image(tmp_path):
    scores = parted(
        ["A dog. A cat.", "A bird. A fish.", "A red ring."], [[0.1, 0.8], [0.9, 0.9], [0.1]],
        caption_number=pa.array([0, 1, 2], pa.int16()), shard=["s"] * 3, key=["k"] * 3,
        row=pa.array([0] * 3, pa.int32()), similarity=pa.array([0.3, 0.4, 0.5], pa.float32()),
    )  # fmt: skip
    _, selection = run(tmp_path, scores, drop_parts=True, score="similarity", threshold=0.0)
    names = ("caption_number", "caption_rank", "caption")
    rows = zip(*(selection[name].to_pylist() for name in names), strict=True)
    assert list(rows) == [(0, 1, "A dog."), (2, 0, None)]


def test_with_a_fraction_and_weights(tmp_path):
    captions = [f"A dog. A cat {n}." for n in range(100)]
    odd = [[0.1, 0.9] if n % 2 else [0.9, 0.9] if n % 10 == 0 else [0.1, 0.1] for n in range(100)]
    scores = parted(captions, odd)
    summary, selection = run(
        tmp_path, scores, drop_parts=True, score="similarity", keep_fraction=0.5
    )
    kept = [n for n in range(100) if n % 10]
    best = sorted(kept, key=lambda n: -scores["similarity"][n].as_py())[:45]
    assert sorted(int(key) for key in selection["key"].to_pylist()) == sorted(best)
    assert summary.captions_mended == sum(n % 2 for n in best)
    assert (summary.parts_dropped, summary.parts) == (summary.captions_mended, 90)
    assert summary.dropped_by_reason == {"keep-fraction": 45, "no part left": 10}


def test_no_text_is_refused(tmp_path, refused):
    """But where no caption has several parts, none is needed."""
    scores = parted(CAPTIONS, PROBABILITIES)
    without = scores.set_column(
        scores.schema.get_field_index("text"), "text", pa.nulls(6, pa.string())
    )
    refused(run, tmp_path, without, drop_parts=True)
    single = parted([None] * 3, [[0.1], [0.9], [None]])
    summary, _ = run(tmp_path, single, drop_parts=True)
    assert (summary.kept, summary.captions_mended, summary.parts_dropped) == (2, 0, 0)


def test_parts_that_nobody_can_tell_are_refused(tmp_path, refused):
    scores = parted(["A dog. A cat."] * 3, [[None, None]] * 3)
    refused(run, tmp_path, scores, drop_parts=True)


def test_a_table_without_parts_is_refused(tmp_path, refused):
    refused(run, tmp_path, table(5, text=["a"] * 5), drop_parts=True)


def test_rows_that_were_not_scored(tmp_path):
    scores = parted(
        ["A dog. A cat.", None, None], [[0.1, 0.9], None, None], starts=[[0, 7], None, None],
        status=["ok", "image_missing", "caption_missing"],
    )  # fmt: skip
    summary, _ = run(tmp_path, scores, drop_parts=True)
    assert summary.dropped_by_reason == {"caption_missing": 1, "image_missing": 1}
    assert (summary.kept, summary.parts) == (1, 2)


@pytest.mark.parametrize(
    ("starts", "probabilities"),
    [
        ([-5, 3], [0.9, 0.1]),
        ([5, 2, 0], [0.1, 0.9, 0.1]),
        ([0, 10**9], [0.1, 0.9]),
        ([0, None], [0.9, 0.1]),
        ([0, 3], [0.9, 0.1, 0.5]),
        ([0, 3, 5], [0.9]),
        ([0, 3], []),
        ([0, 3], None),
        ([0, 3], [float("nan"), 0.1]),
        ([0, 3], [float("inf"), -5.0]),
        ([], []),
    ],
)
def test_lying_parts_are_no_crash(tmp_path, starts, probabilities):
    """What a table of others says is cut as it says, beside right rows."""
    scores = parted(
        ["A dog. A cat.", "A dog. A cat."], [probabilities, [0.1, 0.9]], starts=[starts, [0, 7]]
    )
    summary, selection = run(tmp_path, scores, drop_parts=True)
    assert summary.rows == 2
    assert selection["caption"].to_pylist()[-1] == "A dog."


HOSTILE = st.text(
    st.sampled_from("aB猫🐶é. !?。\n\t,;1)(\"'\x07\u202e\u200f\u00a0e\u0301"),
    min_size=1,
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.tuples(HOSTILE, st.integers(0, 2**20)), min_size=1, max_size=8))
def test_kept_parts_put_together(tmp_path, rows):
    """By characters of Python, whatever they are."""
    captions, starts, odds, expected = [], [], [], []
    for text, seed in rows:
        caption = (text + ". A cat.").strip()
        rng = np.random.default_rng(seed)
        cuts = rng.integers(0, len(caption), rng.integers(1, 5)).tolist()
        places = sorted({0, *cuts})
        wrong = rng.random(len(places)) < 0.4
        wrong[rng.integers(len(places))] = False
        captions.append(caption)
        starts.append(places)
        odds.append(np.where(wrong, 0.9, 0.1).tolist())
        ends = [*places[1:], len(caption)]
        pieces = zip(places, ends, wrong, strict=True)
        left = "".join(caption[begin:end] for begin, end, is_wrong in pieces if not is_wrong)
        expected.append(left.strip("\t\n\r ") if wrong.any() else None)
    _, selection = run(tmp_path, parted(captions, odds, starts=starts), drop_parts=True)
    assert selection["caption"].to_pylist() == expected


def test_a_megabyte(tmp_path):
    caption = "A dog runs. " * 90_000
    starts = list(range(0, len(caption), 12 * 900))
    odds = [[0.9 if n % 2 else 0.1 for n in range(len(starts))]]
    _, selection = run(tmp_path, parted([caption], odds, starts=[starts]), drop_parts=True)
    assert selection["caption"].to_pylist() == [("A dog runs. " * 45_000).strip()]


def test_the_sql_of_a_policy_without_parts_reads_no_parts():
    found = duckdb.sql(f"SELECT {part_columns(None, '0.25')}")
    assert found.columns == ["kept_parts", "parts", "caption", "noise_probability"]
    assert [float(value) if value else value for value in found.fetchall()[0]] == [
        None, None, None, 0.25,
    ]  # fmt: skip


def test_a_threshold_of_parts_that_stay_is_refused(refused):
    refused(Policy, part_threshold=0.3)
