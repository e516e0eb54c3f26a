"""One request: what is asked of servers that know less, and what is done when they fail."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
import urllib.parse

import pytest

from ncclean.errors import InputError
from ncclean.judging import server as server_module
from ncclean.judging.prompt import Prompt
from ncclean.judging.server import JudgeServer, JudgeStopped
from tests.judging.judge_server import Reply, says, serving

PICTURE = "data:image/jpeg;base64,AA=="
REFUSED = "unknown parameter: response_format"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(server_module, "_RETRIES", 2)
    monkeypatch.setattr(server_module, "_PAUSE", 0.2)


def asking(judge, **options):
    return JudgeServer(judge.url, "demo", Prompt.load("match"), **options)


def knows(*formats, temperature=True, length="max_tokens", status=400):
    """A server that knows these response formats, and so on."""

    def behave(asked):
        asks = asked.body.get("response_format", {}).get("type", "plain")
        if asks not in formats:
            return Reply(status=status, error=REFUSED, headers={"Retry-After": "0.01"})
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
        (knows("plain", status=500), 7),  # each of two is asked three times
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


def test_a_late_answer_changes_nothing():
    """A server refuses what it has answered with before: what is asked of it stays."""
    slow = threading.Event()

    def behave(asked):
        if asked.caption == "first":
            slow.set()
            return Reply(says("match").content, seconds=0.5)
        return knows("plain")(asked)

    with serving(behave) as judge:
        server = asking(judge)
        first = threading.Thread(target=server.ask, args=(PICTURE, "first"))
        first.start()
        slow.wait()
        server.ask(PICTURE, "second")
        first.join()
        server.ask(PICTURE, "third")
        assert "response_format" in judge.asked[0].body
        assert "response_format" not in judge.asked[-1].body
        assert len(judge.asked) == 5


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
        return Reply(status=429, headers={"Retry-After": formatdate(time.time() + 2, usegmt=True)})

    with serving(behave) as judge:
        begin = time.monotonic()
        assert asking(judge).ask(PICTURE, "a ball").answer == "match"
    assert time.monotonic() - begin > 0.8


def test_patience_ends():
    busy = Reply(status=503, error="loading", headers={"Retry-After": "0.1"})
    with serving(lambda asked: busy) as judge:
        begin = time.monotonic()
        with pytest.raises(JudgeStopped, match=r"is busy .503: loading., for \d s now"):
            asking(judge, patience=1.2).ask(PICTURE, "a ball")
    assert 1.1 < time.monotonic() - begin < 9


def test_a_server_is_asked_no_longer_once_stopped():
    with serving(lambda asked: says("match")) as judge:
        server = asking(judge)
        server.stop()
        with pytest.raises(JudgeStopped):
            server.ask(PICTURE, "a ball")
        assert not judge.asked


def test_a_pause_ends_when_the_server_is_asked_no_longer():
    busy, asked = Reply(status=429, headers={"Retry-After": "60"}), threading.Event()
    with serving(lambda _: asked.set() or busy) as judge:
        server = asking(judge)
        threading.Thread(target=lambda: (asked.wait(), time.sleep(0.2), server.stop())).start()
        begin = time.monotonic()
        with pytest.raises(JudgeStopped):
            server.ask(PICTURE, "a ball")
    assert time.monotonic() - begin < 30


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
def test_an_answer_that_does_not_fit_into_memory_is_none(status):
    body = " " * (server_module._LARGEST_ANSWER + 1)
    with serving(lambda _: Reply(status=status, body=body)) as judge:
        judgement = asking(judge).ask(PICTURE, "a ball")
    assert judgement.reason == "an answer of more than 8 MB"
    assert not judgement.is_reply


def test_an_answer_of_a_byte_now_and_then_ends_in_time():
    """Each read is in time, the answer is not."""
    with serving(lambda _: Reply("x", trickle=0.1)) as judge:
        begin = time.monotonic()
        judgement = asking(judge, timeout=0.3).ask(PICTURE, "a ball")
    assert judgement.reason == "timeout: no answer within 0.3 s"
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_pictures_go_to_no_other_address(status):
    with serving(lambda asked: says("match")) as other:

        def behave(asked):
            target = f"{other.url}/chat/completions"
            return Reply(status=status, headers={"Location": target}, body="")

        with serving(behave) as judge, pytest.raises(JudgeStopped, match="redirects to") as stopped:
            asking(judge).ask(PICTURE, "a ball")
        assert other.url in str(stopped.value)
        assert (len(judge.asked), len(other.asked)) == (1, 0)


@contextlib.contextmanager
def dripping(*, first=b"", then):
    """A server that sends one thing after the other without an end; yields its URL."""
    stops = threading.Event()

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(first)
            while not stops.wait(0.02):
                connection.sendall(then)

    def accept(listener):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        stops.set()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n", b" "),
    ],
)
def test_a_request_has_one_deadline_whatever_the_server_sends(first, then, monkeypatch):
    monkeypatch.setattr(server_module, "_RETRIES", 0)
    with dripping(first=first, then=then) as url:
        server = JudgeServer(url, "demo", Prompt.load("match"), timeout=0.4)
        begin = time.monotonic()
        judgement = server.ask(PICTURE, "a ball")
        server.close()
    assert not judgement.is_reply
    assert time.monotonic() - begin < 6


KEY = "sk-proj/aB3+dEf=9"
SPELLINGS = {
    "plain": KEY,
    "upper": KEY.upper(),
    "slashes": KEY.replace("/", "\\/"),
    "json": "".join(f"\\u{ord(letter):04x}" for letter in KEY),
    "json twice": "".join(f"\\\\u{ord(letter):04X}" for letter in KEY),
    "one of them": KEY.replace("p", "\\u0070"),
    "url": urllib.parse.quote(KEY, safe=""),
    "url twice": urllib.parse.quote(urllib.parse.quote(KEY, safe="")),
    "html": "".join(f"&#{ord(letter)};" for letter in KEY),
    "hex": KEY.encode().hex(),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "header": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "header after one": base64.b64encode(f"xBearer {KEY}, and more".encode()).decode(),
    "url-safe": base64.urlsafe_b64encode(f"a{KEY}".encode()).decode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_key_is_in_no_answer_however_it_is_spelled(spelling, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    half = len(spelling) // 2
    replies = {
        "error": Reply(status=400, error=f"bad key {spelling}"),
        "answer": Reply(f'{{"answer": "{spelling}"}}'),
        "words": Reply(json.dumps({"answer": "mismatch", "words": ["red", spelling]})),
        "body": Reply(body=f"not JSON: {spelling}"),
        "parts": Reply([{"text": "x" * 90 + spelling[:half]}, {"text": spelling[half:]}]),
    }
    with serving(lambda asked: replies[asked.caption]) as judge:
        server = JudgeServer(judge.url, "demo", Prompt.load("words"))
        for where in replies:
            judgement = server.ask(PICTURE, where)
            said = f"{judgement.reason} {judgement.words}"
            assert "***" in said, where
            assert spelling[half:][:6] not in said, where


def test_an_answer_of_backslashes_is_read_at_once(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda asked: Reply(body="\\" * (1 << 20))) as judge:
        begin = time.monotonic()
        assert asking(judge).ask(PICTURE, "a ball").answer == "cannot tell"
    assert time.monotonic() - begin < 10
