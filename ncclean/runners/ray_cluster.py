"""Connect to a Ray cluster, watch its nodes, and size its workers."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray._private.utils import read_ray_address
from ray.autoscaler.v2.schema import ClusterStatus
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.exceptions import RayTaskError
from ray.experimental.internal_kv import _internal_kv_get

from ncclean.base.config import ClusterOptions
from ncclean.errors import InputError, NccleanError

logger = logging.getLogger(__name__)

Resources = Mapping[str, float]  # in Ray's names: CPU, GPU, memory

_CONNECT_SECONDS = 10.0
_RESTART = (
    "what is done is kept: start the cluster again (`ray stop`, `ray start`), and give the same "
    "command"
)
_CONNECT_HINT = (
    "start one with `ray start --head`, or take --engine ray without --ray-address for this "
    "machine; if the cluster was started with RAY_AUTH_MODE=token, this command needs that "
    "variable and the token, too"
)
# This many consecutive deaths of workers, without an answer, end a run.
SILENT_SECONDS = 120.0
# Ray ends a driver whose head has been silent for 60 seconds, with a C++ stack. Leaving the cluster
# takes 15 of them.
HEAD_SECONDS = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", "60")) / 4  # noqa: SIM112
# An autoscaler that can add a GPU node has started within this time.
_AUTOSCALER_SECONDS = 20.0
_CPUS_PER_CPU_WORKER = 4
TICK_SECONDS = 1.0
SAY_SECONDS = 30.0


def connect(address: str | None) -> bool:
    """Connect to the cluster or start one here. Returns whether this call did either.

    Without an address, uses the cluster on this machine, if any, or the one that the process is
    already connected to.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is not None and ":" in address:  # Ray itself would wait for minutes
            _check_answers(address, _CONNECT_SECONDS)
        if ray.is_initialized():
            return False
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
    if callable(handler) and signal.getsignal(signal.SIGTERM) is not handler:
        signal.signal(signal.SIGTERM, handler)  # Ray has put its own in place
    return True


def _check_answers(address: str, seconds: float) -> None:
    """Raise `OSError` or `ValueError` if nobody answers at HOST:PORT."""
    host, port = address.removeprefix("ray://").rsplit(":", 1)
    socket.create_connection((host, int(port)), seconds).close()


def _local_address() -> str | None:
    """None: Ray looks for a cluster here; "local" if what it would find is dead.

    A killed cluster leaves its address in a file, and Ray would wait for it for minutes.
    """
    left = None if os.environ.get("RAY_ADDRESS") else read_ray_address()
    if not left:
        return None
    try:
        _check_answers(left, _CONNECT_SECONDS)
    except (OSError, ValueError):
        logger.warning("no Ray cluster answers at %s any more; starting one here", left)
        return "local"
    return None


def _head_address() -> str | None:
    """HOST:PORT of the head; None for a client (`ray://`), which a proxy keeps from it."""
    if ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
        return None
    return str(ray.get_runtime_context().gcs_address)


class Watch:
    """Watches whether the head, the node of this process and the workers still answer."""

    def __init__(self) -> None:
        self._own = ray.get_runtime_context().get_node_id()
        self._head = _head_address()
        self._listed: dict[str, Resources] = {}
        self._listed_at = -TICK_SECONDS
        self._head_silent_since: float | None = None
        self._workers_silent_since: float | None = None

    def nodes(self) -> dict[str, Resources]:
        """Resources of each live node, by its id, at most a tick old.

        Raises `InputError` if the head or the node of this process has died.
        """
        if time.monotonic() - self._listed_at >= TICK_SECONDS:
            self._listed_at = time.monotonic()
            self._ask_head()
            if not self.head_is_silent:  # else listing the nodes would block
                listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
                if any(node["NodeID"] == self._own and not node["Alive"] for node in listed):
                    raise InputError(f"Ray has died on this machine; {_RESTART}")
                self._listed = {one["NodeID"]: one["Resources"] for one in listed if one["Alive"]}
        return self._listed

    @property
    def head_is_silent(self) -> bool:
        """Whether the head did not answer when it was last asked."""
        return self._head_silent_since is not None

    def _ask_head(self) -> None:
        """Ask the head. Raises `InputError` if it has been silent for too long."""
        now = time.monotonic()
        try:
            if self._head is not None:
                _check_answers(self._head, TICK_SECONDS)
        except OSError as error:
            if self._head_silent_since is None:
                self._head_silent_since = now
                logger.warning("the head of the Ray cluster (%s) does not answer", self._head)
            if now - self._head_silent_since >= HEAD_SECONDS:
                raise InputError(
                    f"the head of the Ray cluster ({self._head}) has not answered for "
                    f"{HEAD_SECONDS:g} seconds; {_RESTART}"
                ) from error
        else:
            self._head_silent_since = None

    def answered(self) -> None:
        """Note that a worker answered."""
        self._workers_silent_since = None

    def died(self, error: BaseException) -> bool:
        """Note that a worker died; return whether it is the first since the last answer.

        Raises `InputError` if no answer can be expected any more.
        """
        self.nodes()
        now = time.monotonic()
        is_first = self._workers_silent_since is None
        if self._workers_silent_since is None:
            self._workers_silent_since = now
        if now - self._workers_silent_since >= SILENT_SECONDS:
            raise InputError(
                f"no worker has answered for {SILENT_SECONDS:g} seconds, and they keep dying "
                f"({one_line(error)}); {_RESTART}"
            )
        return is_first


