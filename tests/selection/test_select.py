"""Policies over a small table of which every row is known, and over random ones."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upath import UPath

from ncclean.base.schema import SCORE_FACTS
from ncclean.errors import InputError
from ncclean.selection.policy import Policy
from ncclean.selection.select import _raise_if_unknown, select
from tests.selection.tables import run, table


def test_the_selection_has_its_columns_and_the_order_of_the_input(tmp_path):
    scores = table(100)
    summary, selection = run(tmp_path, scores, where="row % 3 = 0")
    assert selection.column_names == ["uid", "shard", "key", "weight", "split"]
    assert selection["key"].to_pylist() == [f"{row:04d}" for row in range(0, 100, 3)]
    assert set(selection["weight"].to_pylist()) == {1.0}
    assert selection.schema.field("weight").type == pa.float32()
    assert (summary.rows, summary.kept, summary.dropped) == (100, 34, 66)
    assert summary.dropped_by_reason == {"where": 66}
    policy = json.loads(pq.read_schema(tmp_path / "selection.parquet").metadata[b"policy"])
    assert policy == Policy(where="row % 3 = 0").to_json()


@pytest.mark.parametrize("options", [{}, {"best_caption": True}, {"balance_by": "shard", "cap": 9}])
def test_the_selection_carries_the_places_on(tmp_path, options):
    places = {
        "image_path": [None, *(f"{row}.jpg" for row in range(1, 20))],
        "image_offset": [row * 512 for row in range(20)],
        "image_size": [*range(19), None],
        "sample_offset": [row * 1024 for row in range(20)],
        "sample_size": [1024] * 20,
    }
    scores = table(20, caption_number=pa.array([0, 1] * 10, pa.int16()), **places)
    _, selection = run(tmp_path, scores, where="row > 0", **options)
    chosen = scores.filter(pc.is_in(scores["uid"], selection["uid"].combine_chunks()))
    assert len(chosen) == len(selection) > 5
    assert selection.select(list(places)).to_pylist() == chosen.select(list(places)).to_pylist()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"method": "osa"}, lambda f: f.osa_weight > 0),
        ({"method": "ncu"}, lambda f: f.ncu_split == "retain"),
        ({"method": "ncu", "with_forget": True}, lambda f: f.row >= 0),
        ({"method": "disncl"}, lambda f: f.disncl_clean),
        ({"method": "noise-probability"}, lambda f: f.noise_probability < 0.5),
        ({"method": "noise-probability", "threshold": 0.2}, lambda f: f.noise_probability < 0.2),
        ({"score": "similarity", "threshold": 0.4}, lambda f: f.similarity >= 0.4),
        ({"score": "noise_probability", "threshold": 0.4}, lambda f: f.noise_probability <= 0.4),
        ({"score": "row", "threshold": 40, "lowest": True}, lambda f: f.row <= 40),
        ({"score": "similarity", "keep_fraction": 0.3}, lambda f: f.similarity.rank() > 140),
        (
            {"method": "disncl", "score": "similarity", "keep_fraction": 0.1},
            lambda f: f.similarity.where(f.disncl_clean).rank() > 90,
        ),
    ],
)
def test_rules(tmp_path, options, kept):
    scores = table(200)
    frame = scores.to_pandas()
    summary, selection = run(tmp_path, scores, **options)
    expected = frame[kept(frame)]
    assert selection["key"].to_pylist() == expected.key.tolist()
    assert summary.kept == len(expected)
    assert summary.dropped == 200 - len(expected)
    assert summary.expected_mismatched_kept == pytest.approx(expected.noise_probability.sum())
    total = frame.noise_probability.sum()
    assert summary.expected_mismatched_dropped == pytest.approx(
        total - expected.noise_probability.sum()
    )


@pytest.mark.parametrize(
    "score", [name for name, facts in SCORE_FACTS.items() if not facts.higher_is_cleaner]
)
def test_of_some_scores_less_is_cleaner(tmp_path, score):
    table = pa.table({
        "uid": ["a", "b", "c", "d"], "shard": ["0"] * 4, "key": ["a", "b", "c", "d"],
        "row": [0, 1, 2, 3], "status": ["ok"] * 4, score: [0.9, 0.0, 0.4, 0.001],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "s.parquet")
    select([str(tmp_path / "s.parquet")], UPath(tmp_path / "o.parquet"),
           Policy(score=score, keep_fraction=0.5))  # fmt: skip
    assert pq.read_table(tmp_path / "o.parquet")["uid"].to_pylist() == ["b", "d"]


def test_a_similarity_that_is_nan_is_not_the_best(tmp_path):
    scores = pa.table({
        "uid": ["a", "a"], "shard": ["0"] * 2, "key": ["a"] * 2, "row": [0, 0],
        "caption_number": [0, 1], "status": ["ok"] * 2, "similarity": [np.nan, 0.1],
    })  # fmt: skip
    _, selection = run(tmp_path, scores, best_caption=True)
    assert selection["caption_number"].to_pylist() == [1]
    assert selection["caption_rank"].to_pylist() == [0]


def test_weights(tmp_path, refused):
    scores = table(50)
    _, by_method = run(tmp_path, scores, method="osa")
    weights = scores["osa_weight"].to_numpy()
    assert by_method["weight"].to_pylist() == weights[weights > 0].tolist()
    summary, chosen = run(tmp_path, scores, weights="osa_weight")
    assert chosen["weight"].to_pylist() == weights.tolist()  # pairs of weight 0 are negatives
    assert summary.weight_sum == pytest.approx(weights.sum())
    refused(run, tmp_path, table(3, osa_weight=[0.1, -0.1, 0.2]), weights="osa_weight")
    summary, _ = run(tmp_path, table(3, osa_weight=[0.1, None, 0.2]), weights="osa_weight")
    assert summary.dropped_by_reason == {"no weight": 1}


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.sampled_from([0.0, 0.1, 0.1000001, 0.5, -3.0, 1e30, None]), max_size=40),
    fraction=st.floats(0, 1),
)
def test_a_fraction_is_exact_whatever_the_values(tmp_path_factory, values, fraction):
    scores = table(len(values), similarity=pa.array(values, pa.float32()))
    folder = tmp_path_factory.mktemp("fraction")
    summary, selection = run(folder, scores, score="similarity", keep_fraction=fraction)
    frame = scores.to_pandas().dropna(subset=["similarity"])
    wanted = int(np.floor(fraction * len(frame) + 0.5))
    best = frame.sort_values(["similarity", "uid"], ascending=[False, True])[:wanted]
    assert summary.kept == wanted
    assert set(selection["uid"].to_pylist()) == set(best.uid)


def test_fraction_is_of_what_the_condition_leaves(tmp_path):
    scores = table(100)
    summary, selection = run(
        tmp_path, scores, where="shard = '00001'", score="similarity", keep_fraction=0.2
    )
    frame = scores.to_pandas()
    best = frame[frame.shard == "00001"].similarity.nlargest(10).index
    assert selection["key"].to_pylist() == sorted(frame.key[best])
    assert summary.dropped_by_reason == {"where": 50, "keep-fraction": 40}


def test_order_holds_over_many_row_groups_and_duplicates(tmp_path):
    scores = table(3000)
    uids = scores["uid"].to_pylist()
    groups = pa.table({"uid": uids, "pair_group": [uids[n // 3 * 3] for n in range(3000)]})
    pq.write_table(groups, tmp_path / "neighbours.parquet")
    _, selection = run(tmp_path, scores, dedup=str(tmp_path / "neighbours.parquet"))
    keys = selection["key"].to_pylist()
    assert len(keys) == 1000
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    "where",
    [
        "uid IN (SELECT uid FROM scores WHERE similarity > 0.3)",
        "row_number() OVER (PARTITION BY shard ORDER BY similarity) < 900",
        "similarity > (SELECT max(s.similarity) - 0.5 FROM scores s WHERE s.shard = scores.shard)",
    ],
)
def test_order_holds_with_conditions_that_look_at_other_pairs(tmp_path, where):
    _, selection = run(tmp_path, table(3000), where=where)
    keys = selection["key"].to_pylist()
    assert len(keys) > 1000
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "nosuch > 1"}, "nosuch"),
        ({"where": "1; DROP TABLE x"}, "one SQL expression"),
        ({"where": "true) UNION SELECT * FROM scores WHERE (true"}, "one SQL expression"),
        ({"where": "(SELECT count(*) FROM read_text('/etc/hostname')) > 0"}, "--where"),
        ({"where": ""}, "one SQL expression"),
        ({"method": "magic"}, "--method takes"),
        ({"score": "nosuch", "threshold": 1}, "--score: there is no column 'nosuch'"),
        ({"weights": "nosuch"}, "--weights: there is no column 'nosuch'"),
        ({"keep_fraction": 0.3}, "needs --score"),
        ({"score": "similarity"}, "--score does nothing by itself"),
        ({"threshold": 0.3}, "--threshold needs"),
        ({"score": "similarity", "keep_fraction": 1.5}, "at most 1"),
        ({"method": "osa", "with_forget": True}, "needs --method ncu"),
        ({"dedup_by": "image"}, "needs --dedup"),
        ({"score": "text_column", "threshold": 1}, "selection failed|policy"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(tmp_path, options, message):
    with pytest.raises(InputError, match=message) as caught:
        run(tmp_path, table(3, text_column=["a", "b", "c"]), **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "selection.parquet").exists()


@pytest.mark.parametrize("order", [("audited", "vague"), ("vague", "audited")])
def test_an_audit_vouches_for_its_own_table_alone(tmp_path, order, refused):
    ends = {"noise_rate_low": "0.0", "noise_rate_high": "1.0"}
    for name, metadata in {"audited": {**ends, "audited": "{}"}, "vague": ends}.items():
        table = pa.table({"uid": ["0"]}).replace_schema_metadata(metadata)
        pq.write_table(table, tmp_path / f"{name}.parquet")
    _raise_if_unknown([str(tmp_path / "audited.parquet")])
    refused(_raise_if_unknown, [str(tmp_path / f"{name}.parquet") for name in order])


def test_unsigned_integers_are_scores_of_which_the_lowest_may_be_best(tmp_path):
    scores = table(9, copies=pa.array([3, 0, 7, 2, 2, 9, 1, 255, 4], pa.uint8()))
    _, selection = run(tmp_path, scores, score="copies", lowest=True, threshold=2)
    assert selection["key"].to_pylist() == ["0001", "0003", "0004", "0006"]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("score", ["blur", "greatest(blur, 0)"])
def test_pairs_at_the_threshold_are_kept(tmp_path, kind, lowest, score):
    """Many hundredths are smaller in 32 bits than in 64, many larger."""
    for threshold in (0.07, 0.28, 0.29, 0.3, 0.7):
        scores = table(3, blur=pa.array([threshold - 0.01, threshold, threshold + 0.01], kind))
        _, selection = run(tmp_path, scores, score=score, threshold=threshold, lowest=lowest)
        assert selection["key"].to_pylist() == (["0000", "0001"] if lowest else ["0001", "0002"])
