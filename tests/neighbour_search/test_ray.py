"""The search on a real cluster of two nodes: the rows of one process, whatever happens to it.

Those of a cluster to which nothing happens: `tests/runners/test_ray_runner.py`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ncclean_pipelines.neighbours import Neighbours

from ncclean.base.config import TaskOptions
from ncclean.errors import ResumeError
from ncclean.neighbour_search.options import NeighbourOptions
from tests import object_store
from tests.execution import clusters
from tests.neighbour_search.simulated import assert_same, write_clustered

COMMAND = "import sys; from ncclean_cli.app import main; main()"
SEARCH = {"options": NeighbourOptions(index="ivf", k=6), "memory_limit": "3MB"}


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    return write_clustered(tmp_path_factory.mktemp("neighbours") / "e")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("ncclean.neighbour_search.blocks._LEAST_BLOCK_BYTES", 1000)


@pytest.fixture(scope="module")
def expected(embeddings, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "n.parquet"
    Neighbours(embeddings=[str(embeddings)], out=str(out), **SEARCH).run()
    return pq.read_table(out)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    with clusters.cluster(tmp_path_factory.mktemp("site"), [1, 1]) as made:
        yield made


def on(cluster, embeddings, out, **changes):
    return Neighbours(
        embeddings=[str(embeddings)],
        out=str(out),
        tasks=TaskOptions(engine="ray", ray_address=cluster.address),
        **{**SEARCH, **changes},
    )


def copies():
    """Files of object stores that nodes of this machine have copied."""
    return set(Path(tempfile.gettempdir()).glob("ncclean-arrays-*"))


@pytest.mark.slow
def test_a_task_killed_in_the_middle(two_nodes, embeddings, expected, tmp_path):
    killer = threading.Thread(target=clusters.kill_workers, kwargs={"task": "search_lists"})
    killer.start()
    on(two_nodes, embeddings, tmp_path / "n.parquet").run()
    killer.join()
    assert_same(pq.read_table(tmp_path / "n.parquet"), expected)


@pytest.mark.slow
def test_a_node_removed_in_the_middle(embeddings, expected, tmp_path):
    with clusters.cluster(tmp_path / "site", [1]) as made:
        node = made.add_node(num_cpus=1, object_store_memory=100 << 20)

        class Watch:
            done = False

            def say(self, text):
                if text.startswith("searching text neighbours") and not self.done:
                    self.done = True
                    made.remove_node(node, allow_graceful=False)

            def advance(self, *position, **facts): ...

        watch = Watch()
        on(made, embeddings, tmp_path / "n.parquet").run(watch)
    assert watch.done
    assert_same(pq.read_table(tmp_path / "n.parquet"), expected)


@pytest.mark.slow
def test_the_driver_killed_again_and_again(two_nodes, embeddings, expected, tmp_path):
    out = tmp_path / "n.parquet"
    words = ["neighbours", embeddings, "--out", out, "--index", "ivf", "--k", "6"]
    words += ["--memory-limit", "3MB", "--ray-address", two_nodes.address]
    command = [sys.executable, "-c", COMMAND, *map(str, words)]
    work = tmp_path / "n.parquet.work"
    for marker in ("lists-", "pairs-text-", "near-text-text-"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not (work.is_dir() and any(name.startswith(marker) for name in os.listdir(work))):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
        time.sleep(0.5)
    with pytest.raises(ResumeError, match="--k was 6, is 5"):
        on(two_nodes, embeddings, out, options=NeighbourOptions(index="ivf", k=5)).run()
    scratch = {
        name: (work / name).stat().st_mtime_ns for name in os.listdir(work) if "read" in name
    }
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert len(scratch) >= 1
    assert_same(pq.read_table(out), expected)
    assert not work.exists()


@pytest.mark.slow
def test_embeddings_and_table_in_an_object_store(embeddings, expected, tmp_path):
    before = copies()
    with object_store.s3() as store, clusters.cluster(tmp_path / "site", [1, 1]) as made:
        for folder in ("img_emb", "text_emb", "metadata"):
            object_store.upload(embeddings / folder, f"s3://corpus/e/{folder}")
        killer = threading.Thread(target=clusters.kill_workers, kwargs={"task": "search_lists"})
        killer.start()
        on(made, "s3://corpus/e", "s3://corpus/n.parquet").run()
        killer.join()
        assert any(method == "PUT" and "near-image-text" in path for method, path in store.requests)
        system = object_store.filesystem()
        assert system.ls("corpus") == ["corpus/e", "corpus/n.parquet"]
        system.get_file("corpus/n.parquet", str(tmp_path / "n.parquet"))
    assert_same(pq.read_table(tmp_path / "n.parquet"), expected)
    assert copies() == before


def test_work_of_an_interrupted_search_is_removed_with_overwrite(embeddings, expected, tmp_path):
    out, work = tmp_path / "n.parquet", tmp_path / "n.parquet.work"

    class Interrupt:
        def say(self, text):
            if text.startswith("merging lists"):
                raise KeyboardInterrupt

        def advance(self, *position, **facts): ...

    with pytest.raises(KeyboardInterrupt):
        Neighbours(embeddings=[str(embeddings)], out=str(out), **SEARCH).run(Interrupt())
    assert (work / "run.json").exists()
    (work / "mine.txt").write_text("mine")
    other = NeighbourOptions(index="ivf", k=6, seed=1)
    again = {**SEARCH, "options": other}
    with pytest.raises(ResumeError, match="--seed was 0, is 1"):
        Neighbours(embeddings=[str(embeddings)], out=str(out), **again).run()
    Neighbours(embeddings=[str(embeddings)], out=str(out), overwrite=True, **SEARCH).run()
    assert_same(pq.read_table(out), expected)
    assert os.listdir(work) == ["mine.txt"]
    shutil.rmtree(work)
