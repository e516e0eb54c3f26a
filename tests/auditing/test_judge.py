"""A judge beside people: files and columns of answers, and what they make of an audit."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from upath import UPath

from ncclean.auditing.answers import read_answers
from ncclean.auditing.judge import Judge
from ncclean.auditing.judge_answers import JudgeAnswers
from ncclean.auditing.measure import measure
from ncclean.auditing.sample import draw_sample
from ncclean.auditing.table import AuditTable
from ncclean.auditing.two_phase import MATCH, MISMATCH, NEITHER
from tests.auditing.audited import judge as judged_by_truth
from tests.auditing.audited import truth_of, write_table

COLUMNS = {
    "says": lambda y: pa.array(["mismatch" if v else "Match" for v in y]),
    "number": lambda y: pa.array([3 if v else 1 for v in y]).cast(pa.string()),
    "flag": lambda y: pa.array(y),
    "zero_one": lambda y: pa.array([int(v) for v in y]),
    "score": lambda y: pa.array([0.1 if v else 0.9 for v in y]),
    "score_32": lambda y: pa.array([0.1 if v else 0.7 for v in y], pa.float32()),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose noise is half near misses, with a right judge in columns of all kinds."""
    path = write_table(tmp_path_factory.mktemp("judge") / "scores.parquet", near=0.5)
    rows = pq.read_table(path)
    y = rows.column("is_noisy").to_pylist()
    for name, values in COLUMNS.items():
        rows = rows.append_column(name, values(y))
    rows = rows.append_column("constant", pa.array([0.5] * len(y)))
    pq.write_table(rows, path)
    return str(path)


@pytest.fixture(scope="module")
def people(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("people")
    return judged_by_truth(drawn(table, out, 150), truth_of(table), out / "people.csv")


def drawn(table, out, answers, judge=None, before=()):
    with AuditTable.open([table], judge=judge) as opened:
        sample = draw_sample(opened, answers, 0, before)
    name = f"sample-{answers}.parquet"
    sample.write(UPath(out / name), 0)
    return str(out / name)


def judged(table, out, answers=1_500, wrong=0.05):
    """Answers of a judge who errs, with the design of the sample."""
    sample = pq.read_table(drawn(table, out, answers))
    truth, rng = truth_of(table), np.random.default_rng(1)
    says = [
        "mismatch" if truth[uid] ^ (rng.random() < wrong) else "partly" if n % 9 == 0 else "match"
        for n, uid in enumerate(sample.column("uid").to_pylist())
    ]
    path = out / "judge.parquet"
    pq.write_table(sample.append_column("answer", pa.array(says)), path)
    return str(path)


def width(estimate):
    return estimate.high - estimate.low


def test_a_judges_answers_narrow_the_interval(table, people, tmp_path):
    file = judged(table, tmp_path)
    audit = measure([table], people, judge=JudgeAnswers(judge_answers=file), width=0.02)
    alone = measure([table], people)
    assert width(audit.noise) < 0.75 * width(alone.noise)
    assert audit.noise.low < 0.2 < audit.noise.high
    assert audit.judge.alone == alone.noise
    assert (audit.judge.answers, audit.judge.compared, audit.judge.helps) == (1_500, 150, True)
    assert audit.judge.agreement.low < 0.95 < audit.judge.agreement.high
    assert audit.needed.with_judge < audit.needed.alone
    rule, by_people = (next(r for r in a.rules if "0.5" in r.name) for a in (audit, alone))
    assert width(rule.recall) < width(by_people.recall)
    json.dumps(audit.to_json())


def answers_of(table, column):
    """The pairs of the table with their answers by the column: match, mismatch and neither."""
    with AuditTable.open([table], judge=of(column)) as opened:
        rows = opened.judged(np.array([0.5]), truth_of(table)).select(["uid", "judge"])
    return dict(zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True))


@pytest.mark.parametrize(
    "name", [*COLUMNS, "score<0.5", "score <= .1", "score_32<=.1", "score_32<.7"]
)
def test_a_column_is_a_judge_of_all_pairs(table, name):
    truth = truth_of(table)
    assert answers_of(table, name) == {
        uid: MISMATCH if is_noisy else MATCH for uid, is_noisy in truth.items()
    }


