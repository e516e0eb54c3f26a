"""A sample judged by a server: every answer on its own pair, after any failure of the server."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.audit import Audit

from ncclean.auditing.sample import read_design
from ncclean.base import stores
from ncclean.errors import InputError, ResumeError
from ncclean.judging.options import JudgeOptions
from tests import object_store
from tests.judging.judge_server import EstimatorJudge, Reply, says, serving

KEY = "sk-secret-0123456789abcdef"
PAIRS = 24


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr("ncclean.judging.server._RETRIES", 2)
    monkeypatch.setattr("ncclean.judging.server._PAUSE", 0.2)


@pytest.fixture(scope="module")
def estimator_judge(demo_estimator):
    return EstimatorJudge(demo_estimator)


@pytest.fixture(scope="module")
def asked_alone(scored, corpus, tmp_path_factory, estimator_judge):
    """The rows of an undisturbed run: what every other run must come to."""
    out = tmp_path_factory.mktemp("alone")
    with serving(estimator_judge) as judge:
        auditing(scored, corpus, out, judge).run()
    return rows(out)


def auditing(scored, corpus, out, judge, *, pairs=PAIRS, seed=0, overwrite=False, **options):
    url = judge if isinstance(judge, str) else judge.url
    judging = JudgeOptions(**{"judge": url, "judge_model": "demo", **options})
    return Audit(
        scores=[str(scored / "scores.parquet")], shards=[str(corpus)], out=str(out), pairs=pairs,
        seed=seed, judging=judging, overwrite=overwrite,
    )  # fmt: skip


def rows(out):
    written = stores.read_bytes(stores.location(f"{out}/judge.parquet"))
    return pq.read_table(pa.BufferReader(written)).to_pylist()


def files(out):
    """The names of all files below a folder of this machine or a store."""
    folder = stores.location(str(out))
    return [path.name for path in folder.rglob("*") if path.is_file()]


def answers(judged):
    return {(row["uid"], row["caption_number"]): row["answer"] for row in judged}


def facts_of(out):
    return {
        key.decode(): value.decode()
        for key, value in pq.read_schema(out / "judge.parquet").metadata.items()
    }


def test_the_judge_answers_on_every_pair(scored, corpus, asked_alone):
    table = pq.read_table(scored / "scores.parquet", columns=["uid", "is_noisy"]).to_pylist()
    is_noisy = {row["uid"]: row["is_noisy"] for row in table}
    assert len(asked_alone) == PAIRS
    right = [(row["answer"] == "mismatch") == is_noisy[row["uid"]] for row in asked_alone]
    assert np.mean(right) > 0.9
    assert {row["reason"] for row in asked_alone} == {None}
    assert {(row["tokens_in"], row["tokens_out"]) for row in asked_alone} == {(900, 10)}


def test_it_is_the_sample_of_the_page(scored, corpus, tmp_path, estimator_judge, asked_alone):
    page = Audit(scores=[str(scored / "scores.parquet")], out=str(tmp_path), pairs=PAIRS)
    page.run()
    sample = pq.read_table(tmp_path / "sample.parquet").to_pylist()
    for name in ("uid", "caption_number", "stratum"):
        assert [row[name] for row in sample] == [row[name] for row in asked_alone]
    before = (tmp_path / "audit.html").read_bytes(), (tmp_path / "sample.parquet").read_bytes()
    with serving(estimator_judge) as judge:
        auditing(scored, corpus, tmp_path, judge).run()
    assert (tmp_path / "audit.html").read_bytes() == before[0]
    assert (tmp_path / "sample.parquet").read_bytes() == before[1]
    designs = [read_design(str(tmp_path / name)) for name in ("sample.parquet", "judge.parquet")]
    assert designs[0].to_json() == designs[1].to_json()


def test_metadata_name_the_judge_and_no_secret(scored, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda asked: says("match")) as judge:
        url = judge.url.replace("//", "//user:hidden-word@")
        auditing(scored, corpus, tmp_path, url, pairs=10).run()
        assert judge.asked[0].headers["Authorization"]
    facts = facts_of(tmp_path)
    judged = json.loads(facts["judge"])
    assert judged["model"] == "demo"
    assert judged["prompt"] == "match"
    assert len(judged["prompt_hash"]) == 16
    assert facts["made_by"] == "made by ncclean audit"
    assert facts["seed"] == "0"
    written = (tmp_path / "judge.parquet").read_bytes()
    assert b"hidden-word" not in written
    assert KEY.encode() not in written


def test_the_key_goes_to_the_server_and_nowhere_else(scored, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def echo(asked):
        assert asked.headers["Authorization"] == f"Bearer {KEY}"
        return Reply(f"your key is {KEY}")

    said = []
    with serving(echo) as judge:
        result = auditing(scored, corpus, tmp_path, judge, pairs=10).run(Said(said))
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (written.decode("latin1"), repr(said), json.dumps(result.to_json())):
        assert KEY not in text
    assert {row["answer"] for row in rows(tmp_path)} == {"cannot tell"}
    with (
        serving(lambda asked: Reply(status=401, error=f"Incorrect API key: {KEY}")) as judge,
        pytest.raises(InputError, match="refuses the key in OPENAI_API_KEY") as refused,
    ):
        auditing(scored, corpus, tmp_path / "b", judge, pairs=10).run()
    assert KEY not in str(refused.value)


class Said:
    def __init__(self, said):
        self._said = said

    def say(self, text):
        self._said.append(text)

    def advance(self, done, total, unit, **facts):
        self._said.append((done, total, unit, facts))


def test_answers_out_of_order_stay_on_their_pairs(
    scored, corpus, tmp_path, estimator_judge, asked_alone
):
    rng = random.Random(0)

    def late(asked):
        reply = estimator_judge(asked)
        reply.seconds = rng.random() / 5
        return reply

    with serving(late) as judge:
        auditing(scored, corpus, tmp_path, judge, judge_requests=16).run()
        assert 2 < judge.most_at_once <= 16
    assert rows(tmp_path) == asked_alone


TROUBLES = [
    {"status": 429, "headers": {"Retry-After": "0.3"}},
    {"status": 429},
    {"status": 500},
    {"status": 503},
    {"cut": 20},  # in the body
    None,  # cut before it
]


def test_passing_trouble_changes_nothing(scored, corpus, tmp_path, estimator_judge, asked_alone):
    """The first request about each second pair fails, in all ways in turn."""
    numbers = itertools.count()

    def behave(asked):
        reply = estimator_judge(asked)
        if asked.times > 1 or (number := next(numbers)) % 2:
            return reply
        trouble = TROUBLES[number // 2 % len(TROUBLES)]
        return None if trouble is None else Reply(reply.content, **trouble)

    with serving(behave) as judge:
        auditing(scored, corpus, tmp_path, judge).run()
    assert next(numbers) == PAIRS >= 2 * len(TROUBLES)
    assert rows(tmp_path) == asked_alone


def test_a_pair_that_fails_for_good_is_one_pair(scored, corpus, tmp_path):
    def behave(asked):
        number = asked.number % 6
        if number == 0:
            return Reply(status=500, error="out of memory")
        if number == 1:
            return Reply(status=400, error="the picture has an odd shape")
        if number == 2:
            return None
        return says("match")

    with serving(behave) as judge:
        result = auditing(scored, corpus, tmp_path, judge).run()
        kinds = [one.number % 6 for one in {one.text: one for one in judge.asked}.values()]
    expected = {"server error 500": 0, "rejected": 1, "connection cut": 2}
    expected = {reason: kinds.count(kind) for reason, kind in expected.items()}
    assert all(expected.values())
    assert result.summary.reasons == expected
    assert result.summary.answers["cannot tell"] == sum(expected.values())
    assert result.summary.answers["match"] == PAIRS - sum(expected.values())


def test_a_pair_that_the_server_is_always_too_busy_for_ends(scored, corpus, tmp_path):
    bad = []

    def behave(asked):
        if not bad:
            bad.append(asked.text)
        busy = Reply(status=503, headers={"Retry-After": "0.01"})
        return busy if asked.text == bad[0] else Reply(says("match").content, seconds=0.05)

    with serving(behave) as judge:
        result = auditing(scored, corpus, tmp_path, judge).run()
    assert result.summary.reasons == {"server error 503": 1}
    assert result.summary.answers["match"] == PAIRS - 1


def test_a_pair_that_takes_too_long_is_a_timeout(scored, corpus, tmp_path):
    slow = []

    def behave(asked):
        if not slow:
            slow.append(asked.text)
        return Reply(says("match").content, seconds=2.0 if asked.text == slow[0] else 0.0)

    with serving(behave) as judge:
        result = auditing(scored, corpus, tmp_path, judge, judge_timeout=0.4).run()
    assert result.summary.reasons == {"timeout": 1}
    assert result.summary.answers["match"] == PAIRS - 1


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply(status=401), "wants a key .401.: set OPENAI_API_KEY"),
        (Reply(status=403), "wants a key"),
        (Reply(status=404, error="no such model"), "has no model demo, or is not at this address"),
        (Reply(status=402, error="pay"), "no credit left"),
        (Reply(status=429, code="insufficient_quota", error="quota"), "no credit left"),
        (Reply(status=429, headers={"Retry-After": "86400"}), "asks to wait 86,400 s"),
        (Reply(status=400, error="this model takes no pictures"), "none of the last 8 pairs .rej"),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_sentence(
    scored, corpus, tmp_path, monkeypatch, reply, sentence
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(lambda asked: reply) as judge:
        with pytest.raises(InputError, match=sentence):
            auditing(scored, corpus, tmp_path, judge).run()
        # Eight pairs and the eight in progress beside them, each in three forms at most.
        assert len(judge.asked) <= (8 + 8) * 3
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_refused_mistake_binds_nobody(scored, corpus, tmp_path):
    with serving(lambda asked: Reply(status=404)) as judge, pytest.raises(InputError):
        auditing(scored, corpus, tmp_path, judge).run()
    with serving(lambda asked: says("match")) as judge:
        auditing(scored, corpus, tmp_path, judge, judge_model="other").run()


def test_a_server_that_is_away_is_one_sentence_at_once(scored, corpus, tmp_path):
    begin = time.monotonic()
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9/v1 cannot be reached"):
        auditing(scored, corpus, tmp_path, "http://127.0.0.1:9/v1").run()
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("out", [pytest.param("s3://corpus/audit", marks=pytest.mark.slow), None])
def test_a_server_that_goes_away_stops_the_run_which_then_goes_on(
    scored, corpus, tmp_path, out, estimator_judge, asked_alone, monkeypatch
):
    monkeypatch.setattr("ncclean.judging.server._PATIENCE", 1.0)
    store = object_store.s3() if out else contextlib.nullcontext()
    out = out or tmp_path
    count = 0

    def behave(asked):
        nonlocal count
        count += 1
        return estimator_judge(asked) if count <= 10 else Reply(status=503, error="down")

    with store:
        stops = pytest.raises(InputError, match=r"busy.*same command goes on")
        with serving(behave) as first, stops:
            auditing(scored, corpus, out, first).run()
        assert "judge.parquet" not in files(out)
        with serving(estimator_judge) as second:  # at another address
            result = auditing(scored, corpus, out, second).run()
        assert sum(first.answered.values()) == 10
        assert not set(first.answered) & {(one.picture, one.text) for one in second.asked}
        assert len(second.asked) == result.summary.asked == PAIRS - 10
        assert rows(out) == asked_alone
        assert files(out) == ["judge.parquet"]
        with serving(lambda asked: says("partly")) as third:
            auditing(scored, corpus, out, third).run()
            assert not third.asked


def test_the_budget_leaves_a_smaller_sample_and_more_tokens_go_on(
    scored, corpus, tmp_path, estimator_judge, asked_alone
):
    with serving(estimator_judge) as judge:
        first = auditing(scored, corpus, tmp_path, judge, judge_tokens=15_000).run().summary
        assert first.tokens == first.judged * 910 <= 15_000
        assert first.judged >= 11
        assert rows(tmp_path) == asked_alone[: first.judged]
        assert any(
            "unasked" in str(line)
            for line in auditing(scored, corpus, tmp_path, judge, judge_tokens=15_000).run().shown
        )
        assert len(judge.asked) == first.judged
        auditing(scored, corpus, tmp_path, judge).run()
        assert len(judge.asked) == PAIRS
        assert rows(tmp_path) == asked_alone
        auditing(scored, corpus, tmp_path, judge).run()
        assert len(judge.asked) == PAIRS


OTHERS = [
    ({"judge_model": "other"}, "--judge-model was demo, is other"),
    ({"judge_prompt": "words"}, "--judge-prompt was match"),
    ({"seed": 1}, "--seed was 0, is 1"),
    ({"pairs": 30}, f"--pairs was {PAIRS}, is 30"),
]


@pytest.mark.parametrize("is_finished", [True, False])
def test_answers_of_another_run_are_kept(scored, corpus, tmp_path, is_finished, monkeypatch):
    monkeypatch.setattr("ncclean.judging.server._PATIENCE", 0.5)
    count = 0

    def behave(asked):
        nonlocal count
        count += 1
        return says("match") if is_finished or count <= 10 else Reply(status=503)

    with serving(behave) as judge:
        if is_finished:
            auditing(scored, corpus, tmp_path, judge).run()
        else:
            with pytest.raises(InputError, match="same command"):
                auditing(scored, corpus, tmp_path, judge).run()
    with serving(lambda asked: says("partly")) as judge:
        for change, difference in OTHERS:
            with pytest.raises(ResumeError, match=f"{difference}.*--overwrite"):
                auditing(scored, corpus, tmp_path, judge, **change).run()
        assert not judge.asked
        auditing(scored, corpus, tmp_path, judge, **change, overwrite=True).run()
    answered = rows(tmp_path)
    assert len(answered) == 30
    assert {row["answer"] for row in answered} == {"partly"}


def test_answers_on_another_picture_are_not_taken(scored, corpus, tmp_path):
    table = pq.read_table(scored / "scores.parquet")
    column = table.schema.get_field_index("noise_probability")
    with serving(lambda asked: says("match")) as judge:
        auditing(scored, corpus, tmp_path, judge).run()
        uid = rows(tmp_path)[0]["uid"]
        of_other = [
            p if one != uid else float(np.nextafter(np.float32(p), np.float32(0.5)))
            for one, p in zip(table["uid"].to_pylist(), table[column].to_pylist(), strict=True)
        ]
        field = table.schema.field(column)
        table = table.set_column(column, field, pa.array(of_other, field.type))
        pq.write_table(table, tmp_path / "scores.parquet")
        with pytest.raises(ResumeError, match="the sample"):
            auditing(tmp_path, corpus, tmp_path, judge).run()


def test_answers_to_another_text_of_a_prompt_are_not_taken(scored, corpus, tmp_path):
    prompt = tmp_path / "mine.yaml"
    prompt.write_text("system: Judge.\nuser: 'The caption: {caption}'\n")
    with serving(lambda asked: says("match")) as judge:
        auditing(scored, corpus, tmp_path, judge, judge_prompt=str(prompt)).run()
        prompt.write_text(prompt.read_text().replace("Judge.", "Judge strictly."))
        with pytest.raises(ResumeError, match=r"--judge-prompt was mine\.yaml"):
            auditing(scored, corpus, tmp_path, judge, judge_prompt=str(prompt)).run()


def test_a_file_of_another_program_is_in_the_way(scored, corpus, tmp_path):
    (tmp_path / "judge.parquet").write_text("mine")
    with serving(lambda asked: says("match")) as judge, pytest.raises(InputError, match="the way"):
        auditing(scored, corpus, tmp_path, judge).run()


def test_progress_tells_pairs_and_tokens(scored, corpus, tmp_path):
    said = []
    with serving(lambda asked: Reply("oui")) as judge:
        auditing(scored, corpus, tmp_path, judge, pairs=20).run(Said(said))
    reports = [one for one in said if isinstance(one, tuple)]
    assert reports[-1] == (20, 20, "pairs", {"tokens": "18,200", "cannot_tell": "20"})


def test_the_dry_run_estimates_and_asks_nothing(scored, corpus, tmp_path):
    with serving(lambda asked: says("match")) as judge:
        plan = auditing(scored, corpus, tmp_path / "a", judge, dry_run=True).run()
        assert not judge.asked
    assert plan.summary.pairs == PAIRS
    assert PAIRS * 300 < plan.summary.tokens_in < PAIRS * 2_000
    assert not (tmp_path / "a").exists()


def test_pictures_are_small_jpegs(scored, corpus, tmp_path):
    import io

    from PIL import Image

    with serving(lambda asked: says("match")) as judge:
        auditing(scored, corpus, tmp_path, judge, pairs=10, judge_image_size=48).run()
        pictures = [Image.open(io.BytesIO(asked.picture)) for asked in judge.asked]
    assert {picture.format for picture in pictures} == {"JPEG"}
    assert max(max(picture.size) for picture in pictures) == 48
