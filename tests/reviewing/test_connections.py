"""Connections that bring no request keep nobody from the page."""

from __future__ import annotations

import http.client
import socket
import threading
import time
import types

import pytest
import uvicorn

from ncclean.reviewing import serve
from ncclean.reviewing.serve import _Connection, _Server


async def _app(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"page"})


@pytest.fixture
def port():
    """The port of a server whose connections are those of a review."""
    config = uvicorn.Config(
        _app, http=_Connection, lifespan="off", log_config=None, backlog=serve._ACCEPTED_AT_ONCE
    )
    server = _Server(config, types.SimpleNamespace(stop=lambda: None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def asked(connection):
    connection.request("GET", "/")
    return connection.getresponse().read()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_the_page_answers_beside_eighty_idle_connections(port, sent):
    page = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    assert asked(page) == b"page"
    held = []
    for _ in range(80):
        held.append(socket.create_connection(("127.0.0.1", port)))
        held[-1].sendall(sent)
    another = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    assert asked(another) == b"page"
    assert asked(another) == b"page"  # it is kept: the others are idle for longer
    for one in (page, another, *held):
        one.close()


def test_a_browser_keeps_its_connections(port):
    pages = [http.client.HTTPConnection("127.0.0.1", port, timeout=20) for _ in range(6)]
    for page in pages * 3:
        assert asked(page) == b"page"
    assert all(page.sock is not None for page in pages)
