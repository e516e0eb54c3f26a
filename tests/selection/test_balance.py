"""Balancing over a column, and drawing with repeats, from table to shards."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

import ncclean
from ncclean.data.reader import read_samples
from ncclean.data.sources import resolve_pairs
from ncclean.selection.policy import Policy
from ncclean.selection.select import select
from tests.selection.tables import run, table


@pytest.fixture
def scores():
    rng = np.random.default_rng(3)
    clusters = [None if one == 9 else int(one) for one in rng.integers(0, 10, 1000) ** 2 // 9]
    return table(1000, cluster=pa.array(clusters, pa.int32()))


def by_cluster(scores, selection):
    cluster = dict(zip(scores["key"].to_pylist(), scores["cluster"].to_pylist(), strict=True))
    return Counter(cluster[key] for key in selection["key"].to_pylist())


def test_the_best_of_each_cluster(scores, tmp_path):
    summary, selection = run(tmp_path, scores, score="similarity", balance_by="cluster", cap=40)
    sizes = Counter(scores["cluster"].to_pylist())
    counts = by_cluster(scores, selection)
    assert counts == {
        cluster: size if cluster is None else min(size, 40) for cluster, size in sizes.items()
    }
    assert summary.dropped_by_reason == {"over cap": 1000 - len(selection)}
    kept = set(selection["key"].to_pylist())
    similarity = np.array(scores["similarity"])
    keys, clusters = scores["key"].to_pylist(), scores["cluster"].to_pylist()
    for cluster in range(8):
        inside = [similarity[i] for i, key in enumerate(keys)
                  if clusters[i] == cluster and key in kept]  # fmt: skip
        outside = [similarity[i] for i, key in enumerate(keys)
                   if clusters[i] == cluster and key not in kept]  # fmt: skip
        assert not outside or min(inside) >= max(outside)
    assert selection["key"].to_pylist() == sorted(kept)


def test_without_a_score_it_is_chance(scores, tmp_path):
    picks = [
        run(tmp_path, scores, balance_by="cluster", cap=20, seed=seed)[1]["key"].to_pylist()
        for seed in (0, 0, 1)
    ]
    assert picks[0] == picks[1] != picks[2]
    similarity = dict(zip(scores["key"].to_pylist(), scores["similarity"].to_pylist(), strict=True))
    assert np.mean([similarity[key] for key in picks[0]]) == pytest.approx(0.5, abs=0.1)


def test_after_the_fraction_and_by_an_expression(scores, tmp_path):
    summary, selection = run(
        tmp_path, scores, score="similarity", keep_fraction=0.5, balance_by="cluster % 2", cap=100
    )
    halves = Counter(
        None if cluster is None else cluster % 2
        for cluster, count in by_cluster(scores, selection).items()
        for _ in range(count)
    )
    assert halves[0] == halves[1] == 100
    assert summary.dropped_by_reason["keep-fraction"] == 500
    assert summary.kept == len(selection) == 1000 - sum(summary.dropped_by_reason.values())


@pytest.mark.parametrize("size", [30, 1000, 4000])
def test_draws_with_repeats(scores, size, tmp_path):
    options = {
        "score": "5 * similarity",
        "sample": "soft-cap",
        "size": size,
        "where": "cluster > 0",
    }
    summary, selection = run(tmp_path, scores, **options)
    counts = Counter(selection["key"].to_pylist())
    assert len(selection) == summary.drawn == size
    assert len(counts) == summary.kept
    allowed = {
        key for key, cluster in zip(*(scores[name].to_pylist() for name in ("key", "cluster")),
                                    strict=True)
        if cluster
    }  # fmt: skip
    assert set(counts) <= allowed
    assert summary.dropped_by_reason.get("not drawn", 0) == len(allowed) - summary.kept
    similarity = dict(zip(scores["key"].to_pylist(), scores["similarity"].to_pylist(), strict=True))
    values, times = zip(*((similarity[key], n) for key, n in counts.items()), strict=True)
    if size == 4000:
        assert np.corrcoef(values, times)[0, 1] > 0.8
        gentle = run(tmp_path, scores, **options, penalty=0.01)[1]
        assert max(Counter(gentle["key"].to_pylist()).values()) > max(times)
    assert run(tmp_path, scores, **options)[1].equals(selection)


@pytest.mark.slow
def test_a_drawn_pair_is_exported_and_shown_as_often(corpus, tmp_path):
    out = str(tmp_path / "s.parquet")
    ncclean.score(str(corpus), out, model="demo", pretrained=None, shift=0.2, precision="fp32")
    drawn = str(tmp_path / "drawn.parquet")
    ncclean.select(out, drawn, score="20 * similarity", sample="soft-cap", size=700)
    wanted = Counter(pq.read_table(drawn)["uid"].to_pylist())
    assert max(wanted.values()) > 1
    ncclean.export(drawn, str(tmp_path / "out"), shards=str(corpus))
    found = Counter(
        sample.metadata["uid"]
        for shard in resolve_pairs([str(tmp_path / "out")])
        for sample in read_samples(shard)
    )
    assert found == wanted
    ncclean.export(drawn, str(tmp_path / "uids.npy"))
    assert len(np.load(tmp_path / "uids.npy")) == 700


@pytest.mark.parametrize(
    "options",
    [
        {"balance_by": "cluster"},
        {"cap": 3},
        {"sample": "soft-cap", "score": "similarity"},
        {"sample": "soft-cap", "size": 3},
        {"penalty": 0.5},
        {"balance_by": "cluster", "cap": 0},
        {"sample": "hard", "size": 3, "score": "similarity"},
    ],
)
def test_options_that_do_not_go_together(options, refused):
    refused(Policy, **options)


def test_nothing_to_draw_from(scores, tmp_path, refused):
    refused(run, tmp_path, scores, score="similarity", sample="soft-cap", size=3, where="false")


def test_the_record_of_a_policy_has_what_matters(scores, tmp_path):
    assert "seed" not in Policy(where="true").to_json()
    run(tmp_path, scores, score="similarity", sample="soft-cap", size=3, seed=4)
    policy = json.loads(pq.read_schema(tmp_path / "selection.parquet").metadata[b"policy"])
    assert policy == {"score": "similarity", "sample": "soft-cap", "size": 3, "penalty": 0.15,
                      "seed": 4}  # fmt: skip


@pytest.mark.parametrize("is_joined", [False, True])
def test_pairs_of_tables_whose_shards_have_the_same_names_are_told_apart(tmp_path, is_joined):
    """So are those of one whose shard has a number of row more than once."""
    rows = 400
    scores = table(
        rows,
        cluster=["a", "b"] * (rows // 2),
        row=pa.array([3] * rows, pa.int32()),
        caption_number=pa.array([0] * rows, pa.int16()),
    )
    paths = [str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")]
    for path, part in zip(paths, (scores[:200], scores[200:]), strict=True):
        pq.write_table(part.set_column(1, "shard", pa.array(["s"] * 200)), path)
    joins = ()
    if is_joined:
        joins = (str(tmp_path / "more.parquet"),)
        pq.write_table(pa.table({"uid": scores["uid"], "kind": scores["cluster"]}), joins[0])

    def chosen(**policy):
        out = UPath(tmp_path / "selection.parquet")
        select(paths, out, Policy(score="similarity", **policy), join=joins)
        return pq.read_table(out)["uid"].to_pylist()

    def best(count, groups):
        frame = scores.to_pandas().sort_values("similarity", ascending=False)
        kept = frame.groupby(groups).head(count)
        return kept.sort_index()["uid"].tolist()

    balance = "kind" if is_joined else "cluster"
    assert chosen(balance_by=balance, cap=30) == best(30, "cluster")
    assert len(chosen(sample="soft-cap", size=70)) == 70
    assert chosen(best_caption=True) == scores["uid"].to_pylist()
