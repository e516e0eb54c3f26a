"""One writer of an output at a time: a file that names it, and that it renews while it lives.

On a disk the file is locked as well, so that the lease of a process that died on this machine ends
with it. Elsewhere, and in a store, it ends when nobody has renewed it for `LEASE_SECONDS`.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import logging
import os
import socket
import stat
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from upath import UPath

from ncclean import stores
from ncclean.atomic import create, sync_folder
from ncclean.errors import InputError
from ncclean.store_errors import explain

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
RENEW_SECONDS = 15.0
_TICK_SECONDS = 1.0


class Lease:
    """The right to write to an output, which one process has until it releases it or dies."""

    def __init__(self, path: UPath) -> None:
        """Take the lease at `path`, or wait until its holder has renewed it or let it run out.

        Raises `InputError` with the host and the time of a holder that lives.
        """
        self._path = path
        self._own = {"id": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid()}
        self._file = _LockedFile(path) if not stores.is_url(path) else None
        self._lost: InputError | None = None
        self._released = threading.Event()
        try:
            self._take()
        except BaseException:
            if self._file is not None:
                self._file.close(remove=False)
            raise
        self._renewal = threading.Thread(target=self._renew, name="ncclean-lease", daemon=True)
        self._renewal.start()

    def check(self) -> None:
        """Raise `InputError` if another process has taken the lease over."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Give the lease back; its file goes."""
        if self._released.is_set():
            return
        self._released.set()
        self._renewal.join()
        if self._file is not None:
            self._file.close(remove=True)
        elif self._lost is None:
            stores.ask("remove", self._path, _remove, self._path)

    def _take(self) -> None:
        held, since = self._read(), time.monotonic()
        while held is not None and not self._is_over(held):
            if held["host"] == self._own["host"]:
                raise _refusal(self._path, held)  # it is there: no need to wait for a sign
            if time.monotonic() - since > LEASE_SECONDS:
                break
            time.sleep(_TICK_SECONDS)
            now = self._read()
            if now is not None and now != held:
                raise _refusal(self._path, now)
            held = now
        if self._file is not None:
            self._write()
        elif held is None:
            if not create(self._path, self._content()):
                self._take()  # another one was quicker
        else:
            self._write()
            time.sleep(_TICK_SECONDS)  # whoever takes it over at the same time writes by then
            if (now := self._read()) is not None and now["id"] != self._own["id"]:
                raise _refusal(self._path, now)

    def _is_over(self, held: dict[str, Any]) -> bool:
        """Whether the holder cannot renew it any more, as far as can be told from here."""
        if held["host"] == self._own["host"]:
            return self._file is not None or not _is_alive(held["pid"])
        return bool(time.time() - held["renewed"] > LEASE_SECONDS)

    def _renew(self) -> None:
        while not self._released.wait(RENEW_SECONDS):
            try:
                held = self._read()
                if held is not None and held["id"] != self._own["id"]:
                    self._lost = _refusal(self._path, held)
                    return
                self._write()
            except Exception as error:  # a store that is away for longer ends the run elsewhere
                logger.warning("the lease %s cannot be renewed: %s", self._path, error)

    def _content(self) -> bytes:
        return json.dumps({**self._own, "renewed": time.time()}).encode()

    def _write(self) -> None:
        if self._file is not None:
            self._file.write(self._content())
        else:
            stores.ask("write", self._path, self._path.write_bytes, self._content())

    def _read(self) -> dict[str, Any] | None:
        """The holder; None if there is none, or one that has not written its name yet."""
        try:
            data = self._file.read() if self._file is not None else stores.read_bytes(self._path)
            held = json.loads(data)
            int(held["pid"]), float(held["renewed"]), str(held["id"]), str(held["host"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None
        return dict(held)


class _LockedFile:
    """A small file that is locked as long as it is open."""

    def __init__(self, path: UPath) -> None:
        self._path = Path(str(path))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = self._locked()
            sync_folder(self._path.parent)
        except BlockingIOError:
            with contextlib.suppress(OSError, ValueError, LookupError):
                raise _refusal(path, json.loads(self._path.read_bytes())) from None
            raise InputError(_another(path, "")) from None
        except (FileExistsError, NotADirectoryError) as error:
            parents = self._path.parents
            file = next((place for place in parents if place.is_file()), self._path.parent)
            raise InputError(f"{file} is a file: choose another --out") from error
        except OSError as error:
            raise InputError(explain(path, error)) from error

    def read(self) -> bytes:
        return os.pread(self._descriptor, 1 << 12, 0)

    def write(self, data: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def close(self, *, remove: bool) -> None:
        try:
            if remove:
                self._path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)

    def _locked(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._path, flags, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise InputError(f"{self._path} is not a file: choose another --out")
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                        return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # the file was removed between the opening and the lock


def _remove(path: UPath) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _refusal(path: UPath, held: dict[str, Any]) -> InputError:
    when = datetime.datetime.fromtimestamp(held["renewed"], datetime.timezone.utc)
    who = f" (process {held['pid']} on {held['host']}, last seen {when:%Y-%m-%d %H:%M:%S} UTC)"
    return InputError(_another(path, who))


def _another(path: UPath, who: str) -> str:
    return f"another run is writing to {path.parent}{who}: wait for it, or use another --out"