def test_an_audit_takes_the_answers_of_a_column(table, people):
    audit = measure([table], people, judge=JudgeAnswers(judge_column="score<0.5"))
    assert audit.judge.answers == audit.pairs == 4_000
    assert audit.judge.agreement.value == 1.0
    assert audit.noise.value == pytest.approx(0.2, abs=0.01)


def test_a_score_without_a_cut_flags_the_noise_rate_of_the_table(table, people):
    audit = measure([table], people, judge=JudgeAnswers(judge_column="similarity"))
    assert audit.judge.name.startswith("similarity<")
    with AuditTable.open([table], judge=of("similarity")) as opened:
        judged_all = opened.counts(np.array([0.5]))[0].judged.sum(axis=(0, 1))
    assert judged_all[1] / judged_all.sum() == pytest.approx(audit.expected.value, abs=0.01)


def of(column):
    return Judge.read(JudgeAnswers(judge_column=column), "match", "leave-out")


@pytest.mark.parametrize("name", ["flag", "score<0.5"])
def test_nulls_of_a_column_are_neither(table, tmp_path, name):
    rows = pq.read_table(table)
    column = name.split("<")[0]
    values = rows.column(column).to_pylist()
    index = rows.schema.get_field_index(column)
    nulls = pa.array([None if n % 2 else value for n, value in enumerate(values)])
    path = tmp_path / "scores.parquet"
    pq.write_table(rows.set_column(index, column, nulls), path)
    assert Counter(answers_of(str(path), name).values())[NEITHER] == 2_000


def test_what_a_column_does_not_say_is_neither(table, people, tmp_path):
    rows = pq.read_table(table)
    says = rows.column("says").to_pylist()
    says[::4] = [None] * len(says[::4])
    says[1::4] = ["ja"] * len(says[1::4])
    path = tmp_path / "scores.parquet"
    index = rows.schema.get_field_index("says")
    pq.write_table(rows.set_column(index, "says", pa.array(says)), path)
    assert Counter(answers_of(str(path), "says").values())[NEITHER] == 2_000
    audit = measure([str(path)], people, judge=JudgeAnswers(judge_column="says"))
    assert audit.judge.confusion["match"]["neither"].value == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize(
    "column", ["missing", "score<much", "score<nan", "score>=-inf", "constant", "uid", "text<3"]
)
def test_columns_that_are_no_judge(table, people, column, refused):
    refused(measure, [table], people, judge=JudgeAnswers(judge_column=column))


def test_a_useless_judge_leaves_everything_as_it_is(table, people, tmp_path):
    file = judged(table, tmp_path, wrong=0.5)
    audit = measure([table], people, judge=JudgeAnswers(judge_answers=file), width=0.02)
    alone = measure([table], people, width=0.02)
    assert audit.noise == alone.noise
    assert not audit.judge.helps
    assert audit.needed.with_judge == audit.needed.alone == alone.needed.alone
    assert np.array_equal(audit.judged.weight, alone.judged.weight)


def test_a_judge_that_saw_none_of_peoples_pairs_is_refused(table, people, tmp_path, refused):
    asked = set(read_answers(people).by_pair)
    rows = [uid for uid in truth_of(table) if (uid, None) not in asked][:500]
    file = tmp_path / "judge.json"
    file.write_text(json.dumps(dict.fromkeys(rows, "match")))
    refused(measure, [table], people, judge=JudgeAnswers(judge_answers=str(file)))


def test_samples_of_different_strata_are_refused(table, people, tmp_path, refused):
    other = str(write_table(tmp_path / "other.parquet", rate=0.4))
    options = JudgeAnswers(judge_answers=judged(other, tmp_path))
    refused(measure, [table], people, judge=options)
    sample = drawn(table, tmp_path, 150)
    refused(measure, [table], people, sample=sample, judge=options)


