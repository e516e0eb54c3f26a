"""Allow one writer of an output at a time, named in a file that it renews while it lives.

The lease of a process that died on this machine ends with it; elsewhere it ends `LEASE_SECONDS`
after the last renewal.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import socket
import threading
import time
import uuid
from typing import Any

from upath import UPath

from ncclean.base import stores
from ncclean.base.atomic import create, published, reported
from ncclean.base.store_errors import explain
from ncclean.errors import InputError

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
RENEW_SECONDS = 15.0
_TICK_SECONDS = 1.0
_held_here: set[str] = set()


class Lease:
    """The right to write to an output, which one process holds until it releases it or dies."""

    def __init__(self, path: UPath, advice: str = "wait for it, or use another --out") -> None:
        """Take the lease at `path`, or wait until its holder has renewed it or let it expire.

        Raises `InputError` with the host and the time of a live holder, and the `advice`.
        """
        self._path, self._advice = path, advice
        self._own = {"id": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid()}
        self._lost: InputError | None = None
        self._released = threading.Event()
        _held_here.add(str(self._own["id"]))
        try:
            self._take()
        except BaseException:
            _held_here.discard(str(self._own["id"]))
            raise
        self._renewal = threading.Thread(target=self._renew, name="ncclean-lease", daemon=True)
        self._renewal.start()

    def check(self) -> None:
        """Raise `InputError` if another process has taken over the lease of the output."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Release the lease and remove its file: another process may write to the output."""
        if self._released.is_set():
            return
        self._released.set()
        self._renewal.join()
        _held_here.discard(str(self._own["id"]))
        with contextlib.suppress(InputError):  # the store is unreachable: the lease will expire
            holder = self._read()
            if holder is not None and holder["id"] == self._own["id"]:
                stores.remove_files([self._path])

    def _take(self) -> None:
        first, since = None, time.monotonic()
        while not create(self._path, self._content()):
            holder = self._read()
            if holder is None:
                continue  # it was just released
            first = first or holder
            is_here = holder["host"] == self._own["host"]
            if time.monotonic() - since > self._patience(holder) or (
                is_here and not _is_alive(holder)
            ):
                self._take_over()
                return
            if holder != first or (is_here and not self._has_run_out(holder)):
                raise self._refusal(holder)
            time.sleep(_TICK_SECONDS)

    def _take_over(self) -> None:
        self._write()
        time.sleep(_TICK_SECONDS)  # a simultaneous taker has written by then
        if (now := self._read()) is not None and now["id"] != self._own["id"]:
            raise self._refusal(now)

    def _patience(self, holder: dict[str, Any]) -> float:
        """Return the seconds to watch for a renewal, at least some: clocks differ."""
        return 2 * RENEW_SECONDS if self._has_run_out(holder) else LEASE_SECONDS

    def _has_run_out(self, holder: dict[str, Any]) -> bool:
        return bool(time.time() - holder["renewed"] > LEASE_SECONDS)

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            try:
                holder = self._read()
                if holder is not None and holder["id"] != self._own["id"]:
                    self._lost = self._refusal(holder)
                    return
                self._write()
            except Exception as error:  # a longer outage of the store ends the run elsewhere
                logger.warning("the lease %s cannot be renewed: %s", self._path, error)

    def _content(self) -> bytes:
        return json.dumps({**self._own, "renewed": time.time()}).encode()

    def _write(self) -> None:
        with reported(None), published(self._path) as aside:
            aside.write_bytes(self._content())

    def _read(self) -> dict[str, Any] | None:
        """Return the holder, or None. Raises `InputError` for another kind of file."""
        try:
            holder: dict[str, Any] = json.loads(stores.read_bytes(self._path))
            int(holder["pid"]), float(holder["renewed"]), str(holder["id"]), str(holder["host"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(explain(self._path, error, "read")) from error
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(f"{self._path} is in the way: remove it") from error
        return holder

    def _refusal(self, holder: dict[str, Any]) -> InputError:
        when = datetime.datetime.fromtimestamp(holder["renewed"], datetime.timezone.utc)
        return InputError(
            f"another run is writing to {self._path.parent} (process {holder['pid']} on "
            f"{holder['host']}, last seen {when:%Y-%m-%d %H:%M:%S} UTC): {self._advice}"
        )


def _is_alive(holder: dict[str, Any]) -> bool:
    if holder["pid"] == os.getpid():
        return holder["id"] in _held_here
    with contextlib.suppress(PermissionError):
        try:
            os.kill(holder["pid"], 0)
        except ProcessLookupError:
            return False
    return True
