"""One request: what is asked of servers that know less, and what is done when they fail."""

from __future__ import annotations

import contextlib
import time

import pytest

from ncclean.errors import InputError
from ncclean.judging import bounded
from ncclean.judging.prompt import Prompt
from ncclean.judging.server import JudgeServer, JudgeStopped
from tests.judging.judge_server import Reply, says, serving

PICTURE = "data:image/jpeg;base64,AA=="
REFUSED = "unknown parameter: response_format"


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def asking(judge, **options):
    return JudgeServer(judge.url, "demo", Prompt.load("match"), **options)


def knows(*formats, temperature=True, length="max_tokens", status=400):
    """A server that knows these response formats, and so on."""

    def behave(asked):
        asks = asked.body.get("response_format", {}).get("type", "plain")
        if asks not in formats:
            return Reply(status=status, error=REFUSED)
        if not temperature and "temperature" in asked.body:
            return Reply(status=400, error="temperature does not support 0 with this model")
        for name in ("max_tokens", "max_completion_tokens"):
            if name in asked.body and name != length:
                return Reply(status=400, error=f"Unsupported parameter: '{name}'")
        return says("match")

    return behave


@pytest.mark.parametrize(
    ("behave", "requests"),
    [
        (knows("json_schema"), 1),
        (knows("json_object"), 2),
        (knows("plain"), 3),
        (knows("plain", status=422), 3),
        (knows("plain", status=500), 3),
        (knows("json_schema", temperature=False, length="max_completion_tokens"), 3),
        (knows("plain", temperature=False, length=""), 6),
    ],
)
def test_what_a_server_does_not_know_is_left_out_from_then_on(behave, requests):
    with serving(behave) as judge:
        server = asking(judge)
        for _ in range(3):
            assert server.ask(PICTURE, "a ball").answer == "match"
        assert len(judge.asked) == requests + 2
        body = judge.asked[0].body
    assert body["temperature"] == 0
    assert body["model"] == "demo"
    assert body["response_format"]["json_schema"]["strict"] is True


def test_a_refused_pair_does_not_change_what_is_asked_of_others():
    def behave(asked):
        if asked.caption == "bad":
            return Reply(status=400, error="the picture is too wide")
        return says("match")

    with serving(behave) as judge:
        server = asking(judge)
        assert server.ask(PICTURE, "good").answer == "match"
        bad = server.ask(PICTURE, "bad")
        assert (bad.reason, bad.is_reply) == ("rejected: the picture is too wide", False)
        server.ask(PICTURE, "good")
        assert judge.asked[-1].body["response_format"]["type"] == "json_schema"
        assert len(judge.asked) == 3


def test_a_content_filter_is_about_the_pair():
    reply = Reply(status=400, error="filtered", code="content_filter")
    with serving(lambda asked: reply) as judge:
        assert asking(judge).ask(PICTURE, "bad").reason == "rejected: filtered"
        assert len(judge.asked) == 1


def test_requests_that_may_have_cost_something_are_counted():
    def behave(asked):
        return None if asked.times < 3 else says("match")

    with serving(behave) as judge:
        judgement = asking(judge).ask(PICTURE, "a ball")
    assert (judgement.answer, judgement.unreported) == ("match", 2)


def test_a_retry_after_may_be_a_date():
    from email.utils import formatdate

    def behave(asked):
        if asked.times > 1:
            return says("match")
        return Reply(status=429, headers={"Retry-After": formatdate(time.time() + 3, usegmt=True)})

    with serving(behave) as judge:
        begin = time.monotonic()
        assert asking(judge).ask(PICTURE, "a ball").answer == "match"
    assert time.monotonic() - begin > 1.5


def test_patience_ends():
    with serving(lambda asked: Reply(status=503, error="loading")) as judge:
        begin = time.monotonic()
        with pytest.raises(JudgeStopped, match=r"is busy .503: loading., for \d s now"):
            asking(judge, patience=2.5).ask(PICTURE, "a ball")
    assert 2.4 < time.monotonic() - begin < 9


def test_a_server_is_asked_no_longer_once_stopped():
    with serving(lambda asked: says("match")) as judge:
        server = asking(judge)
        server.stop()
        with pytest.raises(JudgeStopped):
            server.ask(PICTURE, "a ball")
        assert not judge.asked


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http://", "http://[::1/v1"])
def test_a_url_is_http(url):
    with pytest.raises(InputError, match="--judge takes a URL"):
        JudgeServer(url, "demo", Prompt.load("match"))


def test_a_key_that_cannot_be_sent_is_not_printed(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-first\nsk-second")
    with pytest.raises(InputError, match="OPENAI_API_KEY has characters") as refused:
        JudgeServer("http://localhost:1/v1", "demo", Prompt.load("match"))
    assert "sk-" not in str(refused.value)


@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_answer_that_does_not_fit_into_memory_is_none(status, monkeypatch):
    body = " " * (bounded.LARGEST_ANSWER + 1)
    monkeypatch.setattr("ncclean.judging.server._FIRST_WAIT", 0.01)
    with serving(lambda _: Reply(status=status, body=body)) as judge:
        judgement = asking(judge).ask(PICTURE, "a ball")
    assert judgement.reason == "an answer of more than 8 MB"
    assert not judgement.is_reply


def test_an_answer_of_a_byte_now_and_then_ends_in_time(monkeypatch):
    """Each read is in time, the answer is not."""
    monkeypatch.setattr("ncclean.judging.server._FIRST_WAIT", 0.01)
    with serving(lambda _: Reply("x", trickle=0.1)) as judge:
        begin = time.monotonic()
        judgement = asking(judge, timeout=0.3).ask(PICTURE, "a ball")
    assert judgement.reason == "timeout: no end within 0.3 s"
    assert time.monotonic() - begin < 10


def test_a_loop_of_redirects_ends_soon(monkeypatch):
    monkeypatch.setattr("ncclean.judging.server._FIRST_WAIT", 0.01)

    def behave(asked):
        return Reply(status=307, headers={"Location": "/v1/chat/completions"}, body="")

    with serving(behave) as judge, contextlib.suppress(JudgeStopped):
        asking(judge, patience=0.1).ask(PICTURE, "a ball")
    assert 0 < len(judge.asked) <= 4 * 4
