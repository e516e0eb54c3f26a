"""What is kept of a run that was interrupted, at the edges that a random kill seldom meets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from upath import UPath

from ncclean.auditing.answers import Design
from ncclean.auditing.sample import Sample
from ncclean.errors import InputError, ResumeError
from ncclean.judging.journal import Journal
from ncclean.judging.reply import Judgement

RUN = {"judge_model": "demo", "seed": 0}
MATCH = Judgement("match", tokens_in=900, tokens_out=10)


@pytest.fixture
def sample():
    rows = pa.table(
        {
            "uid": ["a", "b", "b", "c"],  # a uid may occur twice
            "caption_number": pa.array([0, 0, 0, 1], pa.int16()),
            "stratum": pa.array([0, 1, 1, 0], pa.int32()),
        }
    )
    return Sample(rows, Design(np.array([0.5]), np.array([10, 20])))


def opened(folder, sample, run=RUN, overwrite=False):
    return Journal.open(UPath(folder), run, sample, overwrite=overwrite)


def test_an_answer_cut_short_is_asked_again(tmp_path, sample):
    journal = opened(tmp_path, sample)
    journal.add(0, "a", MATCH, 910)
    journal.add(2, "b", Judgement("partly", words=("red",)), 900)
    journal.close(remove=False)
    path = tmp_path / ".ncclean" / "judge.entries" / "000001.json"
    path.write_bytes(path.read_bytes()[:-20])
    again = opened(tmp_path, sample)
    assert again.judgements == {0: MATCH}
    assert again.tokens == 910
    again.add(2, "b", Judgement("partly", words=("red",)), 900)
    again.close(remove=False)
    last = opened(tmp_path, sample)
    assert last.judgements == {0: MATCH, 2: Judgement("partly", words=("red",))}
    assert last.tokens == 1810


def test_killed_between_the_table_and_the_end_of_the_journal(tmp_path, sample):
    journal = opened(tmp_path, sample)
    for row, uid in ((0, "a"), (1, "b"), (2, "b")):
        journal.add(row, uid, MATCH, 910)
    journal.write(0, {})
    journal.close(remove=False)
    again = opened(tmp_path, sample)
    assert set(again.judgements) == {0, 1, 2}
    assert again.tokens == 2730
    again.close(remove=True)
    assert [path.name for path in tmp_path.iterdir()] == ["judge.parquet"]


def test_a_pair_without_a_picture_is_looked_for_again(tmp_path, sample):
    journal = opened(tmp_path, sample)
    journal.add(0, "a", Judgement.without_picture("the shard cannot be read"))
    journal.add(3, "c", MATCH, 910)
    path = journal.write(0, {})
    journal.close(remove=True)
    rows = pa.parquet.read_table(str(path)).to_pylist()
    assert rows[0]["answer"] == "cannot tell"
    assert rows[0]["reason"] == "no picture: the shard cannot be read"
    assert set(opened(tmp_path, sample).judgements) == {3}


def test_two_runs_on_one_folder_are_kept_apart(tmp_path, sample):
    journal = opened(tmp_path, sample)
    journal.add(0, "a", MATCH, 910)
    with pytest.raises(InputError, match="another run is writing"):
        opened(tmp_path, sample)
    journal.close(remove=False)


def test_a_run_without_answers_binds_nobody(tmp_path, sample):
    opened(tmp_path, sample).close(remove=False)
    journal = opened(tmp_path, sample, {**RUN, "judge_model": "other"})
    journal.add(0, "a", MATCH, 910)
    journal.close(remove=False)
    with pytest.raises(ResumeError, match="--judge-model was other, is demo"):
        opened(tmp_path, sample)
    assert not opened(tmp_path, sample, overwrite=True).judgements


def test_a_damaged_journal_is_one_sentence(tmp_path, sample):
    journal = opened(tmp_path, sample)
    journal.add(0, "a", Judgement("oui"), 910)
    journal.close(remove=False)
    with pytest.raises(InputError, match="not a record that this version"):
        opened(tmp_path, sample)
