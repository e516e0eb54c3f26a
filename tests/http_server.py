"""A web server on loopback over a local folder, with ranges and listings, that can refuse."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response


@contextlib.contextmanager
def served(
    folder: Path,
    refuses: Callable[[Request], bool] = lambda request: False,
    has_ranges: bool = True,
) -> Iterator[str]:
    """Yield the URL of a server of the folder's files, which `refuses` some requests with 503.

    Without `has_ranges`, it answers each request with the whole file.
    """

    @Request.application
    def answer(request: Request) -> Response:
        if refuses(request):
            return Response("busy", 503)
        file = folder / request.path.strip("/")
        if file.is_dir():
            names = (f"{quote(one.name)}{'/' * one.is_dir()}" for one in file.iterdir())
            return Response([f'<a href="{name}"></a>' for name in names], mimetype="text/html")
        if not file.is_file():
            return Response("nothing", 404)
        data = file.read_bytes()
        if not has_ranges:
            return Response(data)
        return Response(data).make_conditional(
            request, accept_ranges=True, complete_length=len(data)
        )

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        server.server_close()
