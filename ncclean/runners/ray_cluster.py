"""The Ray cluster: connecting to it, the size of its nodes and which of them are alive."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from typing import Any

import ray
from ray._private.utils import read_ray_address
from ray.exceptions import RayTaskError

from ncclean.config import ClusterOptions
from ncclean.errors import InputError, NccleanError

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_RESTART = (
    "what is done is kept: start the cluster again (`ray stop`, `ray start`), and give the same "
    "command"
)
_CONNECT_HINT = (
    "start one with `ray start --head`; a cluster with tokens needs RAY_AUTH_MODE=token and its "
    "token here; or take --engine ray without --ray-address for this machine"
)
_GONE_SECONDS = 5.0
# Workers that die one after the other, without an answer of any in between, end a run then.
SILENT_SECONDS = 120.0
_CPUS_PER_CPU_WORKER = 4
TICK_SECONDS = 1.0
GROW_SECONDS = 10.0


def connect(address: str | None) -> bool:
    """Connect to the cluster or start one here. Returns whether this call did either.

    Without an address the one that runs on this machine is taken, if there is one.
    """
    if ray.is_initialized():
        return False
    try:
        if address is not None and ":" in address:  # Ray itself would wait for minutes
            _check_answers(address)
        ray.init(
            address=address or _local_address(),
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False if address is None else None,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"no Ray cluster answers at {address!r} ({one_line(error)}); {_CONNECT_HINT}"
        ) from error
    return True


def _check_answers(address: str) -> None:
    """Raise `OSError` or `ValueError` if nobody answers at HOST:PORT."""
    host, port = address.removeprefix("ray://").rsplit(":", 1)
    socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


def _local_address() -> str | None:
    """None: Ray looks for a cluster here; "local" if what it would find is dead.

    A cluster that was killed leaves its address in a file, and Ray would wait for it for minutes.
    """
    left = None if os.environ.get("RAY_ADDRESS") else read_ray_address()
    if not left:
        return None
    try:
        _check_answers(left)
    except (OSError, ValueError):
        logger.warning("no Ray cluster answers at %s any more; starting one here", left)
        return "local"
    return None


def worker_size(cluster: ClusterOptions, device: str) -> tuple[float, float]:
    """GPUs and CPUs of a worker: one GPU and its share of the cores, or a few cores.

    Raises `InputError` if no node is alive.
    """
    alive = [node["Resources"] for node in nodes()]
    if not alive:
        raise InputError(f"the Ray cluster has no node that is alive; {_RESTART}")
    largest = max(alive, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)))
    gpus = cluster.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if largest.get("GPU", 0) and device != "cpu" else 0.0
    cpus = cluster.cpus_per_worker
    if cpus is None:
        on_gpu = largest.get("CPU", 1) / max(1.0, largest.get("GPU", 0)) * gpus
        share = on_gpu if gpus else _CPUS_PER_CPU_WORKER
        cpus = max(1.0, float(int(min(share, largest.get("CPU", 1)))))
    if not any(node.get("GPU", 0) >= gpus and node.get("CPU", 0) >= cpus for node in alive):
        logger.warning(  # an autoscaler may bring one
            "a worker needs %g GPUs and %g CPUs, and the largest node has %g and %g: waiting for "
            "a larger one to join; else stop with Ctrl-C, and ask for less with --gpus-per-worker "
            "or --cpus-per-worker",
            gpus,
            cpus,
            largest.get("GPU", 0),
            largest.get("CPU", 0),
        )
    return gpus, cpus


class Silence:
    """Measures how long no worker has answered while some have died."""

    def __init__(self) -> None:
        self._since: float | None = None

    def answered(self) -> None:
        self._since = None

    def died(self, error: BaseException) -> bool:
        """Note that a worker died; returns whether it is the first since the last answer.

        Raises `InputError` where none can be expected to answer any more.
        """
        check_own_node()
        now = time.monotonic()
        is_first = self._since is None
        if self._since is None:
            self._since = now
        if now - self._since >= SILENT_SECONDS:
            raise InputError(
                f"no worker has answered for {SILENT_SECONDS:g} seconds, and they keep dying "
                f"({one_line(error)}); {_RESTART}"
            )
        return is_first


def check_own_node() -> None:
    """Raise `InputError` if the node through which this process takes part has died."""
    listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    own = ray.get_runtime_context().get_node_id()
    if any(node["NodeID"] == own and not node["Alive"] for node in listed):
        raise InputError(f"Ray has died on this machine; {_RESTART}")


def nodes() -> list[dict[str, Any]]:
    """The nodes that are alive."""
    listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in listed if node["Alive"]]


def get(reference: Any) -> Any:
    """`ray.get` that raises the errors of ncclean as the worker raised them."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, NccleanError):
            raise cause from error
        raise


def is_gone(node_id: str) -> bool:
    """Whether the node of a worker that just died is no longer part of the cluster."""
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline:
        if node_id not in {node["NodeID"] for node in nodes()}:
            return True
        time.sleep(_GONE_SECONDS / 10)
    return False


def one_line(error: BaseException) -> str:
    """An error on one line; Ray's tracebacks are shortened to their first and last lines."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [" ".join(line.split()) for line in plain.splitlines() if line.strip(" ^~\t")]
    if len(lines) < 2:
        return "".join(lines)[:300]
    return f"{lines[0][:120]} ... {lines[-1][:200]}"
