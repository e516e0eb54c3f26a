"""`ncclean audit` as people run it: draw, judge, measure, move the calibration, use it."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from ncclean_cli.app import app
from ncclean_pipelines.audit import Audit
from ncclean_pipelines.report import Report
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select
from typer.testing import CliRunner

import ncclean
from ncclean.auditing.answers import Design
from ncclean.auditing.judge_answers import JudgeAnswers
from ncclean.auditing.sample import Sample
from ncclean.base.config import ScoreOptions
from ncclean.report.audit_page import AuditPair, render_audit
from ncclean.selection.policy import Policy
from ncclean.storage.run_facts import read_facts
from tests.auditing.audited import judge, truth_of
from tests.report.tables import graded, write_scores

ANSWERS = 200


@pytest.fixture(scope="module")
def drawn(scored, tmp_path_factory):
    """The folder of an audit of the scored corpus."""
    out = tmp_path_factory.mktemp("drawn") / "audit"
    Audit(scores=[str(scored / "scores.parquet")], out=str(out), pairs=ANSWERS).run()
    return out


@pytest.fixture
def run(scored, drawn, tmp_path):
    """A scored corpus of one's own, a sample of it, and answers that find more than the null."""
    scores = tmp_path / "scores.parquet"
    shutil.copy(scored / "scores.parquet", scores)
    shutil.copytree(scored / "scores.parquet.work", f"{scores}.work")
    shutil.copytree(drawn, tmp_path / "audit")
    truth = truth_of(scores)
    probability = dict(zip(*columns(scores, "uid", "noise_probability"), strict=True))
    rng = np.random.default_rng(0)
    for uid in truth:  # near misses, which look matched
        truth[uid] = truth[uid] or (probability[uid] is not None and rng.random() < 0.2)
    answers = judge(tmp_path / "audit" / "sample.parquet", truth, tmp_path / "answers.csv")
    return scores, answers, {uid: truth[uid] for uid in truth if probability[uid] is not None}


def columns(path, *names):
    table = pq.read_table(path, columns=list(names))
    return [table.column(name).to_pylist() for name in names]


def calibration_error(scores, truth):
    """Mean distance of predicted and true share in tenths, as `evaluate noise` has it."""
    uids, probability = columns(scores, "uid", "noise_probability")
    p = np.array([value for value in probability if value is not None])
    y = np.array([truth[uid] for uid, v in zip(uids, probability, strict=True) if v is not None])
    tenth = np.minimum((10 * p).astype(int), 9)
    gaps = [abs(p[tenth == t].sum() - y[tenth == t].sum()) for t in range(10)]
    return sum(gaps) / len(p)


def test_answers_measure_what_the_null_does_not_see(run):
    scores, answers, truth = run
    audit = Audit(scores=[str(scores)], answers=answers).run()
    true = np.mean(list(truth.values()))
    assert audit["noise_rate_low"] < true < audit["noise_rate_high"]
    assert audit["expected_noise_rate"] < audit["noise_rate_low"]
    assert not audit["agrees"]
    assert audit["rules"]["noise_probability >= 0.5"]["precision"] > 0.8
    for rule in audit["rules"].values():
        for figure in ("precision", "recall", "noise_rate"):
            assert 0 <= rule[f"{figure}_low"] <= rule[f"{figure}_high"] <= 1
    json.dumps(audit.to_json())


@pytest.mark.parametrize("by", ["score", "audit"])
def test_the_calibration_moves_to_the_answers(run, by):
    scores, answers, truth = run
    before = calibration_error(scores, truth)
    calibrated_on = read_facts([str(scores)]).calibrated_on
    score = np.array(columns(scores, calibrated_on)[0], dtype=float)
    order = [place for place in score.argsort() if np.isfinite(score[place])]
    if by == "score":
        command = Score(
            shards=(), out=str(scores), finalize_only=True, calibrate_with=answers, shift=0.2
        )
        summary = command.run().summary
        assert summary.audited == ANSWERS
    else:
        Audit(scores=[str(scores)], answers=answers, apply=True).run()
    assert before > 0.1
    assert calibration_error(scores, truth) < before / 2
    moved = columns(scores, "noise_probability")[0]
    found = [moved[place] for place in order]
    assert all(np.diff(found) <= 1e-7)
    facts = read_facts([str(scores)])
    assert facts.audited is not None
    assert facts.audited.answers == ANSWERS
    assert facts.shift == 0.2  # as it was
    true = np.mean(list(truth.values()))
    assert facts.noise_rate.low < true < facts.noise_rate.high
    assert np.mean(found) == pytest.approx(facts.noise_rate.value, abs=0.03)


