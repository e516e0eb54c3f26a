"""The read side of the Hugging Face hub's HTTP interface, on loopback, over a local folder.

As much of it as `huggingface_hub`'s file system asks for: facts of a repository, listings of a
folder, facts of paths, and files in ranges, with the hub's error codes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from werkzeug.exceptions import NotFound
from werkzeug.routing import Map, Rule
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

_PAGE = 5  # entries of a listing; the hub's pages have 1,000
_RULES = Map(
    [
        Rule("/api/datasets/<owner>/<name>", endpoint="facts"),
        Rule("/api/datasets/<owner>/<name>/revision/<revision>", endpoint="facts"),
        Rule("/api/datasets/<owner>/<name>/tree/<revision>/", endpoint="tree"),
        Rule("/api/datasets/<owner>/<name>/tree/<revision>/<path:path>", endpoint="tree"),
        Rule("/api/datasets/<owner>/<name>/paths-info/<revision>", endpoint="paths_info"),
        Rule("/datasets/<owner>/<name>/resolve/<revision>/<path:path>", endpoint="resolve"),
    ],
    strict_slashes=False,
)


class Hub:
    """Repositories are the folders `OWNER/NAME` of `root`; `private` ones need the token `secret`.

    `busy` answers are refused with 503 first.
    """

    def __init__(self, root: Path, private: tuple[str, ...] = (), busy: int = 0) -> None:
        self.root, self.private, self.busy = root, private, busy
        self.requests: list[str] = []
        self.url = ""

    def __call__(self, environ, start_response):
        request = Request(environ)
        self.requests.append(f"{request.method} {request.path}")
        return self._answer(request)(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if self.busy > 0 and "/resolve/" in request.path:
            self.busy -= 1
            return Response("busy", 503)
        try:
            endpoint, where = _RULES.bind_to_environ(request.environ).match()
        except NotFound:
            return _error("EntryNotFound", 404)
        repository = f"{where['owner']}/{where['name']}"
        has_token = request.headers.get("Authorization") == "Bearer secret"
        if not (self.root / repository).is_dir() or (repository in self.private and not has_token):
            return _error("RepoNotFound", 401)
        if where.get("revision", "main") != "main":
            return _error("RevisionNotFound", 404)
        return getattr(self, f"_{endpoint}")(request, repository, where.get("path", ""))

    def _facts(self, request: Request, repository: str, path: str) -> Response:
        return _json({"id": repository, "sha": "0" * 40, "siblings": [], "private": False})

    def _tree(self, request: Request, repository: str, path: str) -> Response:
        folder = self.root / repository / path
        if not folder.is_dir():
            return _error("EntryNotFound", 404)
        entries = sorted(folder.iterdir())
        begin = int(request.args.get("cursor", 0))
        answer = _json([self._entry(repository, one) for one in entries[begin : begin + _PAGE]])
        if begin + _PAGE < len(entries):
            following = f"{self.url}{quote(request.path)}?cursor={begin + _PAGE}"
            answer.headers["Link"] = f'<{following}>; rel="next"'
        return answer

    def _paths_info(self, request: Request, repository: str, path: str) -> Response:
        paths = [self.root / repository / name for name in request.form.getlist("paths")]
        return _json([self._entry(repository, one) for one in paths if one.exists()])

    def _entry(self, repository: str, path: Path) -> dict[str, object]:
        name = path.relative_to(self.root / repository).as_posix()
        if path.is_dir():
            return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
        data = path.read_bytes()
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return {"type": "file", "oid": oid, "size": len(data), "path": name}

    def _resolve(self, request: Request, repository: str, path: str) -> Response:
        file = self.root / repository / path
        if not file.is_file():
            return _error("EntryNotFound", 404)
        data = file.read_bytes()
        answer = Response(data, mimetype="application/octet-stream")
        answer.headers["X-Repo-Commit"] = "0" * 40
        answer.set_etag(hashlib.sha1(data).hexdigest())
        answer.make_conditional(request, accept_ranges=True, complete_length=len(data))
        return answer


def _json(value: object) -> Response:
    return Response(json.dumps(value), mimetype="application/json")


def _error(code: str, status: int) -> Response:
    return Response(code, status, headers={"X-Error-Code": code, "X-Error-Message": code})


@contextlib.contextmanager
def serve_hub(root: Path, **behaviour: object) -> Iterator[Hub]:
    """A hub over a folder, for as long as the context."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    hub = Hub(root, **behaviour)
    server = make_server("127.0.0.1", 0, hub, threaded=True)
    hub.url = f"http://127.0.0.1:{server.port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
