"""A review in a process of its own, as a person starts it, and requests to it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Served:
    url: str
    process: subprocess.Popen[str]

    def get(self, name: str = "", **query: Any) -> Any:
        return self.ask(name + ("?" + urllib.parse.urlencode(query) if query else ""))[1]

    def post(self, name: str, **body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        return self.ask(name, json.dumps(body).encode(), headers)[1]

    def ask(
        self, name: str, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        request = urllib.request.Request(self.url + name, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        with contextlib.suppress(ValueError):
            body = json.loads(body)
        return status, body

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextlib.contextmanager
def served(*arguments: object) -> Iterator[Served]:
    """Start `ncclean review`; it is ended at the end if it still runs."""
    command = [sys.executable, "-m", "ncclean_cli", "review", "--no-browser"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        said = []
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if match := re.search(r"review at (http://\S+)", line):
                yield Served(match[1], process)
                return
        raise AssertionError("".join(said))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
