"""A cluster that has died ends a run, and does not keep it waiting for ever."""

import socket
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import RayTaskError

from ncclean.base.config import ClusterOptions
from ncclean.errors import InputError, ModelError
from ncclean.execution.ray_workers import Loaded, Place, Worker, WorkerPool
from ncclean.models.estimator import ModelIdentity
from ncclean.runners import ray_cluster
from ncclean.runners.ray_cluster import HEAD_SECONDS, Watch, worker_size


@pytest.fixture
def head():
    """The address of a process that listens; closing it is its death."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


@pytest.fixture
def nodes(monkeypatch, head):
    listed = [{"NodeID": "own", "Alive": True, "Resources": {"CPU": 4, "memory": 8e9}}]

    class Context:
        gcs_address = f"127.0.0.1:{head.getsockname()[1]}"

        def get_node_id(self):
            return "own"

    monkeypatch.setattr(ray, "nodes", lambda: listed)
    monkeypatch.setattr(ray, "get_runtime_context", Context)
    monkeypatch.setattr(ray_cluster, "_starts_nodes", lambda: None)  # a cluster by hand
    return listed


@pytest.fixture
def demands(monkeypatch):
    """What tasks that wait for a node ask for, and which of them are taken back."""
    asked, cancelled = [], []

    class Task:
        def options(self, name):
            return self

        def remote(self):
            return "demand"

    monkeypatch.setattr(ray, "remote", lambda **needs: asked.append(needs) or (lambda f: Task()))
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    return asked, cancelled


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: now[0])
    return now


def test_workers_that_only_die_end_the_run_after_two_minutes(nodes, clock, refused):
    watch = Watch()
    error = RuntimeError("the actor is dead")
    said = []
    for clock[0] in range(0, 120, 7):
        said.append(watch.died(error))
    assert said == [True] + [False] * 17  # not once a second
    clock[0] = 120
    refused(watch.died, error)


def test_an_answer_in_between_begins_anew(nodes, clock, refused):
    watch = Watch()
    for clock[0] in range(0, 1000, 100):
        watch.died(RuntimeError("the actor is dead"))
        watch.answered()
    watch.died(RuntimeError("the actor is dead"))
    clock[0] += 120
    refused(watch.died, RuntimeError("the actor is dead"))


def test_the_end_of_the_node_of_this_process_is_said_at_once(nodes, clock):
    nodes[0]["Alive"] = False
    with pytest.raises(InputError, match="Ray has died on this machine"):
        Watch().died(RuntimeError("x"))


def test_a_head_that_dies_is_named_at_once_and_ends_the_run_soon(
    nodes, head, clock, caplog, refused
):
    watch = Watch()
    assert list(watch.nodes()) == ["own"]
    head.close()
    clock[0] = 2
    assert list(watch.nodes()) == ["own"]  # as they were
    assert watch.head_is_silent
    assert f"({watch._head}) does not answer" in caplog.text
    clock[0] = 2 + HEAD_SECONDS
    refused(watch.nodes)


def test_the_nodes_are_listed_once_a_tick(nodes, clock, monkeypatch):
    """However many workers have died: 64 of them must not ask 64 times."""
    listings = []
    monkeypatch.setattr(ray, "nodes", lambda: listings.append(clock[0]) or nodes)
    watch = Watch()
    for _ in range(64):
        watch.nodes()
    clock[0] = 1
    watch.nodes()
    assert listings == [0, 1]


def test_sizes_of_workers(nodes, demands, caplog):
    assert worker_size(ClusterOptions(), "cpu") == (0, 4)
    assert not caplog.messages
    assert worker_size(ClusterOptions(cpus_per_worker=2), "auto") == (0, 2)
    assert "no GPU, and none is on its way: workers compute on CPUs" in caplog.text
    nodes.append({"NodeID": "b", "Alive": True, "Resources": {"CPU": 24, "GPU": 2}})
    assert worker_size(ClusterOptions(), "auto") == (1, 12)
    assert worker_size(ClusterOptions(gpus_per_worker=0.5), "cuda") == (0.5, 6)
    assert worker_size(ClusterOptions(), "cpu") == (0, 4)


def test_workers_wait_for_a_node_that_is_large_enough(nodes, demands, monkeypatch):
    """With `--device cuda`, or where GPUs or CPUs are named: an autoscaler may bring them."""

    def sleep(seconds):
        nodes.append({"NodeID": "b", "Alive": True, "Resources": {"CPU": 8, "GPU": 1}})

    monkeypatch.setattr(ray_cluster.time, "sleep", sleep)
    monkeypatch.setattr(ray_cluster, "TICK_SECONDS", 0.1)
    assert worker_size(ClusterOptions(), "cuda") == (1, 8)
    assert demands == ([{"num_cpus": 1.0, "num_gpus": 1.0}], ["demand"])


def test_workers_that_fail_and_fill_the_cluster_end_the_run(nodes, caplog):
    """Those that wait for the places of the ones given up would wait for ever."""
    pool = WorkerPool(None, None, None, gpus=0, cpus=2, wanted=3)
    pool.workers = [Worker(name, None) for name in ("a", "b", "c")]
    list(pool._failed(pool.workers[0], ModelError("no such device")))
    assert "worker a failed: no such device" in caplog.text
    assert "worker a is parked" in caplog.text
    with pytest.raises(ModelError, match="no such device"):
        list(pool._failed(pool.workers[1], ModelError("no such device")))


def test_further_workers_ask_for_the_memory_that_the_first_one_took(nodes):
    """Two GiB more than that; but no more than a node has, or none would start."""
    pool = WorkerPool(None, None, None, gpus=0, cpus=2, wanted=3)
    identity = ModelIdentity("demo", "", "", "fp32", 100.0)
    list(pool._begin(Worker("a", None), Loaded(identity, "cpu", 1 << 30)))
    assert pool._needs["memory"] == 3 << 30
    assert pool._room() == 2
    list(pool._begin(Worker("b", None), Loaded(identity, "cpu", 7 << 30)))
    assert pool._needs["memory"] == 8e9


def test_failures_with_a_success_between_them_are_not_in_a_row(nodes, monkeypatch):
    """A worker is not given up for what it fails in its whole life."""

    class Actor:  # what a shard answers is given instead of the shard
        def options(self, name):
            return self

        def remote(self, answer):
            return answer

    def get(answer):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    pool = WorkerPool(None, None, None, gpus=0, cpus=2, wanted=3)
    loaded = Loaded(ModelIdentity("demo", "", "", "fp32", 100.0), "cpu", 1 << 30)
    worker = Worker("a", SimpleNamespace(score=Actor()), Place("own", "", "h"), loaded)
    pool.workers = [worker]
    failed = RayTaskError("score", "Traceback: no", LookupError("no"))
    usable = []
    for answer in (failed, failed, "a success", failed, failed, failed):
        pool.call(worker, "score", answer)
        assert [answered for _, answered in pool.answers()] == [answer]
        usable.append(pool.usable == [worker])
    assert usable == [True] * 5 + [False]