def test_an_audited_table_agrees_with_its_audit_and_stays_so(run):
    scores, answers, _ = run
    first = Audit(scores=[str(scores)], answers=answers, apply=True).run()
    moved = columns(scores, "noise_probability")[0]
    # The strata of the answers are found again, though the probabilities have moved.
    again = Audit(scores=[str(scores)], answers=answers, apply=True).run()
    assert again["agrees"]
    assert again["audited"]
    assert again["noise_rate"] == pytest.approx(first["noise_rate"], abs=1e-9)
    for rule in ("osa_noisy", "not disncl_clean"):
        assert again["rules"][rule]["recall"] == pytest.approx(first["rules"][rule]["recall"])
    assert columns(scores, "noise_probability")[0] == pytest.approx(moved, nan_ok=True, abs=1e-6)
    sample = str(scores.parent / "audit" / "sample.parquet")
    named = Audit(scores=[str(scores)], answers=answers, sample=sample).run()
    assert named["noise_rate"] == pytest.approx(first["noise_rate"], abs=1e-9)


def test_an_audited_table_can_be_audited_anew(run, tmp_path):
    scores, answers, truth = run
    Audit(scores=[str(scores)], answers=answers, apply=True).run()
    Audit(scores=[str(scores)], out=str(tmp_path / "second"), pairs=ANSWERS, seed=5).run()
    second = judge(tmp_path / "second" / "sample.parquet", truth, tmp_path / "second.csv")
    audit = Audit(scores=[str(scores)], answers=second, apply=True).run()
    true = np.mean(list(truth.values()))
    assert audit["noise_rate_low"] < true < audit["noise_rate_high"]
    assert calibration_error(scores, truth) < 0.09


def test_scoring_again_takes_the_audit_off(run):
    scores, answers, _ = run
    before = columns(scores, "noise_probability")[0]
    Audit(scores=[str(scores)], answers=answers, apply=True).run()
    Score(shards=(), out=str(scores), finalize_only=True, shift=0.2).run()
    assert columns(scores, "noise_probability")[0] == before
    assert read_facts([str(scores)]).audited is None


def test_select_and_report_say_what_was_measured(run, tmp_path):
    scores, answers, truth = run
    out = tmp_path / "selection.parquet"
    policy = Policy(method="noise-probability")
    selected = Select(scores=[str(scores)], out=str(out), policy=policy, audit=answers).run()
    kept = columns(out, "uid")[0]
    true = np.mean([truth[uid] for uid in kept])
    summary = selected.summary
    assert summary.measured_noise_kept.low < true < summary.measured_noise_kept.high
    assert any("among the kept, by the audit" in str(line) for line in selected.shown)
    audit = Audit(scores=[str(scores)], answers=answers, selection=str(out)).run()
    assert audit["selection"]["noise_rate"] == pytest.approx(summary.measured_noise_kept.value)
    assert audit["selection"]["flagged"] == len(truth) - len(kept)
    page = tmp_path / "report.html"
    written = Report(scores=[str(scores)], out=str(page), pairs=2, audit=answers).run()
    assert written["audit"]["noise_rate"] == audit["noise_rate"]
    assert "What the audit measured" in page.read_text("utf-8")
    Audit(scores=[str(scores)], answers=answers, apply=True).run()
    Report(scores=[str(scores)], out=str(page), pairs=2).run()
    assert "The noise probabilities are audited" in page.read_text("utf-8")


def test_rows_that_were_filtered_are_not_expected_to_be_as_noisy_as_all(run, tmp_path):
    scores, answers, _ = run
    table = pq.read_table(scores)  # with the metadata of all rows
    kept = table.filter(pc.field("noise_probability") < 0.5)
    pq.write_table(kept, tmp_path / "kept.parquet")
    expected = np.mean(columns(tmp_path / "kept.parquet", "noise_probability"))
    audit = Audit(scores=[str(tmp_path / "kept.parquet")], answers=answers).run()
    assert audit["expected_noise_rate"] == pytest.approx(expected)
    report = Report(scores=[str(tmp_path / "kept.parquet")], out=str(tmp_path / "r.html"), pairs=2)
    written = report.run()
    assert written["noise_rate"] is None
    assert "removed or added" in written["missing"][0]
    pq.write_table(table.sort_by("similarity"), tmp_path / "sorted.parquet")
    rates = [read_facts([str(path)]).noise_rate for path in (tmp_path / "sorted.parquet", scores)]
    assert rates[0] == rates[1]


def test_scores_from_embeddings_in_a_folder(scored, tmp_path):
    out = tmp_path / "scores"
    options = ScoreOptions()
    Score(shards=[str(scored / "embeddings")], out=str(out), shift=0.2, options=options).run()
    drawn = ncclean.audit([str(out)], out=str(tmp_path / "audit"), pairs=100)
    assert drawn["pairs"] == 100
    assert (tmp_path / "audit" / "audit.html").exists()
    truth = truth_of(out)
    answers = judge(tmp_path / "audit" / "sample.parquet", truth, tmp_path / "answers.json")
    audit = ncclean.audit([str(out)], answers=answers, apply=True)
    known = [truth[uid] for uid in truth if truth[uid] is not None]
    assert audit["noise_rate_low"] <= np.mean(known) <= audit["noise_rate_high"]
    assert all(read_facts([str(part)]).audited for part in out.glob("*.parquet"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"out": "a", "answers": "b", "width": 0.02},
        {"out": "a", "apply": True},
        {"answers": "a", "pairs": 20},
        {"answers": "a", "apply": True, "scores": ["a", "b"]},
        {"out": "a", "pairs": 3},
    ],
)
def test_options_that_do_not_go_together(options, refused):
    refused(Audit, **{"scores": ["x.parquet"], **options})