def test_several_captions_need_their_number(table, people, tmp_path, refused):
    rows = pq.read_table(table)
    uids = rows.column("uid").to_pylist()
    uids[1] = uids[0]
    numbers = [0, 1, *[0] * (len(uids) - 2)]
    rows = rows.set_column(rows.schema.get_field_index("uid"), "uid", pa.array(uids))
    path = tmp_path / "scores.parquet"
    index = rows.schema.get_field_index("caption_number")
    rows = rows.set_column(index, "caption_number", pa.array(numbers, pa.int16()))
    pq.write_table(rows, path)
    file = tmp_path / "judge.json"
    some = [uid for uid, _ in read_answers(people).by_pair if uid not in uids[:2]]
    answers = [{"uid": uid, "answer": "match"} for uid in some]
    file.write_text(json.dumps([*answers, {"uid": uids[0], "answer": "match"}]))
    options = JudgeAnswers(judge_answers=str(file))
    refused(measure, [str(path)], people, judge=options)
    numbered = {"uid": uids[0], "caption_number": 1, "answer": "match"}
    file.write_text(json.dumps([*answers, numbered]))
    assert measure([str(path)], people, judge=options).judge.answers == len(answers) + 1


class TestDrawnByTheJudge:
    def draw(self, table, tmp_path, before=()):
        file = judged(table, tmp_path, wrong=0.1)
        options = JudgeAnswers(judge_answers=file)
        reader = Judge.read(options, "match", "leave-out")
        return options, drawn(table, tmp_path, 120, judge=reader, before=before)

    def test_each_stratum_and_answer_has_its_share_of_the_corpus(self, table, tmp_path):
        options, sample = self.draw(table, tmp_path)
        says = read_answers(options.judge_answers)
        rows = pq.read_table(sample).to_pylist()
        assert len(rows) == 120
        assert sum(row["weight"] for row in rows) == pytest.approx(4_000, rel=0.01)
        flagged = sum(r["weight"] for r in rows if says.by_pair[r["uid"], 0] == "mismatch")
        share = np.mean([answer == "mismatch" for answer in says.by_pair.values()])
        assert flagged < 2 * share * 4_000  # by stratum, of which some were judged more often
        drawn_share = np.mean([says.by_pair[r["uid"], 0] == "mismatch" for r in rows])
        assert drawn_share > 0.3

    def test_it_is_measured_with_the_judge_alone(self, table, tmp_path, refused):
        options, sample = self.draw(table, tmp_path)
        answers = tmp_path / "answers.json"
        judged_by_truth(sample, truth_of(table), answers)
        rows = json.loads(answers.read_text())
        design = json.loads(pq.read_schema(sample).metadata[b"audit_design"])
        answers.write_text(json.dumps({"design": design, "answers": rows}))
        audit = measure([table], str(answers), judge=options)
        assert audit.noise.low < 0.2 < audit.noise.high
        assert audit.judged.weight.sum() == pytest.approx(4_000, rel=0.01)
        assert not audit.judge.alone.is_known
        refused(measure, [table], str(answers))
        other = JudgeAnswers(judge_column="says")
        refused(measure, [table], str(answers), judge=other)
        # How `partly` counts is people's business: the draw stays as it was.
        assert measure([table], str(answers), judge=options, partly="mismatch").noise == audit.noise

    def test_the_next_pairs_are_others_and_both_samples_count(self, table, people, tmp_path):
        before = read_answers(people).by_pair
        options, sample = self.draw(table, tmp_path, before)
        rows = pq.read_table(sample).to_pylist()
        assert not {(row["uid"], None) for row in rows} & set(before)
        more = tmp_path / "more.json"
        design = json.loads(pq.read_schema(sample).metadata[b"audit_design"])
        truth = truth_of(table)
        more.write_text(
            json.dumps(
                {
                    "design": design,
                    "answers": [
                        {"uid": r["uid"], "answer": "mismatch" if truth[r["uid"]] else "match"}
                        for r in rows
                    ],
                }
            )
        )
        audit = measure([table], [people, str(more)], judge=options)
        assert audit.counted == 150 + len(rows)
        assert width(audit.noise) < width(measure([table], people, judge=options).noise)


def test_two_judges_exclude_each_other(refused):
    refused(JudgeAnswers, judge_answers="a", judge_column="b")
