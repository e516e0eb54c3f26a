"""What is drawn from a table, and what answers on it say."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.auditing.measure import measure
from ncclean.auditing.sample import COLUMNS, draw_sample, read_design
from ncclean.auditing.table import AuditTable
from ncclean.base.estimates import Estimate
from tests.auditing.audited import judge, truth_of, write_table
from tests.report.tables import graded, write_scores


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("audit") / "scores.parquet")


def sample_of(path, answers=300, seed=0):
    with AuditTable.open([str(path)]) as opened:
        return draw_sample(opened, answers, seed)


def written(path, out, answers=300, seed=0):
    sample = sample_of(path, answers, seed)
    sample.write(UPath(out), seed)
    return str(out)


def test_a_sample_stands_for_the_corpus(table):
    sample = sample_of(table)
    rows = sample.rows
    assert len(rows) == 300
    assert len(set(rows.column("uid").to_pylist())) == 300
    weight, stratum = (rows.column(name).to_numpy() for name in ("weight", "stratum"))
    assert weight.sum() == pytest.approx(4_000)
    assert np.bincount(stratum, weight) == pytest.approx(sample.design.pairs)
    assert (sample.drawn() >= 1).all()
    probability = rows.column("noise_probability").to_numpy()
    bounds = sample.design.bounds
    assert (np.searchsorted(bounds, probability, side="right") == stratum).all()


def test_each_caption_of_an_image_is_kept_or_dropped_by_itself(tmp_path):
    rows = [
        {"uid": f"u{n // 2}", "key": f"k{n // 2}", "row": n // 2, "caption_number": n % 2,
         "similarity": 0.2, "noise_probability": n / 10}
        for n in range(4)
    ]  # fmt: skip
    scores = write_scores(tmp_path / "scores.parquet", rows)
    kept = {"uid": ["u0"], "shard": ["00000"], "key": ["k0"], "weight": [1.0]}
    number = {"caption_number": pa.array([1], pa.int16())}
    pq.write_table(pa.table({**kept, **number}), tmp_path / "selection.parquet")
    with AuditTable.open([str(scores)], str(tmp_path / "selection.parquet")) as opened:
        counts = opened.counts(np.array([0.5]))[-1]
    assert counts.pairs.sum(axis=0).tolist() == [1, 3]  # kept, dropped


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
def test_answers_on_other_captions_are_named(tmp_path, caplog, ending):
    """Another corpus has the same uids: those of its shards' names and keys."""
    rows = [
        {**row, "uid": f"u{n}", "key": f"k{n}", "text": f"é, {n}"}
        for n, row in enumerate(graded(20))
    ]
    scores = write_scores(tmp_path / "scores.parquet", rows)
    path = tmp_path / f"answers.{ending}"
    for texts in ([f" é,  {n}\n" for n in range(20)], [f"é, {n % 18}" for n in range(20)]):
        answers = [
            {"uid": f"u{n}", "answer": "match", "text": text or None}
            for n, text in enumerate(["", *texts[1:]])
        ]
        if ending == "csv":
            pyarrow.csv.write_csv(pa.Table.from_pylist(answers), path)
        elif ending == "parquet":
            pq.write_table(pa.Table.from_pylist(answers), path)
        else:
            path.write_text(json.dumps(answers), "utf-8")
        assert not caplog.messages
        measure([str(scores)], str(path))
    (said,) = caplog.messages
    assert "of 20 answers, 2 are about another caption than the table has (first: uid u18)" in said


def test_answers_do_not_count_for_pairs_whose_caption_was_mended(tmp_path):
    """A person corrected the captions of four of the five kept mismatches."""
    rows = [{**row, "uid": f"u{n}", "key": f"k{n}"} for n, row in enumerate(graded(20))]
    scores = write_scores(tmp_path / "scores.parquet", rows)
    answers = {f"u{n}": "mismatch" if n < 5 else "match" for n in range(20)}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    kept = pq.read_table(scores).select(["uid", "shard", "key"])
    kept = kept.append_column("weight", pa.array([1.0] * 20))
    captions = pa.array(["right" if n < 4 else None for n in range(20)], pa.string())
    pq.write_table(kept.append_column("caption", captions), tmp_path / "selection.parquet")
    audit = measure(
        [str(scores)], str(tmp_path / "answers.json"), selection=str(tmp_path / "selection.parquet")
    )
    assert audit.noise.value == pytest.approx(5 / 20)
    assert audit.selection.kept.value == pytest.approx(1 / 16)
    assert audit.selection.flagged == 4


