"""Exports and injected noise on a real cluster: the bytes of one process, whatever happens.

And the rows of scores and of neighbours where nothing happens: to start a cluster takes longest.
"""

import hashlib
import os
import subprocess
import sys
import threading
import time

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.export import Export
from ncclean_pipelines.inject_noise import InjectNoise
from ncclean_pipelines.neighbours import Neighbours
from ncclean_pipelines.score import Score
from ncclean_pipelines.select import Select

from ncclean.base.config import ClusterOptions, TaskOptions
from ncclean.neighbour_search.options import NeighbourOptions
from ncclean.runners.ray_runner import RayTasks
from ncclean.selection.policy import Policy
from tests import object_store
from tests.execution import clusters
from tests.factories import rendered
from tests.neighbour_search.simulated import assert_same, write_clustered
from tests.pipelines.score_tables import assert_same_rows, read

COMMAND = "import sys; from ncclean_cli.app import main; main()"
PAIRS, EACH = 600, 30
MODEL = {"model": "demo", "precision": "fp32", "shift": 0.2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Shards, their scores and a selection of most pairs."""
    folder = tmp_path_factory.mktemp("tasks")
    rendered(folder / "shards", pairs=PAIRS, shard_size=40, seed=3)
    scores, selection = str(folder / "scores.parquet"), str(folder / "selection.parquet")
    Score(shards=[str(folder / "shards")], out=scores, **MODEL).run()
    policy = Policy(score="osa_weight", keep_fraction=0.8)
    Select(scores=[scores], out=selection, policy=policy).run()
    return folder


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    with clusters.cluster(tmp_path_factory.mktemp("site"), [1, 1]) as made:
        yield made


def on(cluster):
    return TaskOptions(engine="ray", ray_address=cluster.address)


def exporting(folder, out, **changes):
    options = {"samples_per_shard": EACH, "scores": [str(folder / "scores.parquet")], **changes}
    return Export(
        selection=options.pop("selection", str(folder / "selection.parquet")),
        shards=options.pop("shards", [str(folder / "shards")]),
        out=str(out),
        **options,
    )


def injecting(folder, out, **changes):
    shards = changes.pop("shards", [str(folder / "shards")])
    noise = {"ncr": 0.2, "decl": 0.1}
    return InjectNoise(shards=shards, out=str(out), noise=noise, seed=5, **changes)


MAKE = {"export": exporting, "inject-noise": injecting}


def digests(folder):
    """The bytes of all shards by name."""
    found = sorted(one for one in os.listdir(folder) if one.endswith(".tar"))
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in found
    }  # fmt: skip


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    made = {}
    for name, make in MAKE.items():
        out = tmp_path_factory.mktemp("expected") / name
        make(corpus, out).run()
        made[name] = digests(out)
        assert len(made[name]) > 10
    return made


@pytest.mark.parametrize("name", MAKE)
def test_bytes_are_those_of_one_process(two_nodes, corpus, expected, tmp_path, name, monkeypatch):
    monkeypatch.chdir(corpus)  # workers have another working folder
    make = MAKE[name]
    changes = {"shards": ["shards"], "tasks": on(two_nodes)}
    if name == "export":
        changes |= {"selection": "selection.parquet", "scores": ["scores.parquet"]}
    make(corpus, os.path.relpath(tmp_path / "out"), **changes).run()
    assert digests(tmp_path / "out") == expected[name]


def test_scores_are_those_of_the_local_engine(two_nodes, corpus, tmp_path):
    nodes = ClusterOptions(address=two_nodes.address, workers=2, cpus_per_worker=1)
    out = tmp_path / "scores.parquet"
    run = Score(shards=[str(corpus / "shards")], out=str(out), engine="ray", cluster=nodes, **MODEL)
    summary = run.run().summary
    assert (summary.rows, summary.shards, summary.shards_failed) == (PAIRS, 15, 0)
    assert_same_rows(read(out), read(corpus / "scores.parquet"))


def test_neighbours_are_those_of_one_process(two_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr("ncclean.neighbour_search.blocks._LEAST_BLOCK_BYTES", 1000)
    embeddings = str(write_clustered(tmp_path / "e"))
    (tmp_path / "out").mkdir()
    search = {"options": NeighbourOptions(index="ivf", k=6), "memory_limit": "3MB"}
    here, there = tmp_path / "here.parquet", tmp_path / "out" / "n.parquet"
    Neighbours(embeddings=[embeddings], out=str(here), **search).run()
    run = Neighbours(embeddings=[embeddings], out=str(there), tasks=on(two_nodes), **search)
    assert run.run().summary.pairs == 6000
    assert_same(pq.read_table(there), pq.read_table(here))
    assert os.listdir(tmp_path / "out") == ["n.parquet"]  # the working folder is gone


def test_no_more_tasks_run_at_a_time_than_were_asked_for(two_nodes, tmp_path):
    def work(number):
        (tmp_path / str(number)).touch()
        time.sleep(0.5)
        running = len(list(tmp_path.iterdir()))
        (tmp_path / str(number)).unlink()
        return running

    with RayTasks(two_nodes.address, 1) as tasks:
        found = [running for _, running in tasks.map(work, ((n, (n,)) for n in range(4)))]
    assert found == [1] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"), [("export", "export_task"), ("inject-noise", "write_shard")]
)
def test_a_task_killed_in_the_middle(two_nodes, corpus, expected, tmp_path, name, task):
    killer = threading.Thread(target=clusters.kill_workers, kwargs={"task": task})
    killer.start()
    MAKE[name](corpus, tmp_path / "out", tasks=on(two_nodes)).run()
    killer.join()
    assert digests(tmp_path / "out") == expected[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_a_node_removed_in_the_middle(corpus, expected, tmp_path, name):
    with clusters.cluster(tmp_path / "site", [1]) as made:
        node = made.add_node(num_cpus=1, object_store_memory=100 << 20)
        watch = clusters.OnFirst(lambda: made.remove_node(node, allow_graceful=False))
        MAKE[name](corpus, tmp_path / "out", tasks=on(made)).run(watch)
    assert watch.has_happened
    assert digests(tmp_path / "out") == expected[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_the_driver_killed_and_started_again(two_nodes, corpus, expected, tmp_path, name):
    out = tmp_path / "out"
    words = {
        "export": [
            corpus / "selection.parquet", "--shards", corpus / "shards",
            "--samples-per-shard", EACH, "--scores", corpus / "scores.parquet",
        ],
        "inject-noise": [corpus / "shards", "--noise", "ncr=0.2,decl=0.1", "--seed", 5],
    }[name]  # fmt: skip
    words += ["--out", out, "--ray-address", two_nodes.address]
    command = [sys.executable, "-c", COMMAND, name, *map(str, words)]
    for least in (1, 5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not (out.is_dir() and len(digests(out)) >= least):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert digests(out) == expected[name]
    assert not [name for name in os.listdir(out) if name.endswith(".tmp")]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_from_a_store_to_a_store(corpus, expected, tmp_path, name):
    with object_store.s3(), clusters.cluster(tmp_path / "site", [1, 1]) as made:
        object_store.upload(corpus / "shards", "s3://corpus/shards")
        changes = {"shards": ["s3://corpus/shards"], "tasks": on(made)}
        if name == "export":
            system = object_store.filesystem()
            for table in ("scores", "selection"):
                file = f"{table}.parquet"
                system.put_file(str(corpus / file), f"corpus/{file}")
            changes |= {"scores": ["s3://corpus/scores.parquet"]}
            changes |= {"selection": "s3://corpus/selection.parquet"}
        MAKE[name](corpus, "s3://corpus/out", **changes).run()
        (tmp_path / "copy").mkdir()
        system = object_store.filesystem()
        for shard in system.glob("corpus/out/*.tar"):
            system.get_file(shard, str(tmp_path / "copy" / shard.rsplit("/", 1)[1]))
    assert digests(tmp_path / "copy") == expected[name]


@pytest.mark.slow
def test_joined_scores_reach_the_workers(two_nodes, corpus, tmp_path):
    scores = str(corpus / "scores.parquet")
    changes = {"join": [f"again={scores}"], "columns": ["again.similarity"]}
    exporting(corpus, tmp_path / "here", **changes).run()
    exporting(corpus, tmp_path / "there", tasks=on(two_nodes), **changes).run()
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
    assert "_scores.parquet" not in os.listdir(tmp_path / "there")


def test_no_cluster_at_the_address_is_one_sentence(corpus, tmp_path, refused):
    nowhere = TaskOptions(engine="ray", ray_address="127.0.0.1:1")
    refused(exporting, corpus, tmp_path / "out", tasks=nowhere)
    refused(TaskOptions, engine="local", ray_address="auto")