def worker_size(cluster: ClusterOptions, device: str) -> tuple[float, float]:
    """Return GPUs and CPUs of a worker: as requested, else a GPU and its cores, or 4 cores.

    Waits until a node has what a worker needs; it may join later, or be added by an autoscaler.
    Only if `device` is `auto`, and no autoscaler adds a GPU, do CPUs replace GPUs. Raises
    `InputError` if the cluster has died.
    """
    gpus, cpus = cluster.gpus_per_worker, cluster.cpus_per_worker
    if gpus is None:
        gpus = 0.0 if device in ("cpu", "mps") else 1.0
    is_open = device == "auto" and cluster.gpus_per_worker is None
    node = _first_node({"GPU": gpus, "CPU": cpus or 1.0}, only_if_it_comes=is_open and gpus > 0)
    if node is None:
        logger.warning(
            "the Ray cluster has no GPU, and none is on its way: workers compute on CPUs (with "
            "--device cuda they wait for GPUs)"
        )
        gpus = 0.0
        node = _first_node({"CPU": cpus or 1.0})
    if cpus is None:
        has = (node or {}).get("CPU", 1.0)
        share = has / max(1.0, (node or {}).get("GPU", 0)) * gpus if gpus else _CPUS_PER_CPU_WORKER
        cpus = max(1.0, float(int(min(share, has))))
    return gpus, cpus


def _first_node(needs: Resources, only_if_it_comes: bool = False) -> Resources | None:
    """Return the resources of the largest node that has what is needed; wait for one to join.

    Returns None with `only_if_it_comes`, if there is none and no autoscaler starts any.
    """
    watch, demand = Watch(), None
    begun, said = time.monotonic(), 5.0
    is_coming = False
    while not (fitting := [has for has in watch.nodes().values() if _times(has, needs)]):
        if demand is None:  # a task that waits for a node makes an autoscaler start it
            remote: Any = ray.remote(num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0))(_nothing)
            demand = remote.options(name="ncclean waits for a node").remote()
        starts = _starts_nodes()
        is_coming = is_coming or bool(starts)
        waited = time.monotonic() - begun
        if only_if_it_comes and not is_coming and (starts is None or waited > _AUTOSCALER_SECONDS):
            break
        if waited >= said:
            said = waited + SAY_SECONDS
            logger.warning(
                "waiting for a node with %s%s", _shown(needs), ", which is being started"
                if starts else " to join: none has that; else stop with Ctrl-C, and give "
                "--device cpu, or less with --gpus-per-worker and --cpus-per-worker",
            )  # fmt: skip
        time.sleep(TICK_SECONDS)
    if demand is not None:
        ray.cancel(demand)
    return max(fitting, key=lambda has: (has.get("GPU", 0), has.get("CPU", 0)), default=None)


def _nothing() -> None:
    """Occupy the resources of a worker for a moment."""


def _starts_nodes() -> bool | None:
    """Whether an autoscaler is starting nodes; None in a cluster that has none.

    Ray's two autoscalers report differently; one that reports in neither way may do so yet.
    """
    report = _internal_kv_get("__autoscaling_status")
    if report is None:
        head = _head_address()
        status = get_cluster_status(head) if head is not None else ClusterStatus()
        return bool(status.pending_launches or status.pending_nodes)
    first = json.loads(report).get("autoscaler_report") or {}
    kinds = first.get("node_type_mapping", {})
    if kinds and all(kind == f"node_{node}" for node, kind in kinds.items()):  # each its own
        return None
    return bool(first.get("pending_launches") or first.get("pending_nodes"))


def room(nodes: Iterable[Resources], needs: Resources) -> int:
    """Return the number of workers that fit on the nodes; at least one."""
    return max(1, sum(_times(has, needs) for has in nodes))


def _times(has: Resources, needs: Resources) -> int:
    return min((int(has.get(kind, 0) / need) for kind, need in needs.items() if need), default=1)


def _shown(needs: Resources) -> str:
    return " and ".join(f"{need:g} {kind}" for kind, need in needs.items() if need)


def get(reference: Any) -> Any:
    """`ray.get` that raises the errors of ncclean as the worker raised them."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, NccleanError):
            raise cause from error
        raise


def one_line(error: BaseException, last: int = 1) -> str:
    """Return an error on one line; shorten Ray's tracebacks to their first and `last` lines."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [" ".join(line.split()) for line in plain.splitlines() if line.strip(" ^~\t")]
    if len(lines) < 2:
        return "".join(lines)[:300]
    return " ... ".join([lines[0][:120], *(line[:200] for line in lines[1:][-last:])])