def test_too_few_answers_and_an_unscored_table_are_refused(run, tmp_path, refused):
    scores, answers, truth = run
    sample = tmp_path / "audit" / "sample.parquet"
    few = judge(sample, truth, tmp_path / "few.csv", most=20)
    refused(Audit, scores=[str(scores)], answers=few, apply=True)
    refused(Score, shards=["x"], out="y", calibrate_with=answers)
    shutil.rmtree(f"{scores}.work")
    refused(Audit, scores=[str(scores)], answers=answers, apply=True)


def test_what_answers_count_as_is_what_was_asked_for(tmp_path):
    """All pairs are judged: a quarter of them each way."""
    scores = write_scores(tmp_path / "s.parquet", graded(40))
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({f"u{n}": n % 4 for n in range(40)}))

    def rate(**options):
        audit = Audit(scores=[str(scores)], answers=str(path), **options).run()
        return audit["answers"], audit["noise_rate"]

    count, _ = rate()
    assert count == 30
    assert rate(cannot_tell="match") == (40, pytest.approx(0.25))
    assert rate(cannot_tell="mismatch") == (40, pytest.approx(0.5))
    assert rate(cannot_tell="mismatch", partly="mismatch") == (40, pytest.approx(0.75))


@pytest.fixture
def judge_file(run, tmp_path):
    """A judge who errs in one pair of twenty, on all pairs that have a noise probability."""
    _, _, truth = run
    rng = np.random.default_rng(3)
    rows = [
        {"uid": uid, "answer": "mismatch" if wrong ^ (rng.random() < 0.05) else "match"}
        for uid, wrong in truth.items()
    ]
    path = tmp_path / "judge.json"
    path.write_text(json.dumps(rows))
    return str(path)


def test_a_judge_beside_people_on_the_command_line(run, judge_file):
    scores, answers, _ = run
    judged = ["--answers", answers, "--judge-answers", judge_file]
    found = CliRunner().invoke(app, ["audit", str(scores), *judged, "--width", ".02"])
    assert found.exit_code == 0
    for words in ("the judge, ", "both agree on", "people say", "an interval of 2 points takes"):
        assert words in found.stdout


def test_selections_and_reports_measure_with_the_judge(run, judge_file, tmp_path):
    scores, answers, _ = run

    def kept(**judge):
        out = str(tmp_path / "selection.parquet")
        found = ncclean.select(
            [str(scores)], out, method="noise-probability", audit=answers, **judge
        )
        return found["measured_noise_kept_high"] - found["measured_noise_kept_low"]

    assert kept(judge_answers=judge_file) < kept()
    page = tmp_path / "report.html"
    judge = JudgeAnswers(judge_answers=judge_file)
    Report(scores=[str(scores)], out=str(page), audit=answers, beside=judge).run()
    assert "both agree on" in page.read_text("utf-8")


def test_apply_moves_to_the_rate_that_people_and_judge_measure(run, judge_file):
    scores, answers, _ = run
    audit = ncclean.audit([str(scores)], answers=answers, judge_answers=judge_file, apply=True)
    facts = read_facts([str(scores)])
    assert facts.noise_rate.value == pytest.approx(audit["noise_rate"])
    p = [value for value in columns(scores, "noise_probability")[0] if value is not None]
    assert np.mean(p) == pytest.approx(audit["noise_rate"], abs=0.03)


def test_people_are_asked_about_pairs_that_the_judge_leaves_in_doubt(run, judge_file, tmp_path):
    scores, answers, _ = run
    made = Audit(
        scores=[str(scores)],
        out=str(tmp_path / "next"),
        pairs=60,
        answers=[answers],
        beside=JudgeAnswers(judge_answers=judge_file),
    ).run()
    assert made["pairs"] == 60
    rows = pq.read_table(tmp_path / "next" / "sample.parquet").column("uid").to_pylist()
    with open(answers) as file:
        assert not set(rows) & {line.split(",")[0] for line in file}
    page = (tmp_path / "next" / "audit.html").read_text("utf-8")
    assert '"judge":"mismatch"' in page.replace(" ", "")
    assert "--judge-answers judge.parquet" in page


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://h.example/a.jpg", "https://h.example/a.jpg"),
        ("javascript:window.hacked=9", None),
        ("file:///etc/passwd", None),
        (None, None),
    ],
)
def test_the_page_links_to_what_is_on_the_web_alone(url, link):
    place = {"shard": "s", "key": "k", "row": 0}
    pair = AuditPair(**place, uid="a", caption_number=0, stratum=0, text="a dog", url=url)
    sample = Sample(pa.table({}), Design(np.array([0.0, 1.0]), np.array([1])))
    page = render_audit(sample, [pair], None, "scores")
    (shown,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["pairs"]
    assert shown["link"] == link
