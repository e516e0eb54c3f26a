"""SIGKILL at random moments: nothing answered is asked again, and nothing is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.audit import Audit
from upath import UPath

from ncclean.storage.entries import Entries
from tests.command_line import START
from tests.judging.judge_server import says, serving

PAIRS, REQUESTS, KILLS = 120, 4, 5


def command(scored, corpus, out, judge):
    return [
        sys.executable, "-c", START, "audit", str(scored / "scores.parquet"), "--shards",
        str(corpus), "--judge", judge.url, "--judge-model", "demo", "--pairs", str(PAIRS),
        "--judge-requests", str(REQUESTS), "--out", str(out), "--quiet",
    ]  # fmt: skip


def journal_of(out):
    """The answers that a killed run has kept."""
    entries = Entries(UPath(out / ".ncclean" / "judge.entries"))
    return [entry for entry in entries if entry["kind"] == "answer"]


@pytest.mark.slow
def test_killed_at_random_moments(scored, corpus, tmp_path):
    Audit(scores=[str(scored / "scores.parquet")], out=str(tmp_path / "page"), pairs=PAIRS).run()
    sample = pq.read_table(tmp_path / "page" / "sample.parquet").to_pylist()
    captions = Counter(row["text"] for row in sample)
    caption_of = {(row["uid"]): row["text"] for row in sample}
    rng = random.Random(0)

    def behave(asked):
        reply = says(("match", "partly", "mismatch")[asked.number % 3])
        reply.seconds = 0.02 + 0.1 * rng.random()
        return reply

    out = tmp_path / "audit"
    with serving(behave) as judge:
        for kills in range(1, KILLS + 1):
            kept = Counter(caption_of[entry["uid"]] for entry in journal_of(out))
            begin = len(judge.asked)
            target = begin + rng.randint(1, PAIRS // (KILLS + 3))
            process = subprocess.Popen(command(scored, corpus, out, judge))
            while process.poll() is None and len(judge.asked) < target:
                time.sleep(0.002)
            time.sleep(rng.random() / 10)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            time.sleep(0.3)  # for what the server was at
            # What was in the journal is not asked again, and nothing is asked twice in one run.
            assert not Counter(judge.captions()[begin:]) - (captions - kept)
            # What was answered is in the journal, but for what was under way.
            assert len(journal_of(out)) >= sum(judge.answered.values()) - REQUESTS * kills
        kept = len(journal_of(out))
        begin = len(judge.asked)
        subprocess.run(command(scored, corpus, out, judge), check=True)
        assert len(judge.asked) - begin == PAIRS - kept
        assert len(judge.asked) <= PAIRS + KILLS * REQUESTS
        answer_of = {one.caption: ("match", "partly", "mismatch")[one.number % 3]
                     for one in judge.asked}  # fmt: skip
    judged = pq.read_table(out / "judge.parquet").to_pylist()
    assert [row["uid"] for row in judged] == [row["uid"] for row in sample]
    assert all(row["answer"] == answer_of[caption_of[row["uid"]]] for row in judged)
    assert not (out / ".ncclean").exists()


@pytest.mark.slow
def test_interrupted_by_a_person_keeps_what_was_under_way(scored, corpus, tmp_path):
    def behave(asked):
        reply = says("match")
        reply.seconds = 0.1
        return reply

    out = tmp_path / "audit"
    with serving(behave) as judge:
        process = subprocess.Popen(command(scored, corpus, out, judge), stderr=subprocess.PIPE)
        while process.poll() is None and len(judge.asked) < 20:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"run the same command again" in errors
        assert len(journal_of(out)) == sum(judge.answered.values())
