"""Policies over columns of joined tables, and over SQL of them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

import ncclean
from ncclean.errors import InputError
from ncclean.selection.policy import Policy
from ncclean.selection.select import select
from tests.selection.tables import run, table


@pytest.fixture
def dfn(tmp_path):
    """Another model's scores for all but every seventh of 200 pairs, in another order."""
    uids = table(200)["uid"].to_pylist()
    rng = np.random.default_rng(5)
    places = rng.permutation([n for n in range(200) if n % 7])
    columns = {
        "uid": [uids[n] for n in places],
        "similarity": pa.array(rng.random(len(places)), pa.float32()),
        "noise_probability": pa.array(rng.random(len(places)), pa.float32()),
        "lemon_score": pa.array(rng.random(len(places)), pa.float32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "dfn.parquet")
    return tmp_path / "dfn.parquet"


def merged(scores, dfn):
    frame = scores.to_pandas()
    other = pq.read_table(dfn).to_pandas()
    return frame.merge(other, on="uid", how="left", suffixes=("", "_dfn"))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"where": "dfn.similarity > similarity"}, lambda f: f.similarity_dfn > f.similarity),
        ({"where": "lemon_score < 0.3"}, lambda f: f.lemon_score < 0.3),
        ({"where": "dfn.lemon_score IS NULL"}, lambda f: f.lemon_score.isna()),
        ({"score": "lemon_score", "threshold": 0.4}, lambda f: f.lemon_score <= 0.4),
        (
            {"score": "dfn.noise_probability", "threshold": 0.4},
            lambda f: f.noise_probability_dfn <= 0.4,
        ),
        (
            {"score": "similarity - dfn.similarity", "threshold": 0.1},
            lambda f: f.similarity.astype(float) - f.similarity_dfn >= 0.1,
        ),
        (
            {"score": "0.5 * rank(similarity) + 0.5 * rank(dfn.similarity)", "keep_fraction": 0.3},
            lambda f: (
                (f.similarity.rank() / 200 + f.similarity_dfn.rank() / 171).rank(ascending=False)
                <= round(0.3 * 171)
            ),
        ),
        ({"where": "rank(lemon_score) < 0.5"}, lambda f: f.lemon_score.rank() <= 85),
    ],
)
def test_columns_of_a_joined_table(tmp_path, dfn, options, kept):
    scores = table(200)
    frame = merged(scores, dfn)
    summary, selection = run(tmp_path, scores, join=[str(dfn)], **options)
    assert selection["key"].to_pylist() == frame[kept(frame)].key.tolist()
    assert summary.joined == {"dfn": 171}
    assert summary.rows == 200


def test_a_mixture_of_ranks_by_hand(tmp_path):
    scores = table(4, similarity=pa.array([0.1, 0.2, 0.3, 0.4], pa.float32()),
                   noise_probability=pa.array([0.0, 0.9, 0.1, 0.9], pa.float32()))  # fmt: skip
    # rank(similarity) = 0, 1/3, 2/3, 1; rank(noise_probability) = 0, 2/3, 1/3, 2/3.
    score = "rank(similarity) - rank(noise_probability)"
    _, selection = run(tmp_path, scores, score=score, threshold=0.3)
    assert selection["key"].to_pylist() == ["0002", "0003"]
    _, selection = run(tmp_path, scores, score=score, threshold=0.3, lowest=True)
    assert selection["key"].to_pylist() == ["0000", "0001"]


def test_a_joined_table_is_not_written_over(tmp_path):
    scores, out = str(tmp_path / "scores.parquet"), str(tmp_path / "x.parquet")
    pq.write_table(table(20), scores)
    ncclean.select(scores, out)
    before = pq.read_table(out)
    with pytest.raises(InputError, match="would overwrite the input"):
        ncclean.select(scores, out, join=[f"earlier={out}"], overwrite=True)
    assert pq.read_table(out).equals(before)


def test_weights_and_duplicates_with_a_joined_table(tmp_path, dfn):
    scores = table(200)
    uids = scores["uid"].to_pylist()
    groups = pa.table({"uid": uids, "pair_group": [uids[n // 2 * 2] for n in range(200)]})
    pq.write_table(groups, tmp_path / "neighbours.parquet")
    summary, selection = run(tmp_path, scores, join=[f"other={dfn}"], weights="other.similarity",
                             dedup=str(tmp_path / "neighbours.parquet"))  # fmt: skip
    frame = merged(scores, dfn)
    best = frame.sort_values("similarity").groupby(frame.row // 2).tail(1).sort_values("row")
    best = best[best.similarity_dfn.notna()]
    assert selection["key"].to_pylist() == best.key.tolist()
    assert selection["weight"].to_pylist() == best.similarity_dfn.tolist()
    assert summary.dropped_by_reason["near-duplicate"] == 100


def test_the_order_of_the_input_holds_with_joins(tmp_path):
    """Shards in an order that no sorting by name gives, and files too."""
    scores = table(3000)
    shards = [f"{9 - row // 1000}" for row in range(3000)]
    scores = scores.set_column(1, "shard", pa.array(shards))
    (tmp_path / "t").mkdir()
    for part, name in enumerate("abc"):
        pq.write_table(scores[part * 1000 : part * 1000 + 1000], tmp_path / "t" / f"{name}.parquet")
    other = scores.select(["uid", "similarity"]).take(np.random.default_rng(0).permutation(3000))
    pq.write_table(other, tmp_path / "o.parquet")
    selections = []
    for join in ([], [str(tmp_path / "o.parquet")]):
        out = UPath(tmp_path / f"{len(join)}.parquet")
        policy = Policy(where="similarity > 0.5")
        select([str(tmp_path / "t")], out, policy, join=join, memory_limit="200MB")
        selections.append(pq.read_table(out))
    assert selections[0].equals(selections[1])
    assert selections[0]["shard"][0].as_py() == "9"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "lemon_score"}, "`ncclean neighbours` computes it, and --join"),
        ({"score": "rank(lemon_score)"}, "`ncclean neighbours` computes it, and --join"),
        ({"score": "rank(similarity"}, "--score takes one SQL expression"),
        ({"score": "similarity; DROP VIEW scores"}, "--score takes one SQL expression"),
        ({"score": "sum(similarity)"}, "--score: "),
        ({"score": "(SELECT max(size) FROM read_text('/etc/hostname'))"}, "--score: "),
    ],
)
def test_a_wrong_score_is_one_sentence(tmp_path, options, message):
    with pytest.raises(InputError, match=message) as caught:
        run(tmp_path, table(3), threshold=0.5, **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "selection.parquet").exists()