def test_pairs_of_tables_with_the_same_shards_are_told_apart(tmp_path, refused):
    for name in "ab":
        rows = [{**row, "uid": f"{name}{n}"} for n, row in enumerate(graded(80))]
        rows = rows if name == "a" else rows[::-1]
        write_scores(tmp_path / f"{name}.parquet", rows)
    kept = pq.read_table(tmp_path / "a.parquet").select(["uid", "shard", "key"])
    kept = kept.append_column("weight", pa.array([1.0] * 80))
    pq.write_table(kept, tmp_path / "kept")
    tables = [str(tmp_path / f"{name}.parquet") for name in "ab"]
    with AuditTable.open(tables, str(tmp_path / "kept")) as opened:
        sample = draw_sample(opened, 50, 0)
        counts = opened.counts(sample.design.bounds)[-1]
    assert len(sample.rows) == 50
    probability = sample.rows.column("noise_probability").to_numpy()
    strata = np.searchsorted(sample.design.bounds, probability, side="right")
    assert strata.tolist() == sample.rows.column("stratum").to_pylist()
    assert counts.pairs.sum(axis=0).tolist() == [80, 80]  # kept, dropped
    write_scores(tmp_path / "b.parquet", [{"uid": "a3", "text": "other", "similarity": 0.1,
                                           "noise_probability": 0.2}])  # fmt: skip
    with AuditTable.open(tables) as opened:
        refused(draw_sample, opened, 81, 0)


def test_the_same_seed_draws_the_same_pairs_and_another_others(table, tmp_path):
    first, again, other = (sample_of(table, seed=seed).rows for seed in (1, 1, 2))
    assert first.equals(again)
    both = set(first.column("uid").to_pylist()) & set(other.column("uid").to_pylist())
    assert len(both) < 100
    halves = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    rows = pq.read_table(table)
    pq.write_table(rows.slice(2_000), halves[0])
    pq.write_table(rows.slice(0, 2_000), halves[1])
    with AuditTable.open([str(tmp_path)]) as opened:  # in files, and another order
        moved = draw_sample(opened, 300, 1).rows
    assert set(moved.column("uid").to_pylist()) == set(first.column("uid").to_pylist())


def test_who_stops_early_has_judged_every_stratum(table):
    sample = sample_of(table)
    stratum = sample.rows.column("stratum").to_numpy()
    for judged in (60, 100, 200):
        first = np.bincount(stratum[:judged], minlength=len(sample.drawn()))
        assert np.abs(first - sample.drawn() * judged / 300).max() <= 1.5


def test_each_pair_of_a_stratum_is_as_likely(tmp_path):
    draws = 60
    table = write_table(tmp_path / "scores.parquet", pairs=400)
    counts = dict.fromkeys(truth_of(table), 0)
    with AuditTable.open([str(table)]) as opened:
        for seed in range(draws):
            for uid in draw_sample(opened, 100, seed).rows.column("uid").to_pylist():
                counts[uid] += 1
        every = draw_sample(opened, 400, 0).rows
    by_stratum = {}
    columns = (every.column(name).to_pylist() for name in ("uid", "stratum"))
    for uid, stratum in zip(*columns, strict=True):
        by_stratum.setdefault(stratum, []).append(counts[uid])
    excess = []
    for drawn in by_stratum.values():
        rate = np.mean(drawn) / draws
        if len(drawn) > 10:
            expected = draws * rate * (1 - rate)  # draws are independent
            excess += [(count - draws * rate) ** 2 / expected for count in drawn]
    assert len(excess) > 300
    assert 0.8 < np.mean(excess) < 1.2


def test_the_file_tells_other_judges_what_they_need(table, tmp_path, refused):
    path = written(table, tmp_path / "sample.parquet")
    file = pq.read_table(path)
    assert file.column_names == list(COLUMNS)
    design = read_design(path)
    assert design.pairs.sum() == 4_000
    refused(read_design, str(table))


def test_everything_judged_gives_the_truth(tmp_path):
    table = write_table(tmp_path / "scores.parquet", pairs=300)
    truth = truth_of(table)
    sample = written(table, tmp_path / "sample.parquet")
    audit = measure([str(table)], judge(sample, truth, tmp_path / "a.csv"))
    noise = audit.noise
    assert noise.value == noise.low == noise.high == pytest.approx(np.mean(list(truth.values())))
    ends = [0.0, *read_design(sample).bounds, 1.0]
    assert [(one.low, one.high) for one in audit.strata] == list(itertools.pairwise(ends))
    rows = pq.read_table(table).to_pylist()
    rule = next(rule for rule in audit.rules if rule.name == "osa_noisy")
    flagged = [row["is_noisy"] for row in rows if row["osa_noisy"]]
    assert rule.flagged == len(flagged)
    assert rule.precision.value == pytest.approx(np.mean(flagged))
    assert rule.recall.value == pytest.approx(sum(flagged) / sum(truth.values()))
    assert rule.kept.value == pytest.approx(
        np.mean([row["is_noisy"] for row in rows if not row["osa_noisy"]])
    )
    probability = np.array([row["noise_probability"] for row in rows])
    is_flagged = np.array([row["osa_noisy"] for row in rows])
    assert rule.expected_precision == pytest.approx(probability[is_flagged].mean())
    assert rule.expected_kept == pytest.approx(probability[~is_flagged].mean())
    caught = probability[is_flagged].sum() / probability.sum()
    assert rule.expected_recall == pytest.approx(caught)


