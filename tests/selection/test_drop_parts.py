"""`select --drop-parts`: captions without their wrong sentences."""

import duckdb
import numpy as np
import pyarrow as pa
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


HOSTILE = st.text(
    st.sampled_from("aB猫🐶é. !?。\n\t,;1)(\"'\x07\u202e\u200f\u00a0e\u0301"),
    min_size=1,
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
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
