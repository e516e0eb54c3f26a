"""A cluster that has died ends a run, and does not keep it waiting for ever."""

import pytest
import ray

from ncclean.config import ClusterOptions
from ncclean.errors import InputError, ModelError
from ncclean.execution.ray_workers import Worker, WorkerPool
from ncclean.runners import ray_cluster
from ncclean.runners.ray_cluster import Silence, worker_size


@pytest.fixture
def nodes(monkeypatch):
    listed = [{"NodeID": "own", "Alive": True, "Resources": {"CPU": 4}}]

    class Context:
        def get_node_id(self):
            return "own"

    monkeypatch.setattr(ray, "nodes", lambda: listed)
    monkeypatch.setattr(ray, "get_runtime_context", Context)
    return listed


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: now[0])
    return now


def test_workers_that_only_die_end_the_run_after_two_minutes(nodes, clock):
    silence = Silence()
    error = RuntimeError("the actor is dead")
    said = []
    for clock[0] in range(0, 120, 7):
        said.append(silence.died(error))
    assert said == [True] + [False] * 17  # not once a second
    clock[0] = 120
    with pytest.raises(InputError, match=r"no worker has answered for 120 seconds.*same command"):
        silence.died(error)


def test_an_answer_in_between_begins_anew(nodes, clock):
    silence = Silence()
    for clock[0] in range(0, 1000, 100):
        silence.died(RuntimeError("the actor is dead"))
        silence.answered()
    silence.died(RuntimeError("the actor is dead"))
    clock[0] += 120
    with pytest.raises(InputError, match="120 seconds"):
        silence.died(RuntimeError("the actor is dead"))


def test_the_end_of_the_node_of_this_process_is_said_at_once(nodes, clock):
    nodes[0]["Alive"] = False
    with pytest.raises(InputError, match="Ray has died on this machine"):
        Silence().died(RuntimeError("x"))


def test_a_cluster_without_nodes_is_a_sentence(nodes):
    """A node ends with its agent: `max() arg is an empty sequence` is no sentence."""
    nodes[0]["Alive"] = False
    with pytest.raises(InputError, match="no node that is alive"):
        worker_size(ClusterOptions(), "cpu")


def test_a_worker_larger_than_every_node_waits_and_names_both_sizes(nodes, caplog):
    """A cluster without GPUs has no such resource at all: `KeyError: 'GPU'` was the answer."""
    assert worker_size(ClusterOptions(workers=2, gpus_per_worker=1), "auto") == (1, 4)
    assert "needs 1 GPUs and 4 CPUs, and the largest node has 0 and 4" in caplog.text
    assert worker_size(ClusterOptions(workers=2, cpus_per_worker=8), "cpu") == (0, 8)
    assert "needs 0 GPUs and 8 CPUs, and the largest node has 0 and 4" in caplog.text


def test_workers_that_fail_and_fill_the_cluster_end_the_run(nodes, monkeypatch, caplog):
    """Those that wait for the places of the ones given up would wait for ever."""
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4})
    monkeypatch.setattr(ray, "available_resources", dict)
    pool = WorkerPool(None, None, None, gpus=0, cpus=2, wanted=3)
    pool.workers = [Worker(None), Worker(None), Worker(None)]
    pool.park(pool.workers[0], ModelError("no such device"))
    assert "gave up a worker: no such device" in caplog.text
    with pytest.raises(ModelError, match="no such device"):
        pool.park(pool.workers[1], ModelError("no such device"))