def test_a_right_calibration_agrees_and_near_misses_do_not(table, tmp_path):
    sample = written(table, tmp_path / "sample.parquet")
    audit = measure([str(table)], judge(sample, truth_of(table), tmp_path / "a.csv"))
    assert audit.noise.low < 0.2 < audit.noise.high
    assert audit.to_json()["agrees"]
    near = write_table(tmp_path / "near.parquet", near=0.5)
    sample = written(near, tmp_path / "near_sample.parquet")
    audit = measure([str(near)], judge(sample, truth_of(near), tmp_path / "near.csv"))
    assert audit.noise.low < 0.2 < audit.noise.high
    assert "less than the audit measures" in audit.disagreements[0]


def test_what_is_expected_is_no_more_certain_than_the_table_says(table, tmp_path):
    """Every pair is judged, and the truth lies in the interval of the calibration."""
    sample = written(table, tmp_path / "sample.parquet", answers=4_000)
    audit = measure([str(table)], judge(sample, truth_of(table), tmp_path / "a.csv"))
    value = audit.noise.value
    for expected, side in (
        (Estimate(value + 0.01, value - 0.02, value + 0.04), None),
        (Estimate(value - 0.01, value - 0.04, value + 0.02), None),
        (Estimate(value + 0.03, value + 0.01, value + 0.05), "more"),
        (Estimate(value - 0.03, value - 0.05, value - 0.01), "less"),
        (Estimate(value + 0.03, value + 0.02, value + 0.08), "more"),  # by the half between them
        (Estimate(value - 0.03, value - 0.08, value - 0.02), "less"),
        (Estimate(value + 0.01), "more"),
    ):
        sentences = dataclasses.replace(audit, expected=expected).disagreements
        assert len(sentences) == (side is not None)
        assert all(f"{side} than the audit" in sentence for sentence in sentences)


def test_the_noise_expected_of_several_tables_is_that_of_all_their_pairs(tmp_path):
    """Each table states the rate of its pairs alone."""
    tables = []
    for name, rate in (("a", "0.25"), ("b", "0.75")):
        rows = [{**row, "uid": f"{name}{n}"} for n, row in enumerate(graded(80))]
        stated = {"noise_rate": rate, "noise_rate_low": rate, "noise_rate_high": rate}
        tables.append(str(write_scores(tmp_path / f"{name}.parquet", rows, stated)))
    answers = tmp_path / "answers.csv"
    answers.write_text("uid,answer\na1,match\nb2,mismatch\n")
    assert measure(tables[:1], str(answers)).expected.value == 0.25
    assert measure(tables, str(answers)).expected.value == pytest.approx(0.5)


def test_a_uid_and_an_answer_are_enough(table, tmp_path):
    """The strata depend on the table alone, so they need not be said again."""
    truth = truth_of(table)
    sample = written(table, tmp_path / "sample.parquet")
    alone = measure([str(table)], judge(sample, truth, tmp_path / "a.json"))
    named = measure([str(table)], judge(sample, truth, tmp_path / "a.csv"), sample=sample)
    assert alone.to_json() == named.to_json()


def test_a_part_of_the_answers_is_weighted_anew(table, tmp_path):
    sample = written(table, tmp_path / "sample.parquet")
    audit = measure([str(table)], judge(sample, truth_of(table), tmp_path / "a.csv", most=120))
    assert audit.counted == 120
    assert audit.judged.weight.sum() == pytest.approx(4_000)
    assert audit.noise.low < 0.2 < audit.noise.high


def test_partly_and_cannot_tell_count_as_one_says(table, tmp_path):
    uids = sample_of(table).rows.column("uid").to_pylist()
    rows = [{"uid": uid, "answer": n % 4} for n, uid in enumerate(uids)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))

    def counted(**options):
        audit = measure([str(table)], str(path), **options)
        assert audit.unknown == 0  # what is left out is known all the same
        return audit.counted, int(audit.judged.mismatched.sum())

    assert counted() == (225, 75)
    assert counted(partly="mismatch") == (225, 150)
    assert counted(partly="leave-out") == (150, 75)
    assert counted(cannot_tell="mismatch") == (300, 150)


