"""A cluster that grows when it is asked to: Ray's autoscalers, with nodes that are made up."""

import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import time

import pytest
import ray
from ncclean_pipelines.score import Score

from ncclean.base.config import ClusterOptions
from tests.execution.clusters import environment, sitecustomize
from tests.factories import rendered
from tests.pipelines.score_tables import assert_same_rows, read

pytestmark = pytest.mark.slow
MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}
HEAD = "ray.head.default"
HEAD_ID = "f" * 51 + "00000"  # of Ray's provider of nodes for tests


@contextlib.contextmanager
def autoscaling(scratch, nodes, version):
    """A head of one core, whose autoscaler of this version may start `nodes` by their resources.

    Ray's own `AutoscalingCluster` stops all of Ray on the machine first, and lacks a file.
    """
    address = f"{ray.util.get_node_ip_address()}:{free_port()}"
    provider = {
        "type": "external",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "gcs_address": address,
        "head_node_id": HEAD_ID,
        "launch_multiple": True,
    }
    kinds = {HEAD: ({"CPU": 1}, 0), **{name: (has, 4) for name, has in nodes.items()}}
    config = {
        "cluster_name": "made-up",
        "max_workers": 4,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.5,
        "provider": provider,
        "auth": {},
        "head_node_type": HEAD,
        "available_node_types": {
            name: {"resources": has, "node_config": {}, "min_workers": 0, "max_workers": most}
            for name, (has, most) in kinds.items()
        },
    }
    lists = ("initialization_commands", "setup_commands", "head_setup_commands", "rsync_exclude",
             "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands",
             "cluster_synced_files", "rsync_filter")  # fmt: skip
    config |= {name: [] for name in lists} | {"file_mounts": {}, "docker": {}}
    config["file_mounts_sync_continuously"] = False
    variables = {
        **sitecustomize(scratch),
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_AUTH_MODE": "disabled",  # else a token in the home folder is asked for
        "RAY_FAKE_CLUSTER": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_enable_autoscaler_v2": str(version - 1),
    }
    (scratch / "config.json").write_text(json.dumps(config))
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        words = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *("--port", address.split(":")[1], "--temp-dir", folder, "--num-cpus", "1"),
            *("--object-store-memory", str(100 << 20), "--include-dashboard", "false"),
            *("--dashboard-agent-listen-port", "0", "--autoscaling-config"),
            scratch / "config.json",
        ]
        with environment(variables), (scratch / "log").open("wb") as log:
            head = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(address, head)
            yield address
        finally:
            subprocess.run(["pkill", "-KILL", "--session", str(head.pid)])
            head.wait()


def free_port():
    """One below those that Ray's workers and this system give to whoever asks."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("", random.randint(22000, 32000)))
            return free.getsockname()[1]


def wait_for(address, head):
    host, port = address.split(":")
    for _ in range(300):
        assert head.poll() is None
        with contextlib.suppress(OSError):
            return socket.create_connection((host, int(port)), 1).close()
        time.sleep(0.2)
    raise AssertionError("no head")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return rendered(
        tmp_path_factory.mktemp("grows") / "shards",
        pairs=300,
        shard_size=50,
        noise={"ncr": 0.2},
        seed=3,
    )


@pytest.fixture(scope="module")
def reference(shards, tmp_path_factory):
    out = tmp_path_factory.mktemp("reference") / "scores.parquet"
    Score(shards=[str(shards)], out=str(out), **MODEL).run()
    return read(out)


def score(address, shards, out, **cluster):
    options = ClusterOptions(address=address, **cluster)
    request = Score(shards=[str(shards)], out=str(out), engine="ray", cluster=options, **MODEL)
    return request.run().summary


@pytest.mark.parametrize("version", [1, 2])
def test_a_driver_waits_for_the_gpus_that_an_autoscaler_brings(
    shards, reference, tmp_path, caplog, version
):
    """Torch sees none of these GPUs, which are numbers to Ray: workers say so."""
    held = []

    class Watching:
        def say(self, text): ...

        def advance(self, *counts, **facts):
            total, free = ray.cluster_resources(), ray.available_resources()
            held.append(total.get("GPU", 0) - free.get("GPU", 0))

    node = {"CPU": 1, "GPU": 1, "object_store_memory": 100 << 20}
    with autoscaling(tmp_path, {"gpu": node}, version) as address:
        options = ClusterOptions(address=address, workers=2)
        run = Score(
            shards=[str(shards)], out=str(tmp_path / "s"), engine="ray", cluster=options, **MODEL
        )
        summary = run.run(Watching()).summary
    assert (summary.rows, summary.shards_failed) == (300, 0)
    assert_same_rows(read(tmp_path / "s"), reference)
    assert max(held) >= 1
    assert "torch sees no GPU in worker ncclean-worker-" in caplog.text
    assert "workers compute on CPUs" not in caplog.text


@pytest.mark.parametrize("version", [1, 2])
def test_cpus_take_the_place_of_gpus_that_no_autoscaler_brings(
    shards, reference, tmp_path, caplog, version
):
    node = {"CPU": 2, "object_store_memory": 100 << 20}
    with autoscaling(tmp_path, {"cpu": node}, version) as address:
        summary = score(address, shards, tmp_path / "s", cpus_per_worker=1)
    assert (summary.rows, summary.shards_failed) == (300, 0)
    assert_same_rows(read(tmp_path / "s"), reference)
    assert "no GPU, and none is on its way: workers compute on CPUs" in caplog.text
