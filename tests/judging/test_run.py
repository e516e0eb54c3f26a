"""A sample judged by a server: every answer on its own pair, in any order and after any failure."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.audit import Audit

from ncclean.auditing.sample import read_design
from ncclean.judging.options import JudgeOptions
from tests.judging.judge_server import EstimatorJudge, serving


@pytest.fixture(scope="module")
def estimator_judge(demo_estimator):
    return EstimatorJudge(demo_estimator)


def auditing(scored, corpus, out, judge, *, pairs=60, seed=0, overwrite=False, **options):
    judging = JudgeOptions(judge=judge.url, judge_model="demo", **options)
    return Audit(
        scores=[str(scored / "scores.parquet")], shards=[str(corpus)], out=str(out), pairs=pairs,
        seed=seed, judging=judging, overwrite=overwrite,
    )  # fmt: skip


def rows(out):
    return pq.read_table(out / "judge.parquet").to_pylist()


def test_the_judge_answers_on_every_pair(scored, corpus, tmp_path, estimator_judge):
    with serving(estimator_judge) as judge:
        result = auditing(scored, corpus, tmp_path / "a", judge).run()
    judged = rows(tmp_path / "a")
    assert len(judged) == 60
    table = pq.read_table(scored / "scores.parquet", columns=["uid", "is_noisy"]).to_pylist()
    is_noisy = {row["uid"]: row["is_noisy"] for row in table}
    right = [(row["answer"] == "mismatch") == is_noisy[row["uid"]] for row in judged]
    assert np.mean(right) > 0.9
    print(result.summary.answers, list(result.shown))