def test_a_table_that_was_calibrated_again_is_refused(table, tmp_path, refused):
    sample = written(table, tmp_path / "sample.parquet")
    answers = judge(sample, truth_of(table), tmp_path / "a.csv")
    rows = pq.read_table(table)
    other = write_table(tmp_path / "other.parquet", rate=0.1)
    assert rows.num_rows == pq.read_metadata(other).num_rows
    refused(measure, [str(other)], answers, sample=sample)


def test_answers_on_other_pairs_are_counted_or_refused(table, tmp_path, refused):
    uid = sample_of(table).rows.column("uid").to_pylist()[0]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({uid: "match", "nobody": "mismatch"}))
    audit = measure([str(table)], str(path))
    assert (audit.counted, audit.unknown) == (1, 1)
    assert sum(audit.given.values()) == 1  # as the figures are printed: 1 answer, 1 match
    path.write_text(json.dumps({"nobody": "mismatch"}))
    refused(measure, [str(table)], str(path))


def test_a_pair_that_is_answered_by_its_uid_and_by_its_caption_is_one_pair(table, tmp_path):
    uid = sample_of(table).rows.column("uid").to_pylist()[0]
    path = tmp_path / "a.json"
    answers = [
        {"uid": uid, "answer": "mismatch"},
        {"uid": uid, "caption_number": 0, "answer": "match"},
    ]
    for order in (answers, answers[::-1]):
        path.write_text(json.dumps(order))
        audit = measure([str(table)], str(path))
        assert (audit.counted, audit.unknown, audit.repeated) == (1, 0, 1)
        assert audit.given["match"] == 1


def test_captions_of_one_image_are_told_apart(tmp_path, refused):
    rows = [
        {**row, "uid": f"u{n // 2}", "caption_number": n % 2} for n, row in enumerate(graded(80))
    ]
    table = write_scores(tmp_path / "scores.parquet", rows)
    path = tmp_path / "a.json"
    answers = [{"uid": "u3", "caption_number": 1, "answer": "match"}]
    path.write_text(json.dumps(answers))
    audit = measure([str(table)], str(path))
    assert audit.counted == 1
    path.write_text(json.dumps([{"uid": "u3", "answer": "match"}]))
    refused(measure, [str(table)], str(path))


def test_tables_without_noise_probabilities_are_refused(tmp_path, refused):
    rows = [{"similarity": 0.1, "noise_probability": None}]
    refused(AuditTable.open, [str(write_scores(tmp_path / "scores.parquet", rows))])
    pq.write_table(
        pq.read_table(tmp_path / "scores.parquet").select(["uid"]), tmp_path / "x.parquet"
    )
    refused(AuditTable.open, [str(tmp_path / "x.parquet")])


def test_pairs_that_could_not_be_scored_are_no_part_of_it(tmp_path):
    rows = [
        *graded(40),
        {"status": "image_corrupt"},
        {"similarity": 0.1},
        {"noise_probability": math.nan},
    ]
    table = write_scores(tmp_path / "scores.parquet", rows)
    assert sample_of(table, 100).rows.num_rows == 40


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_all_matched_and_all_mismatched(tmp_path, rate):
    table = write_table(tmp_path / "scores.parquet", pairs=500, rate=0.2)
    truth = dict.fromkeys(truth_of(table), bool(rate))
    sample = written(table, tmp_path / "sample.parquet", 100)
    audit = measure([str(table)], judge(sample, truth, tmp_path / "a.csv"))
    assert audit.noise.value == rate
    assert audit.noise.low <= rate <= audit.noise.high
    recalls = [rule.recall.value for rule in audit.rules if rule.flagged]
    assert all(np.isnan(recall) if rate == 0 else 0 <= recall <= 1 for recall in recalls)
    json.dumps(audit.to_json())


def test_a_pair_at_a_bound_is_in_the_stratum_above(tmp_path):
    """A probability of exactly one half, where a bound always lies."""
    rows = [{"noise_probability": p, "similarity": 0.1} for p in (0.49, 0.5, 0.9) for _ in range(9)]
    table = write_scores(tmp_path / "s.parquet", rows)
    with AuditTable.open([str(table)]) as opened:
        strata = opened.strata()
        assert 0.5 in strata.bounds
        pairs = opened.counts(strata.bounds)[0].pairs.sum(axis=1)
        drawn = draw_sample(opened, 27, 0)
    assert pairs.tolist() == strata.pairs.tolist() == drawn.design.pairs.tolist()
    below = np.searchsorted(strata.bounds, 0.5)
    assert pairs[: below + 1].sum() == 9
