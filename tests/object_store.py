"""A real S3 endpoint on loopback (moto's server) that can be slow, or refuse for a while."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from tests.execution.clusters import environment

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass
class Store:
    """The endpoint; of a method and path, `refuses` says whether to answer 503, `forbids` 403.

    The first requests of tables wait until `together` requests are open, ten seconds at most.
    """

    delay: float = 0.0
    together: int = 0
    refuses: Callable[[str, str], bool] = lambda method, path: False
    forbids: Callable[[str, str], bool] = lambda method, path: False
    requests: list[tuple[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    refused: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._at_once, self._changed = 0, threading.Condition()

    def serve(self, port: int = 0) -> None:
        """Answer requests, at a free port unless one is named."""
        self._server = make_server("127.0.0.1", port, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def away(self, seconds: float) -> None:
        """Refuse connections for so long, from a moment after this call on."""
        port = self._server.port

        def leave() -> None:
            self.close()
            time.sleep(seconds)
            self.serve(port)

        threading.Thread(target=leave, daemon=True).start()

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        with self._changed:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._changed.notify_all()
            if ".parquet" in path:
                self._changed.wait_for(lambda: self.most_at_once >= self.together, timeout=10)
        time.sleep(self.delay)
        with self._changed:
            self._at_once -= 1
        if self.refuses(method, path):
            self.refused += 1
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"]
        if self.forbids(method, path):
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        return self._moto(environ, start_response)


@contextlib.contextmanager
def s3(bucket: str = "corpus", **behaviour: object) -> Iterator[Store]:
    """A store with one empty bucket, named in the environment of this and later processes."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = Store(**behaviour)
    store.serve()
    try:
        reset = urllib.request.Request(f"{store.url}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset).close()  # moto keeps its buckets in the process
        with environment({**CREDENTIALS, "AWS_ENDPOINT_URL": store.url}):
            filesystem(fresh=True).mkdir(bucket)
            yield store
    finally:
        store.close()
        filesystem_class().clear_instance_cache()


def filesystem_class():
    import s3fs

    return s3fs.S3FileSystem


def filesystem(fresh: bool = False):
    """The file system of the endpoint that the environment names."""
    if fresh:
        filesystem_class().clear_instance_cache()
    return filesystem_class()(use_listings_cache=False)


def upload(folder: os.PathLike[str], url: str) -> None:
    """Copy the files of a folder to a URL."""
    system = filesystem()
    for name in sorted(os.listdir(folder)):
        system.put_file(os.path.join(folder, name), f"{url}/{name}".removeprefix("s3://"))
