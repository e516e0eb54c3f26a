"""Which requests the server of a review takes."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.requests import Request

from ncclean.errors import InputError
from ncclean.reviewing.server import _body, _caption, is_own


def request(body=b"", **headers):
    named = {"host": "127.0.0.1:8000", **headers}
    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode())
                    for name, value in named.items()],
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(scope, receive)


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({}, True),
        ({"host": "localhost:1"}, True),
        ({"host": "[::1]:1"}, True),
        ({"host": "evil.example"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "[broken"}, False),
        ({"origin": "http://127.0.0.1:8000"}, True),
        ({"origin": "http://127.0.0.1:9000"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site"}, False),
    ],
)
def test_only_this_machine_and_its_own_page(headers, is_ours):
    assert is_own(request(**headers)) is is_ours


def body(content, kind="application/json"):
    return asyncio.run(_body(request(content, content_type=kind)))


def test_bodies_are_json_objects_within_bounds():
    assert body(b'{"a": 1}') == {"a": 1}
    assert body(b'{"a": 1}', "application/json; charset=utf-8") == {"a": 1}
    for content, kind, message in [
        (b'{"a": 1}', "text/plain", "no JSON"),
        (b"[1]", "application/json", "no object"),
        (b"{", "application/json", "property name"),
        (json.dumps({"a": "x" * (5 << 20)}).encode(), "application/json", "too much"),
    ]:
        with pytest.raises(ValueError, match=message):
            body(content, kind)


def test_captions_are_text_that_is_not_empty():
    assert _caption("  a <b>dog</b>\n") == "a <b>dog</b>"
    assert _caption("a \ud800 dog") == "a ? dog"
    for text in ("", " \n", None, 5, "x" * 100_001):
        with pytest.raises(InputError):
            _caption(text)
