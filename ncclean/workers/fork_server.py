"""A process that forks others: each starts within milliseconds, with its modules imported.

A fork of this process would copy its threads' locks and its GPU. The server has one thread, is
started by a clean command line that does not run the user's script again, and ends with this
process, however that ends; so do its children.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from ncclean.base.isolated import isolated
from ncclean.errors import InputError

_LONGEST_REQUEST = 1 << 16
_STATUS = struct.Struct("i")
_PR_SET_PDEATHSIG = 1
_ATTEMPTS = 3
_END_SECONDS = 1.0
# Packages that decoders and tokenizers need in part: each takes one to three seconds as a whole.
_IN_PARTS = ("torchvision", "open_clip")
# A process's threads wait actively for one another, and take the cores from others.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class ForkServer:
    """The server of this process; a fork or the end of the server makes a new one start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0

    def imports(self, *modules: str) -> None:
        """Import modules ahead, and call their `before_forks` if they have it.

        Does not wait. The next forks have what was loaded.
        """
        with self._lock:
            self._send({"import": modules}, [])

    def fork(self, module: str, inherited: list[int]) -> tuple[Connection, int, int]:
        """Fork a process that calls `main(connection, descriptors)` of a module.

        Returns this end of the connection, the process's number, and a descriptor from which its
        status is read once it has ended. Raises `InputError` if no process can be started.
        """
        for _ in range(_ATTEMPTS):  # the server may be killed meanwhile
            here, their_end = socket.socketpair()
            status, tell = os.pipe()
            with self._lock, their_end:
                try:
                    self._send({"fork": module}, [their_end.fileno(), tell, *inherited])
                finally:
                    os.close(tell)
            if pid := os.read(status, _STATUS.size):
                connection = Connection(here.detach())
                with contextlib.suppress(OSError):  # it has been killed, as the next receive says
                    connection.send((dict(os.environ), sys.path, _working_folder()))
                return connection, _STATUS.unpack(pid)[0], status
            os.close(status)
            here.close()
        raise InputError("no worker process can be started: see above, or how many a user may have")

    def _send(self, request: dict[str, Any], descriptors: list[int]) -> None:
        message = json.dumps(request).encode() + b"\n"
        if self._socket is not None and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                socket.send_fds(self._socket, [message], descriptors)
                return
        self._start()
        assert self._socket is not None
        socket.send_fds(self._socket, [message], descriptors)

    def _start(self) -> None:
        here, their_end = socket.socketpair()
        with their_end:
            process = subprocess.Popen(isolated(__name__), stdin=their_end.fileno())
        if self._owner != os.getpid():
            atexit.register(self._end)
        self._process, self._socket, self._owner = process, here, os.getpid()

    def _end(self) -> None:
        """End the server, so that its workers' computing counts as this process's children's."""
        if self._process is not None and self._socket is not None and self._owner == os.getpid():
            self._socket.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)


SERVER = ForkServer()


def exit_status(descriptor: int) -> int | None:
    """Return the status of a process that `SERVER` forked, as `os.waitstatus_to_exitcode` does.

    Waits for its end. None if the server has ended as well.
    """
    data = os.read(descriptor, _STATUS.size)
    return _STATUS.unpack(data)[0] if data else None


def main() -> None:
    """Serve requests on standard input until the process at its other end has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    os.environ.update(_ONE_THREAD)
    for package in _IN_PARTS:
        _import_in_parts(package)
    ended, end = os.pipe()
    os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # else there would be no wakeup
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    server = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([server.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, _LONGEST_REQUEST)
            _reap(statuses)
        if server.fileno() in ready:
            message, descriptors, _, _ = socket.recv_fds(server, _LONGEST_REQUEST, 64)
            if not message:
                _reap(statuses)
                os._exit(0)  # libraries end slowly, and complain
            for request in map(json.loads, message.splitlines()):
                if "import" in request:
                    with contextlib.suppress(ImportError):  # the fork that needs it will tell
                        for name in request["import"]:
                            # Asked for an attribute, a package in parts would be loaded whole.
                            vars(importlib.import_module(name)).get("before_forks", bool)()
                    gc.freeze()  # else collections would touch, and copy, what forks share
                else:
                    _fork(server, request["fork"], descriptors, statuses)


def _import_in_parts(package: str) -> None:
    """Import modules of a package without it, until anything else of it is needed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.loader is None:
        return
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def imported(name: str) -> Any:
        if name.startswith("__"):  # what the import of a part asks for
            raise AttributeError(name)
        if importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        del module.__getattr__
        loader.exec_module(module)
        return getattr(module, name)

    module.__getattr__ = imported  # type: ignore[method-assign]
    sys.modules[package] = module


def _fork(
    server: socket.socket, module: str, descriptors: list[int], statuses: dict[int, int]
) -> None:
    connection, tell, *inherited = descriptors
    work = importlib.import_module(module).main
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        os.write(tell, _STATUS.pack(pid))
        statuses[pid] = tell
        for descriptor in (connection, *inherited):
            os.close(descriptor)
        return
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server.close()
        for descriptor in (tell, *statuses.values()):
            os.close(descriptor)
        _end_with(parent)
        to_parent = Connection(connection)
        _be_like(*to_parent.recv())
        work(to_parent, inherited)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    os._exit(code)


def _be_like(environment: dict[str, str], path: list[str], folder: str) -> None:
    """Take over what may have changed in the parent since the server started."""
    os.environ.clear()
    os.environ.update(environment | _ONE_THREAD)
    sys.path[:] = [place for place in path if place]
    with contextlib.suppress(OSError):  # it has ended
        os.chdir(folder)


def _working_folder() -> str:
    """The working folder, or nothing if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _reap(statuses: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            tell = statuses.pop(ended[0])
            with contextlib.suppress(OSError):  # nobody waits for it
                os.write(tell, _STATUS.pack(os.waitstatus_to_exitcode(ended[1])))
            os.close(tell)


def _end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, and kill it first if memory runs out."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux has these
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    if os.getppid() != parent:
        os._exit(1)
